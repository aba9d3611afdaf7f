package index

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// splitRoot is a root with the given digests and the update that splits it by one more.
func splitRoot(t *testing.T, offset int64, root string, rest ...string) ledger.Update {
	t.Helper()
	events := []ledger.Event{archived(root)}
	for nibble := range 16 {
		at := fmt.Sprintf("%x", nibble)
		var held []string
		for _, d := range rest {
			if d[:1] == at {
				held = append(held, d)
			}
		}
		events = append(events, created("child-"+at, node(t, at, held...)))
	}
	return update(offset, events...)
}

func TestConsumeAndSplitAreServedAsOneStep(t *testing.T) {
	v := after(t, start(), update(1, created("root", node(t, ""))))
	v, delta := step1(t, v, update(2, archived("root"), created("root2", node(t, "", "a1"))))
	wantConsume := []Consume{{testScope, digest(t, "a1"), 2, "update-2", update(2).RecordTime}}
	if diff := cmp.Diff(wantConsume, delta.Consumes); diff != "" {
		t.Errorf("consumes: %s", diff)
	}
	if len(delta.Put) != 1 || delta.Put[0].ParentID != "root" || len(delta.Remove) != 1 {
		t.Errorf("put %v, removed %v", delta.Put, delta.Remove)
	}
	if len(delta.Ended) != 1 || delta.Ended[0].How != Superseded || !cmp.Equal(delta.Ended[0].Successors, []string{"root2"}) {
		t.Errorf("ended: %+v", delta.Ended)
	}

	v, delta = step1(t, v, splitRoot(t, 3, "root2", "a1", "b7"))
	if len(delta.Ended) != 1 || delta.Ended[0].How != Split || len(delta.Ended[0].Successors) != 16 || delta.Ended[0].Successors[10] != "child-a" {
		t.Errorf("ended: %+v", delta.Ended)
	}
	if len(delta.Consumes) != 1 || delta.Consumes[0].Digest != digest(t, "b7") {
		t.Errorf("consumes: %+v", delta.Consumes)
	}
	for d, want := range map[string]string{"a1": "child-a", "ff": "child-f"} {
		e, err := v.Covering(testScope, digest(t, d))
		if err != nil || e.ContractID != want {
			t.Errorf("covering %s: %v, %v; want %s", d, e, err, want)
		}
	}
	if found := v.Findings(); len(found) != 0 {
		t.Errorf("findings: %+v", found)
	}
	stats, err := v.ScopeStats(testScope)
	if err != nil || stats.Nodes != 16 || stats.Deepest != 1 || stats.Digests != 2 {
		t.Errorf("stats: %+v, %v", stats, err)
	}
}

func TestATransactionThatSplitsTwiceIsStillASplit(t *testing.T) {
	v := after(t, start(), update(1, created("root", node(t, "", "a1"))))
	events := []ledger.Event{archived("root")}
	var want []string
	for _, top := range "0123456789abcdef" {
		if top != 'a' {
			events = append(events, created("n"+string(top), node(t, string(top))))
			want = append(want, "n"+string(top))
			continue
		}
		for _, low := range "0123456789abcdef" {
			var held []string
			if low == '1' {
				held = []string{"a1"}
			}
			events = append(events, created("na"+string(low), node(t, "a"+string(low), held...)))
			want = append(want, "na"+string(low))
		}
	}
	_, delta := step1(t, v, update(2, events...))
	if len(delta.Ended) != 1 || delta.Ended[0].How != Split || !cmp.Equal(delta.Ended[0].Successors, want) {
		t.Errorf("ended: %+v", delta.Ended)
	}
}

func TestArchiveBySignatoriesLeavesAGap(t *testing.T) {
	v := after(t, start(),
		update(1, created("root", node(t, "", "a1"))),
		splitRoot(t, 2, "root", "a1"),
		update(3, archived("child-a")))
	_, err := v.Covering(testScope, digest(t, "a1"))
	var gap *GapError
	if !errors.As(err, &gap) || gap.Prefix != prefix(t, "a") || !errors.Is(err, ErrGap) {
		t.Errorf("got %v", err)
	}
	found := v.Findings()
	if len(found) != 1 || found[0].Kind != FindingGap || found[0].Prefix != prefix(t, "a") {
		t.Errorf("findings: %+v", found)
	}
	if !v.Missing(testScope, digest(t, "a1")) {
		t.Error("the archived node's digest is not missing")
	}

	// The node is made anew without the digest: the model's own replay vector.
	v = after(t, v, update(4, created("again", node(t, "a"))))
	found = v.Findings()
	if len(found) != 1 || found[0].Kind != FindingLoss || found[0].Count != 1 || !cmp.Equal(found[0].ContractIDs, []string{"again"}) {
		t.Errorf("findings: %+v", found)
	}
	if diff := cmp.Diff(found, v.FindingsFor(testScope, digest(t, "a9")), values); diff != "" {
		t.Error(diff)
	}

	// The whole trie archived: a gap at "".
	v = after(t, start(), update(1, created("root", node(t, ""))), update(2, archived("root")))
	if _, err := v.Covering(testScope, digest(t, "")); !errors.As(err, &gap) || gap.Prefix != prefix(t, "") {
		t.Errorf("got %v", err)
	}
}

func TestTwoRootsAreAFork(t *testing.T) {
	v := after(t, start(),
		update(1, created("root", node(t, ""))),
		splitRoot(t, 2, "root"),
		update(3, created("second", node(t, ""))))
	_, err := v.Covering(testScope, digest(t, "a1"))
	var fork *ForkError
	if !errors.As(err, &fork) || !cmp.Equal(fork.ContractIDs, []string{"child-a", "second"}) {
		t.Errorf("got %v", err)
	}
	if got := v.FindingCounts()[FindingFork]; got != 16 {
		t.Errorf("%d forks, want 16: one per child under the second root", got)
	}
}

func TestBetweenTwoSynchronizersANodeIsActiveNowhere(t *testing.T) {
	payload := node(t, "")
	v := after(t, start(), update(1, created("root", payload)), update(2, unassigned("root", syncA, syncB, 1)))
	_, err := v.Covering(testScope, digest(t, "a1"))
	want := &InFlightError{"root", syncA, syncB}
	var got *InFlightError
	if !errors.As(err, &got) || !cmp.Equal(got, want) {
		t.Errorf("got %v", err)
	}
	v = after(t, v, update(3, assigned("root", payload, syncA, syncB, 1)))
	e, err := v.Covering(testScope, digest(t, "a1"))
	if err != nil || e.SynchronizerID != syncB || len(v.Contract("root")) != 1 {
		t.Errorf("got %v, %v", e, err)
	}

	// The assignment seen before the unassignment.
	v = after(t, start(), update(1, created("root", payload)), update(2, assigned("root", payload, syncA, syncB, 1)))
	if e, err := v.Covering(testScope, digest(t, "a1")); err != nil || e.SynchronizerID != syncB {
		t.Errorf("got %v, %v", e, err)
	}
	v = after(t, v, update(3, unassigned("root", syncA, syncB, 1)))
	if e, err := v.Covering(testScope, digest(t, "a1")); err != nil || e.SynchronizerID != syncB || len(v.Contract("root")) != 1 {
		t.Errorf("got %v, %v", e, err)
	}

	// A purge: gone from here, and nothing follows.
	v, delta := step1(t, v, update(4, unassigned("root", syncB, syncB, 2)))
	if len(v.Contract("root")) != 0 || len(delta.Ended) != 1 || delta.Ended[0].How != Purged {
		t.Errorf("got %v, %+v", v.Contract("root"), delta.Ended)
	}
}

func TestABatchThatDoesNotContinueChangesNothing(t *testing.T) {
	v := after(t, start(), update(5, created("root", node(t, ""))))
	for name, b := range map[string]ledger.Batch{
		"a hole":              {ParticipantID: testParticipant, After: 7, Through: 9},
		"seen before":         {ParticipantID: testParticipant, After: 4, Through: 9},
		"another participant": {ParticipantID: "other", After: 5, Through: 9},
	} {
		if _, _, err := v.Apply(b); !errors.Is(err, ledger.ErrNotNext) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, b := range map[string]ledger.Batch{
		"backwards":           {ParticipantID: testParticipant, After: 5, Through: 4},
		"out of order":        {ParticipantID: testParticipant, After: 5, Through: 9, Updates: []ledger.Update{update(8), update(7)}},
		"beyond its end":      {ParticipantID: testParticipant, After: 5, Through: 9, Updates: []ledger.Update{update(10)}},
		"create of nothing":   {ParticipantID: testParticipant, After: 5, Through: 9, Updates: []ledger.Update{update(6, ledger.Event{Kind: ledger.Created, ContractID: "x"})}},
		"no kind":             {ParticipantID: testParticipant, After: 5, Through: 9, Updates: []ledger.Update{update(6, ledger.Event{ContractID: "x"})}},
		"another contract id": {ParticipantID: testParticipant, After: 5, Through: 9, Updates: []ledger.Update{update(6, ledger.Event{Kind: ledger.Created, ContractID: "x", Contract: contract("y", node(t, ""))})}},
	} {
		if _, _, err := v.Apply(b); err == nil || errors.Is(err, ledger.ErrNotNext) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSelectingAScope(t *testing.T) {
	empty, named := node(t, ""), node(t, "")
	empty.Namespace = wormhole.Namespace{Present: true}
	named.Namespace = wormhole.Namespace{Present: true, Value: "ntt"}
	v := after(t, start(), update(1, created("a", node(t, "")), created("b", empty), created("c", named)))
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		selector ScopeSelector
		want     error
		id       string
	}{
		{ScopeSelector{Consumer: testConsumer}, ErrAmbiguousScope, ""},
		{ScopeSelector{Consumer: testConsumer, NamespaceAbsent: true}, nil, "a"},
		{ScopeSelector{Consumer: testConsumer, Namespace: text("")}, nil, "b"},
		{ScopeSelector{Namespace: text("ntt")}, nil, "c"},
		{ScopeSelector{Consumer: testConsumer, Namespace: text("other")}, ErrUnknownScope, ""},
		{ScopeSelector{Consumer: testConsumer[:4]}, ErrUnknownScope, ""},
	} {
		scope, err := v.Scope(c.selector)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.selector, err, c.want)
		}
		if c.want != nil {
			continue
		}
		if e, err := v.Covering(scope, digest(t, "1")); err != nil || e.ContractID != c.id {
			t.Errorf("%s: got %v, %v; want %s", c.selector, e, err, c.id)
		}
	}
	_, err := v.Scope(ScopeSelector{Consumer: testConsumer})
	var ambiguous *AmbiguousScopeError
	if !errors.As(err, &ambiguous) || len(ambiguous.Choices) != 3 || ambiguous.Choices[0].Namespace.Present {
		t.Errorf("got %+v", err)
	}
}
