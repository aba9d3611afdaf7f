package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/proctest"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// TestE10StopsInOrderUnderLoad stops the service as a supervisor does, again and again, at random moments, with load on the ledger and
// callers whose answers need the database. It exits with 0 within 10 s; the next one, which for the database is another holder, gets the
// lease at once although its time is not over; the index it finds is the ledger's at its offset; and no answer was wrong.
func TestE10StopsInOrderUnderLoad(t *testing.T) {
	stops := count(10, 100)
	const ttl, takeover = 60 * time.Second, 20 * time.Second
	w := newWorld(t, ledgersim.Options{CommitLatency: time.Millisecond}, 2, 16)
	base, _ := withDatabase(t, w.follow())
	base = base.with(settings{"database.lease_ttl": ttl.String()})
	var places [2]settings
	for i := range places {
		places[i] = base.with(settings{"api.listen": proctest.FreeAddress(t), "ops.listen": proctest.FreeAddress(t)})
	}
	j := newJudge(t, w)
	j.remembers(w.sim.LedgerEnd())
	svc := serve(t, places[0])
	svc.waitReady()
	startLoad(w, j, 1, 20*time.Millisecond)
	var current atomic.Pointer[service]
	current.Store(svc)
	reading := startReaders(j, 4, time.Millisecond, func() disclosurev1.DisclosureServiceClient { return current.Load().api })
	var slowest time.Duration
	for i := range stops {
		if i%3 == 0 {
			// Any moment of a start, once it says that it starts.
			until(t, patience, "the service has begun", func() error {
				if !strings.Contains(svc.ErrOut.String(), "msg=serving") {
					return errNotYet
				}
				return nil
			})
			survive(t, svc, rand.N(500*time.Millisecond))
		} else {
			until(t, takeover, "the next service has the lease and the index", func() error {
				_, err := j.equalsLedger(svc.api)
				return err
			})
			svc.waitReady()
			survive(t, svc, rand.N(500*time.Millisecond))
		}
		slowest = max(slowest, svc.stop())
		svc = serve(t, places[(i+1)%2])
		current.Store(svc)
	}
	audit := j.caughtUp(svc.api)
	reading.stop()
	if !audit.Clean {
		t.Errorf("the audit has findings: %v", audit.Counts)
	}
	slowest = max(slowest, svc.stop())
	if slowest > stopBound {
		t.Errorf("the slowest stop took %s, the bound is %s", slowest, stopBound)
	}
	n, summary := j.total()
	j.knewByWhom()
	t.Logf("%d stops, the slowest took %s; %d answers judged: %s", stops+1, slowest.Round(time.Millisecond), n, summary)
}

// TestStandbyTakesOver: a second service waits, not ready and saying why, and takes over once the lease of a killed one is over.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	w, base := standby(t, ttl)
	first := serve(t, base)
	first.waitReady()
	j := newJudge(t, w)
	startLoad(w, j, 1, 20*time.Millisecond)
	second := serve(t, base)
	second.waitState(patience, "connecting")
	until(t, patience, "the standby says what it waits for", func() error {
		if !strings.Contains(second.ErrOut.String(), "waiting for the writer's lease") {
			return errNotYet
		}
		return nil
	})
	second.waitNotReady(patience, "NOT_SEEDED")
	second.live()
	survive(t, second, 2*ttl) // as long as the first renews
	if err := first.ready(); err != nil {
		t.Errorf("the first one is not ready: %v", err)
	}
	begun := time.Now()
	first.Kill()
	second.waitReady()
	took := time.Since(begun)
	t.Logf("ready %s after kill -9 of the writer, with a TTL of %s", took.Round(10*time.Millisecond), ttl)
	if bound := ttl + 10*time.Second; took > bound {
		t.Errorf("the standby took %s, the bound is %s", took, bound)
	}
	j.caughtUp(second.api)
	second.stop()
}

// TestPausedWriterIsFencedOff: a writer that was stopped in its tracks (a suspended machine) finds that another has taken over: it ends,
// and whatever it still wrote had no effect.
func TestPausedWriterIsFencedOff(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	w, base := standby(t, ttl)
	first := serve(t, base)
	first.waitReady()
	j := newJudge(t, w)
	startLoad(w, j, 1, 20*time.Millisecond)
	survive(t, first, 200*time.Millisecond)
	first.Signal(syscall.SIGSTOP)
	begun := time.Now()
	second := serve(t, base)
	second.waitReady()
	t.Logf("ready %s after the writer was paused, with a TTL of %s", time.Since(begun).Round(10*time.Millisecond), ttl)
	begun = time.Now()
	first.Signal(syscall.SIGCONT)
	if code := first.Wait(patience); code != exitFailure {
		t.Errorf("the exit code of the writer that lost the lease is %d:\n%s", code, proctest.Tail(first.ErrOut.String(), 10))
	}
	t.Logf("the paused writer ended %s after it went on", time.Since(begun).Round(10*time.Millisecond))
	checkMentions(t, "what it says", proctest.Tail(first.ErrOut.String(), 1), "lease")
	audit := j.caughtUp(second.api)
	if !audit.Clean {
		t.Errorf("the audit has findings: %v", audit.Counts)
	}
	second.stop()
}

// TestLostLeaseEndsAnIdleService: another process has taken the lease, and nothing happens on the ledger, so that no commit finds it out. The
// renewal does: the service is not ready any more, and ends.
func TestLostLeaseEndsAnIdleService(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	w := newWorld(t, ledgersim.Options{}, 4)
	base, url := withDatabase(t, w.follow())
	first := serve(t, base.with(settings{"database.lease_ttl": fmt.Sprint(ttl)}))
	first.waitReady()
	begun := time.Now()
	if n := execute(t, url, `UPDATE disclosured.lease SET epoch = epoch + 1, holder = 'another', expires_at = clock_timestamp() + interval '1 hour'`); n != 1 {
		t.Fatalf("%d leases", n)
	}
	if code := first.Wait(patience); code != exitFailure {
		t.Errorf("the exit code of the writer that lost the lease is %d:\n%s", code, proctest.Tail(first.ErrOut.String(), 10))
	}
	took := time.Since(begun)
	t.Logf("ended %s after another had the lease, with a TTL of %s", took.Round(10*time.Millisecond), ttl)
	checkMentions(t, "what it says", proctest.Tail(first.ErrOut.String(), 1), "lease")
}

// standby is a world and the settings of services that share a database.
func standby(t *testing.T, ttl time.Duration) (*world, settings) {
	w := newWorld(t, ledgersim.Options{}, 4)
	base, _ := withDatabase(t, w.follow())
	return w, base.with(settings{"database.lease_ttl": fmt.Sprint(ttl)})
}
