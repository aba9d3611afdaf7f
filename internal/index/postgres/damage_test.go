package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// Rows that bear the number of a generation, or of a history, which is not there yet do not come to life with it.
func TestRowsOfTheNextGeneration(t *testing.T) {
	url := pgtest.Database(t)
	s := writer(t, url)
	entries := []*index.Entry{node(scope1, "a", "a", 5, digest(1)), node(scope1, "b", "b", 6)}
	end := index.SeedEnd{Ghosts: []*index.Entry{node(scope1, "ghost", "c", 5)}, KnownScopes: []index.Scope{scope1},
		Missing: []index.ScopedDigest{{Scope: scope1, Digest: digest(7)}},
		Ended:   []index.Ended{{ContractID: id("c"), How: index.Gone, Offset: 10, Scope: &scope1, Prefix: prefix("c")}}}
	seedWith(t, s, first(10), end, entries...)
	next := func(what string, tables []string) {
		for _, name := range tables {
			execute(t, s, `UPDATE disclosured.`+name+` SET `+what+` = `+what+` + 1`)
		}
	}
	next("generation", generationTables)
	next("history", historyTables)
	if got, loaded := load(t, s); len(got) != 0 || loaded.Unreadable.Rows == 0 {
		t.Fatalf("%d contracts are loaded, unreadable %d", len(got), loaded.Unreadable.Rows)
	}
	seedWith(t, s, ledger.SeedStart{ParticipantID: participant, Offset: 20, Reason: ledger.SeedRewound}, index.SeedEnd{}, entries[1])
	got, loaded := load(t, s)
	if len(got) != 1 || loaded.Unreadable.Rows != 0 || len(loaded.Ghosts)+len(loaded.KnownScopes)+len(loaded.Missing) != 0 {
		t.Errorf("after a seed of one contract: %d contracts, %+v", len(got), loaded)
	}
	if e, ok, err := s.EndOf(t.Context(), id("c"), 20); ok || err != nil {
		t.Errorf("a new history has an end from before it: %+v, %v", e, err)
	}
}

// A program of before the count writes beside this one while versions change. What it wrote is no damage, and the next commit counts again.
func TestAWriterThatDoesNotCount(t *testing.T) {
	url := pgtest.Database(t)
	s := writer(t, url)
	seedWith(t, s, first(10), index.SeedEnd{}, node(scope1, "a", "a", 5), node(scope1, "b", "b", 6))
	execute(t, s, `DELETE FROM disclosured.contract WHERE prefix = 'a'`)
	execute(t, s, `UPDATE disclosured.cursor SET ledger_offset = 11, commit_seq = commit_seq + 1`)
	if got, loaded := load(t, s); len(got) != 1 || loaded.Unreadable.Rows != 0 {
		t.Errorf("after a commit without count: %d contracts, unreadable: %v", len(got), loaded.Unreadable.First)
	}
	if err := s.Commit(t.Context(), index.Delta{From: position(11), To: position(12), Put: []*index.Entry{node(scope1, "c", "c", 12)}}); err != nil {
		t.Fatal(err)
	}
	if got, loaded := load(t, s); len(got) != 2 || loaded.Unreadable.Rows != 0 {
		t.Errorf("after a commit with count: %d contracts, unreadable: %v", len(got), loaded.Unreadable.First)
	}
	execute(t, s, `DELETE FROM disclosured.contract WHERE prefix = 'b'`)
	if _, loaded := load(t, s); loaded.Unreadable.Rows != 1 {
		t.Errorf("a row that is gone: unreadable %d", loaded.Unreadable.Rows)
	}
}

// A count that somebody took away is damage, and is made anew by whatever is written next.
func TestACountThatIsGone(t *testing.T) {
	url := pgtest.Database(t)
	s := writer(t, url)
	seedWith(t, s, first(10), index.SeedEnd{}, node(scope1, "a", "a", 5), node(scope1, "b", "b", 6))
	execute(t, s, `UPDATE disclosured.cursor SET contracts = NULL`)
	if _, loaded := load(t, s); loaded.Unreadable.Rows != 1 {
		t.Errorf("a count that is gone: unreadable %d", loaded.Unreadable.Rows)
	}
	if err := s.Commit(t.Context(), index.Delta{From: ledger.Position{ParticipantID: participant, Offset: 10}, To: position(11), Put: []*index.Entry{node(scope1, "c", "c", 11)}}); err != nil {
		t.Fatal(err)
	}
	if got, loaded := load(t, s); len(got) != 3 || loaded.Unreadable.Rows != 0 {
		t.Errorf("after a commit: %d contracts, unreadable: %v", len(got), loaded.Unreadable.First)
	}
}

// History that goes on after the index's place is damage that a seed mends, whatever the offsets: it is not found again, and commits pass the offsets that
// it was at.
func TestHistoryAheadOfTheIndex(t *testing.T) {
	url := pgtest.Database(t)
	s := writer(t, url)
	entry := node(scope1, "a", "a", 5)
	seedWith(t, s, first(10), index.SeedEnd{}, entry)
	for _, insert := range []string{
		`INSERT INTO disclosured.applied_update (history, generation, commit_seq, ledger_offset, update_id) SELECT history, generation, commit_seq, ledger_offset + i, 'x' || i FROM disclosured.cursor, generate_series(1, 100) i`,
		`INSERT INTO disclosured.consume (history, generation, commit_seq, scope_id, digest, ledger_offset, update_id) SELECT history, generation, commit_seq, 1, decode(repeat('ab', 32), 'hex'), 9000000000000000000, 'x' FROM disclosured.cursor`,
	} {
		execute(t, s, insert)
		if _, loaded := load(t, s); loaded.Unreadable.Rows == 0 {
			t.Errorf("not noticed: %s", insert)
		}
	}
	seedWith(t, s, ledger.SeedStart{ParticipantID: participant, Offset: 20, Reason: ledger.SeedDamaged}, index.SeedEnd{}, entry)
	if _, loaded := load(t, s); loaded.Unreadable.Rows != 0 {
		t.Errorf("after a seed: %v", loaded.Unreadable.First)
	}
	d := index.Delta{From: ledger.Position{ParticipantID: participant, Offset: 20}, To: position(50), Updates: []index.UpdateRef{{Offset: 50, UpdateID: "u", RecordTime: at(50)}}}
	if err := s.Commit(t.Context(), d); err != nil {
		t.Errorf("a commit at an offset that was taken: %v", err)
	}
	if _, ok, err := s.UpdateByID(t.Context(), "x5"); !ok || err != nil {
		t.Errorf("history up to the place is gone: %v, %v", ok, err)
	}
}

// What the cursor names counts, whatever the list of generations says: its rows are not swept.
func TestThePresentGenerationIsNotSwept(t *testing.T) {
	for _, state := range []string{"retired", "building"} {
		t.Run(state, func(t *testing.T) {
			url := pgtest.Database(t)
			s := openWith(t, Config{URL: url, noSweeper: true})
			lease(t, s, "writer")
			seedWith(t, s, first(10), index.SeedEnd{}, node(scope1, "a", "a", 5))
			execute(t, s, `UPDATE disclosured.generation SET epoch = epoch - 1, state = '`+state+`'`)
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, loaded := load(t, s); len(got) != 1 || loaded.Unreadable.Rows != 0 {
				t.Errorf("after a sweep: %d contracts, unreadable: %v", len(got), loaded.Unreadable.First)
			}
			seedWith(t, s, first(20), index.SeedEnd{}, node(scope1, "b", "b", 15), node(scope1, "c", "c", 15))
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, _ := load(t, s); len(got) != 2 || countRows(t, s, "contract") != 2 || countRows(t, s, "generation") != 1 {
				t.Errorf("after a seed and a sweep: %d contracts of %d rows, %d generations", len(got), countRows(t, s, "contract"), countRows(t, s, "generation"))
			}
		})
	}
}

// A lease that someone gave no end is a lease that is held, and one with no beginning is free.
func TestALeaseWithoutEnd(t *testing.T) {
	url := pgtest.Database(t)
	s := open(t, url)
	execute(t, s, `UPDATE disclosured.lease SET holder = 'x', expires_at = 'infinity'`)
	var held *HeldError
	if _, err := s.AcquireLease(t.Context(), LeaseOptions{Holder: "writer"}); !errors.As(err, &held) || held.Holder != "x" || held.For < 1000*time.Hour {
		t.Errorf("a lease without end: %v", err)
	}
	execute(t, s, `UPDATE disclosured.lease SET expires_at = '-infinity'`)
	lease(t, s, "writer")
}

// execute changes something behind the store's back.
func execute(t *testing.T, s *Store, sql string) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
