package index

import (
	"slices"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Classify says what the policy makes of a contract. The first rule that applies decides:
//
//  1. Unpinned: the package id is not among those pinned for the package's name.
//  2. Puppet, of a CoreState: another guardian governance than the policy's.
//  3. Shadow: an operator that is not accepted.
//  4. Puppet: a party that the payload names as signatory has not signed.
//  5. Malformed: a payload that the model can't produce.
//  6. Refused: a blob that is missing, unchecked or mismatched.
//  7. Authentic.
//
// Anyone can create contracts under parties of their own, with any content: so whose contract it is comes first, and
// Malformed and Refused, which alarm, concern only what an accepted operator has signed.
func (p Policy) Classify(c *ledger.Contract) Class {
	if ids, pinned := p.PackageIDs[c.PackageName]; pinned && !slices.Contains(ids, c.TemplateID.PackageID) {
		return Unpinned
	}
	if core, ok := c.Payload.(*wormhole.CoreState); ok && (p.GuardianGovernance == "" || core.GuardianGovernance != p.GuardianGovernance) {
		return Puppet
	}
	if len(p.Operators) > 0 && !slices.Contains(p.Operators, p.operatorOf(c)) {
		return Shadow
	}
	for _, party := range namedSignatories(c.Payload) {
		if !slices.Contains(c.Signatories, party) {
			return Puppet
		}
	}
	if _, malformed := c.Payload.(*wormhole.Malformed); malformed || c.Payload == nil {
		return Malformed
	}
	switch c.BlobCheck {
	case ledger.BlobVerified, ledger.BlobUnverifiable:
		if len(c.Blob) > 0 {
			return Authentic
		}
	}
	return Refused
}

// operatorOf is the operator that the contract names. A malformed one may name none: then an accepted operator among its
// signatories is taken for it, since nobody else can have made that operator sign.
func (p Policy) operatorOf(c *ledger.Contract) string {
	if named := operator(c.Payload); named != "" {
		return named
	}
	for _, party := range c.Signatories {
		if slices.Contains(p.Operators, party) {
			return party
		}
	}
	return ""
}

// operator is the operator that a payload names, "" where it names none.
func operator(p wormhole.Payload) string {
	switch p := p.(type) {
	case *wormhole.ReplayNode:
		return p.Operator
	case *wormhole.CoreState:
		return p.Operator
	case *wormhole.ReplayRootRegistry:
		return p.Operator
	case *wormhole.EmitterRegistry:
		return p.Operator
	case *wormhole.Emitter:
		return p.Operator
	case *wormhole.Malformed:
		return p.Operator
	default:
		return ""
	}
}

// namedSignatories are the parties that a payload names as its signatories.
func namedSignatories(p wormhole.Payload) []string {
	malformed, ok := p.(*wormhole.Malformed)
	if !ok {
		return wormhole.RequiredSignatories(p)
	}
	var named []string
	for _, party := range []string{malformed.Operator, malformed.Consumer} {
		if party != "" {
			named = append(named, party)
		}
	}
	return named
}

// String is the class as metrics and answers use it.
func (c Class) String() string {
	switch c {
	case Authentic:
		return "authentic"
	case Unpinned:
		return "unpinned"
	case Shadow:
		return "shadow"
	case Puppet:
		return "puppet"
	case Malformed:
		return "malformed"
	case Refused:
		return "refused"
	default:
		return "unknown"
	}
}

// finding is the kind of finding that a contract of the class is; "" for none.
func (c Class) finding() FindingKind {
	switch c {
	case Shadow:
		return FindingShadow
	case Puppet:
		return FindingPuppet
	case Malformed:
		return FindingMalformed
	case Refused:
		return FindingRefused
	default:
		return ""
	}
}

// String is the word for how a contract ended, as answers use it.
func (h How) String() string {
	switch h {
	case Superseded:
		return "superseded"
	case Split:
		return "split"
	case ArchivedOnly:
		return "archived"
	case Purged:
		return "purged"
	case Gone:
		return "gone"
	default:
		return "unknown"
	}
}
