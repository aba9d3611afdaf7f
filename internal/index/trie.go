package index

import (
	"slices"
	"strings"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// nibbleTrie is one trie node of a scope: the entries whose prefix ends here, and what is below. It is persistent: put and
// remove give a new root and share all subtrees that they did not touch. Nil is the empty trie; a non-nil one has an entry
// somewhere.
//
// The trie is not compressed. Its depth is at most 63, and prefixes come from splits, which make all 16 children, so that
// the path to a node is as long as the history of splits that made it.
type nibbleTrie struct {
	kids    *[16]*nibbleTrie
	entries []*Entry // by contract id, distinct
	sums    trieSums
}

// trieSums are sums over a subtree. What an ancestor's entries mean for it is not in them: that is why there are three counts
// of forks.
type trieSums struct {
	// entries is the number of entries.
	entries int32
	// gaps is the number of greatest uncovered prefixes, if no ancestor covers.
	gaps int32
	// forks[n] is the number of prefixes with an entry where two or more contracts cover, if n contracts of ancestors
	// do (2: two or more).
	forks [3]int32
	// height is the length of the longest prefix below, from here: 0 where nothing is below.
	height uint8
}

// put is the trie with the entry at its prefix, in the place of one with its contract id.
func (t *nibbleTrie) put(prefix string, e *Entry) *nibbleTrie {
	next := &nibbleTrie{}
	if t != nil {
		*next = *t
	}
	if prefix == "" {
		i, ok := slices.BinarySearchFunc(next.entries, e.ContractID, byContractID)
		if ok {
			next.entries = slices.Clone(next.entries)
			next.entries[i] = e
		} else {
			next.entries = slices.Insert(slices.Clip(next.entries), i, e)
		}
	} else {
		var kids [16]*nibbleTrie
		if next.kids != nil {
			kids = *next.kids
		}
		nibble := nibbleOf(prefix[0])
		kids[nibble] = kids[nibble].put(prefix[1:], e)
		next.kids = &kids
	}
	next.sum()
	return next
}

// remove is the trie without the entry of that prefix and contract id; the receiver itself if it is not there.
func (t *nibbleTrie) remove(prefix, contractID string) *nibbleTrie {
	if t == nil {
		return nil
	}
	next := *t
	if prefix == "" {
		i, ok := slices.BinarySearchFunc(t.entries, contractID, byContractID)
		if !ok {
			return t
		}
		next.entries = slices.Concat(t.entries[:i], t.entries[i+1:])
	} else {
		if t.kids == nil {
			return t
		}
		nibble := nibbleOf(prefix[0])
		kid := t.kids[nibble].remove(prefix[1:], contractID)
		if kid == t.kids[nibble] {
			return t
		}
		kids := *t.kids
		kids[nibble] = kid
		next.kids = &kids
		if kids == [16]*nibbleTrie{} {
			next.kids = nil
		}
	}
	if len(next.entries) == 0 && next.kids == nil {
		return nil
	}
	next.sum()
	return &next
}

func byContractID(e *Entry, id string) int { return strings.Compare(e.ContractID, id) }

// sum computes the node's sums from its entries and its children's sums.
func (t *nibbleTrie) sum() {
	own := len(t.entries)
	s := trieSums{entries: int32(own)}
	if t.kids != nil {
		for _, kid := range t.kids {
			if kid == nil {
				s.gaps++
				continue
			}
			s.entries += kid.sums.entries
			s.gaps += kid.sums.gaps
			s.height = max(s.height, kid.sums.height+1)
			for above := range s.forks {
				s.forks[above] += kid.sums.forks[min(2, above+own)]
			}
		}
	}
	if own > 0 {
		s.gaps = 0
		for above := range s.forks {
			if above+own >= 2 {
				s.forks[above]++
			}
		}
	}
	t.sums = s
}

// path calls each for the trie nodes on the way to the digest, from the root down, with their depth. It returns the depth at which
// the trie ends on this way: the digest's first nibbles of that number plus one are under no trie node.
func (t *nibbleTrie) path(d wormhole.Digest, each func(t *nibbleTrie, depth int)) (ended int) {
	depth := 0
	for {
		each(t, depth)
		if t.kids == nil || depth == wormhole.MaxPrefixNibbles {
			return depth
		}
		next := t.kids[d.Nibble(depth)]
		if next == nil {
			return depth
		}
		t = next
		depth++
	}
}

// holds reports whether an entry of the trie holds the digest.
func (t *nibbleTrie) holds(d wormhole.Digest) bool {
	if t == nil {
		return false
	}
	found := false
	t.path(d, func(at *nibbleTrie, _ int) {
		for _, e := range at.entries {
			found = found || nodeOf(e).Consumed.Contains(d)
		}
	})
	return found
}

// at is the subtree at the prefix, nil where there is none.
func (t *nibbleTrie) at(prefix string) *nibbleTrie {
	for i := 0; t != nil && i < len(prefix); i++ {
		if t.kids == nil {
			return nil
		}
		t = t.kids[nibbleOf(prefix[i])]
	}
	return t
}

// get is the entry of that prefix and contract id.
func (t *nibbleTrie) get(prefix, contractID string) *Entry {
	t = t.at(prefix)
	if t == nil {
		return nil
	}
	if i, ok := slices.BinarySearchFunc(t.entries, contractID, byContractID); ok {
		return t.entries[i]
	}
	return nil
}

// each yields all entries, by prefix, then contract id. A prefix comes before those below it.
func (t *nibbleTrie) each(yield func(*Entry) bool) bool {
	if t == nil {
		return true
	}
	for _, e := range t.entries {
		if !yield(e) {
			return false
		}
	}
	if t.kids == nil {
		return true
	}
	for _, kid := range t.kids {
		if !kid.each(yield) {
			return false
		}
	}
	return true
}

// eachGap yields the greatest uncovered prefixes in order. It visits only subtrees that have some.
func (t *nibbleTrie) eachGap(at wormhole.Prefix, yield func(wormhole.Prefix)) {
	if t.sums.gaps == 0 {
		return
	}
	for nibble, kid := range t.kids {
		if kid == nil {
			yield(at.Child(byte(nibble)))
		} else {
			kid.eachGap(at.Child(byte(nibble)), yield)
		}
	}
}

// eachFork yields, in order, the prefixes that have an entry and two or more covering contracts, with these contracts' ids,
// sorted. above are the contract ids of ancestors.
func (t *nibbleTrie) eachFork(at wormhole.Prefix, above []string, yield func(wormhole.Prefix, []string)) {
	if t.sums.forks[min(2, len(above))] == 0 {
		return
	}
	covering := above
	if len(t.entries) > 0 {
		covering = slices.Clone(above)
		for _, e := range t.entries {
			covering = append(covering, e.ContractID)
		}
		slices.Sort(covering)
		if len(covering) >= 2 {
			yield(at, covering)
		}
	}
	if t.kids == nil {
		return
	}
	for nibble, kid := range t.kids {
		if kid != nil {
			kid.eachFork(at.Child(byte(nibble)), covering, yield)
		}
	}
}

// eachWithMissing yields, in order, the entries whose prefix covers a digest of the set. It visits only what the two have in common.
func (t *nibbleTrie) eachWithMissing(missing *digestSet, yield func(*Entry)) {
	if missing.len() == 0 {
		return
	}
	t.walkMissing(wormhole.Prefix{}, missing, yield)
}

func (t *nibbleTrie) walkMissing(at wormhole.Prefix, missing *digestSet, yield func(*Entry)) {
	if missing.countUnder(at) == 0 {
		return
	}
	for _, e := range t.entries {
		yield(e)
	}
	if t.kids == nil {
		return
	}
	for nibble, kid := range t.kids {
		if kid != nil {
			kid.walkMissing(at.Child(byte(nibble)), missing, yield)
		}
	}
}

// nodeOf is the payload of an entry that is in a trie.
func nodeOf(e *Entry) *wormhole.ReplayNode { return e.Payload.(*wormhole.ReplayNode) }
