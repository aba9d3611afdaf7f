package index

import (
	"testing"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestClassify(t *testing.T) {
	policy := Policy{PackageIDs: map[string][]string{testPackage: {"p1"}}, Operators: []string{testOperator}, GuardianGovernance: testGovernance}
	core := func(operator, governance string) *wormhole.CoreState {
		return &wormhole.CoreState{Operator: operator, GuardianGovernance: governance}
	}
	shadow := node(t, "")
	shadow.Operator = "accomplice"
	for _, c := range []struct {
		name    string
		policy  Policy
		payload wormhole.Payload
		change  func(*ledger.Contract)
		want    Class
	}{
		{"a node", policy, node(t, ""), nil, Authentic},
		{"an unverifiable blob is served", policy, node(t, ""), func(c *ledger.Contract) { c.BlobCheck = ledger.BlobUnverifiable }, Authentic},
		{"another package id", policy, node(t, ""), func(c *ledger.Contract) { c.TemplateID.PackageID = "p9" }, Unpinned},
		{"a package that is not pinned by id", policy, node(t, ""), func(c *ledger.Contract) { c.PackageName, c.TemplateID.PackageID = "other", "p9" }, Authentic},
		{"another operator", policy, shadow, nil, Shadow},
		{"any operator, where none is configured", Policy{}, shadow, nil, Authentic},
		{"a signature lacking", policy, node(t, ""), func(c *ledger.Contract) { c.Signatories = []string{testConsumer} }, Puppet},
		{"another's signature besides", policy, node(t, ""), func(c *ledger.Contract) { c.Signatories = append(c.Signatories, "z") }, Authentic},
		{"no blob", policy, node(t, ""), func(c *ledger.Contract) { c.Blob, c.BlobCheck = nil, ledger.BlobMissing }, Refused},
		{"an empty blob that was verified", policy, node(t, ""), func(c *ledger.Contract) { c.Blob = nil }, Refused},
		{"a wrong blob", policy, node(t, ""), func(c *ledger.Contract) { c.BlobCheck = ledger.BlobMismatch }, Refused},
		{"an unchecked blob", policy, node(t, ""), func(c *ledger.Contract) { c.BlobCheck = ledger.BlobUnchecked }, Refused},
		{"a wrong blob of another operator's contract alarms nobody", policy, shadow, func(c *ledger.Contract) { c.BlobCheck = ledger.BlobMismatch }, Shadow},
		{"the CoreState", policy, core(testOperator, testGovernance), nil, Authentic},
		{"a CoreState of another governance", policy, core(testOperator, "mine"), nil, Puppet},
		{"a CoreState of other parties", policy, core("mine", "mine"), nil, Puppet},
		{"a CoreState of another operator", policy, core("mine", testGovernance), nil, Shadow},
		{"a CoreState without an anchor configured", Policy{}, core(testOperator, ""), nil, Puppet},
		{"a CoreState that the governance has not signed", policy, core(testOperator, testGovernance), func(c *ledger.Contract) { c.Signatories = []string{testOperator} }, Puppet},
		{"malformed, signed by the operator", policy, &wormhole.Malformed{Operator: testOperator}, func(c *ledger.Contract) { c.Signatories = []string{testOperator} }, Malformed},
		{"malformed, nameless, signed by the operator", policy, &wormhole.Malformed{}, func(c *ledger.Contract) { c.Signatories = []string{testOperator} }, Malformed},
		{"malformed, of nobody we know", policy, &wormhole.Malformed{}, func(c *ledger.Contract) { c.Signatories = []string{"mine"} }, Shadow},
		{"malformed, naming the operator without its signature", policy, &wormhole.Malformed{Operator: testOperator}, func(c *ledger.Contract) { c.Signatories = []string{"mine"} }, Puppet},
		{"no payload", policy, nil, func(c *ledger.Contract) { c.Signatories = []string{testOperator} }, Malformed},
		{"a registry", policy, &wormhole.ReplayRootRegistry{Operator: testOperator}, nil, Authentic},
		{"an emitter without its owner's signature", policy, &wormhole.Emitter{Operator: testOperator, Owner: "o"}, func(c *ledger.Contract) { c.Signatories = []string{testOperator} }, Puppet},
	} {
		contract := contract("id", c.payload)
		if c.change != nil {
			c.change(contract)
		}
		if got := c.policy.Classify(contract); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
