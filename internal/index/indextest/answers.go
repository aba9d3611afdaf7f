package indextest

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The naive index's answers. Lookups answer in words, so that an answer and an error can be compared alike; see words.go.

// Covering says which node covers the digest.
func (n *Naive) Covering(scope index.Scope, d wormhole.Digest) string {
	if !slices.Contains(n.scopes, scope) {
		return "unknown scope"
	}
	var found []*index.Entry
	for _, e := range nodes(n.entries, scope) {
		if nodeIn(e, scope).Prefix.Covers(d) {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		prefixes := n.prefixes(scope)
		for depth := 0; ; depth++ {
			if uncovered(prefixes, d.String()[:depth]) {
				return "gap at " + d.String()[:depth]
			}
		}
	}
	return n.words.oneOf(found, "fork")
}

// oneOf is the only entry, or what is wrong.
func (w words) oneOf(found []*index.Entry, several string) string {
	if len(found) > 1 {
		var ids []string
		for _, e := range found {
			ids = append(ids, e.ContractID)
		}
		sort.Strings(ids)
		return several + " " + strings.Join(ids, " ")
	}
	if e := found[0]; e.InFlight {
		return fmt.Sprintf("in flight %s from %s to %s", e.ContractID, e.SynchronizerID, e.Target)
	}
	return w.describe(found[0])
}

// prefixes are those of the scope's nodes.
func (n *Naive) prefixes(scope index.Scope) []string {
	var prefixes []string
	for _, e := range nodes(n.entries, scope) {
		prefixes = append(prefixes, nodeIn(e, scope).Prefix.String())
	}
	return prefixes
}

// uncovered reports whether none of the nodes' prefixes covers any digest under the prefix.
func uncovered(nodes []string, prefix string) bool {
	for _, p := range nodes {
		if strings.HasPrefix(prefix, p) || strings.HasPrefix(p, prefix) {
			return false
		}
	}
	return true
}

// CoreState says which CoreState is meant.
func (n *Naive) CoreState(s index.CoreStateSelector) string {
	var found []*index.Entry
	puppets, shadows, others := 0, 0, 0
	for _, e := range allCounting(n.entries) {
		core, ok := e.Payload.(*wormhole.CoreState)
		if !ok {
			continue
		}
		matches := (s.PackageName == "" || s.PackageName == e.PackageName) && (s.Operator == "" || s.Operator == core.Operator) &&
			(s.ContractID == "" || s.ContractID == e.ContractID)
		switch {
		case e.Class == index.Authentic && matches:
			found = append(found, e)
		case e.Class == index.Puppet:
			puppets++
		case e.Class == index.Shadow:
			shadows++
		default:
			others++
		}
	}
	if len(found) == 0 {
		return fmt.Sprintf("no CoreState, %d puppets, %d shadows, %d others", puppets, shadows, others)
	}
	return n.words.oneOf(found, "doubled")
}

// Named says which registry or emitter is meant.
func (n *Naive) Named(is func(packageName string, p wormhole.Payload) bool) string {
	var found []*index.Entry
	for _, e := range allCounting(n.entries) {
		if e.Class == index.Authentic && is(e.PackageName, e.Payload) {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return "none"
	}
	return n.words.oneOf(found, "several")
}

// Contract says all that there is of a contract, the entry that counts first, the others by synchronizer.
func (n *Naive) Contract(id string) string {
	first := counting(n.entries, id)
	if first == nil {
		return ""
	}
	words := []string{n.words.describe(first)}
	var rest []string
	for i := range n.entries {
		if e := n.entries[i]; e.ContractID == id && e.SynchronizerID != first.SynchronizerID {
			rest = append(rest, n.words.describe(e))
		}
	}
	sort.Strings(rest)
	return strings.Join(append(words, rest...), "; ")
}

// EndOf is the contract's last end at or before the offset.
func (n *Naive) EndOf(id string, atOrBefore int64) (index.Ended, bool) {
	for _, end := range slices.Backward(n.ended) {
		if end.ContractID == id && end.Offset <= atOrBefore {
			return end, true
		}
	}
	return index.Ended{}, false
}

// Consumed is the digest's consume at or before the offset.
func (n *Naive) Consumed(scope index.Scope, d wormhole.Digest, atOrBefore int64) (index.Consume, bool) {
	for _, c := range n.consumes {
		if c.Scope == scope && c.Digest == d && c.Offset <= atOrBefore {
			return c, true
		}
	}
	return index.Consume{}, false
}

// NodeLives are the latest nodes at or below the prefix whose end was seen.
func (n *Naive) NodeLives(scope index.Scope, prefix wormhole.Prefix, atOrBefore int64, limit int) []index.NodeLife {
	var ends []index.Ended
	for _, end := range n.ended {
		if end.Scope != nil && *end.Scope == scope && end.How != index.Gone && end.Offset <= atOrBefore && strings.HasPrefix(end.Prefix.String(), prefix.String()) {
			ends = append(ends, end)
		}
	}
	slices.SortStableFunc(ends, func(a, b index.Ended) int {
		return cmp.Or(cmp.Compare(b.Offset, a.Offset), strings.Compare(a.ContractID, b.ContractID))
	})
	var lives []index.NodeLife
	for _, end := range ends[:min(limit, len(ends))] {
		lives = append(lives, index.NodeLife{ContractID: end.ContractID, Prefix: end.Prefix, Created: end.Since, Ended: end.RecordTime})
	}
	return lives
}

// Scopes are the known scopes in the order of reports.
func (n *Naive) Scopes() []index.Scope {
	scopes := slices.Clone(n.scopes)
	sort.Slice(scopes, func(i, j int) bool { return scopeOrder(scopes[i]) < scopeOrder(scopes[j]) })
	return scopes
}

// scopeOrder orders scopes by text: the parts in order, an absent namespace before any.
func scopeOrder(s index.Scope) string {
	return strings.Join([]string{s.PackageName, s.Operator, s.Consumer, fmt.Sprint(map[bool]int{true: 1}[s.Namespace.Present]), s.Namespace.Value}, "\x00")
}

// Missing are the missing digests of the scope, sorted.
func (n *Naive) Missing(scope index.Scope) []wormhole.Digest {
	var ds []wormhole.Digest
	for _, sd := range n.missing {
		if sd.Scope == scope {
			ds = append(ds, sd.Digest)
		}
	}
	sortDigests(ds)
	return ds
}

// Findings says what an audit finds, one line each, sorted.
func (n *Naive) Findings() []string {
	var lines []string
	for _, scope := range n.scopes {
		lines = append(lines, n.trieFindings(scope)...)
	}
	for _, e := range n.ghosts {
		lines = append(lines, findingLine(contractFinding(index.FindingGhost, e)))
	}
	cores := map[string][]string{}
	for _, e := range allCounting(n.entries) {
		switch e.Class {
		case index.Shadow:
			lines = append(lines, findingLine(contractFinding(index.FindingShadow, e)))
		case index.Puppet:
			lines = append(lines, findingLine(contractFinding(index.FindingPuppet, e)))
		case index.Malformed:
			lines = append(lines, findingLine(contractFinding(index.FindingMalformed, e)))
		case index.Refused:
			lines = append(lines, findingLine(contractFinding(index.FindingRefused, e)))
		case index.Authentic:
			if core, ok := e.Payload.(*wormhole.CoreState); ok {
				of := e.PackageName + "\x00" + core.Operator
				cores[of] = append(cores[of], e.ContractID)
			}
		}
	}
	for _, ids := range cores {
		if len(ids) > 1 {
			lines = append(lines, findingLine(index.Finding{Kind: index.FindingDoubledCoreState, ContractIDs: ids}))
		}
	}
	sort.Strings(lines)
	return lines
}

func contractFinding(kind index.FindingKind, e *index.Entry) index.Finding {
	f := index.Finding{Kind: kind, ContractIDs: []string{e.ContractID}}
	if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
		scope := scopeOf(e)
		f.Scope, f.Prefix = &scope, node.Prefix
	}
	return f
}

// trieFindings are the gaps, forks and losses of one scope, each by its definition.
func (n *Naive) trieFindings(scope index.Scope) []string {
	var lines []string
	all := nodes(n.entries, scope)
	// A gap is an uncovered prefix whose parent is not uncovered. It is "" or a child of a prefix above some node.
	candidates := map[string]bool{"": true}
	for _, e := range all {
		p := nodeIn(e, scope).Prefix.String()
		for depth := range len(p) {
			for _, nibble := range "0123456789abcdef" {
				candidates[p[:depth]+string(nibble)] = true
			}
		}
	}
	prefixes := n.prefixes(scope)
	for p := range candidates {
		if uncovered(prefixes, p) && (p == "" || !uncovered(prefixes, p[:len(p)-1])) {
			lines = append(lines, findingLine(index.Finding{Kind: index.FindingGap, Scope: &scope, Prefix: prefixOf(p)}))
		}
	}
	missing := n.Missing(scope)
	done := map[string]bool{}
	for _, e := range all {
		p := nodeIn(e, scope).Prefix
		if !done[p.String()] {
			done[p.String()] = true
			var ids []string
			for _, other := range all {
				if strings.HasPrefix(p.String(), nodeIn(other, scope).Prefix.String()) {
					ids = append(ids, other.ContractID)
				}
			}
			if len(ids) > 1 {
				lines = append(lines, findingLine(index.Finding{Kind: index.FindingFork, Scope: &scope, Prefix: p, ContractIDs: ids}))
			}
		}
		lost := 0
		for _, d := range missing {
			if p.Covers(d) {
				lost++
			}
		}
		if lost > 0 {
			lines = append(lines, findingLine(index.Finding{Kind: index.FindingLoss, Scope: &scope, Prefix: p, ContractIDs: []string{e.ContractID}, Count: lost}))
		}
	}
	return lines
}

func prefixOf(s string) wormhole.Prefix {
	p, err := wormhole.ParsePrefix(s)
	if err != nil {
		panic("indextest: " + err.Error())
	}
	return p
}
