package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
)

// seed is a generation being written. Its rows are in the tables from the first Add on; no reader sees them, because the cursor
// names another generation.
type seed struct {
	store      *Store
	start      ledger.SeedStart
	epoch      int64
	generation int64
	rows       int64 // contracts written
	ended      bool  // by Commit or Abort
}

var _ index.StoreSeed = (*seed)(nil)

// chunkRows and chunkBytes bound one transaction of a seed.
const (
	chunkRows  = 2000
	chunkBytes = 16 << 20
)

// BeginSeed starts a generation beside the present one; see index.Store. A seed that was begun before and not ended is dropped: its
// methods fail from then on.
func (s *Store) BeginSeed(ctx context.Context, start ledger.SeedStart) (index.StoreSeed, error) {
	epoch, err := s.held()
	if err != nil {
		return nil, err
	}
	g := &seed{store: s, start: start, epoch: epoch}
	err = s.write(ctx, "beginning a seed", func(ctx context.Context, tx pgx.Tx) error {
		if err := fence(ctx, tx, epoch); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired' WHERE state = 'building' AND `+notPresent); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `INSERT INTO disclosured.generation (state, epoch, participant_id, seed_offset, filter, reason) VALUES ('building', $1, $2, $3, $4, $5) RETURNING generation`,
			epoch, start.ParticipantID, start.Offset, start.Filter, string(start.Reason)).Scan(&g.generation)
		if err != nil {
			return err
		}
		return g.clear(ctx, tx)
	})
	if err != nil {
		return nil, err
	}
	s.wakeSweeper()
	return g, nil
}

// clear deletes the rows that bear the new generation's number already, or the number that its history would have. Nobody has written any; if
// somebody did, they would come to life with it.
func (g *seed) clear(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	for _, name := range generationTables {
		batch.Queue(`DELETE FROM disclosured.`+name+` WHERE generation = $1`, g.generation)
	}
	for _, name := range historyTables {
		batch.Queue(`DELETE FROM disclosured.`+name+` WHERE history = $1 AND history NOT IN (SELECT history FROM disclosured.cursor)`, g.generation)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("clearing generation %d: %w", g.generation, err)
	}
	return nil
}

// fence makes sure, until the transaction's end, that no other process takes the lease.
func fence(ctx context.Context, tx pgx.Tx, epoch int64) error {
	var one int
	err := tx.QueryRow(ctx, `SELECT 1 FROM disclosured.lease WHERE role = 'writer' AND epoch = $1 FOR KEY SHARE`, epoch).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("epoch %d is over: %w", epoch, ledger.ErrLostLease)
	}
	return err
}

// errSeedEnded says that a seed's method was called after its end.
var errSeedEnded = errors.New("this seed was committed, aborted, or dropped for a newer one")

// write is a transaction of this seed: fenced, and only while it is being built.
func (g *seed) write(ctx context.Context, what string, f func(ctx context.Context, tx pgx.Tx) error) error {
	if g.ended {
		return fmt.Errorf("database: %s: %w", what, errSeedEnded)
	}
	return g.store.watched(ctx, func(ctx context.Context) error {
		return g.store.write(ctx, what, func(ctx context.Context, tx pgx.Tx) error {
			if err := fence(ctx, tx, g.epoch); err != nil {
				return err
			}
			var one int
			err := tx.QueryRow(ctx, `SELECT 1 FROM disclosured.generation WHERE generation = $1 AND state = 'building' FOR SHARE`, g.generation).Scan(&one)
			if errors.Is(err, pgx.ErrNoRows) {
				return errSeedEnded
			}
			if err != nil {
				return err
			}
			return f(ctx, tx)
		})
	})
}

// Add writes entries, in transactions of bounded size.
func (g *seed) Add(ctx context.Context, entries []*index.Entry) error {
	for len(entries) > 0 {
		n, bytes := 0, 0
		for n < len(entries) && n < chunkRows && bytes < chunkBytes {
			bytes += 1024 + len(entries[n].Blob)*3/2
			n++
		}
		if err := g.addChunk(ctx, entries[:n]); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

func (g *seed) addChunk(ctx context.Context, entries []*index.Entry) error {
	entries = lastOfKey(entries)
	want := scopeWant{}
	want.addEntries(entries)
	var learned scopeIDs
	var replaced int64
	err := g.write(ctx, fmt.Sprintf("writing %d contracts of generation %d", len(entries), g.generation), func(ctx context.Context, tx pgx.Tx) error {
		var ids scopeIDs
		var err error
		if ids, learned, err = g.store.scopes.resolve(ctx, tx, want); err != nil {
			return err
		}
		t, err := contractTable("contract", g.generation, 0, entries, ids)
		if err != nil {
			return err
		}
		if replaced, err = deleteKeys(ctx, tx, g.generation, entries); err != nil {
			return err
		}
		return t.copyAll(ctx, tx)
	})
	if err == nil {
		g.rows += int64(len(entries)) - replaced
		g.store.scopes.learn(learned)
	}
	return err
}

// lastOfKey are the entries without those that a later one replaces.
func lastOfKey(entries []*index.Entry) []*index.Entry {
	seen := make(map[index.Key]bool, len(entries))
	kept := make([]*index.Entry, 0, len(entries))
	for _, e := range slices.Backward(entries) {
		if !seen[e.Key()] {
			seen[e.Key()] = true
			kept = append(kept, e)
		}
	}
	slices.Reverse(kept)
	return kept
}

// deleteKeys deletes what a seed wrote before under the entries' keys, and tells how many rows that were.
func deleteKeys(ctx context.Context, tx pgx.Tx, generation int64, entries []*index.Entry) (int64, error) {
	contractIDs, synchronizers := make([]string, len(entries)), make([]string, len(entries))
	for i, e := range entries {
		contractIDs[i], synchronizers[i] = e.ContractID, e.SynchronizerID
	}
	tag, err := tx.Exec(ctx, deleteContracts, generation, contractIDs, synchronizers)
	if err != nil {
		return 0, fmt.Errorf("replacing contracts: %w", err)
	}
	return tag.RowsAffected(), nil
}

// Ended tells which of the contracts are known to have ended, in a history that still holds; see index.StoreSeed.
func (g *seed) Ended(ctx context.Context, contractIDs []string) (map[string]index.Ended, error) {
	found := map[string]index.Ended{}
	if !g.start.Reason.SameHistory() || len(contractIDs) == 0 {
		return found, nil
	}
	err := g.store.read(ctx, "looking for ended contracts", func(ctx context.Context, conn *pgxpool.Conn) error {
		rows, err := conn.Query(ctx, `SELECT DISTINCT ON (e.contract_id) `+selectEnded+`
			AND e.contract_id = ANY ($1::text[]) ORDER BY e.contract_id, e.ledger_offset DESC`, contractIDs)
		if err != nil {
			return err
		}
		// Only how it ended counts here: what else can't be read of an end must not keep a damaged index from being built anew.
		return eachEnded(rows, func(e index.Ended, _ error) { found[e.ContractID] = e })
	})
	return found, err
}

// Commit puts the generation in the old one's place; see index.StoreSeed. Rows of the old one are deleted later, in the background.
func (g *seed) Commit(ctx context.Context, end index.SeedEnd) error {
	want := scopeWant{}
	want.addEntries(end.Ghosts)
	want.addEnded(end.Ended)
	want.addDigests(end.Missing)
	for _, scope := range end.KnownScopes {
		want.add(scope, 0)
	}
	var learned scopeIDs
	err := g.write(ctx, fmt.Sprintf("putting generation %d in place", g.generation), func(ctx context.Context, tx pgx.Tx) error {
		var ids scopeIDs
		var err error
		if ids, learned, err = g.store.scopes.resolve(ctx, tx, want); err != nil {
			return err
		}
		w, err := g.moveCursor(ctx, tx, end.Position)
		if err != nil {
			return err
		}
		if err := cutHistory(ctx, tx, w.history, end.Position.Offset); err != nil {
			return err
		}
		return g.writeEnd(ctx, tx, w, end, ids)
	})
	if errors.Is(err, errOutcomeUnknown) {
		// The place alone need not tell which generation is present: both can stand at one offset. Until Load tells, Commit refuses.
		g.store.generation.Store(0)
	}
	if err != nil {
		return err
	}
	g.ended = true
	g.store.scopes.learn(learned)
	g.store.generation.Store(g.generation)
	g.store.wakeSweeper()
	return nil
}

// moveCursor makes the generation the present one. A history that does not go on is replaced by a new one, numbered as the generation.
func (g *seed) moveCursor(ctx context.Context, tx pgx.Tx, pos ledger.Position) (written, error) {
	w := written{generation: g.generation, history: g.generation}
	if _, err := tx.Exec(ctx, `UPDATE disclosured.generation SET state = CASE generation WHEN $1 THEN 'present' ELSE 'retired' END WHERE state = 'present' OR generation = $1`, g.generation); err != nil {
		return w, err
	}
	err := tx.QueryRow(ctx, `INSERT INTO disclosured.cursor AS c (participant_id, ledger_offset, update_offset, update_id, record_time, filter, generation, epoch, commit_seq,
			changes_since, history, history_since, seed_reason, contracts, counted_seq, seeded_at, committed_at)
		VALUES ($1, $2, $3, $4, $5, $10, $6, $7, 1, 1, $6, $2, $8, $11, 1, clock_timestamp(), clock_timestamp())
		ON CONFLICT (singleton) DO UPDATE SET participant_id = EXCLUDED.participant_id, ledger_offset = EXCLUDED.ledger_offset, update_offset = EXCLUDED.update_offset,
			update_id = EXCLUDED.update_id, record_time = EXCLUDED.record_time, filter = EXCLUDED.filter, generation = EXCLUDED.generation, epoch = EXCLUDED.epoch,
			commit_seq = c.commit_seq + 1, changes_since = c.commit_seq + 1, history = CASE WHEN $9::boolean THEN c.history ELSE EXCLUDED.history END,
			history_since = EXCLUDED.history_since, seed_reason = EXCLUDED.seed_reason, contracts = EXCLUDED.contracts, counted_seq = c.commit_seq + 1, seeded_at = EXCLUDED.seeded_at, committed_at = EXCLUDED.committed_at
		WHERE c.epoch = EXCLUDED.epoch
		RETURNING history, commit_seq`,
		pos.ParticipantID, pos.Offset, pos.UpdateOffset, pos.UpdateID, timeColumn(pos.RecordTime), g.generation, g.epoch, string(g.start.Reason), g.start.Reason.SameHistory(), pos.Filter, g.rows).
		Scan(&w.history, &w.commitSeq)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, fmt.Errorf("the cursor is of another epoch: %w", ledger.ErrLostLease)
	}
	return w, err
}

// cutHistory deletes what a history that goes on says of offsets after the place of the new generation. Nobody has written any; rows that somebody moved
// or put there would be found again at each load (checkHistoryEnds), and stand in the way of the commits that come to their offsets.
func cutHistory(ctx context.Context, tx pgx.Tx, history, offset int64) error {
	for _, name := range historyTables {
		if _, err := tx.Exec(ctx, `DELETE FROM disclosured.`+name+` WHERE history = $1 AND ledger_offset > $2`, history, offset); err != nil {
			return fmt.Errorf("cutting the table %s: %w", name, err)
		}
	}
	return nil
}

// writeEnd writes what the change of generation adds.
func (g *seed) writeEnd(ctx context.Context, tx pgx.Tx, w written, end index.SeedEnd, ids scopeIDs) error {
	ghosts, err := contractTable("ghost", w.generation, 0, end.Ghosts, ids)
	if err != nil {
		return err
	}
	ended, err := endedTable(w, end.Ended, ids)
	if err != nil {
		return err
	}
	known := table{name: "known_scope", columns: []string{"generation", "commit_seq", "scope_id"}}
	for scope := range uniqueScopes(end.KnownScopes) {
		known.rows = append(known.rows, []any{w.generation, int64(0), ids[scope].id})
	}
	missing := table{name: "missing_digest", columns: []string{"generation", "commit_seq", "scope_id", "digest"}}
	for _, d := range end.Missing {
		missing.rows = append(missing.rows, []any{w.generation, int64(0), ids[d.Scope].id, d.Digest[:]})
	}
	for _, t := range []table{ghosts, ended, known, missing} {
		if err := t.copyAll(ctx, tx); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, Channel, strconv.FormatInt(w.commitSeq, 10))
	return err
}

func uniqueScopes(scopes []index.Scope) map[index.Scope]bool {
	unique := make(map[index.Scope]bool, len(scopes))
	for _, scope := range scopes {
		unique[scope] = true
	}
	return unique
}

// Abort drops the generation; after Commit it does nothing. Its rows are deleted later, in the background.
func (g *seed) Abort(ctx context.Context) error {
	if g.ended {
		return nil
	}
	err := g.store.write(ctx, "dropping a seed", func(ctx context.Context, tx pgx.Tx) error {
		if err := fence(ctx, tx, g.epoch); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE disclosured.generation SET state = 'retired' WHERE generation = $1 AND state = 'building'`, g.generation)
		return err
	})
	if err == nil {
		g.ended = true
		g.store.wakeSweeper()
	}
	return err
}
