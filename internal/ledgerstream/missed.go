package ledgerstream

import (
	"context"
	"errors"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

// errMissed ends the reading of a range in which there is what must not be there.
var errMissed = errors.New("an update that the index has not applied")

// missed reports whether an update of ours lies between the last one that the index applied and the offset at which it says that it
// stands. There is none, unless a place was kept that is not the index's: moved by hand, or put together from two backups. Such an
// index would look whole and lack an update for ever.
//
// A place that this follower reached itself is believed. So the range is read once for each place that the sink came up with: at the
// start as a rule. What is pruned of it can't be asked for any more.
func (s *session) missed(ctx context.Context, p peer) (bool, *ending) {
	pos := s.pos
	begin := max(pos.UpdateOffset, pos.SeedOffset, p.pruned)
	if pos.SeedOffset == 0 || begin >= pos.Offset || samePlace(pos, s.f.reached) {
		return false, nil
	}
	var at int64
	err := receive(ctx, s.f.cfg.StallTimeout, func(ctx context.Context) (func() (*ledgerapi.GetUpdatesResponse, error), error) {
		stream, err := s.f.updates.GetUpdates(ctx, &ledgerapi.GetUpdatesRequest{
			BeginExclusive: begin, EndInclusive: &pos.Offset, UpdateFormat: s.filter.updateFormat(false, false),
		})
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}, func(response *ledgerapi.GetUpdatesResponse) error {
		s.f.heard()
		if at = s.convert.concerning(response); at != 0 {
			return errMissed
		}
		return nil
	})
	switch {
	case errors.Is(err, errMissed):
		s.f.log.Error("the ledger has an update that the index has not applied, before the offset at which the index stands: its place is not its own",
			"update", at, "last_applied", pos.UpdateOffset, "offset", pos.Offset)
		return true, nil
	case isEOF(err):
		s.f.reached = pos
		return false, nil
	case errorID(err) == "PARTICIPANT_PRUNED_DATA_ACCESSED": // since we asked
		return false, nil
	default:
		return false, classify(callProof, err)
	}
}

// samePlace compares positions by what names a place.
func samePlace(a, b ledger.Position) bool {
	return a.ParticipantID == b.ParticipantID && a.Offset == b.Offset && a.UpdateOffset == b.UpdateOffset && a.UpdateID == b.UpdateID
}

// concerning is the offset of an update that changes which contracts are active, of the templates asked for; 0 for any other message.
func (c *converter) concerning(r *ledgerapi.GetUpdatesResponse) int64 {
	kept := func(packageName string, template *ledgerapi.Identifier) bool {
		name := apivalue.TypeName(template)
		return c.kept[packageTemplate{packageName: packageName, template: damlvalue.TypeName{Module: name.Module, Entity: name.Entity}}]
	}
	for _, ev := range r.GetTransaction().GetEvents() {
		created, archived, exercised := ev.GetCreated(), ev.GetArchived(), ev.GetExercised()
		if created.GetAcsDelta() && kept(created.GetPackageName(), created.GetTemplateId()) ||
			archived != nil && kept(archived.GetPackageName(), archived.GetTemplateId()) ||
			exercised.GetConsuming() && exercised.GetAcsDelta() && kept(exercised.GetPackageName(), exercised.GetTemplateId()) {
			return r.GetTransaction().GetOffset()
		}
	}
	for _, ev := range r.GetReassignment().GetEvents() {
		assigned, unassigned := ev.GetAssigned().GetCreatedEvent(), ev.GetUnassigned()
		if assigned != nil && kept(assigned.GetPackageName(), assigned.GetTemplateId()) ||
			unassigned != nil && kept(unassigned.GetPackageName(), unassigned.GetTemplateId()) {
			return r.GetReassignment().GetOffset()
		}
	}
	return 0
}
