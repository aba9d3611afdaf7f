package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// Guard stands before a function that pays for a submission: of all who share the guard and want to submit one digest at a time, one is
// admitted. NewLocalGuard makes one within this process, NewRemoteGuard one of the service's reservations; Relayer puts either before a
// whole Redeem. It is safe for concurrent use.
//
// It saves cost and is no safety device: the ledger alone decides what is consumed, and admitting too many is never more than dear. What
// it costs to be admitted too seldom is that nobody redeems; so a guard that can't be had does not stop a submission, and says so.
//
// The contract of Admit:
//
//  1. run is called at most once, by Admit's own goroutine, and exactly if the decision is Admitted or Unguarded. It gets a context that
//     ends with the caller's and with nothing else: losing a reservation does not stop what may have been submitted already.
//  2. Admitted: the digest was reserved before run was called, under a fencing token greater than those of all earlier reservations of it.
//     While run runs the reservation is extended, by Submission.Extend each time, as far as the guard allows. When run has returned, the
//     reservation is settled if run knows how it ended, and else left to its expiry: who asks before that is told AlreadyReceived.
//  3. run panics, or calls runtime.Goexit: that goes on to the caller, and nothing is settled, because nobody knows what was done.
//  4. Unguarded: nobody could be asked, or whoever was could not decide. The reasons are in the error Admission.Unguarded, and they have been
//     observed and logged before run is called. Nothing is extended or settled: there is no token. (The answer to a reservation that was
//     made may have been lost; then it stays until its expiry, and keeps others away.)
//  5. AlreadyReceived, AlreadyConsumed, Refused: nothing is reserved by this call. Refused is also what is wrong with the guard's or the caller's
//     configuration: a guard that is switched off, or wants other credentials, does not silently guard nothing.
//  6. Settling and extending are best effort, within GuardOptions.CallTimeout for each endpoint, also after the caller's context has ended. What
//     does not succeed is in Admission.Held, observed and logged, and changes nothing about how the submission ended.
//  7. The error is nil unless the decision is Refused; then it wraps ErrNotAdmitted, and, where the caller's context ended before the
//     decision, why it did (Reason is CANCELLED). Whether something was reserved then is not known.
//
// The VAA must be genuine: whoever asks has verified it before, as Relayer does. A guard that reserved what nobody has verified would
// let a forged copy, which has the same digest, keep the genuine one away. (The service verifies it once more.)
type Guard interface {
	Admit(ctx context.Context, s Submission, run func(context.Context, Admission) Ending) (Admission, error)
}

// Submission is what is to be admitted.
type Submission struct {
	// Subject is its identity: the trie, as the ledger spells it, and the digest.
	Subject replayguard.Subject
	// PackageName chooses among tries of one identity but different packages; "" is any.
	PackageName string
	// VAA is what has the digest. Without it a remote guard admits only where its operator allows bare digests.
	VAA []byte
	// ExpiresAt is until when the digest is to be reserved, in whole seconds, at least until now and at most as far ahead as the guard allows
	// (30 minutes by default). Zero is GuardOptions.TTL from now.
	ExpiresAt time.Time
	// Extend is by how much from then on the reservation is prolonged, again and again, while the submission runs; zero is
	// GuardOptions.TTL, negative is not at all.
	Extend time.Duration
	// Key is a remote guard's idempotency key: who asks again with it, as the same client, is admitted again. Empty, as it should be, is
	// a random one for each call, which makes a repeated question safe after a lost answer. One of the caller's must be of one submission at
	// a time; it lets a relayer that was started anew take its own reservation up.
	Key string
}

// Decision is what a guard decided.
type Decision uint8

const (
	// Admitted: the digest is reserved for the caller, and the submission ran.
	Admitted Decision = iota + 1
	// Unguarded: no guard could decide, and the submission ran all the same.
	Unguarded
	// AlreadyReceived: somebody has reserved the digest until Admission.ExpiresAt.
	AlreadyReceived
	// AlreadyConsumed: the guard's ledger holds the digest as consumed, by Admission.UpdateID.
	AlreadyConsumed
	// Refused: the guard does not admit it, for Admission.Reason.
	Refused
)

// String is the decision in lower case.
func (d Decision) String() string {
	switch d {
	case Admitted:
		return "admitted"
	case Unguarded:
		return "unguarded"
	case AlreadyReceived:
		return "already received"
	case AlreadyConsumed:
		return "already consumed"
	case Refused:
		return "refused"
	default:
		return "not decided"
	}
}

// Admission is a decision, and what became of the reservation.
type Admission struct {
	Decision Decision
	// ExpiresAt is until when the digest is reserved, included, with Admitted (as extended) and AlreadyReceived.
	ExpiresAt time.Time
	// UpdateID is the update that consumed the digest, with AlreadyConsumed; empty where the guard's history does not go back so far. It is
	// the guard's word.
	UpdateID string
	// Reason is why, with Refused: CAPACITY, QUOTA, CONFIGURATION, CLOCK, CANCELLED, or a reason of docs/errors.md, such as EXPIRED,
	// EXPIRY_INVALID, NOT_AUTHENTIC, SUBMISSIONS_OFF. RetryAfter is when the same may be admitted, at the earliest; 0 is not known.
	Reason     string
	RetryAfter time.Duration
	// Token is the fencing token, with Admitted. Again: it is a reservation of an earlier call with the same key.
	Token int64
	Again bool
	// Endpoint is who decided; empty for a local guard.
	Endpoint string
	// Unguarded is, with that decision, why nobody decided.
	Unguarded error
	// Held is, with Admitted, what went wrong with the reservation after it was made: an extension or the settling. Nil where all went well.
	Held error
}

// Ending is how a submission ended, for its reservation.
type Ending uint8

const (
	// EndingUnknown: it may have committed, or may yet; or nothing is on the ledger, but something had been submitted. The reservation is left
	// to its expiry.
	EndingUnknown Ending = iota
	// EndingCommitted: it consumed the digest.
	EndingCommitted
	// EndingConsumed: the digest was seen consumed, by whomever.
	EndingConsumed
	// EndingNeverLeft: provably nothing was submitted. The reservation is given up where GuardOptions.Release is set and the guard allows
	// it, and else left to its expiry.
	EndingNeverLeft
)

// ErrNotAdmitted is wrapped by the errors of refusals.
var ErrNotAdmitted = errors.New("the guard does not admit the submission")

// Reasons of refusals that no service gives.
const (
	reasonCancelled     = "CANCELLED"
	reasonCapacity      = "CAPACITY"
	reasonQuota         = "QUOTA"
	reasonConfiguration = "CONFIGURATION"
	reasonClock         = "CLOCK"
)

// GuardOptions are what local and remote guards have in common. Zero values are the defaults given.
type GuardOptions struct {
	// TTL is how far ahead a reservation's expiry lies where a Submission does not say, at least 2 s; 2 minutes by default. It is how long others
	// wait for a holder that died, and, as a running submission's reservation is extended, not how long one may take.
	TTL time.Duration
	// CallTimeout bounds one call of a guard; 2 s by default.
	CallTimeout time.Duration
	// Release gives reservations up whose submission provably never left (EndingNeverLeft), where the guard allows that.
	Release bool

	// Observe is called with everything that happens, from the goroutine of Admit or, for extensions, another, and so not for long; nil is
	// nobody. EventUnguarded is the one to be alarmed by.
	Observe func(Event)
	// Log gets warnings: of what ran unguarded, and of reservations that could not be kept or settled. Nil is nobody.
	Log *slog.Logger
}

func (o *GuardOptions) setDefaults() error {
	switch {
	case o.TTL == 0:
		o.TTL = 2 * time.Minute
	case o.TTL < 2*time.Second:
		return fmt.Errorf("the time to live is %v; want at least 2s, because expiries are whole seconds, or 0 for 2m", o.TTL)
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// complete fills in what the submission leaves to the options.
func (o *GuardOptions) complete(s *Submission, now time.Time) {
	if s.ExpiresAt.IsZero() {
		s.ExpiresAt = now.Add(o.TTL)
	}
	if s.Extend == 0 {
		s.Extend = o.TTL
	}
}

func (o *GuardOptions) observe(s *Submission, e Event) {
	if o.Observe != nil {
		e.Digest = digestText(s)
		o.Observe(e)
	}
}

func digestText(s *Submission) string { return fmt.Sprintf("%x", s.Subject.Digest[:]) }

// refuse is the admission and the error of a refusal.
func refuse(reason string, retryAfter time.Duration, cause error) (Admission, error) {
	a := Admission{Decision: Refused, Reason: reason, RetryAfter: retryAfter}
	if cause == nil {
		return a, fmt.Errorf("%w: %s", ErrNotAdmitted, reason)
	}
	return a, fmt.Errorf("%w: %s: %w", ErrNotAdmitted, reason, cause)
}

// decided observes a decision that lets nothing run.
func (o *GuardOptions) decided(s *Submission, begun time.Time, a Admission, err error) (Admission, error) {
	reason := a.Decision.String()
	if a.Decision == Refused {
		reason = a.Reason
	}
	o.observe(s, Event{Kind: EventGuard, Endpoint: a.Endpoint, Reason: reason, Took: time.Since(begun), Err: err})
	if err != nil {
		err = fmt.Errorf("admitting digest %s: %w", digestText(s), err)
	}
	return a, err
}

// unguarded runs a submission that no guard decided about.
func (o *GuardOptions) unguarded(ctx context.Context, s *Submission, begun time.Time, cause error, run func(context.Context, Admission) Ending) (Admission, error) {
	a := Admission{Decision: Unguarded, Unguarded: cause}
	o.observe(s, Event{Kind: EventUnguarded, Reason: a.Decision.String(), Took: time.Since(begun), Err: cause})
	o.Log.Warn("no guard could be asked: the submission goes ahead unguarded", "digest", digestText(s), "error", cause)
	run(ctx, a)
	return a, nil
}
