package postgres

import (
	"context"
	"os"
	"testing"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// An index on a store answers as one in memory and as the rules in their plainest form, over random histories, before and after each
// restart.
func TestTheIndexOnPostgres(t *testing.T) {
	// Tens of thousands of queries: here the server may keep them parsed. The other modes have tests of their own.
	url := withParam(pgtest.Database(t), "default_query_exec_mode=cache_statement")
	var store *Store
	reopen := func(ctx context.Context, policy index.Policy) (*index.Index, error) {
		if store != nil {
			store.Close()
		}
		var err error
		if store, err = Open(ctx, Config{URL: url, Migrate: true, Logger: quiet}); err != nil {
			return nil, err
		}
		if _, err := store.AcquireLease(ctx, LeaseOptions{Holder: "exercise"}); err != nil {
			return nil, err
		}
		return index.Open(ctx, policy, store, index.Options{Logger: quiet})
	}
	defer func() { store.Close() }()
	histories := 25 // a history is hundreds of queries
	if os.Getenv("DISCLOSURED_SOAK") == "1" {
		histories = 0 // the suite's own figure
	}
	indextest.Exercise(t, indextest.Harness{
		Open: func(ctx context.Context, policy index.Policy) (*index.Index, error) {
			if store != nil { // without a place on a ledger, a store is one that was never seeded
				if _, err := store.pool.Exec(ctx, `DELETE FROM disclosured.cursor`); err != nil {
					return nil, err
				}
				if _, err := store.pool.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired'`); err != nil {
					return nil, err
				}
			}
			return reopen(ctx, policy)
		},
		Reopen: reopen,
		Covering: func(ctx context.Context, scope index.Scope, digest wormhole.Digest) ([]string, error) {
			found, err := store.Covering(ctx, scope, digest)
			var ids []string
			for _, e := range found {
				if e.Class == index.Authentic {
					ids = append(ids, e.ContractID)
				}
			}
			return ids, err
		},
		Histories: histories,
	})
}
