package indextest_test

import (
	"context"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
)

func TestTheIndexInMemory(t *testing.T) {
	indextest.Exercise(t, indextest.Harness{
		Open: func(ctx context.Context, policy index.Policy) (*index.Index, error) {
			return index.Open(ctx, policy, nil, index.Options{Clock: func() time.Time { return indextest.Epoch.Add(time.Hour) }})
		},
	})
}
