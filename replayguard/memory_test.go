package replayguard_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

// G04: the bound is one of bytes too. Whatever a sender writes, an entry takes as much as another.
func TestMemoryIsBoundedInBytes(t *testing.T) {
	const entries = 20_000
	clock := guardtest.NewClock(nil)
	huge := strings.Repeat("x", 1<<20)
	perEntry := heapPer(entries, func() any {
		m := replayguard.NewMemory(replayguard.Limits{MaxEntries: entries, Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}}, clock.Now)
		for i := range entries {
			text := huge[:i%16] // what is hashed is not kept; hashing a megabyte each would only take time
			if i < 16 {
				text = huge
			}
			id := replayguard.Subject{Operator: text, Consumer: fmt.Sprint(i)}.ID()
			_, err := m.Reserve(t.Context(), replayguard.Request{Client: "a client", ID: id, ExpiresAt: guardtest.Start + int64(i%1800), Key: replayguard.NewKey(text + "key")})
			if err != nil {
				t.Fatal(err)
			}
		}
		return m
	})
	if most := 400.0; perEntry > most {
		t.Errorf("%.0f bytes per entry, at most %.0f", perEntry, most)
	}
}

// heapPer is how many bytes of the heap what f makes takes, per one of n.
func heapPer(n int, f func() any) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / float64(n)
}

// TestIdleClientsAreForgotten: the memory does not grow with the clients that ever were.
func TestIdleClientsAreForgotten(t *testing.T) {
	clock := guardtest.NewClock(nil)
	m := replayguard.NewMemory(replayguard.Limits{}, clock.Now)
	busy := replayguard.Request{Client: "busy", ID: guardtest.ID(0), ExpiresAt: guardtest.Start + 1800}
	for i := range 5000 {
		if i%500 == 0 {
			clock.Advance(10_000) // all others are idle by now
			busy.ExpiresAt = clock.Unix() + 1800
			if _, err := m.Reserve(t.Context(), busy); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Reserve(t.Context(), replayguard.Request{Client: fmt.Sprint(i), ID: guardtest.ID(1 + i), ExpiresAt: clock.Unix() + 5}); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := m.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if stats.Clients > 1500 {
		t.Errorf("%d clients are remembered", stats.Clients)
	}
	if err := m.CheckInvariants(); err != nil {
		t.Error(err)
	}
	// A refused client is not remembered at all.
	before := stats.Clients
	clock.Advance(1)
	for i := range 100 {
		m.Reserve(t.Context(), replayguard.Request{Client: fmt.Sprint("refused", i), ID: busy.ID, ExpiresAt: clock.Unix() + 5})
	}
	if stats, _ := m.Stats(t.Context()); stats.Clients != before {
		t.Errorf("%d clients after refusals, %d before", stats.Clients, before)
	}
}

// TestTokensGrowOverProcesses: a token of a process that ended is not that of a later reservation.
func TestTokensGrowOverProcesses(t *testing.T) {
	clock := guardtest.NewClock(nil)
	var last replayguard.Token
	for range 3 {
		m := replayguard.NewMemory(replayguard.Limits{}, clock.Now)
		for i := range 100 {
			r, err := m.Reserve(t.Context(), replayguard.Request{ID: guardtest.ID(i), ExpiresAt: clock.Unix() + 60})
			if err != nil {
				t.Fatal(err)
			}
			if r.Token <= last {
				t.Fatalf("token %d after %d", r.Token, last)
			}
			last = r.Token
		}
		clock.Advance(1)
	}
	clock.Set(-1 << 62)
	m := replayguard.NewMemory(replayguard.Limits{}, clock.Now)
	if r, err := m.Reserve(t.Context(), replayguard.Request{ID: guardtest.ID(1), ExpiresAt: 60}); err == nil {
		t.Errorf("an expiry 2^62 s ahead is accepted: %+v", r)
	}
	clock.Set(0)
	if r, err := m.Reserve(t.Context(), replayguard.Request{ID: guardtest.ID(1), ExpiresAt: 60}); err != nil || r.Token <= 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestMemoryUnderConcurrency: many goroutines do everything at once while time passes; no two reservations of an id overlap,
// and later ones have greater tokens.
func TestMemoryUnderConcurrency(t *testing.T) {
	clock := guardtest.NewClock(nil)
	m := replayguard.NewMemory(replayguard.Limits{MaxEntries: 8, Quota: replayguard.Quota{MaxLive: 4, PerMinute: replayguard.NoLimit}}, clock.Now)
	var mu sync.Mutex
	history := map[replayguard.ID][]replayguard.Reservation{}
	var all sync.WaitGroup
	for g := range 40 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			client := fmt.Sprint("client ", g%5)
			for range 500 {
				if random.IntN(50) == 0 {
					clock.Advance(1)
				}
				id := guardtest.ID(random.IntN(12))
				r, err := m.Reserve(t.Context(), replayguard.Request{Client: client, ID: id, ExpiresAt: clock.Unix() + random.Int64N(5)})
				var refusal *replayguard.Refusal
				switch {
				case err == nil:
					mu.Lock()
					history[id] = append(history[id], r)
					mu.Unlock()
					if random.IntN(2) == 0 {
						_, err := m.Settle(t.Context(), replayguard.Claim{Client: client, ID: id, Token: r.Token}, replayguard.Committed)
						if err != nil && !errors.Is(err, replayguard.ErrNoReservation) {
							t.Error(err)
						}
					}
				case !errors.As(err, &refusal):
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for id, reservations := range history {
		guardtest.NoOverlaps(t, id, reservations)
	}
	if err := m.CheckInvariants(); err != nil {
		t.Error(err)
	}
}

// TestManyExpireAtOnce: one call forgets all that expired during a pause.
func TestManyExpireAtOnce(t *testing.T) {
	const entries = 50_000
	clock := guardtest.NewClock(nil)
	m := replayguard.NewMemory(replayguard.Limits{MaxEntries: entries, Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}}, clock.Now)
	for i := range entries {
		if _, err := m.Reserve(t.Context(), replayguard.Request{ID: guardtest.ID(i), ExpiresAt: guardtest.Start + int64(i%1800)}); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(1800)
	began := time.Now()
	if live := m.Prune(); live != 0 {
		t.Errorf("%d live", live)
	}
	t.Logf("forgetting %d entries took %v each", entries, time.Since(began)/entries)
	if err := m.CheckInvariants(); err != nil {
		t.Error(err)
	}
}

// Tokens of a process that begins within the same second as the one before are greater than all that the earlier one gave out.
func TestTokensGrowOverRestarts(t *testing.T) {
	now := time.Unix(1_800_000_000, 100)
	var last replayguard.Token
	for process := range 5 {
		m := replayguard.NewMemory(replayguard.Limits{}, func() time.Time { return now })
		for i := range 100 {
			r, err := m.Reserve(t.Context(), replayguard.Request{Client: "alice", ID: guardtest.ID(i), ExpiresAt: now.Unix() + 60})
			if err != nil {
				t.Fatal(err)
			}
			if r.Token <= last {
				t.Fatalf("process %d: token %d after %d", process, r.Token, last)
			}
			last = r.Token
		}
		now = now.Add(time.Millisecond)
	}
	for _, odd := range []time.Time{{}, time.Unix(-5, 0), time.Unix(1<<40, 0)} {
		m := replayguard.NewMemory(replayguard.Limits{}, func() time.Time { return odd })
		if r, err := m.Reserve(t.Context(), replayguard.Request{Client: "alice", ID: guardtest.ID(1), ExpiresAt: max(1, odd.Unix()+60)}); err == nil && r.Token <= 0 {
			t.Errorf("at %s: token %d", odd, r.Token)
		}
	}
}
