package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Version tells the schema's version in the database, 0 for none, and the one that this program wants. It changes nothing.
func Version(ctx context.Context, pool *pgxpool.Pool) (have, want int64, err error) {
	if want, err = newest(); err == nil {
		have, err = schemaVersion(ctx, pool)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("replayguard: reading the schema's version: %w", err)
	}
	return have, want, nil
}
