package index

import (
	"context"
	"fmt"
)

// Fate is what became of a contract id, as of one view.
type Fate struct {
	// Entry is the entry that counts, while the contract is active or in flight.
	Entry *Entry
	// Ended is the end, where the contract is not there and an end is known.
	Ended *Ended
}

// Word is the fate in a word: active, in_flight, superseded, split, archived, purged, gone, or unknown where the index knows nothing
// of the contract.
func (f Fate) Word() string {
	switch {
	case f.Entry != nil && f.Entry.InFlight:
		return "in_flight"
	case f.Entry != nil:
		return "active"
	case f.Ended != nil:
		return f.Ended.How.String()
	default:
		return "unknown"
	}
}

// FateOf is the fate of the contract as of the view. History is asked only if the contract is not there.
func FateOf(ctx context.Context, v *View, h History, contractID string) (Fate, error) {
	if entries := v.Contract(contractID); len(entries) > 0 {
		return Fate{Entry: entries[0]}, nil
	}
	end, known, err := h.EndOf(ctx, contractID, v.pos.Offset)
	if err != nil {
		return Fate{}, fmt.Errorf("asking history how contract %s ended: %w", contractID, err)
	}
	if !known {
		return Fate{}, nil
	}
	return Fate{Ended: &end}, nil
}
