package index

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// bigTrie is a trie of about n nodes of one scope that partition the digest space, each with perNode digests and a blob of
// about the size that a participant gives to such a node.
func bigTrie(tb testing.TB, n, perNode int) *View {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	prefixes := []string{""}
	for len(prefixes) < n {
		// The shallowest first: digests are hashes, so a trie grows evenly.
		first := prefixes[0]
		prefixes = prefixes[1:]
		for nibble := range 16 {
			prefixes = append(prefixes, fmt.Sprintf("%s%x", first, nibble))
		}
	}
	g := newGeneration(testPolicy, ledger.SeedStart{ParticipantID: testParticipant, Offset: 1, Reason: ledger.SeedFirst}, nil)
	for i, at := range prefixes {
		node := &wormhole.ReplayNode{Consumer: testConsumer, Operator: testOperator, Prefix: prefix(tb, at), SplitThreshold: 128}
		digests := make([]wormhole.Digest, perNode)
		for j := range digests {
			digests[j] = digestUnder(random, at)
		}
		node.Consumed = wormhole.NewSuffixSet(digests...)
		c := contract(fmt.Sprintf("00%064x%064x", i, random.Uint64()), node)
		c.Blob = make([]byte, 600+74*perNode)
		g.add([]ledger.Contract{*c}, nil)
	}
	v, _ := g.finish()
	return v
}

// digestUnder is a random digest under the prefix.
func digestUnder(random *rand.Rand, at string) wormhole.Digest {
	text := at + fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64())
	d, err := wormhole.ParseDigest(text[:wormhole.DigestNibbles])
	if err != nil {
		panic(err)
	}
	return d
}

func BenchmarkCovering(b *testing.B) {
	for _, n := range []int{1_000, 150_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			v := bigTrie(b, n, 0)
			random := rand.New(rand.NewPCG(3, 4))
			digests := make([]wormhole.Digest, 4096)
			for i := range digests {
				digests[i] = digestUnder(random, "")
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := v.Covering(testScope, digests[i%len(digests)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

func BenchmarkApplyConsume(b *testing.B) {
	for _, n := range []int{1_000, 150_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			v := bigTrie(b, n, 16)
			random := rand.New(rand.NewPCG(3, 4))
			b.ReportAllocs()
			for b.Loop() {
				d := digestUnder(random, "")
				e, err := v.Covering(testScope, d)
				if err != nil {
					b.Fatal(err)
				}
				result, err := nodeOf(e).Consume(d.String())
				if err != nil {
					b.Fatal(err)
				}
				offset := v.Position().Offset + 1
				events := []ledger.Event{archived(e.ContractID)}
				for i, n := range result.Nodes {
					events = append(events, created(fmt.Sprintf("00%064x%02x", offset, i), n))
				}
				v, _ = step1(b, v, update(offset, events...))
			}
		})
	}
}

func BenchmarkFindings(b *testing.B) {
	v := bigTrie(b, 150_000, 0)
	b.Run("in step", func(b *testing.B) {
		for b.Loop() {
			v.Findings()
		}
	})
	b.Run("in full", func(b *testing.B) {
		for b.Loop() {
			v.Audit()
		}
	})
}

// BenchmarkMemory reports what a view of many nodes keeps, in bytes a node: with nothing in them, the overhead; with 66 digests each
// (10 million over 150,000 nodes), everything.
func BenchmarkMemory(b *testing.B) {
	for _, perNode := range []int{0, 66} {
		const n = 15_000
		b.Run(fmt.Sprintf("digests=%d", perNode), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				v := bigTrie(b, n, perNode)
				after := heap()
				nodes := v.Stats().Nodes
				b.ReportMetric(float64(after-before)/float64(nodes), "B/node")
				b.ReportMetric(float64(nodes), "nodes")
				runtime.KeepAlive(v)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
