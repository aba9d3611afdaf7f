package index

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// Findings are all findings of the view, in the order of FindingKinds, then scope (those without one first), prefix, contract
// ids. The cost grows with what there is to find and with the number of scopes, not with the number of nodes.
func (v *View) Findings() []Finding {
	var found []Finding
	v.scopes.Root().Walk(func(_ []byte, s *scopeTrie) bool {
		if s.nodes == nil {
			found = append(found, gapFinding(s.scope, wormhole.Prefix{}))
			return false
		}
		s.nodes.eachGap(wormhole.Prefix{}, func(p wormhole.Prefix) { found = append(found, gapFinding(s.scope, p)) })
		s.nodes.eachFork(wormhole.Prefix{}, nil, func(p wormhole.Prefix, ids []string) { found = append(found, forkFinding(s.scope, p, ids)) })
		s.nodes.eachWithMissing(s.missing, func(e *Entry) { found = append(found, s.lossFinding(e)) })
		return false
	})
	for _, e := range v.ghosts {
		found = append(found, contractFinding(FindingGhost, e))
	}
	v.odd.Root().Walk(func(_ []byte, e *Entry) bool {
		found = append(found, contractFinding(e.Class.finding(), e))
		return false
	})
	found = append(found, v.doubledCoreStates()...)
	slices.SortFunc(found, compareFindings)
	return found
}

// FindingsFor are the findings about the digest's place in the scope's trie: the gap, the forks and the losses over it and the
// ghosts that would cover it. For an unknown scope there are none.
func (v *View) FindingsFor(scope Scope, digest wormhole.Digest) []Finding {
	s, err := v.trie(scope)
	if err != nil {
		return nil
	}
	var found []Finding
	if s.nodes == nil {
		found = append(found, gapFinding(scope, wormhole.Prefix{}))
	} else {
		var covering []string
		ended := s.nodes.path(digest, func(t *nibbleTrie, depth int) {
			if len(t.entries) == 0 {
				return
			}
			prefix := digest.Prefix(depth)
			covering = append(covering, contractIDs(t.entries)...)
			slices.Sort(covering)
			if len(covering) > 1 {
				found = append(found, forkFinding(scope, prefix, slices.Clone(covering)))
			}
			if s.missing.countUnder(prefix) > 0 {
				for _, e := range t.entries {
					found = append(found, s.lossFinding(e))
				}
			}
		})
		if len(covering) == 0 {
			found = append(found, gapFinding(scope, digest.Prefix(ended+1)))
		}
	}
	for _, e := range v.ghosts {
		if node, ok := e.Payload.(*wormhole.ReplayNode); ok && ScopeOf(e.PackageName, node) == scope && node.Prefix.Covers(digest) {
			found = append(found, contractFinding(FindingGhost, e))
		}
	}
	slices.SortFunc(found, compareFindings)
	return found
}

// FindingCounts is the number of findings of each kind, zeroes included. It does not walk the tries.
func (v *View) FindingCounts() map[FindingKind]int {
	counts := make(map[FindingKind]int, len(FindingKinds))
	for _, kind := range FindingKinds {
		counts[kind] = 0
	}
	counts[FindingGap] = v.tallies.gaps
	counts[FindingFork] = v.tallies.forks
	counts[FindingLoss] = v.tallies.losses
	counts[FindingGhost] = len(v.ghosts)
	for key, n := range v.tallies.classes {
		if kind := key.Class.finding(); kind != "" {
			counts[kind] += n
		}
	}
	counts[FindingDoubledCoreState] = len(v.doubledCoreStates())
	return counts
}

// Clean reports whether nothing serious was found.
func (v *View) Clean() bool {
	for kind, n := range v.FindingCounts() {
		if n > 0 && kind.Serious() {
			return false
		}
	}
	return true
}

// doubledCoreStates are the findings about packages and operators with several authentic CoreStates. These are few: each takes
// the operator's and the governance's signatures.
func (v *View) doubledCoreStates() []Finding {
	var found []Finding
	var group []*Entry
	flush := func() {
		if len(group) > 1 {
			found = append(found, doubledFinding(sortedIDs(group)))
		}
		group = nil
	}
	v.named.Root().WalkPrefix([]byte{kindCoreState}, func(_ []byte, e *Entry) bool {
		if len(group) > 0 && (group[0].PackageName != e.PackageName || operator(group[0].Payload) != operator(e.Payload)) {
			flush()
		}
		group = append(group, e)
		return false
	})
	flush()
	slices.SortFunc(found, compareFindings)
	return found
}

func gapFinding(scope Scope, prefix wormhole.Prefix) Finding {
	return Finding{
		Kind:   FindingGap,
		Scope:  &scope,
		Prefix: prefix,
		Detail: fmt.Sprintf("no active node covers the digests under %q: nothing there verifies", prefix),
	}
}

func forkFinding(scope Scope, prefix wormhole.Prefix, ids []string) Finding {
	return Finding{
		Kind:        FindingFork,
		Scope:       &scope,
		Prefix:      prefix,
		ContractIDs: ids,
		Detail:      fmt.Sprintf("%d active nodes cover the digests under %q", len(ids), prefix),
	}
}

// lossNamed is how many of a loss's digests its detail names.
const lossNamed = 3

// lossFinding is the loss of an entry whose prefix covers missing digests.
func (s *scopeTrie) lossFinding(e *Entry) Finding {
	prefix := nodeOf(e).Prefix
	var first []wormhole.Digest
	for d := range s.missing.under(prefix) {
		if first = append(first, d); len(first) == lossNamed {
			break
		}
	}
	return lossFinding(s.scope, e, s.missing.countUnder(prefix), first)
}

func lossFinding(scope Scope, e *Entry, count int, first []wormhole.Digest) Finding {
	named := make([]string, len(first))
	for i, d := range first {
		named[i] = d.String()
	}
	etc := ""
	if count > len(first) {
		etc = ", …"
	}
	return Finding{
		Kind:        FindingLoss,
		Scope:       &scope,
		Prefix:      nodeOf(e).Prefix,
		ContractIDs: []string{e.ContractID},
		Count:       count,
		Detail:      fmt.Sprintf("%d digests that a node here once held could be consumed again: %s%s", count, strings.Join(named, ", "), etc),
	}
}

func doubledFinding(ids []string) Finding {
	return Finding{
		Kind:        FindingDoubledCoreState,
		ContractIDs: ids,
		Detail:      fmt.Sprintf("%d authentic CoreStates of one package and operator", len(ids)),
	}
}

// contractFinding is the finding that a contract is by itself.
func contractFinding(kind FindingKind, e *Entry) Finding {
	f := Finding{Kind: kind, ContractIDs: []string{e.ContractID}, Detail: kindNames[kindOf(e.Payload)]}
	if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
		scope := ScopeOf(e.PackageName, node)
		f.Scope, f.Prefix = &scope, node.Prefix
	}
	switch kind {
	case FindingGhost:
		f.Detail += " that the stream showed archived, active in a snapshot"
	case FindingShadow:
		f.Detail += fmt.Sprintf(" of another operator, %q", operator(e.Payload))
	case FindingPuppet:
		f.Detail += " that not all parties it names have signed"
		if core, ok := e.Payload.(*wormhole.CoreState); ok {
			f.Detail = fmt.Sprintf("CoreState of the operator %q and the guardian governance %q, signed by %s", core.Operator, core.GuardianGovernance, strings.Join(e.Signatories, ", "))
		}
	case FindingMalformed:
		if malformed, ok := e.Payload.(*wormhole.Malformed); ok {
			f.Detail = malformed.Template + ": " + malformed.Fault
		}
	case FindingRefused:
		f.Detail += ": created event blob " + e.BlobCheck.String()
		if e.BlobFault != "" {
			f.Detail += ": " + e.BlobFault
		}
	}
	return f
}

func compareFindings(a, b Finding) int {
	return cmp.Or(
		slices.Index(FindingKinds, a.Kind)-slices.Index(FindingKinds, b.Kind),
		compareScopePointers(a.Scope, b.Scope),
		strings.Compare(a.Prefix.String(), b.Prefix.String()),
		slices.Compare(a.ContractIDs, b.ContractIDs),
	)
}

func compareScopePointers(a, b *Scope) int {
	switch {
	case a == nil || b == nil:
		return comparePresence(a != nil, b != nil)
	default:
		return CompareScopes(*a, *b)
	}
}
