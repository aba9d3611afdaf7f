package ledgerstream

import (
	"context"
	"errors"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

// errMissed ends the reading of a range in which there is what must not be there.
var errMissed = errors.New("an update that the index has not applied")

// missed reports whether an update of ours lies between the last one that the index knows of (Position.UpdateOffset) and the offset at
// which it says that it stands. There is none, unless the ledger's history is another one from somewhere after that update on: the
// participant was restored to a state between the two and has grown past the index since, so that the end and the update look as they did.
// (Or the place is not the index's own: moved by hand, or put together from two backups.) Such an index would look whole and lack an
// update for ever.
//
// What a connection has shown says nothing of the ledger at the other end of the next one, so the range is read in every session. It is
// empty as a rule, which a participant knows from its own index. What is pruned of it can't be asked for any more: a history that
// was replaced there, and there alone, is not noticed.
func (s *session) missed(ctx context.Context, p peer) (bool, *ending) {
	pos := s.pos
	begin := max(pos.UpdateOffset, p.pruned)
	if begin >= pos.Offset {
		return false, nil
	}
	s.followed = true
	err := s.concerningIn(ctx, begin, pos.Offset, func(u concerned) error {
		s.f.log.Error("the ledger has an update that the index has not applied, before the offset at which the index stands: the ledger's history is another one, or the index's place is not its own",
			"update", u.offset, "update_id", u.id, "last_applied", pos.UpdateOffset, "offset", pos.Offset)
		return errMissed
	})
	switch {
	case errors.Is(err, errMissed):
		return true, nil
	case isEOF(err):
		return false, nil
	case errorID(err) == "PARTICIPANT_PRUNED_DATA_ACCESSED": // since we asked
		return false, nil
	default:
		return false, classify(callProof, err)
	}
}

// concerned is an update that changes which of the contracts asked for are active.
type concerned struct {
	offset     int64
	id         string
	recordTime time.Time
}

// concerningIn passes each update of ours after begin, up to end inclusive, to take, in order. It returns io.EOF where the range was
// read to its end, or take's error, or the participant's.
func (s *session) concerningIn(ctx context.Context, begin, end int64, take func(concerned) error) error {
	return receive(ctx, s.f.cfg.StallTimeout, func(ctx context.Context) (func() (*ledgerapi.GetUpdatesResponse, error), error) {
		stream, err := s.f.updates.GetUpdates(ctx, &ledgerapi.GetUpdatesRequest{
			BeginExclusive: begin, EndInclusive: &end, UpdateFormat: s.filter.updateFormat(false, false),
		})
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}, func(response *ledgerapi.GetUpdatesResponse) error {
		s.f.heard()
		if !s.convert.concerning(response) {
			return nil
		}
		u := concerned{}
		if tx := response.GetTransaction(); tx != nil {
			u = concerned{tx.GetOffset(), tx.GetUpdateId(), timeOf(tx.GetRecordTime())}
		} else {
			r := response.GetReassignment()
			u = concerned{r.GetOffset(), r.GetUpdateId(), timeOf(r.GetRecordTime())}
		}
		return take(u)
	})
}

// concerning reports whether the message is an update that changes which contracts are active, of the templates asked for: exactly those
// of which response makes changes with events.
func (c *converter) concerning(r *ledgerapi.GetUpdatesResponse) bool {
	kept := func(packageName string, template *ledgerapi.Identifier) bool {
		name := apivalue.TypeName(template)
		return c.kept[packageTemplate{packageName: packageName, template: damlvalue.TypeName{Module: name.Module, Entity: name.Entity}}]
	}
	for _, ev := range r.GetTransaction().GetEvents() {
		created, archived, exercised := ev.GetCreated(), ev.GetArchived(), ev.GetExercised()
		if created.GetAcsDelta() && kept(created.GetPackageName(), created.GetTemplateId()) ||
			archived != nil && kept(archived.GetPackageName(), archived.GetTemplateId()) ||
			exercised.GetConsuming() && exercised.GetAcsDelta() && kept(exercised.GetPackageName(), exercised.GetTemplateId()) {
			return true
		}
	}
	for _, ev := range r.GetReassignment().GetEvents() {
		assigned, unassigned := ev.GetAssigned().GetCreatedEvent(), ev.GetUnassigned()
		if assigned != nil && kept(assigned.GetPackageName(), assigned.GetTemplateId()) ||
			unassigned != nil && kept(unassigned.GetPackageName(), unassigned.GetTemplateId()) {
			return true
		}
	}
	return false
}
