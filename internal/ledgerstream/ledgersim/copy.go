package ledgersim

import (
	"maps"
	"time"
)

// copyOf is the ledger as it was at an offset, with all offsets moved: a participant restored from a backup (no move), or another one
// that saw the same updates. What was in flight is not in it.
func (l *state) copyOf(upTo, move int64, seed uint64) *state {
	out := newLedger(l.participant, l.synchronizers, seed, upTo+move)
	out.packages = l.packages.clone()
	out.users = maps.Clone(l.users)
	out.recorded = maps.Clone(l.recorded)
	out.parties = maps.Clone(l.parties)
	if l.pruned > 0 {
		out.pruned = min(l.pruned, upTo) + move
	}
	for _, u := range l.updatesAfter(upTo, l.end) {
		for _, e := range u.topology {
			if e.kind == TopologyAdded {
				out.parties[e.party]--
			}
		}
	}
	maps.DeleteFunc(out.parties, func(_ string, known int) bool { return known <= 0 })

	c := copier{upTo: upTo, move: move, updates: map[*update]*update{}, activations: map[*activation]*activation{}, reassignments: map[*reassignment]*reassignment{}}
	for _, u := range l.updatesAfter(0, upTo) {
		out.updates = append(out.updates, c.update(u))
	}
	for _, a := range l.activations {
		if a.from > upTo {
			break
		}
		out.take(c.activation(a))
	}
	for id, f := range l.contracts {
		if f.created.from > upTo {
			continue
		}
		copied := &fate{contract: f.contract, created: c.activation(f.created)}
		if f.archivedAt != nil && f.archivedAt.offset <= upTo {
			copied.archivedAt, copied.archivedBy = c.update(f.archivedAt), f.archivedBy
		}
		out.contracts[id] = copied
	}
	for id, r := range l.reassignments {
		if r.unassigned <= upTo {
			out.reassignments[id] = c.reassignment(r)
		}
	}
	for key, list := range l.consumed {
		for _, one := range list {
			if one.Offset <= upTo {
				one.Offset += move
				out.consumed[key] = append(out.consumed[key], one)
			}
		}
	}
	for change, before := range l.accepted {
		if before.offset <= upTo {
			before.offset += move
			out.accepted[change] = before
		}
	}
	return out
}

// take adds an activation that is complete in itself.
func (l *state) take(a *activation) {
	l.activations = append(l.activations, a)
	l.byContract[a.contract.id] = append(l.byContract[a.contract.id], a)
	if a.until == 0 {
		l.active[a.contract.id] = append(l.active[a.contract.id], a)
	}
	if scope, ok := a.contract.scope(); ok {
		l.byScope[scope] = append(l.byScope[scope], a)
	}
}

// copier copies what refers to each other, each thing once.
type copier struct {
	upTo, move    int64
	updates       map[*update]*update
	activations   map[*activation]*activation
	reassignments map[*reassignment]*reassignment
}

func (c *copier) at(offset int64) int64 {
	if offset == 0 || offset > c.upTo {
		return 0
	}
	return offset + c.move
}

func (c *copier) update(u *update) *update {
	if known, ok := c.updates[u]; ok {
		return known
	}
	out := *u
	out.offset += c.move
	c.updates[u] = &out
	out.moves = make([]move, len(u.moves))
	for i, m := range u.moves {
		out.moves[i] = move{reassignment: m.reassignment}
		if m.assigned != nil {
			out.moves[i].assigned = c.activation(m.assigned)
		}
	}
	return &out
}

func (c *copier) activation(a *activation) *activation {
	if known, ok := c.activations[a]; ok {
		return known
	}
	out := *a
	c.activations[a] = &out
	out.from += c.move
	out.until = c.at(a.until)
	out.update = c.update(a.update)
	out.next = nil
	if a.next != nil && out.until != 0 {
		out.next = c.reassignment(a.next)
	}
	return &out
}

func (c *copier) reassignment(r *reassignment) *reassignment {
	if known, ok := c.reassignments[r]; ok {
		return known
	}
	out := *r
	c.reassignments[r] = &out
	out.activation = c.activation(r.activation)
	out.unassigned = c.at(r.unassigned)
	out.assigned = c.at(r.assigned)
	return &out
}

// replace puts another ledger in the present one's place: what is in flight on it ends, and so do all streams.
func (s *Sim) replace(make func(l *state) *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.breakOff()
	s.ledger = make(s.ledger)
	s.cached = cachedCheckpoint{checkpoint: s.ledger.checkpoint(), at: s.options.Clock.Now()}
	s.notify()
}

// RestoreTo makes the participant one that was restored from a backup taken at the offset: whatever came later is gone, its offsets will
// be given again, to other updates. Streams end with UNAVAILABLE.
func (s *Sim) RestoreTo(offset int64) {
	s.replace(func(l *state) *state {
		offset = min(max(offset, l.pruned), l.end)
		return l.copyOf(offset, 0, l.nextSeed())
	})
}

// BecomeAnotherParticipant makes another participant answer at the same address: a fresh one whose ledger is empty and has only the
// packages that the simulation started with.
func (s *Sim) BecomeAnotherParticipant() {
	s.replace(func(l *state) *state { return s.freshLedger(l.nextSeed()) })
}

// BecomeSibling makes another participant answer that hosts the same parties: it has the same updates and contracts by their ids, under
// offsets that are higher by move, which must not be negative.
func (s *Sim) BecomeSibling(move int64) {
	s.replace(func(l *state) *state {
		seed := l.nextSeed()
		out := l.copyOf(l.end, move, seed)
		out.participant = s.freshLedger(seed).participant
		return out
	})
}

// nextSeed is a seed for the ledger that follows: the same history may not repeat.
func (l *state) nextSeed() uint64 {
	var b [8]byte
	l.random.fill(b[:])
	var seed uint64
	for i, x := range b {
		seed |= uint64(x) << (8 * i)
	}
	return seed
}

// Topology puts a topology event about a party into the ledger: its hosting here changed. TopologyRevoked makes the party unknown.
func (s *Sim) Topology(kind TopologyKind, party string) (offset int64) {
	s.change(func(l *state, now time.Time) {
		switch kind {
		case TopologyAdded:
			l.parties[party]++
		case TopologyRevoked:
			delete(l.parties, party)
		}
		offset = l.addTopology(topologyEvent{kind, party}, l.synchronizers[0].id, now).offset
	})
	return offset
}
