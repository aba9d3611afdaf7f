package ledgersim

import (
	"cmp"
	"context"
	"fmt"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

type updateService struct {
	v2.UnimplementedUpdateServiceServer
	sim *Sim
}

func (s updateService) GetUpdates(req *v2.GetUpdatesRequest, stream grpc.ServerStreamingServer[v2.GetUpdatesResponse]) error {
	t, r := s.open(req, stream)
	if r != nil {
		return s.sim.asStatus(r, nil)
	}
	return t.run()
}

// tail is one GetUpdates stream.
type tail struct {
	sim    *Sim
	stream grpc.ServerStreamingServer[v2.GetUpdatesResponse]
	format *updateFormat
	// begin and end are the request's; end is 0 for a stream that tails for ever.
	begin, end int64
	// at is the offset up to which everything was delivered.
	at int64
	// delivered is the offset of the last update that was sent.
	delivered int64
	// marked is the offset of the last checkpoint that was given, -1 before the first.
	marked int64
	ended  *streamEnd
	caller *caller
	// on is the ledger that the stream was opened on.
	on *state
}

func (s updateService) open(req *v2.GetUpdatesRequest, stream grpc.ServerStreamingServer[v2.GetUpdatesResponse]) (*tail, *rejection) {
	if begin := req.GetBeginExclusive(); begin < 0 {
		return nil, negativeOffset("begin_exclusive", begin)
	}
	if req.EndInclusive != nil && req.GetEndInclusive() <= 0 {
		r := reject(invalidArgument, "NON_POSITIVE_OFFSET",
			"Offset %d in end_inclusive is not a positive integer: the offset has to be either a positive integer (>0) or not defined at all", req.GetEndInclusive())
		r.indefinite = true
		return nil, r
	}
	format, r := parseUpdateFormat(req.GetUpdateFormat())
	if r != nil {
		return nil, r
	}
	if r := callerOf(stream.Context()).mayFollow(format); r != nil {
		return nil, r
	}
	t := &tail{sim: s.sim, stream: stream, format: format, caller: callerOf(stream.Context()), begin: req.GetBeginExclusive(), end: req.GetEndInclusive(), marked: -1, ended: s.sim.streamEnd()}
	t.at = t.begin
	s.sim.read(func(l *state) {
		t.on = l
		switch {
		case t.begin > l.end:
			r = afterLedgerEnd("Begin offset", t.begin, l.end)
		case t.end > l.end:
			r = afterLedgerEnd("End offset", t.end, l.end)
		case t.end != 0 && t.begin > t.end:
			r = reject(invalidState, "OFFSET_OUT_OF_RANGE", "End offset %d is before begin offset %d.", t.end, t.begin)
		default:
			if r = format.check(l.packages); r == nil {
				r = t.pruned(l)
			}
		}
	})
	return t, r
}

// pruned refuses to go on where updates are missing. Without any contracts asked for nothing is checked: seen on a participant.
func (t *tail) pruned(l *state) *rejection {
	if t.at >= l.pruned || !t.format.asksForContracts() {
		return nil
	}
	end := t.end
	if end == 0 {
		end = l.end
	}
	return prunedData(l.pruned, "Transactions request from %d to %d precedes pruned offset %d", t.at+1, end, l.pruned)
}

func (t *tail) run() error {
	first := t.sim.options.Clock.After(t.sim.options.FirstCheckpoint)
	idle := t.sim.options.Clock.After(t.sim.options.IdleCheckpoint)
	rights := t.rightsPoll()
	// Counted only now: who waits for the stream and then moves a clock must find its timers set.
	if t.end == 0 {
		defer t.sim.countTail()()
	}
	for {
		batch, changed, marks, err := t.next()
		if err != nil {
			return err
		}
		for _, u := range batch {
			sent, err := t.deliver(u)
			if err != nil {
				return err
			}
			if sent {
				idle = t.sim.options.Clock.After(t.sim.options.IdleCheckpoint)
			}
		}
		if t.end != 0 && t.at >= t.end {
			return nil
		}
		if len(batch) > 0 {
			continue
		}
		if err := t.markBehind(); err != nil {
			return err
		}
		select {
		case <-t.stream.Context().Done():
			return status.FromContextError(t.stream.Context().Err()).Err()
		case <-t.ended.done:
			return t.ended.err
		case <-changed:
		case <-rights:
			rights = t.rightsPoll()
			if r := t.sim.stale(t.caller); r != nil {
				return t.sim.asStatus(r, nil)
			}
		case <-marks:
			if err := t.mark(false); err != nil {
				return err
			}
		case <-first:
			if err := t.mark(false); err != nil {
				return err
			}
		case <-idle:
			idle = t.sim.options.Clock.After(t.sim.options.IdleCheckpoint)
			if err := t.mark(true); err != nil {
				return err
			}
		}
	}
}

// next takes the updates that are to be delivered now, and what to wait for after them. It moves at past offsets in which there is
// nothing.
func (t *tail) next() (batch []*update, changed, marks <-chan struct{}, err error) {
	t.sim.faults.mu.Lock()
	silent := t.sim.faults.silent && t.end == 0
	marks = t.sim.faults.marks
	t.sim.faults.mu.Unlock()
	var r *rejection
	t.sim.read(func(l *state) {
		changed = t.sim.changed
		if l != t.on {
			r = reject(transient, "ABORTED_DUE_TO_SHUTDOWN", "request aborted due to shutdown")
			return
		}
		if silent {
			return
		}
		if r = t.pruned(l); r != nil {
			return
		}
		end := l.end
		if t.end != 0 {
			end = min(end, t.end)
		}
		batch = l.updatesAfter(t.at, end)
		if len(batch) == 0 {
			t.at = max(t.at, end)
		}
	})
	if r != nil {
		return nil, nil, nil, t.sim.asStatus(r, nil)
	}
	// Long histories are taken in parts, so that faults take effect in between.
	const part = 256
	return batch[:min(len(batch), part)], changed, marks, nil
}

// deliver sends an update, if the format asks for it, and before it the cached checkpoint if that is new.
func (t *tail) deliver(u *update) (sent bool, err error) {
	t.sim.faults.mu.Lock()
	onlyMarks := t.sim.faults.onlyMarks && t.end == 0
	t.sim.faults.mu.Unlock()
	message := t.format.update(u, t.on.participant)
	if message == nil || onlyMarks {
		t.at = u.offset
		return false, nil
	}
	if err := t.markBefore(u.offset); err != nil {
		return false, err
	}
	if err := t.pass(); err != nil {
		return false, err
	}
	if err := t.stream.SendMsg(message); err != nil {
		return false, fmt.Errorf("send update at %d: %w", u.offset, err)
	}
	t.at, t.delivered = u.offset, u.offset
	return true, nil
}

// markBefore gives the cached checkpoint if it is new and lies before the offset.
func (t *tail) markBefore(offset int64) error {
	if t.end != 0 {
		return nil
	}
	c := t.sim.cachedNow()
	if c.offset >= offset || c.offset < t.begin || c.offset <= t.marked {
		return nil
	}
	return t.sendMark(c.checkpoint)
}

// markBehind gives the cached checkpoint if it is new and the stream has passed it without delivering anything.
func (t *tail) markBehind() error {
	c := t.sim.cachedNow()
	if t.end != 0 || c.offset > t.at || c.offset <= max(t.begin, t.marked, t.delivered) || t.silent() {
		return nil
	}
	return t.sendMark(c.checkpoint)
}

func (t *tail) silent() bool {
	t.sim.faults.mu.Lock()
	defer t.sim.faults.mu.Unlock()
	return t.sim.faults.silent
}

// mark gives the checkpoint that is due while nothing else is: the cached one, or a fresh one. It is never ahead of an update that
// was not delivered.
func (t *tail) mark(fresh bool) error {
	if t.end != 0 || t.silent() {
		return nil
	}
	c := t.sim.cachedNow()
	t.sim.read(func(l *state) {
		if fresh {
			c = cachedCheckpoint{checkpoint: l.checkpoint()}
		}
	})
	if c.offset > t.at || c.offset < t.begin || c.offset <= t.marked {
		return nil
	}
	return t.sendMark(c.checkpoint)
}

func (t *tail) sendMark(c checkpoint) error {
	if err := t.pass(); err != nil {
		return err
	}
	t.marked = c.offset
	if err := t.stream.Send(c.message()); err != nil {
		return fmt.Errorf("send checkpoint at %d: %w", c.offset, err)
	}
	return nil
}

// rightsPoll is when to look at the caller's rights next; never if authorization is off.
func (t *tail) rightsPoll() <-chan time.Time {
	if t.caller == nil {
		return nil
	}
	return t.sim.options.Clock.After(cmp.Or(t.sim.options.Auth.RightsPoll, defaultRightsPoll))
}

// pass is what every element of the stream passes before it is sent.
func (t *tail) pass() error {
	if r := t.sim.outlived(t.caller); r != nil {
		return t.sim.asStatus(r, nil)
	}
	return t.sim.passElement(t.stream.Context(), v2.UpdateService_GetUpdates_FullMethodName, t.ended)
}

// passElement is what every element of a stream passes before it is sent: it may hang, be late, or meet the stream's end.
func (s *Sim) passElement(ctx context.Context, method string, ended *streamEnd) error {
	select {
	case <-ended.done:
		return ended.err
	default:
	}
	if err := s.waitIfHung(ctx, method); err != nil {
		return err
	}
	return s.waitDelay(ctx)
}

func (s updateService) GetUpdateByOffset(ctx context.Context, req *v2.GetUpdateByOffsetRequest) (*v2.GetUpdateResponse, error) {
	if req.GetOffset() <= 0 {
		r := reject(invalidArgument, "NON_POSITIVE_OFFSET", "Offset %d in offset is not a positive integer: the offset has to be either a positive integer (>0)", req.GetOffset())
		r.indefinite = true
		return nil, s.sim.asStatus(r, nil)
	}
	return s.one(callerOf(ctx), req.GetUpdateFormat(), resource{"OFFSET", fmt.Sprint(req.GetOffset())}, func(l *state) *update { return l.updateAt(req.GetOffset()) })
}

func (s updateService) GetUpdateById(ctx context.Context, req *v2.GetUpdateByIdRequest) (*v2.GetUpdateResponse, error) {
	if req.GetUpdateId() == "" {
		return nil, s.sim.asStatus(missingField("update_id"), nil)
	}
	return s.one(callerOf(ctx), req.GetUpdateFormat(), resource{"UPDATE_ID", req.GetUpdateId()}, func(l *state) *update { return l.updateByID(req.GetUpdateId()) })
}

func (s updateService) one(c *caller, f *v2.UpdateFormat, about resource, find func(*state) *update) (*v2.GetUpdateResponse, error) {
	format, r := parseUpdateFormat(f)
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	if r := c.mayFollow(format); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	var found *update
	var participant string
	s.sim.read(func(l *state) {
		if r = format.check(l.packages); r == nil {
			found, participant = find(l), l.participant
		}
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	if found != nil {
		if out := format.updateResponse(found, participant); out != nil {
			return out, nil
		}
	}
	return nil, s.sim.asStatus(reject(notFound, "UPDATE_NOT_FOUND", "Update not found, or not visible.").about(about.kind, about.name), nil)
}
