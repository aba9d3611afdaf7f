package postgres

import (
	"context"
	"time"
)

// sweepBatch is how many rows one transaction of the sweeper deletes. It holds up reservations for the time of that, some
// milliseconds.
const sweepBatch = 500

// sweepLoop sweeps from time to time until its life ends.
func (s *Store) sweepLoop(life context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-life.Done():
			return
		}
		if err := s.Sweep(life); err != nil && life.Err() == nil {
			s.log.Warn("replay guard: deleting expired reservations failed; trying again", "err", err, "in", every)
		}
	}
}

// Sweep deletes what has expired, and clients that have been idle for Limits.ClientIdle, in small transactions. A store does
// it by itself.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.inBatches(ctx, `SELECT replayguard.sweep($1::bigint)`); err != nil {
		return err
	}
	if s.fault != nil {
		return nil // no limits say how long a client must have been idle
	}
	return s.inBatches(ctx, `SELECT replayguard.sweep_clients($2::bigint, $1::bigint)`, seconds(s.limits.ClientIdle()))
}

// inBatches runs a statement, whose first parameter is the batch's size and which gives the number of rows that it found,
// until it finds fewer.
func (s *Store) inBatches(ctx context.Context, statement string, more ...any) error {
	for {
		var found int64
		err := s.row(ctx, "deleting what has expired", []any{&found}, statement, append([]any{int64(sweepBatch)}, more...)...)
		if err != nil {
			return err
		}
		if found < sweepBatch {
			return nil
		}
	}
}
