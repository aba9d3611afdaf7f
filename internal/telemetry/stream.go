package telemetry

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StreamStates are the follower's states, the values of disclosured_stream_state's label.
var StreamStates = []string{"connecting", "waiting", "snapshot", "live", "reconnecting", "halted", "stopped"}

// StreamLevels is what the follower knows about itself at one moment.
type StreamLevels struct {
	// State is one of StreamStates.
	State string
	// LedgerEnd is the ledger end last read, ProvenOffset the offset up to which the index was last proven complete.
	LedgerEnd, ProvenOffset int64
	// ProvenAt and LastMessageAt are zero before the first.
	ProvenAt, LastMessageAt time.Time
	// HaltedAt, HaltedAfter and StuckAt are offsets, 0 where not the case or not known.
	HaltedAt, HaltedAfter, StuckAt int64
	// HistoryReplaced says that what the index holds is of a history that another one has replaced.
	HistoryReplaced bool
}

// Stream is the metrics of following the ledger. Its methods can be called concurrently.
type Stream struct {
	levels                                       *sampled
	state, end, proven, proofAge, messageAge     *prometheus.Desc
	haltedAt, haltedAfter, stuckAt, replaced     *prometheus.Desc
	entered, updates, ignored, blobs             *prometheus.CounterVec
	reconnects, reseeds, halts, applied, events  *prometheus.CounterVec
	applySeconds, seedSeconds, proofSeconds      *prometheus.HistogramVec
	states, updateKinds, ignoredKinds, checks    bounded
	reconnectReasons, reseedReasons, haltReasons bounded
	seeded                                       *prometheus.CounterVec
}

func newStream(registry *prometheus.Registry) *Stream {
	s := &Stream{levels: &sampled{}}
	s.state = s.levels.desc("disclosured_stream_state", "1 for the follower's present state, 0 for the others.", "state")
	s.end = s.levels.desc("disclosured_stream_ledger_end_offset", "The participant's ledger end, as last read.")
	s.proven = s.levels.desc("disclosured_stream_proven_offset", "The offset up to which the index was last proven complete.")
	s.proofAge = s.levels.desc("disclosured_stream_proof_age_seconds", "Age of the last proof that the index is complete; +Inf before the first.")
	s.messageAge = s.levels.desc("disclosured_stream_last_message_age_seconds", "Time since the update stream last delivered anything; +Inf before the first. Silence alone is no fault.")
	s.haltedAt = s.levels.desc("disclosured_stream_halted_at_offset", "The offset of the update that halted the follower, 0 where not halted or not known.")
	s.haltedAfter = s.levels.desc("disclosured_stream_halted_after_offset", "The offset after which the update lies that halted the follower, which is known also where the update does not tell its own; 0 where not halted.")
	s.replaced = s.levels.desc("disclosured_stream_history_replaced", "1 while the index is of a history of the ledger that another one has replaced, so that nothing of it is served; else 0.")
	s.stuckAt = s.levels.desc("disclosured_stream_stuck_at_offset", "The offset after which the stream ended without progress again and again, 0 where it did not.")
	registry.MustRegister(s.levels)
	s.entered = counter(registry, "disclosured_stream_state_entered_total", "States entered.", "state")
	s.updates = counter(registry, "disclosured_stream_updates_total", "Messages of update streams.", "kind")
	s.ignored = counter(registry, "disclosured_stream_ignored_total", "What arrived and was left out.", "what")
	s.blobs = counter(registry, "disclosured_stream_blobs_total", "Created event blobs by the result of their check.", "check")
	s.reconnects = counter(registry, "disclosured_stream_reconnects_total", "Connections ended, by reason.", "reason")
	s.reseeds = counter(registry, "disclosured_stream_reseeds_total", "Times that the index had to be built anew, by reason.", "reason")
	s.halts = counter(registry, "disclosured_stream_halts_total", "Times that the follower halted, by reason.", "reason")
	s.applied = counter(registry, "disclosured_stream_applied_updates_total", "Updates applied to the index.")
	s.events = counter(registry, "disclosured_stream_applied_events_total", "Events applied to the index.")
	s.seeded = counter(registry, "disclosured_stream_seeded_contracts_total", "Contracts read by snapshots that were put in place.")
	s.applySeconds = histogram(registry, "disclosured_stream_apply_seconds", "Time to apply one batch of updates, commit included.", latency)
	s.seedSeconds = histogram(registry, "disclosured_stream_seed_seconds", "Time to read a snapshot and put it in place.", []float64{.1, .5, 1, 5, 10, 30, 60, 300, 900})
	s.proofSeconds = histogram(registry, "disclosured_stream_proof_seconds", "Time from the question for the ledger end to the proof of completeness up to it.", latency)
	fromZero(s.entered, &s.states, StreamStates...)
	fromZero(s.blobs, &s.checks, "verified", "unverifiable", "mismatch", "missing")
	fromZero(s.reseeds, &s.reseedReasons, "first", "pruned", "another_participant", "rewound", "diverged", "rights_changed", "requested", "config_changed", "damaged")
	return s
}

// Watch gives the function that is asked for the levels at each scrape, and the clock for ages.
func (s *Stream) Watch(now func() time.Time, levels func() StreamLevels) {
	age := func(t time.Time) float64 {
		if t.IsZero() {
			return math.Inf(1)
		}
		return max(0, now().Sub(t).Seconds())
	}
	s.levels.watch(func(emit func(*prometheus.Desc, float64, ...string)) {
		l := levels()
		for _, state := range StreamStates {
			emit(s.state, oneIf(state == l.State), state)
		}
		emit(s.end, float64(l.LedgerEnd))
		emit(s.proven, float64(l.ProvenOffset))
		emit(s.proofAge, age(l.ProvenAt))
		emit(s.messageAge, age(l.LastMessageAt))
		emit(s.haltedAt, float64(l.HaltedAt))
		emit(s.haltedAfter, float64(l.HaltedAfter))
		emit(s.stuckAt, float64(l.StuckAt))
		emit(s.replaced, oneIf(l.HistoryReplaced))
	})
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// State counts a state entered.
func (s *Stream) State(state string) { s.entered.WithLabelValues(s.states.value(state)).Inc() }

// Update counts a message of an update stream.
func (s *Stream) Update(kind string) { s.updates.WithLabelValues(s.updateKinds.value(kind)).Inc() }

// Ignored counts something that arrived and was left out.
func (s *Stream) Ignored(what string) { s.ignored.WithLabelValues(s.ignoredKinds.value(what)).Inc() }

// Blob counts a created event blob by its check's result.
func (s *Stream) Blob(check string) { s.blobs.WithLabelValues(s.checks.value(check)).Inc() }

// Applied reports a batch that was applied.
func (s *Stream) Applied(updates, events int, took time.Duration) {
	s.applied.WithLabelValues().Add(float64(updates))
	s.events.WithLabelValues().Add(float64(events))
	s.applySeconds.WithLabelValues().Observe(took.Seconds())
}

// Seeded reports a snapshot that was put in place.
func (s *Stream) Seeded(contracts int, took time.Duration) {
	s.seeded.WithLabelValues().Add(float64(contracts))
	s.seedSeconds.WithLabelValues().Observe(took.Seconds())
}

// Reconnect counts the end of a connection.
func (s *Stream) Reconnect(reason string) {
	s.reconnects.WithLabelValues(s.reconnectReasons.value(reason)).Inc()
}

// Reseed counts a need to build the index anew.
func (s *Stream) Reseed(reason string) {
	s.reseeds.WithLabelValues(s.reseedReasons.value(reason)).Inc()
}

// Halt counts a halt.
func (s *Stream) Halt(reason string) { s.halts.WithLabelValues(s.haltReasons.value(reason)).Inc() }

// Proof reports the time from the question for the ledger end to the proof.
func (s *Stream) Proof(took time.Duration) { s.proofSeconds.WithLabelValues().Observe(took.Seconds()) }
