package ledgersim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a participant for the test and connects to it.
func start(t *testing.T, options ledgersim.Options) (*ledgersim.Sim, *grpc.ClientConn) {
	t.Helper()
	sim := ledgersim.New(options)
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		sim.Stop()
	})
	return sim, conn
}

// world is a ledger with the model set up on it.
type world struct {
	t      *testing.T
	ctx    context.Context
	sim    *ledgersim.Sim
	conn   *grpc.ClientConn
	client *submit.Client

	operator, governance, observer, consumer, user string
	guardians                                      map[uint8]wormhole.GuardianKey
	state, root, app, registry                     submit.Created
}

func newWorld(t *testing.T, options ledgersim.Options, threshold int64) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, guardians: map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()}}
	w.sim, w.conn = start(t, options)
	w.client = submit.New(w.conn, "tester")
	for hint, to := range map[string]*string{"operator": &w.operator, "governance": &w.governance, "observer": &w.observer, "consumer": &w.consumer, "user": &w.user} {
		id, err := w.client.AllocateParty(ctx, hint)
		if err != nil {
			t.Fatal(err)
		}
		*to = id
	}
	w.state = w.create([]string{w.operator, w.governance}, submit.Create(&wormhole.CoreState{
		Operator: w.operator, GuardianGovernance: w.governance, GuardianObserver: w.observer, ChainID: 72, GovernanceChainID: 1,
		GovernanceContract: fmt.Sprintf("%064x", 4), GuardianSets: map[int64]wormhole.GuardianSet{0: {Keys: []string{w.guardians[0].Address()}}},
	}))
	w.registry = w.create([]string{w.operator}, submit.Create(&wormhole.EmitterRegistry{Operator: w.operator, NextID: 1}))
	w.root = w.create([]string{w.operator, w.consumer}, submit.Create(&wormhole.ReplayNode{
		Consumer: w.consumer, Operator: w.operator, SplitThreshold: threshold,
	}))
	w.app = w.create([]string{w.consumer}, submit.CreateIntegrator(submit.Integrator{
		Manager: w.consumer, Operator: w.operator, Users: []string{w.user}, PeerChain: 2, PeerAddress: fmt.Sprintf("%064x", 0x22),
	}))
	return w
}

func (w *world) create(actAs []string, command submit.Command) submit.Created {
	w.t.Helper()
	result, err := w.client.Do(w.ctx, actAs, nil, command)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(result.Created) != 1 {
		w.t.Fatalf("created %d contracts, want 1", len(result.Created))
	}
	return result.Created[0]
}

// vaa is a VAA from the app's peer.
func (w *world) vaa(sequence uint64) *wormhole.VAA {
	body := wormhole.VAABody{Timestamp: 1700000000, EmitterChain: 2, Sequence: sequence, Payload: []byte("hello")}
	body.EmitterAddress[31] = 0x22
	return wormhole.SignVAA(body, 0, w.guardians)
}

func (w *world) redeem(v *wormhole.VAA, node submit.Disclosure) (*submit.Result, error) {
	return w.client.Do(w.ctx, []string{w.user}, []submit.Disclosure{submit.Disclose(w.state.Contract), node}, submit.Redeem(submit.Redemption{
		Integrator: w.app.ContractID, CoreState: w.state.ContractID, ReplayNode: node.ContractID, Redeemer: w.user,
		EncodedVAA: v.EncodedHex(), PubKeys: wormhole.PubKeys(w.guardians),
	}))
}

func (w *world) scope() ledgersim.Scope {
	return ledgersim.Scope{Consumer: w.consumer, Operator: w.operator}
}

// covering is the node that covers the digest now.
func (w *world) covering(d wormhole.Digest) submit.Disclosure {
	w.t.Helper()
	nodes := w.sim.Covering(w.scope(), d, w.sim.LedgerEnd())
	if len(nodes) != 1 {
		w.t.Fatalf("%d nodes cover %s, want 1", len(nodes), d)
	}
	return submit.Disclose(nodes[0])
}

func wantReason(t *testing.T, err error, reason string) *submit.Rejection {
	t.Helper()
	var rejection *submit.Rejection
	if !errors.As(err, &rejection) || rejection.Reason != reason {
		t.Fatalf("got %v, want a rejection by %s", err, reason)
	}
	return rejection
}

func TestRedeemsUntilTheNodeSplits(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 1}, 4)
	for i := range uint64(12) {
		v := w.vaa(i)
		result, err := w.redeem(v, w.covering(v.Digest()))
		if err != nil {
			t.Fatalf("redeem %d: %v", i, err)
		}
		if _, ok := result.First(submit.ReceiptTemplate); !ok {
			t.Fatalf("redeem %d: no receipt", i)
		}
		node := w.sim.Covering(w.scope(), v.Digest(), result.Offset)
		if len(node) != 1 || !node[0].Payload.(*wormhole.ReplayNode).Consumed.Contains(v.Digest()) {
			t.Fatalf("redeem %d: the covering node %v does not hold the digest", i, node)
		}
		if got := w.sim.Consumed(w.scope(), v.Digest(), result.Offset); len(got) != 1 || got[0].UpdateID != result.UpdateID {
			t.Fatalf("redeem %d: consumed by %v, want by %s", i, got, result.UpdateID)
		}
	}
	if n := len(w.sim.Active(w.sim.LedgerEnd())); n < 16 {
		t.Errorf("%d active contracts, want a split trie", n)
	}
	_, err := w.redeem(w.vaa(3), w.covering(w.vaa(3).Digest()))
	if got := wantReason(t, err, submit.ReasonFailure).ModelMessage(); got != "VAA already consumed" {
		t.Errorf("message %q", got)
	}
	_, err = w.redeem(w.vaa(100), submit.Disclose(w.root.Contract))
	wantReason(t, err, submit.ReasonInactive)
}

func TestContention(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 2}, 4)
	release := w.sim.HoldCommits()
	node := w.covering(w.vaa(1).Digest())
	outcome := make(chan error, 2)
	for i := range uint64(2) {
		go func() {
			_, err := w.redeem(w.vaa(i), node)
			outcome <- err
		}()
	}
	// The winner's answer is held back, so the first one is the loser's.
	if got := wantReason(t, <-outcome, submit.ReasonLocked); got.RetryAfter != time.Second || len(got.Contracts) != 1 || got.Contracts[0] != node.ContractID {
		t.Errorf("got %+v, want a hint of 1 s and the node's id", got)
	}
	release()
	if err := <-outcome; err != nil {
		t.Fatal(err)
	}
}

// TestUnassignmentContends: what a submission is about to archive can't leave its synchronizer under it; it would come back beside its
// successor.
func TestUnassignmentContends(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 3, Synchronizers: 2}, 4)
	release := w.sim.HoldCommits()
	node := w.covering(w.vaa(1).Digest())
	outcome := make(chan error, 1)
	go func() {
		_, err := w.redeem(w.vaa(1), node)
		outcome <- err
	}()
	if err := w.sim.AwaitPending(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	syncs := w.sim.Synchronizers()
	_, err := w.client.Unassign(w.ctx, w.operator, node.ContractID, syncs[0], syncs[1])
	if got := wantReason(t, err, submit.ReasonLocked); len(got.Contracts) != 1 || got.Contracts[0] != node.ContractID {
		t.Errorf("got %+v, want the node's id", got)
	}
	if _, _, err := w.sim.Unassign(syncs[1], node.ContractID); err == nil {
		t.Error("a locked contract was unassigned")
	}
	release()
	if err := <-outcome; err != nil {
		t.Fatal(err)
	}
	if got := w.covering(w.vaa(2).Digest()); got.ContractID == node.ContractID {
		t.Error("the node was not superseded")
	}
}

// TestStandIn: a participant that stands in for another has its id, its parties' ids and its synchronizers.
func TestStandIn(t *testing.T) {
	other := ledgersim.New(ledgersim.Options{Seed: 1, Name: "other", Synchronizers: 2})
	t.Cleanup(other.Stop)
	standIn := ledgersim.New(ledgersim.Options{Seed: 2, ParticipantID: other.ParticipantID(), SynchronizerIDs: other.Synchronizers()})
	t.Cleanup(standIn.Stop)
	if got, want := standIn.ParticipantID(), other.ParticipantID(); got != want {
		t.Errorf("it is participant %s, want %s", got, want)
	}
	if got, want := standIn.AllocateParty("operator"), other.AllocateParty("operator"); got != want {
		t.Errorf("its party is %s, want %s", got, want)
	}
	if got, want := standIn.Synchronizers(), other.Synchronizers(); !slices.Equal(got, want) {
		t.Errorf("its synchronizers are %v, want %v", got, want)
	}
}
