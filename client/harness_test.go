package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/telemetry"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// world is a simulated participant and services that follow it, all over real gRPC, within this process.
type world struct {
	t      testing.TB
	sim    *ledgersim.Sim
	ledger string // the participant's address
	world  *devnet.World
	app    *devnet.App
	conn   *grpc.ClientConn
	submit *submit.Client
	// services are the addresses of the services.
	services []string
	api      disclosurev1.DisclosureServiceClient
}

type worldOptions struct {
	threshold int64
	latency   time.Duration
	services  int
	// clock is the participant's, unless nil.
	clock ledgersim.Clock
}

func newWorld(t testing.TB, o worldOptions) *world {
	t.Helper()
	sim := ledgersim.New(ledgersim.Options{CommitLatency: o.latency, Synchronizers: 2, Clock: o.clock})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	w := &world{t: t, sim: sim, ledger: address}
	w.conn = w.dial(address)
	w.submit = submit.New(w.conn, "redeemers")
	if w.world, err = devnet.Make(t.Context(), w.submit, devnet.Options{Thresholds: []int64{o.threshold}}); err != nil {
		t.Fatal(err)
	}
	w.app = w.world.Apps[0]
	for range max(1, o.services) {
		w.services = append(w.services, w.serve())
	}
	w.api = disclosurev1.NewDisclosureServiceClient(w.dial(w.services[0]))
	for _, s := range w.services {
		w.waitReady(s)
	}
	return w
}

func (w *world) dial(address string) *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// serve starts a service of its own: index in memory, follower, API.
func (w *world) serve() string { return w.serveWith(nil).address }

// served is a running service, which ends with the test or by stop.
type served struct {
	address string
	stop    func()
}

// serveWith starts a service whose settings are changed, unless change is nil. It listens on cfg.Listen.
func (w *world) serveWith(change func(*api.Config, *api.Deps)) *served {
	t := w.t
	t.Helper()
	x, err := index.Open(t.Context(), index.Policy{Operators: []string{w.world.Operator}, GuardianGovernance: w.world.GuardianGovernance}, nil,
		index.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := ledgerstream.Dial(ledgerstream.ConnConfig{Target: w.ledger, Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	follower := ledgerstream.New(ledgerstream.Config{
		Parties: []string{w.world.Operator}, PollInterval: 50 * time.Millisecond, BackoffInitial: time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}, conn, x)
	cfg := api.DefaultConfig()
	cfg.Listen, cfg.OpsListen, cfg.Limits.RatePerSecond = "127.0.0.1:0", "", 0
	metrics := telemetry.New("test")
	deps := api.Deps{Index: x, Metrics: metrics.API, MetricsHandler: metrics.Handler(), Log: slog.New(slog.DiscardHandler), Status: func() api.Status {
		s := follower.Status()
		return api.Status{State: string(s.State), Detail: s.Detail, ParticipantID: s.ParticipantID, LedgerEnd: s.LedgerEnd, ProvenOffset: s.ProvenOffset,
			ProvenAt: s.ProvenAt, LastMessageAt: s.LastMessageAt, HaltedAt: s.HaltedAt, Synchronizers: s.Synchronizers, Packages: s.Packages}
	}}
	if change != nil {
		change(&cfg, &deps)
	}
	server, err := api.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.ServeOn(ctx, listener, nil); err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	running.Go(func() {
		if err := follower.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("following: %v", err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		conn.Close()
	})
	t.Cleanup(stop)
	return &served{listener.Addr().String(), stop}
}

func (w *world) waitReady(address string) {
	w.t.Helper()
	service := disclosurev1.NewDisclosureServiceClient(w.dial(address))
	w.eventually("a ready service", func() error {
		info, err := service.GetServerInfo(w.t.Context(), &disclosurev1.GetServerInfoRequest{})
		if err == nil && !info.Ready {
			err = errors.New(info.NotReadyReason)
		}
		return err
	})
}

// eventually waits until something is so that another goroutine brings about without telling.
func (w *world) eventually(what string, so func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := so()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("no %s within 30 s: %v", what, err)
		}
	}
}

func (w *world) anchors() client.Anchors {
	return client.Anchors{Operators: []string{w.world.Operator}, GuardianGovernance: w.world.GuardianGovernance}
}

// options are quick ones.
func (w *world) options() client.Options {
	return client.Options{
		Anchors: w.anchors(), Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
		BackoffInitial: 5 * time.Millisecond, BackoffMax: 200 * time.Millisecond, SubmitTimeout: 5 * time.Second, MaxTime: 2 * time.Minute, MaxSubmissions: 400,
	}
}

func (w *world) client(options client.Options, addresses ...string) *client.Client {
	w.t.Helper()
	if len(addresses) == 0 {
		addresses = w.services
	}
	c, err := client.New(addresses, options)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return c
}

// party is a user who is a stakeholder of nothing.
func (w *world) party(hint string) string {
	w.t.Helper()
	id, err := w.submit.AllocateParty(w.t.Context(), hint)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *world) vaa() *wormhole.VAA {
	w.t.Helper()
	vaa, err := w.world.VAA(w.app, []byte("client"))
	if err != nil {
		w.t.Fatal(err)
	}
	return vaa
}

func (w *world) request(vaa *wormhole.VAA) client.Request {
	return client.Request{Consumer: w.app.Consumer, VAA: vaa.Encode()}
}

// redeemer submits as the party with exactly what the client gives, and the app's own contract.
func (w *world) redeemer(party string) client.SubmitFunc {
	return redeemWith(w.submit, party, w.app.Integrator.ContractID, submit.Disclose(w.app.Integrator.Contract))
}

func redeemWith(ledger *submit.Client, party, integrator string, own submit.Disclosure) client.SubmitFunc {
	return func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		disclosed := []submit.Disclosure{own}
		for _, d := range p.Disclosures {
			disclosed = append(disclosed, submit.Disclosure{
				Blob: d.Blob, ContractID: d.ContractID, SynchronizerID: d.SynchronizerID,
				TemplateID: damlvalue.TypeName{PackageID: d.TemplateID.PackageID, Module: d.TemplateID.ModuleName, Entity: d.TemplateID.EntityName},
			})
		}
		var keys []wormhole.PubKey
		for _, k := range p.PubKeys {
			keys = append(keys, wormhole.PubKey{Index: k.GuardianIndex, Key: k.Key})
		}
		result, err := ledger.Submit(ctx, submit.Submission{
			CommandID: p.CommandID, ActAs: []string{party}, Disclosed: disclosed,
			Commands: []submit.Command{submit.Redeem(submit.Redemption{
				Integrator: integrator, CoreState: p.CoreStateContractID, ReplayNode: p.ReplayNodeContractID, Redeemer: party,
				EncodedVAA: p.EncodedVAA, PubKeys: keys,
			})},
		})
		if err != nil {
			return client.Submitted{}, err
		}
		return client.Submitted{UpdateID: result.UpdateID, Offset: result.Offset}, nil
	}
}

// consumed are the consumes of a digest on the ledger.
func (w *world) consumed(digest wormhole.Digest) []ledgersim.Consumption {
	return w.sim.Consumed(ledgersim.Scope{Consumer: w.app.Consumer, Operator: w.world.Operator}, digest, w.sim.LedgerEnd())
}

// want checks an outcome against the ledger's truth: its state, that the digest was consumed once or never, and by which update.
func (w *world) want(outcome client.Outcome, err error, state client.State, digest wormhole.Digest) {
	w.t.Helper()
	if outcome.State != state {
		w.t.Fatalf("the redeem ended %s (%s: %s) with error %v, want %s; outcome %+v", outcome.State, outcome.Reason, outcome.Message, err, state, outcome)
	}
	if hasError := state == client.GaveUp || state == client.Unknown; hasError != (err != nil) {
		w.t.Fatalf("the redeem ended %s with error %v", outcome.State, err)
	}
	consumed := w.consumed(digest)
	if state != client.Committed && state != client.Consumed {
		return
	}
	if len(consumed) != 1 || consumed[0].UpdateID != outcome.UpdateID {
		w.t.Fatalf("the redeem says that update %q consumed the digest, on the ledger it is %v", outcome.UpdateID, consumed)
	}
}
