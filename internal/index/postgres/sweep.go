package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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

// generationTables and historyTables are the tables whose rows bear the number of a generation, and of a history.
var (
	generationTables = []string{"contract", "ghost", "removal", "known_scope", "missing_digest"}
	historyTables    = []string{"consume", "ended", "applied_update"}
)

// notPresent is the condition that a generation is not the one that the cursor names, which counts whatever its state says.
const notPresent = `generation NOT IN (SELECT generation FROM disclosured.cursor)`

// sweepPages is how many pages of a table one transaction of the sweeper looks at.
const sweepPages = 500

// Sweep deletes the rows of generations and histories that no longer count, in small transactions, and returns when none is left. The
// store does it by itself in the background; it takes a lease.
func (s *Store) Sweep(ctx context.Context) error {
	epoch, err := s.held()
	if err != nil {
		return err
	}
	retired, err := s.retired(ctx, epoch)
	if err != nil {
		return err
	}
	if len(retired) > 0 {
		for _, name := range generationTables {
			if err := s.sweepTable(ctx, epoch, name, `generation = ANY ($1::bigint[])`, retired); err != nil {
				return err
			}
		}
	}
	for _, name := range historyTables {
		present, over, err := s.historyOver(ctx, name)
		if err != nil {
			return err
		}
		if !over {
			continue
		}
		if err := s.sweepTable(ctx, epoch, name, `history < $1::bigint`, present); err != nil {
			return err
		}
	}
	// Last: as long as its row is there, a generation's rows are looked for.
	return s.fenced(ctx, epoch, "forgetting swept generations", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM disclosured.generation WHERE generation = ANY ($1::bigint[])`, retired)
		return err
	})
}

// retired are the generations that no longer count. A seed of a former writer will not be gone on with: it is one of them.
func (s *Store) retired(ctx context.Context, epoch int64) (generations []int64, err error) {
	err = s.fenced(ctx, epoch, "looking for retired generations", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired' WHERE state = 'building' AND epoch <> $1 AND `+notPresent, epoch); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT generation FROM disclosured.generation WHERE state = 'retired' AND `+notPresent+` ORDER BY generation`)
		if err != nil {
			return err
		}
		generations, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return generations, err
}

// historyOver tells whether a table has rows of a history before the present one.
func (s *Store) historyOver(ctx context.Context, name string) (present int64, over bool, err error) {
	ok, err := s.one(ctx, "looking for former histories", func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `SELECT history, COALESCE((SELECT min(history) FROM disclosured.`+name+`) < history, false) FROM disclosured.cursor`).Scan(&present, &over)
	})
	return present, ok && over, err
}

// sweepTable deletes the rows of a table that meet the condition, some pages at a time: each page is read once, however much of
// the table is to go. Such rows are not added or changed any more.
func (s *Store) sweepTable(ctx context.Context, epoch int64, name, condition string, arg any) error {
	var pages int64
	err := s.read(ctx, "sizing the table "+name, func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_relation_size('disclosured.`+name+`') / current_setting('block_size')::bigint`).Scan(&pages)
	})
	for from := int64(0); from < pages && err == nil; from += sweepPages {
		err = s.fenced(ctx, epoch, "deleting old rows of "+name, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM disclosured.%s WHERE ctid >= '(%d,0)'::tid AND ctid < '(%d,0)'::tid AND %s`, name, from, from+sweepPages, condition), arg)
			return err
		})
	}
	return err
}

// fenced is a transaction of the lease's holder.
func (s *Store) fenced(ctx context.Context, epoch int64, what string, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.write(ctx, what, func(ctx context.Context, tx pgx.Tx) error {
		if err := fence(ctx, tx, epoch); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// pruneRows is how many rows one transaction of Prune deletes.
const pruneRows = 5000

// Prune deletes history older than the time, in small transactions: consumes, ends, applied updates, and what followers read. From its
// first transaction on, history is complete only after the last offset that is deleted, and says so. It takes a lease.
func (s *Store) Prune(ctx context.Context, olderThan time.Time) error {
	epoch, err := s.held()
	if err != nil {
		return err
	}
	cut, found, err := s.pruneTo(ctx, epoch, olderThan)
	if err != nil || !found {
		return err
	}
	old := fmt.Sprintf(`history = %d AND ledger_offset <= %d`, cut.history, cut.offset)
	for _, step := range []struct{ name, condition, order string }{
		{"consume", old, "ledger_offset"},
		{"ended", old, "ledger_offset"},
		{"removal", fmt.Sprintf(`generation = %d AND commit_seq <= %d`, cut.generation, cut.commitSeq), "commit_seq"},
		{"missing_digest", fmt.Sprintf(`generation = %d AND removed_seq <= %d`, cut.generation, cut.commitSeq), "removed_seq"},
		{"applied_update", old, "ledger_offset"}, // last: the place to prune to is read from it
	} {
		if err := s.pruneTable(ctx, epoch, step.name, step.condition, step.order); err != nil {
			return err
		}
	}
	return nil
}

// cut is where history is pruned: up to an offset, and up to the commit that reached it.
type cut struct{ history, generation, offset, commitSeq int64 }

// pruneTo moves what the cursor promises of history past what is about to be deleted, and tells what that is; found is false where
// there is nothing.
//
// Offsets say what is older, record times only where to cut, because those of two synchronizers need not ascend together: the cut is
// before the first update that is young enough.
func (s *Store) pruneTo(ctx context.Context, epoch int64, olderThan time.Time) (c cut, found bool, err error) {
	err = s.fenced(ctx, epoch, "beginning to prune history", func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `UPDATE disclosured.cursor p SET history_since = GREATEST(p.history_since, old.ledger_offset), changes_since = GREATEST(p.changes_since, old.commit_seq)
			FROM (SELECT u.ledger_offset, u.commit_seq FROM disclosured.applied_update u, disclosured.cursor now
				WHERE u.history = now.history AND u.ledger_offset < COALESCE((SELECT y.ledger_offset FROM disclosured.applied_update y
					WHERE y.history = now.history AND y.record_time >= $1::timestamptz ORDER BY y.ledger_offset LIMIT 1), 9223372036854775807)
				ORDER BY u.ledger_offset DESC LIMIT 1) old
			RETURNING p.history, p.generation, old.ledger_offset, old.commit_seq`, olderThan.UTC()).Scan(&c.history, &c.generation, &c.offset, &c.commitSeq)
		found = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return c, found, err
}

// pruneTable deletes the rows of a table that meet the condition, the oldest first, some at a time. The condition is asked twice: a row that
// a commit changes between being found and being deleted is deleted only if it still meets it.
func (s *Store) pruneTable(ctx context.Context, epoch int64, name, condition, order string) error {
	for {
		var n int64
		err := s.fenced(ctx, epoch, "deleting old rows of "+name, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM disclosured.%[1]s WHERE ctid = ANY (ARRAY(SELECT ctid FROM disclosured.%[1]s WHERE %[2]s ORDER BY %[3]s LIMIT %[4]d)) AND %[2]s`,
				name, condition, order, pruneRows))
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}
