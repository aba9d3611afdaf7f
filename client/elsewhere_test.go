package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// bundle are the contracts that a redeem of the VAA needs: node, CoreState and the app's own.
func (w *world) bundle(vaa *wormhole.VAA) []string {
	w.t.Helper()
	got, err := w.api.PrepareRedeem(w.t.Context(), &disclosurev1.PrepareRedeemRequest{
		Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer}, Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa.Encode()},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return []string{got.GetReplayNode().GetContract().GetContractId(), got.GetCoreState().GetContract().GetContractId(), w.app.Integrator.ContractID}
}

// move takes contracts to another synchronizer.
func (w *world) move(target string, contractIDs ...string) {
	w.t.Helper()
	_, id, err := w.sim.Unassign(target, contractIDs...)
	if err == nil {
		_, err = w.sim.Assign(id)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// redeemerThere submits with the app's own contract on the synchronizer of the bundle.
func (w *world) redeemerThere(party string) client.SubmitFunc {
	return func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		own := submit.Disclose(w.app.Integrator.Contract)
		own.SynchronizerID = p.SynchronizerID
		return redeemWith(w.submit, party, w.app.Integrator.ContractID, own)(ctx, p)
	}
}

// A node that is between two synchronizers is waited for: nothing is submitted while it is active nowhere, nor while CoreState is
// elsewhere, and then on the new one.
func TestRedeemWhileReassigned(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	vaa, user := w.vaa(), w.party("user")
	target := w.sim.Synchronizers()[1]
	contracts := w.bundle(vaa)
	_, id, err := w.sim.Unassign(target, contracts[0])
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("a service that knows that the node is in flight", func() error {
		fate, err := w.api.GetContractFate(t.Context(), &disclosurev1.GetContractFateRequest{ContractId: contracts[0]})
		if err == nil && fate.GetFate() != disclosurev1.Fate_FATE_IN_FLIGHT {
			err = errors.New(fate.GetFate().String())
		}
		return err
	})
	reasons := make(chan string, 10_000)
	options := w.options()
	options.Observe = func(e client.Event) {
		if e.Kind == client.EventNoAnswer {
			reasons <- e.Reason
		}
	}
	type end struct {
		outcome client.Outcome
		err     error
	}
	ends := make(chan end, 1)
	var on []string
	redeem := w.redeemerThere(user)
	c := w.client(options)
	go func() {
		outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
			on = append(on, p.SynchronizerID)
			return redeem(ctx, p)
		})
		ends <- end{outcome, err}
	}()
	await := func(reason string) {
		t.Helper()
		for got := range reasons {
			if got == reason {
				return
			}
		}
	}
	await("IN_FLIGHT")
	if _, err := w.sim.Assign(id); err != nil {
		t.Fatal(err)
	}
	await("DIFFERENT_SYNCHRONIZERS")
	w.move(target, contracts[1:]...)
	e := <-ends
	w.want(e.outcome, e.err, client.Committed, vaa.Digest())
	if len(on) == 0 || slices.ContainsFunc(on, func(s string) bool { return s != target }) {
		t.Errorf("submitted on %q, want only %q", on, target)
	}
}

// The bundle moves to another synchronizer after it was resolved: the submission does nothing, and the next one is made there.
func TestRedeemReassignedBeforeSubmission(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	vaa, user := w.vaa(), w.party("user")
	target := w.sim.Synchronizers()[1]
	contracts := w.bundle(vaa)
	redeem := w.redeemerThere(user)
	var on []string
	outcome, err := w.client(w.options()).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if on = append(on, p.SynchronizerID); len(on) == 1 {
			w.move(target, contracts...)
		}
		return redeem(ctx, p)
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
	if len(on) < 2 || on[0] == target || on[len(on)-1] != target || outcome.Retries["refresh"] != len(on)-1 {
		t.Errorf("submitted on %q; outcome %+v", on, outcome)
	}
}

// newNamespacedWorld is a world whose newest package version has namespaces.
func newNamespacedWorld(t *testing.T) *world {
	t.Helper()
	sim := ledgersim.New(ledgersim.Options{Packages: []ledgersim.Package{ledgersim.WormholeCore010, ledgersim.WormholeCore040, ledgersim.Integrator010}})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	w := &world{t: t, sim: sim, ledger: address}
	w.conn = w.dial(address)
	w.submit = submit.New(w.conn, "redeemers")
	if w.world, err = devnet.Make(t.Context(), w.submit, devnet.Options{Thresholds: []int64{4}}); err != nil {
		t.Fatal(err)
	}
	w.app = w.world.Apps[0]
	w.services = []string{w.serve()}
	w.api = disclosurev1.NewDisclosureServiceClient(w.dial(w.services[0]))
	w.waitReady(w.services[0])
	return w
}

// Tries of one consumer in a package version with namespaces: the request chooses among them, a digest is consumed in each by itself, and
// under a command id of its own.
func TestRedeemInNamespaces(t *testing.T) {
	w := newNamespacedWorld(t)
	named := func(name string) ledgersim.Scope {
		return ledgersim.Scope{Consumer: w.app.Consumer, Operator: w.world.Operator, Namespace: wormhole.Namespace{Present: true, Value: name}}
	}
	for _, name := range []string{"a", "b"} {
		if _, err := w.sim.Generate(ledgersim.Generation{Scope: named(name), Nodes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	vaa := w.vaa()
	digest := vaa.Digest()
	scope := func(name string) *disclosurev1.ScopeSelector {
		return &disclosurev1.ScopeSelector{Consumer: w.app.Consumer, NamespaceChoice: &disclosurev1.ScopeSelector_Namespace{Namespace: name}}
	}
	w.eventually("a service that knows the tries", func() error {
		_, err := w.api.GetCoveringNode(t.Context(), &disclosurev1.GetCoveringNodeRequest{Scope: scope("b"), Digest: digest.String()})
		return err
	})
	guard, err := client.NewLocalGuard(client.LocalGuardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	relayer := w.relayer(guard)
	consume := func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		result, err := w.submit.Submit(ctx, submit.Submission{CommandID: p.CommandID, ActAs: []string{w.app.Consumer},
			Commands: []submit.Command{submit.ConsumeDigest(p.ReplayNodeContractID, p.Digest)}})
		return client.Submitted{UpdateID: result.UpdateID}, err
	}
	request := client.Request{Consumer: w.app.Consumer, Digest: digest.String()}
	outcome, err := w.client(w.options()).Redeem(t.Context(), request, w.never())
	w.want(outcome, err, client.GaveUp, digest)
	if outcome.Reason != "AMBIGUOUS_SCOPE" {
		t.Errorf("outcome %+v", outcome)
	}
	missing := "c"
	request.Namespace = &missing
	outcome, err = w.client(w.options()).Redeem(t.Context(), request, w.never())
	if outcome.State != client.GaveUp || outcome.Reason != "UNKNOWN_SCOPE" {
		t.Errorf("outcome %+v, error %v", outcome, err)
	}
	commands := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		request.Namespace = &name
		got, err := relayer.Redeem(t.Context(), request, consume)
		if err != nil || got.Admission.Decision != client.Admitted || got.Outcome.State != client.Committed {
			t.Fatalf("%+v, %v", got, err)
		}
		if on := w.sim.Consumed(named(name), digest, w.sim.LedgerEnd()); len(on) != 1 || on[0].UpdateID != got.Outcome.UpdateID {
			t.Errorf("in namespace %q the digest is consumed by %v, want %s", name, on, got.Outcome.UpdateID)
		}
		commands[got.Outcome.CommandID] = true
		again, err := relayer.Redeem(t.Context(), request, w.never())
		if err != nil || again.Admission.Decision != client.AlreadyReceived && again.Outcome.State != client.Consumed {
			t.Errorf("%+v, %v", again, err)
		}
	}
	if len(commands) != 2 {
		t.Errorf("command ids %v, want one for each namespace", commands)
	}
}

// A client over TLS: an endpoint that it does not trust, or that does not trust it, is as one that is down.
func TestRedeemOverTLS(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	ca, foreign := newAuthority(t), newAuthority(t)
	secure := func(by *authority) *served {
		return w.serveWith(func(c *api.Config, _ *api.Deps) { c.TLS = by.files(t) })
	}
	good, strange := secure(ca), secure(foreign)
	conn, err := grpc.NewClient(good.address, ca.as(t, "wallet", ca)...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w.eventually("a ready service", func() error {
		info, err := disclosurev1.NewDisclosureServiceClient(conn).GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
		if err == nil && !info.Ready {
			err = errors.New(info.NotReadyReason)
		}
		return err
	})
	user := w.party("user")
	options := w.options()
	options.Dial = ca.as(t, "wallet", ca)
	var failed events
	options.Observe = failed.observe
	vaa := w.vaa()
	outcome, err := w.client(options, strange.address, good.address).Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(outcome, err, client.Committed, vaa.Digest())
	if failed.count(client.EventNoAnswer) == 0 {
		t.Error("the endpoint that is not trusted was not asked")
	}
	options.MaxTime, options.SettleTime = 300*time.Millisecond, time.Millisecond
	for name, dial := range map[string][]grpc.DialOption{"no certificate": ca.as(t, "", ca), "a foreign certificate": foreign.as(t, "wallet", ca)} {
		options.Dial = dial
		outcome, err := w.client(options, good.address).Redeem(t.Context(), w.request(w.vaa()), w.never())
		if outcome.State != client.GaveUp || err == nil {
			t.Errorf("%s: outcome %+v, error %v", name, outcome, err)
		}
	}
}
