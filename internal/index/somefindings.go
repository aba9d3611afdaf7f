package index

import (
	order "container/heap"
	"slices"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// SomeFindings are the first of Findings, at most limit of them, and how many there are of each kind, zeroes left out; of one scope alone
// where one is given. Anyone can make contracts that are findings (puppets, other operators' nodes), so what is not given is counted and
// costs no memory.
func (v *View) SomeFindings(scope *Scope, limit int) (found []Finding, counts map[FindingKind]int) {
	some := &someFindings{limit: max(0, limit), counts: map[FindingKind]int{}}
	inScope := func(e *Entry) bool {
		if scope == nil {
			return true
		}
		node, ok := e.Payload.(*wormhole.ReplayNode)
		return ok && ScopeOf(e.PackageName, node) == *scope
	}
	ofTrie := func(s *scopeTrie) {
		gap := func(p wormhole.Prefix) {
			some.add(Finding{Kind: FindingGap, Scope: &s.scope, Prefix: p}, func() Finding { return gapFinding(s.scope, p) })
		}
		if s.nodes == nil {
			gap(wormhole.Prefix{})
			return
		}
		s.nodes.eachGap(wormhole.Prefix{}, gap)
		s.nodes.eachFork(wormhole.Prefix{}, nil, func(p wormhole.Prefix, ids []string) {
			some.add(Finding{Kind: FindingFork, Scope: &s.scope, Prefix: p, ContractIDs: ids}, func() Finding { return forkFinding(s.scope, p, ids) })
		})
		s.nodes.eachWithMissing(s.missing, func(e *Entry) {
			some.add(Finding{Kind: FindingLoss, Scope: &s.scope, Prefix: nodeOf(e).Prefix, ContractIDs: []string{e.ContractID}}, func() Finding { return s.lossFinding(e) })
		})
	}
	ofContract := func(kind FindingKind, e *Entry) {
		if !inScope(e) {
			return
		}
		f := Finding{Kind: kind, ContractIDs: []string{e.ContractID}}
		if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
			own := ScopeOf(e.PackageName, node)
			f.Scope, f.Prefix = &own, node.Prefix
		}
		some.add(f, func() Finding { return contractFinding(kind, e) })
	}
	if scope == nil {
		v.scopes.Root().Walk(func(_ []byte, s *scopeTrie) bool {
			ofTrie(s)
			return false
		})
		for _, f := range v.doubledCoreStates() {
			some.add(f, func() Finding { return f })
		}
	} else if s, err := v.trie(*scope); err == nil {
		ofTrie(s)
	}
	for _, e := range v.ghosts {
		ofContract(FindingGhost, e)
	}
	v.odd.Root().Walk(func(_ []byte, e *Entry) bool {
		ofContract(e.Class.finding(), e)
		return false
	})
	return some.sorted(), some.counts
}

// someFindings keeps the first findings, without their details, as a heap with the last of them on top.
type someFindings struct {
	limit  int
	counts map[FindingKind]int
	kept   []keptFinding
}

type keptFinding struct {
	Finding
	whole func() Finding
}

func (s *someFindings) add(f Finding, whole func() Finding) {
	s.counts[f.Kind]++
	switch {
	case len(s.kept) < s.limit:
		order.Push(s, keptFinding{f, whole})
	case s.limit > 0 && compareFindings(f, s.kept[0].Finding) < 0:
		s.kept[0] = keptFinding{f, whole}
		order.Fix(s, 0)
	}
}

func (s *someFindings) sorted() []Finding {
	slices.SortFunc(s.kept, func(a, b keptFinding) int { return compareFindings(a.Finding, b.Finding) })
	found := make([]Finding, 0, len(s.kept))
	for _, k := range s.kept {
		found = append(found, k.whole())
	}
	return found
}

// The methods of container/heap.

func (s *someFindings) Len() int { return len(s.kept) }
func (s *someFindings) Less(i, j int) bool {
	return compareFindings(s.kept[i].Finding, s.kept[j].Finding) > 0
}
func (s *someFindings) Swap(i, j int) { s.kept[i], s.kept[j] = s.kept[j], s.kept[i] }
func (s *someFindings) Push(x any)    { s.kept = append(s.kept, x.(keptFinding)) }
func (s *someFindings) Pop() any {
	last := s.kept[len(s.kept)-1]
	s.kept = s.kept[:len(s.kept)-1]
	return last
}
