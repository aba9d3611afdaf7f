package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// story is what the scenes share.
type story struct {
	// root is the whole story's, t that of the scene.
	root, t  *testing.T
	ctx      context.Context
	settings settings
	// suffix ends the hints of this run's parties; user is the token's, "" without authorization.
	suffix, user string
	// participant is the subject's id.
	participant   string
	synchronizers []string

	subject, standIn *side
	sim              *ledgersim.Sim // the stand-in itself
	service          *service
	client           *client.Client
	// ledgerConn and standInConn lead to the two participants.
	ledgerConn, standInConn *grpc.ClientConn
	recorder                *record.Recorder
	report                  *report

	// lookInactive is how the stand-in's answer to a stale contract looks; onRefusal, where set, is told of refusals of redeems.
	lookInactive answer
	onRefusal    func(error)
	// forgotten: the service was built anew since, and knows earlier updates by their offsets alone.
	forgotten bool
}

// app is one of the three, as a side has it.
func (s *story) app(of *side, i int) *devnet.App { return of.world.Apps[i] }

// vaa is a new message for an app, signed by the current guardian set's one guardian.
func (s *story) vaa(i int) *wormhole.VAA {
	s.t.Helper()
	vaa, err := s.subject.world.VAA(s.app(s.subject, i), []byte("integration"))
	if err != nil {
		s.t.Fatal(err)
	}
	return vaa
}

// both does something that commits, on both sides, which must make and archive the same.
func (s *story) both(what string, do func(on *side) (*submit.Result, error)) (subject, standIn *submit.Result) {
	s.t.Helper()
	return s.each(what, func(on *side) (*submit.Result, error) {
		begun := time.Now()
		result, err := do(on)
		s.report.took("submission", time.Since(begun))
		return result, err
	}, do)
}

// each is both with different ways for the two.
func (s *story) each(what string, onSubject, onStandIn func(on *side) (*submit.Result, error)) (subject, standIn *submit.Result) {
	s.t.Helper()
	subject, err := onSubject(s.subject)
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	s.subject.learn(subject)
	standIn, err = onStandIn(s.standIn)
	if err != nil {
		s.t.Fatalf("%s: the stand-in refuses what the participant has taken: %v", what, err)
	}
	s.standIn.learn(standIn)
	s.report.commits++
	if got, want := shape(subject), shape(standIn); got != want {
		s.t.Errorf("%s: the participant %s, the stand-in %s", what, got, want)
	}
	return subject, standIn
}

// ---- the service

// fresh are the read options of an answer that is not older than the last change of ours.
func (s *story) fresh() *disclosurev1.ReadOptions {
	read := &disclosurev1.ReadOptions{Wait: durationpb.New(15 * time.Second)}
	if last := s.subject.lastResult(); last != nil {
		read.MinOffset, read.ParticipantId = last.Offset, s.participant
		if !s.forgotten {
			read.AfterUpdateId = last.UpdateID
		}
	}
	return read
}

// notYet are the reasons of a service that will answer later.
var notYet = []string{"BEHIND", "UPDATE_NOT_SEEN", "STALE", "NOT_SEEDED", "NOT_READY"}

// ask asks until the service is as far as it was asked to be.
func ask[T any](s *story, what string, call func(context.Context) (T, error)) (T, error) {
	for {
		begun := time.Now()
		answer, err := call(s.ctx)
		switch reason := reasonOf(err); {
		case err == nil:
			s.report.took(what, time.Since(begun))
			return answer, nil
		case s.ctx.Err() != nil:
			return answer, err
		case reason != "" && !slices.Contains(notYet, reason), reason == "" && status.Code(err) != codes.Unavailable: // unavailable of itself, no service is there
			return answer, err
		}
		if s.service.Ended() {
			return answer, fmt.Errorf("the service has ended: %w", err)
		}
		// Each of these waited on the service's side already, but for the last two, whose end its health stream tells.
		if err := s.service.waitReady(s.ctx); err != nil {
			return answer, err
		}
	}
}

// reasonOf is the reason of an error's ErrorInfo, "" for none.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// tryPrepare asks PrepareRedeem.
func (s *story) tryPrepare(consumer string, vaa []byte) (*disclosurev1.PrepareRedeemResponse, error) {
	return ask(s, "PrepareRedeem", func(ctx context.Context) (*disclosurev1.PrepareRedeemResponse, error) {
		return s.service.api.PrepareRedeem(ctx, &disclosurev1.PrepareRedeemRequest{
			Scope:   &disclosurev1.ScopeSelector{Consumer: consumer},
			Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa},
			Read:    s.fresh(),
		})
	})
}

// prepared is PrepareRedeem of what can be redeemed.
func (s *story) prepared(i int, vaa *wormhole.VAA) *disclosurev1.PrepareRedeemResponse {
	s.t.Helper()
	answer, err := s.tryPrepare(s.app(s.subject, i).Consumer, vaa.Encode())
	if err != nil {
		s.t.Fatalf("PrepareRedeem: %v", err)
	}
	if answer.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE {
		s.t.Fatalf("PrepareRedeem says %s (%v), want redeemable", answer.Verdict, answer.FailedRule)
	}
	node, err := s.subject.covering(s.app(s.subject, i).Consumer, vaa.Digest())
	if err != nil {
		s.t.Fatal(err)
	}
	if got := answer.Arguments.ReplayNodeContractId; got != node.ContractID {
		s.t.Errorf("PrepareRedeem gives node %s, by the submissions it is %s", got, node.ContractID)
	}
	if got, want := answer.Arguments.CoreStateContractId, s.subject.coreState().ContractID; got != want {
		s.t.Errorf("PrepareRedeem gives CoreState %s, by the submissions it is %s", got, want)
	}
	return answer
}

// pair is a redeem for each side.
type pair struct{ subject, standIn *bundle }

// redeemable makes the redeem of a good VAA for both sides: on the subject exactly what PrepareRedeem gave, and the app's own contract.
func (s *story) redeemable(i int, vaa *wormhole.VAA, as string) pair {
	s.t.Helper()
	answer := s.prepared(i, vaa)
	arguments := answer.Arguments
	app := s.app(s.subject, i)
	b := &bundle{
		redeemer: s.subject.parties[as], integrator: app.Integrator.ContractID, coreState: arguments.CoreStateContractId,
		node: arguments.ReplayNodeContractId, encoded: arguments.EncodedVaa, discloseApp: disclosure(app.Integrator.Contract),
	}
	for _, k := range arguments.PubKeys {
		b.keys = append(b.keys, wormhole.PubKey{Index: k.GuardianIndex, Key: k.PublicKey})
	}
	for _, d := range answer.DisclosedContracts {
		given := &submit.Disclosure{
			Blob: d.CreatedEventBlob, ContractID: d.ContractId, SynchronizerID: d.SynchronizerId,
			TemplateID: damlvalue.TypeName{PackageID: d.TemplateId.PackageId, Module: d.TemplateId.ModuleName, Entity: d.TemplateId.EntityName},
		}
		switch d.ContractId {
		case b.coreState:
			b.discloseCore = given
		case b.node:
			b.discloseNode = given
		default:
			s.t.Fatalf("PrepareRedeem gives contract %s, which no argument names", d.ContractId)
		}
	}
	if b.discloseCore == nil || b.discloseNode == nil {
		s.t.Fatalf("PrepareRedeem gives %d disclosures, not CoreState and node", len(answer.DisclosedContracts))
	}
	node, err := s.standIn.covering(s.app(s.standIn, i).Consumer, vaa.Digest())
	if err != nil {
		s.t.Fatal(err)
	}
	other, err := s.standIn.bundleOf(s.app(s.standIn, i), vaa, node, as, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return pair{b, other}
}

// of is the side's.
func (p pair) of(s *story, on *side) *bundle {
	if on == s.subject {
		return p.subject
	}
	return p.standIn
}

// commit submits a redeem on both sides.
func (s *story) commit(what string, p pair) (subject *submit.Result) {
	s.t.Helper()
	subject, _ = s.both(what, func(on *side) (*submit.Result, error) {
		return on.client.Submit(record.Note(s.ctx, "%s", what), p.of(s, on).submission())
	})
	return subject
}

// redeem redeems through the Go client as a stranger, and on the stand-in directly. The digest must then be consumed by that update, says the
// service.
func (s *story) redeem(i int, vaa *wormhole.VAA, as string) client.Outcome {
	s.t.Helper()
	var outcome client.Outcome
	result, _ := s.each("a redeem", func(on *side) (*submit.Result, error) {
		var result *submit.Result
		var err error
		result, outcome, err = s.redeemOnSubject(i, vaa, as)
		return result, err
	}, func(on *side) (*submit.Result, error) { return s.redeemOnStandIn(i, vaa, as) })
	s.consumedBy(i, vaa, result.UpdateID)
	return outcome
}

// redeemOnSubject is one Redeem of the Go client, to a commit.
func (s *story) redeemOnSubject(i int, vaa *wormhole.VAA, as string) (*submit.Result, client.Outcome, error) {
	var result *submit.Result
	begun := time.Now()
	outcome, err := s.client.Redeem(s.ctx, client.Request{Consumer: s.app(s.subject, i).Consumer, VAA: vaa.Encode()},
		func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
			done, err := s.subject.client.Submit(record.Note(ctx, "redeem by %s, submission %d", as, p.Submission), s.bundleOfPrepared(i, p, as).submission())
			if err != nil {
				if s.onRefusal != nil {
					s.onRefusal(err)
				}
				return client.Submitted{}, err
			}
			result = done
			return client.Submitted{UpdateID: done.UpdateID, Offset: done.Offset}, nil
		})
	s.report.took("redeem through the client", time.Since(begun))
	if err == nil && outcome.State != client.Committed {
		err = fmt.Errorf("the redeem ended %s: %s %s", outcome.State, outcome.Reason, outcome.Message)
	}
	return result, outcome, err
}

// redeemOnStandIn redeems the same VAA on the stand-in.
func (s *story) redeemOnStandIn(i int, vaa *wormhole.VAA, as string) (*submit.Result, error) {
	node, err := s.standIn.covering(s.app(s.standIn, i).Consumer, vaa.Digest())
	if err != nil {
		return nil, err
	}
	b, err := s.standIn.bundleOf(s.app(s.standIn, i), vaa, node, as, "")
	if err != nil {
		return nil, err
	}
	return s.standIn.client.Submit(s.ctx, b.submission())
}

// bundleOfPrepared is what the Go client gave, and the app's own contract.
func (s *story) bundleOfPrepared(i int, p client.Prepared, as string) *bundle {
	app := s.app(s.subject, i)
	b := &bundle{
		redeemer: s.subject.parties[as], commandID: p.CommandID, integrator: app.Integrator.ContractID, coreState: p.CoreStateContractID,
		node: p.ReplayNodeContractID, encoded: p.EncodedVAA, discloseApp: disclosure(app.Integrator.Contract),
	}
	for _, k := range p.PubKeys {
		b.keys = append(b.keys, wormhole.PubKey{Index: k.GuardianIndex, Key: k.Key})
	}
	for _, d := range p.Disclosures {
		b.more = append(b.more, submit.Disclosure{
			Blob: d.Blob, ContractID: d.ContractID, SynchronizerID: d.SynchronizerID,
			TemplateID: damlvalue.TypeName{PackageID: d.TemplateID.PackageID, Module: d.TemplateID.ModuleName, Entity: d.TemplateID.EntityName},
		})
	}
	return b
}

// consumedBy checks that the service says that the VAA's digest is consumed, by that update.
func (s *story) consumedBy(i int, vaa *wormhole.VAA, updateID string) {
	s.t.Helper()
	answer, err := s.tryPrepare(s.app(s.subject, i).Consumer, vaa.Encode())
	if err != nil {
		s.t.Fatalf("PrepareRedeem of what is consumed: %v", err)
	}
	if answer.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || answer.Consumption.GetUpdateId() != updateID {
		s.t.Errorf("PrepareRedeem says %s by update %q, want consumed by %q", answer.Verdict, answer.Consumption.GetUpdateId(), updateID)
	}
	if len(answer.DisclosedContracts) > 0 {
		s.t.Error("PrepareRedeem gives disclosures for what is consumed")
	}
}

// closeLater closes a connection when the story is over.
func (s *story) closeLater(conn *grpc.ClientConn) {
	s.root.Cleanup(func() {
		if err := conn.Close(); err != nil {
			s.root.Error(err)
		}
	})
}

// connectService makes the Go client of the service.
func (s *story) connectService(t *testing.T) {
	t.Helper()
	var err error
	s.client, err = client.New([]string{s.service.address}, client.Options{
		Anchors: client.Anchors{Operators: []string{s.subject.world.Operator}, GuardianGovernance: s.subject.world.GuardianGovernance},
		Dial:    []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
		MaxTime: 10 * time.Minute, SettleTime: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.client.Close(); err != nil {
			t.Error(err)
		}
	})
}

func compareText(a, b string) int { return strings.Compare(a, b) }

// rejection is the participant's refusal in an error, nil for none.
func rejection(err error) *submit.Rejection {
	var r *submit.Rejection
	if errors.As(err, &r) {
		return r
	}
	return nil
}
