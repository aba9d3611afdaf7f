package index_test

import (
	"context"
	"sync"
	"testing"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Views of one history continue each other, whatever batches and seeds lie between; those of another history do not, whatever the offset.
func TestViewsContinueTheirHistoryAlone(t *testing.T) {
	for reason, same := range map[ledger.SeedReason]bool{
		ledger.SeedPruned: true, ledger.SeedRightsChanged: true, ledger.SeedRequested: true, ledger.SeedConfigChanged: true, ledger.SeedDamaged: true,
		ledger.SeedFirst: false, ledger.SeedRewound: false, ledger.SeedDiverged: false, ledger.SeedAnotherParticipant: false,
	} {
		for name, store := range map[string]index.Store{"in memory": nil, "over a store": indextest.NewStore()} {
			x := open(t, store, index.Options{})
			mustSeed(t, x)
			first := x.View()
			b, err := consumeBatch(first, wormhole.Digest{1})
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Apply(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			second := x.View()
			if !second.Continues(first) || first.Continues(second) || !second.Continues(second) || second.Continues(nil) {
				t.Errorf("%s: a batch", name)
			}
			if err := seed(t, x, reason, 100, contract("root", root())); err != nil {
				t.Fatal(err)
			}
			third := x.View()
			if third.Continues(first) != same || third.Continues(second) != same {
				t.Errorf("%s: after a seed (%s) the view continues the former: %t, want %t", name, reason, third.Continues(second), same)
			}
			if err := x.Apply(t.Context(), ledger.Batch{ParticipantID: participant, After: 100, Through: 101}); err != nil {
				t.Fatal(err)
			}
			if fourth := x.View(); !fourth.Continues(third) || fourth.Continues(second) != same {
				t.Errorf("%s: a batch after a seed (%s)", name, reason)
			}
		}
	}
}

// What ended on a branch of the ledger that was given up has not ended on the ledger that came in its place: it is served there, after
// whatever seeds, and nothing of it is held for consumed.
func TestNothingOfAnAbandonedBranchHauntsTheNext(t *testing.T) {
	for name, store := range map[string]index.Store{"in memory": nil, "over a store": indextest.NewStore()} {
		for _, reason := range []ledger.SeedReason{ledger.SeedDiverged, ledger.SeedRewound, ledger.SeedAnotherParticipant} {
			x := open(t, store, index.Options{})
			if err := seed(t, x, ledger.SeedFirst, 1, contract("root", root())); err != nil {
				t.Fatal(err)
			}
			digest := wormhole.Digest{1}
			b, err := consumeBatch(x.View(), digest) // which ends the root
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Apply(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			for i, reason := range []ledger.SeedReason{reason, ledger.SeedRequested, ledger.SeedPruned, ledger.SeedConfigChanged} {
				if err := seed(t, x, reason, int64(10+i), contract("root", root())); err != nil {
					t.Fatal(err)
				}
				v := x.View()
				if node, err := v.Covering(scope, digest); err != nil || node.ContractID != "root" {
					t.Errorf("%s: after a seed (%s): the root is %v, %v", name, reason, node, err)
				}
				if len(v.Ghosts()) != 0 || v.Missing(scope, digest) || !v.Clean() {
					t.Errorf("%s: after a seed (%s): ghosts %v, missing %t, findings %v", name, reason, v.Ghosts(), v.Missing(scope, digest), v.Findings())
				}
				if _, known, err := x.History().Consumed(t.Context(), scope, digest, 1000); err != nil || known {
					t.Errorf("%s: after a seed (%s): the digest was consumed: %t, %v", name, reason, known, err)
				}
				if _, known, err := x.History().EndOf(t.Context(), "root", 1000); err != nil || known {
					t.Errorf("%s: after a seed (%s): the root has ended: %t, %v", name, reason, known, err)
				}
			}
		}
	}
}

// duringLookups does something while a store's history is asked for an update: after it has answered.
type duringLookups struct {
	*indextest.Store
	do func()
}

func (d duringLookups) UpdateByID(ctx context.Context, id string) (index.UpdateRef, bool, error) {
	ref, known, err := d.Store.UpdateByID(ctx, id)
	d.do()
	return ref, known, err
}

// An update of a history that is given up while it is looked for is not in the view of the next, at however high an offset that is.
func TestWaitingForAnUpdateOfAnAbandonedBranch(t *testing.T) {
	store := &duringLookups{Store: indextest.NewStore(), do: func() {}}
	x := open(t, store, index.Options{})
	mustSeed(t, x)
	b, err := consumeBatch(x.View(), wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, ref, err := x.WaitUpdate(t.Context(), "update-2"); err != nil || ref.Offset != 2 {
		t.Fatalf("before: %+v, %v", ref, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	// The view stands at the update (its position names it); what is asked for is an update before it.
	if err := x.Apply(t.Context(), ledger.Batch{ParticipantID: participant, After: 2, Through: 5, Updates: []ledger.Update{{Offset: 5, UpdateID: "update-5"}}}); err != nil {
		t.Fatal(err)
	}
	store.do = sync.OnceFunc(func() {
		if err := seed(t, x, ledger.SeedDiverged, 100, contract("root", root())); err != nil {
			t.Error(err)
		}
		cancel()
	})
	if v, ref, err := x.WaitUpdate(ctx, "update-2"); err == nil {
		t.Errorf("the update of the former history is at %d in the view at %d", ref.Offset, v.Position().Offset)
	}
}
