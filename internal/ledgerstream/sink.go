package ledgerstream

import (
	"context"

	"github.com/disclosured/disclosured/internal/ledger"
)

// Sink is where the follower's changes go: the index. The follower is its only caller and calls it from one goroutine.
//
// Contract. Position tells where the index stands; everything up to it is durable. A method that returns nil has made its
// effect durable (as durable as the sink is) and visible to readers in one step; one that returns an error has had no
// effect, or, where the outcome is not known, Position afterwards tells the truth: the follower asks it again before it
// goes on. A sink whose lease was lost to another writer returns an error that wraps ledger.ErrLostLease, and the follower stops.
type Sink interface {
	// Position returns where the index stands; ok is false when it was never seeded.
	Position(ctx context.Context) (pos ledger.Position, ok bool, err error)
	// BeginSeed starts a new generation beside the present one. Only its Commit changes what readers see.
	BeginSeed(ctx context.Context, start ledger.SeedStart) (ledger.Seed, error)
	// Apply appends a batch. It refuses, without effect, a batch whose After is not the index's offset or whose participant
	// is another.
	Apply(ctx context.Context, batch ledger.Batch) error
}
