package ledgersim

import (
	"context"
	"fmt"
)

// AwaitPending waits until at least n submissions are between the locking of their inputs and their commit.
func (s *Sim) AwaitPending(ctx context.Context, n int) error {
	return s.await(ctx, fmt.Sprintf("%d pending submissions", n), func() bool { return len(s.ledger.inFlight) >= n })
}

// AwaitTails waits until exactly n streams of updates without an end are open.
func (s *Sim) AwaitTails(ctx context.Context, n int) error {
	return s.await(ctx, fmt.Sprintf("%d open streams of updates", n), func() bool { return s.tails == n })
}

// await waits until the condition, which is asked under the lock, holds.
func (s *Sim) await(ctx context.Context, what string, holds func() bool) error {
	for {
		s.mu.RLock()
		ok, changed := holds(), s.changed
		s.mu.RUnlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await %s: %w", what, ctx.Err())
		}
	}
}

// countTail counts an open stream of updates without an end until the function it returns is called.
func (s *Sim) countTail() (done func()) {
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tails += n
		s.notify()
	}
	count(1)
	return func() { count(-1) }
}
