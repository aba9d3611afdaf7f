package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// settlePoll is how long a reading waits for the end of an open submission before it asks again.
const settlePoll = 250 * time.Millisecond

// settle reads, after a submission whose outcome is unknown, until it is known whether the digest is consumed: an end where it is, nil
// where it is not as of a moment after the outcome. Where must is set the digest is known to be consumed, and it is waited for that.
//
// It goes on for Options.SettleTime after the context ended: to leave while a submission is open is what this is here to avoid.
func (r *redeem) settle(ctx context.Context, must bool) (*Outcome, error) {
	ctx, cancel := outlast(ctx, r.c.options.SettleTime)
	defer cancel()
	// Each endpoint's own clock at its first answer after the outcome: what is proven complete from then on is past the moment.
	moments := map[*endpoint]time.Time{}
	for n := 1; ; n++ {
		read := &disclosurev1.ReadOptions{AfterUpdateId: r.after, Wait: durationpb.New(settlePoll)}
		if n > 1 {
			read.NotContractIds = r.openNodes()
		}
		a, err := r.ask(ctx, read)
		if err != nil {
			if err := r.again(ctx, n, err); err != nil {
				return nil, err
			}
			continue
		}
		moment, asked := moments[a.from]
		switch {
		case a.consumed:
			end, err := r.attribute(ctx, a)
			if end != nil || err != nil {
				return end, err
			}
			if end, other := r.consumedByAnother(ctx, a); other == nil {
				return end, nil
			}
			// Another endpoint knows nothing of it. It is asked first from now on, and its proof is waited for.
		case !asked && !a.now.IsZero():
			moments[a.from] = a.now
		case asked && !must && !a.provenAt.Before(moment):
			return nil, nil
		}
		if err := r.wait(ctx, min(time.Duration(n)*settlePoll/4, r.c.options.BackoffMax)); err != nil {
			return nil, err
		}
	}
}

// openNodes are the nodes of the open submissions.
func (r *redeem) openNodes() []string {
	var ids []string
	for _, p := range r.open {
		if !slices.Contains(ids, p.ReplayNodeContractID) {
			ids = append(ids, p.ReplayNodeContractID)
		}
	}
	return ids
}

// outlast is a context that ends some time after the other, with its cause.
func outlast(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ended := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() {
		ended()
		cancel(context.Canceled)
	}
}

// attribute says whether the consumption is ours: nil where it is not. Where a submission is open, or services alone say that it is dead, the
// participant is asked, by repeating it unchanged; all are under one command id, so that one stands for all.
func (r *redeem) attribute(ctx context.Context, a *answer) (*Outcome, error) {
	if r.duplicate != nil {
		return r.ours(ctx, a), nil
	}
	ctx, cancel := outlast(ctx, r.c.options.SettleTime)
	defer cancel()
	for n := 1; ; n++ {
		var probe Prepared
		switch {
		case len(r.open) > 0:
			probe = r.open[len(r.open)-1]
		case len(r.buried) > 0:
			probe = r.buried[len(r.buried)-1].Prepared
		default:
			return nil, nil
		}
		r.consumedBy = a.updateID
		probe.Probe = true
		r.probes++
		submitted, class, said, err := r.submitOnce(ctx, probe, EventProbed)
		switch {
		case err == nil && submitted.UpdateID != "":
			return &Outcome{State: Committed, UpdateID: submitted.UpdateID, Basis: BasisLedger}, nil
		case class == ClassDuplicate:
			return r.ours(ctx, a), nil
		case said != nil && said.Reason == inactive:
			// It passed the participant's deduplication and was ordered: nothing under this command id had committed.
			r.open, r.buried, r.consumedBy = nil, nil, ""
		case n < maxProbes && saysNothing(class, said):
			if werr := r.wait(ctx, r.c.options.backoff(n)); werr != nil {
				return nil, werr
			}
		default:
			if err == nil {
				err = errors.New("the submission is not waited for")
			}
			for _, b := range r.buried {
				r.leaveOpen(b.Prepared) // the participant could not say
			}
			r.buried = nil
			return nil, &stopError{"UNATTRIBUTED", fmt.Errorf("the digest is consumed by update %q, and whether that is ours the participant does not say: %w", a.updateID, err)}
		}
	}
}

// ours is the end of a digest that the participant says this call consumed.
func (r *redeem) ours(ctx context.Context, a *answer) *Outcome {
	a = r.updateOf(ctx, a)
	return &Outcome{State: Committed, UpdateID: a.updateID, Message: a.withoutUpdate(), Basis: BasisLedger}
}

// maxProbes bounds how often an open submission is repeated to learn whose the consumption is.
const maxProbes = 10

// saysNothing reports whether a repeated submission ended in a way that tells nothing, and may end otherwise the next time.
func saysNothing(class Class, said *LedgerError) bool {
	switch class {
	case ClassUnknown, ClassInFlight, ClassBackoff:
		return true
	case ClassRefresh:
		return said.Reason != "CONTRACT_NOT_FOUND" // which it meets before deduplication, each time
	default:
		return false
	}
}
