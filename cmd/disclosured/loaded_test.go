package main

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// loadedEntry is a contract of the payload as a database would give it back.
func loadedEntry(t testing.TB, payload wormhole.Payload, template damlvalue.TypeName) *index.Entry {
	t.Helper()
	template.PackageID = "aa"
	created := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	c, blob, err := contractblob.NewContract(contractblob.Draft{
		Salt: [32]byte{1}, CreatedAt: created, PackageName: wormhole.PackageName, TemplateID: template,
		Argument: wormhole.Encode(payload), Signatories: wormhole.RequiredSignatories(payload), Observers: wormhole.Observers(payload),
	})
	if err != nil {
		t.Fatal(err)
	}
	return &index.Entry{Class: index.Authentic, Contract: ledger.Contract{
		ContractID: c.ContractID.String(), TemplateID: template, PackageName: c.PackageName, SynchronizerID: "sync", Blob: blob, BlobCheck: ledger.BlobVerified,
		Signatories: c.Signatories, Observers: c.Observers, CreatedAt: created, Payload: payload,
	}}
}

func loadedNode(digests int) *wormhole.ReplayNode {
	list := make([]wormhole.Digest, digests)
	for i := range list {
		list[i] = sha256.Sum256(binary.BigEndian.AppendUint32(nil, uint32(i)))
		list[i][0] = 0xab
	}
	prefix, err := wormhole.ParsePrefix("ab")
	if err != nil {
		panic(err)
	}
	return &wormhole.ReplayNode{Consumer: "consumer", Operator: "operator", Prefix: prefix, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(list...)}
}

// What a database gives back is accepted as it was written, and in no other way.
func TestCheckLoaded(t *testing.T) {
	expiration := time.Unix(1_900_000_000, 0).UTC()
	key := "13947bd48b18e53fdaeee77f3473391ac727c638"
	core := &wormhole.CoreState{Operator: "operator", GuardianGovernance: "governance", GuardianObserver: "observer", ChainID: 72, GovernanceChainID: 1,
		GovernanceContract: governanceContractForTest, GuardianSetIndex: 1, MessageFee: 3, ConsumedGovernance: []string{wormhole.Digest{9}.String()},
		GuardianSets: map[int64]wormhole.GuardianSet{0: {Keys: []string{key}, Expiration: &expiration}, 1: {Keys: []string{key}}}}
	namespaced := loadedNode(3)
	namespaced.Namespace = wormhole.Namespace{Present: true}
	fresh := map[string]func() *index.Entry{
		"node":            func() *index.Entry { return loadedEntry(t, loadedNode(67), wormhole.ReplayNodeTemplate) },
		"empty node":      func() *index.Entry { return loadedEntry(t, loadedNode(0), wormhole.ReplayNodeTemplate) },
		"namespaced node": func() *index.Entry { return loadedEntry(t, namespaced, wormhole.ReplayNodeTemplate) },
		"core":            func() *index.Entry { return loadedEntry(t, core, wormhole.CoreStateTemplate) },
		"registry": func() *index.Entry {
			return loadedEntry(t, &wormhole.ReplayRootRegistry{Operator: "operator", Granted: []string{}}, wormhole.ReplayRootRegistryTemplate)
		},
		"emitters": func() *index.Entry {
			return loadedEntry(t, &wormhole.EmitterRegistry{Operator: "operator", GuardianObserver: "observer", NextID: 2}, wormhole.EmitterRegistryTemplate)
		},
		"emitter": func() *index.Entry {
			return loadedEntry(t, &wormhole.Emitter{Operator: "operator", Owner: "owner", EmitterID: 1, EmitterAddress: governanceContractForTest, Sequence: 7}, wormhole.EmitterTemplate)
		},
	}
	for name, entry := range fresh {
		if err := checkLoaded(entry()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	node := func(edit func(*wormhole.ReplayNode)) func(*index.Entry) {
		return func(e *index.Entry) {
			edited := *e.Payload.(*wormhole.ReplayNode)
			edit(&edited)
			e.Payload = &edited
		}
	}
	coreState := func(edit func(*wormhole.CoreState)) func(*index.Entry) {
		return func(e *index.Entry) {
			edited := *e.Payload.(*wormhole.CoreState)
			edited.GuardianSets = maps.Clone(edited.GuardianSets)
			edit(&edited)
			e.Payload = &edited
		}
	}
	for _, edit := range []struct {
		name, of string
		edit     func(*index.Entry)
	}{
		{"a digest taken out", "node", node(func(n *wormhole.ReplayNode) {
			n.Consumed = wormhole.NewSuffixSet(slices.Collect(n.Consumed.All())[1:]...)
		})},
		{"all digests taken out", "node", node(func(n *wormhole.ReplayNode) { n.Consumed = wormhole.SuffixSet{} })},
		{"a digest put in", "empty node", node(func(n *wormhole.ReplayNode) { n.Consumed = wormhole.NewSuffixSet(wormhole.Digest{0xab}) })},
		{"a digest put in the place of another", "node", node(func(n *wormhole.ReplayNode) {
			n.Consumed = wormhole.NewSuffixSet(append(slices.Collect(n.Consumed.All())[1:], wormhole.Digest{0xab, 1})...)
		})},
		{"prefix", "empty node", node(func(n *wormhole.ReplayNode) { n.Prefix = wormhole.Prefix{} })},
		{"threshold", "node", node(func(n *wormhole.ReplayNode) { n.SplitThreshold = 4 })},
		{"consumer", "node", node(func(n *wormhole.ReplayNode) { n.Consumer = "another" })},
		{"operator", "node", node(func(n *wormhole.ReplayNode) { n.Operator = "another" })},
		{"a namespace", "node", node(func(n *wormhole.ReplayNode) { n.Namespace.Present = true })},
		{"no namespace", "namespaced node", node(func(n *wormhole.ReplayNode) { n.Namespace.Present = false })},
		{"guardians", "core", coreState(func(c *wormhole.CoreState) { c.GuardianSets[1] = wormhole.GuardianSet{Keys: []string{"00"}} })},
		{"expiration", "core", coreState(func(c *wormhole.CoreState) { c.GuardianSets[0] = wormhole.GuardianSet{Keys: []string{key}} })},
		{"set index", "core", coreState(func(c *wormhole.CoreState) { c.GuardianSetIndex = 0 })},
		{"fee", "core", coreState(func(c *wormhole.CoreState) { c.MessageFee = 0 })},
		{"governance", "core", coreState(func(c *wormhole.CoreState) { c.ConsumedGovernance = nil })},
		{"granted", "registry", func(e *index.Entry) {
			e.Payload = &wormhole.ReplayRootRegistry{Operator: "operator", Granted: []string{"x"}}
		}},
		{"another kind", "emitters", func(e *index.Entry) { e.Payload = &wormhole.Emitter{Operator: "operator"} }},
		{"sequence", "emitter", func(e *index.Entry) {
			p := *e.Payload.(*wormhole.Emitter)
			p.Sequence++
			e.Payload = &p
		}},
		{"contract id", "node", func(e *index.Entry) { e.ContractID = "00" + e.ContractID[2:len(e.ContractID)-2] + "00" }},
		{"another's blob", "node", func(e *index.Entry) { e.Blob = fresh["core"]().Blob }},
		{"a blob with a byte turned", "node", func(e *index.Entry) {
			e.Blob = slices.Clone(e.Blob)
			e.Blob[len(e.Blob)/2] ^= 1
		}},
		{"no blob", "node", func(e *index.Entry) { e.Blob = nil }},
		{"said not to be verifiable", "node", func(e *index.Entry) { e.BlobCheck = ledger.BlobUnverifiable }},
		{"package id", "node", func(e *index.Entry) { e.TemplateID.PackageID = "bb" }},
		{"template", "emitter", func(e *index.Entry) { e.TemplateID.Entity = "EmitterRegistry" }},
		{"package name", "node", func(e *index.Entry) { e.PackageName = "other" }},
		{"signatories", "node", func(e *index.Entry) { e.Signatories = []string{"consumer"} }},
		{"observers", "node", func(e *index.Entry) { e.Observers = []string{"x"} }},
		{"time of creation", "node", func(e *index.Entry) { e.CreatedAt = e.CreatedAt.Add(time.Microsecond) }},
	} {
		e := fresh[edit.of]()
		edit.edit(e)
		if err := checkLoaded(e); err == nil {
			t.Errorf("%s of a %s: accepted", edit.name, edit.of)
		}
	}
	refused := fresh["node"]()
	refused.Blob, refused.BlobCheck = nil, ledger.BlobMissing
	if err := checkLoaded(refused); err != nil {
		t.Errorf("an entry that is refused anyway: %v", err)
	}
}

const governanceContractForTest = "0000000000000000000000000000000000000000000000000000000000000004"

// A node of 67 digests: what each node costs when an index is loaded.
func BenchmarkCheckLoaded(b *testing.B) {
	e := loadedEntry(b, loadedNode(67), wormhole.ReplayNodeTemplate)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := checkLoaded(e); err != nil {
				b.Error(err)
			}
		}
	})
}
