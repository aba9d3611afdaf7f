package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// readAll calls every reading method once.
func readAll(ctx context.Context, s *Store) error {
	return errors.Join(
		s.Ping(ctx),
		second(s.HistorySince(ctx)),
		third(s.Position(ctx)),
		third(s.Consumed(ctx, scope1, digest(1), 1<<40)),
		third(s.EndOf(ctx, id("node 1"), 1<<40)),
		third(s.UpdateByID(ctx, "u")),
		second(s.NodeLives(ctx, scope1, wormhole.Prefix{}, 1<<40, 10)),
		second(s.Covering(ctx, scope1, digest(1))),
		second(s.Load(ctx, func(*index.Entry) error { return nil })),
	)
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

// replaceRoot is a delta from the place that puts a new root in the old one's place.
func replaceRoot(from ledger.Position, old *index.Entry) (index.Delta, *index.Entry) {
	to := position(from.Offset + 1)
	e := node(scope1, fmt.Sprintf("root at %d", to.Offset), "", to.Offset, digest(int(to.Offset)))
	return index.Delta{From: from, To: to, Put: []*index.Entry{e}, Remove: []index.Key{old.Key()},
		Ended:    []index.Ended{{ContractID: old.ContractID, How: index.Superseded, Offset: to.Offset, AfterOffset: to.Offset - 1, Successors: []string{e.ContractID}, Scope: &scope1}},
		Consumes: []index.Consume{{Scope: scope1, Digest: digest(int(to.Offset)), Offset: to.Offset, UpdateID: to.UpdateID, RecordTime: to.RecordTime}},
		Updates:  []index.UpdateRef{{Offset: to.Offset, UpdateID: to.UpdateID, RecordTime: to.RecordTime}}}, e
}

// Behind a pooler in transaction mode with two server connections, a writer and seven readers do a thousand things without one
// error, in every mode that names no statements; a mode that names them fails, so the pooler is as nasty as it should be (D01).
func TestBehindTransactionPooler(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode, func(t *testing.T) {
			ctx := t.Context()
			database := pgtest.Database(t)
			url := withParam(newPooler(t, database, 2).url, "default_query_exec_mode="+mode)
			s := writer(t, url) // migrates through the pooler, too
			root := node(scope1, "root", "", 10)
			seedWith(t, s, first(10), index.SeedEnd{}, append(samples(), root)...)

			writing, done := context.WithCancel(ctx)
			var readers sync.WaitGroup
			for range 7 {
				readers.Go(func() {
					for i := 0; writing.Err() == nil || i < 10; i++ {
						if err := readAll(ctx, s); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			_, loaded := load(t, s)
			at := loaded.Position
			for range 60 {
				d, next := replaceRoot(at, root)
				if err := s.Commit(ctx, d); err != nil {
					t.Fatal(err)
				}
				at, root = d.To, next
			}
			done()
			readers.Wait()
			seedWith(t, s, ledger.SeedStart{ParticipantID: participant, Offset: 90, Reason: ledger.SeedPruned}, index.SeedEnd{}, samples()...)
			if err := errors.Join(s.Sweep(ctx), s.Prune(ctx, ledgerStart)); err != nil {
				t.Error(err)
			}
			entries, _ := load(t, open(t, withParam(database, "default_query_exec_mode="+mode)))
			if diff := cmp.Diff(byKey(samples()...), entries, compare); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("cache_statement", func(t *testing.T) {
		url := newPooler(t, pgtest.Database(t), 2).url
		s, err := Open(t.Context(), Config{URL: withParam(url, "default_query_exec_mode=cache_statement"), Migrate: true, Logger: quiet})
		for i := 0; err == nil && i < 10; i++ {
			err = readAll(t.Context(), s)
			if errors.Is(err, ErrEmpty) {
				err = nil
			}
		}
		if s != nil {
			s.Close()
		}
		if err == nil {
			t.Error("named statements work behind this pooler: it is not in transaction mode")
		}
	})
}

// Many more callers than connections: each call takes one connection and gives it back, so all finish, even with a single one (D06).
func TestPoolCantLockUp(t *testing.T) {
	for _, conns := range []int32{1, 4} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			s := openWith(t, Config{URL: pgtest.Database(t), MaxConns: conns, noSweeper: true})
			lease(t, s, "writer")
			root := node(scope1, "root", "", 10)
			seedWith(t, s, first(10), index.SeedEnd{}, root)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			barrier := make(chan struct{})
			var callers sync.WaitGroup
			for range 16 {
				callers.Go(func() {
					<-barrier
					if err := readAll(ctx, s); err != nil {
						t.Error(err)
					}
				})
			}
			callers.Go(func() {
				<-barrier
				d, _ := replaceRoot(ledger.Position{ParticipantID: participant, Offset: 10}, root)
				if err := s.Commit(ctx, d); err != nil {
					t.Error(err)
				}
				seed, err := s.BeginSeed(ctx, first(12))
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(seed.Add(ctx, samples()), second(seed.Ended(ctx, []string{"x"})), seed.Abort(ctx), s.Sweep(ctx), s.Prune(ctx, ledgerStart)); err != nil {
					t.Error(err)
				}
			})
			close(barrier)
			callers.Wait()
			if got := s.Stat().MaxConns(); got != conns {
				t.Errorf("the pool has %d connections, want %d", got, conns)
			}
		})
	}
}

// A server that becomes a black hole: calls end at their deadlines, and soon after it comes back they succeed (D07).
func TestBlackHole(t *testing.T) {
	w := newWire(t, pgtest.Database(t))
	s := openWith(t, Config{URL: w.url, MaxConns: 4, Timeout: 3 * time.Second, ConnectTimeout: time.Second})
	lease(t, s, "writer")
	root := node(scope1, "root", "", 10)
	seedWith(t, s, first(10), index.SeedEnd{}, root)
	var warm sync.WaitGroup
	for range 8 {
		warm.Go(func() {
			if err := readAll(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	warm.Wait()

	w.freeze()
	const deadline, slack = 500 * time.Millisecond, 2 * time.Second // slack for a busy machine
	timed := func(what string, limit time.Duration, call func(ctx context.Context) error, ctx context.Context) {
		t.Helper()
		began := time.Now()
		if err := call(ctx); err == nil {
			t.Errorf("%s succeeded through a black hole", what)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("%s took %s, want at most %s", what, took, limit)
		}
	}
	var calls sync.WaitGroup
	for range 6 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			timed("a read with a deadline", deadline+slack, s.Ping, ctx)
		})
	}
	calls.Go(func() {
		timed("a commit without a deadline", 3*time.Second+slack, func(ctx context.Context) error {
			d, _ := replaceRoot(ledger.Position{ParticipantID: participant, Offset: 10}, root)
			return s.Commit(ctx, d)
		}, t.Context())
	})
	calls.Wait()

	w.heal()
	t.Logf("recovered %s after the server came back", awaitPing(t, s))
	if pos, ok, err := s.Position(t.Context()); err != nil || !ok || pos.Offset != 10 {
		t.Errorf("position after the outage: %+v, %v, %v", pos, ok, err)
	}
}

// awaitPing calls until the database answers, which is to take at most 10 s, each call with a deadline of a second.
func awaitPing(t *testing.T, s *Store) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Ping(ctx)
		cancel()
		took := time.Since(began)
		if err == nil {
			return took.Round(time.Millisecond)
		}
		if took > 10*time.Second {
			t.Fatalf("not recovered after 10 s: %v", err)
		}
	}
}

// All connections of the pool are dead, and nothing tells it: it finds out one by one, and recovers in time (D07).
func TestForgottenConnections(t *testing.T) {
	w := newWire(t, pgtest.Database(t))
	s := openWith(t, Config{URL: w.url, MaxConns: 4, noSweeper: true})
	lease(t, s, "writer")
	seedWith(t, s, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
	held := make([]*pgxpool.Conn, 4)
	for i := range held {
		var err error
		if held[i], err = s.pool.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range held {
		conn.Release()
	}
	w.lose()
	t.Logf("recovered after %s", awaitPing(t, s))
}

// The database server is killed at random moments under a writer that never stops: after each restart the index is what some
// whole commit left, namely the last that was answered or the one that was under way (A10).
func TestServerIsKilled(t *testing.T) {
	kills := 4
	if os.Getenv("DISCLOSURED_SOAK") == "1" {
		kills = 100
	}
	server := pgtest.Server(t, pgserver.Options{})
	if err := server.CreateDatabase(t.Context(), "killed", pgserver.DatabaseOptions{}); err != nil {
		t.Fatal(err)
	}
	s := writer(t, server.DSN("killed"))
	r := rand.New(rand.NewPCG(1, 2))
	root := node(scope1, "root", "", 10)
	seedWith(t, s, first(10), index.SeedEnd{}, root)
	commits := 0
	for range kills {
		_, loaded := load(t, s)
		at := loaded.Position
		killed := make(chan error, 1)
		victim := commits + r.IntN(40)
		for {
			d, next := replaceRoot(at, root)
			for i := range 16 { // the size of a split
				d.Put = append(d.Put, node(scope1, fmt.Sprintf("child %d at %d", i, d.To.Offset), fmt.Sprintf("%x", i), d.To.Offset))
			}
			if commits == victim {
				go func() { killed <- server.Kill() }()
			}
			if err := s.Commit(t.Context(), d); err != nil {
				if commits < victim {
					t.Fatal(err)
				}
				if err := <-killed; err != nil {
					t.Fatal(err)
				}
				if err := server.Restart(t.Context(), pgserver.Immediate); err != nil {
					t.Fatal(err)
				}
				pos, ok, perr := s.Position(t.Context())
				if perr != nil || !ok || pos != at && pos != d.To {
					t.Fatalf("after a kill: at %+v, %v, %v; want %+v or %+v (commit: %v)", pos, ok, perr, at, d.To, err)
				}
				if pos == d.To {
					root = next
				}
				break
			}
			commits++
			at, root = d.To, next
		}
		entries, loaded := load(t, s)
		if want := 1 + 16*int(loaded.Position.Offset-10); len(entries) != want || entries[root.Key()] == nil {
			t.Fatalf("after a kill, at %d: %d entries, want %d", loaded.Position.Offset, len(entries), want)
		}
		for _, name := range []string{"consume", "ended", "applied_update"} {
			if n := countRows(t, s, name); n != int(loaded.Position.Offset-10) {
				t.Fatalf("after a kill, at %d: %d rows of %s", loaded.Position.Offset, n, name)
			}
		}
	}
	t.Logf("%d kills, %d commits answered", kills, commits)
}
