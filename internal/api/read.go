package api

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Index is what answers are computed from: an *index.Index, or what stands in for it until there is one. History is asked only while
// there is a view.
type Index interface {
	// View is the newest view, nil before the first seed. A view is published once the store has it.
	View() *index.View
	// Wait returns the first view, from the present one on, for which ok is true, or the context's error.
	Wait(ctx context.Context, ok func(*index.View) bool) (*index.View, error)
	// WaitUpdate returns a view that contains the update, and where it is, once there is one; or the context's error.
	WaitUpdate(ctx context.Context, updateID string) (*index.View, index.UpdateRef, error)
	// History answers about the past.
	History() index.History
}

// answerMargin is how much earlier than the call's deadline a wait ends, so that its outcome still reaches the caller.
const answerMargin = 50 * time.Millisecond

// reading is one view with what an answer from it needs.
type reading struct {
	opts   readOptions
	status Status
	view   *index.View
	now    time.Time
	// usedHistory is set once history was asked: the answer then holds only if the view's generation is still the present one's
	// line.
	usedHistory bool
	// withoutBlobs leaves blobs out of contracts (blob_omitted); disclosures have theirs.
	withoutBlobs bool
	// consumes, where set, is what history was asked already: a batch asks once.
	consumes *consumes
	// withoutForecast leaves the churn forecast out.
	withoutForecast bool
}

// candidates are the contracts that would be the answer at a view, for not_contract_ids; nil where an answer has none. Its error
// is what the answer would be.
type candidates func(*index.View) ([]string, error)

// maxRestarts is how often a call starts again because a new generation came between.
const maxRestarts = 3

// answerWith meets the options and computes the answer from one view. Errors carry the view's position.
func answerWith[T any](ctx context.Context, s *Service, opts readOptions, would candidates, compute func(context.Context, *reading) (T, error)) (T, error) {
	var none T
	for restart := 0; ; restart++ {
		r, err := s.read(ctx, opts, would)
		if err != nil {
			return none, err
		}
		answer, err := compute(ctx, r)
		if r.usedHistory && !s.continued(r.view) {
			if restart < maxRestarts {
				continue
			}
			return none, failure(NotReady, "the index was built anew again and again while the answer was computed").with("stream_state", r.status.State)
		}
		if err != nil {
			return none, asError(err).at(r.view.Position())
		}
		return answer, nil
	}
}

// continued reports whether history as read by now is also the view's, as far as its offset: the present view continues it. While a view of
// another history is being put in place, history can be that one's before the view is, so that is looked at first.
func (s *Service) continued(view *index.View) bool {
	if s.status().HistoryReplaced != "" {
		return false
	}
	now := s.index.View()
	return now != nil && now.Continues(view)
}

// read meets the options: it refuses, or waits, or gives the view to answer from.
func (s *Service) read(ctx context.Context, opts readOptions, would candidates) (*reading, error) {
	r, err := s.take(opts)
	if err != nil {
		return nil, err
	}
	defer callOf(ctx).waitedSince(time.Now())
	waitCtx, cancel := s.waitContext(ctx, opts)
	defer cancel()
	var updated *index.View
	if opts.afterUpdateID != "" {
		if updated, err = s.waitUpdate(waitCtx, opts.afterUpdateID); err != nil {
			return nil, s.waitFailed(ctx, waitCtx, err, failure(UpdateNotSeen, "the update was not seen within the wait"))
		}
	}
	if opts.minOffset > r.view.Position().Offset {
		reached := func(v *index.View) bool {
			return v.Position().Offset >= opts.minOffset || v.Position().ParticipantID != opts.participantID
		}
		if _, err := s.index.Wait(waitCtx, reached); err != nil {
			return nil, s.waitFailed(ctx, waitCtx, err, failure(Behind, "the index did not reach min_offset within the wait").
				with("wanted_offset", strconv.FormatInt(opts.minOffset, 10)))
		}
	}
	if len(opts.not) > 0 && would != nil {
		replaced := func(v *index.View) bool {
			ids, err := would(v)
			if errors.Is(err, index.ErrInFlight) {
				return false
			}
			return err != nil || !slices.ContainsFunc(ids, func(id string) bool { return contains(opts.not, id) })
		}
		// Without a successor in time the same contract is the answer, marked as unchanged: no error.
		if _, err := s.index.Wait(waitCtx, replaced); err != nil && waitCtx.Err() == nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, asError(err)
		}
	}
	// The newest view has all that was waited for, unless another history's index took its place.
	if r, err = s.take(opts); err != nil {
		return nil, err
	}
	if updated != nil && !r.view.Continues(updated) {
		return nil, failure(UpdateNotSeen, "the update was seen in a history of the ledger that another one has replaced").at(r.view.Position())
	}
	return r, nil
}

// take takes the status, then the newest view, and refuses where they are not good enough for the options.
func (s *Service) take(opts readOptions) (*reading, error) {
	status := s.status()
	r := &reading{opts: opts, status: status, view: s.index.View(), now: s.now()}
	if refused := unready(status, r.view, r.now, s.cfg.FreshnessBound, opts.allowStale); refused != nil {
		if r.view != nil {
			refused.at(r.view.Position())
		}
		return nil, refused
	}
	if pos := r.view.Position(); opts.minOffset > 0 && opts.participantID != pos.ParticipantID {
		return nil, failure(OffsetOfAnotherParticipant, "min_offset is an offset of another participant").
			with("asked_participant_id", opts.participantID).at(pos)
	}
	return r, nil
}

// waitContext bounds all waits of one call: by the caller's wait or the default, by the server's maximum, by the call's deadline
// less a margin, and by the server's end.
func (s *Service) waitContext(ctx context.Context, opts readOptions) (context.Context, context.CancelFunc) {
	wait := s.cfg.DefaultWait
	if opts.wait != nil {
		wait = min(*opts.wait, s.cfg.MaxWait)
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-answerMargin)
	}
	ctx, cancelCause := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.stopping, func() { cancelCause(errStopping) })
	ctx, cancel := context.WithTimeout(ctx, max(0, wait))
	return ctx, func() {
		cancel()
		unhook()
		cancelCause(nil)
	}
}

var errStopping = errors.New("the server stops")

// waitFailed says why a wait ended without what was waited for: the call's own end, the server's, or the wait's bound.
func (s *Service) waitFailed(ctx, waitCtx context.Context, err error, bound *Error) error {
	var at *Error
	switch {
	case errors.Is(context.Cause(waitCtx), errStopping):
		at = failure(ShuttingDown, "the wait was cut short: the server stops")
	case ctx.Err() != nil:
		at = asError(ctx.Err())
	case errors.Is(err, context.DeadlineExceeded):
		at = bound
	default:
		at = storeFailed(err)
	}
	if view := s.index.View(); view != nil {
		at.at(view.Position())
	}
	return at
}

// storeFailed is the error of history that could not be read.
func storeFailed(err error) *Error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return asError(err)
	}
	e := failure(StoreUnavailable, "history could not be read")
	e.cause = err
	return e
}

// answer is the part that every answer has.
func (s *Service) answer(r *reading) *disclosurev1.Answer {
	return &disclosurev1.Answer{
		Position:  position(r.view.Position()),
		Freshness: freshness(r.status, r.view, r.now, s.cfg.FreshnessBound),
	}
}

func position(pos ledger.Position) *disclosurev1.Position {
	return &disclosurev1.Position{
		ParticipantId: pos.ParticipantID, Offset: pos.Offset, UpdateId: pos.UpdateID, RecordTime: timestamp(pos.RecordTime),
	}
}

// timestamp is nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// contains looks in a sorted list.
func contains(sorted []string, s string) bool {
	_, ok := slices.BinarySearch(sorted, s)
	return ok
}
