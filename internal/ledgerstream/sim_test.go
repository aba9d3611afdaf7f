package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// simulated is a follower of a simulated participant, over TCP and in real time, and the parties that keep it busy.
type simulated struct {
	*running
	t        *testing.T
	sim      *ledgersim.Sim
	client   *submit.Client
	cfg      Config
	conn     *grpc.ClientConn
	operator string
	consumer string
	node     submit.Created // a node that covers everything, never split
	next     int
}

func simulate(t *testing.T, options ledgersim.Options) *simulated {
	t.Helper()
	sim := ledgersim.New(options)
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	dial := func() *grpc.ClientConn {
		conn, err := Dial(ConnConfig{Target: address, Plaintext: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	s := &simulated{t: t, sim: sim, client: submit.New(dial(), "test"), conn: dial()}
	for name, party := range map[string]*string{"operator": &s.operator, "consumer": &s.consumer} {
		if *party, err = s.client.AllocateParty(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	created, err := s.client.Do(t.Context(), []string{s.operator, s.consumer}, nil,
		submit.Create(&wormhole.ReplayNode{Consumer: s.consumer, Operator: s.operator, SplitThreshold: 4096}))
	if err != nil {
		t.Fatal(err)
	}
	s.node = created.Created[0]
	s.cfg = Config{
		Parties: []string{s.operator}, PollInterval: 10 * time.Millisecond, CallTimeout: time.Second,
		StallTimeout: 2 * time.Second, TailLag: time.Second,
		BackoffInitial: time.Millisecond, BackoffMax: 50 * time.Millisecond, WaitRetry: 20 * time.Millisecond, HaltRetry: 20 * time.Millisecond,
	}
	s.follow(&memorySink{})
	return s
}

// follow begins to follow into the sink.
func (s *simulated) follow(sink *memorySink) {
	f := New(s.cfg, s.conn, sink)
	ctx, cancel := context.WithCancel(s.t.Context())
	result := make(chan error, 1)
	go func() { result <- f.Run(ctx) }()
	s.running = &running{Follower: f, sink: sink, limit: 20 * time.Second, stop: func() error {
		cancel()
		err := <-result
		result <- err
		return err
	}}
	s.t.Cleanup(func() { _ = s.running.stop() })
}

// consume consumes some more digests.
func (s *simulated) consume(n int) {
	s.t.Helper()
	for range n {
		s.next++
		for {
			result, err := s.client.Do(s.t.Context(), []string{s.consumer}, nil, submit.ConsumeDigest(s.node.ContractID, fmt.Sprintf("%064x", s.next)))
			if status.Code(errors.Unwrap(err)) == codes.Unavailable {
				continue // a fault of the connection, before anything was done
			}
			if err != nil {
				s.t.Fatal(err)
			}
			s.node = result.Created[0]
			break
		}
	}
}

// streaming waits until the live stream is open, which proofs alone don't tell.
func (s *simulated) streaming() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), s.limit)
	defer cancel()
	if err := s.sim.AwaitTails(ctx, 1); err != nil {
		s.t.Fatal(err)
	}
}

// settle waits until the index is at the ledger end, proven, and compares it with what is active.
func (s *simulated) settle() Status {
	s.t.Helper()
	end := s.sim.LedgerEnd()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		changed := s.Changed()
		st := s.Status()
		if st.State == StateLive && st.ProvenOffset >= end && s.sink.offset() >= end {
			break
		}
		select {
		case <-changed:
		case <-deadline.C:
			s.t.Fatalf("never at %d: %+v, index at %d", end, st, s.sink.offset())
		}
	}
	s.compare()
	return s.Status()
}

func (s *simulated) compare() {
	s.t.Helper()
	s.sink.mu.Lock()
	var got []string
	for key := range s.sink.active {
		got = append(got, key)
	}
	at := s.sink.pos.Offset
	for _, c := range s.sink.active {
		if c.BlobCheck != ledger.BlobVerified {
			s.t.Errorf("contract %s: blob is %s: %s", c.ContractID, c.BlobCheck, c.BlobFault)
		}
	}
	s.sink.mu.Unlock()
	var want []string
	for _, c := range s.sim.Active(at) {
		if slices.ContainsFunc(wormhole.Templates(), func(t damlvalue.TypeName) bool { return t.QualifiedName() == c.TemplateID.QualifiedName() }) {
			want = append(want, c.ContractID+"@"+c.SynchronizerID)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("active at %d (-ledger +index):\n%s", at, diff)
	}
}

// Each fault of the participant, under load: afterwards the index is the ledger, by way of what the package comment says.
func TestFaultsOfSimulatedParticipant(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(s *simulated)
		// reconnects tells whether the connection has to end; reseeds what generations must follow the first.
		reconnects bool
		reseeds    []ledger.SeedReason
	}{
		"nothing":             {fault: func(*simulated) {}},
		"connections dropped": {fault: func(s *simulated) { s.sim.DropConnections() }, reconnects: true},
		"SIGTERM":             {fault: func(s *simulated) { s.sim.Terminate() }, reconnects: true},
		"streams end with OK": {fault: func(s *simulated) { s.sim.EndStreams(nil) }, reconnects: true},
		"streams fail": {fault: func(s *simulated) {
			s.sim.EndStreams(status.Error(codes.Internal, "redacted"))
		}, reconnects: true},
		"ledger end unreadable": {fault: func(s *simulated) {
			release := s.sim.Hang(ledgerapi.StateService_GetLedgerEnd_FullMethodName)
			s.await(s.t, "given up", func(st Status) bool { return st.Reconnects > 0 })
			release()
		}, reconnects: true},
		"live stream silent": {fault: func(s *simulated) {
			s.sim.Silence(true)
			s.consume(3)
			s.settle() // the proofs bring it
			s.await(s.t, "replaced", func(st Status) bool { return st.Reconnects > 0 })
			s.sim.Silence(false)
		}, reconnects: true},
		"invisible updates": {fault: func(s *simulated) { s.sim.AdvanceLedgerEnd(1000); s.settle() }},
		"checkpoints":       {fault: func(s *simulated) { s.sim.AdvanceLedgerEnd(10); s.sim.EmitCheckpoint() }},
		"pruned up to the index": {fault: func(s *simulated) {
			s.settle()
			s.sim.PruneTo(s.sink.offset())
			s.sim.DropConnections()
		}, reconnects: true},
		"pruned past the index": {fault: func(s *simulated) {
			_ = s.stop()
			s.consume(3)
			s.sim.PruneTo(s.sim.LedgerEnd())
			s.follow(s.sink)
		}, reseeds: []ledger.SeedReason{ledger.SeedPruned}},
		"a stop in between": {fault: func(s *simulated) {
			_ = s.stop()
			s.consume(5)
			s.follow(s.sink)
		}},
		"refused once": {fault: func(s *simulated) {
			s.sim.FailNext(ledgerapi.UpdateService_GetUpdates_FullMethodName, status.Error(codes.PermissionDenied, ""))
			s.sim.EndStreams(nil)
		}, reconnects: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, ledgersim.Options{Seed: 7})
			s.consume(3)
			s.streaming()
			s.settle()
			before := s.Status().Reconnects
			c.fault(s)
			if c.reconnects {
				s.await(t, "a reconnect", func(st Status) bool { return st.Reconnects > before })
			}
			s.consume(3)
			st := s.settle()
			if c.reconnects != (st.Reconnects > before) {
				t.Errorf("%d reconnects, detail %q", st.Reconnects-before, st.Detail)
			}
			if diff := cmp.Diff(append([]ledger.SeedReason{ledger.SeedFirst}, c.reseeds...), s.sink.reasons()); diff != "" {
				t.Errorf("seeds (-want +got):\n%s", diff)
			}
		})
	}
}

// A contract that goes to another synchronizer: active there, and nowhere in between; also where a snapshot is taken in between.
func TestReassignmentOnSimulatedParticipant(t *testing.T) {
	s := simulate(t, ledgersim.Options{Seed: 7, Synchronizers: 2})
	s.settle()
	synchronizers := s.sim.Synchronizers()
	source := s.node.SynchronizerID
	target := synchronizers[1-slices.Index(synchronizers, source)]
	away, err := s.client.Unassign(t.Context(), s.consumer, s.node.ContractID, source, target)
	if err != nil {
		t.Fatal(err)
	}
	s.settle()
	if got := s.sink.contracts(); len(got) != 0 {
		t.Errorf("active in flight: %v", got)
	}
	s.RequestReseed(ledger.SeedRequested)
	s.await(t, "built anew", func(st Status) bool { return st.Reseeds == 2 })
	s.settle()
	if _, err := s.client.Assign(t.Context(), s.consumer, away); err != nil {
		t.Fatal(err)
	}
	st := s.settle()
	if got := s.sink.contracts(); len(got) != 1 {
		t.Errorf("active after the assignment: %v", got)
	}
	if len(st.Synchronizers) != 2 {
		t.Errorf("synchronizers %v", st.Synchronizers)
	}
}

// What can't be read halts, or is tried again, at its offset, and is gone on from once it can be read.
func TestInjectedUpdates(t *testing.T) {
	for kind, c := range map[ledgersim.Injection]struct {
		name  string
		halts bool
	}{
		ledgersim.UnknownUpdate:    {"unknown update", true},
		ledgersim.UnknownEvent:     {"unknown event", true},
		ledgersim.WrongShape:       {"wrong shape", true},
		ledgersim.MissingArguments: {"missing arguments", true},
		// The bytes don't even pass gRPC, which reports them as the participant's INTERNAL.
		ledgersim.BrokenBytes:      {"broken bytes", false},
		ledgersim.EmptyTransaction: {"empty transaction", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := simulate(t, ledgersim.Options{Seed: 7})
			s.settle()
			offset := s.sim.Inject(kind)
			s.consume(1)
			switch {
			case c.halts:
				st := s.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
				if st.HaltedAt != offset && kind != ledgersim.UnknownUpdate { // which doesn't tell its offset
					t.Errorf("halted at %d, want %d: %s", st.HaltedAt, offset, st.Detail)
				}
			case kind == ledgersim.BrokenBytes:
				s.await(t, "stuck", func(st Status) bool { return st.StuckAt != 0 && st.StuckAt < offset })
			}
			if c.halts && s.sink.offset() >= offset {
				t.Errorf("the index passed %d", offset)
			}
			s.sim.Mend(offset)
			if st := s.settle(); st.HaltedAt != 0 || st.StuckAt != 0 {
				t.Errorf("mended, and halted at %d, stuck at %d", st.HaltedAt, st.StuckAt)
			}
		})
	}
}

// Blobs that are wrong or missing are taken in, and marked.
func TestInjectedBlobs(t *testing.T) {
	s := simulate(t, ledgersim.Options{Seed: 7})
	s.settle()
	for kind, want := range map[ledgersim.Injection]ledger.BlobCheck{
		ledgersim.WrongBlob: ledger.BlobMismatch, ledgersim.MissingBlob: ledger.BlobMissing,
	} {
		offset := s.sim.Inject(kind)
		s.await(t, "taken in", proven(offset))
		s.sink.mu.Lock()
		found := false
		for _, c := range s.sink.active {
			found = found || (c.Offset == offset && c.BlobCheck == want)
		}
		s.sink.mu.Unlock()
		if !found {
			t.Errorf("no contract of offset %d whose blob is %s", offset, want)
		}
	}
}

// The participant is restored to an earlier state, or another one takes its place.
func TestChangedParticipant(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *simulated)
		want   []ledger.SeedReason // one of them
	}{
		"restored": {func(s *simulated) {
			s.sim.RestoreTo(s.sim.LedgerEnd() - 7)
		}, []ledger.SeedReason{ledger.SeedRewound}},
		"restored and grown past the index": {func(s *simulated) {
			_ = s.stop()
			s.sim.RestoreTo(s.sim.LedgerEnd() - 7)
			s.sim.AdvanceLedgerEnd(100)
			s.follow(s.sink)
		}, []ledger.SeedReason{ledger.SeedDiverged}},
		"another participant": {func(s *simulated) {
			s.sim.BecomeAnotherParticipant()
		}, []ledger.SeedReason{ledger.SeedAnotherParticipant}},
		"a sibling with higher offsets": {func(s *simulated) {
			s.sim.BecomeSibling(1000)
		}, []ledger.SeedReason{ledger.SeedAnotherParticipant}},
		"party gone": {func(s *simulated) {
			s.sim.Topology(ledgersim.TopologyRevoked, s.operator)
		}, []ledger.SeedReason{ledger.SeedRightsChanged}},
		"party coming": {func(s *simulated) {
			s.sim.Topology(ledgersim.TopologyOnboarding, s.operator)
		}, []ledger.SeedReason{ledger.SeedRightsChanged}},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, ledgersim.Options{Seed: 7})
			s.consume(5)
			s.settle()
			s.streaming()
			c.change(s)
			s.await(t, "built anew", func(st Status) bool { return len(s.sink.reasons()) >= 2 && st.State == StateLive })
			if got := s.sink.reasons(); len(got) != 2 || !slices.Contains(c.want, got[1]) {
				t.Errorf("seeds %v, want the first and %v", got, c.want)
			}
			if st := s.settle(); st.ParticipantID != s.sim.ParticipantID() {
				t.Errorf("participant %q", st.ParticipantID)
			}
		})
	}
}

// Contracts that an operator of the participant imports or purges.
func TestImportAndPurge(t *testing.T) {
	for _, mode := range []ledgersim.ImportMode{ledgersim.ImportAsTransaction, ledgersim.ImportAsAssignment} {
		s := simulate(t, ledgersim.Options{Seed: 7})
		s.settle()
		_, ids, err := s.sim.Import(mode, time.Now().Add(-time.Hour),
			&wormhole.ReplayNode{Consumer: s.consumer, Operator: s.operator, SplitThreshold: 7},
			&wormhole.ReplayRootRegistry{Operator: s.operator, Granted: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		s.settle()
		if got := s.sink.contracts(); len(got) != 3 {
			t.Errorf("%d contracts after the import, want 3", len(got))
		}
		if _, err := s.sim.Purge(ids...); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if got := s.sink.contracts(); len(got) != 1 {
			t.Errorf("%d contracts after the purge, want 1", len(got))
		}
	}
}

// Tokens and rights: a token that expires under an open stream, and rights that go and come back.
func TestAuthorizationOnSimulatedParticipant(t *testing.T) {
	sim := ledgersim.New(ledgersim.Options{Auth: &ledgersim.AuthOptions{Secret: []byte("s"), RightsPoll: 5 * time.Millisecond}})
	operator := sim.AllocateParty("operator")
	sim.SetRights("reader", []string{operator}, nil)
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	conn, err := Dial(ConnConfig{Target: address, Plaintext: true, Token: tokenFunc(func() string { return sim.Token("reader", time.Minute) })})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	sim.AdvanceLedgerEnd(5)
	s := &simulated{t: t, sim: sim, conn: conn, operator: operator, cfg: Config{
		Parties: []string{operator}, PollInterval: 10 * time.Millisecond, BackoffInitial: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		WaitRetry: 20 * time.Millisecond,
	}}
	s.follow(&memorySink{})
	s.settle()
	s.streaming()
	sim.ExpireTokens()
	sim.EmitCheckpoint()
	st := s.await(t, "cut", func(st Status) bool { return st.Reconnects > 0 })
	if st.State == StateWaiting {
		t.Errorf("an expired token is no matter for an operator: %s", st.Detail)
	}
	sim.AdvanceLedgerEnd(5)
	s.settle()
	sim.SetRights("reader", nil, nil)
	s.await(t, "waiting", func(st Status) bool { return st.State == StateWaiting })
	sim.AdvanceLedgerEnd(5)
	sim.SetRights("reader", []string{operator}, nil)
	s.settle()
}

// The follower speaks of a package that isn't there, and begins once it is.
func TestPackageUploadedLater(t *testing.T) {
	sim := ledgersim.New(ledgersim.Options{Packages: []ledgersim.Package{}})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Stop()
	conn, err := Dial(ConnConfig{Target: address, Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	operator, err := submit.New(conn, "test").AllocateParty(t.Context(), "operator")
	if err != nil {
		t.Fatal(err)
	}
	f := New(Config{Parties: []string{operator}, WaitRetry: 20 * time.Millisecond}, conn, &memorySink{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	r := &running{Follower: f, sink: &memorySink{}, limit: 20 * time.Second}
	st := r.await(t, "waiting", func(st Status) bool { return st.State == StateWaiting })
	if !strings.Contains(st.Detail, "wormhole-core") {
		t.Errorf("detail %q", st.Detail)
	}
}
