package index

import (
	"bytes"
	"iter"
	"slices"
	"sort"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// digestSet is a persistent set of digests with counts by prefix. Nil is the empty set. Leaves hold up to digestLeafMax
// digests, sorted and packed; inner nodes have 16 children by the nibble at their depth. Every method takes the depth of its
// receiver in the trie, 0 at the root.
//
// It holds the missing digests of a trie: usually none, after a root was made anew perhaps all of a trie's.
type digestSet struct {
	count  int
	packed []byte // leaves only
	kids   *[16]*digestSet
}

const (
	digestSize    = len(wormhole.Digest{})
	digestLeafMax = 64
)

// len is the number of digests.
func (s *digestSet) len() int {
	if s == nil {
		return 0
	}
	return s.count
}

// search is the place of d in a leaf's digests, or where it would be.
func searchPacked(packed []byte, d wormhole.Digest) (int, bool) {
	n := len(packed) / digestSize
	i := sort.Search(n, func(i int) bool { return bytes.Compare(packed[i*digestSize:(i+1)*digestSize], d[:]) >= 0 })
	return i, i < n && bytes.Equal(packed[i*digestSize:(i+1)*digestSize], d[:])
}

func (s *digestSet) contains(d wormhole.Digest) bool {
	for depth := 0; s != nil; depth++ {
		if s.kids == nil {
			_, ok := searchPacked(s.packed, d)
			return ok
		}
		s = s.kids[d.Nibble(depth)]
	}
	return false
}

// with is the set and d; the receiver itself if it has d.
func (s *digestSet) with(d wormhole.Digest, depth int) *digestSet {
	if s == nil {
		return &digestSet{count: 1, packed: slices.Clone(d[:])}
	}
	if s.kids == nil {
		i, ok := searchPacked(s.packed, d)
		if ok {
			return s
		}
		packed := slices.Concat(s.packed[:i*digestSize], d[:], s.packed[i*digestSize:])
		return leafOrInner(packed, depth)
	}
	nibble := d.Nibble(depth)
	kid := s.kids[nibble].with(d, depth+1)
	if kid == s.kids[nibble] {
		return s
	}
	kids := *s.kids
	kids[nibble] = kid
	return &digestSet{count: s.count + 1, kids: &kids}
}

// leafOrInner makes a leaf of sorted digests, or, where they are too many, an inner node with leaves below.
func leafOrInner(packed []byte, depth int) *digestSet {
	n := len(packed) / digestSize
	if n == 0 {
		return nil
	}
	if n <= digestLeafMax || depth >= wormhole.DigestNibbles {
		return &digestSet{count: n, packed: packed}
	}
	var kids [16]*digestSet
	for from := 0; from < n; {
		nibble := wormhole.Digest(packed[from*digestSize : (from+1)*digestSize]).Nibble(depth)
		to := from + 1
		for to < n && wormhole.Digest(packed[to*digestSize:(to+1)*digestSize]).Nibble(depth) == nibble {
			to++
		}
		kids[nibble] = leafOrInner(slices.Clone(packed[from*digestSize:to*digestSize]), depth+1)
		from = to
	}
	return &digestSet{count: n, kids: &kids}
}

// without is the set less d; the receiver itself if it lacks d.
func (s *digestSet) without(d wormhole.Digest, depth int) *digestSet {
	if s == nil {
		return nil
	}
	if s.kids == nil {
		i, ok := searchPacked(s.packed, d)
		if !ok {
			return s
		}
		return leafOrInner(slices.Concat(s.packed[:i*digestSize], s.packed[(i+1)*digestSize:]), depth)
	}
	nibble := d.Nibble(depth)
	kid := s.kids[nibble].without(d, depth+1)
	if kid == s.kids[nibble] {
		return s
	}
	kids := *s.kids
	kids[nibble] = kid
	rest := &digestSet{count: s.count - 1, kids: &kids}
	if rest.count > digestLeafMax/4 {
		return rest
	}
	packed := make([]byte, 0, rest.count*digestSize)
	for d := range rest.under(wormhole.Prefix{}) {
		packed = append(packed, d[:]...)
	}
	return leafOrInner(packed, depth)
}

// below is the part of the set's trie that holds all digests under the prefix, and whether it holds others too.
func (s *digestSet) below(p wormhole.Prefix) (part *digestSet, others bool) {
	text := p.String()
	for depth := 0; s != nil; depth++ {
		if depth == len(text) {
			return s, false
		}
		if s.kids == nil {
			return s, true
		}
		s = s.kids[nibbleOf(text[depth])]
	}
	return nil, false
}

// countUnder is the number of digests that the prefix covers.
func (s *digestSet) countUnder(p wormhole.Prefix) int {
	part, others := s.below(p)
	if part == nil {
		return 0
	}
	if !others {
		return part.count
	}
	count := 0
	for at := 0; at < len(part.packed); at += digestSize {
		if p.Covers(wormhole.Digest(part.packed[at : at+digestSize])) {
			count++
		}
	}
	return count
}

// under yields the digests that the prefix covers, in ascending order.
func (s *digestSet) under(p wormhole.Prefix) iter.Seq[wormhole.Digest] {
	return func(yield func(wormhole.Digest) bool) {
		part, others := s.below(p)
		part.each(func(d wormhole.Digest) bool { return others && !p.Covers(d) || yield(d) })
	}
}

func (s *digestSet) each(yield func(wormhole.Digest) bool) bool {
	if s == nil {
		return true
	}
	if s.kids == nil {
		for at := 0; at < len(s.packed); at += digestSize {
			if !yield(wormhole.Digest(s.packed[at : at+digestSize])) {
				return false
			}
		}
		return true
	}
	for _, kid := range s.kids {
		if !kid.each(yield) {
			return false
		}
	}
	return true
}

// nibbleOf is the value of a lowercase hex digit.
func nibbleOf(digit byte) byte {
	if digit <= '9' {
		return digit - '0'
	}
	return digit - 'a' + 10
}

// subtract calls missing for each digest of a that b lacks. Both are sorted, so it is one pass.
func subtract(a, b wormhole.SuffixSet, missing func(wormhole.Digest)) {
	pa, pb := a.Packed(), b.Packed()
	if bytes.Equal(pa, pb) {
		return
	}
	for len(pa) > 0 {
		order := -1
		if len(pb) > 0 {
			order = bytes.Compare(pa[:digestSize], pb[:digestSize])
		}
		switch {
		case order > 0:
			pb = pb[digestSize:]
		case order == 0:
			pa, pb = pa[digestSize:], pb[digestSize:]
		default:
			missing(wormhole.Digest(pa[:digestSize]))
			pa = pa[digestSize:]
		}
	}
}
