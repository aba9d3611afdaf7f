package client_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// between is an endpoint that asks a real service and may change what it says.
type between struct {
	disclosurev1.UnimplementedDisclosureServiceServer
	real disclosurev1.DisclosureServiceClient
	// These change answers, or replace them by an error, where set.
	prepare func(*disclosurev1.PrepareRedeemResponse) error
	cover   func(*disclosurev1.GetCoveringNodeResponse) error
	core    func(*disclosurev1.GetCoreStateResponse) error
	fate    func(*disclosurev1.GetContractFateResponse) error
}

func (b *between) PrepareRedeem(ctx context.Context, req *disclosurev1.PrepareRedeemRequest) (*disclosurev1.PrepareRedeemResponse, error) {
	answer, err := b.real.PrepareRedeem(ctx, req)
	if err == nil && b.prepare != nil {
		err = b.prepare(answer)
	}
	return answer, err
}

func (b *between) GetCoveringNode(ctx context.Context, req *disclosurev1.GetCoveringNodeRequest) (*disclosurev1.GetCoveringNodeResponse, error) {
	answer, err := b.real.GetCoveringNode(ctx, req)
	if err == nil && b.cover != nil {
		err = b.cover(answer)
	}
	return answer, err
}

func (b *between) GetCoreState(ctx context.Context, req *disclosurev1.GetCoreStateRequest) (*disclosurev1.GetCoreStateResponse, error) {
	answer, err := b.real.GetCoreState(ctx, req)
	if err == nil && b.core != nil {
		err = b.core(answer)
	}
	return answer, err
}

func (b *between) GetContractFate(ctx context.Context, req *disclosurev1.GetContractFateRequest) (*disclosurev1.GetContractFateResponse, error) {
	answer, err := b.real.GetContractFate(ctx, req)
	if err == nil && b.fate != nil {
		err = b.fate(answer)
	}
	return answer, err
}

// serveBetween serves it and returns its address.
func (w *world) serveBetween(b *between) string {
	w.t.Helper()
	b.real = w.api
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	server := grpc.NewServer()
	disclosurev1.RegisterDisclosureServiceServer(server, b)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	w.t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return listener.Addr().String()
}

// An endpoint that lies is left, and the redeem commits by another; alone it ends the redeem, without anything submitted.
func TestRedeemLeavesLiars(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	// The node of before: genuine, and no longer active; and one that holds a digest.
	consumed := w.vaa()
	var before, holding *disclosurev1.DisclosedContract
	outcome, err := w.client(w.options()).Redeem(t.Context(), w.request(consumed), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		covering, err := w.api.GetCoveringNode(ctx, &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer}, Digest: p.Digest})
		if err != nil {
			t.Error(err)
		}
		before = covering.GetDisclosedContract()
		return w.redeemer(w.party("first"))(ctx, p)
	})
	w.want(outcome, err, client.Committed, consumed.Digest())
	w.eventually("a service that knows the consume", func() error {
		covering, err := w.api.GetCoveringNode(t.Context(), &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer}, Digest: outcome.Digest})
		if err == nil && !covering.GetConsumed() {
			err = status.Error(codes.NotFound, "not yet")
		}
		holding = covering.GetDisclosedContract()
		return err
	})
	foreign := w.app.Consumer[:len(w.app.Consumer)-2] + "00"
	// nodeOf is the node's disclosure in an answer, without arguments that would give a change away.
	nodeOf := func(a *disclosurev1.PrepareRedeemResponse) *disclosurev1.DisclosedContract {
		for _, d := range a.GetDisclosedContracts() {
			if d.GetContractId() == a.GetReplayNode().GetContract().GetContractId() {
				return d
			}
		}
		return nil
	}
	user := w.party("user")
	for _, test := range []struct {
		name string
		liar *between
		// alone is how a redeem ends that has no other endpoint.
		alone client.State
	}{
		{"a blob with a byte turned", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			blob := nodeOf(a).CreatedEventBlob
			blob[len(blob)/2] ^= 1
			return nil
		}}, client.GaveUp},
		{"the node left out", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			a.DisclosedContracts = a.DisclosedContracts[:1]
			return nil
		}}, client.GaveUp},
		{"another contract id", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			d := nodeOf(a)
			d.ContractId = "00" + strings.Repeat("ab", 32) + d.ContractId[66:]
			a.ReplayNode.Contract.ContractId = d.ContractId
			return nil
		}}, client.GaveUp},
		{"two synchronizers", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			nodeOf(a).SynchronizerId = w.sim.Synchronizers()[1]
			return nil
		}}, client.GaveUp},
		{"another template id", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			nodeOf(a).TemplateId.PackageId = strings.Repeat("ab", 32)
			return nil
		}}, client.GaveUp},
		{"CoreState where the node should be", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			for i, d := range a.DisclosedContracts {
				if d.ContractId == a.GetReplayNode().GetContract().GetContractId() {
					a.DisclosedContracts[i] = a.DisclosedContracts[1-i]
				}
			}
			a.ReplayNode.Contract.ContractId = a.CoreState.Contract.ContractId
			return nil
		}}, client.GaveUp},
		{"a digest called consumed", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			a.Verdict, a.Consumption = disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED, &disclosurev1.Consumption{UpdateId: "1220ab"}
			return nil
		}}, client.GaveUp},
		{"a digest called consumed, with another's node", &between{
			prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
				a.Verdict, a.Consumption = disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED, &disclosurev1.Consumption{UpdateId: "1220ab"}
				return nil
			},
			cover: func(a *disclosurev1.GetCoveringNodeResponse) error { a.DisclosedContract = holding; return nil },
		}, client.GaveUp},
		{"a good VAA called invalid", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			a.Verdict, a.DisclosedContracts = disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID, nil
			a.FailedRule = &disclosurev1.FailedRule{Code: "GUARDIAN_SET_UNKNOWN", Message: "unknown guardian set index"}
			return nil
		}}, client.GaveUp},
		{"a verdict of a later version", &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error { a.Verdict = 99; return nil }}, client.GaveUp},
		{"another reason of a later version", &between{prepare: func(*disclosurev1.PrepareRedeemResponse) error {
			return status.Error(codes.FailedPrecondition, "something new")
		}}, client.GaveUp},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := w.serveBetween(test.liar)
			vaa := w.vaa()
			outcome, err := w.client(w.options(), address).Redeem(t.Context(), w.request(vaa), func(context.Context, client.Prepared) (client.Submitted, error) {
				t.Error("an answer that does not verify was submitted with")
				return client.Submitted{}, client.ErrNotSubmitted
			})
			w.want(outcome, err, test.alone, vaa.Digest())
			if len(w.consumed(vaa.Digest())) != 0 {
				t.Error("something was submitted")
			}
			both := w.client(w.options(), address, w.services[0])
			outcome, err = both.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
			w.want(outcome, err, client.Committed, vaa.Digest())
		})
	}

	t.Run("a stale node, which nobody can tell from a fresh one", func(t *testing.T) {
		// The ledger does: the submission fails, the endpoint says the same again, and the redeem ends within its budget.
		options := w.options()
		options.MaxSubmissions, options.SuccessorWait = 3, 10*time.Millisecond
		liar := &between{prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
			a.ReplayNode.Contract.ContractId = before.ContractId
			for i, d := range a.DisclosedContracts {
				if d.TemplateId.EntityName == "ReplayNode" {
					a.DisclosedContracts[i] = before
				}
			}
			return nil
		}}
		vaa := w.vaa()
		outcome, err := w.client(options, w.serveBetween(liar)).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
		w.want(outcome, err, client.GaveUp, vaa.Digest())
		if outcome.Retries["refresh"] != 3 {
			t.Errorf("outcome %+v", outcome)
		}
	})
	t.Run("another consumer's anchors", func(t *testing.T) {
		vaa := w.vaa()
		request := w.request(vaa)
		request.Consumer = foreign
		outcome, err := w.client(w.options()).Redeem(t.Context(), request, w.redeemer(user))
		w.want(outcome, err, client.GaveUp, vaa.Digest())
		options := w.options()
		options.Anchors.Operators = []string{"operator::1220"}
		outcome, err = w.client(options).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
		w.want(outcome, err, client.GaveUp, vaa.Digest())
		if outcome.Reason != "NOT_VERIFIED" {
			t.Errorf("outcome %+v", outcome)
		}
	})
}

// An endpoint that fails is asked last for a while, and one that answers first.
func TestRedeemFailover(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4, services: 2})
	broken := &between{prepare: func(*disclosurev1.PrepareRedeemResponse) error { return status.Error(codes.Unavailable, "down") }}
	var endpoints []string
	options := w.options()
	options.EndpointRest = time.Hour
	options.Observe = func(e client.Event) {
		if e.Kind == client.EventNoAnswer {
			endpoints = append(endpoints, e.Endpoint+" "+e.Reason)
		}
	}
	address := w.serveBetween(broken)
	c := w.client(options, address, w.services[1], "127.0.0.1:1")
	user := w.party("user")
	for range 5 {
		vaa := w.vaa()
		outcome, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
		w.want(outcome, err, client.Committed, vaa.Digest())
	}
	if len(endpoints) != 1 || endpoints[0] != address+" Unavailable" {
		t.Errorf("failed questions %q, want one, of the first redeem", endpoints)
	}
}

// Two replicas, of which the first fails after it gave a bundle: the second is not asked for something older than that.
func TestRedeemReadsDoNotGoBack(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 128, services: 2})
	user, other := w.party("user"), w.party("other")
	for range 8 {
		vaa, elsewhere := w.vaa(), w.vaa()
		var asked atomic.Int64
		once := &between{prepare: func(*disclosurev1.PrepareRedeemResponse) error {
			if asked.Add(1) > 1 {
				return status.Error(codes.Unavailable, "down")
			}
			return nil
		}}
		c := w.client(w.options(), w.serveBetween(once), w.services[1])
		stale := true
		var nodes []string
		outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
			nodes = append(nodes, p.ReplayNodeContractID)
			if stale {
				stale = false
				if end, err := w.client(w.options()).Redeem(ctx, w.request(elsewhere), w.redeemer(other)); err != nil || end.State != client.Committed {
					t.Errorf("the other redeem ended %s: %v", end.State, err)
				}
			}
			return w.redeemer(user)(ctx, p)
		})
		w.want(outcome, err, client.Committed, vaa.Digest())
		if outcome.Submissions != 2 || nodes[0] == nodes[1] {
			t.Errorf("%d submissions, with nodes %q; want 2", outcome.Submissions, nodes)
		}
	}
}

// An expired guardian set is invalid, by the genuine CoreState and not only by what the service says.
func TestRedeemVerdictsAgree(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	lie := &between{core: func(a *disclosurev1.GetCoreStateResponse) error {
		a.DisclosedContract.CreatedEventBlob[100] ^= 1
		return nil
	}, prepare: func(a *disclosurev1.PrepareRedeemResponse) error {
		a.Verdict, a.FailedRule = disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID, &disclosurev1.FailedRule{
			Code: string(wormhole.RuleGuardianSetExpired), Message: "guardian set has expired", ExpiredAt: timestamppb.Now()}
		return nil
	}}
	vaa := w.vaa()
	outcome, err := w.client(w.options(), w.serveBetween(lie)).Redeem(t.Context(), w.request(vaa), w.redeemer(w.party("user")))
	w.want(outcome, err, client.GaveUp, vaa.Digest())
	if outcome.Reason != "NOT_VERIFIED" {
		t.Errorf("outcome %+v", outcome)
	}
}
