package client

import (
	"errors"
	"time"
)

// State is how a redeem ended.
type State uint8

const (
	// Committed: this redeem consumed the digest, by Outcome.UpdateID.
	Committed State = iota + 1
	// Consumed: the digest is consumed by an update that this call did not make. (An earlier call, perhaps, of the same user.) Who says so
	// is Outcome.Basis.
	Consumed
	// Invalid: the ledger would not take this VAA, or not from this caller: Outcome.Reason and Message say why, and
	// Outcome.Basis by whose word. Nothing was done.
	Invalid
	// GaveUp: nothing of this call is on the ledger, nor will be. Outcome.Reason says what stood in the way. With a Basis of endpoints it is their
	// word that a submission without an answer is dead.
	GaveUp
	// Unknown: a submission may have committed, or may yet. Outcome.Check says what to look at.
	Unknown
)

// String is the state's name in lower case.
func (s State) String() string {
	switch s {
	case Committed:
		return "committed"
	case Consumed:
		return "consumed"
	case Invalid:
		return "invalid"
	case GaveUp:
		return "gave up"
	case Unknown:
		return "unknown"
	default:
		return "not ended"
	}
}

// Basis is what an outcome rests on. A service proves less than it seems to: a created event blob that verifies agrees with itself, and
// anyone can invent one (Report.Uncovered). Only a ledger that was asked to use a contract shows that it is genuine.
type Basis uint8

const (
	// BasisNone: nothing was said by anyone that the outcome rests on: what the redeem gave up it had not begun; or, with Unknown, nobody knows.
	BasisNone Basis = iota
	// BasisVAA: the VAA's own bytes, which are none that the ledger can read.
	BasisVAA
	// BasisLedger: what the caller's own participant answered to the submissions of this call. With Invalid it is about the bundle that was
	// submitted; where other endpoints had another bundle, that was tried too.
	BasisLedger
	// BasisAgreed: at least two endpoints, Outcome.Agreed in number, say so, with contracts that verify, and none that could be asked
	// disagrees. Nothing was submitted to find out.
	BasisAgreed
	// BasisEndpoint: one endpoint says so, with contracts that verify, and none other could be asked, or none agreed with a proof. Whoever can't
	// afford to lose a message to a service that lies should ask elsewhere before dropping it.
	BasisEndpoint
)

// String is the basis in a few words.
func (b Basis) String() string {
	switch b {
	case BasisVAA:
		return "the VAA itself"
	case BasisLedger:
		return "the ledger's answer"
	case BasisAgreed:
		return "agreed by endpoints"
	case BasisEndpoint:
		return "one endpoint's word"
	default:
		return "nothing"
	}
}

// basisOf is the basis that endpoints who agree make.
func basisOf(agreed int) Basis {
	if agreed > 1 {
		return BasisAgreed
	}
	return BasisEndpoint
}

// Outcome is the end of a redeem.
type Outcome struct {
	State     State
	Digest    string
	CommandID string
	// Basis is what the state rests on; Agreed is how many endpoints that is, with BasisAgreed and BasisEndpoint.
	Basis  Basis
	Agreed int
	// UpdateID is the update that consumed the digest, with Committed and Consumed. It is the participant's word where a submission was
	// answered with it, else a service's. It is empty where no history knows it, or none could be read, which with Committed is asked again for
	// some seconds; Message says which of the two.
	UpdateID string
	// Reason is a stable name of what decided: a rule (GUARDIAN_SET_EXPIRED, …), an error id, or one of the client's own: BUDGET,
	// CANCELLED, NOT_VERIFIED, NOT_SUBMITTED, UNKNOWN_VERDICT. Message says it in words: the ledger's, where there are any.
	Reason, Message string
	// MayPass is set, with Invalid, where the VAA names a guardian set newer than CoreState's own: a CoreState that follows the guardians'
	// upgrade will have it, so that the message is not to be dropped yet. It was waited for (Options.GuardianSetWait).
	MayPass bool
	// Check says, with Unknown, what to look at to learn the end.
	Check string
	// Submissions is how often the caller's function was called, probes aside; Probes counts those. Answers is how many answers of the
	// service were used.
	Submissions, Probes, Answers int
	// Retries counts the submissions that did not commit, by Class.
	Retries map[string]int
	// Took is how long it all took.
	Took time.Duration
}

// Errors of Redeem, beside those of a request that is wrong.
var (
	// ErrGaveUp comes with an Outcome of GaveUp.
	ErrGaveUp = errors.New("gave up")
	// ErrUnknown comes with an Outcome of Unknown.
	ErrUnknown = errors.New("the outcome is unknown")
)
