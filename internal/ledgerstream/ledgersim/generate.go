package ledgersim

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Generation describes a trie to be made at once, without commands.
type Generation struct {
	Scope
	// Nodes is the least number of active nodes; splits make them come in steps of 15.
	Nodes int
	// Digests is how many digests are spread over the nodes, evenly.
	Digests int
	// Seed makes the digests.
	Seed uint64
}

// Generate makes a trie: nodes that partition the digest space, with random digests in them, active from now on. Nodes come 16 to an
// update, as from splits. Contract ids and blobs are real; the blobs are made when they are read, so that a trie of ten million digests
// fits in memory. It returns the ledger end after it.
func (s *Sim) Generate(g Generation) (int64, error) {
	prefixes := leaves(g.Nodes)
	var core *template
	var synchronizer string
	s.read(func(l *state) {
		if p := l.packages.preferred(wormholeCore, nil); p != nil {
			core = p.templates[wormhole.ReplayNodeTemplate.QualifiedName()]
		}
		synchronizer = l.synchronizers[0].id
	})
	if core == nil {
		return 0, fmt.Errorf("generate: no package %s", wormholeCore)
	}
	createdAt := s.options.Clock.Now().UTC().Truncate(time.Microsecond)
	contracts, err := g.contracts(core, prefixes, createdAt)
	if err != nil {
		return 0, err
	}
	var end int64
	s.change(func(l *state, now time.Time) {
		for batch := range slices.Chunk(contracts, 16) {
			u := &update{kind: transactionUpdate, synchronizer: synchronizer, recordTime: l.recordTime(synchronizer, now), effectiveAt: createdAt}
			l.append(u)
			for i, c := range batch {
				u.nodes = append(u.nodes, &node{id: int32(i), kind: createNode, contract: c, template: c.template, pkgName: c.pkgName, last: int32(i), witnesses: c.signatories})
				l.activate(c, u, synchronizer, 0, int32(i))
			}
		}
		end = l.end
	})
	return end, nil
}

// leaves are at least n prefixes that partition the digest space, of two depths at most.
func leaves(n int) []wormhole.Prefix {
	level := []wormhole.Prefix{{}}
	for len(level)*16 <= n {
		next := make([]wormhole.Prefix, 0, len(level)*16)
		for _, p := range level {
			next = appendChildren(next, p)
		}
		level = next
	}
	for split := 0; len(level)+15*split < n; split++ {
		if rest := level[split+1:]; len(level)+15*(split+1) >= n {
			out := make([]wormhole.Prefix, 0, len(rest)+16*(split+1))
			for _, p := range level[:split+1] {
				out = appendChildren(out, p)
			}
			return append(out, rest...)
		}
	}
	return level
}

func appendChildren(to []wormhole.Prefix, p wormhole.Prefix) []wormhole.Prefix {
	for nibble := range byte(16) {
		to = append(to, p.Child(nibble))
	}
	return to
}

// contracts makes the nodes' contracts, on all processors.
func (g Generation) contracts(t *template, prefixes []wormhole.Prefix, createdAt time.Time) ([]*contract, error) {
	out := make([]*contract, len(prefixes))
	workers := min(runtime.GOMAXPROCS(0), len(prefixes))
	errs := make([]error, workers)
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			for i := w; i < len(prefixes) && errs[w] == nil; i += workers {
				out[i], errs[w] = g.contract(t, prefixes[i], i, len(prefixes), createdAt)
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// contract makes the i-th of n nodes. Its randomness follows from the seed and its place alone.
func (g Generation) contract(t *template, prefix wormhole.Prefix, i, n int, createdAt time.Time) (*contract, error) {
	random := newRandom(g.Seed ^ uint64(i+1)*0x9e3779b97f4a7c15)
	count := g.Digests / n
	if i < g.Digests%n {
		count++
	}
	digests := make([]wormhole.Digest, count)
	for k := range digests {
		random.fill(digests[k][:])
		setPrefix(&digests[k], prefix)
	}
	const usual, most = 128, 4096
	node := &wormhole.ReplayNode{
		Consumer: g.Consumer, Operator: g.Operator, Namespace: g.Namespace, Prefix: prefix,
		SplitThreshold: int64(min(max(usual, count), most)), Consumed: wormhole.NewSuffixSet(digests...),
	}
	arg, err := damlvalue.Label(wormhole.Encode(node), t.typ)
	if err != nil {
		return nil, fmt.Errorf("generate node %q: %w", prefix, err)
	}
	signatories := union([]string{g.Consumer, g.Operator})
	draft := contractblob.Draft{
		CreatedAt: createdAt, PackageName: t.pkg.Name, TemplateID: t.name, Argument: arg.(damlvalue.Record), Signatories: signatories,
	}
	random.fill(draft.Discriminator[:])
	random.fill(draft.Salt[:])
	made, _, err := contractblob.NewContract(draft)
	if err != nil {
		return nil, fmt.Errorf("generate node %q: %w", prefix, err)
	}
	return &contract{
		id: made.ContractID.String(), template: t.name, pkgName: t.pkg.Name, signatories: signatories, createdAt: createdAt,
		payload: node, salt: draft.Salt, typ: &t.typ,
	}, nil
}

// setPrefix overwrites a digest's first digits.
func setPrefix(d *wormhole.Digest, p wormhole.Prefix) {
	for i, c := range []byte(p.String()) {
		value := c - '0'
		if c >= 'a' {
			value = c - 'a' + 10
		}
		if i%2 == 0 {
			d[i/2] = value<<4 | d[i/2]&0x0f
		} else {
			d[i/2] = d[i/2]&0xf0 | value
		}
	}
}
