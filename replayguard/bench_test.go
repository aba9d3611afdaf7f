package replayguard_test

import (
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// The bars of the contract, for one core.
const (
	freshAt10k    = 2 * time.Microsecond
	freshAt1M     = 5 * time.Microsecond
	refusal       = time.Microsecond
	growthTo1M    = 6.0 // times the cost at 10,000
	benchLifetime = 1000
)

var benchSizes = []int{1_000, 10_000, 100_000, 1_000_000}

// BenchmarkReserve measures the guard beside what it might have been, in one run, because machines differ: a map that is
// scanned for expired entries at each call, and a heap by expiry. A fresh reservation is measured in the steady state: as
// many expire as are reserved. The guard's
// fail where they miss a bar in processor time.
func BenchmarkReserve(b *testing.B) {
	implementations := []struct {
		name string
		make func(capacity int, now *int64) reserver
	}{
		{"guard", newMemoryReserver},
		{"submit", newSubmitReserver},
		{"heap", func(capacity int, now *int64) reserver {
			return &heapReserver{now: now, capacity: capacity, ids: map[replayguard.ID]int64{}}
		}},
		{"scan", func(capacity int, now *int64) reserver {
			return &scanReserver{now: now, capacity: capacity, ids: map[replayguard.ID]int64{}}
		}},
	}
	fresh := map[int]time.Duration{}
	var refused time.Duration // the slowest kind of refusal
	for _, implementation := range implementations {
		guard := implementation.name == "guard"
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("%s/live=%d/fresh", implementation.name, size), func(b *testing.B) {
				now := int64(1_800_000_000)
				r := implementation.make(2*size, &now)
				n, perSecond := fill(r, size, &now)
				b.ReportAllocs()
				spent := startCPU()
				for b.Loop() {
					if n%perSecond == 0 {
						now++
					}
					if !r.reserve(benchID(n), now+benchLifetime) {
						b.Fatal("refused")
					}
					n++
				}
				if took := spent.perOp(b); guard {
					fresh[size] = took
				}
			})
			b.Run(fmt.Sprintf("%s/live=%d/duplicate", implementation.name, size), func(b *testing.B) {
				now := int64(1_800_000_000)
				r := implementation.make(2*size, &now)
				n, _ := fill(r, size, &now)
				b.ReportAllocs()
				spent := startCPU()
				for i := 0; b.Loop(); i++ {
					if r.reserve(benchID(i*7919%n), now+benchLifetime) {
						b.Fatal("admitted")
					}
				}
				if took := spent.perOp(b); guard {
					refused = max(refused, took)
				}
			})
			b.Run(fmt.Sprintf("%s/live=%d/full", implementation.name, size), func(b *testing.B) {
				now := int64(1_800_000_000)
				r := implementation.make(size, &now)
				n, _ := fill(r, size, &now)
				b.ReportAllocs()
				spent := startCPU()
				for i := 0; b.Loop(); i++ {
					if r.reserve(benchID(n+i), now+benchLifetime) {
						b.Fatal("admitted")
					}
				}
				if took := spent.perOp(b); guard {
					refused = max(refused, took)
				}
			})
		}
		if !guard {
			continue
		}
		if refused > refusal {
			b.Errorf("a refusal takes up to %v; the bar is %v", refused, refusal)
		}
		at10k, at1M := fresh[10_000], fresh[1_000_000]
		if at10k > freshAt10k || at1M > freshAt1M || at10k > 0 && float64(at1M) > growthTo1M*float64(at10k) {
			b.Errorf("a fresh reservation takes %v at 10,000 live ids and %v at 1,000,000; the bars are %v, %v and a growth of %v times", at10k, at1M, freshAt10k, freshAt1M, growthTo1M)
		}
	}
}

// BenchmarkMemoryPerEntry reports how many bytes an entry takes, with all that belongs to it.
func BenchmarkMemoryPerEntry(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("live=%d", size), func(b *testing.B) {
			perEntry := 0.0
			for b.Loop() {
				now := int64(1_800_000_000)
				perEntry = heapPer(size, func() any {
					r := newMemoryReserver(size, &now)
					fill(r, size, &now)
					return r
				})
			}
			b.ReportMetric(perEntry, "B/entry")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkReserveParallel measures the guard under contention of all cores.
func BenchmarkReserveParallel(b *testing.B) {
	now := int64(1_800_000_000)
	r := newMemoryReserver(1_000_000_000, &now)
	n, _ := fill(r, 10_000, &now)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			r.reserve(benchID(i*7919%n), now+benchLifetime)
		}
	})
}

// cpu is the processor time that this process had spent when a measurement began.
type cpu time.Duration

func startCPU() cpu { return cpu(processTime()) }

// perOp reports the processor time per operation, the collector's share included. It says more than the clock where the
// machine is shared, and the bars are held to it.
func (c cpu) perOp(b *testing.B) time.Duration {
	spent := processTime() - time.Duration(c)
	b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/op")
	return spent / time.Duration(b.N)
}

// fill makes size live entries that expire evenly over the lifetime, and gives the number of ids used and of those per
// second.
func fill(r reserver, size int, now *int64) (n, perSecond int) {
	perSecond = size / benchLifetime
	for ; n < size; n++ {
		if n > 0 && n%perSecond == 0 {
			*now++
		}
		r.reserve(benchID(n), *now+benchLifetime)
	}
	if s, ok := r.(*scanReserver); ok {
		s.filled = true
	}
	return n, perSecond
}

func benchID(n int) (id replayguard.ID) {
	binary.LittleEndian.PutUint64(id[:], uint64(n)*0x9e3779b97f4a7c15)
	return id
}

type reserver interface {
	reserve(id replayguard.ID, expiresAt int64) bool
}

type memoryReserver struct{ *replayguard.Memory }

func newMemoryReserver(capacity int, now *int64) reserver {
	return memoryReserver{replayguard.NewMemory(replayguard.Limits{
		MaxEntries: capacity,
		Quota:      replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: 100_000_000, Burst: 1_000_000_000, LapseCost: 1},
	}, func() time.Time { return time.Unix(*now, 0) })}
}

func (m memoryReserver) reserve(id replayguard.ID, expiresAt int64) bool {
	_, err := m.Reserve(context.Background(), replayguard.Request{Client: "client", ID: id, ExpiresAt: expiresAt})
	return err == nil
}

// submitReserver is a Config's whole way, with a submit function that does nothing.
type submitReserver struct{ replayguard.Connection }

func newSubmitReserver(capacity int, now *int64) reserver {
	return submitReserver{replayguard.NewConfig(
		replayguard.WithMaxReplayEntries(capacity),
		replayguard.WithClock(func() time.Time { return time.Unix(*now, 0) }),
		replayguard.WithSubmitMessageFunc(func(context.Context, replayguard.Message, replayguard.Reservation) error { return nil }),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(func(context.Context, replayguard.Message) error { return nil })),
	).Connection("client")}
}

func (s submitReserver) reserve(id replayguard.ID, expiresAt int64) bool {
	ran, _ := s.Submit(context.Background(), replayguard.Message{ID: id, ExpiresAt: expiresAt})
	return ran
}

// scanReserver looks at every entry for expired ones at each call.
type scanReserver struct {
	now      *int64
	capacity int
	ids      map[replayguard.ID]int64
	filled   bool
}

func (s *scanReserver) reserve(id replayguard.ID, expiresAt int64) bool {
	if s.filled { // scanning while it is filled would take hours
		for id, at := range s.ids {
			if at < *s.now {
				delete(s.ids, id)
			}
		}
	}
	if _, ok := s.ids[id]; ok || len(s.ids) >= s.capacity {
		return false
	}
	s.ids[id] = expiresAt
	return true
}

// heapReserver keeps all entries in one heap.
type heapReserver struct {
	now      *int64
	capacity int
	ids      map[replayguard.ID]int64
	byExpiry entryHeap
}

type heapEntry struct {
	id replayguard.ID
	at int64
}

func (h *heapReserver) reserve(id replayguard.ID, expiresAt int64) bool {
	for len(h.byExpiry) > 0 && h.byExpiry[0].at < *h.now {
		delete(h.ids, h.byExpiry[0].id)
		heap.Pop(&h.byExpiry)
	}
	if _, ok := h.ids[id]; ok || len(h.ids) >= h.capacity {
		return false
	}
	h.ids[id] = expiresAt
	heap.Push(&h.byExpiry, &heapEntry{id, expiresAt})
	return true
}

type entryHeap []*heapEntry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h entryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *entryHeap) Push(v any)        { *h = append(*h, v.(*heapEntry)) }
func (h *entryHeap) Pop() any {
	last := len(*h) - 1
	popped := (*h)[last]
	*h = (*h)[:last]
	return popped
}
