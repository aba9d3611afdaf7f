package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Channel is the name on which each commit notifies. The payload is the commit sequence; it is a hint that there is something to read,
// and may be lost.
const Channel = "disclosured"

// written is what one transaction writes into: its generation, history and number.
type written struct{ generation, history, commitSeq int64 }

// Commit appends a delta; see index.Store.
func (s *Store) Commit(ctx context.Context, d index.Delta) error {
	epoch, err := s.held()
	if err != nil {
		return err
	}
	generation := s.generation.Load()
	if generation == 0 {
		return fmt.Errorf("database: committing: the present generation is not known; it must be loaded first: %w", ledger.ErrNotNext)
	}
	want := scopesOf(d)
	var learned scopeIDs
	err = s.watched(ctx, func(ctx context.Context) error {
		return s.write(ctx, fmt.Sprintf("committing offsets %d to %d", d.From.Offset, d.To.Offset), func(ctx context.Context, tx pgx.Tx) error {
			w, err := s.moveCursor(ctx, tx, epoch, generation, d)
			if err != nil {
				return err
			}
			var ids scopeIDs
			if ids, learned, err = s.scopes.resolve(ctx, tx, want); err != nil {
				return err
			}
			return writeDelta(ctx, tx, w, d, ids)
		})
	})
	if err == nil {
		s.scopes.learn(learned)
	}
	return err
}

// moveCursor moves the place, if it, the generation and the epoch are what the writer believes. The row stays locked until the
// transaction's end, so that commits and changes of the lease's holder come one after the other.
func (s *Store) moveCursor(ctx context.Context, tx pgx.Tx, epoch, generation int64, d index.Delta) (written, error) {
	w := written{generation: generation}
	if d.To.ParticipantID != d.From.ParticipantID || d.To.Offset < d.From.Offset {
		return w, fmt.Errorf("a delta from %s at %d to %s at %d: %w", d.From.ParticipantID, d.From.Offset, d.To.ParticipantID, d.To.Offset, ledger.ErrNotNext)
	}
	err := tx.QueryRow(ctx, `UPDATE disclosured.cursor SET ledger_offset = $5, update_offset = $6, update_id = $7, record_time = $8,
			commit_seq = commit_seq + 1, committed_at = clock_timestamp(), counted_seq = commit_seq + 1,
			contracts = CASE WHEN counted_seq = commit_seq AND contracts IS NOT NULL THEN contracts ELSE (SELECT count(*) FROM disclosured.contract n WHERE n.generation = $2) END
		WHERE epoch = $1 AND generation = $2 AND participant_id = $3 AND ledger_offset = $4 RETURNING history, commit_seq`,
		epoch, generation, d.From.ParticipantID, d.From.Offset, d.To.Offset, d.To.UpdateOffset, d.To.UpdateID, timeColumn(d.To.RecordTime)).Scan(&w.history, &w.commitSeq)
	if !errors.Is(err, pgx.ErrNoRows) {
		return w, err
	}
	c, ok, err := readCursor(ctx, tx)
	switch {
	case err != nil:
		return w, err
	case !ok:
		return w, fmt.Errorf("the index is not seeded: %w", ledger.ErrNotNext)
	case c.epoch != epoch:
		return w, fmt.Errorf("the writer's epoch is %d, the index's %d: %w", epoch, c.epoch, ledger.ErrLostLease)
	case c.generation != generation:
		return w, fmt.Errorf("the delta is of generation %d, the index of %d: %w", generation, c.generation, ledger.ErrNotNext)
	default:
		return w, fmt.Errorf("the index stands at offset %d of %s, the delta continues from %d of %s: %w",
			c.pos.Offset, c.pos.ParticipantID, d.From.Offset, d.From.ParticipantID, ledger.ErrNotNext)
	}
}

// scopesOf are the scopes that a delta's rows name.
func scopesOf(d index.Delta) scopeWant {
	want := scopeWant{}
	want.addEntries(d.Put)
	for _, scope := range d.Scopes {
		want.add(scope, 0)
	}
	for _, c := range d.Consumes {
		want.add(c.Scope, 0)
	}
	want.addEnded(d.Ended)
	want.addDigests(d.MissingAdd)
	want.addDigests(d.MissingRemove)
	return want
}

// writeDelta writes a delta's rows: what takes statements is sent together, then what is many is copied.
func writeDelta(ctx context.Context, tx pgx.Tx, w written, d index.Delta, ids scopeIDs) error {
	contracts, err := contractTable("contract", w.generation, w.commitSeq, d.Put, ids)
	if err != nil {
		return err
	}
	ended, err := endedTable(w, d.Ended, ids)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	queueRemovals(batch, w, d)
	queueKnownScopes(batch, w, d, ids)
	queueMissing(batch, w, d, ids)
	tables := []table{contracts, consumeTable(w, d.Consumes, ids), ended, updateTable(w, d.Updates)}
	for _, t := range tables {
		t.queue(batch)
	}
	batch.Queue(`SELECT pg_notify($1, $2)`, Channel, strconv.FormatInt(w.commitSeq, 10))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("writing the delta: %w", err)
	}
	for _, t := range tables {
		if err := t.copyMany(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// contractTable are entries as rows of contract or ghost.
func contractTable(name string, generation, commitSeq int64, entries []*index.Entry, ids scopeIDs) (table, error) {
	t := table{name: name, columns: contractColumns, rows: make([][]any, 0, len(entries))}
	for _, e := range entries {
		row, err := contractRow(generation, commitSeq, e, ids)
		if err != nil {
			return table{}, err
		}
		t.rows = append(t.rows, row)
	}
	return t, nil
}

// deleteContracts deletes contracts of a generation by their keys. As with coveringQuery, OFFSET 0 has each key looked up by itself: a
// planner that believes the generation to be small would read all of it for each commit.
const deleteContracts = `DELETE FROM disclosured.contract WHERE ctid = ANY (ARRAY(
	SELECT c.ctid FROM unnest($2::text[], $3::text[]) AS k (contract_id, synchronizer_id) CROSS JOIN LATERAL (SELECT n.ctid FROM disclosured.contract n
		WHERE n.generation = $1::bigint AND n.contract_id = k.contract_id AND n.synchronizer_id = k.synchronizer_id OFFSET 0) c))`

// replaceContracts is deleteContracts, and notes in the cursor what it found and how many rows follow.
const replaceContracts = `WITH gone AS (` + deleteContracts + ` RETURNING 1)
	UPDATE disclosured.cursor SET contracts = contracts + $4::bigint - (SELECT count(*) FROM gone)`

// foundMissing marks digests of a generation as no longer missing, one by one as in deleteContracts.
const foundMissing = `UPDATE disclosured.missing_digest SET removed_seq = $2::bigint WHERE ctid = ANY (ARRAY(
	SELECT m.ctid FROM unnest($3::bigint[], $4::bytea[]) AS k (scope_id, digest) CROSS JOIN LATERAL (SELECT n.ctid FROM disclosured.missing_digest n
		WHERE n.generation = $1::bigint AND n.scope_id = k.scope_id AND n.digest = k.digest OFFSET 0) m))`

// queueRemovals deletes the rows of the keys that go and of those that are put anew, and notes the former for followers.
func queueRemovals(batch *pgx.Batch, w written, d index.Delta) {
	var contractIDs, synchronizers []string
	add := func(k index.Key) {
		contractIDs, synchronizers = append(contractIDs, k.ContractID), append(synchronizers, k.SynchronizerID)
	}
	for _, k := range d.Remove {
		add(k)
	}
	if len(d.Remove) > 0 {
		batch.Queue(`INSERT INTO disclosured.removal (generation, commit_seq, contract_id, synchronizer_id)
			SELECT $1::bigint, $2::bigint, * FROM unnest($3::text[], $4::text[]) ON CONFLICT DO NOTHING`, w.generation, w.commitSeq, contractIDs, synchronizers)
	}
	for _, e := range d.Put {
		add(e.Key())
	}
	if len(contractIDs) > 0 {
		batch.Queue(replaceContracts, w.generation, contractIDs, synchronizers, len(d.Put))
	}
}

// queueKnownScopes notes the scopes that came to exist.
func queueKnownScopes(batch *pgx.Batch, w written, d index.Delta, ids scopeIDs) {
	if len(d.Scopes) == 0 {
		return
	}
	numbers := make([]int64, len(d.Scopes))
	for i, scope := range d.Scopes {
		numbers[i] = ids[scope].id
	}
	batch.Queue(`INSERT INTO disclosured.known_scope (generation, commit_seq, scope_id)
		SELECT $1::bigint, $2::bigint, * FROM unnest($3::bigint[]) ON CONFLICT DO NOTHING`, w.generation, w.commitSeq, numbers)
}

// queueMissing changes the set of missing digests. A digest that is no longer missing stays as a row that says so, for followers.
func queueMissing(batch *pgx.Batch, w written, d index.Delta, ids scopeIDs) {
	if len(d.MissingRemove) > 0 {
		numbers, digests := digestColumns(d.MissingRemove, ids)
		batch.Queue(foundMissing, w.generation, w.commitSeq, numbers, digests)
	}
	if len(d.MissingAdd) > 0 {
		numbers, digests := digestColumns(d.MissingAdd, ids)
		batch.Queue(`INSERT INTO disclosured.missing_digest AS m (generation, commit_seq, scope_id, digest)
			SELECT $1::bigint, $2::bigint, * FROM unnest($3::bigint[], $4::bytea[])
			ON CONFLICT (generation, scope_id, digest) DO UPDATE SET commit_seq = EXCLUDED.commit_seq, removed_seq = NULL`, w.generation, w.commitSeq, numbers, digests)
	}
}

// digestColumns are scoped digests as two arrays.
func digestColumns(digests []index.ScopedDigest, ids scopeIDs) (scopes []int64, bytes [][]byte) {
	scopes, bytes = make([]int64, len(digests)), make([][]byte, len(digests))
	for i, d := range digests {
		scopes[i], bytes[i] = ids[d.Scope].id, d.Digest[:]
	}
	return scopes, bytes
}

// consumeTable are consumes as rows. One update can show one digest twice, in two nodes of a fork: it is one row.
func consumeTable(w written, consumes []index.Consume, ids scopeIDs) table {
	t := table{name: "consume", columns: []string{"history", "generation", "commit_seq", "scope_id", "digest", "ledger_offset", "update_id", "record_time"}}
	type key struct {
		scope  int64
		digest wormhole.Digest
		offset int64
	}
	seen := make(map[key]bool, len(consumes))
	for _, c := range consumes {
		k := key{ids[c.Scope].id, c.Digest, c.Offset}
		if seen[k] {
			continue
		}
		seen[k] = true
		t.rows = append(t.rows, []any{w.history, w.generation, w.commitSeq, k.scope, c.Digest[:], c.Offset, c.UpdateID, timeColumn(c.RecordTime)})
	}
	return t
}

// endedTable are ends as rows. One update can end a contract on two synchronizers: the last word counts.
func endedTable(w written, ended []index.Ended, ids scopeIDs) (table, error) {
	t := table{name: "ended", columns: []string{"history", "generation", "commit_seq", "contract_id", "how", "after_offset", "ledger_offset", "update_id",
		"record_time", "since", "successors", "scope_id", "prefix"}}
	type key struct {
		contractID string
		offset     int64
	}
	last := make(map[key]int, len(ended))
	for _, e := range ended {
		successors, err := json.Marshal(texts(e.Successors))
		if err != nil {
			return table{}, fmt.Errorf("end of %s: %w", e.ContractID, err)
		}
		var scopeID, prefix any
		if e.Scope != nil {
			scopeID, prefix = ids[*e.Scope].id, e.Prefix.String()
		}
		row := []any{w.history, w.generation, w.commitSeq, e.ContractID, int16(e.How), e.AfterOffset, e.Offset, e.UpdateID,
			timeColumn(e.RecordTime), timeColumn(e.Since), string(successors), scopeID, prefix}
		if i, ok := last[key{e.ContractID, e.Offset}]; ok {
			t.rows[i] = row
			continue
		}
		last[key{e.ContractID, e.Offset}] = len(t.rows)
		t.rows = append(t.rows, row)
	}
	return t, nil
}

// updateTable are applied updates as rows.
func updateTable(w written, updates []index.UpdateRef) table {
	t := table{name: "applied_update", columns: []string{"history", "generation", "commit_seq", "ledger_offset", "update_id", "record_time"}}
	for _, u := range updates {
		t.rows = append(t.rows, []any{w.history, w.generation, w.commitSeq, u.Offset, u.UpdateID, timeColumn(u.RecordTime)})
	}
	return t
}
