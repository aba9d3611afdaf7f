package postgres

import (
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

const (
	participant = "participant1::1220aa"
	operator    = "operator::1220bb"
	consumer    = "consumer::1220cc"
	sync1       = "global-domain::1220dd"
	sync2       = "global-domain::1220dd::35-4"
)

// epoch is when the tests' ledger begins. Microseconds are what a ledger has.
var ledgerStart = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

// at is the record time of an offset.
func at(offset int64) time.Time { return ledgerStart.Add(time.Duration(offset) * time.Second) }

// id is a contract id of a name.
func id(name string) string { return fmt.Sprintf("00%x1220%x", sha256.Sum256([]byte(name)), name) }

// digest is the n-th digest.
func digest(n int) wormhole.Digest { return sha256.Sum256(fmt.Append(nil, n)) }

func prefix(text string) wormhole.Prefix {
	p, err := wormhole.ParsePrefix(text)
	if err != nil {
		panic(err)
	}
	return p
}

var scope1 = index.Scope{PackageName: "wormhole-core", Operator: operator, Consumer: consumer}

// inNamespace is scope1 with a namespace.
func inNamespace(namespace string) index.Scope {
	s := scope1
	s.Namespace = wormhole.Namespace{Present: true, Value: namespace}
	return s
}

// contract is an entry with everything but the payload.
func contract(name string, offset int64) index.Entry {
	return index.Entry{
		Contract: ledger.Contract{
			ContractID: id(name), TemplateID: damlvalue.TypeName{PackageID: "abc123", Module: "Wormhole.Core.Replay", Entity: "ReplayNode"}, PackageName: "wormhole-core",
			SynchronizerID: sync1, ReassignmentCounter: 3, Blob: []byte("blob of " + name + "\x00\xff\\"), BlobCheck: ledger.BlobVerified,
			Signatories: []string{consumer, operator}, Observers: []string{`odd,"party"{}\`}, CreatedAt: at(offset).Add(-time.Millisecond),
			Offset: offset, UpdateID: fmt.Sprintf("1220%04d", offset), RecordTime: at(offset),
		},
		Class: index.Authentic,
	}
}

// node is a replay node.
func node(scope index.Scope, name, prefixText string, offset int64, consumed ...wormhole.Digest) *index.Entry {
	e := contract(name, offset)
	e.PackageName = scope.PackageName
	e.Payload = &wormhole.ReplayNode{Consumer: scope.Consumer, Operator: scope.Operator, Namespace: scope.Namespace,
		Prefix: prefix(prefixText), SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(consumed...)}
	return &e
}

// withPayload is an entry of any other payload.
func withPayload(name string, offset int64, payload wormhole.Payload) *index.Entry {
	e := contract(name, offset)
	e.TemplateID.Module, e.TemplateID.Entity = "Wormhole.Core.Other", "Template"
	e.Payload = payload
	return &e
}

// samples has every kind of payload and every column at its limits.
func samples() []*index.Entry {
	expiration := time.Date(2031, 5, 6, 7, 8, 9, 123456000, time.UTC)
	inFlight := node(inNamespace("näm"), "in flight", "0123456789abcdef", 7, digest(1), digest(2))
	inFlight.InFlight, inFlight.Target, inFlight.ParentID, inFlight.ReassignmentCounter = true, sync2, id("parent"), math.MaxUint64
	bare := node(inNamespace(""), "bare", "", 8)
	bare.Blob, bare.BlobCheck, bare.BlobFault = nil, ledger.BlobMissing, "the event came without a blob\x00\xff"
	bare.Signatories, bare.Observers, bare.UpdateID, bare.RecordTime, bare.CreatedAt, bare.Class = nil, nil, "", time.Time{}, time.Time{}, index.Refused
	empty := node(scope1, "empty blob", "f", 9)
	empty.Blob = []byte{}
	elsewhere := *node(scope1, "two places", "e", 9)
	elsewhere.SynchronizerID = sync2
	deep := node(scope1, "deep", digest(3).String()[:63], math.MaxInt64, digest(3))
	deep.Payload.(*wormhole.ReplayNode).SplitThreshold = math.MaxInt64
	return []*index.Entry{
		inFlight, bare, empty, deep, node(scope1, "two places", "e", 9), &elsewhere,
		withPayload("core", 10, &wormhole.CoreState{Operator: operator, GuardianGovernance: "gg", GuardianObserver: "go", ChainID: math.MaxInt64, GovernanceChainID: math.MinInt64,
			GovernanceContract: "04", GuardianSetIndex: math.MaxInt64, MessageFee: 1<<53 + 1, ConsumedGovernance: []string{"aa", "bb"},
			GuardianSets: map[int64]wormhole.GuardianSet{0: {Keys: []string{"k0", "k1"}, Expiration: &expiration}, math.MaxInt64: {Keys: []string{"k2"}}}}),
		withPayload("old core", 10, &wormhole.CoreState{Operator: operator, GuardianSets: map[int64]wormhole.GuardianSet{}}),
		withPayload("registry", 11, &wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{consumer}}),
		withPayload("empty registry", 11, &wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{}}),
		withPayload("stateless registry", 11, &wormhole.ReplayRootRegistry{Operator: operator}),
		withPayload("emitters", 12, &wormhole.EmitterRegistry{Operator: operator, GuardianObserver: "go", NextID: math.MaxInt64}),
		withPayload("emitter", 13, &wormhole.Emitter{Operator: operator, Owner: consumer, EmitterID: math.MaxInt64, EmitterAddress: "ff", Sequence: math.MaxInt64}),
		withPayload("malformed", 14, &wormhole.Malformed{Template: "M:E", Operator: operator, Consumer: consumer, Fault: "prefix: character 1 is not a hex digit"}),
	}
}

// compare are go-cmp's options for entries: sets by what they hold, and texts that explain as they can be stored.
var compare = cmp.Options{
	cmp.Comparer(func(a, b wormhole.SuffixSet) bool { return string(a.Packed()) == string(b.Packed()) }),
	cmp.Comparer(func(a, b wormhole.Prefix) bool { return a == b }),
	cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".BlobFault" }, cmp.Comparer(func(a, b string) bool { return storable(a) == storable(b) })),
	cmp.FilterPath(func(p cmp.Path) bool {
		last := p.Last().String()
		return last == ".Signatories" || last == ".Observers" || last == ".Successors"
	}, cmpopts.EquateEmpty()),
}

func byKey(entries ...*index.Entry) map[index.Key]*index.Entry {
	m := map[index.Key]*index.Entry{}
	for _, e := range entries {
		m[e.Key()] = e
	}
	return m
}
