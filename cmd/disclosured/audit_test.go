package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// The contracts in which an index and a ledger differ are named, by side, as many as asked for.
func TestDifferences(t *testing.T) {
	var active []ledger.Contract
	for i := range 6 {
		active = append(active, ledger.Contract{ContractID: fmt.Sprintf("00%02d", i), SynchronizerID: "sync", BlobCheck: ledger.BlobMissing})
	}
	x, err := index.Open(t.Context(), index.Policy{}, nil, index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seed, err := x.BeginSeed(t.Context(), ledger.SeedStart{ParticipantID: "p", Offset: 1, Reason: ledger.SeedFirst})
	if err != nil {
		t.Fatal(err)
	}
	if err := seed.Add(t.Context(), active); err != nil {
		t.Fatal(err)
	}
	if err := seed.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var listed []*disclosurev1.Activation
	for e := range x.View().Each {
		hash := e.StateHash()
		listed = append(listed, &disclosurev1.Activation{ContractId: e.ContractID, Hash: hash[:16]})
	}
	if d := differences(listed, x.View()); d.indexOnly != nil || d.ledgerOnly != nil || d.differing != nil {
		t.Errorf("the same, and yet %+v", d)
	}
	listed[0].Hash[0]++                                                                                       // differs
	listed = append(listed, &disclosurev1.Activation{ContractId: listed[1].ContractId, Hash: listed[2].Hash}) // twice
	listed = append(listed, &disclosurev1.Activation{ContractId: "00aa", Hash: listed[3].Hash})               // not active
	listed[3], listed[4] = listed[5], listed[5]                                                               // two are not in the index, one is twice
	var out strings.Builder
	differences(listed, x.View()).print(&out, 2)
	want := `in the index, not active on the participant: 1
  00aa
active on the participant, not in the index: 2
  0003
  0004
in both, and not the same (synchronizer, reassignment, blob or content): 3
  0000
  0001
  … and more: see --limit
`
	if out.String() != want {
		t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
	}
}
