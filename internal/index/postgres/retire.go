package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/ledger"
)

// Retire takes the present generation and its history out of use, in one transaction, and tells where it stood; false where there was none.
// The next writer finds an index that was never seeded, and builds it from the ledger alone: what history had ended is not held for ended
// any more. It is what mends an index that is wrong in a way that no start finds out. Rows are deleted later, in the background of whoever
// writes next. It takes a lease, so that no process serves from what is taken away.
func (s *Store) Retire(ctx context.Context) (pos ledger.Position, found bool, err error) {
	epoch, err := s.held()
	if err != nil {
		return ledger.Position{}, false, err
	}
	err = s.fenced(ctx, epoch, "retiring the index", func(ctx context.Context, tx pgx.Tx) error {
		c, ok, err := readCursor(ctx, tx)
		if err != nil || !ok {
			return err
		}
		pos, found = c.pos, true
		if _, err := tx.Exec(ctx, `DELETE FROM disclosured.cursor`); err != nil {
			return fmt.Errorf("forgetting the place: %w", err)
		}
		_, err = tx.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired' WHERE state <> 'retired'`)
		return err
	})
	if errors.Is(err, errOutcomeUnknown) {
		// Done twice is done once.
		return pos, found, fmt.Errorf("try again: %w", err)
	}
	s.generation.Store(0)
	return pos, found, err
}
