package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// TestA07SnapshotToStream: the ledger moves on while the snapshot is read, slowly, contract by contract. What is archived, split and created
// meanwhile is in the index exactly once; also where the snapshot was empty.
func TestA07SnapshotToStream(t *testing.T) {
	t.Parallel()
	t.Run("full", func(t *testing.T) {
		w := newWorld(t, ledgersim.Options{}, 1, 3)
		j := newJudge(t, w)
		for range 60 {
			for _, app := range w.Apps {
				if _, err := consumeDigest(t.Context(), w, j, app, newDigest()); err != nil {
					t.Fatal(err)
				}
			}
		}
		before := w.sim.LedgerEnd()
		w.sim.Delay(2 * time.Millisecond)
		load := startLoad(w, j, 2, 0)
		svc := serve(t, w.follow().with(settings{"participant.call_timeout": "5s"}))
		until(t, patience, "an index is there", func() error {
			_, err := j.equalsLedger(svc.api)
			return err
		})
		load.stop()
		w.sim.Delay(0)
		audit := j.caughtUp(svc.api)
		if !audit.Clean {
			t.Errorf("the audit has findings: %v", audit.Counts)
		}
		t.Logf("%d activations, the ledger went from offset %d to %d meanwhile", audit.Activations, before, w.sim.LedgerEnd())
		svc.stop()
	})
	t.Run("empty", func(t *testing.T) {
		w := newParticipant(t, ledgersim.Options{})
		parties := map[string]string{}
		for _, hint := range []string{"operator", "guardianGovernance"} {
			var err error
			if parties[hint], err = w.client.AllocateParty(t.Context(), hint); err != nil {
				t.Fatal(err)
			}
		}
		w.World = &devnet.World{Operator: parties["operator"], GuardianGovernance: parties["guardianGovernance"]}
		svc := serve(t, w.follow())
		svc.waitReady()
		if info, err := svc.info(); err != nil || info.Scopes != 0 {
			t.Errorf("of an empty ledger the service says %v, %v", info, err)
		}
		j := newJudge(t, w)
		if _, err := w.client.Do(t.Context(), []string{w.Operator, w.GuardianGovernance}, nil,
			submit.Create(&wormhole.ReplayNode{Consumer: w.GuardianGovernance, Operator: w.Operator, SplitThreshold: 3})); err != nil {
			t.Fatal(err)
		}
		w.Apps = []*devnet.App{{Consumer: w.GuardianGovernance, Threshold: 3}}
		digest := newDigest()
		if _, err := consumeDigest(t.Context(), w, j, w.Apps[0], digest); err != nil {
			t.Fatal(err)
		}
		end := w.sim.LedgerEnd()
		until(t, patience, "the index is at the ledger end", func() error {
			audit, err := j.equalsLedger(svc.api)
			if err == nil && audit.Answer.Position.Offset < end {
				return errNotYet
			}
			return err
		})
		j.askCovering(t.Context(), svc.api)
		svc.stop()
	})
}

// TestA12NothingIsLostBetweenConnections: 50 updates land while the service can't reach the participant.
func TestA12NothingIsLostBetweenConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 4)
	p := newProxy(t, w.address)
	svc := serve(t, w.follow().with(settings{"participant.address": p.address}))
	svc.waitReady()
	j := newJudge(t, w)
	j.remembers(w.sim.LedgerEnd())
	p.swallow()
	p.cut()
	var landed []wormhole.Digest
	for range 50 {
		landed = append(landed, newDigest())
		if _, err := consumeDigest(t.Context(), w, j, w.Apps[0], landed[len(landed)-1]); err != nil {
			t.Fatal(err)
		}
	}
	svc.waitState(patience, "reconnecting")
	p.heal(true)
	j.caughtUp(svc.api)
	for _, digest := range landed {
		c := consumption{w.Apps[0], digest}
		answer, err := svc.api.PrepareRedeem(t.Context(), j.prepareRequest(c))
		if err != nil {
			t.Fatal(err)
		}
		j.checkPrepare(c, answer.Answer, answer)
	}
	svc.stop()
}

// TestA21OneBigUpdatePasses: an update of 6 MiB passes with the usual settings, into memory and into Postgres.
func TestA21OneBigUpdatePasses(t *testing.T) {
	t.Parallel()
	const size = 6 << 20
	w := newWorld(t, ledgersim.Options{}, 4)
	for _, database := range []bool{false, true} {
		s := w.follow()
		if database {
			s, _ = withDatabase(t, s)
		}
		svc := serve(t, s)
		svc.waitReady()
		w.makeBig(size + len(w.sim.Active(w.sim.LedgerEnd()))) // a party of another name each time
		j := newJudge(t, w)
		j.caughtUp(svc.api)
		if halts := svc.metrics()[`disclosured_stream_halts_total{reason="oversized"}`]; halts > 0 {
			t.Errorf("the service halted %v times", halts)
		}
		svc.stop()
	}
}

// redeem submits what the answer says, as a user who is a stakeholder of nothing.
func (w *world) redeem(ctx context.Context, app *devnet.App, user string, vaa *wormhole.VAA, answer *disclosurev1.PrepareRedeemResponse) (*submit.Result, error) {
	disclosed := []submit.Disclosure{submit.Disclose(app.Integrator.Contract)}
	for _, c := range answer.DisclosedContracts {
		disclosed = append(disclosed, submit.Disclosure{
			Blob: c.CreatedEventBlob, ContractID: c.ContractId, SynchronizerID: c.SynchronizerId,
			TemplateID: damlvalue.TypeName{PackageID: c.TemplateId.PackageId, Module: c.TemplateId.ModuleName, Entity: c.TemplateId.EntityName},
		})
	}
	var keys []wormhole.PubKey
	for _, k := range answer.Arguments.PubKeys {
		keys = append(keys, wormhole.PubKey{Index: k.GuardianIndex, Key: k.PublicKey})
	}
	return w.client.Do(ctx, []string{user}, disclosed, submit.Redeem(submit.Redemption{
		Integrator: app.Integrator.ContractID, CoreState: answer.Arguments.CoreStateContractId, ReplayNode: answer.Arguments.ReplayNodeContractId,
		Redeemer: user, EncodedVAA: vaa.EncodedHex(), PubKeys: keys,
	}))
}

// redeemer is a service, a user and a VAA for her.
func redeemer(t *testing.T) (w *world, svc *service, user string, vaa *wormhole.VAA, prepare func(*disclosurev1.ReadOptions) *disclosurev1.PrepareRedeemResponse) {
	w = newWorld(t, ledgersim.Options{}, 16)
	svc = serve(t, w.follow())
	svc.waitReady()
	user, err := w.client.AllocateParty(t.Context(), "user")
	if err != nil {
		t.Fatal(err)
	}
	if vaa, err = w.VAA(w.Apps[0], []byte("late")); err != nil {
		t.Fatal(err)
	}
	prepare = func(read *disclosurev1.ReadOptions) *disclosurev1.PrepareRedeemResponse {
		t.Helper()
		answer, err := svc.api.PrepareRedeem(t.Context(), &disclosurev1.PrepareRedeemRequest{
			Scope: &disclosurev1.ScopeSelector{Consumer: w.Apps[0].Consumer}, Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa.Encode()}, Read: read,
		})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	return w, svc, user, vaa, prepare
}

// TestB05SignedTooLate: while she signs, somebody else consumes on the node. Her submission fails and names it; the node that she then asks
// for, saying which one failed, is another, at a later offset, and with it the redeem works.
func TestB05SignedTooLate(t *testing.T) {
	t.Parallel()
	w, svc, user, vaa, prepare := redeemer(t)
	early := prepare(nil)
	if _, err := consumeDigest(t.Context(), w, nil, w.Apps[0], newDigest()); err != nil {
		t.Fatal(err)
	}
	_, err := w.redeem(t.Context(), w.Apps[0], user, vaa, early)
	var rejection *submit.Rejection
	if !errors.As(err, &rejection) || rejection.Reason != submit.ReasonInactive || !slices.Contains(rejection.Contracts, early.Arguments.ReplayNodeContractId) {
		t.Fatalf("the ledger's answer to a stale disclosure: %v", err)
	}
	late := prepare(&disclosurev1.ReadOptions{NotContractIds: []string{early.Arguments.ReplayNodeContractId}, Wait: durationpb.New(5 * time.Second)})
	if late.Arguments.ReplayNodeContractId == early.Arguments.ReplayNodeContractId || late.Answer.Position.Offset <= early.Answer.Position.Offset {
		t.Fatalf("asked for another than %s, the service gives %s at offset %d", early.Arguments.ReplayNodeContractId, late.Arguments.ReplayNodeContractId, late.Answer.Position.Offset)
	}
	result, err := w.redeem(t.Context(), w.Apps[0], user, vaa, late)
	if err != nil {
		t.Fatal(err)
	}
	// Nor is an accepted submission taken for the proof (B06): the service says by which update.
	after := prepare(&disclosurev1.ReadOptions{AfterUpdateId: result.UpdateID})
	if after.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || after.Consumption.GetUpdateId() != result.UpdateID {
		t.Errorf("after update %s: %s by %s", result.UpdateID, after.Verdict, after.Consumption.GetUpdateId())
	}
	svc.stop()
}

// TestB04StaleBundle: CoreState of the bundle was replaced. Whichever contract the failure names, she asks anew with every id of the bundle:
// the one that has a successor comes as it, the other one as unchanged, and the redeem works.
func TestB04StaleBundle(t *testing.T) {
	t.Parallel()
	w, svc, user, vaa, prepare := redeemer(t)
	early := prepare(nil)
	fee, err := w.FeeVAA(3)
	if err != nil {
		t.Fatal(err)
	}
	coreState, _, err := w.Govern(t.Context(), w.client, w.CoreState, fee)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.redeem(t.Context(), w.Apps[0], user, vaa, early); err == nil {
		t.Fatal("a redeem with an archived CoreState was committed")
	}
	late := prepare(&disclosurev1.ReadOptions{
		NotContractIds: []string{early.Arguments.CoreStateContractId, early.Arguments.ReplayNodeContractId}, Wait: durationpb.New(2 * time.Second),
	})
	if late.Arguments.CoreStateContractId != coreState || late.CoreState.Contract.Unchanged {
		t.Errorf("CoreState is %s, unchanged %v; it should be %s", late.Arguments.CoreStateContractId, late.CoreState.Contract.Unchanged, coreState)
	}
	if late.Arguments.ReplayNodeContractId != early.Arguments.ReplayNodeContractId || !late.ReplayNode.Contract.Unchanged {
		t.Errorf("the node, which nobody replaced, is %s, unchanged %v", late.Arguments.ReplayNodeContractId, late.ReplayNode.Contract.Unchanged)
	}
	if _, err := w.redeem(t.Context(), w.Apps[0], user, vaa, late); err != nil {
		t.Fatal(err)
	}
	svc.stop()
}

// TestIdleLedger: with no update at all the service stays ready, because it asks and proves; silence is not sickness (E06).
func TestIdleLedger(t *testing.T) {
	t.Parallel()
	lasts := time.Duration(count(int(5*time.Second), int(10*time.Minute)))
	if given := os.Getenv("E2E_IDLE"); given != "" {
		var err error
		if lasts, err = time.ParseDuration(given); err != nil {
			t.Fatalf("E2E_IDLE: %v", err)
		}
	}
	w := newWorld(t, ledgersim.Options{}, 16)
	svc := serve(t, w.follow().with(settings{"participant.poll_interval": "500ms"}))
	svc.waitReady()
	at := w.sim.LedgerEnd()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	over := time.NewTimer(lasts)
	defer over.Stop()
	asked := 0
	for idle := true; idle; {
		select {
		case <-ticker.C:
		case <-over.C:
			idle = false
		}
		asked++
		if err := svc.ready(); err != nil {
			t.Fatalf("not ready after %d questions: %v", asked, err)
		}
	}
	info, err := svc.info()
	if err != nil {
		t.Fatal(err)
	}
	if offset := info.Answer.Position.Offset; offset != at || w.sim.LedgerEnd() != at {
		t.Errorf("the index is at offset %d, the ledger ends at %d; both were at %d", offset, w.sim.LedgerEnd(), at)
	}
	m := svc.metrics()
	t.Logf("ready at each of %d questions in %s; age of the last proof %.3f s, updates applied %v", asked, lasts,
		m["disclosured_stream_proof_age_seconds"], m["disclosured_stream_applied_updates_total"])
	if m[fmt.Sprintf("disclosured_stream_reconnects_total{reason=%q}", "stalled")] > 0 {
		t.Error("silence was taken for a stall")
	}
	svc.stop()
}
