package index

import (
	"context"
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Scope names one replay trie: whose digests it holds, under which operator, in which namespace, by which package.
type Scope struct {
	PackageName string
	Operator    string
	Consumer    string
	// Namespace tells an absent namespace (older package versions) from "".
	Namespace wormhole.Namespace
}

// Policy decides which contracts count. The zero Policy accepts no CoreState and any operator.
type Policy struct {
	// PackageIDs pins package ids by package name: a contract of that name whose template's package id is not listed does
	// not count. A name that is not a key is not pinned by id.
	PackageIDs map[string][]string
	// Operators are the operators whose contracts count; none means any.
	Operators []string
	// GuardianGovernance is the party that, with an accepted operator, makes a CoreState the authentic one; "" accepts none.
	GuardianGovernance string
}

// Class is what the policy makes of a contract.
type Class uint8

const (
	// Authentic contracts count and are served.
	Authentic Class = iota + 1
	// Unpinned: the template's package id is not among those pinned.
	Unpinned
	// Shadow: its operator is not a configured one.
	Shadow
	// Puppet: its signatories lack a party that its payload names, or it is a CoreState of another guardian governance.
	Puppet
	// Malformed: its payload has content that the model can't produce.
	Malformed
	// Refused: its blob is missing, unchecked, or disagrees with its event or its contract id.
	Refused
)

// Key is where a contract is active: contracts are active per synchronizer.
type Key struct {
	ContractID     string
	SynchronizerID string
}

// Entry is one activation as the index holds it. Entries are immutable: a change makes a new one.
type Entry struct {
	ledger.Contract
	Class Class
	// ParentID is the contract id of the node that was archived in the update that created this one and whose prefix covers
	// its own; "" where there was none or it is not known (a snapshot does not tell).
	ParentID string
	// InFlight is set between unassignment and assignment: the contract is active nowhere. Target is where it is bound, and
	// the entry's SynchronizerID is where it left; ReassignmentCounter is the unassignment's.
	InFlight bool
	Target   string
}

// Key is the entry's key.
func (e *Entry) Key() Key { return Key{e.ContractID, e.SynchronizerID} }

// Consume is one digest's entry into a trie, as the stream showed it: the update that archived a covering node without the
// digest and created one with it.
type Consume struct {
	Scope      Scope
	Digest     wormhole.Digest
	Offset     int64
	UpdateID   string
	RecordTime time.Time
}

// How is how a contract ended.
type How uint8

const (
	// Superseded: archived in an update that created exactly one successor in its place (a consume, a governance action).
	Superseded How = iota + 1
	// Split: archived in an update that created, in its place, nodes that partition its prefix: as a rule its 16 children,
	// more where the same update split one of these again.
	Split
	// ArchivedOnly: archived, with nothing in its place.
	ArchivedOnly
	// Purged: removed by the participant's operator from this participant; it may live on elsewhere.
	Purged
	// Gone: active before a reseed and not after it: ended somewhere in between, unseen.
	Gone
)

// Ended is the end of one contract.
type Ended struct {
	ContractID string
	How        How
	// AfterOffset and Offset bound when: the contract ended after AfterOffset and at or before Offset. For all but Gone the end
	// was seen, at Offset exactly, by UpdateID at RecordTime; for Gone both are empty.
	AfterOffset, Offset int64
	UpdateID            string
	RecordTime          time.Time
	// Successors are the contract ids in its place: one for Superseded, 16 or more in the order of their prefixes for Split.
	Successors []string
	// Scope and Prefix are set for replay nodes.
	Scope  *Scope
	Prefix wormhole.Prefix
	// Since is the record time of the contract's last activation, zero where it is not known (read from a snapshot).
	Since time.Time
}

// ScopedDigest is a digest within a scope.
type ScopedDigest struct {
	Scope  Scope
	Digest wormhole.Digest
}

// UpdateRef is one applied update.
type UpdateRef struct {
	Offset     int64
	UpdateID   string
	RecordTime time.Time
}

// Delta is what one batch changes, computed once from the view and stored as it is: the store decides nothing, so that the
// view and the database can't come to different conclusions.
type Delta struct {
	From, To ledger.Position
	// Put are entries that are new or changed; they replace what has their key.
	Put []*Entry
	// Remove are keys that are no longer there. No key is in both.
	Remove []Key
	// Consumes, Ended and Updates are history, in ledger order.
	Consumes []Consume
	Ended    []Ended
	Updates  []UpdateRef
	// Scopes are those that came to exist in this batch, whether or not a node of theirs is left in Put.
	Scopes []Scope
	// MissingAdd and MissingRemove change the set of digests that a trie once held and no active node holds now; what remains of
	// it under an active node is a loss. No digest is in both.
	MissingAdd, MissingRemove []ScopedDigest
	// Stats counts what the batch brought, for metrics. It is not stored.
	Stats ApplyStats
}

// FindingKind is the kind of an audit finding. The values are metric labels.
type FindingKind string

const (
	// FindingGap: no active node covers a part of a trie's digest space. Nothing in it verifies.
	FindingGap FindingKind = "gap"
	// FindingFork: two or more active nodes cover one digest: parallel roots, twins, or a node beside its descendant.
	FindingFork FindingKind = "fork"
	// FindingLoss: an active node lacks a digest that a node in its place once held: it could be consumed again.
	FindingLoss FindingKind = "loss"
	// FindingGhost: a contract that the stream showed archived was active in a snapshot of the same history. Not served.
	FindingGhost FindingKind = "ghost"
	// FindingShadow: contracts of an operator that is not configured.
	FindingShadow FindingKind = "shadow"
	// FindingPuppet: contracts that are not authentic: a party that they name did not sign, or another guardian governance.
	FindingPuppet FindingKind = "puppet"
	// FindingMalformed: a contract whose content the model can't produce.
	FindingMalformed FindingKind = "malformed"
	// FindingRefused: a contract whose blob is missing or does not belong to it.
	FindingRefused FindingKind = "refused"
	// FindingDoubledCoreState: two or more authentic CoreStates.
	FindingDoubledCoreState FindingKind = "doubled_core_state"
)

// FindingKinds are all kinds, in the order of reports.
var FindingKinds = []FindingKind{FindingGap, FindingFork, FindingLoss, FindingGhost, FindingShadow, FindingPuppet, FindingMalformed, FindingRefused, FindingDoubledCoreState}

// Serious reports whether findings of the kind mean that the audit is not clean: shadows and puppets are other people's
// contracts, which anyone can make at will.
func (k FindingKind) Serious() bool { return k != FindingShadow && k != FindingPuppet }

// Finding is one thing that the audit found. Findings are a function of the index's state: the same state gives the same
// findings in the same order, however it came about.
type Finding struct {
	Kind FindingKind
	// Scope is nil for findings that have none.
	Scope *Scope
	// Prefix is the part of the digest space concerned, where there is one: the uncovered subspace of a gap, the lower node's prefix
	// of a fork, the node's prefix of a loss.
	Prefix wormhole.Prefix
	// ContractIDs are the contracts concerned, sorted.
	ContractIDs []string
	// Count is how many digests a loss concerns, else 0.
	Count int
	// Detail says it in words.
	Detail string
}

// Store keeps the index durably. It is owned by this package and implemented by index/postgres; the View alone serves where
// there is none.
//
// Contract. One process writes: every writing method fails with an error that wraps ledger.ErrLostLease once another has taken
// over, and has then changed nothing. A method that returns another error may or may not have taken effect (a commit's outcome
// can be unknown): the caller asks Position again. A Delta's rows, history and place are written in one transaction. Reads see one
// committed state each.
type Store interface {
	// Position is the place of the present generation; ok is false where there is none.
	Position(ctx context.Context) (pos ledger.Position, ok bool, err error)
	// Load reads the present generation whole, at one committed state. A row that can't be decoded is no error: the rest is read, and
	// Loaded tells of it.
	Load(ctx context.Context, each func(*Entry) error) (Loaded, error)
	// Commit appends a delta, if the store stands exactly at delta.From; else an error that wraps ledger.ErrNotNext.
	Commit(ctx context.Context, delta Delta) error
	// BeginSeed starts a generation beside the present one.
	BeginSeed(ctx context.Context, start ledger.SeedStart) (StoreSeed, error)
	History
}

// Loaded is what Load read besides the entries.
type Loaded struct {
	Position   ledger.Position
	Generation int64
	// Missing is the set that Delta's MissingAdd and MissingRemove maintain.
	Missing []ScopedDigest
	// KnownScopes are scopes that exist although no active node may be left in them.
	KnownScopes []Scope
	// Ghosts are the contracts found to be ghosts when the generation was seeded.
	Ghosts []*Entry
	// HistorySince is the offset after which history is complete: consumes and ends at or before it may be unknown.
	HistorySince int64
	// Unreadable is what of the generation no sense could be made of. It is not among the rest.
	Unreadable Unreadable
}

// Unreadable are rows of a store that can't be decoded: damage, like a row that says what was never written.
type Unreadable struct {
	Rows int
	// First says what is wrong with one of them, nil where there is none.
	First error
}

// Note adds a row.
func (u *Unreadable) Note(err error) {
	if u.Rows == 0 {
		u.First = err
	}
	u.Rows++
}

// StoreSeed is a generation being written. Exactly one of Commit and Abort ends it.
type StoreSeed interface {
	// Add writes entries of the new generation; an entry replaces one that was added with its key. An entry already known to have
	// ended, in a history that still holds, must not be added: see Ended.
	Add(ctx context.Context, entries []*Entry) error
	// Ended tells which of the contract ids are known to have ended, in the store's history.
	Ended(ctx context.Context, contractIDs []string) (map[string]Ended, error)
	// Commit puts the generation in the old one's place, with what the change of generation itself adds to history. Where the
	// history does not go on (start.Reason), the old history is dropped in the same transaction.
	Commit(ctx context.Context, end SeedEnd) error
	Abort(ctx context.Context) error
}

// SeedEnd is what a change of generation adds.
type SeedEnd struct {
	Position ledger.Position
	// Ended are contracts of the old generation that are not in the new one (How Gone).
	Ended []Ended
	// Ghosts are contracts that the snapshot showed and history had ended; kept for the audit, not served.
	Ghosts []*Entry
	// Missing is the new generation's whole set.
	Missing []ScopedDigest
	// KnownScopes is the new generation's whole set of scopes.
	KnownScopes []Scope
}

// History answers about the past. Every answer is limited to what was known at or before the offset given, so that an answer
// computed from one view never mixes in what came after it.
type History interface {
	// Consumed is the update that put the digest into the scope's trie, where the stream showed it at or before the offset.
	Consumed(ctx context.Context, scope Scope, digest wormhole.Digest, atOrBefore int64) (Consume, bool, error)
	// ConsumedAmong is Consumed of many digests by one question; those that it would not know are not in the answer.
	ConsumedAmong(ctx context.Context, digests []ScopedDigest, atOrBefore int64) (map[ScopedDigest]Consume, error)
	// EndOf is how the contract ended, where that is known at or before the offset.
	EndOf(ctx context.Context, contractID string, atOrBefore int64) (Ended, bool, error)
	// UpdateByID is the applied update with that id, among those still remembered.
	UpdateByID(ctx context.Context, updateID string) (UpdateRef, bool, error)
	// HistorySince is the offset after which history is complete. A seed moves it to the seed's offset, since what happened before
	// was not seen, whether or not older history is still known.
	HistorySince(ctx context.Context) (int64, error)
	// NodeLives are the latest nodes at or below a prefix in a scope whose end was seen (not Gone), newest first, those of one update
	// by contract id, at most limit: when each was created (zero where unknown) and ended. It is what a churn forecast is made
	// of.
	NodeLives(ctx context.Context, scope Scope, prefix wormhole.Prefix, atOrBefore int64, limit int) ([]NodeLife, error)
}

// NodeLife is how long one replay node lived, by record time.
type NodeLife struct {
	ContractID     string
	Prefix         wormhole.Prefix
	Created, Ended time.Time
}
