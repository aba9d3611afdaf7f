package wormhole_test

import (
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// compareValues lets go-cmp look into the package's own values.
var compareValues = cmp.Options{
	cmp.Comparer(func(a, b wormhole.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b wormhole.SuffixSet) bool { return string(a.Packed()) == string(b.Packed()) }),
}

func TestConsumeMessages(t *testing.T) {
	digest := "a" + strings.Repeat("0", 63)
	node := &wormhole.ReplayNode{Prefix: prefix(t, "a"), SplitThreshold: 4, Consumed: wormhole.NewSuffixSet(digestOf(t, digest))}
	for text, want := range map[string]string{
		"":                                  "digest must be 32 bytes of lowercase hex",
		digest[1:]:                          "digest must be 32 bytes of lowercase hex",
		"0x" + digest:                       "digest must be 32 bytes of lowercase hex",
		"0x" + digest[2:]:                   "digest must be 32 bytes of lowercase hex",
		digest + "0":                        "digest must be 32 bytes of lowercase hex",
		"g" + digest[1:]:                    "digest must be 32 bytes of lowercase hex",
		digest[:62] + "é":                   "digest must be 32 bytes of lowercase hex",
		"b" + digest[1:]:                    "replay node does not cover digest",
		digest:                              "VAA already consumed",
		strings.ToUpper(digest):             "VAA already consumed",
		"A" + strings.Repeat("0", 62) + "1": "",
	} {
		got := ""
		result, err := node.Consume(text)
		if err != nil {
			got = err.Error()
			if wormhole.RuleOf(err) == nil || result.Nodes != nil {
				t.Errorf("%q: got %v with %d nodes", text, err, len(result.Nodes))
			}
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestConsumeSplits(t *testing.T) {
	scope := wormhole.ReplayNode{Consumer: "c", Operator: "o", Namespace: wormhole.Namespace{Present: true, Value: "ntt"}, SplitThreshold: 2}
	one, two, three := digestOf(t, "a1"+strings.Repeat("0", 62)), digestOf(t, "a2"+strings.Repeat("0", 62)), digestOf(t, "a3"+strings.Repeat("0", 62))

	node := scope
	first := consume(t, &node, one)
	second := consume(t, first.Nodes[0], two)
	if first.Split() || second.Split() || second.Nodes[0].Consumed.Len() != 2 {
		t.Fatalf("a node below its threshold was split")
	}
	split := consume(t, second.Nodes[0], three)
	if len(split.Nodes) != 16 || split.Covering != 0xa {
		t.Fatalf("got %d nodes, covering %d", len(split.Nodes), split.Covering)
	}
	for nibble, child := range split.Nodes {
		want := scope
		want.Prefix = prefix(t, "0123456789abcdef"[nibble:nibble+1])
		if nibble == 0xa {
			want.Consumed = wormhole.NewSuffixSet(one, two, three) // over-full
		}
		if diff := cmp.Diff(&want, child, compareValues); diff != "" {
			t.Errorf("child %x (-want +got):\n%s", nibble, diff)
		}
	}
	// The over-full child splits again, and only then.
	again := consume(t, split.Nodes[0xa], digestOf(t, "af"+strings.Repeat("0", 62)))
	if !again.Split() || again.Covering != 0xf || again.Nodes[1].Consumed.Len() != 1 {
		t.Errorf("an over-full child: got %d nodes, covering %d", len(again.Nodes), again.Covering)
	}
	if diff := cmp.Diff(scope, node, compareValues); diff != "" {
		t.Errorf("consuming changed the node:\n%s", diff)
	}
}

func TestConsumeNeverSplitsAtDepth63(t *testing.T) {
	node := &wormhole.ReplayNode{Prefix: prefix(t, strings.Repeat("f", 63)), SplitThreshold: 1}
	for _, last := range "0123456789abcdef" {
		result := consume(t, node, digestOf(t, strings.Repeat("f", 63)+string(last)))
		if result.Split() {
			t.Fatal("split at depth 63")
		}
		node = result.Nodes[0]
	}
	if node.Consumed.Len() != 16 {
		t.Errorf("got %d digests, want 16", node.Consumed.Len())
	}
	if _, err := node.Consume(strings.Repeat("f", 64)); !errors.Is(err, wormhole.RuleAlreadyConsumed) {
		t.Errorf("got %v", err)
	}
}

// TestTrieInvariant: whatever is consumed, the nodes partition the digests, hold what was consumed and nothing else, and
// consuming anything twice fails.
func TestTrieInvariant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root := &wormhole.ReplayNode{Consumer: "c", Operator: "o", SplitThreshold: rapid.Int64Range(1, 6).Draw(t, "threshold")}
		if rapid.Bool().Draw(t, "namespaced") {
			root.Namespace = wormhole.Namespace{Present: true, Value: rapid.StringN(0, 128, -1).Draw(t, "namespace")}
		}
		nodes := []*wormhole.ReplayNode{root}
		consumed := map[wormhole.Digest]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "consumes") {
			digest := drawDigest(t)
			at := slices.IndexFunc(nodes, func(n *wormhole.ReplayNode) bool { return n.Prefix.Covers(digest) })
			if at < 0 {
				t.Fatalf("%s has no covering node", digest)
			}
			node := nodes[at]
			result, err := node.Consume(digest.String())
			if consumed[digest] {
				if !errors.Is(err, wormhole.RuleAlreadyConsumed) {
					t.Fatalf("%s again: got %v", digest, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			wantSplit := int64(node.Consumed.Len()) >= node.SplitThreshold && node.Prefix.Len() < 63
			if result.Split() != wantSplit {
				t.Fatalf("a node of %d with threshold %d at depth %d: split = %v", node.Consumed.Len(), node.SplitThreshold, node.Prefix.Len(), result.Split())
			}
			covering := result.Nodes[result.Covering]
			if !covering.Prefix.Covers(digest) || !covering.Consumed.Contains(digest) {
				t.Fatalf("the covering node of %s is %q", digest, covering.Prefix)
			}
			consumed[digest] = true
			nodes = slices.Concat(nodes[:at], nodes[at+1:], result.Nodes)
		}
		held := 0
		for _, n := range nodes {
			held += n.Consumed.Len()
			if n.SplitThreshold != root.SplitThreshold || n.Namespace != root.Namespace || n.Consumer != "c" || n.Operator != "o" {
				t.Fatalf("scope or threshold lost: %+v", n)
			}
			for d := range n.Consumed.All() {
				if !consumed[d] || !n.Prefix.Covers(d) {
					t.Fatalf("node %q holds %s", n.Prefix, d)
				}
			}
		}
		if held != len(consumed) {
			t.Fatalf("%d digests held, %d consumed", held, len(consumed))
		}
		for digest := range consumed {
			covering := 0
			for _, n := range nodes {
				if n.Prefix.Covers(digest) {
					covering++
				}
			}
			if covering != 1 {
				t.Fatalf("%s has %d covering nodes", digest, covering)
			}
		}
		for i, a := range nodes {
			for j, b := range nodes {
				if i != j && a.Prefix.CoversPrefix(b.Prefix) {
					t.Fatalf("%q covers %q", a.Prefix, b.Prefix)
				}
			}
		}
	})
}

func TestDigestAndPrefixRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digest := wormhole.Digest(draw32(t, "digest"))
		n := rapid.IntRange(0, wormhole.MaxPrefixNibbles).Draw(t, "n")
		p := digest.Prefix(n)
		spelled := []string{digest.String(), strings.ToUpper(digest.String()), "0x" + digest.String(), "0X" + digest.String()}
		for _, s := range spelled {
			if got, err := wormhole.ParseDigest(s); err != nil || got != digest {
				t.Fatalf("parse %s: got %s, %v", s, got, err)
			}
		}
		if got, err := wormhole.ParsePrefix(p.String()); err != nil || got != p || got.Len() != n || !got.Covers(digest) {
			t.Fatalf("parse %q: got %q, %v", p, got, err)
		}
		if n < wormhole.MaxPrefixNibbles {
			child := p.Child(digest.Nibble(n))
			if child != digest.Prefix(n+1) || !p.CoversPrefix(child) || child.CoversPrefix(p) {
				t.Fatalf("child of %q is %q", p, child)
			}
		}
		other := wormhole.Digest(draw32(t, "other"))
		if got, want := p.Covers(other), strings.HasPrefix(other.String(), p.String()); got != want {
			t.Fatalf("%q covers %s = %v", p, other, got)
		}
	})
}

// TestSuffixSetAgainstMap holds the packed set to a plain map.
func TestSuffixSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[wormhole.Digest]bool{}
		var all []wormhole.Digest
		for range rapid.IntRange(0, 30).Draw(t, "n") {
			all = append(all, drawDigest(t))
		}
		set := wormhole.SuffixSet{}
		for _, d := range all {
			want[d] = true
			set = set.With(d)
		}
		made := wormhole.NewSuffixSet(all...)
		unpacked, err := wormhole.UnpackSuffixSet(made.Packed())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []wormhole.SuffixSet{set, made, unpacked} {
			if s.Len() != len(want) {
				t.Fatalf("%d digests, want %d", s.Len(), len(want))
			}
			for _, d := range append(all, drawDigest(t)) {
				if s.Contains(d) != want[d] {
					t.Fatalf("contains %s = %v", d, s.Contains(d))
				}
			}
			p := drawDigest(t).Prefix(rapid.IntRange(0, 5).Draw(t, "depth"))
			under := 0
			for d := range want {
				if p.Covers(d) {
					under++
				}
			}
			part := s.Under(p)
			if part.Len() != under {
				t.Fatalf("%d digests under %q, want %d", part.Len(), p, under)
			}
			for d := range part.All() {
				if !want[d] || !p.Covers(d) {
					t.Fatalf("%s is not under %q", d, p)
				}
			}
		}
	})
}

func TestUnpackSuffixSetRefusesDamage(t *testing.T) {
	good := wormhole.NewSuffixSet(digestOf(t, strings.Repeat("1", 64)), digestOf(t, strings.Repeat("2", 64))).Packed()
	if _, err := wormhole.UnpackSuffixSet(good[:33]); err == nil {
		t.Error("33 bytes accepted")
	}
	if _, err := wormhole.UnpackSuffixSet(slices.Concat(good[32:], good[:32])); err == nil {
		t.Error("wrong order accepted")
	}
	if _, err := wormhole.UnpackSuffixSet(slices.Concat(good[:32], good[:32])); err == nil {
		t.Error("repetition accepted")
	}
}

func FuzzParseDigest(f *testing.F) {
	for _, s := range []string{"", "0x", strings.Repeat("a", 64), "0X" + strings.Repeat("F", 64), strings.Repeat("é", 32), strings.Repeat("a", 63) + "\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := wormhole.ParseDigest(s)
		if err != nil {
			return
		}
		if got := d.String(); !strings.EqualFold(got, s) && !strings.EqualFold("0x"+got, s) {
			t.Fatalf("%q reads as %s", s, got)
		}
	})
}

func FuzzParsePrefix(f *testing.F) {
	for _, s := range []string{"", "0x", "0xABC", strings.Repeat("a", 63), strings.Repeat("a", 64), "é", " a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := wormhole.ParsePrefix(s)
		if err != nil {
			return
		}
		if got := p.String(); p.Len() > 63 || (!strings.EqualFold(got, s) && !strings.EqualFold("0x"+got, s)) {
			t.Fatalf("%q reads as %q", s, got)
		}
	})
}

// drawDigest draws from digests that share prefixes often.
func drawDigest(t *rapid.T) wormhole.Digest {
	var d wormhole.Digest
	d[0] = rapid.SampledFrom([]byte{0x00, 0x01, 0xaa, 0xab, 0xff}).Draw(t, "first")
	d[1] = rapid.SampledFrom([]byte{0x00, 0xaa}).Draw(t, "second")
	d[31] = rapid.Byte().Draw(t, "last")
	return d
}

func consume(t *testing.T, node *wormhole.ReplayNode, digest wormhole.Digest) wormhole.ConsumeResult {
	t.Helper()
	result, err := node.Consume(digest.String())
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func digestOf(t testing.TB, s string) wormhole.Digest {
	t.Helper()
	d, err := wormhole.ParseDigest(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func prefix(t testing.TB, s string) wormhole.Prefix {
	t.Helper()
	p, err := wormhole.ParsePrefix(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func BenchmarkConsume(b *testing.B) {
	node := &wormhole.ReplayNode{SplitThreshold: 128}
	digests := make([]wormhole.Digest, 128)
	for i := range digests {
		body := sampleBody(uint64(i))
		digests[i] = body.Digest()
	}
	node.Consumed = wormhole.NewSuffixSet(digests[:127]...)
	next := hex.EncodeToString(digests[127][:])
	b.Run("recreate", func(b *testing.B) {
		for b.Loop() {
			if _, err := node.Consume(next); err != nil {
				b.Fatal(err)
			}
		}
	})
	node.SplitThreshold = 127
	b.Run("split", func(b *testing.B) {
		for b.Loop() {
			if _, err := node.Consume(next); err != nil {
				b.Fatal(err)
			}
		}
	})
}
