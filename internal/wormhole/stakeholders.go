package wormhole

import "slices"

// RequiredSignatories are the parties that must have signed the contract for it to be what its payload says, sorted, without
// repeats: an authentic contract's signatories contain them all. Nil for a *Malformed.
func RequiredSignatories(p Payload) []string {
	switch p := p.(type) {
	case *ReplayNode:
		return parties(p.Consumer, p.Operator)
	case *CoreState:
		return parties(p.Operator, p.GuardianGovernance)
	case *ReplayRootRegistry:
		return parties(p.Operator)
	case *EmitterRegistry:
		return parties(p.Operator)
	case *Emitter:
		return parties(p.Operator, p.Owner)
	default:
		return nil
	}
}

// Observers are the parties that the model makes observers and that are not signatories, sorted. In versions that have a
// guardianObserver a CoreState and an EmitterRegistry are seen by it.
func Observers(p Payload) []string {
	var observer string
	switch p := p.(type) {
	case *CoreState:
		observer = p.GuardianObserver
	case *EmitterRegistry:
		observer = p.GuardianObserver
	}
	if observer == "" || slices.Contains(RequiredSignatories(p), observer) {
		return nil
	}
	return []string{observer}
}

// Stakeholders are signatories and observers, sorted.
func Stakeholders(p Payload) []string {
	return parties(append(RequiredSignatories(p), Observers(p)...)...)
}

// parties is a sorted list without repeats.
func parties(ps ...string) []string {
	slices.Sort(ps)
	return slices.Compact(ps)
}
