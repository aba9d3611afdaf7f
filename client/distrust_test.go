package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// inventsConsumed is an endpoint that calls every digest consumed, and proves it by a node that it made up.
func (w *world) inventsConsumed(digest wormhole.Digest) *between {
	node := &wormhole.ReplayNode{Consumer: w.app.Consumer, Operator: w.world.Operator, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(digest)}
	id, blob := invent(w.t, node, node.Consumer, node.Operator)
	return &between{
		prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			a.Verdict, a.Consumption = disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED, &disclosurev1.Consumption{UpdateId: "1220ab"}
			a.DisclosedContracts = nil
			return nil
		},
		cover: func(a *disclosurev1.GetCoveringNodeResponse) error {
			a.DisclosedContract = &disclosurev1.DisclosedContract{ContractId: id, CreatedEventBlob: blob}
			return nil
		},
	}
}

// inventsInvalid is an endpoint that calls every VAA invalid, by a CoreState that it made up: one without guardian sets.
func (w *world) inventsInvalid() *between {
	core := &wormhole.CoreState{Operator: w.world.Operator, GuardianGovernance: w.world.GuardianGovernance, GuardianObserver: w.world.GuardianObserver,
		GuardianSetIndex: 7, GovernanceContract: strings.Repeat("0", 64), GuardianSets: map[int64]wormhole.GuardianSet{}}
	id, blob := invent(w.t, core, core.Operator, core.GuardianGovernance)
	return &between{
		prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			a.Verdict, a.DisclosedContracts = disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID, nil
			return nil
		},
		core: func(a *disclosurev1.GetCoreStateResponse) error {
			a.DisclosedContract = &disclosurev1.DisclosedContract{ContractId: id, CreatedEventBlob: blob}
			return nil
		},
	}
}

// An endpoint that invents the proof of an end can't end a redeem while another endpoint has a bundle: the ledger decides. Alone it can, and the
// outcome says by whose word it ended.
func TestRedeemInventedEnds(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	for _, test := range []struct {
		name  string
		liar  func(*wormhole.VAA) *between
		alone client.State
	}{
		{"consumed", func(vaa *wormhole.VAA) *between { return w.inventsConsumed(vaa.Digest()) }, client.Consumed},
		{"invalid", func(*wormhole.VAA) *between { return w.inventsInvalid() }, client.Invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			vaa := w.vaa()
			liar := w.serveBetween(test.liar(vaa))
			outcome, err := w.client(w.options(), liar).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
			if err != nil || outcome.State != test.alone || outcome.Basis != client.BasisEndpoint || outcome.Agreed != 1 {
				t.Errorf("alone: outcome %+v, error %v", outcome, err)
			}
			var disputed []string
			options := w.options()
			options.Observe = func(e client.Event) {
				if e.Kind == client.EventDisputed {
					disputed = append(disputed, e.Endpoint)
				}
			}
			outcome, err = w.client(options, liar, w.services[0]).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
			w.want(outcome, err, client.Committed, vaa.Digest())
			if outcome.Submissions != 1 || outcome.Basis != client.BasisLedger || !slices.Equal(disputed, []string{liar}) {
				t.Errorf("outcome %+v, disputed %q", outcome, disputed)
			}
			// Two that are down change nothing about what one endpoint's word is.
			third := w.vaa()
			outcome, err = w.client(w.options(), w.serveBetween(test.liar(third)), "127.0.0.1:1").Redeem(t.Context(), w.request(third), w.redeemer(user))
			if err != nil || outcome.State != test.alone || outcome.Basis != client.BasisEndpoint {
				t.Errorf("beside one that is down: outcome %+v, error %v", outcome, err)
			}
		})
	}
}

// knows waits until all services know an update.
func (w *world) knows(updateID string) {
	w.t.Helper()
	for _, address := range w.services {
		service := disclosurev1.NewDisclosureServiceClient(w.dial(address))
		w.eventually("a service that knows the update", func() error {
			_, err := service.GetCoreState(w.t.Context(), &disclosurev1.GetCoreStateRequest{Read: &disclosurev1.ReadOptions{AfterUpdateId: updateID}})
			return err
		})
	}
}

// What is so is agreed by all endpoints, and the outcome says how many that were.
func TestRedeemAgreedEnds(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4, services: 2})
	user := w.party("user")
	c := w.client(w.options())
	vaa := w.vaa()
	first, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(first, err, client.Committed, vaa.Digest())
	w.knows(first.UpdateID)
	never := func(context.Context, client.Prepared) (client.Submitted, error) {
		t.Error("submitted")
		return client.Submitted{}, client.ErrNotSubmitted
	}
	outcome, err := c.Redeem(t.Context(), w.request(vaa), never)
	w.want(outcome, err, client.Consumed, vaa.Digest())
	if outcome.Basis != client.BasisAgreed || outcome.Agreed != 2 {
		t.Errorf("consumed: outcome %+v", outcome)
	}
	unsigned := *w.vaa()
	unsigned.Signatures = nil
	outcome, err = c.Redeem(t.Context(), w.request(&unsigned), never)
	if err != nil || outcome.State != client.Invalid || outcome.Basis != client.BasisAgreed || outcome.Agreed != 2 {
		t.Errorf("invalid: outcome %+v, error %v", outcome, err)
	}
	huge := *w.vaa()
	huge.Sequence = 1 << 63
	for _, vaa := range [][]byte{{2, 0}, huge.Encode()} {
		outcome, err = c.Redeem(t.Context(), client.Request{Consumer: w.app.Consumer, VAA: vaa}, never)
		if err != nil || outcome.State != client.Invalid || outcome.Basis != client.BasisVAA || outcome.Answers != 0 {
			t.Errorf("no VAA: outcome %+v, error %v", outcome, err)
		}
	}
}

// A replica that is behind does not take a consume for undone: what another saw is waited for, and nothing is submitted.
func TestRedeemWaitsForOneThatIsBehind(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4, services: 2})
	user := w.party("user")
	vaa := w.vaa()
	var before *disclosurev1.PrepareRedeemResponse
	outcome, err := w.client(w.options()).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		var err error
		before, err = w.api.PrepareRedeem(ctx, &disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer},
			Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa.Encode()}})
		if err != nil {
			t.Error(err)
		}
		return w.redeemer(user)(ctx, p)
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
	w.knows(outcome.UpdateID)
	var asked atomic.Int64
	behind := &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
		if asked.Add(1) == 1 {
			proto.Reset(a)
			proto.Merge(a, before)
		}
		return nil
	}}
	again, err := w.client(w.options(), w.services[1], w.serveBetween(behind)).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	if again.Submissions > 0 {
		t.Fatalf("submitted: %+v", again)
	}
	w.want(again, err, client.Consumed, vaa.Digest())
	if again.Basis != client.BasisAgreed || again.Agreed != 2 || asked.Load() != 2 {
		t.Errorf("outcome %+v, asked %d times", again, asked.Load())
	}
}

// An outcome is unknown, the submission had committed, and a service says that another update consumed and that the node was archived by a
// third: whose it was the participant is asked all the same.
func TestRedeemAttributesByTheParticipant(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	var lies atomic.Bool
	liar := &between{
		prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			if a.GetConsumption() != nil {
				a.Consumption.UpdateId = "1220ab"
			}
			return nil
		},
		fate: func(a *disclosurev1.GetContractFateResponse) error {
			lies.Store(true)
			a.Fate, a.UpdateId, a.Offset = disclosurev1.Fate_FATE_SUPERSEDED, "1220cd", 1
			return nil
		},
	}
	vaa := w.vaa()
	w.sim.LoseAnswers(1)
	outcome, err := w.client(w.options(), w.serveBetween(liar)).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	if err != nil || outcome.State != client.Committed || outcome.Basis != client.BasisLedger || len(w.consumed(vaa.Digest())) != 1 {
		t.Errorf("outcome %+v, error %v, consumed %v; the fate was asked: %v", outcome, err, w.consumed(vaa.Digest()), lies.Load())
	}
}

// The same after the service had called the submission dead: that is its word, and the participant is asked all the same.
func TestRedeemAttributesWhatWasBuried(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	vaa := w.vaa()
	before, err := w.api.PrepareRedeem(t.Context(), &disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer},
		Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa.Encode()}})
	if err != nil {
		t.Fatal(err)
	}
	node := &wormhole.ReplayNode{Consumer: w.app.Consumer, Operator: w.world.Operator, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(w.vaa().Digest())}
	id, blob := invent(t, node, node.Consumer, node.Operator)
	lie := proto.CloneOf(before)
	for _, d := range lie.DisclosedContracts {
		if d.ContractId == lie.ReplayNode.Contract.ContractId {
			d.ContractId, d.CreatedEventBlob, d.TemplateId.PackageId = id, blob, strings.Repeat("ab", 32)
		}
	}
	lie.ReplayNode.Contract.ContractId = id
	var submissions atomic.Int64
	var buried atomic.Bool
	liar := &between{
		// Not consumed, and another node, until the second submission.
		prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			if submissions.Load() == 1 {
				freshness := a.Answer
				proto.Reset(a)
				proto.Merge(a, lie)
				a.Answer = freshness
			}
			return nil
		},
		fate: func(a *disclosurev1.GetContractFateResponse) error {
			buried.Store(true)
			a.Fate, a.UpdateId, a.Offset = disclosurev1.Fate_FATE_SUPERSEDED, "1220cd", 1
			return nil
		},
	}
	outcome, err := w.client(w.options(), w.serveBetween(liar)).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if p.Probe {
			return w.redeemer(user)(ctx, p)
		}
		if submissions.Add(1) == 1 {
			if _, err := w.redeemer(user)(ctx, p); err != nil {
				t.Error(err)
			}
			return client.Submitted{}, errors.New("the connection broke")
		}
		return client.Submitted{}, &client.LedgerError{Reason: "LOCAL_VERDICT_INACTIVE_CONTRACTS", Code: codes.NotFound, ContractIDs: []string{p.ReplayNodeContractID}}
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
	if !buried.Load() || outcome.Submissions != 2 || outcome.Probes != 1 {
		t.Errorf("outcome %+v, buried: %v", outcome, buried.Load())
	}
}

// A service says that a submission without an answer is dead. Alone it is believed, as its word; another that says that the node is active keeps the
// submission open.
func TestRedeemBuriesByWord(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	liar := func() *between {
		return &between{
			fate: func(a *disclosurev1.GetContractFateResponse) error {
				a.Fate, a.UpdateId, a.Offset = disclosurev1.Fate_FATE_SUPERSEDED, "1220cd", 1
				return nil
			},
		}
	}
	redeem := func(liar *between, others ...string) (client.Outcome, error) {
		options := w.options()
		options.MaxSubmissions = 1
		vaa := w.vaa()
		// Another node that covers the digest, made up: what a liar has to show to have the first one's fate asked.
		node := &wormhole.ReplayNode{Consumer: w.app.Consumer, Operator: w.world.Operator, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(w.vaa().Digest())}
		id, blob := invent(t, node, node.Consumer, node.Operator)
		var submitted atomic.Bool
		liar.prepare = func(a *disclosurev1.PrepareRedeemResponse) error {
			if !submitted.Load() {
				return nil
			}
			for _, d := range a.DisclosedContracts {
				if d.ContractId == a.ReplayNode.Contract.ContractId {
					d.ContractId, d.CreatedEventBlob, d.TemplateId.PackageId = id, blob, strings.Repeat("ab", 32)
				}
			}
			a.ReplayNode.Contract.ContractId = id
			return nil
		}
		return w.client(options, append([]string{w.serveBetween(liar)}, others...)...).Redeem(t.Context(), w.request(vaa),
			func(context.Context, client.Prepared) (client.Submitted, error) {
				submitted.Store(true)
				return client.Submitted{}, errors.New("the connection broke")
			})
	}
	outcome, err := redeem(liar())
	if outcome.State != client.GaveUp || outcome.Basis != client.BasisEndpoint || outcome.Agreed != 1 || !errors.Is(err, client.ErrGaveUp) {
		t.Errorf("alone: outcome %+v, error %v", outcome, err)
	}
	outcome, err = redeem(liar(), w.services[0])
	if outcome.State != client.Unknown || !errors.Is(err, client.ErrUnknown) || !strings.Contains(outcome.Check, outcome.CommandID) {
		t.Errorf("beside an honest one: outcome %+v, error %v", outcome, err)
	}
}

// Endpoints whose bundles the ledger refuses, and that hand them out again, are left for one whose bundles it takes.
func TestRedeemLeavesStaleEndpoints(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	var before *disclosurev1.DisclosedContract
	vaa := w.vaa()
	outcome, err := w.client(w.options()).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		covering, err := w.api.GetCoveringNode(ctx, &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer}, Digest: p.Digest})
		if err != nil {
			t.Error(err)
		}
		before = covering.GetDisclosedContract()
		return w.redeemer(w.party("first"))(ctx, p)
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
	replace := func(a *disclosurev1.PrepareRedeemResponse, with *disclosurev1.DisclosedContract) {
		for i, d := range a.DisclosedContracts {
			if d.ContractId == a.ReplayNode.Contract.ContractId {
				a.DisclosedContracts[i] = with
			}
		}
		a.ReplayNode.Contract.ContractId = with.ContractId
	}
	user := w.party("user")
	for _, test := range []struct {
		name string
		lie  func(*disclosurev1.PrepareRedeemResponse) error
		most int
	}{
		{"a stale node", func(a *disclosurev1.PrepareRedeemResponse) error { replace(a, before); return nil }, 2},
		{"another synchronizer", func(a *disclosurev1.PrepareRedeemResponse) error {
			for _, d := range a.DisclosedContracts {
				d.SynchronizerId = w.sim.Synchronizers()[1]
			}
			return nil
		}, 2},
		{"a node made up anew each time", func(a *disclosurev1.PrepareRedeemResponse) error {
			node := &wormhole.ReplayNode{Consumer: w.app.Consumer, Operator: w.world.Operator, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(w.vaa().Digest())}
			id, blob := invent(t, node, node.Consumer, node.Operator)
			with := proto.CloneOf(before)
			with.ContractId, with.CreatedEventBlob, with.TemplateId.PackageId = id, blob, strings.Repeat("ab", 32)
			replace(a, with)
			return nil
		}, 4},
		{"another package id", func(a *disclosurev1.PrepareRedeemResponse) error {
			for _, d := range a.DisclosedContracts {
				other := strings.Repeat("cd", 32)
				d.CreatedEventBlob = []byte(strings.Replace(string(d.CreatedEventBlob), d.TemplateId.PackageId, other, 1))
				d.TemplateId.PackageId = other
			}
			return nil
		}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := w.options()
			options.SuccessorWait, options.MaxSubmissions = 10*time.Millisecond, 20
			vaa := w.vaa()
			outcome, err := w.client(options, w.serveBetween(&between{prepare: test.lie}), w.services[0]).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
			w.want(outcome, err, client.Committed, vaa.Digest())
			if outcome.Submissions > test.most {
				t.Errorf("%d submissions, want at most %d: %+v", outcome.Submissions, test.most, outcome)
			}
		})
	}
}

// A bundle that is refused for good is tried once more as another endpoint has it: the refusal may be due to what was disclosed.
func TestRedeemTriesAnotherBundle(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	for _, test := range []struct {
		said  client.LedgerError
		alone client.State
	}{
		{client.LedgerError{Reason: "DAML_FAILURE", Code: codes.FailedPrecondition, Message: "… (error category 9): guardian set has expired"}, client.Invalid},
		{client.LedgerError{Reason: "PACKAGE_SELECTION_FAILED", Code: codes.FailedPrecondition, Message: "no package"}, client.GaveUp},
	} {
		t.Run(test.said.Reason, func(t *testing.T) {
			node := &wormhole.ReplayNode{Consumer: w.app.Consumer, Operator: w.world.Operator, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(w.vaa().Digest())}
			id, blob := invent(t, node, node.Consumer, node.Operator)
			address := w.serveBetween(&between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
				for _, d := range a.DisclosedContracts {
					if d.ContractId == a.ReplayNode.Contract.ContractId {
						d.ContractId, d.CreatedEventBlob, d.TemplateId.PackageId = id, blob, strings.Repeat("ab", 32)
					}
				}
				a.ReplayNode.Contract.ContractId = id
				return nil
			}})
			redeem := func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
				if p.ReplayNodeContractID == id {
					return client.Submitted{}, &test.said
				}
				return w.redeemer(user)(ctx, p)
			}
			vaa := w.vaa()
			outcome, err := w.client(w.options(), address).Redeem(t.Context(), w.request(vaa), redeem)
			w.want(outcome, err, test.alone, vaa.Digest())
			if outcome.Basis != client.BasisLedger || outcome.Submissions != 1 {
				t.Errorf("alone: outcome %+v", outcome)
			}
			outcome, err = w.client(w.options(), address, w.services[0]).Redeem(t.Context(), w.request(vaa), redeem)
			w.want(outcome, err, client.Committed, vaa.Digest())
			if outcome.Submissions != 2 {
				t.Errorf("outcome %+v", outcome)
			}
			// What is refused with every bundle is refused.
			outcome, err = w.client(w.options(), address, w.services[0]).Redeem(t.Context(), w.request(w.vaa()), func(context.Context, client.Prepared) (client.Submitted, error) {
				return client.Submitted{}, &test.said
			})
			if outcome.State != test.alone || outcome.Submissions != 2 {
				t.Errorf("refused by all: outcome %+v, error %v", outcome, err)
			}
		})
	}
}

// A contract without an id is not verifiable, and nobody is made to sign for one.
func TestRedeemWithoutContractID(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	for _, test := range []struct {
		name string
		lie  func(*disclosurev1.PrepareRedeemResponse)
	}{
		{"of the node", func(a *disclosurev1.PrepareRedeemResponse) { a.ReplayNode.Contract.ContractId = "" }},
		{"of CoreState", func(a *disclosurev1.PrepareRedeemResponse) { a.CoreState.Contract.ContractId = "" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			liar := &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
				test.lie(a)
				for _, d := range a.DisclosedContracts {
					if d.ContractId != a.GetReplayNode().GetContract().GetContractId() && d.ContractId != a.GetCoreState().GetContract().GetContractId() {
						d.ContractId = ""
					}
				}
				return nil
			}}
			vaa := w.vaa()
			redeem := func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
				if p.ReplayNodeContractID == "" || p.CoreStateContractID == "" {
					t.Errorf("submitting without a contract id: %+v", p)
				}
				return w.redeemer(user)(ctx, p)
			}
			address := w.serveBetween(liar)
			outcome, err := w.client(w.options(), address).Redeem(t.Context(), w.request(vaa), redeem)
			w.want(outcome, err, client.GaveUp, vaa.Digest())
			if outcome.Reason != "NOT_VERIFIED" || outcome.Submissions != 0 {
				t.Errorf("outcome %+v", outcome)
			}
			outcome, err = w.client(w.options(), address, w.services[0]).Redeem(t.Context(), w.request(vaa), redeem)
			w.want(outcome, err, client.Committed, vaa.Digest())
		})
	}
}

// What one endpoint says, and nobody can check, does not outweigh one that is down for a moment; where it stays down, the no counts.
func TestRedeemNoBesideDown(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	no := w.serveBetween(&between{prepare: func(*disclosurev1.PrepareRedeemResponse) error { return status.Error(codes.NotFound, "unknown scope") }})
	var asked atomic.Int64
	restarting := &between{prepare: func(*disclosurev1.PrepareRedeemResponse) error {
		if asked.Add(1) == 1 {
			return status.Error(codes.Unavailable, "restarting")
		}
		return nil
	}}
	user := w.party("user")
	vaa := w.vaa()
	outcome, err := w.client(w.options(), no, w.serveBetween(restarting)).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(outcome, err, client.Committed, vaa.Digest())
	outcome, err = w.client(w.options(), no, "127.0.0.1:1").Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	if outcome.State != client.GaveUp || outcome.Reason != "NotFound" || err == nil || outcome.Basis != client.BasisNone {
		t.Errorf("beside one that stays down: outcome %+v, error %v", outcome, err)
	}
}

// History does not answer when a commit without an answer is attributed: it is asked again, and the outcome has the update.
func TestRedeemHistoryUnavailable(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	var asked atomic.Int64
	paused := func(times int64) *between {
		asked.Store(0)
		return &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			if a.GetConsumption() != nil && asked.Add(1) <= times {
				a.Consumption = &disclosurev1.Consumption{BeforeHistoryOffset: 1, HistoryUnavailable: true}
			}
			return nil
		}}
	}
	vaa := w.vaa()
	w.sim.LoseAnswers(1)
	address := w.serveBetween(paused(2))
	outcome, err := w.client(w.options(), address).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(outcome, err, client.Committed, vaa.Digest())
	if asked.Load() != 3 {
		t.Errorf("asked %d times", asked.Load())
	}
	// Of another's update nobody waits for the name, and it is said why there is none.
	asked.Store(0)
	outcome, err = w.client(w.options(), address).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	if err != nil || outcome.State != client.Consumed || outcome.UpdateID != "" || !strings.Contains(outcome.Message, "in time") {
		t.Errorf("outcome %+v, error %v", outcome, err)
	}
}

// A VAA of a guardian set that CoreState does not have yet: it is waited for, and where it does not come the outcome says that it may.
func TestRedeemOfANewerSet(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	user := w.party("user")
	upgrade, err := w.world.UpgradeVAA()
	if err != nil {
		t.Fatal(err)
	}
	w.world.Upgraded()
	vaa := w.vaa()
	options := w.options()
	options.GuardianSetWait = 50 * time.Millisecond
	outcome, err := w.client(options).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	if err != nil || outcome.State != client.Invalid || outcome.Reason != string(wormhole.RuleUnknownGuardianSet) || !outcome.MayPass {
		t.Errorf("before the upgrade: outcome %+v, error %v", outcome, err)
	}
	waited := false
	options.GuardianSetWait = 0
	options.Observe = func(e client.Event) {
		if e.Kind == client.EventBackoff && !waited {
			waited = true
			if _, _, err := w.world.Govern(t.Context(), w.submit, w.world.CoreState, upgrade); err != nil {
				t.Error(err)
			}
		}
	}
	outcome, err = w.client(options).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(outcome, err, client.Committed, vaa.Digest())
	if !waited || outcome.Submissions != 1 {
		t.Errorf("outcome %+v", outcome)
	}
}

// CoreState is replaced between the two calls that an invalid VAA is proven by: that is no end.
func TestRedeemCoreStateReplacedMeanwhile(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	vaa := w.vaa()
	var asked atomic.Int64
	meanwhile := &between{
		prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			if asked.Add(1) == 1 {
				a.Verdict, a.DisclosedContracts = disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID, nil
			}
			return nil
		},
		core: func(*disclosurev1.GetCoreStateResponse) error {
			return statusOf(t, codes.NotFound, "CORE_STATE_MISSING", "there is no such authentic CoreState", nil)
		},
	}
	outcome, err := w.client(w.options(), w.serveBetween(meanwhile)).Redeem(t.Context(), w.request(vaa), w.redeemer(w.party("user")))
	w.want(outcome, err, client.Committed, vaa.Digest())
}

// slow is a clock that goes behind.
type slow struct{ by time.Duration }

func (s slow) Now() time.Time                         { return time.Now().Add(-s.by) }
func (s slow) After(d time.Duration) <-chan time.Time { return time.After(d) }

// A guardian set that has expired by our clock, and not by the ledger's: the ledger decides.
func TestRedeemByTheLedgersTime(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4, clock: slow{48 * time.Hour}})
	user := w.party("user")
	vaa := w.vaa()
	upgrade, err := w.world.UpgradeVAA()
	if err != nil {
		t.Fatal(err)
	}
	_, update, err := w.world.Govern(t.Context(), w.submit, w.world.CoreState, upgrade)
	if err != nil {
		t.Fatal(err)
	}
	w.knows(update.UpdateID)
	// The services within this process share our clock. One with the ledger's would say so:
	right := &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
		bundle, err := w.api.PrepareRedeem(t.Context(), &disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer},
			Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: vaa.Digest().String()}})
		if err == nil {
			proto.Reset(a)
			proto.Merge(a, bundle)
			a.Verdict = disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE
		}
		return err
	}}
	outcome, err := w.client(w.options(), w.serveBetween(right)).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(outcome, err, client.Committed, vaa.Digest())
}

func TestCommandIDNamesTheTrie(t *testing.T) {
	digest := strings.Repeat("5", 64)
	empty, other := "", "other"
	ids := map[string]bool{}
	for _, id := range []string{
		client.CommandID("p", "c", "o", nil, digest), client.CommandID("q", "c", "o", nil, digest), client.CommandID("p", "d", "o", nil, digest),
		client.CommandID("p", "c", "e", nil, digest), client.CommandID("p", "c", "o", &empty, digest), client.CommandID("p", "c", "o", &other, digest),
		client.CommandID("p", "c", "o", nil, strings.Repeat("6", 64)),
	} {
		ids[id] = true
	}
	if len(ids) != 7 {
		t.Errorf("seven tries and digests have %d command ids", len(ids))
	}
}
