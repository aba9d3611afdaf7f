package api

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/index"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// The states of a follower that matter here; the others are only shown.
const (
	stateHalted  = "halted"
	stateStopped = "stopped"
)

// Status is what the follower of the ledger knows about itself at one moment. It is a value: what it points to is not changed
// any more.
type Status struct {
	// State is the follower's state: connecting, waiting, snapshot, live, reconnecting, halted, stopped. Detail says in one line
	// what is wrong and what to do, where something is.
	State, Detail string
	// ParticipantID is the participant at the other end, "" before it was asked; LedgerAPIVersion is its version.
	ParticipantID, LedgerAPIVersion string
	// LedgerEnd is the ledger end last read.
	LedgerEnd int64
	// ProvenOffset is the offset up to which the index was last proven complete, ProvenAt the moment at which the ledger end behind
	// that proof was asked for; both zero before the first proof. A proof is reported only after the index stands at its offset.
	ProvenOffset int64
	ProvenAt     time.Time
	// LastMessageAt is when the stream last delivered anything; zero before.
	LastMessageAt time.Time
	// HistoryReplaced is why what the index holds is not of the ledger's history any more (rewound, diverged, another_participant), as
	// long as the new index is not in place; else "". It is taken back only after the new view can be seen. HistoryReplacedAt is since when
	// that is known.
	HistoryReplaced   string
	HistoryReplacedAt time.Time
	// HaltedAt is the offset of the update that halted the follower, where known; HaltedAfter the offset after which that update lies, where
	// it was met in the stream.
	HaltedAt, HaltedAfter int64
	// Synchronizers are those that the participant is connected to, sorted.
	Synchronizers []string
	// Packages are the ids of the packages seen in contracts, by package name.
	Packages map[string][]string
}

// unready says why answers must not be given from the view, or returns nil. With allowStale it says only what no caller can
// waive. The status has to be read before the view: the index stands at a proof's offset before the follower reports the proof.
func unready(st Status, view *index.View, now time.Time, bound time.Duration, allowStale bool) *Error {
	if view == nil {
		return failure(NotSeeded, "there is no index yet").with("stream_state", st.State)
	}
	pos := view.Position()
	switch {
	case st.ParticipantID != "" && st.ParticipantID != pos.ParticipantID:
		return failure(NotReady, "the index is of another participant than the one now followed; it is built anew").with("stream_state", st.State)
	case st.HistoryReplaced != "":
		return failure(NotReady, fmt.Sprintf("the ledger's history was replaced (%s): nothing of the former one is served, and the index is built anew", st.HistoryReplaced)).
			with("stream_state", st.State).with("history_replaced", st.HistoryReplaced).with("known_since", st.HistoryReplacedAt.UTC().Format(time.RFC3339Nano))
	case allowStale:
		return nil
	case st.State == stateHalted:
		e := failure(Halted, "the index is halted: an update can't be decoded or applied")
		if st.HaltedAt > 0 {
			e.with("halted_at_offset", strconv.FormatInt(st.HaltedAt, 10))
		}
		if st.HaltedAfter > 0 {
			e.with("halted_after_offset", strconv.FormatInt(st.HaltedAfter, 10))
		}
		return e
	case st.ProvenAt.IsZero() || st.ProvenOffset > pos.Offset:
		return failure(NotReady, "the index was not proven complete yet").with("stream_state", st.State)
	}
	if age := ageOf(st, now); age > bound {
		return failure(Stale, fmt.Sprintf("the last proof of completeness is %s old, the bound is %s", age.Round(time.Millisecond), bound)).
			with("proven_at", st.ProvenAt.UTC().Format(time.RFC3339Nano)).with("age", age.String()).with("bound", bound.String())
	}
	return nil
}

// ageOf is the age of the last proof; it is not negative, whatever the clock does.
func ageOf(st Status, now time.Time) time.Duration { return max(0, now.Sub(st.ProvenAt)) }

// freshness is what an answer says about its age.
func freshness(st Status, view *index.View, now time.Time, bound time.Duration) *disclosurev1.Freshness {
	f := &disclosurev1.Freshness{Bound: durationpb.New(bound), LedgerEnd: st.LedgerEnd, Fresh: unready(st, view, now, bound, false) == nil}
	if !st.ProvenAt.IsZero() {
		f.ProvenAt = timestamppb.New(st.ProvenAt)
		f.Age = durationpb.New(ageOf(st, now))
	}
	return f
}
