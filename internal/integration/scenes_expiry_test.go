package integration

import (
	"context"
	"slices"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// How long the guardian set of the scene below lives, and by how much the participant's clock may differ from ours for it to be played.
const (
	shortLife = 5 * time.Second
	mostSkew  = time.Second
)

// expires: a second CoreState of the same anchors, whose guardian set expires while it is in use. As long as there are two the service serves
// neither but to who names one; a redeem commits before the set's end, and the service and the ledger refuse another after it.
func (s *story) expires() {
	result := s.consume(2, randomDigest())
	if skew := time.Since(result.RecordTime); skew < -mostSkew || skew > mostSkew+5*time.Second {
		s.report.note("not played: the ledger's clock (%s) and ours differ by %s", result.RecordTime.Format(time.RFC3339), skew)
		return
	}
	end := result.EffectiveAt.Add(shortLife).Truncate(time.Millisecond)
	second := map[*side]submit.Created{}
	for _, on := range []*side{s.subject, s.standIn} {
		state := *on.coreState().Payload.(*wormhole.CoreState)
		state.GuardianSetIndex, state.GuardianSets = 0, map[int64]wormhole.GuardianSet{0: {Keys: []string{wormhole.DevnetGuardian().Address()}, Expiration: &end}}
		made, err := on.client.Do(record.Note(s.ctx, "a second CoreState, whose guardian set expires soon"), []string{state.Operator, state.GuardianGovernance}, nil, submit.Create(&state))
		if err != nil {
			s.t.Fatalf("%s: %v", on.name, err)
		}
		second[on] = made.Created[0]
		on.changedBy(made.Offset, made.UpdateID)
	}
	first, next := s.vaa(1), s.vaa(1)
	_, err := s.tryPrepare(s.app(s.subject, 1).Consumer, first.Encode())
	if reason := reasonOf(err); reason != "CORE_STATE_DOUBLED" {
		s.t.Errorf("with two CoreStates the service says %q (%v), want CORE_STATE_DOUBLED", reason, err)
	}
	answer := s.naming(second[s.subject].ContractID, first)
	if answer.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_EXPIRES_SOON || !answer.GuardianSetExpiresAt.AsTime().Equal(end) {
		s.t.Errorf("of a guardian set that expires at %s the service says %s, at %s", end, answer.Verdict, answer.GuardianSetExpiresAt.AsTime())
	}
	if !slices.ContainsFunc(answer.DisclosedContracts, func(d *disclosurev1.DisclosedContract) bool { return d.ContractId == second[s.subject].ContractID }) {
		s.t.Error("the service does not disclose the CoreState that it was asked for")
	}
	on := func(side *side, vaa *wormhole.VAA) submit.Submission {
		b := s.withoutService(side, 1, vaa, redeemer(6))
		b.coreState, b.discloseCore = second[side].ContractID, disclosure(second[side].Contract)
		return b.submission()
	}
	s.both("a redeem before the guardian set's end", func(side *side) (*submit.Result, error) { return side.client.Submit(s.ctx, on(side, first)) })

	s.pass(end)
	answer = s.naming(second[s.subject].ContractID, next)
	if answer.FailedRule.GetCode() != "GUARDIAN_SET_EXPIRED" {
		s.t.Errorf("after the guardian set's end the service says %s %v", answer.Verdict, answer.FailedRule)
	}
	s.refused("a VAA whose guardian set has just expired", "invalid, "+answer.FailedRule.GetCode()+": "+answer.FailedRule.GetMessage(),
		saysModel("guardian set has expired"), func(side *side) submit.Submission { return on(side, next) })

	for _, on := range []*side{s.subject, s.standIn} {
		gone, err := on.client.Do(record.Note(s.ctx, "the second CoreState is archived"), []string{on.world.Operator, on.world.GuardianGovernance}, nil,
			submit.Archive(wormhole.CoreStateTemplate, wormhole.PackageName, second[on].ContractID))
		if err != nil {
			s.t.Fatalf("%s: %v", on.name, err)
		}
		on.changedBy(gone.Offset, gone.UpdateID)
	}
	s.prepared(1, next) // the service has seen it
	s.redeem(1, next, redeemer(6))
}

// naming is PrepareRedeem of app 2's VAA on the CoreState of that id.
func (s *story) naming(coreState string, vaa *wormhole.VAA) *disclosurev1.PrepareRedeemResponse {
	s.t.Helper()
	answer, err := ask(s, "PrepareRedeem", func(ctx context.Context) (*disclosurev1.PrepareRedeemResponse, error) {
		return s.service.api.PrepareRedeem(ctx, &disclosurev1.PrepareRedeemRequest{
			Scope: &disclosurev1.ScopeSelector{Consumer: s.app(s.subject, 1).Consumer}, CoreStateContractId: coreState,
			Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa.Encode()}, Read: s.fresh(),
		})
	})
	if err != nil {
		s.t.Fatalf("PrepareRedeem with a CoreState named: %v", err)
	}
	return answer
}

// pass waits until the time is past on both ledgers, by consumes that tell it, and by our own clock, which is the service's.
func (s *story) pass(end time.Time) {
	s.t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			s.t.Fatal(s.ctx.Err())
		}
		if !time.Now().After(end) {
			continue
		}
		digest := randomDigest()
		consume := func(on *side) (*submit.Result, error) {
			consumer := s.app(on, 2).Consumer
			node, err := on.covering(consumer, digest)
			if err != nil {
				return nil, err
			}
			return on.client.Do(s.ctx, []string{consumer}, nil, submit.ConsumeDigest(node.ContractID, digest.String()))
		}
		subject, standIn := s.both("a consume that tells the ledger's time", consume)
		if subject.EffectiveAt.After(end) && standIn.EffectiveAt.After(end) {
			return
		}
	}
}
