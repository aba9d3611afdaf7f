package index

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestContractTreeIsAnOrderedMapThatKeepsItsPast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tree, past *contractTree
		model := map[string]*Entry{}
		var pastModel map[string]*Entry
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			id := fmt.Sprintf("%02x", rapid.IntRange(0, 60).Draw(t, "id"))
			if rapid.IntRange(0, 9).Draw(t, "put") < 6 {
				e := &Entry{}
				e.ContractID = id
				tree, model[id] = tree.with(slot{first: e}), e
			} else {
				tree = tree.without(id)
				delete(model, id)
			}
			if rapid.IntRange(0, 30).Draw(t, "keep") == 0 {
				past, pastModel = tree, maps.Clone(model)
			}
		}
		checkContractTree(t, tree, model)
		checkContractTree(t, past, pastModel)
	})
}

func checkContractTree(t *rapid.T, tree *contractTree, model map[string]*Entry) {
	var got []string
	tree.each(func(s slot) bool {
		if s.first != model[s.first.ContractID] {
			t.Fatalf("%s has another entry", s.first.ContractID)
		}
		got = append(got, s.first.ContractID)
		return true
	})
	if want := slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for id, e := range model {
		if tree.get(id).first != e {
			t.Fatalf("get %s: another entry", id)
		}
	}
	if tree.get("none").first != nil {
		t.Fatal("got what is not there")
	}
	checkHeap(t, tree)
}

func checkHeap(t *rapid.T, tree *contractTree) {
	if tree == nil {
		return
	}
	for _, kid := range []*contractTree{tree.left, tree.right} {
		if kid != nil && kid.priority > tree.priority {
			t.Fatalf("%s is above %s", tree.id(), kid.id())
		}
		checkHeap(t, kid)
	}
}
