package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

// BenchmarkReserve measures one call: a fresh reservation waits for the disk, a duplicate and a refusal do not. With several
// sessions, fresh reservations wait for each other too.
func BenchmarkReserve(b *testing.B) {
	pool := newPool(b, pgtest.Database(b), 16)
	s := open(b, pool, replayguard.Limits{
		MaxEntries: 10_000_000,
		Quota:      replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: 100_000_000, Burst: 1_000_000_000},
		QuotaFor: func(client string) replayguard.Quota {
			if client == "at its quota" {
				return replayguard.Quota{MaxLive: 1, PerMinute: replayguard.NoLimit}
			}
			return replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: 100_000_000, Burst: 1_000_000_000}
		},
	})
	until := time.Now().Unix() + 1700
	var n atomic.Int64
	reserve := func(client string, id int) error {
		_, err := s.Reserve(context.Background(), replayguard.Request{Client: client, ID: guardtest.ID(id), ExpiresAt: until})
		return err
	}
	for _, client := range []string{"client 0", "at its quota"} {
		if err := reserve(client, int(n.Add(1))); err != nil {
			b.Fatal(err)
		}
	}
	for _, sessions := range []int{1, 16} {
		for _, kind := range []string{"fresh", "duplicate", "quota"} {
			b.Run(fmt.Sprintf("%s/sessions=%d", kind, sessions), func(b *testing.B) {
				var session atomic.Int64
				b.SetParallelism(max(1, sessions/2)) // of two cores
				work := func(next func() bool) {
					client := fmt.Sprint("client ", session.Add(1))
					for next() {
						var err error
						switch kind {
						case "fresh":
							err = reserve(client, int(n.Add(1)))
						case "duplicate":
							if reserve(client, 1) == nil {
								b.Error("a duplicate was admitted")
							}
						case "quota":
							if reserve("at its quota", int(n.Add(1))) == nil {
								b.Error("the quota was exceeded")
							}
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				}
				if sessions == 1 {
					work(b.Loop)
				} else {
					b.RunParallel(func(pb *testing.PB) { work(pb.Next) })
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		}
	}
}
