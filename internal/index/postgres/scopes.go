package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// scopeCache is what this process knows of the scope dictionary. It never knows a row that is not committed. Rows are never deleted and
// never change but for their depth, which only grows, so a cache can lack rows and never be wrong. Where somebody else has changed them all the
// same, a load replaces the cache, and the next write of a scope mends its row.
type scopeCache struct {
	mu   sync.RWMutex
	rows scopeIDs
}

// scopeRow is a scope's number, and the greatest length of a prefix that its row is known to say.
type scopeRow struct {
	id    int64
	depth int
}

// learn adds committed rows.
func (c *scopeCache) learn(rows scopeIDs) {
	if len(rows) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = scopeIDs{}
	}
	for scope, row := range rows {
		row.depth = max(row.depth, c.rows[scope].depth)
		c.rows[scope] = row
	}
}

// replace has these rows, committed, in the place of all others.
func (c *scopeCache) replace(rows scopeIDs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows = rows
}

// scopeIDs are numbers of scopes.
type scopeIDs map[index.Scope]scopeRow

// scopeWant collects the scopes that a transaction writes rows of, each with the greatest length of a prefix.
type scopeWant map[index.Scope]int

func (w scopeWant) add(scope index.Scope, depth int) {
	if had, ok := w[scope]; !ok || depth > had {
		w[scope] = depth
	}
}

func (w scopeWant) addEntries(entries []*index.Entry) {
	for _, e := range entries {
		if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
			w.add(index.ScopeOf(e.PackageName, node), node.Prefix.Len())
		}
	}
}

// resolve gives each wanted scope its number, in the transaction: known ones from the cache, new or deeper ones from the table.
// learned are the rows to add to the cache once the transaction is committed.
func (c *scopeCache) resolve(ctx context.Context, tx pgx.Tx, want scopeWant) (ids, learned scopeIDs, err error) {
	ids = make(scopeIDs, len(want))
	var keys [][]byte
	var packages, operators, consumers []string
	var namespaces []*string
	var depths []int32
	asked := map[string]index.Scope{}
	c.mu.RLock()
	for scope, depth := range want {
		if row, ok := c.rows[scope]; ok && row.depth >= depth {
			ids[scope] = row
			continue
		}
		key := scopeKey(scope)
		asked[string(key)] = scope
		keys = append(keys, key)
		packages, operators, consumers = append(packages, scope.PackageName), append(operators, scope.Operator), append(consumers, scope.Consumer)
		namespaces = append(namespaces, namespaceColumn(scope.Namespace))
		depths = append(depths, int32(depth))
	}
	c.mu.RUnlock()
	if len(asked) == 0 {
		return ids, nil, nil
	}
	rows, err := tx.Query(ctx, `INSERT INTO disclosured.scope (key, package_name, operator, consumer, namespace, depth)
		SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[])
		ON CONFLICT (key) DO UPDATE SET depth = GREATEST(scope.depth, EXCLUDED.depth), package_name = EXCLUDED.package_name, operator = EXCLUDED.operator,
			consumer = EXCLUDED.consumer, namespace = EXCLUDED.namespace RETURNING id, key, depth`,
		keys, packages, operators, consumers, namespaces, depths)
	if err != nil {
		return nil, nil, fmt.Errorf("writing scopes: %w", err)
	}
	learned = scopeIDs{}
	var row scopeRow
	var key []byte
	_, err = pgx.ForEachRow(rows, []any{&row.id, &key, &row.depth}, func() error {
		learned[asked[string(key)]] = row
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing scopes: %w", err)
	}
	maps.Copy(ids, learned)
	return ids, learned, nil
}

// scopeKey is the dictionary's key: SHA-256 over the four parts, each with its length.
func scopeKey(s index.Scope) []byte {
	h := sha256.New()
	part := func(text string) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		h.Write(length[:])
		h.Write([]byte(text))
	}
	part(s.PackageName)
	part(s.Operator)
	part(s.Consumer)
	if s.Namespace.Present {
		part(s.Namespace.Value)
	}
	return h.Sum(nil)
}

func namespaceColumn(n wormhole.Namespace) *string {
	if !n.Present {
		return nil
	}
	return &n.Value
}

// loadScopes reads the whole dictionary, as the connection's transaction sees it, into the cache. A row that its key does not belong to is
// unreadable: which scope it was is not known.
func (s *Store) loadScopes(ctx context.Context, tx pgx.Tx, unreadable func(error)) (map[int64]index.Scope, error) {
	rows, err := tx.Query(ctx, `SELECT id, key, package_name, operator, consumer, namespace, depth FROM disclosured.scope`)
	if err != nil {
		return nil, fmt.Errorf("reading scopes: %w", err)
	}
	byID, learned := map[int64]index.Scope{}, scopeIDs{}
	var scope index.Scope
	var namespace *string
	var row scopeRow
	var key []byte
	_, err = pgx.ForEachRow(rows, []any{&row.id, &key, &scope.PackageName, &scope.Operator, &scope.Consumer, &namespace, &row.depth}, func() error {
		scope.Namespace = wormhole.Namespace{}
		if namespace != nil {
			scope.Namespace = wormhole.Namespace{Present: true, Value: *namespace}
		}
		if !bytes.Equal(key, scopeKey(scope)) {
			unreadable(fmt.Errorf("scope %d is not the one that its key is of", row.id))
			return nil
		}
		byID[row.id], learned[scope] = scope, row
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading scopes: %w", err)
	}
	s.scopes.replace(learned)
	return byID, nil
}

func (w scopeWant) addEnded(ended []index.Ended) {
	for _, e := range ended {
		if e.Scope != nil {
			w.add(*e.Scope, 0)
		}
	}
}

func (w scopeWant) addDigests(digests []index.ScopedDigest) {
	for _, d := range digests {
		w.add(d.Scope, 0)
	}
}
