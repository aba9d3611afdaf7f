package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Every query of history takes the number of the present history from the cursor in the same statement, so that it can't read one history
// half and another half. These numbers are scalar subqueries and not joins, so that the planner needs no statistics to use an index.
const (
	presentHistory = `(SELECT history FROM disclosured.cursor)`
	scopeByKey     = `(SELECT id FROM disclosured.scope WHERE key = $1::bytea)`
)

// Consumed is the first update that put the digest into the scope's trie at or before the offset; see index.History.
func (s *Store) Consumed(ctx context.Context, scope index.Scope, digest wormhole.Digest, atOrBefore int64) (c index.Consume, ok bool, err error) {
	c = index.Consume{Scope: scope, Digest: digest}
	ok, err = s.one(ctx, "looking up a consume", func(ctx context.Context, conn *pgxpool.Conn) error {
		var recordTime *time.Time
		err := conn.QueryRow(ctx, `SELECT h.ledger_offset, h.update_id, h.record_time FROM disclosured.consume h
			WHERE h.history = `+presentHistory+` AND h.scope_id = `+scopeByKey+` AND h.digest = $2::bytea AND h.ledger_offset <= $3::bigint
			ORDER BY h.ledger_offset LIMIT 1`, scopeKey(scope), digest[:], atOrBefore).Scan(&c.Offset, &c.UpdateID, &recordTime)
		c.RecordTime = timeOf(recordTime)
		return err
	})
	if !ok {
		return index.Consume{}, false, err
	}
	return c, true, nil
}

// ConsumedAmong is Consumed of many digests, in one statement; see index.History.
func (s *Store) ConsumedAmong(ctx context.Context, digests []index.ScopedDigest, atOrBefore int64) (map[index.ScopedDigest]index.Consume, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	keys, values := make([][]byte, len(digests)), make([][]byte, len(digests))
	for i := range digests {
		keys[i], values[i] = scopeKey(digests[i].Scope), digests[i].Digest[:]
	}
	var found map[index.ScopedDigest]index.Consume
	err := s.read(ctx, "looking up consumes", func(ctx context.Context, conn *pgxpool.Conn) error {
		found = make(map[index.ScopedDigest]index.Consume, len(digests))
		rows, err := conn.Query(ctx, `SELECT k.number, h.ledger_offset, h.update_id, h.record_time
			FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS k (scope, digest, number)
			CROSS JOIN LATERAL (SELECT c.ledger_offset, c.update_id, c.record_time FROM disclosured.consume c
				WHERE c.history = `+presentHistory+` AND c.scope_id = (SELECT id FROM disclosured.scope WHERE key = k.scope) AND c.digest = k.digest AND c.ledger_offset <= $3::bigint
				ORDER BY c.ledger_offset LIMIT 1) h`, keys, values, atOrBefore)
		if err != nil {
			return err
		}
		var number int64
		var c index.Consume
		var recordTime *time.Time
		_, err = pgx.ForEachRow(rows, []any{&number, &c.Offset, &c.UpdateID, &recordTime}, func() error {
			sd := digests[number-1]
			found[sd] = index.Consume{Scope: sd.Scope, Digest: sd.Digest, Offset: c.Offset, UpdateID: c.UpdateID, RecordTime: timeOf(recordTime)}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// EndOf is how the contract last ended at or before the offset; see index.History.
func (s *Store) EndOf(ctx context.Context, contractID string, atOrBefore int64) (e index.Ended, ok bool, err error) {
	err = s.read(ctx, "looking up a contract's end", func(ctx context.Context, conn *pgxpool.Conn) error {
		rows, err := conn.Query(ctx, `SELECT `+selectEnded+` AND e.contract_id = $1 AND e.ledger_offset <= $2::bigint ORDER BY e.ledger_offset DESC LIMIT 1`, contractID, atOrBefore)
		if err != nil {
			return err
		}
		ok = false
		var unreadable error
		err = eachEnded(rows, func(found index.Ended, fault error) { e, ok, unreadable = found, true, fault })
		return errors.Join(err, unreadable)
	})
	return e, ok && err == nil, err
}

// UpdateByID is the applied update with that id; see index.History.
func (s *Store) UpdateByID(ctx context.Context, updateID string) (u index.UpdateRef, ok bool, err error) {
	u = index.UpdateRef{UpdateID: updateID}
	ok, err = s.one(ctx, "looking up an update", func(ctx context.Context, conn *pgxpool.Conn) error {
		var recordTime *time.Time
		err := conn.QueryRow(ctx, `SELECT h.ledger_offset, h.record_time FROM disclosured.applied_update h
			WHERE h.history = `+presentHistory+` AND h.update_id = $1
			ORDER BY h.ledger_offset DESC LIMIT 1`, updateID).Scan(&u.Offset, &recordTime)
		u.RecordTime = timeOf(recordTime)
		return err
	})
	if !ok {
		return index.UpdateRef{}, false, err
	}
	return u, true, nil
}

// HistorySince is the offset after which history is complete; 0 where the index was never seeded.
func (s *Store) HistorySince(ctx context.Context) (since int64, err error) {
	_, err = s.one(ctx, "reading where history begins", func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `SELECT history_since FROM disclosured.cursor`).Scan(&since)
	})
	return since, err
}

// NodeLives are the latest ended nodes at or below the prefix, newest first; see index.History.
func (s *Store) NodeLives(ctx context.Context, scope index.Scope, prefix wormhole.Prefix, atOrBefore int64, limit int) (lives []index.NodeLife, err error) {
	err = s.read(ctx, "looking up ended nodes", func(ctx context.Context, conn *pgxpool.Conn) error {
		// "g" is the first text after all hex digits: the prefixes at or below p are those in [p, p || "g").
		rows, err := conn.Query(ctx, `SELECT e.contract_id, e.prefix, e.since, e.record_time FROM disclosured.ended e
			WHERE e.history = `+presentHistory+` AND e.scope_id = `+scopeByKey+` AND e.prefix >= $2 AND e.prefix < $3 AND e.ledger_offset <= $4::bigint AND e.how <> 5
			ORDER BY e.ledger_offset DESC, e.contract_id LIMIT $5::bigint`, scopeKey(scope), prefix.String(), prefix.String()+"g", atOrBefore, max(0, limit))
		if err != nil {
			return err
		}
		lives, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (index.NodeLife, error) {
			var life index.NodeLife
			var text string
			var since, ended *time.Time
			if err := row.Scan(&life.ContractID, &text, &since, &ended); err != nil {
				return life, err
			}
			life.Created, life.Ended = timeOf(since), timeOf(ended)
			var err error
			life.Prefix, err = wormhole.ParsePrefix(text)
			return life, err
		})
		return err
	})
	return lives, err
}

// one reads at most one row; ok is false where there is none.
func (s *Store) one(ctx context.Context, what string, f func(ctx context.Context, conn *pgxpool.Conn) error) (ok bool, err error) {
	err = s.read(ctx, what, func(ctx context.Context, conn *pgxpool.Conn) error {
		err := f(ctx, conn)
		ok = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return ok && err == nil, err
}

// selectEnded selects what eachEnded reads: ends of the present history. A query goes on with AND.
const selectEnded = `e.contract_id, e.how, e.after_offset, e.ledger_offset, e.update_id, e.record_time, e.since, e.successors::text, e.prefix,
		s.package_name, s.operator, s.consumer, s.namespace
	FROM disclosured.ended e LEFT JOIN disclosured.scope s ON s.id = e.scope_id WHERE e.history = ` + presentHistory

// eachEnded reads all rows of a query over selectEnded. An end whose successors or prefix can't be read comes without these, and with why.
func eachEnded(rows pgx.Rows, each func(end index.Ended, unreadable error)) error {
	defer rows.Close()
	for rows.Next() {
		var e index.Ended
		var how int16
		var recordTime, since *time.Time
		var successors string
		var prefix, packageName, operator, consumer, namespace *string
		if err := rows.Scan(&e.ContractID, &how, &e.AfterOffset, &e.Offset, &e.UpdateID, &recordTime, &since, &successors, &prefix,
			&packageName, &operator, &consumer, &namespace); err != nil {
			return err
		}
		e.How, e.RecordTime, e.Since = index.How(how), timeOf(recordTime), timeOf(since)
		var unreadable error
		if err := json.Unmarshal([]byte(successors), &e.Successors); err != nil {
			e.Successors, unreadable = nil, fmt.Errorf("stored end of %s: successors: %w", e.ContractID, err)
		}
		if len(e.Successors) == 0 {
			e.Successors = nil
		}
		if packageName != nil && prefix != nil {
			scope := index.Scope{PackageName: *packageName, Operator: *operator, Consumer: *consumer}
			if namespace != nil {
				scope.Namespace = wormhole.Namespace{Present: true, Value: *namespace}
			}
			at, err := wormhole.ParsePrefix(*prefix)
			if err == nil {
				e.Scope, e.Prefix = &scope, at
			} else {
				unreadable = fmt.Errorf("stored end of %s: %w", e.ContractID, err)
			}
		}
		each(e, unreadable)
	}
	return rows.Err()
}
