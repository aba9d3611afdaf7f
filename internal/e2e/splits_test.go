package e2e

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// TestReadersDuringSplits has 64 readers ask all the time while nodes split 100 times: each answer has exactly one covering node, active
// at the offset that it states.
func TestReadersDuringSplits(t *testing.T) {
	const readers, splits = 64, 100
	w := newWorld(t, ledgersim.Options{}, 1, 3)
	settings, _ := withDatabase(t, w.follow())
	j := newJudge(t, w)
	j.remembers(w.sim.LedgerEnd())
	svc := serve(t, settings)
	svc.waitReady()
	reading := startReaders(j, readers, 0, func() disclosurev1.DisclosureServiceClient { return svc.api })

	var split, consumes atomic.Int64
	for i := 0; split.Load() < splits; i++ {
		before, _ := j.total()
		result, err := consumeDigest(t.Context(), w, j, w.Apps[i%len(w.Apps)], newDigest())
		if err != nil {
			t.Fatal(err)
		}
		consumes.Add(1)
		if len(result.Created) > 1 {
			split.Add(1)
			// So that readers are there in each of them.
			until(t, patience, "readers go on", func() error {
				if n, _ := j.total(); n < before+readers {
					return errNotYet
				}
				return nil
			})
		}
	}
	audit := j.caughtUp(svc.api)
	reading.stop()
	if !audit.Clean {
		t.Errorf("the audit has findings: %v", audit.Counts)
	}
	took := svc.stop()
	n, summary := j.total()
	j.knewByWhom()
	t.Logf("%d splits, %d consumes, %d readers, %d answers judged: %s; stopped in %s", split.Load(), consumes.Load(), readers, n, summary, took.Round(time.Millisecond))
}
