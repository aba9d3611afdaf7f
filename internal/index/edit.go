package index

import (
	"maps"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// edit is a View being made from another. It changes one contract at a time and keeps all that is derived from the contracts in
// step: tries, lookups, tallies. Nothing of the base is changed.
type edit struct {
	base      *View
	contracts *contractTree
	scopes    *iradix.Txn[*scopeTrie]
	named     *iradix.Txn[*Entry]
	odd       *iradix.Txn[*Entry]
	tallies   tallies
}

func (v *View) edit() *edit {
	e := &edit{
		base:      v,
		contracts: v.contracts,
		scopes:    v.scopes.Txn(),
		named:     v.named.Txn(),
		odd:       v.odd.Txn(),
		tallies:   v.tallies,
	}
	e.tallies.classes = maps.Clone(v.tallies.classes)
	return e
}

// emptyView is a view without contracts.
func emptyView(policy Policy, pos ledger.Position) *View {
	return &View{
		policy:  policy,
		pos:     pos,
		scopes:  iradix.New[*scopeTrie](),
		named:   iradix.New[*Entry](),
		odd:     iradix.New[*Entry](),
		tallies: tallies{classes: map[TemplateClass]int{}},
		texts:   newInterner(),
		line:    new(line),
	}
}

// view is the edited view, at the position.
func (ed *edit) view(pos ledger.Position) *View {
	return &View{
		policy:    ed.base.policy,
		pos:       pos,
		contracts: ed.contracts,
		scopes:    ed.scopes.Commit(),
		named:     ed.named.Commit(),
		odd:       ed.odd.Commit(),
		ghosts:    ed.base.ghosts,
		tallies:   ed.tallies,
		texts:     ed.base.texts,
		line:      ed.base.line,
	}
}

// slot is what the edited view holds of the contract.
func (ed *edit) slot(contractID string) slot { return ed.contracts.get(contractID) }

// setSlot changes what the view holds of the contract and everything derived from it, except the missing digests.
func (ed *edit) setSlot(contractID string, after slot) {
	before := ed.contracts.get(contractID)
	if after.first == nil {
		ed.contracts = ed.contracts.without(contractID)
	} else {
		ed.contracts = ed.contracts.with(after)
	}
	if before.first == after.first {
		return
	}
	if before.first != nil {
		ed.unlist(before.first)
	}
	if after.first != nil {
		ed.list(after.first)
	}
}

// unlist takes the contract's counting entry out of what is derived.
func (ed *edit) unlist(e *Entry) {
	ed.tallies.count(e, -1)
	if e.Class != Authentic {
		if kind := e.Class.finding(); kind != "" {
			ed.odd.Delete(oddKey(kind, e.ContractID))
		}
		return
	}
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok {
		ed.named.Delete(namedKey(e))
		return
	}
	ed.changeTrie(ScopeOf(e.PackageName, node), func(s *scopeTrie) {
		s.nodes = s.nodes.remove(node.Prefix.String(), e.ContractID)
		s.digests -= node.Consumed.Len()
		if s.missing.countUnder(node.Prefix) > 0 {
			s.losses--
		}
	})
}

// list puts the contract's counting entry into what is derived.
func (ed *edit) list(e *Entry) {
	ed.tallies.count(e, +1)
	if e.Class != Authentic {
		if kind := e.Class.finding(); kind != "" {
			ed.odd.Insert(oddKey(kind, e.ContractID), e)
		}
		return
	}
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok {
		ed.named.Insert(namedKey(e), e)
		return
	}
	ed.changeTrie(ScopeOf(e.PackageName, node), func(s *scopeTrie) {
		s.nodes = s.nodes.put(node.Prefix.String(), e)
		s.digests += node.Consumed.Len()
		if s.missing.countUnder(node.Prefix) > 0 {
			s.losses++
		}
	})
}

// trie is the scope's trie as edited so far, nil where the scope is not known.
func (ed *edit) trie(scope Scope) *scopeTrie {
	s, _ := ed.scopes.Get(scopeKey(scope))
	return s
}

// changeTrie changes a copy of the scope's trie, which comes to exist if it did not.
func (ed *edit) changeTrie(scope Scope, change func(*scopeTrie)) {
	key := scopeKey(scope)
	next := &scopeTrie{scope: scope}
	if old, ok := ed.scopes.Get(key); ok {
		*next = *old
		ed.tallies.countTrie(old, -1)
	}
	change(next)
	ed.tallies.countTrie(next, +1)
	ed.scopes.Insert(key, next)
}

// know makes the scope exist.
func (ed *edit) know(scope Scope) {
	if ed.trie(scope) == nil {
		ed.changeTrie(scope, func(*scopeTrie) {})
	}
}

// addMissing and removeMissing change the scope's missing digests. Losses are the entries over at least one of them, so
// they change where the first comes or the last goes.
func (ed *edit) addMissing(scope Scope, digests []wormhole.Digest) {
	ed.changeMissing(scope, digests, +1, (*digestSet).with, 0)
}

func (ed *edit) removeMissing(scope Scope, digests []wormhole.Digest) {
	ed.changeMissing(scope, digests, -1, (*digestSet).without, 1)
}

func (ed *edit) changeMissing(scope Scope, digests []wormhole.Digest, sign int, change func(*digestSet, wormhole.Digest, int) *digestSet, turning int) {
	if len(digests) == 0 {
		return
	}
	ed.changeTrie(scope, func(s *scopeTrie) {
		for _, d := range digests {
			after := change(s.missing, d, 0)
			if after == s.missing {
				continue
			}
			if s.nodes != nil {
				s.nodes.path(d, func(t *nibbleTrie, depth int) {
					if len(t.entries) > 0 && s.missing.countUnder(d.Prefix(depth)) == turning {
						s.losses += sign * len(t.entries)
					}
				})
			}
			s.missing = after
		}
	})
}

// tallies are counts that are kept in step with the contracts.
type tallies struct {
	contracts    int
	unverifiable int
	classes      map[TemplateClass]int
	nodes        int
	digests      int
	missing      int
	gaps         int
	forks        int
	losses       int
}

// TemplateClass is what contracts are counted by.
type TemplateClass struct {
	// Template is the template's name without its module, or "Malformed".
	Template string
	Class    Class
}

func (t *tallies) count(e *Entry, sign int) {
	t.contracts += sign
	if e.BlobCheck == ledger.BlobUnverifiable {
		t.unverifiable += sign
	}
	key := TemplateClass{kindNames[kindOf(e.Payload)], e.Class}
	if t.classes[key] += sign; t.classes[key] == 0 {
		delete(t.classes, key)
	}
}

func (t *tallies) countTrie(s *scopeTrie, sign int) {
	if s.nodes == nil {
		t.gaps += sign // a trie without nodes is one gap, at ""
	} else {
		t.nodes += sign * int(s.nodes.sums.entries)
		t.gaps += sign * int(s.nodes.sums.gaps)
		t.forks += sign * int(s.nodes.sums.forks[0])
	}
	t.digests += sign * s.digests
	t.missing += sign * s.missing.len()
	t.losses += sign * s.losses
}

// sortedKeys are the keys by contract id, then synchronizer.
func sortedKeys[V any](m map[Key]V) []Key {
	return slices.SortedFunc(maps.Keys(m), compareKeys)
}
