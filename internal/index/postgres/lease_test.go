package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// stoppedClock makes the stores' leases expire by a clock that only the returned function moves.
func stoppedClock(t *testing.T, stores ...*Store) (advance func(time.Duration)) {
	t.Helper()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := stores[0].pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE stopped_clock (now timestamptz)`)
	exec(`INSERT INTO stopped_clock VALUES ($1)`, ledgerStart)
	for _, s := range stores {
		s.clock = `(SELECT now FROM stopped_clock)`
	}
	return func(d time.Duration) {
		t.Helper()
		exec(`UPDATE stopped_clock SET now = now + $1::bigint * interval '1 microsecond'`, d.Microseconds())
	}
}

// never is an after function for leases that do not renew themselves.
func never(time.Duration) <-chan time.Time { return nil }

// Where transactions are read-only by default, all that writes says that it does.
func TestWritingWhereReadingIsTheDefault(t *testing.T) {
	ctx := t.Context()
	url := pgtest.Database(t)
	open(t, url).Close() // migrated
	s := open(t, withParam(url, "default_transaction_read_only=on"))
	l, err := s.AcquireLease(ctx, LeaseOptions{Holder: "a", TTL: time.Minute, after: never})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.renew(ctx); err != nil {
		t.Errorf("renewing: %v", err)
	}
	seedWith(t, s, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
	if err := s.Commit(ctx, index.Delta{From: ledger.Position{ParticipantID: participant, Offset: 10}, To: position(11)}); err != nil {
		t.Errorf("committing: %v", err)
	}
	if err := s.Prune(ctx, at(10)); err != nil {
		t.Errorf("pruning: %v", err)
	}
	if err := l.Release(ctx); err != nil {
		t.Errorf("releasing: %v", err)
	}
}

// A lease whose row somebody deleted is nobody's: the holder is told, and the next one goes on from the epoch that wrote last.
func TestDeletedLease(t *testing.T) {
	ctx := t.Context()
	url := pgtest.Database(t)
	s := open(t, url)
	before := lease(t, s, "a")
	seedWith(t, s, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
	if _, err := s.pool.Exec(ctx, `DELETE FROM disclosured.lease`); err != nil {
		t.Fatal(err)
	}
	if err := before.renew(ctx); !errors.Is(err, ledger.ErrLostLease) {
		t.Fatalf("renewing a lease that is not there: %v", err)
	}
	next := open(t, url)
	after := lease(t, next, "b")
	if after.Epoch() <= before.Epoch() {
		t.Errorf("epochs %d, then %d", before.Epoch(), after.Epoch())
	}
	d := index.Delta{From: ledger.Position{ParticipantID: participant, Offset: 10}, To: position(11)}
	if err := s.Commit(ctx, d); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("a commit of the one before: %v", err)
	}
	load(t, next)
	if err := next.Commit(ctx, d); err != nil {
		t.Errorf("the next holder's commit: %v", err)
	}
}

// A writer that was replaced changes nothing any more, by any method, and is told so.
func TestFencing(t *testing.T) {
	forEachMode(t, func(t *testing.T, url string) {
		ctx := t.Context()
		a, b := open(t, url), open(t, url)
		advance := stoppedClock(t, a, b)
		leaseA, err := a.AcquireLease(ctx, LeaseOptions{Holder: "a", TTL: time.Minute, after: never})
		if err != nil {
			t.Fatal(err)
		}
		seedWith(t, a, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
		half, err := a.BeginSeed(ctx, first(11))
		if err != nil {
			t.Fatal(err)
		}

		_, err = b.AcquireLease(ctx, LeaseOptions{Holder: "b", TTL: time.Minute})
		var held *HeldError
		if !errors.As(err, &held) || held.Holder != "a" || held.For != time.Minute || !errors.Is(err, ErrLeaseHeld) {
			t.Fatalf("taking a held lease: %v", err)
		}
		advance(time.Minute - time.Microsecond)
		if _, err := b.AcquireLease(ctx, LeaseOptions{Holder: "b"}); !errors.Is(err, ErrLeaseHeld) {
			t.Fatalf("taking a lease that holds for another microsecond: %v", err)
		}
		advance(time.Microsecond)
		// Expired is not lost: nobody took it.
		d := index.Delta{From: ledger.Position{ParticipantID: participant, Offset: 10}, To: position(11)}
		if err := a.Commit(ctx, d); err != nil {
			t.Fatalf("commit under a lease that expired and was not taken: %v", err)
		}
		if err := leaseA.renew(ctx); err != nil {
			t.Fatalf("renewing it: %v", err)
		}
		advance(time.Minute)
		leaseB := lease(t, b, "b")
		if leaseB.Epoch() <= leaseA.Epoch() {
			t.Errorf("epochs %d, then %d", leaseA.Epoch(), leaseB.Epoch())
		}

		before, place := load(t, b)
		d = index.Delta{From: position(11), To: position(12), Put: []*index.Entry{node(scope1, "of a", "", 12)}}
		newSeed, seedErr := a.BeginSeed(ctx, first(13))
		if newSeed != nil {
			t.Error("a replaced writer began a seed")
		}
		for what, err := range map[string]error{
			"commit":           a.Commit(ctx, d),
			"commit elsewhere": a.Commit(ctx, index.Delta{From: position(5), To: position(6)}),
			"begin seed":       seedErr,
			"add to a seed":    half.Add(ctx, d.Put),
			"commit a seed":    half.Commit(ctx, index.SeedEnd{Position: position(13)}),
			"abort a seed":     half.Abort(ctx),
			"sweep":            a.Sweep(ctx),
			"prune":            a.Prune(ctx, at(1000)),
			"renew":            leaseA.renew(ctx),
		} {
			if !errors.Is(err, ledger.ErrLostLease) {
				t.Errorf("%s: %v, want ErrLostLease", what, err)
			}
		}
		after, placeAfter := load(t, b)
		if len(after) != len(before) || placeAfter.Position != place.Position || placeAfter.Generation != place.Generation {
			t.Errorf("a replaced writer changed something: %+v, then %+v", place, placeAfter)
		}
		if err := b.Commit(ctx, d); err != nil {
			t.Errorf("the new writer's commit: %v", err)
		}
	})
}

// The renewal notices that the lease is lost, says so, and stops; the store writes nothing without asking the database first.
func TestLostLeaseIsNoticed(t *testing.T) {
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	beat := make(chan time.Time)
	l, err := a.AcquireLease(t.Context(), LeaseOptions{Holder: "same name", after: func(time.Duration) <-chan time.Time { return beat }})
	if err != nil {
		t.Fatal(err)
	}
	lease(t, b, "same name") // a process of the same name goes on at once
	select {
	case <-l.Done():
		t.Fatal("noticed before the first renewal")
	default:
	}
	beat <- time.Time{}
	<-l.Done()
	if !errors.Is(l.Err(), ledger.ErrLostLease) {
		t.Errorf("lease ended with %v", l.Err())
	}
	if err := a.Commit(t.Context(), index.Delta{}); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("commit: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("releasing a lost lease: %v", err)
	}
	var holder string
	if err := b.pool.QueryRow(t.Context(), `SELECT holder FROM disclosured.lease`).Scan(&holder); err != nil || holder != "same name" {
		t.Errorf("holder %q, %v: the release of a lost lease released another's", holder, err)
	}
}

// For an hour, with renewals exactly on their beats and another process asking after each, the lease does not change hands; nor where
// every third renewal only comes through (D05).
func TestLeaseIsSteady(t *testing.T) {
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	advance := stoppedClock(t, a, b)
	const ttl = 15 * time.Second
	beat, beaten := make(chan time.Time), make(chan struct{})
	l, err := a.AcquireLease(t.Context(), LeaseOptions{Holder: "a", TTL: ttl, beaten: beaten, after: func(d time.Duration) <-chan time.Time {
		if d != ttl/3 {
			t.Errorf("renewal after %s, want %s", d, ttl/3)
		}
		return beat
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range time.Hour / (ttl / 3) {
		advance(ttl / 3)
		if _, err := b.AcquireLease(t.Context(), LeaseOptions{Holder: "b", TTL: ttl}); !errors.Is(err, ErrLeaseHeld) {
			t.Fatalf("after %s: %v", (i+1)*ttl/3, err)
		}
		if i < 360 || i%2 == 0 { // in the second half of the hour every other renewal is missed
			beat <- time.Time{}
			<-beaten
		}
	}
	if l.Err() != nil {
		t.Error(l.Err())
	}
}

// A process that waits gets the lease when it is released, and stops waiting when its context ends.
func TestWaitingForLease(t *testing.T) {
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	held := lease(t, a, "a")

	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan time.Time)
	wait := func(time.Duration) <-chan time.Time { return asked }
	result := make(chan error)
	acquire := func() {
		_, err := b.AcquireLease(ctx, LeaseOptions{Holder: "b", Wait: true, after: wait})
		result <- err
	}
	go acquire()
	asked <- time.Time{} // it was told to wait once, and asks again
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with an ended context: %v", err)
	}

	ctx = t.Context()
	go acquire()
	asked <- time.Time{}
	if err := held.Release(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case asked <- time.Time{}:
		if err := <-result; err != nil {
			t.Errorf("after the release: %v", err)
		}
	case err := <-result:
		if err != nil {
			t.Errorf("after the release: %v", err)
		}
	}
	if _, err := a.AcquireLease(ctx, LeaseOptions{Holder: "a"}); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("the former holder asks again: %v", err)
	}
}

func TestLeaseOptionsAreChecked(t *testing.T) {
	s := open(t, pgtest.Database(t))
	for _, opts := range []LeaseOptions{{}, {Holder: "a", TTL: time.Millisecond}, {Holder: "a", TTL: -time.Second}} {
		if _, err := s.AcquireLease(t.Context(), opts); err == nil {
			t.Errorf("%+v was accepted", opts)
		}
	}
	if err := s.Commit(t.Context(), index.Delta{}); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("commit without a lease: %v", err)
	}
	if _, err := s.BeginSeed(t.Context(), first(1)); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("seed without a lease: %v", err)
	}
}

// A new writer waits for a commit that is under way, and begins after it: in no order does the old writer's come later.
func TestTakeoverWaitsForCommit(t *testing.T) {
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	ctx := t.Context()
	lease(t, a, "writer")
	seedWith(t, a, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
	for _, during := range []string{"commit", "seed"} {
		t.Run(during, func(t *testing.T) {
			lease(t, a, "writer")
			_, place := load(t, a)
			epoch, generation := a.epoch.Load(), a.generation.Load()
			moved, goOn := make(chan struct{}), make(chan struct{})
			committed := make(chan error)
			go func() {
				committed <- a.write(ctx, "a slow transaction", func(ctx context.Context, tx pgx.Tx) (err error) {
					if during == "commit" {
						to := place.Position
						to.Offset++
						_, err = a.moveCursor(ctx, tx, epoch, generation, index.Delta{From: place.Position, To: to})
					} else {
						err = fence(ctx, tx, epoch)
					}
					close(moved)
					<-goOn
					return err
				})
			}()
			<-moved
			if err := (&Lease{store: a, epoch: epoch, opts: LeaseOptions{TTL: time.Minute}}).renew(ctx); err != nil {
				t.Fatalf("renewal during a transaction of one's own: %v", err)
			}
			taken := make(chan error)
			go func() {
				_, err := b.AcquireLease(ctx, LeaseOptions{Holder: "writer"})
				taken <- err
			}()
			awaitBlocked(t, a)
			select {
			case err := <-taken:
				t.Fatalf("taken during a transaction: %v", err)
			default:
			}
			close(goOn)
			if err := <-committed; err != nil {
				t.Errorf("the transaction: %v", err)
			}
			if err := <-taken; err != nil {
				t.Errorf("the new writer: %v", err)
			}
		})
	}
}

// awaitBlocked returns when some session of the database waits for a lock.
func awaitBlocked(t *testing.T, s *Store) {
	t.Helper()
	for {
		var blocked bool
		err := s.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`).Scan(&blocked)
		if err != nil {
			t.Fatal(err)
		}
		if blocked {
			return
		}
	}
}

// Two writers fight for the lease and commit as fast as they can: each offset is committed once, in order.
func TestTwoWritersNeverOverlap(t *testing.T) {
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	lease(t, a, "writer")
	seedWith(t, a, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
	const rounds = 10
	type tally struct {
		committed map[int64]bool
		err       error
	}
	results := make(chan tally, 2)
	for i, s := range []*Store{a, b} {
		go func() {
			mine := tally{committed: map[int64]bool{}}
			defer func() { results <- mine }()
			for range rounds {
				if _, mine.err = s.AcquireLease(t.Context(), LeaseOptions{Holder: "writer"}); mine.err != nil {
					return
				}
				loaded, err := s.Load(t.Context(), func(*index.Entry) error { return nil })
				if err != nil {
					mine.err = err
					return
				}
				for {
					to := loaded.Position
					to.Offset++
					e := node(scope1, fmt.Sprintf("%d of %d", to.Offset, i), "", to.Offset)
					err := s.Commit(t.Context(), index.Delta{From: loaded.Position, To: to, Put: []*index.Entry{e}})
					if errors.Is(err, ledger.ErrLostLease) || errors.Is(err, ledger.ErrNotNext) {
						break // ErrNotNext: the other had the lease between our taking it and our Load
					}
					if err != nil {
						mine.err = err
						return
					}
					mine.committed[to.Offset] = true
					loaded.Position = to
					if len(mine.committed)%25 == 0 {
						break
					}
				}
			}
		}()
	}
	one, two := <-results, <-results
	if one.err != nil || two.err != nil {
		t.Fatal(one.err, two.err)
	}
	for offset := range one.committed {
		if two.committed[offset] {
			t.Errorf("offset %d was committed by both", offset)
		}
	}
	entries, place := load(t, a)
	total := len(one.committed) + len(two.committed)
	if place.Position.Offset != 10+int64(total) || len(entries) != 1+total {
		t.Errorf("%d commits and %d were told to have succeeded; the index stands at %d with %d entries", len(one.committed), len(two.committed), place.Position.Offset, len(entries))
	}
}
