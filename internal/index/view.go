package index

import (
	"fmt"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// View is the index at one offset. It is immutable and safe for any number of readers. A View is made by a seed, by Rebuild, or
// by Apply on another.
type View struct {
	policy Policy
	pos    ledger.Position

	contracts *contractTree            // every contract, by contract id
	scopes    *iradix.Tree[*scopeTrie] // every scope that is known, by scopeKey
	named     *iradix.Tree[*Entry]     // authentic CoreStates, registries and emitters, by namedKey
	odd       *iradix.Tree[*Entry]     // contracts that are findings by their class, by oddKey
	ghosts    []*Entry                 // by contract id
	tallies   tallies
	texts     *interner
	line      *line
}

// line is one history of one ledger: all views of it have the same. It is known by its address alone.
type line struct{ _ byte }

// scopeTrie is one scope's trie. It is immutable.
type scopeTrie struct {
	scope   Scope
	nodes   *nibbleTrie
	missing *digestSet
	// losses is the number of entries whose prefix covers a missing digest.
	losses int
	// digests is the number of digests that the entries hold, all together.
	digests int
}

// Position is the place on the ledger that the view shows.
func (v *View) Position() ledger.Position { return v.pos }

// Continues reports whether the view is of the same history of the same ledger as the earlier one, at its offset or a later one: what
// history tells of the ledger up to the earlier's offset is then also true of the earlier. A seed whose reason is not the same history
// (ledger.SeedReason.SameHistory) begins another; so does a load from the store, of which it is not known.
func (v *View) Continues(earlier *View) bool {
	return earlier != nil && v.line == earlier.line && v.pos.Offset >= earlier.pos.Offset
}

// Policy is what the view's classes were decided by.
func (v *View) Policy() Policy { return v.policy }

// Scope is the one scope that the selector names. The error is an *UnknownScopeError or an *AmbiguousScopeError.
func (v *View) Scope(selector ScopeSelector) (Scope, error) {
	var matches []Scope
	walk := func(_ []byte, s *scopeTrie) bool {
		if selector.Matches(s.scope) {
			matches = append(matches, s.scope)
		}
		return false
	}
	if selector.Consumer != "" {
		v.scopes.Root().WalkPrefix(appendText(nil, selector.Consumer), walk)
	} else {
		v.scopes.Root().Walk(walk)
	}
	switch len(matches) {
	case 0:
		return Scope{}, &UnknownScopeError{Selector: selector}
	case 1:
		return matches[0], nil
	default:
		slices.SortFunc(matches, CompareScopes)
		return Scope{}, &AmbiguousScopeError{Selector: selector, Choices: matches}
	}
}

// Scopes are all known scopes in the order of CompareScopes. A scope is known once an authentic node of it was seen in this
// generation, and stays known.
func (v *View) Scopes() []Scope {
	scopes := make([]Scope, 0, v.scopes.Len())
	v.scopes.Root().Walk(func(_ []byte, s *scopeTrie) bool {
		scopes = append(scopes, s.scope)
		return false
	})
	slices.SortFunc(scopes, CompareScopes)
	return scopes
}

// trie is the scope's trie. The error is an *UnknownScopeError.
func (v *View) trie(scope Scope) (*scopeTrie, error) {
	s, ok := v.scopes.Get(scopeKey(scope))
	if !ok {
		return nil, &UnknownScopeError{Selector: scope.Selector()}
	}
	return s, nil
}

// Covering is the only active node that covers the digest. The error is an *UnknownScopeError, a *GapError, a *ForkError, or an
// *InFlightError where the only one is between two synchronizers.
func (v *View) Covering(scope Scope, digest wormhole.Digest) (*Entry, error) {
	s, err := v.trie(scope)
	if err != nil {
		return nil, err
	}
	if s.nodes == nil {
		return nil, &GapError{Scope: scope}
	}
	var found *Entry
	count := 0
	ended := s.nodes.path(digest, func(t *nibbleTrie, _ int) {
		if len(t.entries) > 0 {
			count += len(t.entries)
			found = t.entries[0]
		}
	})
	switch {
	case count == 0:
		return nil, &GapError{Scope: scope, Prefix: digest.Prefix(ended + 1)}
	case count > 1:
		return nil, &ForkError{Scope: scope, ContractIDs: s.covering(digest)}
	case found.InFlight:
		return nil, inFlight(found)
	default:
		return found, nil
	}
}

// covering are the contract ids of all entries that cover the digest, sorted.
func (s *scopeTrie) covering(digest wormhole.Digest) []string {
	var ids []string
	if s.nodes != nil {
		s.nodes.path(digest, func(t *nibbleTrie, _ int) { ids = append(ids, contractIDs(t.entries)...) })
	}
	slices.Sort(ids)
	return ids
}

// Missing reports whether the scope's trie once held the digest and holds it no more: it was consumed, and where a node covers
// it, it could be consumed again.
func (v *View) Missing(scope Scope, digest wormhole.Digest) bool {
	s, err := v.trie(scope)
	return err == nil && s.missing.contains(digest)
}

// CoreStateSelector narrows down which CoreState is meant. Empty fields match any.
type CoreStateSelector struct{ PackageName, Operator, ContractID string }

// Matches reports whether the entry, a CoreState, is one that the selector names.
func (s CoreStateSelector) Matches(e *Entry) bool {
	return (s.PackageName == "" || s.PackageName == e.PackageName) &&
		(s.Operator == "" || s.Operator == operator(e.Payload)) &&
		(s.ContractID == "" || s.ContractID == e.ContractID)
}

// CoreState is the authentic CoreState that the selector names. The error is a *NoCoreStateError, a *DoubledCoreStateError or
// an *InFlightError.
func (v *View) CoreState(selector CoreStateSelector) (*Entry, error) {
	var found []*Entry
	v.named.Root().WalkPrefix([]byte{kindCoreState}, func(_ []byte, e *Entry) bool {
		if selector.Matches(e) {
			found = append(found, e)
		}
		return false
	})
	switch {
	case len(found) == 0:
		return nil, v.noCoreState(selector)
	case len(found) > 1:
		return nil, &DoubledCoreStateError{ContractIDs: sortedIDs(found)}
	case found[0].InFlight:
		return nil, inFlight(found[0])
	default:
		return found[0], nil
	}
}

func (v *View) noCoreState(selector CoreStateSelector) error {
	err := &NoCoreStateError{Selector: selector}
	for key, n := range v.tallies.classes {
		if key.Template != kindNames[kindCoreState] {
			continue
		}
		switch key.Class {
		case Puppet:
			err.Puppets += n
		case Shadow:
			err.Shadows += n
		default:
			err.Others += n
		}
	}
	return err
}

// RegistrySelector narrows down which registry is meant. Empty fields match any.
type RegistrySelector struct{ PackageName, Operator string }

func (s RegistrySelector) matches(e *Entry) bool {
	return (s.PackageName == "" || s.PackageName == e.PackageName) && (s.Operator == "" || s.Operator == operator(e.Payload))
}

// ReplayRootRegistry is the authentic ReplayRootRegistry that the selector names. The error is a *NoContractError, a
// *SeveralContractsError or an *InFlightError.
func (v *View) ReplayRootRegistry(selector RegistrySelector) (*Entry, error) {
	return v.one(kindReplayRootRegistry, []byte{kindReplayRootRegistry}, selector.matches)
}

// EmitterRegistry is the authentic EmitterRegistry that the selector names. Errors as of ReplayRootRegistry.
func (v *View) EmitterRegistry(selector RegistrySelector) (*Entry, error) {
	return v.one(kindEmitterRegistry, []byte{kindEmitterRegistry}, selector.matches)
}

// EmitterSelector names an emitter. PackageName and Operator may be empty: then they match any.
type EmitterSelector struct {
	PackageName, Operator, Owner string
	EmitterID                    int64
}

// Emitter is the authentic emitter that the selector names. Errors as of ReplayRootRegistry.
func (v *View) Emitter(selector EmitterSelector) (*Entry, error) {
	return v.one(kindEmitter, emitterKey(selector.Owner, selector.EmitterID), RegistrySelector{selector.PackageName, selector.Operator}.matches)
}

// one is the only named contract under the key that matches.
func (v *View) one(kind byte, prefix []byte, matches func(*Entry) bool) (*Entry, error) {
	var found []*Entry
	v.named.Root().WalkPrefix(prefix, func(_ []byte, e *Entry) bool {
		if matches(e) {
			found = append(found, e)
		}
		return false
	})
	what := kindNames[kind]
	switch {
	case len(found) == 0:
		return nil, &NoContractError{What: what}
	case len(found) > 1:
		return nil, &SeveralContractsError{What: what, ContractIDs: sortedIDs(found)}
	case found[0].InFlight:
		return nil, inFlight(found[0])
	default:
		return found[0], nil
	}
}

// Contract is all that the view holds of a contract id, the entry that counts first: usually one, several only between the events of
// a reassignment, none if the contract is not active. Contracts of every class are found, ghosts are not.
func (v *View) Contract(contractID string) []*Entry {
	return slices.Collect(v.contracts.get(contractID).all())
}

// Each calls yield for every entry of every class, by contract id, until it returns false. Of a contract that has several the
// one that counts comes first.
func (v *View) Each(yield func(*Entry) bool) {
	v.contracts.each(func(s slot) bool {
		for e := range s.all() {
			if !yield(e) {
				return false
			}
		}
		return true
	})
}

// Nodes calls yield for the scope's authentic nodes, in flight or not, by prefix, then contract id, until it returns false. The error
// is an *UnknownScopeError.
func (v *View) Nodes(scope Scope, yield func(*Entry) bool) error {
	s, err := v.trie(scope)
	if err != nil {
		return err
	}
	s.nodes.each(yield)
	return nil
}

// MissingDigests calls yield for all missing digests of all scopes, until it returns false.
func (v *View) MissingDigests(yield func(ScopedDigest) bool) {
	v.scopes.Root().Walk(func(_ []byte, s *scopeTrie) bool {
		return !s.missing.each(func(d wormhole.Digest) bool { return yield(ScopedDigest{s.scope, d}) })
	})
}

// Ghosts are the contracts that the generation's snapshot showed active and history had ended, by contract id.
func (v *View) Ghosts() []*Entry { return slices.Clone(v.ghosts) }

func inFlight(e *Entry) error {
	return &InFlightError{ContractID: e.ContractID, Source: e.SynchronizerID, Target: e.Target}
}

func contractIDs(entries []*Entry) []string {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ContractID
	}
	return ids
}

func sortedIDs(entries []*Entry) []string {
	ids := contractIDs(entries)
	slices.Sort(ids)
	return ids
}

// The kinds of contracts that are found by what they say rather than by trie. They are the first bytes of named's keys.
const (
	kindCoreState byte = iota + 1
	kindReplayRootRegistry
	kindEmitterRegistry
	kindEmitter
	kindReplayNode
	kindMalformed
)

var kindNames = map[byte]string{
	kindCoreState:          "CoreState",
	kindReplayRootRegistry: "ReplayRootRegistry",
	kindEmitterRegistry:    "EmitterRegistry",
	kindEmitter:            "Emitter",
	kindReplayNode:         "ReplayNode",
	kindMalformed:          "Malformed",
}

func kindOf(p wormhole.Payload) byte {
	switch p.(type) {
	case *wormhole.CoreState:
		return kindCoreState
	case *wormhole.ReplayRootRegistry:
		return kindReplayRootRegistry
	case *wormhole.EmitterRegistry:
		return kindEmitterRegistry
	case *wormhole.Emitter:
		return kindEmitter
	case *wormhole.ReplayNode:
		return kindReplayNode
	default:
		return kindMalformed
	}
}

// namedKey is where an authentic contract that is no node is found.
func namedKey(e *Entry) []byte {
	var key []byte
	if emitter, ok := e.Payload.(*wormhole.Emitter); ok {
		key = emitterKey(emitter.Owner, emitter.EmitterID)
	} else {
		key = []byte{kindOf(e.Payload)}
	}
	key = appendText(key, operator(e.Payload))
	key = appendText(key, e.PackageName)
	return append(key, e.ContractID...)
}

func emitterKey(owner string, id int64) []byte {
	key := appendText([]byte{kindEmitter}, owner)
	return append(key, fmt.Sprintf("%016x", uint64(id))...)
}

// oddKey is where a contract that is a finding by its class is found: by kind of finding, then contract id.
func oddKey(kind FindingKind, contractID string) []byte {
	return append([]byte{byte(slices.Index(FindingKinds, kind))}, contractID...)
}
