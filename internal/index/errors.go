package index

import (
	"errors"
	"fmt"
	"strings"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// The errors that lookups wrap. The typed errors below carry the particulars; both match with errors.Is and errors.As.
var (
	// ErrUnknownScope: no authentic node of such a scope was seen in this generation.
	ErrUnknownScope = errors.New("unknown scope")
	// ErrAmbiguousScope: the request leaves several scopes open.
	ErrAmbiguousScope = errors.New("ambiguous scope")
	// ErrGap: no active node covers the digest.
	ErrGap = errors.New("gap in the trie")
	// ErrFork: several active nodes cover the digest.
	ErrFork = errors.New("fork in the trie")
	// ErrInFlight: the contract is between two synchronizers and active on neither.
	ErrInFlight = errors.New("contract in flight")
	// ErrNoCoreState: there is no authentic CoreState.
	ErrNoCoreState = errors.New("no CoreState")
	// ErrDoubledCoreState: there are several authentic CoreStates.
	ErrDoubledCoreState = errors.New("several CoreStates")
	// ErrNoContract: there is no authentic registry or emitter of that description.
	ErrNoContract = errors.New("no such contract")
	// ErrSeveralContracts: there are several authentic registries or emitters of that description.
	ErrSeveralContracts = errors.New("several such contracts")
)

// UnknownScopeError says which scope is not known.
type UnknownScopeError struct{ Selector ScopeSelector }

func (e *UnknownScopeError) Error() string { return fmt.Sprintf("%v: %s", ErrUnknownScope, e.Selector) }
func (e *UnknownScopeError) Unwrap() error { return ErrUnknownScope }

// AmbiguousScopeError gives the scopes that a request left open.
type AmbiguousScopeError struct {
	Selector ScopeSelector
	// Choices are the matching scopes, two at least, in the order of CompareScopes.
	Choices []Scope
}

func (e *AmbiguousScopeError) Error() string {
	return fmt.Sprintf("%v: %s matches %d scopes", ErrAmbiguousScope, e.Selector, len(e.Choices))
}
func (e *AmbiguousScopeError) Unwrap() error { return ErrAmbiguousScope }

// GapError says which part of a trie no active node covers.
type GapError struct {
	Scope Scope
	// Prefix is the greatest uncovered part that holds the digest asked for.
	Prefix wormhole.Prefix
}

func (e *GapError) Error() string {
	return fmt.Sprintf("%v: no active node covers the digests under %q (%s)", ErrGap, e.Prefix, e.Scope)
}
func (e *GapError) Unwrap() error { return ErrGap }

// ForkError gives the nodes that all cover one digest.
type ForkError struct {
	Scope Scope
	// ContractIDs are two or more, sorted.
	ContractIDs []string
}

func (e *ForkError) Error() string {
	return fmt.Sprintf("%v: %d active nodes cover the digest (%s): %s", ErrFork, len(e.ContractIDs), e.Scope, strings.Join(e.ContractIDs, ", "))
}
func (e *ForkError) Unwrap() error { return ErrFork }

// InFlightError says between which synchronizers a contract is.
type InFlightError struct{ ContractID, Source, Target string }

func (e *InFlightError) Error() string {
	return fmt.Sprintf("%v: %s left synchronizer %s and has not reached %s", ErrInFlight, e.ContractID, e.Source, e.Target)
}
func (e *InFlightError) Unwrap() error { return ErrInFlight }

// NoCoreStateError says how many CoreStates there are that do not count.
type NoCoreStateError struct {
	Selector CoreStateSelector
	// Puppets, Shadows and Others count the CoreStates that are not authentic, by class; Others are unpinned, refused and
	// authentic ones that the selector does not match.
	Puppets, Shadows, Others int
}

func (e *NoCoreStateError) Error() string {
	return fmt.Sprintf("%v that counts (%d puppets, %d of other operators, %d others)", ErrNoCoreState, e.Puppets, e.Shadows, e.Others)
}
func (e *NoCoreStateError) Unwrap() error { return ErrNoCoreState }

// DoubledCoreStateError gives the CoreStates that all claim to be the one.
type DoubledCoreStateError struct {
	// ContractIDs are two or more, sorted.
	ContractIDs []string
}

func (e *DoubledCoreStateError) Error() string {
	return fmt.Sprintf("%v that count: %s", ErrDoubledCoreState, strings.Join(e.ContractIDs, ", "))
}
func (e *DoubledCoreStateError) Unwrap() error { return ErrDoubledCoreState }

// NoContractError says what there is none of.
type NoContractError struct{ What string }

func (e *NoContractError) Error() string { return fmt.Sprintf("%v: %s", ErrNoContract, e.What) }
func (e *NoContractError) Unwrap() error { return ErrNoContract }

// SeveralContractsError gives the contracts that all fit one description.
type SeveralContractsError struct {
	What string
	// ContractIDs are two or more, sorted.
	ContractIDs []string
}

func (e *SeveralContractsError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrSeveralContracts, e.What, strings.Join(e.ContractIDs, ", "))
}
func (e *SeveralContractsError) Unwrap() error { return ErrSeveralContracts }
