package guardtest

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// TestOutcomes has a subtest for each row of the contract's table.
func TestOutcomes(t *testing.T, newGuard Maker) {
	for _, row := range []struct {
		name string
		test func(*testing.T, Maker)
	}{
		{"valid: reserved, submitted once, its result is the caller's", valid},
		{"G01 reserved and unexpired: already received, on the same connection, another, and at the same time", duplicate},
		{"G11 one id at the same time: one runs", simultaneous},
		{"G02 at capacity, new id: other, until an entry expires", full},
		{"at capacity, id reserved: already received", fullDuplicate},
		{"negative capacity: other, after time to live and authentication", negativeCapacity},
		{"time to live invalid at first: its error, nothing reserved", invalidAtFirst},
		{"time to live invalid at submission: its error, nothing reserved", invalidAtSubmission},
		{"G12 authentication fails: its error, nothing reserved, the genuine one passes", forged},
		{"submit function rejects: the reservation stays", rejects},
		{"submit function panics: the panic is the caller's, the reservation stays", panics},
		{"submit function exits its goroutine: the reservation stays", exits},
		{"caller is gone: the reservation stays", callerGone},
		{"caller is gone before the reservation: nothing reserved", callerGoneBefore},
		{"expired, then submitted again: reserved anew", again},
		{"expired entries fill the store, new id: pruned in that reservation", prunedWhenFull},
		{"a copy of a Config shares", copies},
		{"connections of one Config share, whoever their client is", connections},
		{"a Config that lacks a part: refused", incomplete},
		{"G20 equal payloads with different digests: both pass", twins},
	} {
		t.Run(row.name, func(t *testing.T) { row.test(t, newGuard) })
	}
}

func valid(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	s.submit = func(_ context.Context, m replayguard.Message) error {
		if m.Client != "alice" || m.Payload != "payload" {
			t.Errorf("the submit function got %+v", m)
		}
		return errRejected
	}
	m := s.message(1, 60)
	m.Client, m.Payload = "mallory", "payload" // whatever the sender says
	ran, err := s.Connection("alice").Submit(ctx(t), m)
	if !ran || err != errRejected {
		t.Fatalf("ran %v, error %v; want true and the submit function's own error", ran, err)
	}
	s.wantRuns(t, 1, 1)
	s.wantLive(t, 1)
}

func duplicate(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	m := s.message(1, 60)
	c := s.Connection("")
	during := make(chan error, 1)
	s.submit = func(ctx context.Context, m replayguard.Message) error {
		_, err := s.Connection("").Submit(ctx, m) // while the first still runs
		during <- err
		return nil
	}
	if ran, err := c.Submit(ctx(t), m); !ran || err != nil {
		t.Fatalf("ran %v, error %v", ran, err)
	}
	WantRefusal(t, <-during, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	_, err := c.Submit(ctx(t), m)
	if r := WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate); r.ExpiresAt != m.ExpiresAt {
		t.Errorf("reserved until %d, want %d", r.ExpiresAt, m.ExpiresAt)
	}
	// A later expiry is no other message, and does not extend the first one's.
	later := s.message(1, 90)
	if r := s.refused(t, later, replayguard.AlreadyReceived, replayguard.CauseDuplicate); r.ExpiresAt != m.ExpiresAt {
		t.Errorf("a duplicate moved the expiry to %d", r.ExpiresAt)
	}
	s.Clock.Set(m.ExpiresAt)
	s.refused(t, later, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.wantRuns(t, 1, 1)
	s.submit = nil
	s.Clock.Set(m.ExpiresAt + 1)
	s.accepted(t, later)
}

func simultaneous(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	m := s.message(1, 60)
	var ran, refused atomic.Int64
	const n = 1000
	inParallel(n, func(i int) {
		did, err := s.Connection(clientName(i%50)).Submit(ctx(t), m)
		var refusal *replayguard.Refusal
		switch {
		case did && err == nil:
			ran.Add(1)
		case errors.As(err, &refusal) && refusal.Reason == replayguard.AlreadyReceived:
			refused.Add(1)
		default:
			t.Errorf("ran %v, error %v", did, err)
		}
	})
	if ran.Load() != 1 || refused.Load() != n-1 {
		t.Errorf("%d ran and %d were refused, want 1 and %d", ran.Load(), refused.Load(), n-1)
	}
	s.wantRuns(t, 1, 1)
}

func full(t *testing.T, newGuard Maker) {
	const capacity = 5
	s := newSystem(t, newGuard, unlimited(capacity))
	first := s.message(0, 60)
	for i := range capacity {
		s.accepted(t, s.message(i, 60+int64(i)))
	}
	r := s.refused(t, s.message(99, 60), replayguard.Other, replayguard.CauseCapacity)
	if want := 61 * time.Second; r.RetryAfter != want {
		t.Errorf("retry after %v, want %v: the first entry expires then", r.RetryAfter, want)
	}
	// Nothing was evicted for it: neither the first nor the one that expires first.
	for i := range capacity {
		s.refused(t, s.message(i, 60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	}
	s.wantLive(t, capacity)
	s.Clock.Set(first.ExpiresAt) // still live
	s.refused(t, s.message(99, 60), replayguard.Other, replayguard.CauseCapacity)
	s.Clock.Advance(1)
	s.accepted(t, s.message(99, 60))
	s.refused(t, s.message(98, 60), replayguard.Other, replayguard.CauseCapacity)
	s.wantLive(t, capacity)
}

func fullDuplicate(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(1))
	s.accepted(t, s.message(1, 60))
	s.refused(t, s.message(2, 60), replayguard.Other, replayguard.CauseCapacity)
	s.refused(t, s.message(1, 60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
}

func negativeCapacity(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(-1))
	s.refused(t, s.message(1, 60), replayguard.Other, replayguard.CauseConfiguration)
	s.refused(t, s.message(1, -1), replayguard.Expired, replayguard.CauseExpiry)
	forgery := s.message(1, 60)
	forgery.Payload = "forged"
	s.refused(t, forgery, replayguard.NotAuthenticated, replayguard.CauseAuthentication)
	s.wantLive(t, 0)
}

func invalidAtFirst(t *testing.T, newGuard Maker) {
	errBad := errors.New("a bad time")
	var authenticated atomic.Int64
	s := newSystem(t, newGuard, unlimited(10),
		replayguard.WithTTLValidator(validatorFunc(func(replayguard.Message, time.Time) error { return errBad })),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(func(context.Context, replayguard.Message) error {
			authenticated.Add(1)
			return nil
		})))
	r := s.refused(t, s.message(1, 60), replayguard.Invalid, replayguard.CauseExpiry)
	if !errors.Is(r, errBad) {
		t.Errorf("got %v, want the validator's error in it", r)
	}
	if authenticated.Load() != 0 {
		t.Error("a message with an invalid time to live was authenticated")
	}
	s.wantLive(t, 0)
}

func invalidAtSubmission(t *testing.T, newGuard Maker) {
	var s *system
	s = newSystem(t, newGuard, unlimited(10),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(func(context.Context, replayguard.Message) error {
			s.Clock.Advance(61) // it takes its time
			return nil
		})))
	r := s.refused(t, s.message(1, 60), replayguard.Expired, replayguard.CauseExpiry)
	if !errors.Is(r, replayguard.ErrExpired) {
		t.Errorf("got %v, want ErrExpired in it", r)
	}
	s.wantLive(t, 0)

	// It is the validator that is asked again, and not only the store that knows better.
	errLate := errors.New("too late by now")
	asked := 0
	s = newSystem(t, newGuard, unlimited(10), replayguard.WithTTLValidator(validatorFunc(func(replayguard.Message, time.Time) error {
		if asked++; asked == 2 {
			return errLate
		}
		return nil
	})))
	if r := s.refused(t, s.message(1, 60), replayguard.Invalid, replayguard.CauseExpiry); !errors.Is(r, errLate) {
		t.Errorf("got %v, want the validator's error in it", r)
	}
	s.wantLive(t, 0)
}

func forged(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	genuine := s.message(1, 60)
	forgery := genuine
	forgery.Payload = "forged"
	r := s.refused(t, forgery, replayguard.NotAuthenticated, replayguard.CauseAuthentication)
	if !errors.Is(r, errForged) {
		t.Errorf("got %v, want the authenticator's error in it", r)
	}
	s.wantLive(t, 0)
	s.accepted(t, genuine)
	s.refused(t, forgery, replayguard.NotAuthenticated, replayguard.CauseAuthentication)
}

func rejects(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	s.submit = func(context.Context, replayguard.Message) error { return errRejected }
	m := s.message(1, 60)
	if ran, err := s.Connection("").Submit(ctx(t), m); !ran || err != errRejected {
		t.Fatalf("ran %v, error %v", ran, err)
	}
	s.reservedUntilExpiry(t, m)
}

func panics(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	s.submit = func(context.Context, replayguard.Message) error { panic("out of luck") }
	m := s.message(1, 60)
	func() {
		defer func() {
			if got := recover(); got != "out of luck" {
				t.Errorf("recovered %v, want the submit function's panic", got)
			}
		}()
		s.Connection("").Submit(ctx(t), m)
	}()
	s.reservedUntilExpiry(t, m)
}

func exits(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	s.submit = func(context.Context, replayguard.Message) error { runtime.Goexit(); return nil }
	m := s.message(1, 60)
	inParallel(1, func(int) { s.Connection("").Submit(ctx(t), m) })
	s.reservedUntilExpiry(t, m)
}

func callerGone(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	gone, cancel := context.WithCancel(ctx(t))
	s.submit = func(ctx context.Context, _ replayguard.Message) error {
		cancel()
		return ctx.Err()
	}
	m := s.message(1, 60)
	if ran, err := s.Connection("").Submit(gone, m); !ran || !errors.Is(err, context.Canceled) {
		t.Fatalf("ran %v, error %v", ran, err)
	}
	s.reservedUntilExpiry(t, m)
}

func callerGoneBefore(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	gone, cancel := context.WithCancel(ctx(t))
	cancel()
	ran, err := s.Connection("").Submit(gone, s.message(1, 60))
	if ran || !errors.Is(err, context.Canceled) {
		t.Fatalf("ran %v, error %v; want a cancelled context", ran, err)
	}
	s.wantLive(t, 0)
	s.accepted(t, s.message(1, 60))
}

// reservedUntilExpiry wants a message that ran once to be a duplicate to its last second, and admitted one second later.
func (s *system) reservedUntilExpiry(t testing.TB, m replayguard.Message) {
	t.Helper()
	s.submit = nil
	if got := s.runs(m.ID); got != 1 {
		t.Fatalf("the submit function ran %d times, want 1", got)
	}
	s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.Clock.Set(m.ExpiresAt)
	s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.Clock.Advance(1)
	m.ExpiresAt += 60
	s.accepted(t, m)
}

func again(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	for range 3 {
		s.accepted(t, s.message(1, 60))
		s.Clock.Advance(61)
	}
	s.wantRuns(t, 1, 3)
	s.wantLive(t, 0)
}

func prunedWhenFull(t *testing.T, newGuard Maker) {
	const capacity = 5
	s := newSystem(t, newGuard, unlimited(capacity))
	for i := range capacity {
		s.accepted(t, s.message(i, 10))
	}
	s.Clock.Advance(11)
	for i := range capacity {
		s.accepted(t, s.message(100+i, 10))
	}
	s.refused(t, s.message(200, 10), replayguard.Other, replayguard.CauseCapacity)
	s.wantLive(t, capacity)

	// Also where what has expired is others'.
	s.Clock.Advance(11)
	for i := range capacity {
		s.reserve(t, clientName(i), 300+i, 10)
	}
	_, err := s.tryReserve(t, "a newcomer", 400, 10)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseCapacity)
	s.Clock.Advance(11)
	for i := range capacity {
		s.reserve(t, "a newcomer", 400+i, 10)
	}
	s.wantLive(t, capacity)
}

func copies(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	twin := s.Config
	s.accepted(t, s.message(1, 60))
	s.refusedBy(t, twin, s.message(1, 60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	if ran, err := twin.Connection("").Submit(ctx(t), s.message(2, 60)); !ran || err != nil {
		t.Fatalf("ran %v, error %v", ran, err)
	}
	s.refused(t, s.message(2, 60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
}

func connections(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	var ran atomic.Int64
	inParallel(20, func(i int) {
		if did, _ := s.Connection(clientName(i)).Submit(ctx(t), s.message(1, 60)); did {
			ran.Add(1)
		}
	})
	if ran.Load() != 1 {
		t.Errorf("ran %d times, want once", ran.Load())
	}
}

func incomplete(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	var noValidator *replayguard.MaxTTL
	var noStore *replayguard.Memory
	for _, test := range []struct {
		lacks string
		cfg   replayguard.Config
	}{
		{"not made by NewConfig", replayguard.Config{}},
		{"no submit function", s.config(replayguard.WithSubmitMessageFunc(nil))},
		{"no authenticator", s.config(replayguard.WithAuthenticator(nil))},
		{"no authenticator", s.config(replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(nil)))},
		{"no validator", s.config(replayguard.WithTTLValidator(nil))},
		{"no validator", s.config(replayguard.WithTTLValidator(noValidator))},
		{"no store", s.config(replayguard.WithStore(nil))},
		{"no store", s.config(replayguard.WithStore(noStore))},
		{"no clock", s.config(replayguard.WithClock(nil))},
		{"a greatest number of entries", s.config(replayguard.WithMaxReplayEntries(10))},
		{"greatest time to live", s.config(replayguard.WithTTLValidator(replayguard.NewTTLValidator(-time.Second)))},
		{"greatest time to live", s.config(replayguard.WithTTLValidator(replayguard.NewTTLValidator(1)))},
	} {
		r := s.refusedBy(t, test.cfg, s.message(1, 60), replayguard.Other, replayguard.CauseConfiguration)
		if err := test.cfg.Validate(); err == nil || err.Error() != r.Error() {
			t.Errorf("%s: Validate says %v, Submit %v", test.lacks, err, r)
		}
		if what := strings.TrimPrefix(test.lacks, "no "); !strings.Contains(r.Error(), what) {
			t.Errorf("%q does not tell of %q", r, what)
		}
	}
	if err := s.Validate(); err != nil {
		t.Errorf("a complete Config is a fault: %v", err)
	}
	s.wantLive(t, 0)
}

func twins(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	for id := range 2 {
		m := s.message(id, 60)
		m.Payload = "the same text"
		s.accepted(t, m)
	}
}

// validatorFunc is a function as a validator.
type validatorFunc func(replayguard.Message, time.Time) error

func (f validatorFunc) ValidateTTL(m replayguard.Message, now time.Time) error { return f(m, now) }
