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
			return r.attribute(ctx, a)
		case !asked && !a.now.IsZero():
			moments[a.from] = a.now
		case asked && !must && !a.provenAt.Before(moment):
			r.bury(ctx, a)
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

// bury drops the open submissions that are dead: their node is archived, by an update that did not consume the digest or by another than
// the one that did. A submission needs its node active, so it can't commit any more.
func (r *redeem) bury(ctx context.Context, a *answer) {
	r.open = slices.DeleteFunc(r.open, func(p Prepared) bool {
		if p.ReplayNodeContractID == a.node {
			return false // active still
		}
		ctx, cancel := context.WithTimeout(ctx, r.c.options.CallTimeout)
		defer cancel()
		fate, err := a.from.api.GetContractFate(ctx, &disclosurev1.GetContractFateRequest{ContractId: p.ReplayNodeContractID})
		if err != nil {
			return false
		}
		switch fate.GetFate() {
		case disclosurev1.Fate_FATE_SUPERSEDED, disclosurev1.Fate_FATE_SPLIT, disclosurev1.Fate_FATE_ARCHIVED, disclosurev1.Fate_FATE_GONE:
		default:
			return false // active elsewhere, or nothing certain is known
		}
		if !a.consumed {
			// The fate is as of now, and the answer before: only what had ended by then is told apart by it.
			return fate.GetOffset() > 0 && fate.GetOffset() <= a.offset
		}
		return a.updateID != "" && fate.GetUpdateId() != "" && fate.GetUpdateId() != a.updateID
	})
}

// attribute says whose the consumption is. Where no submission is open it is not ours; where some are, the participant is asked, by
// repeating them unchanged.
func (r *redeem) attribute(ctx context.Context, a *answer) (*Outcome, error) {
	ours := &Outcome{State: Committed, UpdateID: a.updateID}
	if r.duplicate != nil {
		return ours, nil
	}
	if len(r.open) > 0 {
		r.bury(ctx, a)
	}
	ctx, cancel := outlast(ctx, r.c.options.SettleTime)
	defer cancel()
	for n := 1; len(r.open) > 0; n++ {
		r.consumedBy = a.updateID
		probe := r.open[len(r.open)-1]
		probe.Probe = true
		r.probes++
		submitted, class, said, err := r.submitOnce(ctx, probe, EventProbed)
		switch {
		case err == nil && submitted.UpdateID != "":
			return &Outcome{State: Committed, UpdateID: submitted.UpdateID}, nil
		case class == ClassDuplicate:
			return ours, nil
		case said != nil && said.Reason == inactive:
			// It passed the participant's deduplication and was ordered: nothing under this command id had committed.
			r.open = nil
		case n < maxProbes && saysNothing(class, said):
			if werr := r.wait(ctx, r.c.options.backoff(n)); werr != nil {
				return nil, werr
			}
		default:
			if err == nil {
				err = errors.New("the submission is not waited for")
			}
			return nil, &stopError{"UNATTRIBUTED", fmt.Errorf("the digest is consumed by update %q, and whether that is ours the participant does not say: %w", a.updateID, err)}
		}
	}
	return &Outcome{State: Consumed, UpdateID: a.updateID, Reason: alreadyConsumed}, nil
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

const inactive = "LOCAL_VERDICT_INACTIVE_CONTRACTS"
