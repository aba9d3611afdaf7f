package main

import (
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/telemetry"
)

// streamMetrics are the follower's hooks over the process's metrics.
func streamMetrics(m *telemetry.Stream) ledgerstream.Metrics {
	return ledgerstream.Metrics{
		State:     func(s ledgerstream.State) { m.State(string(s)) },
		Update:    m.Update,
		Ignored:   m.Ignored,
		Blob:      func(c ledger.BlobCheck) { m.Blob(c.String()) },
		Applied:   m.Applied,
		Seeded:    func(_ ledger.SeedReason, contracts int, took time.Duration) { m.Seeded(contracts, took) },
		Reconnect: m.Reconnect,
		Reseed:    func(r ledger.SeedReason) { m.Reseed(string(r)) },
		Halt:      m.Halt,
		Proof:     m.Proof,
	}
}

// watchLevels makes each scrape ask the index and the follower where they stand.
func watchLevels(m *telemetry.Metrics, current *late) {
	m.Stream.Watch(time.Now, func() telemetry.StreamLevels {
		o := current.opened.Load()
		if o == nil {
			return telemetry.StreamLevels{State: string(ledgerstream.StateConnecting)}
		}
		s := o.follower.Status()
		return telemetry.StreamLevels{
			State: string(s.State), LedgerEnd: s.LedgerEnd, ProvenOffset: s.ProvenOffset, ProvenAt: s.ProvenAt,
			LastMessageAt: s.LastMessageAt, HaltedAt: s.HaltedAt, HaltedAfter: s.HaltedAfter, StuckAt: s.StuckAt,
			HistoryReplaced: s.HistoryReplaced != "",
		}
	})
	m.Index.Watch(func() (telemetry.IndexLevels, bool) {
		view := current.View()
		if view == nil {
			return telemetry.IndexLevels{}, false
		}
		stats := view.Stats()
		levels := telemetry.IndexLevels{
			Offset: view.Position().Offset, Scopes: stats.Scopes, Nodes: stats.Nodes, Digests: stats.Digests,
			Contracts: stats.Contracts, Unverifiable: stats.Unverifiable, Missing: stats.Missing,
			Classes: map[telemetry.TemplateClass]int{}, Findings: map[string]int{},
		}
		for key, n := range stats.Classes {
			levels.Classes[telemetry.TemplateClass{Template: key.Template, Class: key.Class.String()}] += n
		}
		counts := view.FindingCounts()
		for _, kind := range index.FindingKinds {
			levels.Findings[string(kind)] = counts[kind]
		}
		return levels, true
	})
}

// countPublication counts what a batch brought that a clean stream does not, and times its commit.
func countPublication(m *telemetry.Index) func(index.Publication) {
	return func(p index.Publication) {
		if p.Stats == nil {
			return
		}
		m.Committed(p.Commit)
		m.Oddity("unknown_archive", p.Stats.UnknownArchives)
		m.Oddity("unknown_unassign", p.Stats.UnknownUnassigns)
		m.Oddity("assigned_first", p.Stats.AssignedFirst)
		m.Oddity("stale", p.Stats.Stale)
		m.Oddity("import", p.Stats.Imports)
		m.Oddity("purge", p.Stats.Purges)
	}
}
