package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// Relayer redeems behind a guard: of all relayers that share the guard, one pays for a VAA's submissions at a time.
//
// The guard stands before the redeem as a whole. What is admitted once is the message; the retry protocol of Redeem, with as many
// submissions as it takes, runs under that one reservation.
type Relayer struct {
	client *Client
	guard  Guard
}

// NewRelayer makes a relayer of a client and a guard. Neither becomes its own: both are closed by whoever made them.
func NewRelayer(c *Client, g Guard) (*Relayer, error) {
	if c == nil || g == nil {
		return nil, errors.New("relayer: a client and a guard are required")
	}
	return &Relayer{client: c, guard: g}, nil
}

// Relayed is the end of a guarded redeem.
type Relayed struct {
	// Admission is what the guard decided; with no Decision where it was not asked, because the redeem had ended before: see Outcome.
	//
	// With Admitted and Unguarded the redeem ran, and Outcome is its end. With AlreadyReceived, Admission.ExpiresAt is until when somebody else
	// has it; with AlreadyConsumed and Refused see there.
	Admission Admission
	// Outcome is the end of the redeem. Where nothing was submitted because of the guard it has no State.
	Outcome Outcome
}

// Submitted reports whether the redeem ran, guarded or not.
func (r Relayed) Submitted() bool {
	return r.Admission.Decision == Admitted || r.Admission.Decision == Unguarded
}

// Redeem is Client.Redeem behind the guard.
//
// First the VAA is resolved, as for any redeem, and what was read is verified. One that is invalid or consumed, or that can't be resolved,
// ends here, as by Client.Redeem, and the guard is not asked: so a forged copy reserves nothing, and a guard's word is needed for nothing
// that can be proven. Then the guard is asked, and if it admits, the redeem goes on with what was resolved. Options.MaxTime bounds all of it.
//
// The reservation is settled as committed or consumed where the redeem ended so. It is given up where nothing was submitted
// (GuardOptions.Release), and else left to its expiry: after an unknown outcome, and also where a submission was made and is known to
// have done nothing.
//
// The error is that of Client.Redeem, or, where the guard refused, wraps ErrNotAdmitted. It is nil where somebody else has or had the digest.
func (r *Relayer) Redeem(ctx context.Context, request Request, submit SubmitFunc) (Relayed, error) {
	redeem, err := r.client.newRedeem(request, submit)
	if err != nil {
		return Relayed{}, fmt.Errorf("redeem: %w", err)
	}
	if rule := redeem.rule; rule != nil {
		outcome, err := redeem.end(Outcome{State: Invalid, Reason: string(rule.Code), Message: rule.Message, Basis: BasisVAA}, nil)
		return Relayed{Outcome: outcome}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.client.options.MaxTime, errBudget)
	defer cancel()
	first, end, err := redeem.resolve(ctx)
	if end != nil || err != nil {
		outcome, err := redeem.ended(ctx, end, err)
		outcome, err = redeem.end(outcome, err)
		return Relayed{Outcome: outcome}, err
	}
	var relayed Relayed
	var failed error
	asked := time.Now()
	relayed.Admission, err = r.guard.Admit(ctx, submissionOf(redeem, &first), func(ctx context.Context, _ Admission) Ending {
		bundle := &first
		if time.Since(asked) > keepBundle {
			bundle = nil
		}
		relayed.Outcome, failed = redeem.run(ctx, bundle)
		relayed.Outcome, failed = redeem.end(relayed.Outcome, failed)
		return endingOf(relayed.Outcome)
	})
	if relayed.Submitted() {
		return relayed, failed
	}
	relayed.Outcome = Outcome{Digest: redeem.digest.String(), CommandID: redeem.commandID, Answers: redeem.answers, Took: time.Since(redeem.begun)}
	if err != nil {
		err = fmt.Errorf("redeem of digest %s: %w", relayed.Outcome.Digest, err)
	}
	return relayed, err
}

// keepBundle is how long a guard may take to decide before the bundle that was resolved to ask it is read anew.
const keepBundle = 250 * time.Millisecond

// submissionOf is what the guard is asked about: the trie that was found and verified, and not what the request said of it.
func submissionOf(r *redeem, p *Prepared) Submission {
	return Submission{
		Subject:     replayguard.Subject{Operator: p.Node.Operator, Consumer: p.Node.Consumer, Namespace: p.Node.Namespace, Digest: r.digest},
		PackageName: p.packageName,
		VAA:         r.request.VAA,
	}
}

// endingOf is what an outcome means for the reservation.
func endingOf(o Outcome) Ending {
	switch {
	case o.State == Committed:
		return EndingCommitted
	case o.State == Consumed:
		return EndingConsumed
	case o.State != Unknown && o.Submissions == 0:
		return EndingNeverLeft
	default:
		return EndingUnknown
	}
}
