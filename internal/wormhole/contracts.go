package wormhole

import "time"

// Payload is a decoded contract of the model: *ReplayNode, *CoreState, *ReplayRootRegistry, *EmitterRegistry, *Emitter or
// *Malformed.
type Payload interface{ payload() }

// Namespace is a replay scope's namespace. Package versions before 0.4.0 have no such field; a trie of theirs (Present
// false) and one whose namespace is "" are different scopes.
type Namespace struct {
	Present bool
	Value   string
}

// ReplayNode is the template Wormhole.Core.Replay:ReplayNode: the digests already consumed below one prefix.
type ReplayNode struct {
	Consumer, Operator string
	Namespace          Namespace
	Prefix             Prefix
	// SplitThreshold is in 1..4096.
	SplitThreshold int64
	// Consumed holds the suffixes: each the rest of a digest after Prefix.
	Consumed SuffixSet
}

// CoreState is the template Wormhole.Core.State:CoreState: the guardian sets and the bridge's parameters.
type CoreState struct {
	Operator, GuardianGovernance string
	// GuardianObserver is empty in the oldest version of the package.
	GuardianObserver           string
	ChainID, GovernanceChainID int64
	// GovernanceContract is 64 hex digits.
	GovernanceContract string
	GuardianSetIndex   int64
	GuardianSets       map[int64]GuardianSet
	MessageFee         int64
	// ConsumedGovernance holds the digests of governance VAAs already carried out.
	ConsumedGovernance []string
}

// GuardianSet is the keys that sign VAAs under one index.
type GuardianSet struct {
	// Keys are the guardians' addresses, 20 bytes each in lowercase hex, by guardian index.
	Keys []string
	// Expiration is the time from which the set no longer verifies: a set is active while now < Expiration. Nil is for ever.
	Expiration *time.Time
}

// ReplayRootRegistry is the template Wormhole.Core.Replay:ReplayRootRegistry.
type ReplayRootRegistry struct {
	Operator string
	// Granted are the consumers that have a root, sorted; nil in later package versions, which keep no list.
	Granted []string
}

// EmitterRegistry is the template Wormhole.Core.Emitters:EmitterRegistry.
type EmitterRegistry struct {
	Operator string
	// GuardianObserver is empty in versions without the field.
	GuardianObserver string
	NextID           int64
}

// Emitter is the template Wormhole.Core.Emitters:Emitter.
type Emitter struct {
	Operator, Owner string
	EmitterID       int64
	// EmitterAddress is 64 hex digits.
	EmitterAddress string
	Sequence       int64
}

// Malformed is a contract of one of the templates above whose record has the right shape and content that the model can't
// produce, such as a prefix that is not hex. It is counted and never served.
type Malformed struct {
	// Template is the template's qualified name, "Module:Entity".
	Template string
	// Operator and Consumer are what the record says, where it says it.
	Operator, Consumer string
	// Fault says what is wrong.
	Fault string
}

func (*ReplayNode) payload()         {}
func (*CoreState) payload()          {}
func (*ReplayRootRegistry) payload() {}
func (*EmitterRegistry) payload()    {}
func (*Emitter) payload()            {}
func (*Malformed) payload()          {}
