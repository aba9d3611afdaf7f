package index

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// crowded are digests that share prefixes, so that few of them make a deep trie.
func crowded(t *rapid.T) wormhole.Digest {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("01f")), 6, 6, -1).Draw(t, "head")
	tail := rapid.StringOfN(rapid.RuneFrom([]rune("0f")), 2, 2, -1).Draw(t, "tail")
	d, err := wormhole.ParseDigest(text + strings.Repeat("0", wormhole.DigestNibbles-8) + tail)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDigestSetIsASetThatKeepsItsPast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var set *digestSet
		model := map[wormhole.Digest]bool{}
		var past *digestSet
		var pastModel map[wormhole.Digest]bool
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			d := crowded(t)
			if rapid.IntRange(0, 9).Draw(t, "add") < 7 {
				set = set.with(d, 0)
				model[d] = true
			} else {
				set = set.without(d, 0)
				delete(model, d)
			}
			if rapid.IntRange(0, 50).Draw(t, "keep") == 0 {
				past, pastModel = set, maps.Clone(model)
			}
		}
		checkDigestSet(t, set, model)
		checkDigestSet(t, past, pastModel)
		for d := range model {
			set = set.without(d, 0)
		}
		if set != nil {
			t.Fatalf("%d digests are left", set.len())
		}
	})
}

func checkDigestSet(t *rapid.T, set *digestSet, model map[wormhole.Digest]bool) {
	want := slices.SortedFunc(maps.Keys(model), func(a, b wormhole.Digest) int { return strings.Compare(a.String(), b.String()) })
	if got := slices.Collect(set.under(wormhole.Prefix{})); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if set.len() != len(want) {
		t.Fatalf("len %d, want %d", set.len(), len(want))
	}
	for range 5 {
		d := crowded(t)
		if set.contains(d) != model[d] {
			t.Fatalf("contains %s: %v", d, set.contains(d))
		}
		p := d.Prefix(rapid.IntRange(0, wormhole.MaxPrefixNibbles).Draw(t, "depth"))
		count := 0
		for other := range model {
			if p.Covers(other) {
				count++
			}
		}
		if got := set.countUnder(p); got != count {
			t.Fatalf("%d under %q, want %d", got, p, count)
		}
		if got := len(slices.Collect(set.under(p))); got != count {
			t.Fatalf("%d yielded under %q, want %d", got, p, count)
		}
	}
}

func TestSubtractIsSetDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := wormhole.SuffixSet{}, wormhole.SuffixSet{}
		var all []wormhole.Digest
		for range rapid.IntRange(0, 30).Draw(t, "digests") {
			d := crowded(t)
			all = append(all, d)
			if rapid.Bool().Draw(t, "in a") {
				a = a.With(d)
			}
			if rapid.Bool().Draw(t, "in b") {
				b = b.With(d)
			}
		}
		var want wormhole.SuffixSet
		for _, d := range all {
			if a.Contains(d) && !b.Contains(d) {
				want = want.With(d)
			}
		}
		if got := minus(a, b); !slices.Equal(got.Packed(), want.Packed()) {
			t.Fatalf("got %x, want %x", got.Packed(), want.Packed())
		}
	})
}

func TestADigestSetOfManyIsCountedByPrefix(t *testing.T) {
	var set *digestSet
	const n = 10_000
	for i := range n {
		d, err := wormhole.ParseDigest(fmt.Sprintf("%04x%060d", i, i))
		if err != nil {
			t.Fatal(err)
		}
		set = set.with(d, 0)
	}
	if got := set.countUnder(prefix(t, "00")); got != 256 {
		t.Errorf("%d under 00, want 256", got)
	}
	if got := set.countUnder(prefix(t, "")); got != n {
		t.Errorf("%d in all, want %d", got, n)
	}
}
