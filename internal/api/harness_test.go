package api_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/telemetry"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// What the tests' ledger is made of.
const (
	packageName = "wormhole-core"
	packageID   = "aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11aa11"
	operator    = "operator::1220aa"
	accomplice  = "accomplice::1220bb"
	governance  = "governance::1220cc"
	observer    = "observer::1220dd"
	consumer    = "app::1220ee"
	participant = "participant::1220ff"
	sync1       = "global-domain::1220abcd"
	sync2       = "global-domain::1220abcd::35-4"
)

var epoch = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// world is a real index, fed by hand, behind a real server on a loopback socket, with a clock and a follower's status that the test
// sets.
type world struct {
	t       testing.TB
	index   *index.Index
	server  *api.Server
	client  disclosurev1.DisclosureServiceClient
	conn    *grpc.ClientConn
	addr    string
	metrics *telemetry.Metrics
	logs    *syncBuffer
	opsURL  string
	// stop stops the server and waits for it; it can be called again.
	stop func()

	mu     sync.Mutex
	status api.Status
	now    atomic.Pointer[time.Time]
}

type option func(*api.Config, *api.Deps)

// newWorld starts a server over an empty index. It is stopped, and waited for, when the test ends.
func newWorld(t *testing.T, options ...option) *world {
	t.Helper()
	return newWorldTB(t, options...)
}

func newWorldTB(t testing.TB, options ...option) *world {
	t.Helper()
	w := &world{t: t, metrics: telemetry.New("test"), logs: &syncBuffer{}}
	w.setNow(epoch)
	w.setStatus(func(s *api.Status) {
		*s = api.Status{State: "live", ParticipantID: participant, LedgerAPIVersion: "3.5.10", Synchronizers: []string{sync1},
			Packages: map[string][]string{packageName: {packageID}}, LastMessageAt: epoch}
	})
	x, err := index.Open(t.Context(), index.Policy{GuardianGovernance: governance}, nil, index.Options{Logger: slog.New(slog.DiscardHandler), Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	w.index = x
	cfg := api.DefaultConfig()
	cfg.Listen, cfg.OpsListen = "127.0.0.1:0", ""
	cfg.DefaultWait = 20 * time.Millisecond
	cfg.Limits.RatePerSecond = 0
	cfg.Info = api.Info{Version: "1.2.3", Store: "none", GuardianGovernance: governance, StartedAt: epoch, ReadAs: []string{operator}}
	deps := api.Deps{
		Index: x, Status: w.getStatus, Now: w.clock, Metrics: w.metrics.API, MetricsHandler: w.metrics.Handler(), GuardMetrics: w.metrics.Guard,
		Log: slog.New(slog.NewJSONHandler(w.logs, nil)),
	}
	for _, o := range options {
		o(&cfg, &deps)
	}
	if w.server, err = api.New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

func (w *world) start() {
	t := w.t
	listener, ops := listen(t), listen(t)
	w.addr = listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.ServeOn(ctx, listener, ops) }()
	w.opsURL = "http://" + ops.Addr().String()
	w.conn = w.dial(insecure.NewCredentials())
	w.client = disclosurev1.NewDisclosureServiceClient(w.conn)
	w.stop = sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serving ended with %v", err)
		}
	})
	t.Cleanup(func() {
		w.conn.Close()
		w.stop()
	})
}

// eventually waits until something is so that another goroutine brings about without telling.
func (w *world) eventually(what string, so func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("no %s within 10 s", what)
		}
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (w *world) dial(creds credentials.TransportCredentials, more ...grpc.DialOption) *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(128 << 20)),
	}, more...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func (w *world) clock() time.Time    { return *w.now.Load() }
func (w *world) setNow(at time.Time) { w.now.Store(&at) }

func (w *world) getStatus() api.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *world) setStatus(change func(*api.Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
}

// proven says that the index is proven complete, as of now.
func (w *world) proven() {
	offset := w.index.View().Position().Offset
	w.setStatus(func(s *api.Status) { s.LedgerEnd, s.ProvenOffset, s.ProvenAt = offset, offset, w.clock() })
}

// seed puts a first generation in place, at offset 100.
func (w *world) seed(contracts ...ledger.Contract) {
	w.t.Helper()
	w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 100, Reason: ledger.SeedFirst}, contracts...)
}

func (w *world) reseed(start ledger.SeedStart, contracts ...ledger.Contract) {
	w.t.Helper()
	ctx := context.Background()
	seed, err := w.index.BeginSeed(ctx, start)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range contracts {
		contracts[i].UpdateID, contracts[i].RecordTime = "", time.Time{}
	}
	if err := seed.Add(ctx, contracts); err != nil {
		w.t.Fatal(err)
	}
	if err := seed.Commit(ctx); err != nil {
		w.t.Fatal(err)
	}
	w.setStatus(func(s *api.Status) { s.ParticipantID = start.ParticipantID })
	w.proven()
}

// apply applies one update three offsets later, and proves the index. It returns the update's id.
func (w *world) apply(events ...ledger.Event) string {
	w.t.Helper()
	pos := w.index.View().Position()
	offset := pos.Offset + 3
	u := ledger.Update{Offset: offset, UpdateID: fmt.Sprintf("1220%064x", offset), RecordTime: epoch.Add(time.Duration(offset) * time.Second), SynchronizerID: sync1, Events: events}
	for i := range u.Events {
		if c := u.Events[i].Contract; c != nil {
			c.Offset, c.UpdateID, c.RecordTime = offset, u.UpdateID, u.RecordTime
		}
	}
	if err := w.index.Apply(context.Background(), ledger.Batch{ParticipantID: pos.ParticipantID, After: pos.Offset, Updates: []ledger.Update{u}, Through: offset}); err != nil {
		w.t.Fatal(err)
	}
	w.proven()
	return u.UpdateID
}

// cid is a well-formed contract id of its own for each name.
func cid(name string) string {
	d, u := sha256.Sum256([]byte(name)), sha256.Sum256([]byte(name+"'"))
	return "00" + hex.EncodeToString(d[:]) + "ca121220" + hex.EncodeToString(u[:])
}

// contract is a contract with a verified blob, signed by those whom its payload names.
func contract(name string, payload wormhole.Payload) ledger.Contract {
	template := damlvalue.TypeName{PackageID: packageID}
	switch payload.(type) {
	case *wormhole.ReplayNode:
		template.Module, template.Entity = "Wormhole.Core.Replay", "ReplayNode"
	case *wormhole.CoreState:
		template.Module, template.Entity = "Wormhole.Core.State", "CoreState"
	case *wormhole.ReplayRootRegistry:
		template.Module, template.Entity = "Wormhole.Core.Replay", "ReplayRootRegistry"
	case *wormhole.EmitterRegistry:
		template.Module, template.Entity = "Wormhole.Core.Emitters", "EmitterRegistry"
	case *wormhole.Emitter:
		template.Module, template.Entity = "Wormhole.Core.Emitters", "Emitter"
	}
	return ledger.Contract{
		ContractID: cid(name), TemplateID: template, PackageName: packageName, SynchronizerID: sync1,
		Blob: []byte("blob of " + name), BlobCheck: ledger.BlobVerified,
		Signatories: wormhole.RequiredSignatories(payload), CreatedAt: epoch, Offset: 50, Payload: payload,
	}
}

func created(c ledger.Contract) ledger.Event {
	return ledger.Event{Kind: ledger.Created, ContractID: c.ContractID, TemplateID: c.TemplateID, Contract: &c}
}

func archived(name string) ledger.Event {
	return ledger.Event{Kind: ledger.Archived, ContractID: cid(name)}
}

func prefix(t *testing.T, s string) wormhole.Prefix {
	t.Helper()
	p, err := wormhole.ParsePrefix(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// node is a replay node of the tests' consumer and operator, without a namespace.
func node(t *testing.T, at string, digests ...wormhole.Digest) *wormhole.ReplayNode {
	t.Helper()
	return &wormhole.ReplayNode{Consumer: consumer, Operator: operator, Prefix: prefix(t, at), SplitThreshold: 4, Consumed: wormhole.NewSuffixSet(digests...)}
}

func core(sets map[int64]wormhole.GuardianSet) *wormhole.CoreState {
	return &wormhole.CoreState{
		Operator: operator, GuardianGovernance: governance, GuardianObserver: observer, ChainID: 72, GovernanceChainID: 1,
		GovernanceContract: strings.Repeat("00", 31) + "04", GuardianSetIndex: 0, GuardianSets: sets, MessageFee: 7,
	}
}

var guardians = map[uint8]wormhole.GuardianKey{0: wormhole.TestGuardian("a"), 1: wormhole.TestGuardian("b")}

func guardianSets() map[int64]wormhole.GuardianSet {
	return map[int64]wormhole.GuardianSet{0: {Keys: []string{guardians[0].Address(), guardians[1].Address()}}}
}

// vaa is a VAA of the tests' guardians.
func vaa(sequence uint64) *wormhole.VAA {
	return wormhole.SignVAA(wormhole.VAABody{Timestamp: 1_785_000_000, EmitterChain: 2, Sequence: sequence, Payload: []byte("payload")}, 0, guardians)
}

// digest has the given hex digits at its beginning.
func digest(head string) wormhole.Digest {
	d, err := wormhole.ParseDigest(head + strings.Repeat("5", 64-len(head)))
	if err != nil {
		panic(err)
	}
	return d
}

func selector() *disclosurev1.ScopeSelector { return &disclosurev1.ScopeSelector{Consumer: consumer} }

// basic is a world with a CoreState and an empty root.
func basic(t *testing.T, options ...option) *world {
	t.Helper()
	w := newWorld(t, options...)
	w.seed(contract("core", core(guardianSets())), contract("root", node(t, "")))
	return w
}

// reasonOf is what an error says, "" if it is none of ours.
func reasonOf(err error) (reason string, info *errdetails.ErrorInfo, bad *errdetails.BadRequest) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason, info = d.GetReason(), d
		case *errdetails.BadRequest:
			bad = d
		}
	}
	return reason, info, bad
}

func wantReason(t *testing.T, err error, want api.Reason) *errdetails.ErrorInfo {
	t.Helper()
	reason, info, _ := reasonOf(err)
	if reason != string(want) {
		t.Fatalf("error = %v (reason %q), want reason %s", err, reason, want)
	}
	seenReasons.add(want)
	return info
}

// seenReasons are the reasons that tests saw on the wire.
var seenReasons = &reasonSet{seen: map[api.Reason]bool{}}

type reasonSet struct {
	mu   sync.Mutex
	seen map[api.Reason]bool
}

func (s *reasonSet) add(r api.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[r] = true
}

// get fetches an operator's endpoint.
func (w *world) get(path string) (int, string) {
	w.t.Helper()
	resp, err := http.Get(w.opsURL + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// syncBuffer collects logs from many goroutines.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// soak is the reduced count, or the full one with DISCLOSURED_SOAK=1.
func soak(reduced, full int) int {
	if os.Getenv("DISCLOSURED_SOAK") != "" {
		return full
	}
	return reduced
}

func timestampOf(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

// sortedKeys are a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
