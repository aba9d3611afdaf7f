package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
)

// healthyAfter is how long a session must have lived for a mere proof to count as progress: one that ends at once, again and
// again, is to be tried at growing intervals even where the ledger is quiet.
const healthyAfter = 10 * time.Second

// question is one answer to "where does the ledger end?".
type question struct {
	end int64
	// asked is when the question was put; offset is where the index stood then.
	asked  time.Time
	offset int64
	err    error
}

// proofs is what is known about the ledger end.
type proofs struct {
	// latest is the last answer; running is the one that the bounded read under way is about.
	latest, running question
	// provenAt is when the ledger end behind the last proof was asked for.
	provenAt time.Time
	// failures counts unanswered questions in a row.
	failures int
}

// follow keeps the index at the ledger end until something ends it. Two streams feed it: the live one, for speed, and, whenever
// the ledger end is ahead of the index, a bounded one up to it, for proof. Both deliver every matching update after a
// point that the index has reached, in order; so whichever brings the next update first is right, and what is at or below the
// index's offset is dropped.
func (s *session) follow(ctx context.Context) *ending {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.followed = true
	started := time.Now()

	tail := s.read(ctx, s.pos.Offset, 0)
	defer tail.stop()
	questions, stopAsking := s.poll(ctx)
	defer stopAsking()
	var (
		bounded      *reader
		boundedReady <-chan struct{}
		retry        <-chan time.Time
	)
	defer func() {
		if bounded != nil {
			bounded.stop()
		}
	}()
	if s.reduced {
		timer := time.NewTimer(jitter(s.f.cfg.TemplateRetry))
		defer timer.Stop()
		retry = timer.C
	}
	lag := tailLag{limit: s.f.cfg.TailLag}

	lost := func() *ending { return ended("connection_lost", "the connection to the participant broke") }
	for {
		// What tells that this connection is over comes before anything that came by another.
		select {
		case <-s.lost:
			return lost()
		default:
		}
		if tail.queue.over() {
			if end := s.apply(ctx, tail, tail.queue.take()); end != nil {
				return end
			}
		}
		select {
		case <-ctx.Done():
			return ended("stopped", "stopped: %w", context.Cause(ctx))
		case <-s.lost:
			return lost()
		case <-s.f.wake:
			if reason, _ := s.f.mustReseed(); reason == "" {
				continue // this session's own snapshot was the one that was asked for
			}
			return ended("requested", "a new snapshot was asked for")
		case <-retry:
			return ended("templates", "asking again for the templates that the participant did not have")
		case <-tail.queue.ready:
			items := tail.queue.take()
			lag.saw(items)
			if end := s.apply(ctx, tail, items); end != nil {
				return end
			}
		case <-boundedReady:
			items := bounded.queue.take()
			before := s.pos.Offset
			end := s.apply(ctx, bounded, items)
			if s.pos.Offset > before {
				lag.owes(items, s.pos.Offset)
			}
			if end == nil {
				continue
			}
			if !isEOF(end) {
				return end
			}
			bounded.stop()
			bounded, boundedReady = nil, nil
		case q := <-questions:
			if end := s.answer(q); end != nil {
				return end
			}
			if lag.dead() {
				return ended("tail_behind", "the live stream has not brought an update that has been on the ledger for %s", s.f.cfg.TailLag)
			}
			if bounded == nil && q.err == nil && q.end > s.pos.Offset {
				s.proof.running = q
				bounded = s.read(ctx, s.pos.Offset, q.end)
				boundedReady = bounded.queue.ready
			}
		}
		if time.Since(started) >= healthyAfter && s.proof.provenAt.After(started) {
			s.progressed = true
		}
	}
}

// poll asks for the ledger end again and again, at once for the first time, in a goroutine that stop ends and waits for.
func (s *session) poll(ctx context.Context) (questions <-chan question, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan question)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(s.f.cfg.PollInterval)
		defer ticker.Stop()
		for {
			q := question{offset: s.offset.Load()}
			q.end, q.asked, q.err = s.ledgerEnd(ctx)
			select {
			case out <- q:
			case <-ctx.Done():
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, func() {
		cancel()
		<-done
	}
}

// answer takes in where the ledger ends.
func (s *session) answer(q question) *ending {
	if q.err != nil {
		s.proof.failures++
		if s.proof.failures < s.f.cfg.PollFailures {
			return nil
		}
		// The streams may look alive on a connection that is dead, or on one to a process that is.
		end := classify(callLedgerEnd, q.err)
		end.err = fmt.Errorf("%d times in a row: %w", s.proof.failures, end.err)
		return end
	}
	s.proof.failures = 0
	s.f.update(func(st *Status) { st.LedgerEnd, st.LedgerEndAt = q.end, q.asked })
	if q.end < q.offset {
		end := ended("rewound", "the ledger ends at %d, and the index was at %d already", q.end, q.offset)
		end.reseed = ledger.SeedRewound
		return end
	}
	s.proof.latest = q
	s.prove()
	return nil
}

// prove notes a proof of completeness where the index has reached a ledger end that was asked for.
func (s *session) prove() {
	for _, q := range []question{s.proof.running, s.proof.latest} {
		if !q.asked.IsZero() && q.asked.After(s.proof.provenAt) && q.end <= s.pos.Offset {
			s.proven(q.end, q.asked)
		}
	}
}

// proven notes that the index holds all that was on the ledger when it was asked for its end.
func (s *session) proven(end int64, asked time.Time) {
	s.proof.provenAt = asked
	s.f.metrics.proof(time.Since(asked))
	s.f.update(func(st *Status) {
		st.ProvenOffset, st.ProvenAt = end, asked
		if st.State != StateLive {
			s.f.setState(st, StateLive)
		}
		st.Detail, st.HaltedAt, st.HaltedAfter, st.StuckAt = "", 0, 0, 0
	})
}

// apply brings items of one stream into the index, and returns why the stream ended, where its end is among them: for the bounded
// stream an ending that wraps io.EOF says that it ran to its end.
func (s *session) apply(ctx context.Context, r *reader, items []item) *ending {
	batch := ledger.Batch{ParticipantID: s.pos.ParticipantID, After: s.pos.Offset, Through: s.pos.Offset}
	for _, it := range items {
		switch {
		case it.end != nil:
			if r.call == callProof && isEOF(it.end) {
				batch.Through = max(batch.Through, s.proof.running.end)
				if end := s.commit(ctx, batch); end != nil {
					return end
				}
				return &ending{reason: "proven", err: io.EOF}
			}
			if end := s.commit(ctx, batch); end != nil {
				return end
			}
			end := classify(r.call, it.end)
			end.err = fmt.Errorf("after offset %d: %w", s.pos.Offset, end.err)
			end.after = s.pos.Offset
			return end
		case it.offset <= batch.Through:
			if it.kind != checkpoint {
				s.f.metrics.ignored(IgnoredSeen)
			}
		case it.kind == rehosting:
			// The index stops before it: should we die now, the next process meets it again.
			if end := s.commit(ctx, batch); end != nil {
				return end
			}
			end := ended("hosting", "%s", it.hosting)
			end.reseed = ledger.SeedRightsChanged
			return end
		default:
			batch.Through = it.offset
			if len(it.update.Events) > 0 {
				batch.Updates = append(batch.Updates, it.update)
			}
		}
	}
	return s.commit(ctx, batch)
}

// commit applies a batch, if there is anything in it.
func (s *session) commit(ctx context.Context, batch ledger.Batch) *ending {
	if batch.Through == batch.After {
		return nil
	}
	started := time.Now()
	if err := s.f.sink.Apply(ctx, batch); err != nil {
		return ended("sink", "applying %d updates after offset %d: %w", len(batch.Updates), batch.After, err)
	}
	s.f.metrics.applied(batch, time.Since(started))
	pos := s.pos
	pos.Offset = batch.Through
	for _, u := range batch.Updates {
		pos.UpdateOffset, pos.UpdateID, pos.RecordTime = u.Offset, u.UpdateID, u.RecordTime
		for _, e := range u.Events {
			if e.Contract != nil {
				s.f.sawPackage(e.Contract.PackageName, e.Contract.TemplateID.PackageID)
			}
		}
	}
	s.moveTo(pos)
	s.progressed = true
	s.prove()
	return nil
}

// tailLag watches whether the live stream brings what a bounded one has already brought.
type tailLag struct {
	limit time.Duration
	// owed is the offset of an update that the live stream has still to bring, 0 for none, since when it has.
	owed  int64
	since time.Time
	seen  int64
}

// saw notes what the live stream brought.
func (l *tailLag) saw(items []item) {
	for _, it := range items {
		l.seen = max(l.seen, it.offset)
	}
	if l.seen >= l.owed {
		l.owed = 0
	}
}

// owes notes what a bounded stream brought: the live one must bring the last real update of it too.
func (l *tailLag) owes(items []item, applied int64) {
	for _, it := range items {
		if it.kind == changes && it.offset > l.seen && it.offset <= applied && l.owed == 0 {
			l.owed, l.since = it.offset, time.Now()
		}
	}
}

// dead reports whether the live stream has owed an update for too long.
func (l *tailLag) dead() bool {
	return l.owed != 0 && time.Since(l.since) >= l.limit
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
