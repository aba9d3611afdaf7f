package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sweepBatch is how many rows one transaction of the sweeper deletes.
const sweepBatch = 5000

// wakeSweeper tells the sweeper that there may be something to delete.
func (s *Store) wakeSweeper() {
	select {
	case s.sweepNow <- struct{}{}:
	default:
	}
}

// sweepLoop sweeps when it is told to, until the store is closed. A sweep that fails is tried again: at the latest with the next
// seed, and after a while.
func (s *Store) sweepLoop() {
	const again = time.Minute
	var retry <-chan time.Time
	for {
		select {
		case <-s.sweepNow:
		case <-retry:
		case <-s.life.Done():
			return
		}
		retry = nil
		if s.epoch.Load() == 0 {
			continue
		}
		if err := s.Sweep(s.life); err != nil && s.life.Err() == nil {
			s.log.Warn("deleting rows of former generations failed; trying again", "err", err, "in", again)
			retry = time.After(again)
		}
	}
}

// Sweep deletes the rows of generations and histories that no longer count, in small transactions, and returns when none is left. The
// store does it by itself in the background; it takes a lease.
func (s *Store) Sweep(ctx context.Context) error {
	epoch, err := s.held()
	if err != nil {
		return err
	}
	// A seed of a former writer will not be gone on with.
	err = s.write(ctx, "dropping unfinished seeds", func(ctx context.Context, tx pgx.Tx) error {
		if err := fence(ctx, tx, epoch); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired' WHERE state = 'building' AND epoch <> $1`, epoch)
		return err
	})
	if err != nil {
		return err
	}
	const retired = `generation IN (SELECT generation FROM disclosured.generation WHERE state = 'retired')`
	for _, name := range []string{"contract", "ghost", "removal", "known_scope", "missing_digest"} {
		if err := s.deleteBatches(ctx, epoch, name, retired); err != nil {
			return err
		}
	}
	// A history is that of the cursor or of none.
	const over = `history < (SELECT history FROM disclosured.cursor)`
	for _, name := range []string{"consume", "ended", "applied_update"} {
		if err := s.deleteBatches(ctx, epoch, name, over); err != nil {
			return err
		}
	}
	return s.deleteBatches(ctx, epoch, "generation", `state = 'retired' AND NOT EXISTS (SELECT FROM disclosured.contract c WHERE c.generation = t.generation)`)
}

// deleteBatches deletes the rows of a table, called t, that meet the condition, some at a time. The condition is asked twice: a row that a
// commit changes between being found and being deleted is deleted only if it still meets it.
func (s *Store) deleteBatches(ctx context.Context, epoch int64, name, condition string) error {
	for {
		var n int64
		err := s.write(ctx, "deleting old rows of "+name, func(ctx context.Context, tx pgx.Tx) error {
			if err := fence(ctx, tx, epoch); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM disclosured.%[1]s t WHERE t.ctid = ANY (ARRAY(SELECT t.ctid FROM disclosured.%[1]s t WHERE %[2]s LIMIT %[3]d)) AND %[2]s`, name, condition, sweepBatch))
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
		if n < sweepBatch {
			return nil
		}
	}
}

// Prune deletes history older than the time, in small transactions: consumes, ends, applied updates, and what followers read. From its
// first transaction on, history is complete only after the last offset that is deleted, and says so. It takes a lease.
func (s *Store) Prune(ctx context.Context, olderThan time.Time) error {
	epoch, err := s.held()
	if err != nil {
		return err
	}
	// Offsets say what is older, record times only where to cut: those of two synchronizers need not ascend together. The cut is before
	// the first update that is young enough.
	var history, generation, offset, commitSeq int64
	found, err := s.pruneTo(ctx, epoch, olderThan, &history, &generation, &offset, &commitSeq)
	if err != nil || !found {
		return err
	}
	old := fmt.Sprintf(`history = %d AND ledger_offset <= %d`, history, offset)
	seen := fmt.Sprintf(`generation = %d AND %%s <= %d`, generation, commitSeq)
	for _, step := range []struct{ name, condition string }{
		{"consume", old},
		{"ended", old},
		{"removal", fmt.Sprintf(seen, "commit_seq")},
		{"missing_digest", fmt.Sprintf(seen, "removed_seq")},
		{"applied_update", old}, // last: the place to prune to is read from it
	} {
		if err := s.deleteBatches(ctx, epoch, step.name, step.condition); err != nil {
			return err
		}
	}
	return nil
}

// pruneTo moves what the cursor promises of history past what is about to be deleted, and tells what that is; found is false where
// there is nothing.
func (s *Store) pruneTo(ctx context.Context, epoch int64, olderThan time.Time, history, generation, offset, commitSeq *int64) (found bool, err error) {
	err = s.write(ctx, "beginning to prune history", func(ctx context.Context, tx pgx.Tx) error {
		if err := fence(ctx, tx, epoch); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `UPDATE disclosured.cursor p SET history_since = GREATEST(p.history_since, old.ledger_offset), changes_since = GREATEST(p.changes_since, old.commit_seq)
			FROM (SELECT u.ledger_offset, u.commit_seq FROM disclosured.applied_update u, disclosured.cursor now
				WHERE u.history = now.history AND u.ledger_offset < COALESCE((SELECT y.ledger_offset FROM disclosured.applied_update y
					WHERE y.history = now.history AND y.record_time >= $1::timestamptz ORDER BY y.ledger_offset LIMIT 1), 9223372036854775807)
				ORDER BY u.ledger_offset DESC LIMIT 1) old
			RETURNING p.history, p.generation, old.ledger_offset, old.commit_seq`, olderThan.UTC()).Scan(history, generation, offset, commitSeq)
		found = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return found, err
}
