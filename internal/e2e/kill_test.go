package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/proctest"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// TestKillAtRandomMoments kills the service as kill -9 does, again and again, at random moments after its start: while it connects, loads,
// catches up and follows, with consumes and splits going on. Whatever it had written, after each restart the index is the ledger's
// active set at the offset that it stands at, before it has read anything more; and no answer in between is wrong, history included.
func TestKillAtRandomMoments(t *testing.T) {
	kills := count(20, 200)
	w := newWorld(t, ledgersim.Options{CommitLatency: time.Millisecond}, 2, 16, 128)
	settings, _ := withDatabase(t, w.follow())
	settings = settings.with(map[string]string{"api.listen": proctest.FreeAddress(t), "ops.listen": proctest.FreeAddress(t)})
	j := newJudge(t, w)
	j.remembers(w.sim.LedgerEnd())

	svc := serve(t, settings)
	svc.waitReady() // the first seed is where history begins
	load := startLoad(w, j, 1, 20*time.Millisecond)
	client := svc.api // of the address, which stays
	reading := startReaders(j, 4, time.Millisecond, func() disclosurev1.DisclosureServiceClient { return client })

	var early, atWork int
	for i := range kills {
		if i%2 == 0 {
			// While it starts: any moment of a start, which takes only part of the range.
			survive(t, svc, rand.N(800*time.Millisecond))
			early++
		} else {
			// While it works; before it did, the index is held to the ledger as it was left.
			until(t, patience, "the index is loaded", func() error {
				_, err := j.equalsLedger(client)
				return err
			})
			svc.waitReady()
			survive(t, svc, rand.N(500*time.Millisecond))
			atWork++
		}
		svc.Kill()
		svc = serve(t, settings)
	}
	load.stop()
	audit := j.caughtUp(client)
	reading.stop()
	if !audit.Clean {
		t.Errorf("the audit has findings: %v", audit.Counts)
	}
	svc.stop()
	n, summary := j.total()
	j.knewByWhom()
	t.Logf("%d kills (%d while starting, %d at work), %d consumes, %d answers judged: %s",
		kills, early, atWork, load.consumes.Load(), n, summary)
	if n == 0 || load.consumes.Load() == 0 {
		t.Error("nothing was judged")
	}
}

// survive waits so long; the service must not end by itself.
func survive(t *testing.T, svc *service, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-svc.Done():
		t.Fatalf("the service ended by itself with code %d:\n%s", svc.Code(), proctest.Tail(svc.ErrOut.String(), 20))
	}
}
