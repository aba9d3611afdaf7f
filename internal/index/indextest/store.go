package indextest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Store keeps an index's rows and history in plain maps and slices, by the letter of index.Store: what Postgres does, without
// durability. Tests use it to see an Index work against a store that fails on demand, and to reopen an Index. It is safe for
// concurrent use.
type Store struct {
	mu     sync.Mutex
	seeded bool
	gen    generationRows
	old    historyRows
	number int64
	faults []Fault
}

// generationRows are the rows of one generation.
type generationRows struct {
	pos     ledger.Position
	entries map[index.Key]*index.Entry
	missing map[index.ScopedDigest]bool
	scopes  map[index.Scope]bool
	ghosts  []*index.Entry
}

// historyRows are the rows of history, in ledger order.
type historyRows struct {
	consumes []index.Consume
	ended    []index.Ended
	updates  []index.UpdateRef
	since    int64
}

// Fault is what goes wrong with a commit.
type Fault uint8

const (
	// NotWritten: the commit fails and has changed nothing.
	NotWritten Fault = iota + 1
	// WrittenUnheard: the commit takes effect and its answer is lost.
	WrittenUnheard
	// LeaseLost: another process writes now.
	LeaseLost
)

// ErrFault is what a commit with the fault NotWritten or WrittenUnheard returns.
var ErrFault = errors.New("the connection to the store broke")

// NewStore is an empty store.
func NewStore() *Store { return &Store{} }

// Fail makes the next commits, of deltas or generations, fail in this order.
func (s *Store) Fail(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// commit runs a write under the next fault.
func (s *Store) commit(write func() error) error {
	var fault Fault
	if len(s.faults) > 0 {
		fault, s.faults = s.faults[0], s.faults[1:]
	}
	switch fault {
	case NotWritten:
		return ErrFault
	case LeaseLost:
		return fmt.Errorf("committing: %w", ledger.ErrLostLease)
	}
	if err := write(); err != nil {
		return err
	}
	if fault == WrittenUnheard {
		return ErrFault
	}
	return nil
}

// Position implements index.Store.
func (s *Store) Position(context.Context) (ledger.Position, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen.pos, s.seeded, nil
}

// Load implements index.Store.
func (s *Store) Load(_ context.Context, each func(*index.Entry) error) (index.Loaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(s.gen.entries), func(a, b index.Key) int {
		return cmp.Or(strings.Compare(a.ContractID, b.ContractID), strings.Compare(a.SynchronizerID, b.SynchronizerID))
	}) {
		row := *s.gen.entries[key]
		if err := each(&row); err != nil {
			return index.Loaded{}, err
		}
	}
	return index.Loaded{
		Position:     s.gen.pos,
		Generation:   s.number,
		Missing:      slices.Collect(maps.Keys(s.gen.missing)),
		KnownScopes:  slices.Collect(maps.Keys(s.gen.scopes)),
		Ghosts:       s.gen.ghosts,
		HistorySince: s.old.since,
	}, nil
}

// Commit implements index.Store.
func (s *Store) Commit(_ context.Context, d index.Delta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit(func() error {
		if !s.seeded || s.gen.pos.ParticipantID != d.From.ParticipantID || s.gen.pos.Offset != d.From.Offset {
			return fmt.Errorf("committing a delta from offset %d at offset %d: %w", d.From.Offset, s.gen.pos.Offset, ledger.ErrNotNext)
		}
		for _, key := range d.Remove {
			if s.gen.entries[key] == nil {
				return fmt.Errorf("committing a delta that removes %v, which is not there", key)
			}
			delete(s.gen.entries, key)
		}
		for _, e := range d.Put {
			s.gen.entries[e.Key()] = e
		}
		for _, sd := range d.MissingAdd {
			s.gen.missing[sd] = true
		}
		for _, sd := range d.MissingRemove {
			delete(s.gen.missing, sd)
		}
		for _, scope := range d.Scopes {
			s.gen.scopes[scope] = true
		}
		s.old.consumes = append(s.old.consumes, d.Consumes...)
		s.old.ended = append(s.old.ended, d.Ended...)
		s.old.updates = append(s.old.updates, d.Updates...)
		s.gen.pos = d.To
		return nil
	})
}

// BeginSeed implements index.Store.
func (s *Store) BeginSeed(_ context.Context, start ledger.SeedStart) (index.StoreSeed, error) {
	return &storeSeed{store: s, start: start, entries: map[index.Key]*index.Entry{}}, nil
}

// storeSeed is a generation being written.
type storeSeed struct {
	store   *Store
	start   ledger.SeedStart
	entries map[index.Key]*index.Entry
}

// Add implements index.StoreSeed.
func (g *storeSeed) Add(_ context.Context, entries []*index.Entry) error {
	for _, e := range entries {
		g.entries[e.Key()] = e
	}
	return nil
}

// Ended implements index.StoreSeed.
func (g *storeSeed) Ended(_ context.Context, ids []string) (map[string]index.Ended, error) {
	g.store.mu.Lock()
	defer g.store.mu.Unlock()
	ended := map[string]index.Ended{}
	for _, end := range g.store.old.ended {
		if slices.Contains(ids, end.ContractID) {
			ended[end.ContractID] = end
		}
	}
	return ended, nil
}

// Commit implements index.StoreSeed.
func (g *storeSeed) Commit(_ context.Context, end index.SeedEnd) error {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit(func() error {
		if !g.start.Reason.SameHistory() {
			s.old = historyRows{}
		}
		s.old.since = g.start.Offset
		s.old.ended = append(s.old.ended, end.Ended...)
		s.gen = generationRows{pos: end.Position, entries: g.entries, ghosts: end.Ghosts, missing: map[index.ScopedDigest]bool{}, scopes: map[index.Scope]bool{}}
		for _, sd := range end.Missing {
			s.gen.missing[sd] = true
		}
		for _, scope := range end.KnownScopes {
			s.gen.scopes[scope] = true
		}
		s.seeded = true
		s.number++
		return nil
	})
}

// Abort implements index.StoreSeed.
func (g *storeSeed) Abort(context.Context) error { return nil }

// Covering are the contract ids of all authentic nodes that cover the digest, by a scan of the rows.
func (s *Store) Covering(_ context.Context, scope index.Scope, d wormhole.Digest) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []*index.Entry
	for _, e := range s.gen.entries {
		rows = append(rows, e)
	}
	var ids []string
	for _, e := range nodes(rows, scope) {
		if nodeIn(e, scope).Prefix.Covers(d) {
			ids = append(ids, e.ContractID)
		}
	}
	return ids, nil
}

// Consumed implements index.History.
func (s *Store) Consumed(_ context.Context, scope index.Scope, d wormhole.Digest, atOrBefore int64) (index.Consume, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.old.consumes {
		if c.Scope == scope && c.Digest == d && c.Offset <= atOrBefore {
			return c, true, nil
		}
	}
	return index.Consume{}, false, nil
}

// ConsumedAmong implements index.History.
func (s *Store) ConsumedAmong(ctx context.Context, digests []index.ScopedDigest, atOrBefore int64) (map[index.ScopedDigest]index.Consume, error) {
	found := map[index.ScopedDigest]index.Consume{}
	for _, sd := range digests {
		if c, ok, err := s.Consumed(ctx, sd.Scope, sd.Digest, atOrBefore); err != nil {
			return nil, err
		} else if ok {
			found[sd] = c
		}
	}
	return found, nil
}

// EndOf implements index.History.
func (s *Store) EndOf(_ context.Context, id string, atOrBefore int64) (index.Ended, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range slices.Backward(s.old.ended) {
		if end.ContractID == id && end.Offset <= atOrBefore {
			return end, true, nil
		}
	}
	return index.Ended{}, false, nil
}

// UpdateByID implements index.History.
func (s *Store) UpdateByID(_ context.Context, updateID string) (index.UpdateRef, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.old.updates {
		if u.UpdateID == updateID {
			return u, true, nil
		}
	}
	return index.UpdateRef{}, false, nil
}

// HistorySince implements index.History.
func (s *Store) HistorySince(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.old.since, nil
}

// NodeLives implements index.History.
func (s *Store) NodeLives(_ context.Context, scope index.Scope, prefix wormhole.Prefix, atOrBefore int64, limit int) ([]index.NodeLife, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (&Naive{ended: s.old.ended}).NodeLives(scope, prefix, atOrBefore, limit), nil
}
