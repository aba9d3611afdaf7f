package wormhole

import (
	"bytes"
	"fmt"
	"iter"
	"sort"
)

// SuffixSet is the set of digests that one replay node holds. It is immutable and compact: whole digests (the node's prefix and
// the suffix), 32 bytes each, sorted, in one allocation. The zero value is the empty set.
//
// A node stores suffixes; holding whole digests instead costs half a byte per digit of the prefix and makes membership,
// splitting and comparing nodes of different depth one and the same operation.
type SuffixSet struct{ digests []byte }

const digestBytes = len(Digest{})

// NewSuffixSet makes a set of the given digests, in any order, repeats allowed.
func NewSuffixSet(digests ...Digest) SuffixSet {
	sorted := make([]Digest, len(digests))
	copy(sorted, digests)
	sort.Slice(sorted, func(i, j int) bool { return bytes.Compare(sorted[i][:], sorted[j][:]) < 0 })
	packed := make([]byte, 0, len(sorted)*digestBytes)
	for i, d := range sorted {
		if i > 0 && d == sorted[i-1] {
			continue
		}
		packed = append(packed, d[:]...)
	}
	return SuffixSet{packed}
}

// UnpackSuffixSet reads what Packed gave. It refuses lengths that are no multiple of 32 and digests out of order, so that a
// damaged store is seen at once.
func UnpackSuffixSet(packed []byte) (SuffixSet, error) {
	if len(packed)%digestBytes != 0 {
		return SuffixSet{}, fmt.Errorf("suffix set: %d bytes are no multiple of %d", len(packed), digestBytes)
	}
	for at := digestBytes; at < len(packed); at += digestBytes {
		if bytes.Compare(packed[at-digestBytes:at], packed[at:at+digestBytes]) >= 0 {
			return SuffixSet{}, fmt.Errorf("suffix set: digests out of order at %d", at/digestBytes)
		}
	}
	return SuffixSet{packed}, nil
}

// Packed is the set's digests, sorted and joined. The caller must not change it.
func (s SuffixSet) Packed() []byte { return s.digests }

// Len is the number of digests.
func (s SuffixSet) Len() int { return len(s.digests) / digestBytes }

// At is the i-th digest in ascending order.
func (s SuffixSet) At(i int) Digest { return Digest(s.digests[i*digestBytes : (i+1)*digestBytes]) }

// All yields the digests in ascending order.
func (s SuffixSet) All() iter.Seq[Digest] {
	return func(yield func(Digest) bool) {
		for i := range s.Len() {
			if !yield(s.At(i)) {
				return
			}
		}
	}
}

// search is the place of d, or where it would be.
func (s SuffixSet) search(d Digest) (int, bool) {
	i := sort.Search(s.Len(), func(i int) bool { return bytes.Compare(s.digests[i*digestBytes:(i+1)*digestBytes], d[:]) >= 0 })
	return i, i < s.Len() && s.At(i) == d
}

// Contains reports whether d is in the set.
func (s SuffixSet) Contains(d Digest) bool {
	_, ok := s.search(d)
	return ok
}

// With is the set and d.
func (s SuffixSet) With(d Digest) SuffixSet {
	i, ok := s.search(d)
	if ok {
		return s
	}
	packed := make([]byte, 0, len(s.digests)+digestBytes)
	packed = append(packed, s.digests[:i*digestBytes]...)
	packed = append(packed, d[:]...)
	packed = append(packed, s.digests[i*digestBytes:]...)
	return SuffixSet{packed}
}

// Under is the part of the set that the prefix covers.
func (s SuffixSet) Under(p Prefix) SuffixSet {
	lo := sort.Search(s.Len(), func(i int) bool { return s.At(i).String()[:p.Len()] >= p.nibbles })
	hi := sort.Search(s.Len(), func(i int) bool { return s.At(i).String()[:p.Len()] > p.nibbles })
	return SuffixSet{s.digests[lo*digestBytes : hi*digestBytes]}
}
