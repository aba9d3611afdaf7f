package wormhole

import (
	"fmt"
	"math"
	"slices"
)

// ReplayRootRequest is the template Wormhole.Core.Replay:ReplayRootRequest: a consumer asks the operator for a root. It is not
// served.
type ReplayRootRequest struct {
	Consumer, Operator string
	// SplitThreshold is whatever the consumer wrote; the root's creation checks it.
	SplitThreshold int64
}

// EmitterRequest is the template Wormhole.Core.Emitters:EmitterRequest: an owner asks the operator for an emitter. It is not
// served.
type EmitterRequest struct{ Owner, Operator string }

// GrantReplayRoot is the registry's choice: the registry that replaces this one. The error is a *Rule, RuleRootAlreadyGranted.
func (r *ReplayRootRegistry) GrantReplayRoot(consumer string) (*ReplayRootRegistry, error) {
	at, found := slices.BinarySearch(r.Granted, consumer)
	if found {
		return nil, rule(RuleRootAlreadyGranted, "consumer already has a replay root")
	}
	return &ReplayRootRegistry{Operator: r.Operator, Granted: slices.Insert(slices.Clone(r.Granted), at, consumer)}, nil
}

// ApproveReplayRoot is the request's choice, on the registry that its argument names: the registry that replaces that one, and
// the new root. The error is a *Rule: RuleRegistryOfOtherOperator, RuleRootAlreadyGranted, or RuleTemplatePrecondition for a
// threshold that no node may have.
func (q *ReplayRootRequest) ApproveReplayRoot(registry *ReplayRootRegistry) (*ReplayRootRegistry, *ReplayNode, error) {
	if registry.Operator != q.Operator {
		return nil, nil, registryOfOtherOperator()
	}
	granted, err := registry.GrantReplayRoot(q.Consumer)
	if err != nil {
		return nil, nil, err
	}
	root := &ReplayNode{Consumer: q.Consumer, Operator: q.Operator, SplitThreshold: q.SplitThreshold}
	if err := root.CheckPrecondition(); err != nil {
		return nil, nil, err
	}
	return granted, root, nil
}

// CheckPrecondition is the template's precondition as far as a ReplayNode can violate it: the threshold is in 1..4096. (Prefix
// and suffixes can't be malformed here.) The error is a *Rule, RuleTemplatePrecondition.
func (n *ReplayNode) CheckPrecondition() error {
	if n.SplitThreshold < minSplitThreshold || n.SplitThreshold > maxSplitThreshold {
		return rule(RuleTemplatePrecondition, "Template precondition violated: "+ReplayNodeTemplate.QualifiedName())
	}
	return nil
}

// The bounds of ReplayNode.SplitThreshold.
const (
	minSplitThreshold = 1
	maxSplitThreshold = 4096
)

// AllocateEmitterID is the registry's choice AllocateEmitterId: the registry that replaces this one, and the id given out.
func (r *EmitterRegistry) AllocateEmitterID() (*EmitterRegistry, int64, error) {
	if r.NextID == math.MaxInt64 {
		return nil, 0, overflow(r.NextID)
	}
	next := *r
	next.NextID++
	return &next, r.NextID, nil
}

// RegisterEmitter is the registry's choice: the registry that replaces this one, and the owner's new emitter.
func (r *EmitterRegistry) RegisterEmitter(owner string) (*EmitterRegistry, *Emitter, error) {
	next, id, err := r.AllocateEmitterID()
	if err != nil {
		return nil, nil, err
	}
	return next, newEmitter(r.Operator, owner, id), nil
}

// ApproveEmitter is the request's choice, on the registry that its argument names. The error is a *Rule,
// RuleRegistryOfOtherOperator.
func (q *EmitterRequest) ApproveEmitter(registry *EmitterRegistry) (*EmitterRegistry, *Emitter, error) {
	if registry.Operator != q.Operator {
		return nil, nil, registryOfOtherOperator()
	}
	return registry.RegisterEmitter(q.Owner)
}

// newEmitter makes an emitter whose address is its id in 32 bytes. (The genuine package derives another address; addresses are
// read from contracts everywhere but here.)
func newEmitter(operator, owner string, id int64) *Emitter {
	return &Emitter{Operator: operator, Owner: owner, EmitterID: id, EmitterAddress: fmt.Sprintf("%064x", id)}
}

// PublishMessage is the emitter's choice: the emitter that replaces this one, and the sequence of the message. Of the choice's
// arguments only the payload is checked. The error is a *Rule, RulePayloadNotHex.
func (e *Emitter) PublishMessage(payload string) (*Emitter, int64, error) {
	if len(payload)%2 != 0 || !isLowerHex(payload) {
		return nil, 0, rule(RulePayloadNotHex, "payload must be bytes of lowercase hex")
	}
	if e.Sequence == math.MaxInt64 {
		return nil, 0, overflow(e.Sequence)
	}
	next := *e
	next.Sequence++
	return &next, e.Sequence, nil
}

func registryOfOtherOperator() *Rule {
	return rule(RuleRegistryOfOtherOperator, "registry belongs to a different operator")
}

// overflow is Daml's own error for an addition beyond 64 bits.
func overflow(n int64) *Rule {
	return rule(RuleArithmetic, fmt.Sprintf("Arithmetic error while evaluating (ADD_INT64 %d 1).", n))
}
