package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// What follows is about ends for which no ledger has been asked. A service can invent the contracts that prove them, so other endpoints are
// heard before a redeem ends so. One that has a bundle to submit with, where another says that there is nothing to submit, is believed
// first: the ledger decides between them.

// corroborate asks the other endpoints what an answer without a bundle says. agreed counts those that say the same, with proof, the
// answer's own included. other is the answer of one that has a bundle: then the first one rests.
func (r *redeem) corroborate(ctx context.Context, a *answer) (agreed int, other *answer) {
	agreed = 1
	for _, e := range r.order() {
		if e == a.from || ctx.Err() != nil {
			continue
		}
		read := &disclosurev1.ReadOptions{NotContractIds: r.not}
		b, err := r.question(ctx, e, read)
		if err == nil && b.prepared != nil && a.updateID != "" {
			// It may only be behind: what the first one saw is waited for. Where the update is not known here the answer stands.
			if later, err := r.question(ctx, e, &disclosurev1.ReadOptions{AfterUpdateId: a.updateID, Wait: durationpb.New(r.c.options.SuccessorWait)}); err == nil {
				b = later
			}
		}
		switch {
		case err != nil:
			r.c.failed(e, time.Now())
		case b.prepared != nil && !r.stale(b.prepared):
			r.c.options.Log.Warn("two endpoints disagree, and the ledger is asked", "digest", r.digest.String(), "says that there is nothing to submit", a.from.name,
				"has a bundle", e.name)
			r.observe(Event{Kind: EventDisputed, Endpoint: a.from.name, Reason: a.reason()})
			r.c.failed(a.from, time.Now())
			r.c.answered(e)
			r.answers++
			return 0, b
		case a.consumed && b.consumed, a.invalid != nil && b.invalid != nil && a.invalid.Code == b.invalid.Code:
			agreed++
			if a.updateID == "" {
				a.updateID = b.updateID
			}
		}
	}
	return agreed, nil
}

// consumedByAnother is the end of a digest that is consumed, not by this call; nil where another endpoint has a bundle. Where the ledger has
// said so nobody else needs to.
func (r *redeem) consumedByAnother(ctx context.Context, a *answer) (*Outcome, *answer) {
	o := &Outcome{State: Consumed, Reason: alreadyConsumed, Basis: BasisLedger}
	if r.consumed == nil {
		agreed, other := r.corroborate(ctx, a)
		if other != nil {
			return nil, other
		}
		o.Basis, o.Agreed = basisOf(agreed), agreed
	}
	o.UpdateID, o.Message = a.updateID, a.withoutUpdate()
	return o, nil
}

// invalidBy is the end of a VAA that verifies by no endpoint's CoreState; nil where another endpoint has a bundle.
func (r *redeem) invalidBy(ctx context.Context, a *answer) (*Outcome, *answer) {
	agreed, other := r.corroborate(ctx, a)
	if other != nil {
		return nil, other
	}
	return &Outcome{State: Invalid, Reason: string(a.invalid.Code), Message: a.invalid.Message, Basis: basisOf(agreed), Agreed: agreed, MayPass: r.ofNewerSet(a)}, nil
}

// ofNewerSet reports whether the VAA names a guardian set that is newer than CoreState's own.
func (r *redeem) ofNewerSet(a *answer) bool {
	return a.invalid != nil && a.invalid.Code == wormhole.RuleUnknownGuardianSet && r.vaa != nil && int64(r.vaa.GuardianSetIndex) > a.guardianSetIndex
}

// awaitsSet reports whether a newer set is still waited for.
func (r *redeem) awaitsSet(a *answer) bool {
	if !r.ofNewerSet(a) {
		return false
	}
	if r.newSet.IsZero() {
		r.newSet = time.Now()
	}
	return time.Since(r.newSet) < r.c.options.GuardianSetWait
}

// otherBundle looks for an endpoint that gives another bundle than one that was refused for good, and has it submitted next. A refusal is about
// what was disclosed, and what was disclosed one endpoint chose.
func (r *redeem) otherBundle(ctx context.Context, refused *Prepared) bool {
	if r.opinions >= len(r.c.endpoints)-1 {
		return false
	}
	for _, e := range r.order() {
		if e.name == refused.Endpoint || ctx.Err() != nil {
			continue
		}
		b, err := r.question(ctx, e, &disclosurev1.ReadOptions{})
		if err != nil || b.prepared == nil || b.prepared.sameContracts(refused) || r.stale(b.prepared) {
			continue
		}
		r.opinions++
		r.answers++
		r.c.leave(refused.Endpoint)
		r.next = b.prepared
		return true
	}
	return false
}

// updateOf is which update consumed the digest, asked again for some seconds where history did not answer: an end by this call's own update
// should say which that is.
func (r *redeem) updateOf(ctx context.Context, a *answer) *answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), historyPatience)
	defer cancel()
	for n := 1; a.updateID == "" && a.historyUnavailable; n++ {
		if r.wait(ctx, min(time.Duration(n)*settlePoll, time.Second)) != nil {
			return a
		}
		for _, e := range r.order() {
			if b, err := r.question(ctx, e, &disclosurev1.ReadOptions{}); err == nil && b.consumed && (b.updateID != "" || e == a.from) {
				if a = b; a.updateID != "" {
					return a
				}
			}
		}
	}
	return a
}

// historyPatience is how long it is asked for the update of a commit that is known.
const historyPatience = 10 * time.Second

// burial is a submission of which an endpoint said that it is dead.
type burial struct {
	Prepared
	// by are the names of the endpoints that say so.
	by []string
}

// maxFates bounds for how many nodes' fates one reading asks.
const maxFates = 4

// bury takes the open submissions for dead whose node is archived as of an answer by which the digest is not consumed: a submission
// needs its node active. That is the service's word, so it decides nothing but when to stop asking.
func (r *redeem) bury(ctx context.Context, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, r.c.options.CallTimeout)
	defer cancel()
	asked := 0
	r.open = slices.DeleteFunc(r.open, func(p Prepared) bool {
		if p.ReplayNodeContractID == a.node || asked == maxFates {
			return false // active still, or for the next time
		}
		asked++
		// The fate is as of now, and the answer before: only what had ended by then is told apart by it.
		ended, offset, err := fateOf(ctx, a.from, p.ReplayNodeContractID)
		if err != nil || !ended || offset <= 0 || offset > a.offset {
			return false
		}
		r.buried = append(r.buried, burial{p, []string{a.from.name}})
		return true
	})
}

// exhume asks the other endpoints about the submissions that are buried, at the end that rests on their being dead, and lowers the outcome's
// basis to what that is. Where one says that a node is active its submission is open again.
func (r *redeem) exhume(ctx context.Context, o *Outcome) {
	if len(r.buried) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.options.SettleTime)
	defer cancel()
	least := len(r.c.endpoints)
	for i, b := range r.buried {
		for _, e := range r.order() {
			if i >= maxFates || slices.Contains(b.by, e.name) {
				continue
			}
			ended, _, err := fateOf(ctx, e, b.ReplayNodeContractID)
			switch {
			case errors.Is(err, errActive):
				r.leaveOpen(b.Prepared)
			case err == nil && ended:
				b.by = append(b.by, e.name)
			}
		}
		least = min(least, len(b.by))
	}
	r.buried = nil
	if o.Basis != BasisEndpoint && o.Basis != BasisAgreed || least < o.Agreed {
		o.Basis, o.Agreed = basisOf(least), least
	}
}

// errActive says that a contract is active, or will be again.
var errActive = errors.New("the contract is active")

// fateOf asks an endpoint whether a contract has ended, and by which offset; the offset is 0 where it does not know.
func fateOf(ctx context.Context, e *endpoint, contractID string) (ended bool, offset int64, err error) {
	fate, err := e.api.GetContractFate(ctx, &disclosurev1.GetContractFateRequest{ContractId: contractID})
	if err != nil {
		return false, 0, err
	}
	switch fate.GetFate() {
	case disclosurev1.Fate_FATE_SUPERSEDED, disclosurev1.Fate_FATE_SPLIT, disclosurev1.Fate_FATE_ARCHIVED, disclosurev1.Fate_FATE_GONE:
		return true, fate.GetOffset(), nil
	case disclosurev1.Fate_FATE_ACTIVE, disclosurev1.Fate_FATE_IN_FLIGHT:
		return false, 0, errActive
	default:
		return false, 0, nil // nothing certain is known
	}
}
