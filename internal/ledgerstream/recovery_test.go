package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
)

// A01: a live stream that ends with OK, again and again, is reopened at the index's offset each time and loses nothing.
func TestCleanEndOfStreamIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(0))))
		next := int64(0)
		p.onTail = func(n int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
			if n > 10 {
				return errDefault
			}
			for range 3 {
				next++
				u := tx(12+3*next, create(cid(int(next))))
				p.add(u)
				if err := s.Send(u); err != nil {
					return err
				}
			}
			return nil
		}
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "all thirty", proven(12+3*30))
		want := []string{cid(0)}
		for i := range 30 {
			want = append(want, cid(i+1))
		}
		wantContracts(t, r.sink, want...)
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, begin := range p.begins {
			// At the last update that the stream before brought, or at the ledger end that was proven since.
			if want := int64(12 + 9*i); begin < want || begin > want+2 {
				t.Errorf("live stream %d began at %d, want %d to %d", i, begin, want, want+2)
			}
		}
	})
}

// Every way for a stream to end that is followed by another try, and by no other harm.
func TestStreamEndsThatReconnect(t *testing.T) {
	for name, end := range map[string]error{
		"OK":                          nil,
		"canceled":                    status.Error(codes.Canceled, "as a participant's SIGTERM looks"),
		"unavailable":                 status.Error(codes.Unavailable, ""),
		"internal":                    status.Error(codes.Internal, "redacted"),
		"unknown":                     errors.New("?"),
		"deadline_exceeded":           status.Error(codes.DeadlineExceeded, ""),
		"aborted_due_to_shutdown":     apiError(codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN", 10*time.Second),
		"service_not_running":         apiError(codes.Unavailable, "SERVICE_NOT_RUNNING", time.Second),
		"index_db_sql_transient":      apiError(codes.Unavailable, "INDEX_DB_SQL_TRANSIENT_ERROR", time.Second),
		"access_token_expired":        apiError(codes.Aborted, "ACCESS_TOKEN_EXPIRED", time.Second),
		"stale_stream_authorization":  apiError(codes.Aborted, "STALE_STREAM_AUTHORIZATION", 0),
		"server_overloaded":           apiError(codes.Aborted, "SERVER_OVERLOADED", time.Second),
		"heap_memory_over_limit":      apiError(codes.Aborted, "HEAP_MEMORY_OVER_LIMIT", time.Second),
		"accessed_after_ledger_end":   apiError(codes.FailedPrecondition, "PARTICIPANT_DATA_ACCESSED_AFTER_LEDGER_END", -1),
		"offset_out_of_range":         apiError(codes.FailedPrecondition, "OFFSET_OUT_OF_RANGE", -1),
		"a reason of a later version": apiError(codes.Aborted, "SOMETHING_NEW", time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))))
				p.onTail = func(n int, _ *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
					if n > 1 {
						return errDefault
					}
					p.add(tx(13, create(cid(2))))
					if err := s.Send(tx(13, create(cid(2)))); err != nil {
						return err
					}
					return end
				}
				r := start(t, testConfig(), p, &memorySink{})
				r.await(t, "reconnected", func(st Status) bool { return st.Reconnects == 1 && proven(15)(st) })
				p.add(tx(16, create(cid(3))))
				r.await(t, "going on", proven(18))
				wantContracts(t, r.sink, cid(1), cid(2), cid(3))
				if got := r.sink.reasons(); len(got) != 1 {
					t.Errorf("seeds: %v, want the first alone", got)
				}
			})
		})
	}
}

// A03: each call takes its token when it is made. The token at the start is no good any more when the snapshot is read.
func TestTokenIsTakenForEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		began := time.Now()
		source := tokenFunc(func() string {
			if time.Since(began) < time.Minute {
				return "T1"
			}
			return "T2"
		})
		var got string
		p.onSnapshot = func(_ int, _ *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer) error {
			got = authorization(s.Context())
			return errDefault
		}
		sink := &slowSink{memorySink: &memorySink{}, wait: 90 * time.Second}
		f := New(testConfig(), p.serve(t, grpc.WithPerRPCCredentials(bearer{source: source})), sink)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = f.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		r := &running{Follower: f, p: p, sink: sink.memorySink}
		r.await(t, "live", proven(12))
		if got != "Bearer T2" {
			t.Errorf("the snapshot's token was %q, want T2", got)
		}
	})
}

// slowSink is a sink whose database takes its time to answer where the index stands.
type slowSink struct {
	*memorySink
	wait time.Duration
}

func (s *slowSink) Position(ctx context.Context) (ledger.Position, bool, error) {
	select {
	case <-time.After(s.wait):
	case <-ctx.Done():
		return ledger.Position{}, false, ctx.Err()
	}
	return s.memorySink.Position(ctx)
}

// seededSink is a sink that stands at an offset with some contracts.
func seededSink(p *participant, offset int64, contracts ...string) *memorySink {
	m := &memorySink{seeded: true, active: make(map[string]ledger.Contract)}
	m.pos = ledger.Position{ParticipantID: p.id, Offset: offset}
	for _, c := range contracts {
		m.active[c+"@"+synchronizer] = ledger.Contract{ContractID: c, SynchronizerID: synchronizer}
	}
	return m
}

// A04: the index's offset was pruned: not live, one new generation from a snapshot at ledger end, and the rows whose archive was
// missed are gone. It must not matter whether the participant's pruning offset or the stream's error tells it.
func TestPrunedPastTheIndex(t *testing.T) {
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprintf("told=%t", told), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(579663, create(cid(1))), tx(579700, create(cid(2))))
				if told {
					p.pruned = 579663
				} else {
					fail := func(n int, r *ledgerapi.GetUpdatesRequest, _ ledgerapi.UpdateService_GetUpdatesServer) error {
						if r.BeginExclusive < 579663 {
							return apiError(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED", -1)
						}
						return errDefault
					}
					p.onTail, p.onRange = fail, fail
				}
				sink := seededSink(p, 552026, cid(77))
				var states []State
				r := start(t, testConfig(), p, sink, WithMetrics(Metrics{State: func(s State) { states = append(states, s) }}))
				r.await(t, "built anew", proven(579702))
				wantContracts(t, sink, cid(1), cid(2))
				if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedPruned}, sink.reasons()); diff != "" {
					t.Errorf("seeds (-want +got):\n%s", diff)
				}
				_ = r.stop()
				if i := slices.Index(states, StateLive); i != len(states)-2 {
					t.Errorf("states %v: live before the new generation was in place", states)
				}
			})
		})
	}
}

// A06: another participant behind the same address: its offsets mean nothing, however plausible they are.
func TestAnotherParticipant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))), tx(20, create(cid(2))))
		sink := seededSink(p, 15, cid(99))
		p.id = "another::1220ff"
		r := start(t, testConfig(), p, sink)
		st := r.await(t, "built anew", proven(22))
		wantContracts(t, sink, cid(1), cid(2))
		if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedAnotherParticipant}, sink.reasons()); diff != "" {
			t.Errorf("seeds (-want +got):\n%s", diff)
		}
		if st.ParticipantID != "another::1220ff" {
			t.Errorf("participant %q", st.ParticipantID)
		}
	})
}

// A06: behind a balancer, a connection that stays can come to lead to another participant. Nothing that it says is taken for the old
// one's.
func TestAnotherParticipantOnTheSameConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		p.noTail = true
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(12))
		p.change(func() {
			p.id = "another::1220ff"
			p.log = []*ledgerapi.GetUpdatesResponse{tx(9, create(cid(7))), tx(14, create(cid(8)))}
			p.end = 20
		})
		r.await(t, "built anew", proven(20))
		wantContracts(t, r.sink, cid(7), cid(8))
		if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedFirst, ledger.SeedAnotherParticipant}, r.sink.reasons()); diff != "" {
			t.Errorf("seeds (-want +got):\n%s", diff)
		}
		for _, b := range r.sink.batches {
			t.Errorf("applied after %d: %+v", b.After, b.Updates)
		}
	})
}

// Rights that were taken away: the stream is cut, the next session's first calls find out, and the follower waits.
func TestRightsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		may := true
		p.onCheck = func(int, *ledgerapi.GetUpdatesRequest, ledgerapi.UpdateService_GetUpdatesServer) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if !may {
				return status.Error(codes.PermissionDenied, "redacted")
			}
			return errDefault
		}
		p.onTail = func(n int, _ *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
			if n > 1 {
				return errDefault
			}
			p.change(func() { may = false })
			return apiError(codes.Aborted, "STALE_STREAM_AUTHORIZATION", 0)
		}
		r := start(t, testConfig(), p, &memorySink{})
		st := r.await(t, "waiting", func(st Status) bool { return st.State == StateWaiting })
		if !strings.Contains(st.Detail, "CanReadAs") {
			t.Errorf("detail %q", st.Detail)
		}
		p.change(func() { may = true })
		r.await(t, "back", func(st Status) bool { return st.State == StateLive })
	})
}

// A27: the participant was restored to an earlier state. Nothing in memory remembers the higher offset: what comes after the new
// snapshot applies.
func TestRewound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(1000, create(cid(1))))
		sink := &memorySink{}
		r := start(t, testConfig(), p, sink)
		r.await(t, "live at 1002", proven(1002))
		p.change(func() {
			p.log = nil
			p.end = 0
		})
		p.add(tx(48, create(cid(50))))
		r.await(t, "built anew", func(st Status) bool { return st.Reseeds == 2 && st.ProvenOffset == 50 })
		for i := range 10 {
			p.add(tx(int64(51+i), create(cid(51+i))))
		}
		r.await(t, "51 to 60", proven2(62))
		want := []string{cid(50)}
		for i := range 10 {
			want = append(want, cid(51+i))
		}
		wantContracts(t, sink, want...)
		if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedFirst, ledger.SeedRewound}, sink.reasons()); diff != "" {
			t.Errorf("seeds (-want +got):\n%s", diff)
		}
	})
}

// proven2 waits for exactly an offset: proofs of a former history may be higher.
func proven2(offset int64) func(Status) bool {
	return func(st Status) bool { return st.State == StateLive && st.ProvenOffset == offset }
}

// A restored participant that has grown past the index in the meantime: only the update at the index's offset tells.
func TestDiverged(t *testing.T) {
	for name, there := range map[string]*ledgerapi.GetUpdatesResponse{
		"another update there": tx(10, create(cid(7))),
		"nothing there":        tx(9, create(cid(7))),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(there, tx(30, create(cid(8))))
				sink := seededSink(p, 12, cid(1))
				sink.pos.UpdateOffset, sink.pos.UpdateID = 10, "1220ours"
				r := start(t, testConfig(), p, sink)
				r.await(t, "built anew", proven(32))
				wantContracts(t, sink, cid(7), cid(8))
				if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedDiverged}, sink.reasons()); diff != "" {
					t.Errorf("seeds (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The same update there, or a pruned one: the index is taken up where it is.
func TestResumes(t *testing.T) {
	for _, pruned := range []int64{0, 10} {
		t.Run(fmt.Sprintf("pruned=%d", pruned), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))), tx(30, create(cid(8))))
				p.pruned = pruned
				sink := seededSink(p, 12, cid(1))
				sink.pos.UpdateOffset, sink.pos.UpdateID = 10, p.log[0].GetTransaction().UpdateId
				r := start(t, testConfig(), p, sink)
				r.await(t, "resumed", proven(32))
				wantContracts(t, sink, cid(1), cid(8))
				if got := sink.reasons(); len(got) != 0 {
					t.Errorf("seeds %v, want none", got)
				}
			})
		})
	}
}

// A07: what happens while the snapshot is read is not lost, and not doubled.
func TestSnapshotHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(98, create(cid(1)), create(cid(2)), create(cid(3))))
		p.onSnapshot = func(_ int, r *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer) error {
			if r.ActiveAtOffset != 100 {
				return status.Errorf(codes.Internal, "asked at %d", r.ActiveAtOffset)
			}
			for i, c := range p.activeAt(100) {
				if i == 1 {
					// The archive of contracts that the snapshot delivers later.
					p.add(tx(101, archive(cid(1)), archive(cid(3)), create(cid(4))), tx(102, create(cid(5))))
				}
				if err := s.Send(&ledgerapi.GetActiveContractsResponse{
					ContractEntry: &ledgerapi.GetActiveContractsResponse_ActiveContract{ActiveContract: &ledgerapi.ActiveContract{
						CreatedEvent: c, SynchronizerId: synchronizer,
					}},
				}); err != nil {
					return err
				}
			}
			return nil
		}
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "handed over", proven(104))
		wantContracts(t, r.sink, cid(2), cid(4), cid(5))
	})
}

// A08: an empty snapshot is right on an empty ledger only, and asked of no other.
func TestEmptyLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live at 0", proven(0))
		if n := p.counted("snapshot"); n != 0 {
			t.Errorf("asked for a snapshot of an empty ledger %d times", n)
		}
		p.add(tx(5, create(cid(1))))
		r.await(t, "followed", proven(7))
		wantContracts(t, r.sink, cid(1))
	})
}

// A snapshot that breaks off is dropped and read again, at the ledger end of then.
func TestBrokenSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1)), create(cid(2))))
		p.onSnapshot = func(n int, r *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer) error {
			if n > 3 {
				return errDefault
			}
			_ = s.Send(&ledgerapi.GetActiveContractsResponse{
				ContractEntry: &ledgerapi.GetActiveContractsResponse_ActiveContract{ActiveContract: &ledgerapi.ActiveContract{
					CreatedEvent: nodeEvent(cid(1), ""), SynchronizerId: synchronizer,
				}},
			})
			p.add(tx(r.ActiveAtOffset+1, create(cid(10+n))))
			switch n {
			case 1:
				return apiError(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED", -1)
			case 2:
				return status.Error(codes.Unavailable, "")
			default:
				<-s.Context().Done() // nothing more, for ever
				return s.Context().Err()
			}
		}
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", func(st Status) bool { return st.State == StateLive })
		wantContracts(t, r.sink, cid(1), cid(2), cid(11), cid(12), cid(13))
		if r.sink.aborts != 3 {
			t.Errorf("%d generations dropped, want 3", r.sink.aborts)
		}
	})
}

// A11: a slow index and a stream that is cut: no hole, and no stream begins past what was committed.
func TestSlowSinkAndCutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(1, create(cid(0))))
		p.onTail = func(n int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
			if n > 1 {
				return errDefault
			}
			for i := range 1000 {
				// Three apart, as on a participant: whoever proves the ledger end after one has not proven the next.
				u := tx(int64(10+3*i), create(cid(i+1)))
				p.add(u)
				if i < 500 {
					if err := s.Send(u); err != nil {
						return err
					}
				}
			}
			return status.Error(codes.Unavailable, "cut")
		}
		cfg := testConfig()
		cfg.BatchUpdates = 1
		sink := &memorySink{}
		committed := int64(3)
		sink.onApply = func(b ledger.Batch) error {
			<-time.After(200 * time.Millisecond)
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, begin := range p.begins {
				if begin > committed {
					t.Errorf("a stream began at %d, with %d committed", begin, committed)
				}
			}
			committed = b.Through
			return nil
		}
		r := start(t, cfg, p, sink)
		r.await(t, "all", proven(10+3*999+2))
		if got := len(r.sink.contracts()); got != 1001 {
			t.Errorf("%d contracts, want 1001", got)
		}
	})
}

// A12: what happens while nobody listens is there afterwards.
func TestGapDuringBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(1, create(cid(0))))
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(3))
		down := true
		refuse := func(context.Context, int) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if down {
				return status.Error(codes.Unavailable, "down")
			}
			return nil
		}
		p.change(func() { p.onID, p.onEnd = refuse, refuse })
		r.await(t, "gone", func(st Status) bool { return st.State == StateReconnecting })
		for i := range 50 {
			p.add(tx(int64(10+i), create(cid(i+1))))
		}
		p.change(func() { down = false })
		r.await(t, "back", proven(61))
		if got := len(r.sink.contracts()); got != 51 {
			t.Errorf("%d contracts, want 51", got)
		}
	})
}

// The index's own failures: nothing is lost, and what is not known is asked.
func TestSinkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		sink := &memorySink{}
		failures := 3
		sink.onApply = func(ledger.Batch) error {
			if failures--; failures >= 0 {
				return errors.New("the database is away")
			}
			return nil
		}
		r := start(t, testConfig(), p, sink)
		r.await(t, "live", proven(12))
		p.add(tx(13, create(cid(2))))
		r.await(t, "applied", proven(15))
		wantContracts(t, sink, cid(1), cid(2))
		if st := r.Status(); st.Reconnects != 3 {
			t.Errorf("%d reconnects, want 3", st.Reconnects)
		}
	})
}

// A commit whose outcome is unknown and that did happen: the next session asks where the index stands.
func TestUnknownCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		sink := &lossySink{memorySink: &memorySink{}}
		f := New(testConfig(), p.serve(t), sink)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = f.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		r := &running{Follower: f, p: p, sink: sink.memorySink}
		r.await(t, "live", proven(12))
		p.add(tx(13, create(cid(2))), tx(16, archive(cid(1))))
		r.await(t, "applied", proven(18))
		wantContracts(t, sink.memorySink, cid(2))
		if sink.unknown != 0 {
			t.Error("an update was applied twice")
		}
	})
}

// lossySink loses the answer of its first Apply, after it did it.
type lossySink struct {
	*memorySink
	lost bool
}

func (s *lossySink) Apply(ctx context.Context, b ledger.Batch) error {
	if err := s.memorySink.Apply(ctx, b); err != nil {
		return err
	}
	if !s.lost {
		s.lost = true
		return io.ErrUnexpectedEOF
	}
	return nil
}

// A lost lease ends Run, at once.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		sink := &memorySink{onApply: func(ledger.Batch) error { return fmt.Errorf("commit: %w", ledger.ErrLostLease) }}
		f := New(testConfig(), p.serve(t), sink)
		p.onTail = func(int, *ledgerapi.GetUpdatesRequest, ledgerapi.UpdateService_GetUpdatesServer) error {
			p.add(tx(5, create(cid(1))))
			return errDefault
		}
		if err := f.Run(t.Context()); !errors.Is(err, ledger.ErrLostLease) {
			t.Errorf("Run returned %v", err)
		}
	})
}
