package ledgerstream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// From the moment that it is known that the ledger's history is another one, and until the new index is in place, the status says so, and
// the old proof is none.
func TestAReplacedHistoryIsToldWhileTheSnapshotIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(1000, create(cid(1))))
		release := make(chan struct{})
		p.onSnapshot = func(n int, _ *ledgerapi.GetActiveContractsRequest, _ ledgerapi.StateService_GetActiveContractsServer) error {
			if n > 1 {
				<-release
			}
			return errDefault
		}
		r := start(t, testConfig(), p, &memorySink{})
		if st := r.await(t, "live", proven(1002)); st.HistoryReplaced != "" {
			t.Errorf("after the first snapshot the history is replaced: %s", st.HistoryReplaced)
		}
		p.change(func() { p.log, p.end = nil, 48 })
		st := r.await(t, "known", func(st Status) bool { return st.HistoryReplaced != "" })
		if st.HistoryReplaced != ledger.SeedRewound || st.HistoryReplacedAt.IsZero() || !st.ProvenAt.IsZero() || st.ProvenOffset != 0 {
			t.Errorf("replaced: %s at %s; proven at %s", st.HistoryReplaced, st.HistoryReplacedAt, st.ProvenAt)
		}
		r.await(t, "the snapshot", func(st Status) bool {
			return st.State == StateSnapshot && st.HistoryReplaced == ledger.SeedRewound && st.ProvenAt.IsZero()
		})
		close(release)
		st = r.await(t, "built anew", func(st Status) bool { return st.State == StateLive && st.Reseeds == 2 })
		if st.HistoryReplaced != "" || !st.HistoryReplacedAt.IsZero() || st.ProvenOffset != 48 {
			t.Errorf("after the new snapshot: replaced %s, proven at %d", st.HistoryReplaced, st.ProvenOffset)
		}
	})
}

// Another participant whose index is not wanted, and then the one that was meant again: nothing was replaced.
func TestAReplacedHistoryThatIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		id := p.id
		sink := &memorySink{}
		sink.onCommit = func() error {
			if len(sink.seeds) > 0 {
				return errors.New("not that one")
			}
			return nil
		}
		r := start(t, testConfig(), p, sink)
		r.await(t, "live", proven(12))
		p.change(func() { p.id = "another::1220ff" })
		p.add(tx(13, create(cid(2)))) // which makes it ask who that is
		r.await(t, "known", func(st Status) bool { return st.HistoryReplaced == ledger.SeedAnotherParticipant })
		r.await(t, "refused", func(st Status) bool { return st.State == StateReconnecting && st.HistoryReplaced != "" })
		p.change(func() { p.id = id })
		r.await(t, "back", func(st Status) bool { return proven(15)(st) && st.HistoryReplaced == "" })
		wantContracts(t, sink, cid(1), cid(2))
	})
}

// A21: what is too large to be received does not tell its offset; what is told is where the index stands before it.
func TestHaltedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		large := true
		p.onTail = func(int, *ledgerapi.GetUpdatesRequest, ledgerapi.UpdateService_GetUpdatesServer) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if large {
				return status.Error(codes.ResourceExhausted, "larger than max")
			}
			return errDefault
		}
		r := start(t, testConfig(), p, &memorySink{})
		st := r.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
		if st.HaltedAt != 0 || st.HaltedAfter != 12 {
			t.Errorf("halted at %d, after %d; want it not known, after 12", st.HaltedAt, st.HaltedAfter)
		}
		p.change(func() { large = false })
		if st := r.await(t, "mended", func(st Status) bool { return st.State == StateLive }); st.HaltedAfter != 0 {
			t.Errorf("mended, and halted after %d", st.HaltedAfter)
		}
	})
}

// A quota of the participant, or of a proxy, is no message that is too large: it is waited for.
func TestAQuotaOnACallIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		used := true
		p.onEnd = func(context.Context, int) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if used {
				return status.Error(codes.ResourceExhausted, "too many requests")
			}
			return nil
		}
		r := start(t, testConfig(), p, &memorySink{})
		st := r.await(t, "tried again", func(st Status) bool { return st.Reconnects >= 3 })
		if st.State != StateReconnecting {
			t.Errorf("state %s: %s", st.State, st.Detail)
		}
		p.change(func() { used = false })
		r.await(t, "live", proven(12))
	})
}

// A snapshot does not tell which update made a contract. Of the few that live long it is asked for; of nodes it is not.
func TestSnapshotTellsWhatMadeTheLongLived(t *testing.T) {
	s := simulate(t, ledgersim.Options{Seed: 7})
	made, err := s.client.Do(t.Context(), []string{s.operator}, nil, submit.Create(&wormhole.ReplayRootRegistry{Operator: s.operator, Granted: []string{}}))
	if err != nil {
		t.Fatal(err)
	}
	s.settle()
	s.RequestReseed(ledger.SeedRequested)
	s.await(t, "built anew", func(st Status) bool { return st.Reseeds == 2 })
	s.settle()
	registry := made.Created[0]
	s.sink.mu.Lock()
	got := s.sink.active[registry.ContractID+"@"+registry.SynchronizerID]
	node := s.sink.active[s.node.ContractID+"@"+s.node.SynchronizerID]
	s.sink.mu.Unlock()
	if got.UpdateID != made.UpdateID || got.RecordTime.IsZero() {
		t.Errorf("the registry was made by %q at %s; it should be %s", got.UpdateID, got.RecordTime, made.UpdateID)
	}
	if node.UpdateID != "" {
		t.Errorf("the node's update was asked for: %s", node.UpdateID)
	}
	// Pruned: it goes without.
	s.sim.PruneTo(s.sim.LedgerEnd())
	s.RequestReseed(ledger.SeedRequested)
	s.await(t, "built anew", func(st Status) bool { return st.Reseeds == 3 })
	s.settle()
	s.sink.mu.Lock()
	got = s.sink.active[registry.ContractID+"@"+registry.SynchronizerID]
	s.sink.mu.Unlock()
	if got.ContractID == "" || got.UpdateID != "" {
		t.Errorf("after the pruning the registry is %q, made by %q", got.ContractID, got.UpdateID)
	}
}

// An update that only a snapshot contains is found on the participant.
func TestFindUpdate(t *testing.T) {
	s := simulate(t, ledgersim.Options{Seed: 7})
	s.consume(1)
	made, err := s.client.Do(t.Context(), []string{s.operator}, nil, submit.Create(&wormhole.ReplayRootRegistry{Operator: s.operator, Granted: []string{}}))
	if err != nil {
		t.Fatal(err)
	}
	s.consume(1)
	s.settle()
	found, ok, err := s.FindUpdate(t.Context(), made.UpdateID)
	if want := (FoundUpdate{s.sim.ParticipantID(), made.Offset}); err != nil || !ok || found != want {
		t.Errorf("found %+v, %t, %v; want %+v", found, ok, err, want)
	}
	if found, ok, err := s.FindUpdate(t.Context(), "1220"+made.UpdateID[4:8]); err != nil || ok {
		t.Errorf("an unknown one: %+v, %t, %v", found, ok, err)
	}
	release := s.sim.Hang(ledgerapi.UpdateService_GetUpdateById_FullMethodName)
	defer release()
	if _, ok, err := s.FindUpdate(t.Context(), made.UpdateID); err == nil || ok {
		t.Errorf("nobody answered: %t, %v", ok, err)
	}
	idle := New(testConfig(), s.conn, &memorySink{})
	if _, ok, err := idle.FindUpdate(t.Context(), made.UpdateID); err != nil || ok {
		t.Errorf("before any session: %t, %v", ok, err)
	}
}
