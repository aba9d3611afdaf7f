package replay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Around(m)) }

// place is where a contract is, and since when, as far as an index must know it.
type place struct {
	Offset   int64
	Counter  uint64
	InFlight bool
}

// naive is what a plain reading of recorded messages gives: places by contract id and synchronizer.
type naive map[string]place

func key(cid, synchronizer string) string { return cid + "@" + synchronizer }

// served reports whether the service keeps contracts of the template.
func served(id *v2.Identifier) bool {
	return slices.ContainsFunc(wormhole.Templates(), func(n damlvalue.TypeName) bool {
		return n.QualifiedName() == id.GetModuleName()+":"+id.GetEntityName()
	})
}

func (n naive) entry(t *testing.T, raw []byte) {
	t.Helper()
	var m v2.GetActiveContractsResponse
	if err := (replay.Response{Raw: raw}).Into(&m); err != nil {
		t.Fatal(err)
	}
	if a := m.GetActiveContract(); a != nil && served(a.GetCreatedEvent().GetTemplateId()) {
		n[key(a.GetCreatedEvent().GetContractId(), a.GetSynchronizerId())] = place{Offset: a.GetCreatedEvent().GetOffset(), Counter: a.GetReassignmentCounter()}
	}
	if u := m.GetIncompleteUnassigned(); u != nil && served(u.GetCreatedEvent().GetTemplateId()) {
		e := u.GetUnassignedEvent()
		n[key(e.GetContractId(), e.GetSource())] = place{Offset: u.GetCreatedEvent().GetOffset(), Counter: e.GetReassignmentCounter(), InFlight: true}
	}
}

func (n naive) drop(cid string, keep func(place) bool) {
	maps.DeleteFunc(n, func(k string, p place) bool { return strings.HasPrefix(k, cid+"@") && !keep(p) })
}

func (n naive) update(t *testing.T, u replay.Update) {
	t.Helper()
	var m v2.GetUpdatesResponse
	if err := (replay.Response{Raw: u.Raw}).Into(&m); err != nil {
		t.Fatal(err)
	}
	for _, e := range m.GetTransaction().GetEvents() {
		if c := e.GetCreated(); c != nil && served(c.GetTemplateId()) {
			n[key(c.GetContractId(), m.GetTransaction().GetSynchronizerId())] = place{Offset: c.GetOffset()}
		}
		if a := e.GetArchived(); a != nil {
			n.drop(a.GetContractId(), func(place) bool { return false })
		}
	}
	for _, e := range m.GetReassignment().GetEvents() {
		if a := e.GetAssigned(); a != nil && served(a.GetCreatedEvent().GetTemplateId()) {
			n.drop(a.GetCreatedEvent().GetContractId(), func(p place) bool { return !p.InFlight })
			n[key(a.GetCreatedEvent().GetContractId(), a.GetTarget())] = place{Offset: a.GetCreatedEvent().GetOffset(), Counter: a.GetReassignmentCounter()}
		}
		if a := e.GetUnassigned(); a != nil {
			if p, ok := n[key(a.GetContractId(), a.GetSource())]; ok {
				n[key(a.GetContractId(), a.GetSource())] = place{Offset: p.Offset, Counter: a.GetReassignmentCounter(), InFlight: true}
			}
		}
	}
}

func placesOf(v *index.View) naive {
	out := naive{}
	v.Each(func(e *index.Entry) bool {
		out[key(e.ContractID, e.SynchronizerID)] = place{Offset: e.Offset, Counter: e.ReassignmentCounter, InFlight: e.InFlight}
		return true
	})
	return out
}

// follow lets the real client follow a script into an index until it has everything, and gives what the index then holds.
func follow(t *testing.T, script replay.Script, store index.Store) naive {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	x, err := index.Open(ctx, index.Policy{}, store, index.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	server := replay.NewServer(script)
	address, err := server.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	follower := ledgerstream.New(ledgerstream.Config{AnyParty: true, PollInterval: 10 * time.Millisecond, BackoffInitial: time.Millisecond, BackoffMax: 10 * time.Millisecond}, conn, x)
	if x.View() != nil {
		// The store holds what was played before.
		follower.RequestReseed(ledger.SeedRequested)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- follower.Run(running) }()
	before := x.View()
	view, err := x.Wait(ctx, func(v *index.View) bool { return v != nil && v != before && v.Position().Offset >= server.End() })
	standing := follower.Status()
	stop()
	if ended := <-done; !errors.Is(ended, context.Canceled) {
		t.Errorf("the follower ended with %v", ended)
	}
	if err != nil {
		t.Fatalf("%v; the follower was %s: %s (%+v)", err, standing.State, standing.Detail, standing)
	}
	return placesOf(view)
}

// onPostgres is a store for a test: what is played into it one after another are generations of one index.
func onPostgres(t *testing.T) index.Store {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	store, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Database(t), Migrate: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	if _, err := store.AcquireLease(t.Context(), postgres.LeaseOptions{Holder: "replay"}); err != nil {
		t.Fatal(err)
	}
	return store
}

// inBoth runs a script into an index in memory and into one on a store, and compares each with what is wanted.
func inBoth(t *testing.T, what string, script replay.Script, store index.Store, want naive) {
	t.Helper()
	if script.Start == 0 {
		// Nothing to take a snapshot of: only an index that was never seeded begins here.
		store = onPostgres(t)
	}
	for name, s := range map[string]index.Store{"memory": nil, "postgres": store} {
		if diff := cmp.Diff(want, follow(t, script, s)); diff != "" {
			t.Errorf("%s, %s (-recorded +index):\n%s", what, name, diff)
		}
	}
}

// TestEveryRecordedSnapshot: the index holds exactly the recorded active set, whatever was asked for: all templates or one, with
// blobs and labels or without, as one party or as any.
func TestEveryRecordedSnapshot(t *testing.T) {
	played, store := 0, onPostgres(t)
	for _, r := range all(t) {
		snapshots, err := r.Snapshots()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range snapshots {
			if s.Offset == 0 {
				continue // the beginning of a ledger has no snapshot
			}
			want := naive{}
			for _, raw := range s.Entries {
				want.entry(t, raw)
			}
			inBoth(t, fmt.Sprintf("%s call %d (%s)", r.Name, s.Call.N, s.Call.Note), replay.PlaySnapshot(s), store, want)
			played++
		}
	}
	if played != 58 {
		t.Errorf("%d recorded snapshots, want 58", played)
	}
}

// TestEveryRecordedStream: the index holds what a naive replay of the stream holds, and the recorded active set where one was recorded
// at the stream's end for the same filter. Streams that the client never asks for (the shape LEDGER_EFFECTS) are not among them.
func TestEveryRecordedStream(t *testing.T) {
	played, confirmed := 0, 0
	store := onPostgres(t)
	for _, r := range all(t) {
		streams, err := r.Streams()
		if err != nil {
			t.Fatal(err)
		}
		snapshots, err := r.Snapshots()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range streams {
			if s.Format.Effects {
				continue
			}
			what := fmt.Sprintf("%s call %d (%s)", r.Name, s.Call.N, s.Call.Note)
			want := naive{}
			var begin [][]byte
			if at := snapshotAt(snapshots, s.Begin, s.Format); at != nil {
				begin = at.Entries
				for _, raw := range begin {
					want.entry(t, raw)
				}
			}
			for _, u := range s.Updates {
				want.update(t, u)
			}
			script := replay.PlayStream(s, begin)
			if s.Call.Status.EndedByClient == "" && s.End == 0 {
				// The tail ends as it did on the recorded participant; the client comes again.
				script.Ends = []replay.Status{s.Call.Status}
			}
			if at := snapshotAt(snapshots, script.End, s.Format); at != nil && s.Format.Transactions && s.Format.Reassignments {
				recorded := naive{}
				for _, raw := range at.Entries {
					recorded.entry(t, raw)
				}
				if diff := cmp.Diff(recorded, want); diff != "" && (begin != nil || s.Begin == 0) {
					t.Errorf("%s: the recorded active set and the naive replay differ (-set +replay):\n%s", what, diff)
				}
				confirmed++
			}
			inBoth(t, what, script, store, want)
			played++
		}
	}
	if played != 29 || confirmed != 11 {
		t.Errorf("%d recorded streams, %d of them confirmed by a recorded active set; want 29 and 11", played, confirmed)
	}
}

// snapshotAt is a snapshot at the offset that was asked for in the same way.
func snapshotAt(snapshots []replay.Snapshot, offset int64, f replay.Format) *replay.Snapshot {
	for i := range snapshots {
		s := &snapshots[i]
		if s.Offset == offset && offset != 0 && slices.Equal(s.Format.Parties, f.Parties) && s.Format.AnyParty == f.AnyParty && slices.Equal(s.Format.Templates, f.Templates) {
			return s
		}
	}
	return nil
}
