package replayguard_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

// newConfig makes a Config with a memory of its own and the clock, which counts what it submits.
func newConfig(clock *guardtest.Clock, ran *atomic.Int64, options ...replayguard.Option) replayguard.Config {
	return replayguard.NewConfig(append([]replayguard.Option{
		replayguard.WithClock(clock.Now),
		replayguard.WithSubmitMessageFunc(func(context.Context, replayguard.Message, replayguard.Reservation) error {
			ran.Add(1)
			return nil
		}),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(func(context.Context, replayguard.Message) error { return nil })),
	}, options...)...)
}

func submit(t testing.TB, cfg replayguard.Config, id int, expiresAt int64) error {
	t.Helper()
	_, err := cfg.Connection("").Submit(t.Context(), replayguard.Message{ID: guardtest.ID(id), ExpiresAt: expiresAt})
	return err
}

func TestConfigsMadeSeparatelyDoNotShare(t *testing.T) {
	clock, ran := guardtest.NewClock(nil), new(atomic.Int64)
	one, other := newConfig(clock, ran), newConfig(clock, ran)
	for _, cfg := range []replayguard.Config{one, other} {
		if err := submit(t, cfg, 1, guardtest.Start+60); err != nil {
			t.Fatal(err)
		}
		guardtest.WantRefusal(t, submit(t, cfg, 1, guardtest.Start+60), replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	}
	if ran.Load() != 2 {
		t.Errorf("ran %d times, want once for each Config", ran.Load())
	}
}

func TestMaxReplayEntries(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []replayguard.Option
		want    int
	}{
		{"unset", nil, 10_000},
		{"0", []replayguard.Option{replayguard.WithMaxReplayEntries(0)}, 10_000},
		{"3", []replayguard.Option{replayguard.WithMaxReplayEntries(3)}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock, ran := guardtest.NewClock(nil), new(atomic.Int64)
			cfg := newConfig(clock, ran, test.options...)
			for i := range test.want {
				if err := submit(t, cfg, i, guardtest.Start+60); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			guardtest.WantRefusal(t, submit(t, cfg, test.want, guardtest.Start+60), replayguard.Other, replayguard.CauseCapacity)
			if ran.Load() != int64(test.want) {
				t.Errorf("ran %d times, want %d", ran.Load(), test.want)
			}
		})
	}
	for _, n := range []int{-1, math.MinInt} {
		clock, ran := guardtest.NewClock(nil), new(atomic.Int64)
		cfg := newConfig(clock, ran, replayguard.WithMaxReplayEntries(n))
		if cfg.Validate() == nil {
			t.Errorf("a capacity of %d is not told as a fault", n)
		}
		guardtest.WantRefusal(t, submit(t, cfg, 1, guardtest.Start-1), replayguard.Expired, replayguard.CauseExpiry)
		guardtest.WantRefusal(t, submit(t, cfg, 1, guardtest.Start+60), replayguard.Other, replayguard.CauseConfiguration)
	}
}

// TestMaxReplayEntriesIsNotConcurrency: as many submissions may be under way as there are ids, and their end frees nothing.
func TestMaxReplayEntriesIsNotConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		cfg := replayguard.NewConfig( // on the bubble's clock
			replayguard.WithMaxReplayEntries(3),
			replayguard.WithSubmitMessageFunc(func(context.Context, replayguard.Message, replayguard.Reservation) error {
				<-release
				return nil
			}),
			replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(func(context.Context, replayguard.Message) error { return nil })))
		until := time.Now().Unix() + 60
		done := make(chan error, 3)
		for i := range 3 {
			go func() { done <- submit(t, cfg, i, until) }()
		}
		synctest.Wait()
		guardtest.WantRefusal(t, submit(t, cfg, 9, until), replayguard.Other, replayguard.CauseCapacity)
		close(release)
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		guardtest.WantRefusal(t, submit(t, cfg, 9, until), replayguard.Other, replayguard.CauseCapacity)
		time.Sleep(60 * time.Second) // the bubble's
		guardtest.WantRefusal(t, submit(t, cfg, 9, until), replayguard.Other, replayguard.CauseCapacity)
		time.Sleep(time.Second)
		if err := submit(t, cfg, 9, until+60); err != nil {
			t.Error(err)
		}
	})
}

// TestFailingStore: an error that is no refusal reaches the caller, and nothing is submitted.
func TestFailingStore(t *testing.T) {
	clock, ran := guardtest.NewClock(nil), new(atomic.Int64)
	errDown := errors.New("connection refused")
	cfg := newConfig(clock, ran, replayguard.WithStore(failingStore{err: errDown}))
	err := submit(t, cfg, 1, guardtest.Start+60)
	var refusal *replayguard.Refusal
	if !errors.Is(err, errDown) || errors.As(err, &refusal) {
		t.Errorf("got %v, want the store's error and no refusal", err)
	}
	if ran.Load() != 0 {
		t.Error("the submit function ran")
	}
}

// failingStore is a store that can't be reached.
type failingStore struct {
	replayguard.Store
	err error
}

func (s failingStore) Reserve(context.Context, replayguard.Request) (replayguard.Reservation, error) {
	return replayguard.Reservation{}, s.err
}

func TestWireCodes(t *testing.T) {
	for code, want := range []replayguard.Reason{replayguard.Invalid, replayguard.AlreadyReceived, replayguard.Expired, replayguard.Other} {
		got, err := replayguard.ReasonOfWire(uint8(code))
		if err != nil || got != want || got.WireCode() != uint8(code) {
			t.Errorf("code %d is %v, %v; want %v", code, got, err, want)
		}
	}
	if got := replayguard.NotAuthenticated.WireCode(); got != 0 {
		t.Errorf("not authenticated has code %d, want 0", got)
	}
	for code := 4; code <= 255; code++ { // G19
		if got, err := replayguard.ReasonOfWire(uint8(code)); err == nil {
			t.Errorf("code %d is %v, want an error", code, got)
		}
	}
	if got := replayguard.Reason(0).WireCode(); got != 3 {
		t.Errorf("the zero Reason has code %d, want 3", got)
	}
}
