// Package ledger says what a participant tells us, as domain types: contracts, the updates that activate and deactivate
// them, and the place in the stream. It has no I/O and knows no wire format: ledgerstream produces these types, index
// consumes them, and neither imports the other.
//
// The rules that the types keep (Ledger API 3.5):
//
//   - An offset is a positive number that only the participant which gave it can interpret; offsets have gaps. An update id
//     names the same update on every participant.
//   - A contract is active per synchronizer. Created and Assigned activate it on one, Unassigned deactivates it there;
//     Archived ends it wherever it is active.
//   - The events of one update take effect together.
package ledger

import (
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Contract is one contract as its activation showed it.
type Contract struct {
	// ContractID is the id in lowercase hex.
	ContractID string
	// TemplateID is the template with the package id of the contract's creation.
	TemplateID damlvalue.TypeName
	// PackageName is the package's name, as "wormhole-core".
	PackageName string
	// SynchronizerID is the synchronizer on which this activation holds: an opaque string, never parsed.
	SynchronizerID string
	// ReassignmentCounter is 0 at creation and grows by one with each reassignment.
	ReassignmentCounter uint64
	// Blob is the created event blob, as the participant gave it.
	Blob []byte
	// BlobCheck is what recomputing the contract id from the blob showed.
	BlobCheck BlobCheck
	// BlobFault says in words what a mismatch or an unverifiable blob was about; empty where verified.
	BlobFault string
	// Signatories and Observers are full, sorted and without repeats.
	Signatories, Observers []string
	// CreatedAt is the ledger time of the contract's creation, with microseconds; it survives reassignment and import.
	CreatedAt time.Time
	// Offset is that of the last activation (create or assign).
	Offset int64
	// UpdateID and RecordTime are those of the activating update; empty and zero for a contract read from a snapshot, which
	// does not tell them, where they were not asked for besides.
	UpdateID   string
	RecordTime time.Time
	// Payload is the decoded contract. Exactly one of *wormhole.ReplayNode, *wormhole.CoreState,
	// *wormhole.ReplayRootRegistry, *wormhole.EmitterRegistry, *wormhole.Emitter, or *wormhole.Malformed for a contract
	// of one of these templates whose record has the right shape and impossible content.
	Payload wormhole.Payload
}

// BlobCheck is the result of checking a created event blob against its event and its contract id.
type BlobCheck uint8

const (
	// BlobUnchecked is the zero value: nothing was checked. Contracts in this state are not served.
	BlobUnchecked BlobCheck = iota
	// BlobVerified: the blob agrees with its event, and the contract id recomputes from it.
	BlobVerified
	// BlobUnverifiable: the blob agrees with its event as far as can be seen, but its id can't be recomputed, because the
	// shape of its package version or the version of its id is not known. Served, flagged and counted.
	BlobUnverifiable
	// BlobMismatch: the blob disagrees with its event or its id. Refused and alarmed.
	BlobMismatch
	// BlobMissing: the event came without a blob. Never served.
	BlobMissing
)

// String is the check's name as metrics and answers use it.
func (c BlobCheck) String() string {
	switch c {
	case BlobVerified:
		return "verified"
	case BlobUnverifiable:
		return "unverifiable"
	case BlobMismatch:
		return "mismatch"
	case BlobMissing:
		return "missing"
	default:
		return "unchecked"
	}
}

// EventKind tells what an event does to activeness.
type EventKind uint8

const (
	// Created: Contract becomes active on its synchronizer.
	Created EventKind = iota + 1
	// Archived: ContractID ends, wherever it is active.
	Archived
	// Assigned: Contract becomes active on its synchronizer (the reassignment's target), coming from Source. Where source and
	// target are equal it is a party import, with no unassignment before it.
	Assigned
	// Unassigned: ContractID stops being active on Source and is on its way to Target. Where they are equal it is a purge, and
	// no assignment follows.
	Unassigned
)

// String is the kind's name in lowercase.
func (k EventKind) String() string {
	switch k {
	case Created:
		return "created"
	case Archived:
		return "archived"
	case Assigned:
		return "assigned"
	case Unassigned:
		return "unassigned"
	default:
		return "unknown"
	}
}

// Event is one change of activeness.
type Event struct {
	Kind EventKind
	// ContractID is set for every kind.
	ContractID string
	// TemplateID is the contract's template; for Archived its package id is that of the version that was exercised, which can
	// differ from the creation's.
	TemplateID damlvalue.TypeName
	// Contract is set for Created and Assigned.
	Contract *Contract
	// Source and Target are synchronizer ids, set for Assigned and Unassigned.
	Source, Target string
	// ReassignmentCounter is set for Assigned and Unassigned; an unassignment and its assignment have the same.
	ReassignmentCounter uint64
}

// Update is one update of the ledger: its events, in order, take effect together.
type Update struct {
	// Offset is positive and greater than that of any update before.
	Offset int64
	// UpdateID names the update on every participant.
	UpdateID string
	// RecordTime is the synchronizer's time of the update.
	RecordTime time.Time
	// SynchronizerID is where the update was sequenced.
	SynchronizerID string
	Events         []Event
}

// Batch is a run of consecutive updates, and how far the stream is known to be complete after them.
type Batch struct {
	// ParticipantID is the participant whose offsets these are.
	ParticipantID string
	// After is the offset that the batch continues from: the index must stand exactly there.
	After int64
	// Updates are in ascending order of offset, all > After and ≤ Through. May be empty: then only the place moves.
	Updates []Update
	// Through is the offset up to which everything that matches our filter is in this batch or before it; ≥ After.
	Through int64
}

// Position is a place on one participant's ledger.
type Position struct {
	// ParticipantID is the participant whose offset this is.
	ParticipantID string
	// Offset is the offset up to which the index is complete; 0 is the ledger's beginning.
	Offset int64
	// UpdateOffset, UpdateID and RecordTime are those of the last update at or before Offset that matches the filter, whether the index
	// applied it or was seeded after it: there is none between the two. Zero where there was none; UpdateID is empty where the participant
	// had forgotten the update when the index was seeded.
	UpdateOffset int64
	UpdateID     string
	RecordTime   time.Time
	// Filter is SeedStart.Filter of the generation; empty from a store that does not keep it.
	Filter string
	// Reseed is why the index must be built anew whatever the ledger says; it is told where an index is asked for its place, and empty
	// as a rule.
	Reseed SeedReason
}

// InFlight is a contract that was unassigned from one synchronizer and not yet assigned to the next.
type InFlight struct {
	// Contract is the contract as last seen active, on Source.
	Contract Contract
	Source   string
	Target   string
	// ReassignmentCounter is that of the unassignment.
	ReassignmentCounter uint64
}
