package ledgerstream

import (
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
)

// Metrics are hooks that the follower calls; any may be nil. They are called from several goroutines and must return at once.
// Every string they get comes from a bounded set. What is a level rather than an event (offsets, ages) is in Status.
type Metrics struct {
	// State is called when the follower enters a state.
	State func(State)
	// Update is called for each message of an update stream: "transaction", "reassignment", "topology", "checkpoint".
	Update func(kind string)
	// Ignored is called for each thing that arrived and was left out: see the Ignored… constants.
	Ignored func(what string)
	// Blob is called with the check of each contract's blob.
	Blob func(ledger.BlobCheck)
	// Applied is called after each Apply that succeeded.
	Applied func(updates, events int, took time.Duration)
	// Seeded is called after each generation that was committed.
	Seeded func(reason ledger.SeedReason, contracts int, took time.Duration)
	// Reconnect is called when a connection ends, with the reason: a Ledger API error's reason, or a gRPC code, in lower case,
	// or one of the follower's own words (eof, stalled, connection_lost, another_participant, tail_behind, rewound,
	// hosting, out_of_order, sink, requested, templates).
	Reconnect func(reason string)
	// Reseed is called when a snapshot for a new generation is begun; one that fails is begun again.
	Reseed func(ledger.SeedReason)
	// Halt is called each time the follower halts: "undecodable", "oversized" or "unknown_kind".
	Halt func(reason string)
	// Proof is called with the time between the question for the ledger end and the proof of completeness up to it.
	Proof func(took time.Duration)
}

// What Metrics.Ignored counts.
const (
	// IgnoredTemplate: an event of a template or package that was not asked for; the batch of a reassignment can carry them.
	IgnoredTemplate = "template"
	// IgnoredNotDelta: a created event that does not change what is active (acs_delta unset): transient or divulged.
	IgnoredNotDelta = "not_acs_delta"
	// IgnoredExercise: an exercise that does not archive.
	IgnoredExercise = "exercise"
	// IgnoredEmpty: a message or event without any content.
	IgnoredEmpty = "empty"
	// IgnoredSeen: an update at or below the index's offset, which another stream had already brought.
	IgnoredSeen = "seen"
	// IgnoredHosting: a topology event that does not change what we see.
	IgnoredHosting = "hosting"
	// IgnoredIncompleteAssigned: an assignment of a snapshot whose contract has not left its source yet; the snapshot's active
	// contracts say where it is active.
	IgnoredIncompleteAssigned = "incomplete_assigned"
)

func (m *Metrics) state(s State) {
	if m.State != nil {
		m.State(s)
	}
}

func (m *Metrics) update(kind string) {
	if m.Update != nil {
		m.Update(kind)
	}
}

func (m *Metrics) ignored(what string) {
	if m.Ignored != nil {
		m.Ignored(what)
	}
}

func (m *Metrics) blob(c ledger.BlobCheck) {
	if m.Blob != nil {
		m.Blob(c)
	}
}

func (m *Metrics) applied(batch ledger.Batch, took time.Duration) {
	if m.Applied == nil {
		return
	}
	events := 0
	for _, u := range batch.Updates {
		events += len(u.Events)
	}
	m.Applied(len(batch.Updates), events, took)
}

func (m *Metrics) seeded(reason ledger.SeedReason, contracts int, took time.Duration) {
	if m.Seeded != nil {
		m.Seeded(reason, contracts, took)
	}
}

func (m *Metrics) reconnect(reason string) {
	if m.Reconnect != nil {
		m.Reconnect(reason)
	}
}

func (m *Metrics) reseed(reason ledger.SeedReason) {
	if m.Reseed != nil {
		m.Reseed(reason)
	}
}

func (m *Metrics) halt(reason string) {
	if m.Halt != nil {
		m.Halt(reason)
	}
}

func (m *Metrics) proof(took time.Duration) {
	if m.Proof != nil {
		m.Proof(took)
	}
}
