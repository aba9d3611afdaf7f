package postgres

import (
	"testing"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// Rows that can't be decoded are told of, and the rest is read; a seed then has everything in order again, whatever of the dictionary and of
// history was damaged too.
func TestUnreadableRows(t *testing.T) {
	for _, c := range []struct {
		name, spoil string
		rows, left  int
	}{
		{"digests of no length", `UPDATE disclosured.contract SET consumed = '\x00' WHERE prefix = 'a'`, 1, 2},
		{"a prefix that is not hex", `UPDATE disclosured.contract SET prefix = 'zz' WHERE prefix = 'a'`, 1, 2},
		{"no scope", `UPDATE disclosured.contract SET scope_id = NULL WHERE prefix = 'a'`, 1, 2},
		{"an unknown scope", `UPDATE disclosured.contract SET scope_id = 99999 WHERE prefix = 'a'`, 1, 2},
		{"a kind that is not known", `UPDATE disclosured.contract SET kind = 'root' WHERE prefix = 'a'`, 1, 2},
		{"a node without its columns", `UPDATE disclosured.contract SET kind = 'replay_node' WHERE kind = 'core_state'`, 1, 2},
		{"a payload of another form", `UPDATE disclosured.contract SET payload = '[1]' WHERE kind = 'core_state'`, 1, 2},
		{"a check that does not exist", `UPDATE disclosured.contract SET blob_check = 9 WHERE prefix = 'a'`, 1, 2},
		{"a null among the signatories", `UPDATE disclosured.contract SET signatories = '{NULL}' WHERE prefix = 'a'`, 1, 2},
		{"a time without end", `UPDATE disclosured.contract SET created_at = 'infinity' WHERE prefix = 'a'`, 1, 2},
		{"a ghost", `UPDATE disclosured.ghost SET prefix = 'zz'`, 1, 3},
		{"no dictionary", `DELETE FROM disclosured.scope`, 2 + 1 + 1 + 1, 1}, // two nodes, the ghost, the known scope, the missing digest
		{"another name in the dictionary", `UPDATE disclosured.scope SET consumer = 'mallory'`, 1 + 2 + 1 + 1 + 1, 1},
		{"a known scope that is not there", `UPDATE disclosured.known_scope SET scope_id = 99999`, 1, 3},
		{"a missing digest of a scope that is not there", `UPDATE disclosured.missing_digest SET scope_id = 99999`, 1, 3},
		{"half a missing digest", `UPDATE disclosured.missing_digest SET digest = '\x00'`, 1, 3},
		{"a row that is gone", `DELETE FROM disclosured.contract WHERE prefix = 'a'`, 1, 2},
		{"a row too many", `INSERT INTO disclosured.contract SELECT (jsonb_populate_record(c, '{"contract_id": "00ff"}')).* FROM disclosured.contract c WHERE prefix = 'a'`, 1, 4},
		{"a place before the end of history", `UPDATE disclosured.cursor SET ledger_offset = 8`, 1, 3},
		{"ends", `UPDATE disclosured.ended SET prefix = 'zz', successors = '{}'`, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := pgtest.Database(t)
			s := writer(t, url)
			entries := []*index.Entry{node(scope1, "a", "a", 5, digest(1)), node(scope1, "b", "b", 6), samples()[6]}
			end := index.SeedEnd{
				Ghosts: []*index.Entry{node(scope1, "ghost", "c", 5)}, KnownScopes: []index.Scope{scope1},
				Missing: []index.ScopedDigest{{Scope: scope1, Digest: digest(7)}},
				Ended:   []index.Ended{{ContractID: entries[0].ContractID, How: index.Gone, Offset: 10, Scope: &scope1, Prefix: prefix("a")}},
			}
			seedWith(t, s, first(10), end, entries...)
			if tag, err := s.pool.Exec(t.Context(), c.spoil); err != nil || tag.RowsAffected() == 0 {
				t.Fatalf("%s: %v, %v", c.spoil, tag, err)
			}
			got, loaded := load(t, s)
			if len(got) != c.left || loaded.Unreadable.Rows != c.rows || (loaded.Unreadable.First != nil) != (c.rows > 0) || loaded.Position.Offset > 10 {
				t.Fatalf("read are %d contracts; unreadable %d rows (%v) at %d; want %d, %d", len(got), loaded.Unreadable.Rows, loaded.Unreadable.First, loaded.Position.Offset, c.left, c.rows)
			}
			t.Log(loaded.Unreadable.First)

			start := ledger.SeedStart{ParticipantID: participant, Offset: 20, Reason: ledger.SeedDamaged}
			again, err := s.BeginSeed(t.Context(), start)
			if err != nil {
				t.Fatal(err)
			}
			if ended, err := again.Ended(t.Context(), []string{entries[0].ContractID}); err != nil || ended[entries[0].ContractID].How != index.Gone {
				t.Errorf("ended: %v, %v", ended, err)
			}
			end.Ended = nil
			seedWith(t, s, start, end, entries...)
			if got, loaded = load(t, s); len(got) != 3 || loaded.Unreadable.Rows != 0 || len(loaded.Missing) != 1 || len(loaded.KnownScopes) != 1 || len(loaded.Ghosts) != 1 {
				t.Errorf("after another seed: %d contracts, %+v", len(got), loaded)
			}
			other := open(t, url)
			if got, loaded = load(t, other); len(got) != 3 || loaded.Unreadable.Rows != 0 {
				t.Errorf("another process reads %d contracts, unreadable %d: %v", len(got), loaded.Unreadable.Rows, loaded.Unreadable.First)
			}
		})
	}
}
