package index

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// memoryHistory is the history of an index without a store: bounded by age, unless that is 0, and by number, gone with the process. It is safe for
// concurrent use.
//
// It is a queue of blocks, one per update (and one per seed that found contracts gone), and maps into it. Old blocks leave whole, so
// that what is known after HistorySince is complete.
type memoryHistory struct {
	age   time.Duration
	limit int
	clock func() time.Time

	mu       sync.RWMutex
	since    int64
	blocks   []*block // oldest first
	scopes   map[Scope]*scopeHistory
	consumes map[consumeKey]*block
	ends     map[string]*endRecord
	updates  map[string]*block
}

// block is what one update added.
type block struct {
	ref      UpdateRef
	at       time.Time // what its age is counted from
	consumes []consumeKey
	ends     []*endRecord
}

type consumeKey struct {
	scope  *scopeHistory
	digest wormhole.Digest
}

// scopeHistory is a scope's ended nodes, oldest first.
type scopeHistory struct {
	scope Scope
	ended []*endRecord
	uses  int // blocks' references to it: it goes with the last
}

// endRecord is one end of a contract. A contract that was purged and imported again can have several.
type endRecord struct {
	Ended
	scope   *scopeHistory
	earlier *endRecord
}

func newMemoryHistory(age time.Duration, limit int, clock func() time.Time) *memoryHistory {
	h := &memoryHistory{age: age, limit: limit, clock: clock}
	h.clear()
	return h
}

func (h *memoryHistory) clear() {
	h.blocks = nil
	h.scopes = map[Scope]*scopeHistory{}
	h.consumes = map[consumeKey]*block{}
	h.ends = map[string]*endRecord{}
	h.updates = map[string]*block{}
}

// append adds a delta's history.
func (h *memoryHistory) append(d Delta) {
	h.mu.Lock()
	defer h.mu.Unlock()
	consumes, ends := d.Consumes, d.Ended
	for _, ref := range d.Updates {
		b := &block{ref: ref, at: ref.RecordTime}
		for len(consumes) > 0 && consumes[0].Offset == ref.Offset {
			h.consume(b, consumes[0])
			consumes = consumes[1:]
		}
		for len(ends) > 0 && ends[0].Offset == ref.Offset {
			h.end(b, ends[0])
			ends = ends[1:]
		}
		if ref.UpdateID != "" {
			h.updates[ref.UpdateID] = b
		}
		h.blocks = append(h.blocks, b)
	}
	h.prune()
}

// seed begins another generation: what happened up to its offset is not known in full, and where the history does not go on, not at all.
func (h *memoryHistory) seed(start ledger.SeedStart, gone []Ended) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !start.Reason.SameHistory() {
		h.clear()
	}
	h.since = start.Offset
	if len(gone) > 0 {
		b := &block{ref: UpdateRef{Offset: start.Offset}, at: h.clock()}
		for _, end := range gone {
			h.end(b, end)
		}
		h.blocks = append(h.blocks, b)
	}
	h.prune()
}

func (h *memoryHistory) consume(b *block, c Consume) {
	key := consumeKey{h.use(c.Scope), c.Digest}
	b.consumes = append(b.consumes, key)
	if _, ok := h.consumes[key]; !ok {
		h.consumes[key] = b
	}
}

func (h *memoryHistory) end(b *block, end Ended) {
	r := &endRecord{Ended: end, earlier: h.ends[end.ContractID]}
	if end.Scope != nil {
		r.scope = h.use(*end.Scope)
		r.scope.ended = append(r.scope.ended, r)
	}
	h.ends[end.ContractID] = r
	b.ends = append(b.ends, r)
}

func (h *memoryHistory) use(scope Scope) *scopeHistory {
	s := h.scopes[scope]
	if s == nil {
		s = &scopeHistory{scope: scope}
		h.scopes[scope] = s
	}
	s.uses++
	return s
}

func (h *memoryHistory) release(s *scopeHistory) {
	if s.uses--; s.uses == 0 {
		delete(h.scopes, s.scope)
	}
}

// prune drops the oldest blocks until the rest is within the bounds.
func (h *memoryHistory) prune() {
	oldest := h.clock().Add(-h.age)
	for len(h.blocks) > 0 {
		b := h.blocks[0]
		within := len(h.consumes) <= h.limit && len(h.ends) <= h.limit && len(h.blocks) <= h.limit
		if within && (h.age == 0 || !b.at.Before(oldest)) {
			return
		}
		h.drop(b)
		h.blocks[0] = nil
		h.blocks = h.blocks[1:]
	}
}

func (h *memoryHistory) drop(b *block) {
	h.since = max(h.since, b.ref.Offset)
	if h.updates[b.ref.UpdateID] == b {
		delete(h.updates, b.ref.UpdateID)
	}
	for _, key := range b.consumes {
		if h.consumes[key] == b {
			delete(h.consumes, key)
		}
		h.release(key.scope)
	}
	for _, r := range b.ends {
		h.dropEnd(r)
	}
}

// dropEnd forgets an end. It is the contract's earliest: blocks go in order.
func (h *memoryHistory) dropEnd(r *endRecord) {
	if latest := h.ends[r.ContractID]; latest == r {
		delete(h.ends, r.ContractID)
	} else {
		for latest.earlier != r {
			latest = latest.earlier
		}
		latest.earlier = nil
	}
	if r.scope != nil {
		r.scope.ended[0] = nil
		r.scope.ended = r.scope.ended[1:]
		h.release(r.scope)
	}
}

// Consumed implements History.
func (h *memoryHistory) Consumed(_ context.Context, scope Scope, digest wormhole.Digest, atOrBefore int64) (Consume, bool, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	s := h.scopes[scope]
	if s == nil {
		return Consume{}, false, nil
	}
	b := h.consumes[consumeKey{s, digest}]
	if b == nil || b.ref.Offset > atOrBefore {
		return Consume{}, false, nil
	}
	return Consume{scope, digest, b.ref.Offset, b.ref.UpdateID, b.ref.RecordTime}, true, nil
}

// ConsumedAmong implements History.
func (h *memoryHistory) ConsumedAmong(ctx context.Context, digests []ScopedDigest, atOrBefore int64) (map[ScopedDigest]Consume, error) {
	found := map[ScopedDigest]Consume{}
	for _, sd := range digests {
		if c, ok, _ := h.Consumed(ctx, sd.Scope, sd.Digest, atOrBefore); ok { // memory does not fail
			found[sd] = c
		}
	}
	return found, nil
}

// EndOf implements History.
func (h *memoryHistory) EndOf(_ context.Context, contractID string, atOrBefore int64) (Ended, bool, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for r := h.ends[contractID]; r != nil; r = r.earlier {
		if r.Offset <= atOrBefore {
			return r.Ended, true, nil
		}
	}
	return Ended{}, false, nil
}

// UpdateByID implements History.
func (h *memoryHistory) UpdateByID(_ context.Context, updateID string) (UpdateRef, bool, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	b := h.updates[updateID]
	if b == nil {
		return UpdateRef{}, false, nil
	}
	return b.ref, true, nil
}

// HistorySince implements History.
func (h *memoryHistory) HistorySince(context.Context) (int64, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.since, nil
}

// livesScanned is how many of a scope's latest ends NodeLives looks at.
const livesScanned = 50_000

// NodeLives implements History.
func (h *memoryHistory) NodeLives(_ context.Context, scope Scope, prefix wormhole.Prefix, atOrBefore int64, limit int) ([]NodeLife, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	s := h.scopes[scope]
	if s == nil || limit <= 0 {
		return nil, nil
	}
	var latest []*endRecord
	for i, r := range slices.Backward(s.ended) {
		// A prefix with few lives in a busy scope: what lies further back says nothing about how its nodes live lately, and writers wait
		// for this lock.
		if len(s.ended)-i > livesScanned {
			break
		}
		if len(latest) >= limit && latest[len(latest)-1].Offset != r.Offset {
			break
		}
		if r.How != Gone && r.Offset <= atOrBefore && prefix.CoversPrefix(r.Prefix) {
			latest = append(latest, r)
		}
	}
	slices.SortFunc(latest, func(a, b *endRecord) int {
		if a.Offset != b.Offset {
			return int(min(1, max(-1, b.Offset-a.Offset)))
		}
		return strings.Compare(a.ContractID, b.ContractID)
	})
	lives := make([]NodeLife, 0, min(limit, len(latest)))
	for _, r := range latest[:min(limit, len(latest))] {
		lives = append(lives, NodeLife{r.ContractID, r.Prefix, r.Since, r.RecordTime})
	}
	return lives, nil
}

// endedAmong are the known ends of the contract ids.
func (h *memoryHistory) endedAmong(ids []string) map[string]Ended {
	h.mu.RLock()
	defer h.mu.RUnlock()
	ended := map[string]Ended{}
	for _, id := range ids {
		if r := h.ends[id]; r != nil {
			ended[id] = r.Ended
		}
	}
	return ended
}
