package postgres

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// An index on a store answers as one in memory and as the rules in their plainest form, over random histories, before and after each
// restart. Each processor has its share of them, on a database of its own.
func TestTheIndexOnPostgres(t *testing.T) {
	histories := 25 // a history is hundreds of queries
	if os.Getenv("DISCLOSURED_SOAK") == "1" {
		histories = 0 // the suite's own figure
	}
	shares := runtime.GOMAXPROCS(0)
	for share := range shares {
		t.Run(fmt.Sprintf("share %d of %d", share+1, shares), func(t *testing.T) {
			t.Parallel()
			h := onPostgres(t)
			h.Histories, h.Share, h.Shares = histories, share, shares
			indextest.Exercise(t, h)
		})
	}
}

// onPostgres gives the suite an index on one database, which another process opens again and again.
func onPostgres(t *testing.T) indextest.Harness {
	// Tens of thousands of queries: here the server may keep them parsed. The other modes have tests of their own.
	url := withParam(pgtest.Database(t), "default_query_exec_mode=cache_statement")
	store := openWith(t, Config{URL: url})
	t.Cleanup(func() { rest(store) }) // before the connections are closed
	reopen := func(ctx context.Context, policy index.Policy) (*index.Index, error) {
		store = reborn(store)
		if _, err := store.AcquireLease(ctx, LeaseOptions{Holder: "exercise"}); err != nil {
			return nil, err
		}
		return index.Open(ctx, policy, store, index.Options{Logger: quiet})
	}
	return indextest.Harness{
		Open: func(ctx context.Context, policy index.Policy) (*index.Index, error) {
			// Without a place on a ledger, a store is one that was never seeded.
			if _, err := store.pool.Exec(ctx, `DELETE FROM disclosured.cursor`); err != nil {
				return nil, err
			}
			if _, err := store.pool.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired'`); err != nil {
				return nil, err
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
	}
}

// reborn ends what a store does in the background, and gives one that knows as little of the database as that of another process. Only the
// connections are the former's: new ones would cost more than all that is asked on them.
func reborn(former *Store) *Store {
	rest(former)
	s := newStore(former.pool, former.dialer, Config{Logger: former.log, Timeout: former.timeout})
	s.start(Config{})
	return s
}

// rest ends what a store does in the background.
func rest(s *Store) {
	s.stop()
	s.background.Wait()
}
