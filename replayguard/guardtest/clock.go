package guardtest

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// permissive is a validator that leaves every expiry to the store.
var permissive = replayguard.WithTTLValidator(validatorFunc(func(replayguard.Message, time.Time) error { return nil }))

// TestClock has the cases of time.
func TestClock(t *testing.T, newGuard Maker) {
	for _, row := range []struct {
		name string
		test func(*testing.T, Maker)
	}{
		{"one second before expiry, at it, one after", aroundExpiry},
		{"forward an hour", forward},
		{"back an hour before anything was forgotten", back},
		{"back an hour after a sweep: nothing is readmitted", backAfterSweep},
		{"around the year 2106", yearBeyondUint32},
		{"before 1970", before1970},
		{"G05 replayed at 11 of 30 minutes", lateReplay},
		{"G07 replayed one second after each sweep", replayAfterSweeps},
		{"G17 expired, before and after the sweep: the same answer", expiredBeforeAndAfterSweep},
	} {
		t.Run(row.name, func(t *testing.T) { row.test(t, newGuard) })
	}
}

func aroundExpiry(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	m := s.message(1, 60)
	s.accepted(t, m)
	for _, at := range []int64{m.ExpiresAt - 1, m.ExpiresAt} {
		s.Clock.Set(at)
		s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		s.wantLive(t, 1)
	}
	s.Clock.Set(m.ExpiresAt + 1)
	s.wantLive(t, 0)
	s.refused(t, m, replayguard.Expired, replayguard.CauseExpiry)
	// A message may be reserved in its own last second.
	s.accepted(t, s.message(2, 0))
	s.refused(t, s.message(2, 0), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
}

func forward(t *testing.T, newGuard Maker) {
	limits := unlimited(10)
	limits.MaxTTL = 2 * time.Hour
	s := newSystem(t, newGuard, limits, permissive)
	s.accepted(t, s.message(1, 3599))
	s.accepted(t, s.message(2, 3600))
	s.Clock.Advance(3600)
	s.refused(t, s.message(2, 60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.accepted(t, s.message(1, 60))
	s.wantLive(t, 2)
}

func back(t *testing.T, newGuard Maker) {
	limits := unlimited(2)
	limits.MaxTTL = 2 * time.Hour
	s := newSystem(t, newGuard, limits, permissive)
	m := s.message(1, 60)
	s.accepted(t, m)
	s.Clock.Advance(-3600)
	s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.refused(t, s.message(1, 60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.accepted(t, s.message(2, 60)) // nothing was forgotten, so nothing is in doubt
	s.refused(t, s.message(3, 60), replayguard.Other, replayguard.CauseCapacity)
}

func backAfterSweep(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	early, late := s.message(1, 60), s.message(2, 600)
	s.accepted(t, early)
	s.accepted(t, late)
	s.Clock.Advance(61)
	s.Forget(t)
	s.wantLive(t, 1)
	s.Clock.Advance(-60)
	// early is valid again by the clock, and was forgotten.
	if r := s.refused(t, early, replayguard.Other, replayguard.CauseClockBack); r.RetryAfter != time.Minute {
		t.Errorf("retry after %v, want 1m0s: then it has expired", r.RetryAfter)
	}
	s.refused(t, s.message(1, 600), replayguard.Other, replayguard.CauseClockBack) // with whatever expiry
	s.refused(t, late, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.refused(t, s.message(3, 600), replayguard.Other, replayguard.CauseClockBack) // the guard can't tell it from early

	s.Clock.Advance(-3600)
	s.refused(t, early, replayguard.Invalid, replayguard.CauseExpiry)
	s.refused(t, s.message(1, 60), replayguard.Other, replayguard.CauseClockBack)
	s.wantRuns(t, 1, 1)

	s.Clock.Set(early.ExpiresAt) // the last second in which early would have been live
	s.refused(t, early, replayguard.Other, replayguard.CauseClockBack)
	s.Clock.Advance(1)
	s.accepted(t, s.message(1, 60))
	s.wantRuns(t, 2, 1)
}

func yearBeyondUint32(t *testing.T, newGuard Maker) {
	for _, now := range []int64{math.MaxUint32 - 30, math.MaxUint32, math.MaxUint32 + 1, math.MaxUint32 + 1e6} {
		s := newSystem(t, newGuard, unlimited(1))
		s.Clock.Set(now)
		m := s.message(1, 60)
		s.accepted(t, m)
		s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		s.refused(t, s.message(2, 60), replayguard.Other, replayguard.CauseCapacity)
		s.Clock.Set(m.ExpiresAt)
		s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		s.Clock.Advance(1)
		s.refused(t, m, replayguard.Expired, replayguard.CauseExpiry)
		s.accepted(t, s.message(2, 60))
	}
}

func before1970(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(1))
	s.Clock.Set(-100)
	// An expiry must lie after 1970 even then: 0 and less are never taken for "unset" or "never".
	s.refused(t, s.message(1, 60), replayguard.Invalid, replayguard.CauseExpiry)
	s.refused(t, s.message(1, 100), replayguard.Invalid, replayguard.CauseExpiry)
	m := s.message(1, 101)
	s.accepted(t, m)
	s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.Clock.Set(1)
	s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	s.Clock.Set(2)
	s.accepted(t, s.message(2, 60))
}

func lateReplay(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(10))
	m := s.message(1, 30*60)
	s.accepted(t, m)
	s.Clock.Advance(11 * 60)
	s.Forget(t)
	s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
}

func replayAfterSweeps(t *testing.T, newGuard Maker) {
	s := newSystem(t, newGuard, unlimited(100))
	m := s.message(1, 5*60+20)
	s.accepted(t, m)
	for tick := range 30 {
		s.accepted(t, s.message(100+tick, 5))
		s.Clock.Advance(10)
		s.Forget(t)
		s.Clock.Advance(1)
		if s.Clock.Unix() <= m.ExpiresAt {
			s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		}
	}
	s.wantRuns(t, 1, 1)
}

func expiredBeforeAndAfterSweep(t *testing.T, newGuard Maker) {
	for _, option := range []replayguard.Option{replayguard.WithTTLValidator(replayguard.NewTTLValidator(0)), permissive} {
		s := newSystem(t, newGuard, unlimited(10), option)
		m := s.message(1, 60)
		s.accepted(t, m)
		s.Clock.Set(m.ExpiresAt + 1)
		s.refused(t, m, replayguard.Expired, replayguard.CauseExpiry)
		s.Forget(t)
		s.refused(t, m, replayguard.Expired, replayguard.CauseExpiry)
	}
}

// TestExpiries has one answer for each odd expiry and each odd limit.
func TestExpiries(t *testing.T, newGuard Maker) {
	for _, test := range []struct {
		name      string
		expiresAt int64
		reason    replayguard.Reason
	}{
		{"G19 zero", 0, replayguard.Invalid},
		{"negative", -1, replayguard.Invalid},
		{"the smallest", math.MinInt64, replayguard.Invalid},
		{"1970", 1, replayguard.Expired},
		{"a second ago", Start - 1, replayguard.Expired},
		{"now", Start, 0},
		{"the farthest allowed", Start + 1800, 0},
		{"a second farther", Start + 1801, replayguard.Invalid},
		{"G10 the greatest uint32", math.MaxUint32, replayguard.Invalid},
		{"G10 the greatest", math.MaxInt64, replayguard.Invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, option := range map[string]replayguard.Option{
				"the validator": replayguard.WithTTLValidator(replayguard.NewTTLValidator(0)),
				"the store":     permissive,
			} {
				s := newSystem(t, newGuard, unlimited(10), option)
				_, err := s.Connection("").Submit(ctx(t), replayguard.Message{ID: ID(1), ExpiresAt: test.expiresAt})
				if test.reason == 0 {
					if err != nil {
						t.Errorf("%s: got %v, want it accepted", name, err)
					}
					continue
				}
				WantRefusal(t, err, test.reason, replayguard.CauseExpiry)
				if errors.Is(err, replayguard.ErrExpired) != (test.reason == replayguard.Expired) {
					t.Errorf("%s: %v is ErrExpired, or should be", name, err)
				}
				s.wantLive(t, 0)
			}
		})
	}
	t.Run("G10 the greatest limit", func(t *testing.T) {
		limits := unlimited(10)
		limits.MaxTTL = math.MaxInt64
		s := newSystem(t, newGuard, limits, replayguard.WithTTLValidator(replayguard.NewTTLValidator(math.MaxInt64)))
		greatest := int64(math.MaxInt64 / time.Second)
		s.refused(t, s.message(1, greatest+1), replayguard.Invalid, replayguard.CauseExpiry)
		m := s.message(1, greatest)
		s.accepted(t, m)
		s.Clock.Set(m.ExpiresAt)
		s.refused(t, m, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		s.Clock.Advance(1)
		s.refused(t, m, replayguard.Expired, replayguard.CauseExpiry)
	})
	for _, ttl := range []time.Duration{1, time.Second - 1, -1, math.MinInt64} {
		t.Run("G10 a limit of "+ttl.String(), func(t *testing.T) {
			limits := unlimited(10)
			limits.MaxTTL = ttl
			s := newSystem(t, newGuard, limits)
			s.refused(t, s.message(1, 60), replayguard.Other, replayguard.CauseConfiguration)
		})
	}
}
