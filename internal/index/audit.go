package index

import (
	"slices"
	"strings"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// Audit computes all findings in full, from the plain list of contracts and the missing digests, without the tries, lookups and
// sums that Findings goes by. The two are equal, always; a difference is a fault in this package. The cost grows with the
// index.
func (v *View) Audit() []Finding {
	nodes := map[Scope][]*Entry{}
	for _, scope := range v.Scopes() {
		nodes[scope] = nil
	}
	cores := map[[2]string][]string{}
	var found []Finding
	v.contracts.each(func(s slot) bool {
		e := s.first
		if e.Class != Authentic {
			if kind := e.Class.finding(); kind != "" {
				found = append(found, contractFinding(kind, e))
			}
			return true
		}
		switch p := e.Payload.(type) {
		case *wormhole.ReplayNode:
			scope := ScopeOf(e.PackageName, p)
			nodes[scope] = append(nodes[scope], e)
		case *wormhole.CoreState:
			key := [2]string{e.PackageName, p.Operator}
			cores[key] = append(cores[key], e.ContractID)
		}
		return true
	})
	missing := map[Scope][]wormhole.Digest{}
	for sd := range v.MissingDigests {
		missing[sd.Scope] = append(missing[sd.Scope], sd.Digest)
	}
	for scope, entries := range nodes {
		slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(nodeOf(a).Prefix.String(), nodeOf(b).Prefix.String()) })
		found = append(found, auditGaps(scope, entries, wormhole.Prefix{})...)
		found = append(found, auditForks(scope, entries)...)
		found = append(found, auditLosses(scope, entries, missing[scope])...)
	}
	for _, e := range v.ghosts {
		found = append(found, contractFinding(FindingGhost, e))
	}
	for _, ids := range cores {
		if len(ids) > 1 {
			slices.Sort(ids)
			found = append(found, doubledFinding(ids))
		}
	}
	slices.SortFunc(found, compareFindings)
	return found
}

// auditGaps finds the greatest uncovered prefixes at or below one, given all entries at or below it, sorted by prefix, and none above.
func auditGaps(scope Scope, entries []*Entry, at wormhole.Prefix) []Finding {
	if len(entries) == 0 {
		return []Finding{gapFinding(scope, at)}
	}
	if nodeOf(entries[0]).Prefix == at {
		return nil
	}
	var found []Finding
	for nibble := range byte(16) {
		child := at.Child(nibble)
		n := 0
		for n < len(entries) && child.CoversPrefix(nodeOf(entries[n]).Prefix) {
			n++
		}
		found = append(found, auditGaps(scope, entries[:n], child)...)
		entries = entries[n:]
	}
	return found
}

// auditForks finds the entries' prefixes that two or more contracts cover. The entries are sorted by prefix, so that those that
// cover a prefix are on a stack when it comes.
func auditForks(scope Scope, entries []*Entry) []Finding {
	var found []Finding
	var stack []*Entry
	for i, e := range entries {
		prefix := nodeOf(e).Prefix
		for len(stack) > 0 && !nodeOf(stack[len(stack)-1]).Prefix.CoversPrefix(prefix) {
			stack = stack[:len(stack)-1]
		}
		stack = append(stack, e)
		last := i+1 == len(entries) || nodeOf(entries[i+1]).Prefix != prefix
		if last && len(stack) > 1 {
			found = append(found, forkFinding(scope, prefix, sortedIDs(stack)))
		}
	}
	return found
}

// auditLosses finds the entries over missing digests, which are sorted.
func auditLosses(scope Scope, entries []*Entry, missing []wormhole.Digest) []Finding {
	if len(missing) == 0 {
		return nil
	}
	var found []Finding
	for _, e := range entries {
		var lost []wormhole.Digest
		for _, d := range missing {
			if nodeOf(e).Prefix.Covers(d) {
				lost = append(lost, d)
			}
		}
		if len(lost) > 0 {
			found = append(found, lossFinding(scope, e, len(lost), lost[:min(len(lost), lossNamed)]))
		}
	}
	return found
}
