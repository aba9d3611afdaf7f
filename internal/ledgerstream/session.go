package ledgerstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	adminapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/ledger"
)

// session is one connection: who is there, is the index still its index, if not a snapshot, then the stream. It ends at the
// first fault; the next session begins with the same questions, so that no fault needs a recovery of its own. Only the
// goroutine that calls run touches it, but for what read starts.
type session struct {
	f       *Follower
	filter  filter
	reduced bool // the filter lacks templates that the participant doesn't have
	convert *converter

	// pos is where the index stands: what the sink told, moved by each Apply that succeeded. No other copy of the offset
	// decides anything, so that none can run ahead.
	pos ledger.Position
	// offset is pos.Offset for the goroutine that polls the ledger end.
	offset atomic.Int64
	seeded bool
	// reseeds is Follower.reseeds as it was when the session decided.
	reseeds int
	// participantID is who answered at the beginning.
	participantID string
	// lost is closed when the connection breaks that the session began on.
	lost chan struct{}

	// followed: the session got as far as reading updates. progressed: it moved the index, or showed over some time that
	// it works.
	followed, progressed bool

	proof proofs
	// origins is set while a snapshot is read for a new generation.
	origins *origins
}

// peer is what the participant said about itself at the beginning of a session.
type peer struct {
	version       string
	participantID string
	ledgerEnd     int64
	ledgerEndAt   time.Time // when it was asked for
	pruned        int64
	synchronizers []string
}

// run lives one session and returns why it ended, never nil. The caller looks at ctx first.
func (s *session) run(ctx context.Context) *ending {
	var asked ledger.SeedReason
	asked, s.reseeds = s.f.mustReseed()
	stopWatching := s.watch(ctx)
	defer stopWatching()
	p, end := s.ask(ctx)
	if end != nil {
		return end
	}
	s.f.update(func(st *Status) {
		st.LedgerAPIVersion, st.ParticipantID, st.Synchronizers = p.version, p.participantID, p.synchronizers
		st.LedgerEnd, st.LedgerEndAt = p.ledgerEnd, p.ledgerEndAt
	})
	if end := s.place(ctx); end != nil {
		return end
	}
	if end := s.resolveFilter(ctx, p); end != nil {
		return end
	}
	s.convert = newConverter(s.filter, p.participantID, &s.f.metrics)
	s.f.follows(s.filter)
	reason, end := s.mustSeed(ctx, p, asked)
	if end != nil {
		return end
	}
	s.f.judged(reason)
	if reason != "" {
		if end := s.seed(ctx, p, reason); end != nil {
			return end
		}
	}
	return s.follow(ctx)
}

// ask asks the participant who and where it is.
func (s *session) ask(ctx context.Context) (peer, *ending) {
	var p peer
	version, err := call(ctx, s, func(ctx context.Context) (*ledgerapi.GetLedgerApiVersionResponse, error) {
		return s.f.versions.GetLedgerApiVersion(ctx, &ledgerapi.GetLedgerApiVersionRequest{})
	})
	if err != nil {
		return p, classify(callVersion, err)
	}
	p.version = version.GetVersion()
	id, err := call(ctx, s, func(ctx context.Context) (*adminapi.GetParticipantIdResponse, error) {
		return s.f.parties.GetParticipantId(ctx, &adminapi.GetParticipantIdRequest{})
	})
	if err != nil {
		return p, classify(callParticipantID, err)
	}
	if p.participantID = id.GetParticipantId(); p.participantID == "" {
		return p, ended("no_participant_id", "%s: the participant gave no id", callParticipantID)
	}
	s.participantID = p.participantID
	pruned, err := s.pruned(ctx)
	if err != nil {
		return p, classify(callPruned, err)
	}
	p.pruned = pruned
	connected, err := call(ctx, s, func(ctx context.Context) (*ledgerapi.GetConnectedSynchronizersResponse, error) {
		return s.f.states.GetConnectedSynchronizers(ctx, &ledgerapi.GetConnectedSynchronizersRequest{})
	})
	switch status.Code(err) {
	case codes.OK:
		for _, c := range connected.GetConnectedSynchronizers() {
			p.synchronizers = append(p.synchronizers, c.GetSynchronizerId())
		}
		p.synchronizers = sortedSet(p.synchronizers)
	case codes.PermissionDenied, codes.Unimplemented, codes.InvalidArgument:
		// Only told to the curious; some participants don't tell it to every user.
		s.f.log.Debug("the participant doesn't tell its synchronizers", "error", err)
	default:
		return p, classify(callSynchronizers, err)
	}
	// The ledger end last: it is what a snapshot and a first proof start from.
	p.ledgerEnd, p.ledgerEndAt, err = s.ledgerEnd(ctx)
	if err != nil {
		return p, classify(callLedgerEnd, err)
	}
	return p, nil
}

// watch closes s.lost when the connection breaks, until stop. gRPC makes a new one by itself, and whoever is at its other end then
// (another participant, or this one restored to an earlier state) would answer calls that this session's streams are not
// part of. It begins with the first connection that comes up.
func (s *session) watch(ctx context.Context) (stop func()) {
	s.lost = make(chan struct{})
	if s.f.conn == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			state := s.f.conn.GetState()
			if !s.f.conn.WaitForStateChange(ctx, state) {
				return
			}
			if state == connectivity.Ready {
				close(s.lost)
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// verify asks again who is there: behind a balancer, one connection's calls can come to lead elsewhere. It is asked after something
// came, and before it is believed.
func (s *session) verify(ctx context.Context) error {
	id, err := call(ctx, s, func(ctx context.Context) (*adminapi.GetParticipantIdResponse, error) {
		return s.f.parties.GetParticipantId(ctx, &adminapi.GetParticipantIdRequest{})
	})
	if err != nil {
		return err
	}
	if id.GetParticipantId() != s.participantID {
		return fmt.Errorf("%w: %s, and it was %s", errAnotherParticipant, id.GetParticipantId(), s.participantID)
	}
	return nil
}

// call makes one unary call within the configured time.
func call[T any](ctx context.Context, s *session, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, s.f.cfg.CallTimeout)
	defer cancel()
	return f(ctx)
}

// ledgerEnd returns the ledger end and when it was asked for: whatever was on the ledger at that moment is at or below it.
func (s *session) ledgerEnd(ctx context.Context) (int64, time.Time, error) {
	asked := time.Now()
	response, err := call(ctx, s, func(ctx context.Context) (*ledgerapi.GetLedgerEndResponse, error) {
		return s.f.states.GetLedgerEnd(ctx, &ledgerapi.GetLedgerEndRequest{})
	})
	if err != nil {
		return 0, asked, err
	}
	if response.GetOffset() < 0 {
		return 0, asked, &DecodeError{Offset: response.GetOffset(), Field: "ledger end", Err: errors.New("is negative")}
	}
	return response.GetOffset(), asked, nil
}

// pruned returns the offset up to which the participant has forgotten.
func (s *session) pruned(ctx context.Context) (int64, error) {
	response, err := call(ctx, s, func(ctx context.Context) (*ledgerapi.GetLatestPrunedOffsetsResponse, error) {
		return s.f.states.GetLatestPrunedOffsets(ctx, &ledgerapi.GetLatestPrunedOffsetsRequest{})
	})
	return response.GetParticipantPrunedUpToInclusive(), err
}

// place asks the sink where the index stands.
func (s *session) place(ctx context.Context) *ending {
	pos, ok, err := s.f.sink.Position(ctx)
	if err != nil {
		return ended("sink", "reading the index's place: %w", err)
	}
	s.moveTo(pos)
	s.seeded = ok
	return nil
}

func (s *session) moveTo(pos ledger.Position) {
	s.pos = pos
	s.offset.Store(pos.Offset)
}

// resolveFilter finds out which of the templates the participant knows, because one unknown name fails a whole request. An
// unknown package is waited for; a template that no version of its package has is left out, and asked for again later.
//
// The question is an empty range of updates: its answer is immediate, and filters are checked.
func (s *session) resolveFilter(ctx context.Context, p peer) *ending {
	s.filter = s.f.cfg.fullFilter()
	if p.ledgerEnd == 0 {
		return nil // no range is empty at 0; the stream itself will tell
	}
	err := s.checkFilter(ctx, s.filter, p.ledgerEnd)
	if err == nil {
		return nil
	}
	if !isUnknownTemplate(err) {
		return classify(callFilter, err)
	}
	known := filter{parties: s.filter.parties}
	var missing []string
	for _, t := range s.filter.templates {
		err := s.checkFilter(ctx, filter{parties: s.filter.parties, templates: []packageTemplate{t}}, p.ledgerEnd)
		switch {
		case err == nil:
			known.templates = append(known.templates, t)
		case isUnknownTemplate(err):
			missing = append(missing, t.String())
		default:
			return classify(callFilter, err)
		}
	}
	if len(known.templates) == 0 {
		return classify(callFilter, err)
	}
	s.f.log.Warn("the participant has no version of these templates; they are left out until it has", "templates", missing)
	s.filter, s.reduced = known, true
	return nil
}

func (s *session) checkFilter(ctx context.Context, f filter, at int64) error {
	err := receive(ctx, s.f.cfg.CallTimeout, func(ctx context.Context) (func() (*ledgerapi.GetUpdatesResponse, error), error) {
		stream, err := s.f.updates.GetUpdates(ctx, &ledgerapi.GetUpdatesRequest{
			BeginExclusive: at, EndInclusive: &at, UpdateFormat: f.updateFormat(true, true),
		})
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}, func(*ledgerapi.GetUpdatesResponse) error { return nil })
	if isEOF(err) {
		return nil
	}
	return err
}

// mustSeed compares the index with the participant and returns why a new generation is needed, or "". asked is why
// an earlier session, or an operator, wants one.
func (s *session) mustSeed(ctx context.Context, p peer, asked ledger.SeedReason) (ledger.SeedReason, *ending) {
	pos := s.pos
	switch {
	case !s.seeded:
		return ledger.SeedFirst, nil
	case pos.ParticipantID != p.participantID:
		s.f.log.Error("another participant answers at this address: its offsets are not ours",
			"was", pos.ParticipantID, "is", p.participantID)
		return ledger.SeedAnotherParticipant, nil
	case asked != "" && !asked.SameHistory():
		return asked, nil
	case pos.Offset > p.ledgerEnd:
		s.f.log.Error("the ledger ends before the index: the participant was restored to an earlier state",
			"offset", pos.Offset, "ledger_end", p.ledgerEnd)
		return ledger.SeedRewound, nil
	}
	if same, end := s.sameHistory(ctx, p); end != nil || !same {
		return ledger.SeedDiverged, end
	}
	if s.comparable() {
		if missed, end := s.missed(ctx, p); end != nil || missed {
			return ledger.SeedDiverged, end
		}
	}
	switch {
	case pos.Offset < p.pruned:
		s.f.log.Error("the participant was pruned past the index: archives were missed", "offset", pos.Offset, "pruned", p.pruned)
		return ledger.SeedPruned, nil
	case !s.comparable():
		s.f.log.Warn("the index was built with another filter", "was", pos.Filter, "is", s.filter.identity())
		return ledger.SeedConfigChanged, nil
	}
	return cmp.Or(asked, pos.Reseed), nil
}

// comparable reports whether the index was built with the filter of this session: else updates can be of ours now that were not then.
func (s *session) comparable() bool { return s.pos.Filter == "" || s.pos.Filter == s.filter.identity() }

// sameHistory reports whether the last update that the index knows of is still at its offset. A participant restored to an
// earlier state, and then grown past our offset, shows itself here, unless it was restored to a state after that update: see missed.
//
// An update that is not found at an offset that is not pruned is another history (or one that we may no longer see all of: the answer
// is the same). At a pruned offset there is nothing to compare with, and the history is taken for the same: what was replaced by a
// participant that was restored and has been pruned past our last update since can't be known.
func (s *session) sameHistory(ctx context.Context, p peer) (bool, *ending) {
	pos := s.pos
	if pos.UpdateID == "" || pos.UpdateOffset <= p.pruned {
		return true, nil
	}
	// With another filter than the index's, whatever the parties can see counts: the update may be of templates no longer asked for.
	compared := s.filter
	if !s.comparable() {
		compared = filter{parties: s.filter.parties, everything: true}
	}
	response, err := s.updateAt(ctx, compared, pos.UpdateOffset)
	if errorID(err) == "UPDATE_NOT_FOUND" {
		// It may have been pruned since we asked.
		pruned, err := s.pruned(ctx)
		if err != nil {
			return false, classify(callPruned, err)
		}
		if pos.UpdateOffset <= pruned {
			return true, nil
		}
		s.f.log.Error("the update that the index applied last is not on the ledger any more",
			"update_offset", pos.UpdateOffset, "update_id", pos.UpdateID)
		return false, nil
	}
	if err != nil {
		return false, classify(callUpdateByOffset, err)
	}
	if id, _ := updateIDOf(response); id != pos.UpdateID {
		s.f.log.Error("another update is where the index applied its last: the ledger's history is another one",
			"update_offset", pos.UpdateOffset, "was", pos.UpdateID, "is", id)
		return false, nil
	}
	return true, nil
}

// updateAt asks for the update at an offset, with a filter, for what that doesn't show is not found; labels and blobs are left out.
func (s *session) updateAt(ctx context.Context, f filter, offset int64) (*ledgerapi.GetUpdateResponse, error) {
	return call(ctx, s, func(ctx context.Context) (*ledgerapi.GetUpdateResponse, error) {
		return s.f.updates.GetUpdateByOffset(ctx, &ledgerapi.GetUpdateByOffsetRequest{
			Offset: offset, UpdateFormat: f.updateFormat(false, false),
		})
	})
}

// updateIDOf returns the update's id, or "" for an update of an unknown kind, and its record time.
func updateIDOf(r *ledgerapi.GetUpdateResponse) (string, time.Time) {
	var update interface {
		GetUpdateId() string
		GetRecordTime() *timestamppb.Timestamp
	}
	switch u := r.GetUpdate().(type) {
	case *ledgerapi.GetUpdateResponse_Transaction:
		update = u.Transaction
	case *ledgerapi.GetUpdateResponse_Reassignment:
		update = u.Reassignment
	case *ledgerapi.GetUpdateResponse_TopologyTransaction:
		update = u.TopologyTransaction
	default:
		return "", time.Time{}
	}
	return update.GetUpdateId(), timeOf(update.GetRecordTime())
}

// timeOf is the zero time where there is none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func isUnknownTemplate(err error) bool {
	return slices.Contains([]string{
		"NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME", "TEMPLATES_OR_INTERFACES_NOT_FOUND",
	}, errorID(err))
}
