package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
)

// reader is one GetUpdates stream being read. Its goroutine ends with the stream or with stop.
type reader struct {
	call  string
	queue *queue
	stop  func()
}

// read opens GetUpdates after begin, up to end inclusive, or without an end where it is 0, and reads it in a goroutine. Its
// last item tells why it ended; there is none where stop, or ctx, ended it.
func (s *session) read(ctx context.Context, begin, end int64) *reader {
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{call: callTail, queue: newQueue(s.f.cfg.BatchUpdates, s.f.cfg.BatchBytes)}
	if end != 0 {
		r.call = callProof
	}
	done := make(chan struct{})
	r.stop = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		defer cancel()
		err := s.pump(ctx, r, begin, end)
		if ctx.Err() == nil {
			r.queue.put(ctx, item{end: err})
		}
	}()
	return r
}

// pump reads the stream into the reader's queue until it ends, and returns why: io.EOF for a status of OK.
func (s *session) pump(ctx context.Context, r *reader, begin, end int64) error {
	request := &ledgerapi.GetUpdatesRequest{BeginExclusive: begin, UpdateFormat: s.filter.updateFormat(true, true)}
	var stall time.Duration
	if end != 0 {
		request.EndInclusive = &end
		stall = s.f.cfg.StallTimeout
	}
	last, verified := begin, false
	err := receive(ctx, stall, func(ctx context.Context) (func() (*ledgerapi.GetUpdatesResponse, error), error) {
		stream, err := s.f.updates.GetUpdates(ctx, request)
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}, func(response *ledgerapi.GetUpdatesResponse) error {
		s.f.heard()
		if !verified {
			if err := s.verify(ctx); err != nil {
				return err
			}
			verified = true
		}
		m, err := s.convert.response(response)
		if err != nil {
			return err
		}
		if m.kind == nothing {
			return nil
		}
		// A checkpoint may repeat the offset of the update before it, or that of the beginning.
		if m.offset < last || (m.offset == last && m.kind != checkpoint) || (end != 0 && m.offset > end) {
			return fmt.Errorf("%w: offset %d after %d", errOrder, m.offset, last)
		}
		last = m.offset
		if !r.queue.put(ctx, item{message: m}) {
			return context.Cause(ctx)
		}
		return nil
	})
	if isEOF(err) && end != 0 && !verified {
		// Its end is a proof.
		if err := s.verify(ctx); err != nil {
			return err
		}
	}
	return err
}

// receive opens a server stream and passes each message to take until the stream ends or take fails, and returns that error:
// io.EOF where the stream ended with OK. Where stall is not 0 it bounds the wait for the opening and for each message (not the
// time that take needs), by errStalled. When it returns, the stream is over.
func receive[T any](
	ctx context.Context, stall time.Duration,
	open func(context.Context) (func() (T, error), error), take func(T) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := func(f func()) { f() }
	if stall > 0 {
		watched = func(f func()) {
			timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w of %s", errStalled, stall)) })
			defer timer.Stop()
			f()
		}
	}
	var (
		next    func() (T, error)
		message T
		err     error
	)
	watched(func() { next, err = open(ctx) })
	for err == nil {
		watched(func() { message, err = next() })
		if err == nil {
			err = take(message)
		}
	}
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) && !isEOF(err) {
		return cause
	}
	return err
}
