package index

import "iter"

// slot is all that the index holds of one contract id: one entry per synchronizer. first is the one that counts; the others, which
// are there only between the events of a reassignment, follow in no order. The zero slot is empty. Slots are values and
// their entries immutable.
type slot struct {
	first *Entry
	more  []*Entry
}

// all yields the entries, the one that counts first.
func (s slot) all() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		if s.first == nil || !yield(s.first) {
			return
		}
		for _, e := range s.more {
			if !yield(e) {
				return
			}
		}
	}
}

// on is the entry of the synchronizer, nil where there is none.
func (s slot) on(synchronizer string) *Entry {
	for e := range s.all() {
		if e.SynchronizerID == synchronizer {
			return e
		}
	}
	return nil
}

// with is the slot with the entry in the place of what was on its synchronizer.
func (s slot) with(e *Entry) slot {
	s = s.filter(func(other *Entry) bool { return other.SynchronizerID != e.SynchronizerID })
	if s.first == nil {
		return slot{first: e}
	}
	more := append([]*Entry{}, s.more...)
	if counts(e, s.first) {
		return slot{first: e, more: append(more, s.first)}
	}
	return slot{first: s.first, more: append(more, e)}
}

// filter is the slot with the entries that keep accepts.
func (s slot) filter(keep func(*Entry) bool) slot {
	var kept slot
	for e := range s.all() {
		switch {
		case !keep(e):
		case kept.first == nil:
			kept.first = e
		case counts(e, kept.first):
			kept.more = append(kept.more, kept.first)
			kept.first = e
		default:
			kept.more = append(kept.more, e)
		}
	}
	return kept
}

// counts reports whether a counts before b, another entry of the same contract: by the greater reassignment counter, then
// active before in flight, then the smaller synchronizer id.
func counts(a, b *Entry) bool {
	if a.ReassignmentCounter != b.ReassignmentCounter {
		return a.ReassignmentCounter > b.ReassignmentCounter
	}
	if a.InFlight != b.InFlight {
		return b.InFlight
	}
	return a.SynchronizerID < b.SynchronizerID
}

// The rules of reassignment. The events of one contract come in order from each synchronizer, but those of two synchronizers
// in any order: an assignment may come before its unassignment.

// activated is the slot after the contract was created or assigned. What was in flight with at most its counter has
// arrived. An activation older than what its synchronizer already showed is stale: nothing changes.
func (s slot) activated(e *Entry) (after slot, arrived, stale bool) {
	if old := s.on(e.SynchronizerID); old != nil && old.ReassignmentCounter > e.ReassignmentCounter {
		return s, false, true
	}
	after = s.filter(func(other *Entry) bool {
		lands := other.InFlight && other.ReassignmentCounter <= e.ReassignmentCounter
		arrived = arrived || lands
		return !lands
	})
	return after.with(e), arrived, false
}

// unassigned is the slot after the contract left source for target with the counter. Where another entry already has that counter
// or a greater one, the assignment came first; else the entry stays, in flight. Where source and target are equal it is a
// purge: the contract is gone from there and nothing follows. known is false if it was not on source.
func (s slot) unassigned(source, target string, counter uint64) (after slot, known bool) {
	left := s.on(source)
	if left == nil {
		return s, false
	}
	after = s.filter(func(other *Entry) bool { return other != left })
	if source == target {
		return after, true
	}
	for other := range after.all() {
		if other.ReassignmentCounter >= counter {
			return after, true
		}
	}
	flying := *left
	flying.InFlight, flying.Target, flying.ReassignmentCounter = true, target, counter
	return after.with(&flying), true
}
