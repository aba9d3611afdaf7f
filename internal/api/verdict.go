package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// A verdict on a VAA has two parts. The signatures against a set's keys cost milliseconds and never change: they are judged once per VAA
// and keys, and remembered. All that can change, the sets of the present CoreState and what time it is, is looked at for each
// answer.

// subject is what a redeem is asked about: a VAA, bytes that are none, or a bare digest.
type subject struct {
	// vaa is nil for bytes that are no VAA and for a bare digest.
	vaa *wormhole.VAA
	// hash is the SHA-256 of the VAA's bytes.
	hash [sha256.Size]byte
	// fault is why the bytes are no VAA, nil where they are one.
	fault *wormhole.Rule
	// digest is the VAA's or the bare one; it is not there with a fault.
	digest wormhole.Digest
}

// signedBy is the judgement on a VAA's signatures: the guardians' keys, or the rule that they fail.
type signedBy struct {
	keys []wormhole.PubKey
	rule *wormhole.Rule
}

// verdictKey names a judgement: the VAA's bytes and the keys of the set, whatever index and expiry the set has.
type verdictKey struct{ vaa, set [sha256.Size]byte }

// verdicts remembers judgements. An entry is there before its judgement is, so that of callers at once one computes and the others
// wait for it: some milliseconds, as the work is bounded by the set's size.
type verdicts struct {
	*lru[verdictKey, func() signedBy]
}

// A key's text and headers, and an entry without its keys, with a margin.
const (
	verdictBytes = 400
	pubKeyBytes  = 200
)

// signatures judges the VAA's signatures against the set's keys.
func (v verdicts) signatures(sub *subject, set *wormhole.GuardianSet) signedBy {
	key := verdictKey{sub.hash, hashOf(set)}
	if judged, ok := v.get(key); ok {
		return judged()
	}
	vaa := sub.vaa
	judge := sync.OnceValue(func() signedBy {
		keys, err := set.RecoverSignatures(vaa)
		return signedBy{keys, wormhole.RuleOf(err)}
	})
	return v.getOrAdd(key, judge, verdictBytes+pubKeyBytes*min(len(vaa.Signatures), len(set.Keys)))()
}

// hashOf is a hash of the set's keys.
func hashOf(set *wormhole.GuardianSet) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, key := range set.Keys {
		h.Write([]byte(key))
		h.Write([]byte{0})
	}
	h.Sum(sum[:0])
	return sum
}

// verification is the ledger's verdict on a VAA.
type verification struct {
	// rule is the first check that the VAA fails, nil where it verifies.
	rule *wormhole.Rule
	// keys are the guardians', expires when the set stops to verify (nil for never), where the VAA verifies.
	keys    []wormhole.PubKey
	expires *time.Time
}

// verify judges the subject's VAA by the CoreState at the time. The state is nil where there is none to judge by: then only what needs
// none is judged. A bare digest passes.
func (s *Service) verify(sub *subject, state *wormhole.CoreState, now time.Time) verification {
	if sub.fault != nil {
		return verification{rule: sub.fault}
	}
	if sub.vaa == nil {
		return verification{}
	}
	if state == nil {
		// The ledger reads the whole VAA before it looks at any state.
		err := (&wormhole.CoreState{}).VerifyWith(sub.vaa, now, wormhole.ActiveBefore, func(*wormhole.GuardianSet) error { return nil })
		if rule := wormhole.RuleOf(err); rule != nil && rule.Code == wormhole.RuleNumberTooLarge {
			return verification{rule: rule}
		}
		return verification{}
	}
	var judged signedBy
	// The genuine package's rule: a set that expires now has expired.
	err := state.VerifyWith(sub.vaa, now, wormhole.ActiveBefore, func(set *wormhole.GuardianSet) error {
		if judged = s.verdicts.signatures(sub, set); judged.rule != nil {
			return judged.rule
		}
		return nil
	})
	if rule := (*wormhole.Rule)(nil); errors.As(err, &rule) {
		return verification{rule: rule}
	}
	return verification{keys: judged.keys, expires: state.GuardianSets[int64(sub.vaa.GuardianSetIndex)].Expiration}
}

// ledgerNow is the least that the ledger's time can be, as far as is known: our clock may go slow, and the ledger's can't go back.
func (r *reading) ledgerNow() time.Time {
	if seen := r.view.Position().RecordTime; seen.After(r.now) {
		return seen
	}
	return r.now
}

// invalid is the answer to a VAA that the ledger refuses. The ledger would not have looked at the node; what is known of it is told all
// the same, since "consumed already" is often the reason why an old VAA is asked about.
func (s *Service) invalid(ctx context.Context, r *reading, q prepareQuery, scope index.Scope, core *index.Entry, rule *wormhole.Rule) (*disclosurev1.PrepareRedeemResponse, error) {
	bare := *r
	bare.withoutBlobs = true
	answer := &disclosurev1.PrepareRedeemResponse{Verdict: disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID}
	if core != nil {
		answer.CoreState = bare.coreState(core)
		answer.MessageFee = answer.CoreState.GetMessageFee()
	}
	answer.FailedRule = failedRule(&q.subject, coreStateOf(core), rule)
	if q.vaa == nil {
		return answer, nil
	}
	answer.Digest = q.digest.String()
	answer.Findings = findings(r.view.FindingsFor(scope, q.digest))
	node, err := r.view.Covering(scope, q.digest)
	if err != nil {
		return answer, nil // a gap or a fork is not why the redeem fails, and the findings tell it
	}
	answer.ReplayNode = bare.replayNode(node)
	answer.Consumption, err = s.consumption(ctx, r, scope, node, q.digest)
	return answer, err
}

// coreStateOf is the entry's payload, nil for no entry.
func coreStateOf(e *index.Entry) *wormhole.CoreState {
	if e == nil {
		return nil
	}
	state, _ := e.Payload.(*wormhole.CoreState)
	return state
}

func failedRule(sub *subject, state *wormhole.CoreState, rule *wormhole.Rule) *disclosurev1.FailedRule {
	failed := &disclosurev1.FailedRule{Code: string(rule.Code), Message: rule.Message}
	switch rule.Code {
	case wormhole.RuleVAAVersion, wormhole.RuleVAATruncated, wormhole.RuleNumberTooLarge:
		return failed
	case wormhole.RuleNoQuorum:
		failed.Have, failed.Need = new(int64(rule.Have)), new(int64(rule.Need))
	case wormhole.RuleSignaturesNotAscending, wormhole.RuleGuardianOutOfRange, wormhole.RuleInvalidSignature:
		failed.GuardianIndex = new(rule.Number)
	}
	named := int64(sub.vaa.GuardianSetIndex)
	failed.GuardianSetIndex = &named
	if set, ok := state.GuardianSets[named]; ok && rule.Code == wormhole.RuleGuardianSetExpired {
		failed.ExpiredAt = timestamp(*set.Expiration)
	}
	return failed
}
