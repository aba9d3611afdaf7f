package index

import (
	"maps"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// Stats are the sizes of a view. They are kept in step and cost nothing to read.
type Stats struct {
	// Contracts counts contract ids of every class; Classes the same by template and class.
	Contracts int
	Classes   map[TemplateClass]int
	// Unverifiable counts contracts whose blob could not be checked in full and that are served all the same.
	Unverifiable int
	// Scopes, Nodes and Digests count known scopes, the authentic nodes in them, and the digests that these hold.
	Scopes, Nodes, Digests int
	// Missing counts digests that a trie once held and holds no more.
	Missing int
}

// Stats are the view's sizes.
func (v *View) Stats() Stats {
	return Stats{
		Contracts:    v.tallies.contracts,
		Classes:      maps.Clone(v.tallies.classes),
		Unverifiable: v.tallies.unverifiable,
		Scopes:       v.scopes.Len(),
		Nodes:        v.tallies.nodes,
		Digests:      v.tallies.digests,
		Missing:      v.tallies.missing,
	}
}

// ScopeStats are the sizes of one scope.
type ScopeStats struct {
	Scope Scope
	// Nodes are the authentic nodes, Digests what they hold, Missing what the trie once held and holds no more.
	Nodes, Digests, Missing int
	// Deepest is the length of the longest prefix, 0..63.
	Deepest int
	// Gaps, Forks and Losses count findings.
	Gaps, Forks, Losses int
}

// ScopeStats are the scope's sizes. The error is an *UnknownScopeError.
func (v *View) ScopeStats(scope Scope) (ScopeStats, error) {
	s, err := v.trie(scope)
	if err != nil {
		return ScopeStats{}, err
	}
	stats := ScopeStats{Scope: scope, Digests: s.digests, Missing: s.missing.len(), Losses: s.losses}
	if s.nodes == nil {
		stats.Gaps = 1
		return stats, nil
	}
	stats.Nodes = int(s.nodes.sums.entries)
	stats.Deepest = min(int(s.nodes.sums.height), wormhole.MaxPrefixNibbles)
	stats.Gaps = int(s.nodes.sums.gaps)
	stats.Forks = int(s.nodes.sums.forks[0])
	return stats, nil
}
