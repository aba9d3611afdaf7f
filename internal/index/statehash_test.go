package index_test

import (
	"maps"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Two views that differ in anything that an answer is made of have different state hashes.
func TestTheStateHashCoversWhatAnswersAreMadeOf(t *testing.T) {
	expiration := time.Unix(1_900_000_000, 0)
	core := wormhole.CoreState{
		Operator: indextest.Operator, GuardianGovernance: indextest.Governance, GuardianObserver: "observer", ChainID: 1, GovernanceChainID: 2, GovernanceContract: "04",
		GuardianSetIndex: 1, GuardianSets: map[int64]wormhole.GuardianSet{0: {Keys: []string{"a"}, Expiration: &expiration}, 1: {Keys: []string{"b", "c"}}},
		MessageFee: 5, ConsumedGovernance: []string{"d1"},
	}
	withCore := func(edit func(*wormhole.CoreState)) wormhole.Payload {
		edited := core
		edited.GuardianSets = maps.Clone(core.GuardianSets)
		edit(&edited)
		return &edited
	}
	withNode := func(edit func(*wormhole.ReplayNode)) wormhole.Payload {
		node := root()
		node.Consumed = wormhole.NewSuffixSet(wormhole.Digest{1}, wormhole.Digest{2})
		edit(node)
		return node
	}
	payloads := map[string]wormhole.Payload{
		"node":                  withNode(func(*wormhole.ReplayNode) {}),
		"node without a digest": withNode(func(n *wormhole.ReplayNode) { n.Consumed = wormhole.NewSuffixSet(wormhole.Digest{1}) }),
		"node, another digest": withNode(func(n *wormhole.ReplayNode) {
			n.Consumed = wormhole.NewSuffixSet(wormhole.Digest{1}, wormhole.Digest{3})
		}),
		"node, threshold":       withNode(func(n *wormhole.ReplayNode) { n.SplitThreshold = 3 }),
		"node, namespace":       withNode(func(n *wormhole.ReplayNode) { n.Namespace = wormhole.Namespace{Present: true} }),
		"node, consumer":        withNode(func(n *wormhole.ReplayNode) { n.Consumer = "other" }),
		"core":                  withCore(func(*wormhole.CoreState) {}),
		"core, governance":      withCore(func(c *wormhole.CoreState) { c.GuardianGovernance = "x" }),
		"core, observer":        withCore(func(c *wormhole.CoreState) { c.GuardianObserver = "x" }),
		"core, chain":           withCore(func(c *wormhole.CoreState) { c.ChainID, c.GovernanceChainID = 2, 1 }),
		"core, contract":        withCore(func(c *wormhole.CoreState) { c.GovernanceContract = "05" }),
		"core, set index":       withCore(func(c *wormhole.CoreState) { c.GuardianSetIndex = 0 }),
		"core, fee":             withCore(func(c *wormhole.CoreState) { c.MessageFee = 6 }),
		"core, keys":            withCore(func(c *wormhole.CoreState) { c.GuardianSets[1] = wormhole.GuardianSet{Keys: []string{"c", "b"}} }),
		"core, expiration":      withCore(func(c *wormhole.CoreState) { c.GuardianSets[0] = wormhole.GuardianSet{Keys: []string{"a"}} }),
		"core, governance VAAs": withCore(func(c *wormhole.CoreState) { c.ConsumedGovernance = nil }),
		"registry":              &wormhole.ReplayRootRegistry{Operator: indextest.Operator, Granted: []string{}},
		"registry, no list":     &wormhole.ReplayRootRegistry{Operator: indextest.Operator},
		"registry, granted":     &wormhole.ReplayRootRegistry{Operator: indextest.Operator, Granted: []string{consumer}},
		"emitters":              &wormhole.EmitterRegistry{Operator: indextest.Operator, NextID: 1},
		"emitters, next":        &wormhole.EmitterRegistry{Operator: indextest.Operator, NextID: 2},
		"emitter":               &wormhole.Emitter{Operator: indextest.Operator, Owner: "o", EmitterID: 1, EmitterAddress: "aa", Sequence: 2},
		"emitter, sequence":     &wormhole.Emitter{Operator: indextest.Operator, Owner: "o", EmitterID: 1, EmitterAddress: "aa", Sequence: 3},
		"malformed":             &wormhole.Malformed{Template: "M:E", Operator: indextest.Operator},
	}
	seen := map[[32]byte]string{}
	see := func(name string, c ledger.Contract) {
		t.Helper()
		x := open(t, nil, index.Options{})
		if err := seed(t, x, ledger.SeedFirst, 1, c); err != nil {
			t.Fatal(err)
		}
		hash, n := x.View().StateHash()
		if n != 1 {
			t.Errorf("%s: %d activations, want 1", name, n)
		}
		if other, ok := seen[hash]; ok {
			t.Errorf("%s and %s have one state hash", name, other)
		}
		seen[hash] = name
	}
	for name, p := range payloads {
		c := contract("id", p)
		c.Signatories = []string{"s"}
		see(name, c)
	}
	edits := map[string]func(*ledger.Contract){
		"id":             func(c *ledger.Contract) { c.ContractID = "other" },
		"synchronizer":   func(c *ledger.Contract) { c.SynchronizerID = "other" },
		"counter":        func(c *ledger.Contract) { c.ReassignmentCounter = 1 },
		"blob":           func(c *ledger.Contract) { c.Blob = []byte("other") },
		"blob's check":   func(c *ledger.Contract) { c.BlobCheck = ledger.BlobUnverifiable },
		"package name":   func(c *ledger.Contract) { c.PackageName = "other" },
		"package id":     func(c *ledger.Contract) { c.TemplateID.PackageID = "other" },
		"template":       func(c *ledger.Contract) { c.TemplateID.Entity = "other" },
		"signatories":    func(c *ledger.Contract) { c.Signatories = []string{"s", "t"} },
		"one signatory":  func(c *ledger.Contract) { c.Signatories = []string{"st"} },
		"observers":      func(c *ledger.Contract) { c.Observers = []string{"t"} },
		"time of create": func(c *ledger.Contract) { c.CreatedAt = time.UnixMicro(1) },
	}
	for name, edit := range edits {
		c := contract("id", payloads["node"])
		c.Signatories = []string{"s"}
		edit(&c)
		see(name, c)
	}
}
