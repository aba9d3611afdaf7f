package index

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

const (
	testPackage     = "wormhole-core"
	testOperator    = "operator::1"
	testConsumer    = "consumer::1"
	testGovernance  = "governance::1"
	testParticipant = "participant"
	syncA, syncB    = "synchronizer-a", "synchronizer-b"
)

var (
	testPolicy = Policy{Operators: []string{testOperator}, GuardianGovernance: testGovernance}
	testScope  = Scope{PackageName: testPackage, Operator: testOperator, Consumer: testConsumer}
	testEpoch  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

func digest(t testing.TB, prefix string) wormhole.Digest {
	t.Helper()
	d, err := wormhole.ParseDigest(prefix + fmt.Sprintf("%0*d", wormhole.DigestNibbles-len(prefix), 0))
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

func node(t testing.TB, at string, digests ...string) *wormhole.ReplayNode {
	t.Helper()
	n := &wormhole.ReplayNode{Consumer: testConsumer, Operator: testOperator, Prefix: prefix(t, at), SplitThreshold: 4}
	for _, d := range digests {
		n.Consumed = n.Consumed.With(digest(t, d))
	}
	return n
}

// contract is an authentic contract with the payload.
func contract(id string, p wormhole.Payload) *ledger.Contract {
	return &ledger.Contract{
		ContractID:     id,
		TemplateID:     damlvalue.TypeName{PackageID: "p1", Module: "M", Entity: kindNames[kindOf(p)]},
		PackageName:    testPackage,
		SynchronizerID: syncA,
		Blob:           []byte("blob of " + id),
		BlobCheck:      ledger.BlobVerified,
		Signatories:    wormhole.RequiredSignatories(p),
		Payload:        p,
	}
}

func created(id string, p wormhole.Payload) ledger.Event {
	return ledger.Event{Kind: ledger.Created, ContractID: id, Contract: contract(id, p)}
}

func archived(id string) ledger.Event {
	return ledger.Event{Kind: ledger.Archived, ContractID: id}
}

func assigned(id string, p wormhole.Payload, source, target string, counter uint64) ledger.Event {
	c := contract(id, p)
	c.SynchronizerID, c.ReassignmentCounter = target, counter
	return ledger.Event{Kind: ledger.Assigned, ContractID: id, Contract: c, Source: source, Target: target, ReassignmentCounter: counter}
}

func unassigned(id, source, target string, counter uint64) ledger.Event {
	return ledger.Event{Kind: ledger.Unassigned, ContractID: id, Source: source, Target: target, ReassignmentCounter: counter}
}

func update(offset int64, events ...ledger.Event) ledger.Update {
	return ledger.Update{
		Offset:     offset,
		UpdateID:   fmt.Sprintf("update-%d", offset),
		RecordTime: testEpoch.Add(time.Duration(offset) * time.Second),
		Events:     events,
	}
}

func start() *View { return emptyView(testPolicy, ledger.Position{ParticipantID: testParticipant}) }

// after applies each update as a batch of its own.
func after(t testing.TB, v *View, updates ...ledger.Update) *View {
	t.Helper()
	for _, u := range updates {
		v, _ = step1(t, v, u)
	}
	return v
}

func step1(t testing.TB, v *View, updates ...ledger.Update) (*View, Delta) {
	t.Helper()
	next, delta, err := v.Apply(ledger.Batch{
		ParticipantID: testParticipant,
		After:         v.Position().Offset,
		Updates:       updates,
		Through:       updates[len(updates)-1].Offset,
	})
	if err != nil {
		t.Fatal(err)
	}
	return next, delta
}

// values compares values by what they are, and takes nil and empty for equal.
var values = cmp.Options{
	cmp.Comparer(func(a, b wormhole.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b wormhole.SuffixSet) bool { return bytes.Equal(a.Packed(), b.Packed()) }),
	cmpopts.EquateEmpty(),
}
