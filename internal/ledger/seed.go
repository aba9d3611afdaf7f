package ledger

import (
	"context"
	"errors"
	"time"
)

// ErrLostLease says that another writer has taken the index over: this one must stop writing at once.
var ErrLostLease = errors.New("the writer's lease was lost to another process")

// ErrNotNext says that a batch does not continue from the offset at which the index stands.
var ErrNotNext = errors.New("the batch does not continue from the index's offset")

// SeedStart says what a new generation is made from.
type SeedStart struct {
	ParticipantID string
	// Offset is the ledger end at which the snapshot is taken: the generation's first offset.
	Offset int64
	// Reason is why; it decides what of the old generation can still be believed.
	Reason SeedReason
	// Filter names what was asked of the participant (parties and templates), opaque: it is kept with the generation and given
	// back in Position, so that a change of configuration is noticed.
	Filter string
}

// SeedReason is why an index is built anew. The values are the metric's labels.
type SeedReason string

const (
	// SeedFirst: there was no index.
	SeedFirst SeedReason = "first"
	// SeedPruned: the participant was pruned past our offset, so archives were missed. Same participant, same history.
	SeedPruned SeedReason = "pruned"
	// SeedAnotherParticipant: the address leads to another participant; our offsets mean nothing there.
	SeedAnotherParticipant SeedReason = "another_participant"
	// SeedRewound: the ledger end lies before our offset: the participant was restored to an earlier state.
	SeedRewound SeedReason = "rewound"
	// SeedDiverged: the update at our offset is another one than we applied: another history.
	SeedDiverged SeedReason = "diverged"
	// SeedRightsChanged: the parties that we read as, or their hosting, changed: contracts may have become visible without
	// an event. Same history.
	SeedRightsChanged SeedReason = "rights_changed"
	// SeedRequested: an operator asked for it. Same history.
	SeedRequested SeedReason = "requested"
	// SeedConfigChanged: the filter or the read parties differ from those that the index was built with. Same history.
	SeedConfigChanged SeedReason = "config_changed"
	// SeedDamaged: the store gave back what was never written to it. Same history.
	SeedDamaged SeedReason = "damaged"
)

// SameHistory reports whether what the old generation saw archived still holds in the new one.
func (r SeedReason) SameHistory() bool {
	switch r {
	case SeedPruned, SeedRightsChanged, SeedRequested, SeedConfigChanged, SeedDamaged:
		return true
	default:
		return false
	}
}

// Seed is a generation being built. Exactly one of Commit and Abort ends it; Abort after Commit does nothing.
type Seed interface {
	// Add adds contracts that are active at the seed's offset.
	Add(ctx context.Context, contracts []Contract) error
	// AddInFlight adds contracts that are in flight at the seed's offset.
	AddInFlight(ctx context.Context, inFlight []InFlight) error
	// Anchor says what the last update at or before the snapshot is that matches the filter: Position's UpdateOffset, UpdateID and RecordTime of
	// the generation until an update is applied. With it a history that was replaced is noticed, and answers can name an update from the
	// beginning. The offset is positive and not past the seed's; the id is empty and the time zero where the participant has
	// forgotten the update. It is called at most once, before Commit; not at all where there is no such update.
	Anchor(offset int64, updateID string, recordTime time.Time)
	// Commit puts the generation in the old one's place, in one step.
	Commit(ctx context.Context) error
	// Abort drops the generation.
	Abort(ctx context.Context) error
}
