package client_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/wormhole"
	"github.com/disclosured/disclosured/replayguard"
)

// watchedStore is a store that remembers what its reservations were ended with.
type watchedStore struct {
	replayguard.Store
	mu     sync.Mutex
	ends   []string
	failed error // of every call, where set
}

func (s *watchedStore) fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *watchedStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

func (s *watchedStore) Reserve(ctx context.Context, r replayguard.Request) (replayguard.Reservation, error) {
	if err := s.fault(); err != nil {
		return replayguard.Reservation{}, err
	}
	return s.Store.Reserve(ctx, r)
}

func (s *watchedStore) Settle(ctx context.Context, c replayguard.Claim, outcome replayguard.Outcome) (replayguard.Reservation, error) {
	if err := s.fault(); err != nil {
		return replayguard.Reservation{}, err
	}
	r, err := s.Store.Settle(ctx, c, outcome)
	s.note(outcome.String(), err)
	return r, err
}

func (s *watchedStore) Release(ctx context.Context, c replayguard.Claim) error {
	err := s.Store.Release(ctx, c)
	s.note("released", err)
	return err
}

func (s *watchedStore) note(end string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		end += " failed"
	}
	s.ends = append(s.ends, end)
}

func (s *watchedStore) wantEnds(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.ends, want) {
		t.Errorf("reservations were ended by %q, want %q", s.ends, want)
	}
}

func (s *watchedStore) wantLive(t *testing.T, want int) {
	t.Helper()
	stats, err := s.Store.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if stats.Live != want {
		t.Errorf("%d reservations are live, want %d", stats.Live, want)
	}
}

// roomy are limits that leave the capacity alone.
func roomy(entries int) replayguard.Limits {
	return replayguard.Limits{MaxEntries: entries, Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}}
}

// guardKind is a way to have a guard: each test of the suite runs over all.
type guardKind struct {
	name string
	// make makes handles of n relayers on one guard with the limits.
	make func(w *world, limits replayguard.Limits, n int, o client.GuardOptions) ([]client.Guard, *watchedStore)
}

var guardKinds = []guardKind{
	{"local", func(w *world, limits replayguard.Limits, n int, o client.GuardOptions) ([]client.Guard, *watchedStore) {
		store := &watchedStore{Store: replayguard.NewMemory(limits, nil)}
		g, err := client.NewLocalGuard(client.LocalGuardOptions{GuardOptions: o, Store: store})
		if err != nil {
			w.t.Fatal(err)
		}
		return slices.Repeat([]client.Guard{g}, n), store
	}},
	{"remote", func(w *world, limits replayguard.Limits, n int, o client.GuardOptions) ([]client.Guard, *watchedStore) {
		s, store := w.serveGuard(limits, nil)
		w.waitReady(s.address)
		var guards []client.Guard
		for range n {
			guards = append(guards, w.remote(o, s.address))
		}
		return guards, store
	}},
}

// serveGuard starts a service that reserves for an anonymous client.
func (w *world) serveGuard(limits replayguard.Limits, change func(*api.Config, *api.Deps)) (*served, *watchedStore) {
	w.t.Helper()
	store := &watchedStore{Store: replayguard.NewMemory(limits, nil)}
	s := w.serveWith(func(c *api.Config, d *api.Deps) {
		d.Guard = store
		c.Guard.AllowAnonymous, c.Guard.AllowDigest = true, true
		c.Limits.MaxCalls, c.Limits.MaxCallsPerCaller = 10_000, 10_000
		c.DrainTime = 100 * time.Millisecond
		if change != nil {
			change(c, d)
		}
	})
	return s, store
}

// remote is a guard of the services at the addresses.
func (w *world) remote(o client.GuardOptions, addresses ...string) *client.RemoteGuard {
	w.t.Helper()
	return w.remoteWith(client.RemoteGuardOptions{GuardOptions: o, Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}, addresses...)
}

func (w *world) remoteWith(o client.RemoteGuardOptions, addresses ...string) *client.RemoteGuard {
	w.t.Helper()
	g, err := client.NewRemoteGuard(addresses, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := g.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return g
}

// submission is what a guard is asked about.
func (w *world) submission(vaa *wormhole.VAA) client.Submission {
	return client.Submission{Subject: replayguard.Subject{Operator: w.world.Operator, Consumer: w.app.Consumer, Digest: vaa.Digest()}, VAA: vaa.Encode()}
}

// admit asks, and fails the test unless the submission ran as it was decided.
func admit(t *testing.T, g client.Guard, s client.Submission, want client.Decision, ending client.Ending) client.Admission {
	t.Helper()
	runs := 0
	a, err := g.Admit(t.Context(), s, func(_ context.Context, given client.Admission) client.Ending {
		runs++
		if given.Decision != want {
			t.Errorf("the submission runs %s", given.Decision)
		}
		return ending
	})
	if a.Decision != want || runs > 1 || (runs == 1) != (want == client.Admitted || want == client.Unguarded) || (err != nil) != (want == client.Refused) {
		t.Fatalf("%s (%+v), error %v, after %d runs; want %s", a.Decision, a, err, runs, want)
	}
	if err != nil && !errors.Is(err, client.ErrNotAdmitted) || (want == client.Unguarded) != (a.Unguarded != nil) {
		t.Fatalf("%+v, error %v", a, err)
	}
	return a
}

// events collects what is observed.
type events struct {
	mu  sync.Mutex
	all []client.Event
	// on is told each, where set.
	on func(client.Event)
}

func (e *events) observe(event client.Event) {
	e.mu.Lock()
	e.all = append(e.all, event)
	e.mu.Unlock()
	if e.on != nil {
		e.on(event)
	}
}

func (e *events) count(kind client.EventKind) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.Kind == kind {
			n++
		}
	}
	return n
}

// TestGuards is the contract of Guard, over each kind.
func TestGuards(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	for _, kind := range guardKinds {
		for _, row := range []struct {
			name string
			test func(*testing.T, *world, guardKind)
		}{
			{"admitted, and settled as it ended", guardAdmits},
			{"somebody has it: already received, until when", guardDuplicate},
			{"an unknown end leaves it to its expiry", guardUnknown},
			{"what never left is given up, where that is allowed", guardReleases},
			{"full: refused, with when to try again", guardFull},
			{"over the quota: refused", guardQuota},
			{"limits that make no sense: refused, and not hidden", guardMisconfigured},
			{"an expiry that is past, or too far: refused", guardExpiry},
			{"a store that fails: unguarded", guardStoreFails},
			{"a panic goes through and leaves it to its expiry", guardPanics},
			{"runtime.Goexit goes through and leaves it to its expiry", guardGoexit},
			{"the caller gone before: refused, nothing reserved", guardCancelledBefore},
			{"the caller gone meanwhile: settled all the same", guardCancelledMeanwhile},
			{"a long submission is extended", guardExtends},
			{"8 relayers, 64 goroutines, one message: one runs", guardRace},
			{"another digest is another message", guardOthers},
		} {
			t.Run(kind.name+"/"+row.name, func(t *testing.T) {
				of := *w
				of.t = t
				row.test(t, &of, kind)
			})
		}
	}
}

// one is a guard of the kind for one relayer.
func (k guardKind) one(w *world, limits replayguard.Limits, o client.GuardOptions) (client.Guard, *watchedStore) {
	w.t.Helper()
	guards, store := k.make(w, limits, 1, o)
	return guards[0], store
}

func guardAdmits(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{TTL: time.Minute})
	begun := time.Now()
	for _, ending := range []client.Ending{client.EndingCommitted, client.EndingConsumed} {
		a := admit(t, g, w.submission(w.vaa()), client.Admitted, ending)
		if a.Token <= 0 || a.Held != nil || a.Again || a.ExpiresAt.Before(begun.Add(59*time.Second)) || a.ExpiresAt.After(time.Now().Add(time.Minute)) {
			t.Errorf("admission %+v", a)
		}
	}
	store.wantEnds(t, "committed", "consumed")
	store.wantLive(t, 2)
}

func guardDuplicate(t *testing.T, w *world, kind guardKind) {
	guards, store := kind.make(w, roomy(10), 2, client.GuardOptions{})
	s := w.submission(w.vaa())
	s.ExpiresAt = time.Now().Add(time.Minute)
	first, err := guards[0].Admit(t.Context(), s, func(context.Context, client.Admission) client.Ending {
		for _, g := range guards {
			later := s
			later.ExpiresAt = s.ExpiresAt.Add(time.Minute) // which does not extend it
			if a := admit(t, g, later, client.AlreadyReceived, 0); !a.ExpiresAt.Equal(s.ExpiresAt.Truncate(time.Second)) {
				t.Errorf("reserved until %s, want %s", a.ExpiresAt, s.ExpiresAt)
			}
		}
		return client.EndingCommitted
	})
	if err != nil || first.Decision != client.Admitted {
		t.Fatalf("%+v, %v", first, err)
	}
	admit(t, guards[1], s, client.AlreadyReceived, 0) // a settled one stays until its expiry
	store.wantEnds(t, "committed")
}

func guardUnknown(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{Release: true})
	s := w.submission(w.vaa())
	if a := admit(t, g, s, client.Admitted, client.EndingUnknown); a.Held != nil {
		t.Errorf("%+v", a)
	}
	store.wantEnds(t)
	admit(t, g, s, client.AlreadyReceived, 0)
}

func guardReleases(t *testing.T, w *world, kind guardKind) {
	limits := roomy(10)
	for _, allowed := range []bool{false, true} {
		for _, asked := range []bool{false, true} {
			limits.AllowRelease = allowed
			g, _ := kind.one(w, limits, client.GuardOptions{Release: asked})
			s := w.submission(w.vaa())
			if a := admit(t, g, s, client.Admitted, client.EndingNeverLeft); a.Held != nil {
				t.Errorf("allowed %v, asked %v: %v", allowed, asked, a.Held)
			}
			want := client.AlreadyReceived
			if allowed && asked {
				want = client.Admitted
			}
			admit(t, g, s, want, client.EndingUnknown)
		}
	}
}

func guardFull(t *testing.T, w *world, kind guardKind) {
	g, _ := kind.one(w, roomy(1), client.GuardOptions{TTL: 10 * time.Second})
	first, second := w.submission(w.vaa()), w.submission(w.vaa())
	admit(t, g, first, client.Admitted, client.EndingUnknown)
	if a := admit(t, g, second, client.Refused, 0); a.Reason != "CAPACITY" || a.RetryAfter <= 0 || a.RetryAfter > 12*time.Second {
		t.Errorf("%+v", a)
	}
	admit(t, g, first, client.AlreadyReceived, 0) // a duplicate is one in a full guard too
}

func guardQuota(t *testing.T, w *world, kind guardKind) {
	g, _ := kind.one(w, replayguard.Limits{MaxEntries: 8, Quota: replayguard.Quota{PerMinute: 6, Burst: 1}}, client.GuardOptions{})
	admit(t, g, w.submission(w.vaa()), client.Admitted, client.EndingUnknown)
	if a := admit(t, g, w.submission(w.vaa()), client.Refused, 0); a.Reason != "QUOTA" || a.RetryAfter <= 0 || a.RetryAfter > 10*time.Second {
		t.Errorf("%+v", a)
	}
}

func guardMisconfigured(t *testing.T, w *world, kind guardKind) {
	g, _ := kind.one(w, replayguard.Limits{MaxEntries: -1}, client.GuardOptions{})
	if a := admit(t, g, w.submission(w.vaa()), client.Refused, 0); a.Reason != "CONFIGURATION" {
		t.Errorf("%+v", a)
	}
}

func guardExpiry(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	for _, c := range []struct {
		expiresAt time.Time
		want      string
	}{
		{time.Now().Add(-2 * time.Second), "EXPIRED"},
		{time.Unix(0, 0), "EXPIRY_INVALID"},
		{time.Unix(-1, 0), "EXPIRY_INVALID"},
		{time.Now().Add(replayguard.DefaultMaxTTL + time.Minute), "EXPIRY_INVALID"},
	} {
		s := w.submission(w.vaa())
		s.ExpiresAt = c.expiresAt
		if a := admit(t, g, s, client.Refused, 0); a.Reason != c.want {
			t.Errorf("%s: %+v, want %s", c.expiresAt, a, c.want)
		}
	}
	store.wantLive(t, 0)
}

func guardStoreFails(t *testing.T, w *world, kind guardKind) {
	var seen events
	g, store := kind.one(w, roomy(10), client.GuardOptions{Observe: seen.observe})
	before := seen.count(client.EventUnguarded)
	s := w.submission(w.vaa())
	store.fail(errors.New("the database is gone"))
	admit(t, g, s, client.Unguarded, client.EndingCommitted)
	if seen.count(client.EventUnguarded) != before+1 || seen.count(client.EventSettled) != 0 {
		t.Errorf("observed %+v", seen.all)
	}
	store.fail(nil)
	admit(t, g, s, client.Admitted, client.EndingCommitted)
	store.wantEnds(t, "committed")

	// It fails between the reservation and the settling: that is said, and is all.
	a, err := g.Admit(t.Context(), w.submission(w.vaa()), func(context.Context, client.Admission) client.Ending {
		store.fail(errors.New("the database is gone"))
		return client.EndingCommitted
	})
	if err != nil || a.Decision != client.Admitted || a.Held == nil {
		t.Errorf("%+v, %v", a, err)
	}
}

func guardPanics(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	s := w.submission(w.vaa())
	func() {
		defer func() {
			if got := recover(); got != "on purpose" {
				t.Errorf("recovered %v", got)
			}
		}()
		_, _ = g.Admit(t.Context(), s, func(context.Context, client.Admission) client.Ending { panic("on purpose") })
		t.Error("the panic did not go through")
	}()
	store.wantEnds(t)
	admit(t, g, s, client.AlreadyReceived, 0)
}

func guardGoexit(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	s := w.submission(w.vaa())
	var leaving sync.WaitGroup
	leaving.Go(func() {
		_, _ = g.Admit(context.Background(), s, func(context.Context, client.Admission) client.Ending {
			runtime.Goexit()
			return client.EndingCommitted
		})
	})
	leaving.Wait()
	store.wantEnds(t)
	admit(t, g, s, client.AlreadyReceived, 0)
}

var errLeft = errors.New("the caller has left")

func guardCancelledBefore(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLeft)
	a, err := g.Admit(ctx, w.submission(w.vaa()), func(context.Context, client.Admission) client.Ending {
		t.Error("it was submitted")
		return 0
	})
	if a.Decision != client.Refused || a.Reason != "CANCELLED" || !errors.Is(err, errLeft) || !errors.Is(err, client.ErrNotAdmitted) {
		t.Errorf("%+v, %v", a, err)
	}
	store.wantLive(t, 0)
}

func guardCancelledMeanwhile(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	a, err := g.Admit(ctx, w.submission(w.vaa()), func(ctx context.Context, _ client.Admission) client.Ending {
		cancel(errLeft)
		<-ctx.Done() // the caller's end is the submission's
		return client.EndingCommitted
	})
	if err != nil || a.Decision != client.Admitted || a.Held != nil {
		t.Errorf("%+v, %v", a, err)
	}
	store.wantEnds(t, "committed")
}

func guardExtends(t *testing.T, w *world, kind guardKind) {
	extended := make(chan client.Event, 8)
	g, store := kind.one(w, roomy(10), client.GuardOptions{TTL: 2 * time.Second, Observe: func(e client.Event) {
		if e.Kind == client.EventExtended {
			extended <- e
		}
	}})
	s := w.submission(w.vaa())
	var first time.Time
	a, err := g.Admit(t.Context(), s, func(_ context.Context, a client.Admission) client.Ending {
		first = a.ExpiresAt
		for range 3 {
			if e := <-extended; e.Err != nil {
				t.Errorf("extending: %v", e.Err)
			}
		}
		// By now, without its extensions, it would have expired.
		admit(t, g, s, client.AlreadyReceived, 0)
		return client.EndingCommitted
	})
	if err != nil || a.Held != nil || a.ExpiresAt.Before(first.Add(time.Second)) {
		t.Errorf("%+v, %v; first until %s", a, err, first)
	}
	store.wantEnds(t, "committed")
}

func guardRace(t *testing.T, w *world, kind guardKind) {
	guards, store := kind.make(w, roomy(1000), 8, client.GuardOptions{})
	for range 3 {
		s := w.submission(w.vaa())
		var runs, received atomic.Int64
		start := make(chan struct{})
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				<-start
				a, err := guards[i%8].Admit(context.Background(), s, func(context.Context, client.Admission) client.Ending {
					runs.Add(1)
					return client.EndingCommitted
				})
				if err != nil {
					t.Error(err)
				}
				if a.Decision == client.AlreadyReceived {
					received.Add(1)
				}
			})
		}
		close(start)
		all.Wait()
		if runs.Load() != 1 || received.Load() != 63 {
			t.Errorf("%d submissions ran, %d were told that it is received; want 1 and 63", runs.Load(), received.Load())
		}
	}
	store.wantEnds(t, "committed", "committed", "committed")
}

func guardOthers(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	for range 3 {
		admit(t, g, w.submission(w.vaa()), client.Admitted, client.EndingUnknown)
	}
	bare := w.submission(w.vaa())
	bare.VAA = nil
	admit(t, g, bare, client.Admitted, client.EndingUnknown)
	// A VAA under another digest reserves nothing.
	mixed := w.submission(w.vaa())
	mixed.VAA = w.vaa().Encode()
	if kind.name == "local" {
		admit(t, g, mixed, client.Refused, 0)
	}
	store.wantLive(t, 4)
}
