package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

// TestContract holds the store to the suite of all stores.
func TestContract(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 20)
	open(t, pool, replayguard.Limits{})
	guardtest.Run(t, func(t testing.TB, limits replayguard.Limits) guardtest.Guard {
		empty(t, pool)
		clock := stopClock(t, pool)
		s := open(t, pool, limits)
		return guardtest.Guard{
			Store: s,
			Clock: clock,
			Forget: func(t testing.TB) {
				if err := s.Sweep(context.WithoutCancel(t.Context())); err != nil {
					t.Fatal(err)
				}
			},
			Check: func(t testing.TB) { checkInvariants(t, pool) },
		}
	})
}

// TestExecModes: the ways to talk to the server that poolers may force work as well.
func TestExecModes(t *testing.T) {
	url := pgtest.Database(t)
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			pool := newPool(t, withParam(url, "default_query_exec_mode="+mode), 1) // one connection is enough for everything
			s := open(t, pool, replayguard.Limits{AllowRelease: true})
			empty(t, pool)
			request := replayguard.Request{Client: `a'li"ce\`, ID: guardtest.ID(1), ExpiresAt: time.Now().Unix() + 600, Key: replayguard.NewKey("key")}
			r, err := s.Reserve(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := s.Reserve(t.Context(), request); err != nil || again.Token != r.Token || !again.Again {
				t.Fatalf("got %+v, %v", again, err)
			}
			claim := replayguard.Claim{Client: request.Client, ID: r.ID, Token: r.Token}
			if extended, err := s.Extend(t.Context(), claim, r.ExpiresAt+1); err != nil || extended.ExpiresAt != r.ExpiresAt+1 {
				t.Fatalf("got %+v, %v", extended, err)
			}
			if err := s.Release(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			if r, err = s.Reserve(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			claim.Token = r.Token
			if settled, err := s.Settle(t.Context(), claim, replayguard.Consumed); err != nil || settled.Outcome != replayguard.Consumed {
				t.Fatalf("got %+v, %v", settled, err)
			}
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if stats, err := s.Stats(t.Context()); err != nil || stats.Live != 1 || stats.Clients != 1 {
				t.Fatalf("got %+v, %v", stats, err)
			}
			checkInvariants(t, pool)
		})
	}
}

// TestDatabaseClock: without a test's clock, time is this moment's.
func TestDatabaseClock(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 1)
	open(t, pool, replayguard.Limits{})
	before := time.Now().Unix()
	now := query[int64](t, pool, `SELECT replayguard.now_seconds()`)
	if after := time.Now().Unix(); now < before || now > after {
		t.Errorf("the database says %d between %d and %d", now, before, after)
	}
}

// TestReplicas (G21): two processes on one database, one id, a thousand at once: it runs once.
func TestReplicas(t *testing.T) {
	url := pgtest.Database(t)
	var ran, refused atomic.Int64
	var configs []replayguard.Config
	for range 2 {
		configs = append(configs, replayguard.NewConfig(
			replayguard.WithStore(open(t, newPool(t, url, 10), replayguard.Limits{})),
			replayguard.WithSubmitMessageFunc(func(context.Context, replayguard.Message, replayguard.Reservation) error {
				ran.Add(1)
				return nil
			}),
			replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(func(context.Context, replayguard.Message) error { return nil }))))
	}
	m := replayguard.Message{ID: guardtest.ID(1), ExpiresAt: time.Now().Unix() + 600}
	const n = 1000
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			did, err := configs[i%2].Connection(fmt.Sprint(i%16)).Submit(t.Context(), m)
			var refusal *replayguard.Refusal
			if errors.As(err, &refusal) && refusal.Reason == replayguard.AlreadyReceived {
				refused.Add(1)
			} else if err != nil || !did {
				t.Error(did, err)
			}
		})
	}
	all.Wait()
	if ran.Load() != 1 || refused.Load() != n-1 {
		t.Errorf("%d ran and %d were refused, want 1 and %d", ran.Load(), refused.Load(), n-1)
	}
}

// TestSessions: 40 sessions of several clients reserve, settle, extend and sweep over few ids, in a store that is often
// full, while time passes: no two reservations of an id overlap, and tokens grow.
func TestSessions(t *testing.T) {
	url := pgtest.Database(t)
	pool := newPool(t, url, 40)
	limits := replayguard.Limits{MaxEntries: 8, Quota: replayguard.Quota{MaxLive: 3, PerMinute: 600, Burst: 50, LapseCost: 1}}
	s := open(t, pool, limits)
	clock := stopClock(t, pool)
	var mu sync.Mutex
	history := map[replayguard.ID][]replayguard.Reservation{}
	extended := map[replayguard.Token]int64{}
	counts := map[replayguard.Cause]int{}
	var all sync.WaitGroup
	for session := range 40 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(session), 7))
			client := fmt.Sprint("client ", session%6)
			for range 60 {
				switch random.IntN(40) {
				case 0:
					clock.Advance(1)
				case 1:
					if err := s.Sweep(t.Context()); err != nil {
						t.Error(err)
					}
				}
				id := guardtest.ID(random.IntN(12))
				r, err := s.Reserve(t.Context(), replayguard.Request{Client: client, ID: id, ExpiresAt: clock.Unix() + 1 + random.Int64N(4)})
				var refusal *replayguard.Refusal
				if errors.As(err, &refusal) {
					mu.Lock()
					counts[refusal.Cause]++
					mu.Unlock()
					continue
				} else if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				counts["reserved"]++
				history[id] = append(history[id], r)
				mu.Unlock()
				claim := replayguard.Claim{Client: client, ID: id, Token: r.Token}
				switch random.IntN(3) {
				case 0:
					_, err = s.Settle(t.Context(), claim, replayguard.Committed)
				case 1:
					var longer replayguard.Reservation
					if longer, err = s.Extend(t.Context(), claim, r.ExpiresAt+2); err == nil {
						mu.Lock()
						extended[r.Token] = longer.ExpiresAt
						mu.Unlock()
					}
				}
				if err != nil && !errors.Is(err, replayguard.ErrNoReservation) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Log(counts)
	for id, reservations := range history {
		for i, r := range reservations {
			if until, ok := extended[r.Token]; ok {
				reservations[i].ExpiresAt = until
			}
		}
		guardtest.NoOverlaps(t, id, reservations)
	}
	checkInvariants(t, pool)
}

// TestTokensAreDrawnUnderTheLock: a call that began first, and waited while the id was reserved and lapsed, has the greater token.
func TestTokensAreDrawnUnderTheLock(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 4)
	s := open(t, pool, replayguard.Limits{MaxEntries: 8})
	clock := stopClock(t, pool)
	id := guardtest.ID(1)

	between, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer between.Rollback(context.WithoutCancel(t.Context())) // after a commit it does nothing
	if _, err := between.Exec(t.Context(), `SELECT FROM replayguard.pool FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	type end struct {
		r   replayguard.Reservation
		err error
	}
	waited := make(chan end, 1)
	go func() {
		r, err := s.Reserve(context.WithoutCancel(t.Context()), replayguard.Request{Client: "alice", ID: id, ExpiresAt: clock.Unix() + 100})
		waited <- end{r, err}
	}()
	for waiting := 0; waiting == 0; {
		select {
		case e := <-waited:
			t.Fatalf("it did not wait for the pool's row: %+v", e)
		default:
			waiting = query[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		}
	}
	var answer string
	var token replayguard.Token
	if err := between.QueryRow(t.Context(), `SELECT o_answer, o_token FROM replayguard.reserve('bob', $1, NULL, $2, 8, 1800, 8, 600, 600, 2)`, id[:], clock.Unix()+1).Scan(&answer, &token); err != nil || answer != "reserved" {
		t.Fatalf("%s, %v", answer, err)
	}
	clock.Advance(2)
	if err := between.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := <-waited; e.err != nil || e.r.Token <= token || !e.r.TookOver {
		t.Errorf("%+v, %v; want a token greater than %d", e.r, e.err, token)
	}
	checkInvariants(t, pool)
}

// TestCapacityUnderConcurrency: many clients that fill the store at once fill it exactly.
func TestCapacityUnderConcurrency(t *testing.T) {
	const capacity, clients = 25, 40
	pool := newPool(t, pgtest.Database(t), clients)
	s := open(t, pool, replayguard.Limits{MaxEntries: capacity})
	clock := stopClock(t, pool)
	for round := range 3 { // in the later rounds, what fills the store has expired
		var admitted, full atomic.Int64
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for j := range 2 {
					_, err := s.Reserve(t.Context(), replayguard.Request{Client: fmt.Sprint(i), ID: guardtest.ID(1000*round + 10*i + j), ExpiresAt: clock.Unix() + 5})
					var refusal *replayguard.Refusal
					switch {
					case err == nil:
						admitted.Add(1)
					case errors.As(err, &refusal) && refusal.Cause == replayguard.CauseCapacity:
						full.Add(1)
					default:
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if admitted.Load() != capacity || full.Load() != 2*clients-capacity {
			t.Errorf("round %d: %d admitted, %d refused as full; want %d and %d", round, admitted.Load(), full.Load(), capacity, 2*clients-capacity)
		}
		checkInvariants(t, pool)
		clock.Advance(6)
	}
}

// TestSweep: batches, clients and the horizon.
func TestSweep(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 4)
	s := open(t, pool, replayguard.Limits{MaxEntries: 10_000, Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}})
	clock := stopClock(t, pool)
	const expired = 2*sweepBatch + 17
	exec(t, pool, fmt.Sprintf(`
		INSERT INTO replayguard.reservation (id, client, token, reserved_at, expires_at, outcome)
		SELECT sha256(n::text::bytea), 'client ' || n %% 700, nextval('replayguard.token'), %[1]d, %[1]d + n %% 60, 0 FROM generate_series(1, %[2]d) n;
		INSERT INTO replayguard.client (name, units, filled_at, lapses_charged) SELECT DISTINCT client, 0, %[1]d, 0 FROM replayguard.reservation;
		INSERT INTO replayguard.holding (client, live, lapses) SELECT client, count(*), 0 FROM replayguard.reservation GROUP BY client;
		UPDATE replayguard.pool SET retained = %[2]d`, guardtest.Start, expired))
	if _, err := s.Reserve(t.Context(), replayguard.Request{Client: "client 1", ID: guardtest.ID(1), ExpiresAt: guardtest.Start + 1800}); err != nil {
		t.Fatal(err)
	}
	checkInvariants(t, pool)
	clock.Set(guardtest.Start + 60)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Live != 1 || stats.Clients != 700 || stats.Lapsed != expired {
		t.Fatalf("got %+v, %v", stats, err)
	}
	if rows := query[int64](t, pool, `SELECT count(*) FROM replayguard.reservation`); rows != 1 {
		t.Errorf("%d rows are left, want 1", rows)
	}
	if horizon := query[int64](t, pool, `SELECT horizon FROM replayguard.pool`); horizon != guardtest.Start+60 {
		t.Errorf("the horizon is %d s after the start, want 60", horizon-guardtest.Start)
	}
	checkInvariants(t, pool)

	// A client that is idle is forgotten; one that holds something is not.
	clock.Set(guardtest.Start + 1800)
	exec(t, pool, `UPDATE replayguard.client SET filled_at = 0`)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if name := query[string](t, pool, `SELECT string_agg(name, ',') FROM replayguard.client`); name != "client 1" {
		t.Errorf("left are %q", name)
	}
	checkInvariants(t, pool)
}

// TestSweeperRuns: a store sweeps by itself, and ends with Close.
func TestSweeperRuns(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 4)
	open(t, pool, replayguard.Limits{})
	clock := stopClock(t, pool)
	s, err := Open(t.Context(), pool, Config{SweepEvery: time.Millisecond, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Reserve(t.Context(), replayguard.Request{ID: guardtest.ID(1), ExpiresAt: guardtest.Start}); err != nil {
		t.Fatal(err)
	}
	clock.Advance(1)
	for query[int64](t, pool, `SELECT count(*) FROM replayguard.reservation`) > 0 {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s.Close() // twice does nothing
}

// TestOtherDefaultTransactions: the database or the role may have other transactions by default, at which statements would not see what others
// committed meanwhile, or could write nothing. The store begins its own then.
func TestOtherDefaultTransactions(t *testing.T) {
	url := pgtest.Database(t)
	plain := newPool(t, url, 1)
	open(t, plain, replayguard.Limits{})
	for _, defaults := range []string{"default_transaction_isolation=repeatable%20read", "default_transaction_isolation=serializable", "default_transaction_read_only=on"} {
		t.Run(defaults, func(t *testing.T) {
			empty(t, plain)
			s := open(t, newPool(t, withParam(url, defaults), 8), replayguard.Limits{MaxEntries: 50, AllowRelease: true})
			var reserved, full atomic.Int32
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					for n := range 10 {
						_, err := s.Reserve(t.Context(), replayguard.Request{Client: fmt.Sprint("client", i), ID: guardtest.ID(10*i + n), ExpiresAt: time.Now().Unix() + 600})
						var refusal *replayguard.Refusal
						switch {
						case err == nil:
							reserved.Add(1)
						case errors.As(err, &refusal) && refusal.Cause == replayguard.CauseCapacity:
							full.Add(1)
						default:
							t.Error(err)
						}
					}
				})
			}
			callers.Wait()
			if reserved.Load() != 50 || full.Load() != 30 {
				t.Errorf("%d reserved, %d found it full; want 50, 30", reserved.Load(), full.Load())
			}
			checkInvariants(t, plain)
			r, err := s.Reserve(t.Context(), replayguard.Request{Client: "alice", ID: guardtest.ID(1000), ExpiresAt: time.Now().Unix() + 600})
			if err == nil {
				t.Fatalf("reserved beyond the capacity: %+v", r)
			}
			if err := s.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRefusedFirstCallsMakeNobodyKnown: who never reserved anything is not remembered, whatever it was refused for.
func TestRefusedFirstCallsMakeNobodyKnown(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 2)
	open(t, pool, replayguard.Limits{})
	clock := stopClock(t, pool)
	s := open(t, pool, replayguard.Limits{MaxEntries: 1})
	now := clock.Now().Unix()
	reserve := func(client string, id int, expiresAt int64) error {
		_, err := s.Reserve(t.Context(), replayguard.Request{Client: client, ID: guardtest.ID(id), ExpiresAt: expiresAt})
		return err
	}
	if err := reserve("alice", 1, now+10); err != nil {
		t.Fatal(err)
	}
	refused := func(client string, id int, expiresAt int64, cause replayguard.Cause) {
		t.Helper()
		var refusal *replayguard.Refusal
		if err := reserve(client, id, expiresAt); !errors.As(err, &refusal) || refusal.Cause != cause {
			t.Errorf("%s: %v, want %s", client, err, cause)
		}
		if known := query[int64](t, pool, `SELECT count(*) FROM replayguard.client`); known != 1 {
			t.Errorf("%s: %d clients are known after it, want alice alone", client, known)
		}
		checkInvariants(t, pool)
	}
	refused("expired", 2, now-1, replayguard.CauseExpiry)
	refused("far", 2, now+1<<40, replayguard.CauseExpiry)
	refused("copied", 1, now+10, replayguard.CauseDuplicate)
	refused("late", 2, now+10, replayguard.CauseCapacity)
	clock.Advance(11)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.Advance(-5)
	refused("early", 2, now+20, replayguard.CauseClockBack)
	clock.Advance(6)
	if err := reserve("bob", 2, now+20); err != nil {
		t.Error(err)
	}
}

// TestForgettingIsBounded: a client comes back to many reservations that have expired. Its call forgets some of them, since all others wait for
// it, and counts the rest as forgotten.
func TestForgettingIsBounded(t *testing.T) {
	const expired = 2500
	pool := newPool(t, pgtest.Database(t), 2)
	open(t, pool, replayguard.Limits{})
	clock := stopClock(t, pool)
	quota := replayguard.Quota{MaxLive: expired, PerMinute: 60, Burst: expired + 2, LapseCost: 1}
	s := open(t, pool, replayguard.Limits{MaxEntries: 10 * expired, Quota: quota})
	now := clock.Now().Unix()
	request := func(id int) replayguard.Request {
		return replayguard.Request{Client: "alice", ID: guardtest.ID(id), ExpiresAt: now + 30}
	}
	if _, err := s.Reserve(t.Context(), request(1)); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, fmt.Sprintf(`INSERT INTO replayguard.reservation (id, client, key, token, reserved_at, expires_at, outcome)
		SELECT sha256(i::text::bytea), 'alice', null, -i, %d, %d, 0 FROM generate_series(1, %d) i`, now, now+1, expired-1))
	exec(t, pool, fmt.Sprintf(`UPDATE replayguard.holding SET live = live + %[1]d; UPDATE replayguard.pool SET retained = retained + %[1]d`, expired-1))
	_, err := s.Reserve(t.Context(), request(2))
	guardtest.WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaLive)
	clock.Advance(2)
	if _, err := s.Reserve(t.Context(), request(2)); err != nil {
		t.Fatalf("what has expired holds no place: %v", err)
	}
	checkInvariants(t, pool)
	if left := query[int64](t, pool, `SELECT count(*) FROM replayguard.reservation`); left != expired+1-1000 {
		t.Errorf("%d are left, want %d: a thousand forgotten by one call", left, expired+1-1000)
	}
	// The lapses are paid for at once, and once: of expired+2 units, two are spent and expired-1 charged, and two seconds gave two (of the burst).
	for range 3 {
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkInvariants(t, pool)
	}
	if units := query[int64](t, pool, `SELECT units FROM replayguard.client`); units != 60*(expired+2-(expired-1)-1) {
		t.Errorf("%d units are left, want %d", units, 60*(expired+2-(expired-1)-1))
	}
	if _, err := s.Reserve(t.Context(), request(3)); err != nil {
		t.Error(err)
	}
	checkInvariants(t, pool)
	if units := query[int64](t, pool, `SELECT units FROM replayguard.client`); units != 60*(expired+2-(expired-1)-2) {
		t.Errorf("after another: %d units are left, want %d", units, 60*(expired+2-(expired-1)-2))
	}
}

// TestDurability: a reservation's commit waits for the disk, as the session wants it; a refusal's does not.
func TestDurability(t *testing.T) {
	pool := newPool(t, pgtest.Database(t), 1)
	open(t, pool, replayguard.Limits{})
	for _, test := range []struct{ session, want string }{{"on", "on"}, {"local", "local"}, {"off", "off"}} {
		empty(t, pool)
		exec(t, pool, `SET synchronous_commit = `+test.session)
		for _, want := range []string{test.want, "off"} { // reserved, then a duplicate
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got string
			_, err = tx.Exec(t.Context(), `SELECT replayguard.reserve('', decode(repeat('ab', 32), 'hex'), null, replayguard.now_seconds() + 60, 10, 60, 10, 600, 10, 1)`)
			if err == nil {
				err = tx.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&got)
			}
			if err == nil {
				err = tx.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("session with synchronous_commit = %s: %s at the commit, want %s", test.session, got, want)
			}
		}
	}
}
