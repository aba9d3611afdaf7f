package index_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// What a store gives back and what was never written is not shown to anyone: the position asks for a new generation, which goes on from
// what can be believed.
func TestADamagedStoreIsNotServed(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	mustSeed(t, x)
	digest := wormhole.Digest{1}
	batch, err := consumeBatch(x.View(), digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	node, err := x.View().Covering(scope, digest)
	if err != nil {
		t.Fatal(err)
	}

	var checked atomic.Int32
	damaged := atomic.Bool{}
	damaged.Store(true)
	check := func(e *index.Entry) error {
		checked.Add(1)
		if damaged.Load() && e.ContractID == node.ContractID {
			return errors.New("edited")
		}
		return nil
	}
	x = open(t, store, index.Options{CheckLoaded: check})
	if checked.Load() == 0 {
		t.Fatal("nothing was checked")
	}
	if v := x.View(); v != nil {
		t.Fatalf("a view of what is damaged is published: %v", v.Position())
	}
	pos, ok, err := x.Position(t.Context())
	if err != nil || !ok || pos.Offset != 2 || pos.Reseed != ledger.SeedDamaged {
		t.Fatalf("position %+v, %v, %v; want offset 2, to be built anew as damaged", pos, ok, err)
	}
	if err := x.Apply(t.Context(), ledger.Batch{ParticipantID: participant, After: 2, Through: 3}); !errors.Is(err, ledger.ErrNotNext) {
		t.Fatalf("applying to what is damaged: %v", err)
	}
	contracts := []ledger.Contract{contract("other", &wormhole.ReplayNode{Consumer: "consumer::2", Operator: indextest.Operator, SplitThreshold: 2}), node.Contract}
	if err := seed(t, x, pos.Reseed, 5, contracts...); err != nil {
		t.Fatal(err)
	}
	pos, ok, err = x.Position(t.Context())
	if err != nil || !ok || pos.Offset != 5 || pos.Reseed != "" {
		t.Fatalf("position after the new generation: %+v, %v, %v", pos, ok, err)
	}
	if _, err := x.View().Covering(scope, digest); err != nil {
		t.Errorf("the node that was damaged, after the new generation: %v", err)
	}
	if c, known, err := x.History().Consumed(t.Context(), scope, digest, 5); err != nil || !known || c.Offset != 2 {
		t.Errorf("history after the new generation: %+v, %v, %v; want the consume at 2", c, known, err)
	}
	if n := len(x.View().Audit()); n != 0 {
		t.Errorf("%d findings: %v", n, x.View().Audit())
	}
}

// A load while a view is published, after a commit whose outcome was unknown, goes by the same rule: readers keep the view they have.
func TestDamageFoundLaterLeavesTheViewThatWasTrue(t *testing.T) {
	store := indextest.NewStore()
	var damaged atomic.Bool
	check := func(e *index.Entry) error {
		if damaged.Load() {
			return fmt.Errorf("%s is edited", e.ContractID)
		}
		return nil
	}
	x := open(t, store, index.Options{CheckLoaded: check})
	mustSeed(t, x)
	before := x.View()
	store.Fail(indextest.WrittenUnheard)
	damaged.Store(true)
	if err := seed(t, x, ledger.SeedRequested, 3, contract("root", root())); !errors.Is(err, indextest.ErrFault) {
		t.Fatalf("a seed whose answer was lost: %v", err)
	}
	pos, ok, err := x.Position(t.Context())
	if err != nil || !ok || pos.Reseed != ledger.SeedDamaged || pos.Offset != 3 {
		t.Fatalf("position %+v, %v, %v", pos, ok, err)
	}
	if x.View() != before {
		t.Error("readers see another view")
	}
	damaged.Store(false)
	if err := seed(t, x, pos.Reseed, 4, contract("root", root())); err != nil {
		t.Fatal(err)
	}
	if got := x.View().Position().Offset; got != 4 {
		t.Errorf("offset %d, want 4", got)
	}
}

// Ends of contracts that the index does not hold are said once a minute, with one of them and their number.
func TestEndsOfUnknownContractsAreLogged(t *testing.T) {
	now := indextest.Epoch
	var log bytes.Buffer
	x, err := index.Open(t.Context(), policy, nil, index.Options{Clock: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	mustSeed(t, x)
	for i := range int64(4) {
		u := ledger.Update{Offset: 2 + i, UpdateID: fmt.Sprint("u", i), Events: []ledger.Event{{Kind: ledger.Archived, ContractID: fmt.Sprint("stranger", i)}}}
		if err := x.Apply(t.Context(), ledger.Batch{ParticipantID: participant, After: 1 + i, Updates: []ledger.Update{u}, Through: 2 + i}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(25 * time.Second)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "contract=stranger0 offset=2 count=1") || !strings.Contains(lines[1], "contract=stranger3 offset=5 count=3") {
		t.Errorf("logged:\n%s", log.String())
	}
}
