package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/pgserver"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// digestsPerNode is about what a trie that splits at 128 holds on average: 150,000 nodes hold 10 million digests.
const digestsPerNode = 67

// scalePatience bounds the reading of ten million digests on a small machine.
const scalePatience = 20 * time.Minute

// BenchmarkScale follows a ledger with one large trie and reports, beside the time of one PrepareRedeem over gRPC (ns/op):
//
//	seed-s       from the start of the process to ready, with an empty database: snapshot read, checked, written
//	cold-s       from the start of the process to ready, with the index in the database
//	MiB          resident memory of the process after the cold start and the requests
//	p50-µs, p99-µs  of PrepareRedeem by digest, from 8 callers at once
//	sql-p50-µs, sql-p99-µs  of the covering lookup in Postgres, in a database whose default collation is en-US (ICU)
//
// 1,000 and 5,000 nodes by default; DISCLOSURED_SOAK=1 adds 150,000 with 10 million digests.
func BenchmarkScale(b *testing.B) {
	sizes := []int{1_000, 5_000}
	if os.Getenv("DISCLOSURED_SOAK") != "" {
		sizes = append(sizes, 150_000)
	}
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) { benchmarkScale(b, nodes) })
	}
}

func benchmarkScale(b *testing.B, nodes int) {
	w := newWorld(b, ledgersim.Options{})
	consumer, err := w.client.AllocateParty(b.Context(), "large")
	if err != nil {
		b.Fatal(err)
	}
	scope := ledgersim.Scope{Consumer: consumer, Operator: w.Operator}
	if _, err := w.sim.Generate(ledgersim.Generation{Scope: scope, Nodes: nodes, Digests: nodes * digestsPerNode, Seed: 1}); err != nil {
		b.Fatal(err)
	}
	url := pgtest.DatabaseWith(b, pgserver.DatabaseOptions{ICULocale: "en-US"})
	follow := w.follow().with(settings{
		"database.url_file": fmt.Sprintf("%q", proctest.File(b, "database-url", url)), "database.lease_ttl": "3s",
		"participant.call_timeout": "10s", "participant.poll_interval": "1s", "api.freshness_bound": "15s",
	})

	seed := timeToReady(b, follow)
	seed.svc.stop()
	cold := timeToReady(b, follow)

	// One caller, for the time of one request; then eight, for the spread.
	api := cold.svc.api
	b.ResetTimer()
	for b.Loop() {
		prepareAny(b, api, consumer)
	}
	b.StopTimer()
	// Not before: the timer's reset forgets what was reported.
	b.ReportMetric(seed.took.Seconds(), "seed-s")
	b.ReportMetric(cold.took.Seconds(), "cold-s")
	spread := measure(8, 250, func() { prepareAny(b, api, consumer) })
	b.ReportMetric(micros(spread, 50), "p50-µs")
	b.ReportMetric(micros(spread, 99), "p99-µs")
	b.ReportMetric(residentMiB(b, cold.svc.Pid()), "MiB")

	store, err := postgres.Open(b.Context(), postgres.Config{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	inIndex := index.Scope{PackageName: wormhole.PackageName, Operator: w.Operator, Consumer: consumer}
	lookups := measure(1, 500, func() {
		if found, err := store.Covering(b.Context(), inIndex, randomDigest()); err != nil || len(found) != 1 {
			b.Errorf("covering lookup: %d nodes, %v", len(found), err)
		}
	})
	b.ReportMetric(micros(lookups, 50), "sql-p50-µs")
	b.ReportMetric(micros(lookups, 99), "sql-p99-µs")
}

// readied is a service and how long it took to be ready.
type readied struct {
	svc  *service
	took time.Duration
}

func timeToReady(b *testing.B, s settings) readied {
	b.Helper()
	started := time.Now()
	svc := serve(b, s)
	if err := waitUntil(scalePatience, svc.ready); err != nil {
		b.Fatalf("not ready: %v", err)
	}
	return readied{svc, time.Since(started)}
}

func randomDigest() (d wormhole.Digest) {
	for i := range d {
		d[i] = byte(rand.Uint32())
	}
	return d
}

func prepareAny(b *testing.B, api disclosurev1.DisclosureServiceClient, consumer string) {
	_, err := api.PrepareRedeem(context.Background(), &disclosurev1.PrepareRedeemRequest{
		Scope:   &disclosurev1.ScopeSelector{Consumer: consumer},
		Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: randomDigest().String()},
	})
	if status.Code(err) != codes.OK {
		b.Errorf("PrepareRedeem: %v", err)
	}
}

// measure runs f so often in each of several goroutines, and returns the times, sorted.
func measure(goroutines, each int, f func()) []time.Duration {
	var (
		mu   sync.Mutex
		all  []time.Duration
		wait sync.WaitGroup
	)
	for range goroutines {
		wait.Go(func() {
			own := make([]time.Duration, 0, each)
			for range each {
				started := time.Now()
				f()
				own = append(own, time.Since(started))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	wait.Wait()
	slices.Sort(all)
	return all
}

func micros(sorted []time.Duration, percentile int) float64 {
	return float64(sorted[(len(sorted)-1)*percentile/100].Microseconds())
}

// residentMiB is a process's resident memory.
func residentMiB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Logf("resident memory is read from /proc, which this system does not have: %v", err)
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kB, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				b.Fatal(err)
			}
			return float64(kB) / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
