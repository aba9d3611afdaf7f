package index

import (
	"hash/maphash"
	"strings"
)

// contractTree is the persistent map from contract id to slot: a treap, ordered by contract id, a heap by priorities that are a hash
// of the contract id under a secret of the process, so that nobody can choose ids that make it deep. Nil is the empty map.
//
// It is here, and not a radix tree, for its size: one allocation of 64 bytes a contract, the key being the entry's own.
type contractTree struct {
	slot        slot
	left, right *contractTree
	priority    uint64
}

var prioritySeed = maphash.MakeSeed()

func (t *contractTree) id() string { return t.slot.first.ContractID }

// get is the contract's slot; the zero slot where it is not there.
func (t *contractTree) get(contractID string) slot {
	for t != nil {
		switch order := strings.Compare(contractID, t.id()); {
		case order < 0:
			t = t.left
		case order > 0:
			t = t.right
		default:
			return t.slot
		}
	}
	return slot{}
}

// with is the map with the slot, which is not empty, in the place of its contract's.
func (t *contractTree) with(s slot) *contractTree {
	return t.insert(s, maphash.String(prioritySeed, s.first.ContractID))
}

func (t *contractTree) insert(s slot, priority uint64) *contractTree {
	if t == nil {
		return &contractTree{slot: s, priority: priority}
	}
	next := *t
	switch order := strings.Compare(s.first.ContractID, t.id()); {
	case order == 0:
		next.slot = s
	case order < 0:
		left := t.left.insert(s, priority)
		if left.priority > next.priority {
			// left was made just now: nobody else holds it.
			next.left, left.right = left.right, &next
			return left
		}
		next.left = left
	default:
		right := t.right.insert(s, priority)
		if right.priority > next.priority {
			next.right, right.left = right.left, &next
			return right
		}
		next.right = right
	}
	return &next
}

// without is the map without the contract; the receiver itself if it is not there.
func (t *contractTree) without(contractID string) *contractTree {
	if t == nil {
		return nil
	}
	next := *t
	switch order := strings.Compare(contractID, t.id()); {
	case order == 0:
		return join(t.left, t.right)
	case order < 0:
		if next.left = t.left.without(contractID); next.left == t.left {
			return t
		}
	default:
		if next.right = t.right.without(contractID); next.right == t.right {
			return t
		}
	}
	return &next
}

// join is one map of two, all ids in the first being smaller.
func join(a, b *contractTree) *contractTree {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		next := *a
		next.right = join(a.right, b)
		return &next
	default:
		next := *b
		next.left = join(a, b.left)
		return &next
	}
}

// each yields the slots by contract id until yield returns false.
func (t *contractTree) each(yield func(slot) bool) bool {
	return t == nil || t.left.each(yield) && yield(t.slot) && t.right.each(yield)
}
