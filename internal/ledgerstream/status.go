package ledgerstream

import (
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
)

// State is what the follower is doing.
type State string

const (
	// StateConnecting: not yet connected, or checking who is at the other end.
	StateConnecting State = "connecting"
	// StateWaiting: connected, but something that only an operator can mend is missing (a package, a right); tried again.
	StateWaiting State = "waiting"
	// StateSnapshot: reading the active contracts for a new generation.
	StateSnapshot State = "snapshot"
	// StateLive: following the stream.
	StateLive State = "live"
	// StateReconnecting: the stream ended or failed; a new one is coming.
	StateReconnecting State = "reconnecting"
	// StateHalted: an update can't be decoded or applied; the offset does not move until that is mended.
	StateHalted State = "halted"
	// StateStopped: stopped by our own wish.
	StateStopped State = "stopped"
)

// Status is what the follower knows about itself at one moment; it is a value, safe to keep.
type Status struct {
	State State
	// Since is when State was entered.
	Since time.Time
	// Detail says in one line what is wrong and what to do, where State is waiting, reconnecting or halted.
	Detail string
	// ParticipantID is the participant at the other end; empty before it was asked.
	ParticipantID string
	// LedgerAPIVersion is the participant's version, as "3.5.10".
	LedgerAPIVersion string
	// LedgerEnd is the ledger end last read, and LedgerEndAt when that was.
	LedgerEnd   int64
	LedgerEndAt time.Time
	// ProvenOffset is the offset up to which the index was last proven complete; ProvenAt is the moment at which the ledger end
	// behind that proof was asked for. Freshness is the age of ProvenAt. Zero before the first proof.
	ProvenOffset int64
	ProvenAt     time.Time
	// HistoryReplaced is why what the index holds is not, or not known to be, of the history of the ledger at the other end
	// (another_participant, rewound, diverged; first where there is no index), and must not be served however old an answer may be. Empty
	// while it is; it is set before the snapshot is begun that mends it, and until that is in place, and ProvenAt is zero meanwhile.
	// HistoryReplacedAt is since when it is known.
	HistoryReplaced   ledger.SeedReason
	HistoryReplacedAt time.Time
	// LastMessageAt is when the stream last delivered anything.
	LastMessageAt time.Time
	// HaltedAt is the offset of the update that halted the follower, 0 where it is not known or not halted.
	HaltedAt int64
	// HaltedAfter is the offset after which the update lies that halted the follower: the index holds everything up to it. It is known
	// also where the update does not tell its own offset, because it is too large to be received, say. 0 where not halted, or in a snapshot.
	HaltedAfter int64
	// StuckAt is the offset after which the stream has ended without progress at least three times in a row, 0 where that is
	// not so.
	StuckAt int64
	// Synchronizers are those the participant is connected to, sorted.
	Synchronizers []string
	// Packages are the ids of the packages seen in events, by package name.
	Packages map[string][]string
	// Reconnects and Reseeds count since the start of the process.
	Reconnects, Reseeds uint64
}
