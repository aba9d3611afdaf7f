// Package guardtest holds every store of package replayguard to one contract. A store's tests say how to make one on a clock
// that stands still, and call [Run].
//
// The outcomes are asked of a Config over the store, since that is what the contract speaks of; the reservation layer is
// asked of the store. Last comes a random comparison with a model that keeps everything, scans everything and is written
// from the contract and not from a store.
package guardtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// Start is the second at which a Guard's clock begins.
const Start = 1_800_000_000

// Guard is a store under test.
type Guard struct {
	Store replayguard.Store
	// Clock is what the store goes by.
	Clock *Clock
	// Forget makes the store forget what has expired, as a sweeper does.
	Forget func(t testing.TB)
	// Check fails the test where the store's own invariants do not hold.
	Check func(t testing.TB)
}

// Maker makes an empty store with the limits, on a clock that stands at Start.
type Maker func(t testing.TB, limits replayguard.Limits) Guard

// Clock stands still until it is set.
type Clock struct {
	mu    sync.Mutex
	now   time.Time
	onSet func(now time.Time)
}

// NewClock makes a clock that stands at Start. onSet is told of each new time, also of the first; it may be nil.
func NewClock(onSet func(now time.Time)) *Clock {
	c := &Clock{onSet: onSet}
	c.Set(Start)
	return c
}

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Unix is the clock's time in seconds since 1970.
func (c *Clock) Unix() int64 { return c.Now().Unix() }

// Set sets the clock to a second, and 0.9 s more: whole seconds count, so that must not matter.
func (c *Clock) Set(second int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = time.Unix(second, 900_000_000)
	if c.onSet != nil {
		c.onSet(c.now)
	}
}

// Advance moves the clock by seconds, which may be negative.
func (c *Clock) Advance(seconds int64) { c.Set(c.Unix() + seconds) }

// Run runs the whole suite.
func Run(t *testing.T, newGuard Maker) {
	t.Run("Outcomes", func(t *testing.T) { TestOutcomes(t, newGuard) })
	t.Run("Clock", func(t *testing.T) { TestClock(t, newGuard) })
	t.Run("Expiries", func(t *testing.T) { TestExpiries(t, newGuard) })
	t.Run("Reservations", func(t *testing.T) { TestReservations(t, newGuard) })
	t.Run("Quotas", func(t *testing.T) { TestQuotas(t, newGuard) })
	t.Run("Model", func(t *testing.T) { TestModel(t, newGuard) })
}

// ID makes the n-th of many ids.
func ID(n int) replayguard.ID {
	return replayguard.Subject{Operator: "operator", Consumer: "consumer", Digest: [32]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}}.ID()
}

// unlimited are limits that leave only the capacity.
func unlimited(maxEntries int) replayguard.Limits {
	return replayguard.Limits{
		MaxEntries: maxEntries,
		Quota:      replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit},
	}
}

// WantRefusal fails the test unless err is a refusal for the reason and cause, and returns it.
func WantRefusal(t testing.TB, err error, reason replayguard.Reason, cause replayguard.Cause) *replayguard.Refusal {
	t.Helper()
	var refusal *replayguard.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want a refusal: %v, %v", err, reason, cause)
	}
	if refusal.Reason != reason || refusal.Cause != cause {
		t.Fatalf("got %v, %v (%v), want %v, %v", refusal.Reason, refusal.Cause, err, reason, cause)
	}
	return refusal
}

// reserve reserves an id of client for seconds from now, and fails the test where it is refused.
func (g Guard) reserve(t testing.TB, client string, id int, seconds int64) replayguard.Reservation {
	t.Helper()
	r, err := g.tryReserve(t, client, id, seconds)
	if err != nil {
		t.Fatalf("reserving id %d for %s: %v", id, client, err)
	}
	return r
}

func (g Guard) tryReserve(t testing.TB, client string, id int, seconds int64) (replayguard.Reservation, error) {
	return g.Store.Reserve(ctx(t), replayguard.Request{Client: client, ID: ID(id), ExpiresAt: g.Clock.Unix() + seconds})
}

func (g Guard) wantLive(t testing.TB, want int) {
	t.Helper()
	stats, err := g.Store.Stats(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if stats.Live != want {
		t.Fatalf("%d live reservations, want %d", stats.Live, want)
	}
}

// ctx is the test's context, which outlives the test for what its cleanup calls.
func ctx(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }

// made makes a guard whose invariants are checked when the test ends.
func made(t testing.TB, newGuard Maker, limits replayguard.Limits) Guard {
	t.Helper()
	g := newGuard(t, limits)
	t.Cleanup(func() {
		if !t.Failed() {
			g.Check(t)
		}
	})
	return g
}

// system is a Config over a store, with a submit function that counts.
type system struct {
	Guard
	replayguard.Config
	mu  sync.Mutex
	ran map[replayguard.ID]int
	// submit is called by the submit function, if set.
	submit func(ctx context.Context, m replayguard.Message) error
}

var (
	errRejected = errors.New("rejected by the ledger")
	errForged   = errors.New("not signed by a quorum")
)

// newSystem makes a Config whose authenticator refuses messages with the payload "forged".
func newSystem(t testing.TB, newGuard Maker, limits replayguard.Limits, options ...replayguard.Option) *system {
	t.Helper()
	s := &system{Guard: made(t, newGuard, limits), ran: map[replayguard.ID]int{}}
	s.Config = s.config(options...)
	return s
}

// config makes another Config over the same store.
func (s *system) config(options ...replayguard.Option) replayguard.Config {
	return replayguard.NewConfig(append([]replayguard.Option{
		replayguard.WithStore(s.Store),
		replayguard.WithClock(s.Clock.Now),
		replayguard.WithSubmitMessageFunc(s.count),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(authenticate)),
	}, options...)...)
}

func authenticate(_ context.Context, m replayguard.Message) error {
	if m.Payload == "forged" {
		return errForged
	}
	return nil
}

func (s *system) count(ctx context.Context, m replayguard.Message, _ replayguard.Reservation) error {
	s.mu.Lock()
	s.ran[m.ID]++
	s.mu.Unlock()
	if s.submit != nil {
		return s.submit(ctx, m)
	}
	return nil
}

func (s *system) message(id int, seconds int64) replayguard.Message {
	return replayguard.Message{ID: ID(id), ExpiresAt: s.Clock.Unix() + seconds}
}

// accepted submits and wants the submit function to have run and accepted.
func (s *system) accepted(t testing.TB, m replayguard.Message) {
	t.Helper()
	if ran, err := s.Connection("").Submit(ctx(t), m); !ran || err != nil {
		t.Fatalf("submitting %v: ran %v, error %v; want it accepted", m.ID, ran, err)
	}
}

// refused submits and wants a refusal.
func (s *system) refused(t testing.TB, m replayguard.Message, reason replayguard.Reason, cause replayguard.Cause) *replayguard.Refusal {
	t.Helper()
	return s.refusedBy(t, s.Config, m, reason, cause)
}

func (s *system) refusedBy(t testing.TB, cfg replayguard.Config, m replayguard.Message, reason replayguard.Reason, cause replayguard.Cause) *replayguard.Refusal {
	t.Helper()
	before := s.runs(m.ID)
	ran, err := cfg.Connection("").Submit(ctx(t), m)
	if ran || s.runs(m.ID) != before {
		t.Fatalf("the submit function ran for %v", m.ID)
	}
	return WantRefusal(t, err, reason, cause)
}

func (s *system) runs(id replayguard.ID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ran[id]
}

func (s *system) wantRuns(t testing.TB, id, want int) {
	t.Helper()
	if got := s.runs(ID(id)); got != want {
		t.Fatalf("the submit function ran %d times for id %d, want %d", got, id, want)
	}
}

// inParallel calls f n times at once and waits.
func inParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	all.Wait()
}

func clientName(i int) string { return fmt.Sprintf("client %d", i) }

// NoOverlaps fails the test where two of an id's reservations overlap, or a later one has not the greater token.
func NoOverlaps(t testing.TB, id replayguard.ID, reservations []replayguard.Reservation) {
	t.Helper()
	slices.SortFunc(reservations, func(a, b replayguard.Reservation) int { return cmp.Compare(a.Token, b.Token) })
	for i := 1; i < len(reservations); i++ {
		earlier, later := reservations[i-1], reservations[i]
		if later.ReservedAt <= earlier.ExpiresAt || later.Token == earlier.Token {
			t.Errorf("%v: %+v overlaps %+v", id, later, earlier)
		}
	}
}
