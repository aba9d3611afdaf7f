package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// ErrEmpty says that there is no generation to load: the index was never seeded.
var ErrEmpty = errors.New("the index was never seeded")

// Load reads the present generation whole, at one committed state; see index.Store. Of a row that can't be decoded it only tells
// (Loaded.Unreadable), as of rows that are gone or too many: an error is for what another try may mend. It fails with an error that wraps ErrEmpty where
// Position finds nothing. It has no deadline but the context's. It holds a connection while it calls each.
func (s *Store) Load(ctx context.Context, each func(*index.Entry) error) (index.Loaded, error) {
	var loaded index.Loaded
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		c, ok, err := readCursor(ctx, tx)
		if err != nil {
			return err
		}
		if !ok {
			return ErrEmpty
		}
		loaded = index.Loaded{Position: c.pos, Generation: c.generation, HistorySince: c.historySince}
		unreadable := loaded.Unreadable.Note
		if err := checkHistoryEnds(ctx, tx, c, unreadable); err != nil {
			return err
		}
		scopes, err := s.loadScopes(ctx, tx, unreadable)
		if err != nil {
			return err
		}
		lookup := func(id int64) (index.Scope, bool) {
			scope, ok := scopes[id]
			return scope, ok
		}
		if loaded.KnownScopes, err = loadKnownScopes(ctx, tx, c.generation, scopes, unreadable); err != nil {
			return err
		}
		if loaded.Missing, err = loadMissing(ctx, tx, c.generation, scopes, unreadable); err != nil {
			return err
		}
		if _, err := loadContracts(ctx, tx, "ghost", c.generation, lookup, func(e *index.Entry) error {
			loaded.Ghosts = append(loaded.Ghosts, e)
			return nil
		}, unreadable); err != nil {
			return err
		}
		found, err := loadContracts(ctx, tx, "contract", c.generation, lookup, each, unreadable)
		if err == nil && c.contracts != nil && found != *c.contracts {
			// What was deleted is damage as what was edited is, and is nowhere else to be seen.
			unreadable(fmt.Errorf("the table contract has %d rows, and %d were written", found, *c.contracts))
		}
		return err
	})
	if err != nil {
		return index.Loaded{}, fmt.Errorf("database: loading the index: %w", err)
	}
	s.generation.Store(loaded.Generation)
	return loaded, nil
}

// checkHistoryEnds tells where history goes on after the place that it was written with: someone has moved the place back, and the next
// commits would write again what is there already.
func checkHistoryEnds(ctx context.Context, tx pgx.Tx, c cursor, unreadable func(error)) error {
	for _, name := range historyTables {
		var last int64
		err := tx.QueryRow(ctx, `SELECT COALESCE(max(ledger_offset), 0) FROM disclosured.`+name+` WHERE history = $1`, c.history).Scan(&last)
		if err != nil {
			return fmt.Errorf("reading the end of the table %s: %w", name, err)
		}
		if last > c.pos.Offset {
			unreadable(fmt.Errorf("the table %s goes to offset %d, and the index stands at %d", name, last, c.pos.Offset))
			return nil
		}
	}
	return nil
}

// loadContracts reads a generation's rows of contract or ghost, and counts them: those that can't be decoded too.
func loadContracts(ctx context.Context, tx pgx.Tx, name string, generation int64, scopes scopeLookup, each func(*index.Entry) error, unreadable func(error)) (int64, error) {
	rows, err := tx.Query(ctx, `SELECT `+selectContract+` FROM disclosured.`+name+` c WHERE c.generation = $1`, generation)
	if err != nil {
		return 0, fmt.Errorf("reading the table %s: %w", name, err)
	}
	if err := eachContract(rows, scopes, each, unreadable); err != nil {
		return 0, fmt.Errorf("reading the table %s: %w", name, err)
	}
	return rows.CommandTag().RowsAffected(), nil
}

func loadKnownScopes(ctx context.Context, tx pgx.Tx, generation int64, scopes map[int64]index.Scope, unreadable func(error)) ([]index.Scope, error) {
	rows, err := tx.Query(ctx, `SELECT scope_id FROM disclosured.known_scope WHERE generation = $1 ORDER BY scope_id`, generation)
	if err != nil {
		return nil, fmt.Errorf("reading known scopes: %w", err)
	}
	var known []index.Scope
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		if scope, ok := scopes[id]; ok {
			known = append(known, scope)
		} else {
			unreadable(fmt.Errorf("a known scope: unknown scope %d", id))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading known scopes: %w", err)
	}
	return known, nil
}

func loadMissing(ctx context.Context, tx pgx.Tx, generation int64, scopes map[int64]index.Scope, unreadable func(error)) ([]index.ScopedDigest, error) {
	rows, err := tx.Query(ctx, `SELECT scope_id, digest FROM disclosured.missing_digest WHERE generation = $1 AND removed_seq IS NULL ORDER BY scope_id, digest`, generation)
	if err != nil {
		return nil, fmt.Errorf("reading missing digests: %w", err)
	}
	var missing []index.ScopedDigest
	var id int64
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &digest}, func() error {
		scope, ok := scopes[id]
		switch {
		case !ok:
			unreadable(fmt.Errorf("a missing digest: unknown scope %d", id))
		case len(digest) != len(wormhole.Digest{}):
			unreadable(fmt.Errorf("a missing digest of %d bytes", len(digest)))
		default:
			missing = append(missing, index.ScopedDigest{Scope: scope, Digest: wormhole.Digest(digest)})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading missing digests: %w", err)
	}
	return missing, nil
}

// Covering are the active and in-flight nodes of the present generation whose prefix covers the digest, of any class, in the order
// of their prefixes and contract ids: what the index's view answers from memory. Of a contract that is on two synchronizers it is the
// entry that counts. It reads one committed state.
func (s *Store) Covering(ctx context.Context, scope index.Scope, digest wormhole.Digest) ([]*index.Entry, error) {
	var found []*index.Entry
	only := func(int64) (index.Scope, bool) { return scope, true }
	err := s.read(ctx, "looking up covering nodes", func(ctx context.Context, conn *pgxpool.Conn) error {
		found = nil
		var unreadable index.Unreadable
		rows, err := conn.Query(ctx, coveringQuery, scopeKey(scope), digest.String())
		if err != nil {
			return err
		}
		err = eachContract(rows, only, func(e *index.Entry) error {
			switch last := len(found) - 1; {
			case last < 0 || found[last].ContractID != e.ContractID:
				found = append(found, e)
			case counts(e, found[last]):
				found[last] = e
			}
			return nil
		}, unreadable.Note)
		return errors.Join(err, unreadable.First)
	})
	return found, err
}

// counts reports whether a counts before b, another entry of the same contract: by the rule of the index's view.
func counts(a, b *index.Entry) bool {
	if a.ReassignmentCounter != b.ReassignmentCounter {
		return a.ReassignmentCounter > b.ReassignmentCounter
	}
	if a.InFlight != b.InFlight {
		return b.InFlight
	}
	return a.SynchronizerID < b.SynchronizerID
}

// coveringQuery compares with every prefix of the digest up to the scope's greatest depth. The greatest prefix at or before the digest would be
// one step cheaper and wrong: where there is a fork it can miss the covering root.
//
// OFFSET 0 has the planner look each prefix up by itself, by all three columns of the index. Left to its statistics it does so as a
// rule; but right after a seed these know nothing of the generation, it believes that there is next to nothing in it, and
// filters all of its rows.
const coveringQuery = `SELECT ` + selectContract + ` FROM generate_series(0, (SELECT depth FROM disclosured.scope WHERE key = $1::bytea)) AS length
	CROSS JOIN LATERAL (SELECT * FROM disclosured.contract n
		WHERE n.generation = (SELECT generation FROM disclosured.cursor) AND n.scope_id = (SELECT id FROM disclosured.scope WHERE key = $1::bytea)
			AND n.prefix = left($2::text, length) COLLATE "C" OFFSET 0) c
	ORDER BY c.prefix, c.contract_id, c.synchronizer_id`
