package postgres

import (
	"errors"
	"testing"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// What is retired is not there: the next seed is a first one, without the former history, and the former's rows go.
func TestRetire(t *testing.T) {
	url := pgtest.Database(t)
	s := writer(t, url)
	ctx := t.Context()
	root := node(scope1, "root", "", 10)
	if _, found, err := s.Retire(ctx); err != nil || found {
		t.Fatalf("retiring nothing: %t, %v", found, err)
	}
	seedWith(t, s, first(10), index.SeedEnd{}, root)
	end, _ := commitRoots(t, s, ledger.Position{ParticipantID: participant, Offset: 10}, root, 3)

	if _, _, err := open(t, url).Retire(ctx); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("without a lease: %v", err)
	}
	pos, found, err := s.Retire(ctx)
	if err != nil || !found || pos.Offset != end.Offset || pos.ParticipantID != participant {
		t.Fatalf("retired %+v, %t, %v; want offset %d", pos, found, err, end.Offset)
	}
	if _, ok, err := s.Position(ctx); ok || err != nil {
		t.Errorf("there is a place: %t, %v", ok, err)
	}
	d, _ := replaceRoot(end, root)
	if err := s.Commit(ctx, d); !errors.Is(err, ledger.ErrNotNext) {
		t.Errorf("a commit to what is retired: %v", err)
	}
	seedWith(t, s, first(20), index.SeedEnd{}, root)
	if _, known, err := s.EndOf(ctx, "root", 1000); known || err != nil {
		t.Errorf("the end of the root is known from the former history: %t, %v", known, err)
	}
	if entries, loaded := load(t, s); len(entries) != 1 || loaded.Position.Offset != 20 || loaded.HistorySince != 20 {
		t.Errorf("%d contracts at %+v, history since %d", len(entries), loaded.Position, loaded.HistorySince)
	}
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]int{"contract": 1, "generation": 1, "ended": 0, "consume": 0, "applied_update": 0} {
		if n := countRows(t, s, table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
}
