package indextest_test

import (
	"context"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestTheIndexInMemory(t *testing.T) {
	indextest.Exercise(t, indextest.Harness{
		Open: func(ctx context.Context, policy index.Policy) (*index.Index, error) {
			return index.Open(ctx, policy, nil, index.Options{Clock: func() time.Time { return indextest.Epoch.Add(time.Hour) }})
		},
	})
}

func TestTheIndexOverAStore(t *testing.T) {
	var store *indextest.Store
	open := func(ctx context.Context, policy index.Policy) (*index.Index, error) {
		return index.Open(ctx, policy, store, index.Options{})
	}
	indextest.Exercise(t, indextest.Harness{
		Open: func(ctx context.Context, policy index.Policy) (*index.Index, error) {
			store = indextest.NewStore()
			return open(ctx, policy)
		},
		Reopen: open,
		Covering: func(ctx context.Context, scope index.Scope, digest wormhole.Digest) ([]string, error) {
			return store.Covering(ctx, scope, digest)
		},
		Break:     func(f indextest.Fault) { store.Fail(f) },
		Histories: 100,
	})
}
