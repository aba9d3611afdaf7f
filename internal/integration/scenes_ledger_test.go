package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// govern carries a governance VAA out on both sides.
func (s *story) govern(what string, vaa *wormhole.VAA) {
	s.t.Helper()
	s.both(what, func(on *side) (*submit.Result, error) {
		_, result, err := on.world.Govern(record.Note(s.ctx, "%s", what), on.client, on.coreState().ContractID, vaa)
		return result, err
	})
}

// ungoverned submits a governance VAA that is refused: by the model's own rule, which the CoreState that the service gives foretells.
func (s *story) ungoverned(what string, vaa *wormhole.VAA, message string) {
	s.t.Helper()
	keys := wormhole.PubKeys(map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()})
	state := s.subject.coreState().Payload.(*wormhole.CoreState)
	_, err := state.SubmitGovernance(vaa.EncodedHex(), keys, time.Now(), wormhole.ActiveBefore)
	if rule := wormhole.RuleOf(err); rule == nil || rule.Message != message {
		s.t.Errorf("%s: the domain's rules say %v, want %q", what, err, message)
	}
	s.refused(what, fmt.Sprintf("the rules, on the CoreState served: %v", err), saysModel(message), func(on *side) submit.Submission {
		return submit.Submission{ActAs: []string{on.world.Operator}, Commands: []submit.Command{
			submit.SubmitGovernance(on.coreState().ContractID, vaa.EncodedHex(), keys)}}
	})
}

// governs: the CoreState is replaced under those who redeem, by a new fee and by a guardian set upgrade.
func (s *story) governs() {
	w := s.subject.world
	fee, err := w.FeeVAA(7)
	if err != nil {
		s.t.Fatal(err)
	}
	s.govern("governance sets the fee", fee)
	vaa := s.vaa(1)
	if answer := s.prepared(1, vaa); answer.MessageFee != 7 {
		s.t.Errorf("the service gives a fee of %d, want 7", answer.MessageFee)
	}
	s.ungoverned("a governance VAA again", fee, "governance VAA already consumed")

	// Three guardians take over between a preparation and its submission.
	three := map[uint8]wormhole.GuardianKey{}
	var keys []wormhole.GuardianKey
	for i := range uint8(3) {
		three[i] = wormhole.TestGuardian(fmt.Sprintf("integration set 1, %d", i))
		keys = append(keys, three[i])
	}
	p := s.redeemable(1, vaa, redeemer(5))
	before := s.subject.coreState()
	upgrade, err := w.UpgradeVAATo(keys...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.govern("governance replaces the guardian set", upgrade)
	fate := s.fate(before.ContractID)
	if fate.Fate != disclosurev1.Fate_FATE_SUPERSEDED || !slices.Equal(fate.SuccessorContractIds, []string{s.subject.coreState().ContractID}) {
		s.t.Errorf("of the CoreState before the upgrade the service says %v", fate)
	}
	refusal := s.refused("the CoreState of before the upgrade", "the CoreState is superseded", inactive, func(on *side) submit.Submission { return p.of(s, on).submission() })
	if refusal != nil && !slices.Contains(refusal.Contracts, before.ContractID) {
		s.t.Errorf("the refusal names %v, not the CoreState", refusal.Contracts)
	}
	// The old set goes on for a day; its VAAs verify on the new CoreState.
	s.redeem(1, vaa, redeemer(5))
	late, err := w.FeeVAA(8)
	if err != nil {
		s.t.Fatal(err)
	}
	s.ungoverned("a governance VAA of the old set", late, "governance VAA is not signed by the current guardian set")

	two := maps.Clone(three)
	delete(two, 1)
	s.badVAA("no quorum: two of three", wormhole.SignVAA(s.vaa(0).VAABody, 1, two).Encode(), "no quorum: have 2, need 3", 5)
	s.redeem(0, wormhole.SignVAA(s.vaa(0).VAABody, 1, three), redeemer(5))
}

// lookalikes: others make contracts of the model under parties of their own. They are counted and never served; the ledger refuses them where
// the genuine ones belong.
func (s *story) lookalikes() {
	puppets := map[*side]submit.Created{}
	s.both("a puppet CoreState that the operator sees", func(on *side) (*submit.Result, error) {
		state := *on.coreState().Payload.(*wormhole.CoreState)
		state.GuardianObserver, state.Operator, state.GuardianGovernance = on.world.Operator, on.parties["accomplice"], on.parties["puppeteer"]
		result, err := on.client.Do(s.ctx, []string{state.Operator, state.GuardianGovernance}, nil, submit.Create(&state))
		if err == nil {
			puppets[on] = result.Created[0]
		}
		return result, err
	})
	shadows := map[*side]submit.Created{}
	var made *submit.Result
	made, _ = s.both("a shadow trie of app 1, under an accomplice", func(on *side) (*submit.Result, error) {
		result, err := on.client.Do(s.ctx, []string{s.app(on, 0).Consumer, on.parties["accomplice"]}, nil, submit.Create(&wormhole.ReplayNode{
			Consumer: s.app(on, 0).Consumer, Operator: on.parties["accomplice"], SplitThreshold: 4}))
		if err == nil {
			shadows[on] = result.Created[0]
		}
		return result, err
	})
	audit := s.audit(made)
	for _, kind := range []string{"puppet", "shadow"} {
		if audit.Counts[kind] != 1 {
			s.t.Errorf("the audit counts %d of kind %s, want 1: %v", audit.Counts[kind], kind, audit.Counts)
		}
	}
	if !audit.Clean {
		s.t.Errorf("the audit is not clean for other people's contracts: %v", audit.Counts)
	}
	vaa := s.vaa(0)
	p := s.redeemable(0, vaa, redeemer(6)) // which checks that the genuine ones are served
	s.departs("a puppet CoreState", p, saysModel("core state belongs to a different operator"), func(on *side, b *bundle) {
		b.coreState, b.discloseCore = puppets[on].ContractID, disclosure(puppets[on].Contract)
	})
	s.departs("a shadow trie's node", p, saysModel("replay node belongs to a different operator"), func(on *side, b *bundle) {
		b.node, b.discloseNode = shadows[on].ContractID, disclosure(shadows[on].Contract)
	})
	s.redeem(0, vaa, redeemer(6))
}

// audit asks for a full audit of a view that is not older than the update.
func (s *story) audit(after *submit.Result) *disclosurev1.AuditResponse {
	s.t.Helper()
	answer, err := ask(s, "Audit", func(ctx context.Context) (*disclosurev1.AuditResponse, error) {
		read := s.fresh()
		read.AfterUpdateId, read.MinOffset, read.ParticipantId = "", max(read.MinOffset, after.Offset), s.participant
		return s.service.api.Audit(ctx, &disclosurev1.AuditRequest{Full: true, Read: read})
	})
	if err != nil {
		s.t.Fatalf("Audit: %v", err)
	}
	if !answer.IncrementalAgrees {
		s.t.Error("the audit's findings made anew are not those kept")
	}
	return answer
}

// archives: both signatories archive a node. Its part of the digests is bricked, and the service says so; the rest goes on.
func (s *story) archives() {
	lost := s.vaa(0)
	p := s.redeemable(0, lost, redeemer(7))
	node := s.covering(0, lost)
	kept := s.vaaWhere(0, func(n submit.Created) bool { return n.ContractID != node.ContractID })
	archived, _ := s.both("both signatories archive a node", func(on *side) (*submit.Result, error) {
		n, err := on.covering(s.app(on, 0).Consumer, lost.Digest())
		if err != nil {
			return nil, err
		}
		return on.client.Do(s.ctx, []string{s.app(on, 0).Consumer, on.world.Operator}, nil, submit.Archive(wormhole.ReplayNodeTemplate, wormhole.PackageName, n.ContractID))
	})
	_, err := s.tryPrepare(s.app(s.subject, 0).Consumer, lost.Encode())
	if reason := reasonOf(err); reason != "GAP" {
		s.t.Errorf("of a digest in the gap the service says %q (%v), want GAP", reason, err)
	}
	if fate := s.fate(node.ContractID); fate.Fate != disclosurev1.Fate_FATE_ARCHIVED || fate.UpdateId != archived.UpdateID {
		s.t.Errorf("of the archived node the service says %v", fate)
	}
	s.refused("a node that both signatories archived", "GAP", inactive, func(on *side) submit.Submission { return p.of(s, on).submission() })
	if audit := s.audit(archived); audit.Counts["gap"] != 1 || audit.Clean {
		s.t.Errorf("the audit counts %v, want one gap", audit.Counts)
	}
	s.redeem(0, kept, redeemer(7))
}

// kills: the service is killed, the ledger goes on without it, and it is started again.
func (s *story) kills() {
	vaa := s.vaa(1)
	p := s.redeemable(1, vaa, redeemer(1))
	s.service.Kill()
	missed := s.commit("a redeem while the service is down", p)
	s.consume(2, randomDigest())
	again := s.vaa(1)
	down := pair{s.withoutService(s.subject, 1, again, redeemer(1)), s.withoutService(s.standIn, 1, again, redeemer(1))}
	second := s.commit("another redeem while the service is down", down)
	s.restartService()
	s.consumedBy(1, vaa, missed.UpdateID)
	s.consumedBy(1, again, second.UpdateID)
	s.redeem(1, s.vaa(1), redeemer(1))
}

// withoutService makes a redeem of what the submissions showed.
func (s *story) withoutService(on *side, i int, vaa *wormhole.VAA, as string) *bundle {
	s.t.Helper()
	node, err := on.covering(s.app(on, i).Consumer, vaa.Digest())
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := on.bundleOf(s.app(on, i), vaa, node, as, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// restartService starts the service again after it was killed, and waits until it is ready.
func (s *story) restartService() {
	s.t.Helper()
	begun := time.Now()
	s.service.start()
	if err := s.service.waitReady(s.ctx); err != nil {
		s.t.Fatal(err)
	}
	s.report.took("the service from its start to ready", time.Since(begun))
}

// restarts: the participant goes down and comes back with its ledger. The service follows it again by itself.
func (s *story) restarts() {
	if s.settings.restart == nil {
		s.report.note("not played: no restart command was given")
		return
	}
	if err := s.settings.restart(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.waitParticipant(); err != nil {
		s.t.Fatal(err)
	}
	id, err := s.subject.client.ParticipantID(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if id != s.participant {
		s.t.Fatalf("after the restart participant %s answers, before it was %s: the restart must keep the ledger", id, s.participant)
	}
	s.redeem(1, s.vaa(1), redeemer(2))
}

// waitParticipant waits until the participant answers.
func (s *story) waitParticipant() error {
	for {
		_, err := s.subject.client.LedgerEnd(s.ctx)
		if err == nil {
			return nil
		}
		state := s.ledgerConn.GetState()
		if state == connectivity.Ready {
			continue // it was lost in this moment and is back
		}
		s.ledgerConn.Connect()
		if !s.ledgerConn.WaitForStateChange(s.ctx, state) {
			return fmt.Errorf("the participant does not come back: %w", err)
		}
	}
}

// templates are those that the service reads, and the app's.
var templates = map[string][]record.Template{
	wormhole.PackageName: {
		{Module: "Wormhole.Core.Replay", Entity: "ReplayNode"}, {Module: "Wormhole.Core.Replay", Entity: "ReplayRootRegistry"},
		{Module: "Wormhole.Core.State", Entity: "CoreState"}, {Module: "Wormhole.Core.Emitters", Entity: "EmitterRegistry"},
		{Module: "Wormhole.Core.Emitters", Entity: "Emitter"},
	},
}

// readsBack reads all that the story did to the participant into the recording.
func (s *story) readsBack() {
	end, err := s.subject.client.LedgerEnd(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	parties := []string{s.subject.world.Operator}
	if err := record.ReadBack(s.ctx, s.ledgerConn, parties, templates, s.subject.begin, end); err != nil {
		s.t.Fatal(err)
	}
	s.recorder.Fact("read_back", map[string]int64{"begin": s.subject.begin, "end": end})
}

// prunes: the participant forgets what the service, while it was down, has not read. It is built anew.
func (s *story) prunes() {
	beyond := func(on *side) error {
		end, err := on.client.LedgerEnd(s.ctx)
		if err != nil {
			return err
		}
		return on.client.Prune(s.ctx, end+1000)
	}
	s.admin("pruning past ledger end", want{code: codes.FailedPrecondition, reason: "OFFSET_OUT_OF_RANGE"}, beyond)
	if !s.settings.prune {
		s.report.note("not played but for a refusal: PRUNE=yes was not given")
		return
	}
	s.service.Kill()
	vaa := s.vaa(1)
	p := pair{s.withoutService(s.subject, 1, vaa, redeemer(3)), s.withoutService(s.standIn, 1, vaa, redeemer(3))}
	missed := s.commit("a redeem that the service misses", p)
	s.consume(2, randomDigest())
	s.consume(2, randomDigest())
	err := s.subject.client.Prune(s.ctx, missed.Offset)
	switch refusal := rejection(err); {
	case err == nil:
		s.report.note("pruned up to offset %d while the service was down: it read the active contracts anew", missed.Offset)
	case refusal != nil && refusal.Reason == "UNSAFE_TO_PRUNE":
		s.report.note("the participant does not prune yet (%s): its deduplication time and its commitments come first", refusal.Message)
		s.restartService()
		return
	default:
		s.t.Fatal(err)
	}
	if err := s.standIn.client.Prune(s.ctx, s.standIn.lastResult().Offset-1); err != nil {
		s.t.Fatal(err)
	}
	s.admin("updates from before what was pruned", want{code: codes.FailedPrecondition, reason: "PARTICIPANT_PRUNED_DATA_ACCESSED"}, func(on *side) error {
		conn := s.ledgerConn
		if on == s.standIn {
			conn = s.standInConn
		}
		end, err := on.client.LedgerEnd(s.ctx)
		if err != nil {
			return err
		}
		return record.ReadBack(record.Note(s.ctx, "from before what was pruned"), conn, []string{on.world.Operator}, templates, on.begin, end)
	})
	s.forgotten = true
	s.restartService()
	answer, err := s.tryPrepare(s.app(s.subject, 1).Consumer, vaa.Encode())
	if err != nil {
		s.t.Fatal(err)
	}
	if answer.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED {
		s.t.Errorf("of what was consumed in the pruned past the service says %s", answer.Verdict)
	}
	s.redeem(1, s.vaa(1), redeemer(3))
	s.forgotten = false
	s.redeem(1, s.vaa(1), redeemer(3))
}

// admin does on both sides what is refused and is no submission.
func (s *story) admin(what string, expected want, do func(on *side) error) {
	s.t.Helper()
	begun := time.Now()
	err := do(s.subject)
	took := time.Since(begun)
	if err == nil {
		s.t.Errorf("%s: is not refused", what)
		return
	}
	got := answerOf(err)
	row := refusalRow{scene: s.report.scene, what: what, predicted: "nothing: no redeem", answer: got, took: took}
	if got.code != expected.code || got.reason != expected.reason {
		row.differences = append(row.differences, fmt.Sprintf("expected was %s %s", expected.code, expected.reason))
		s.t.Errorf("%s: got %v, want %s %s", what, err, expected.code, expected.reason)
	}
	if differing := differences(got, answerOf(do(s.standIn))); len(differing) > 0 {
		row.differences = append(row.differences, differing...)
		s.t.Errorf("%s: %s", what, strings.Join(differing, "; "))
	}
	s.report.refusals = append(s.report.refusals, row)
}

// ends: the index is what the participant's active contracts are, and both sides have the same tries.
func (s *story) ends() {
	audit := s.audit(s.subject.lastResult())
	expected := map[string]int64{"gap": 1, "puppet": 1, "shadow": 1}
	if !maps.Equal(audit.Counts, expected) {
		s.t.Errorf("the audit counts %v, want %v", audit.Counts, expected)
	}
	out, err := s.service.command(s.ctx, "audit", "--against-ledger", "--server", s.service.address)
	if !strings.Contains(out, "against the ledger: the same") {
		s.t.Errorf("audit --against-ledger: %v\n%s", err, out)
	}
	for _, line := range strings.Split(out, "\n") {
		if strings.HasPrefix(line, "against the ledger") {
			s.report.note("%s", line)
		}
	}
	if subject, standIn := s.subject.tries(), s.standIn.tries(); !maps.Equal(subject, standIn) {
		s.t.Errorf("the tries differ: %d nodes on the participant, %d on the stand-in", len(subject), len(standIn))
	} else {
		s.report.note("both sides have the same %d nodes", len(subject))
	}
}
