package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/pgserver"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// fault is one thing that can happen to the service, and what then has to be seen.
type fault struct {
	// name is the table's first column.
	name string
	// database keeps the index in Postgres; else it lives in memory.
	database bool
	sim      ledgersim.Options
	// ownServer gives the database a server of its own, to kill.
	ownServer bool
	// settings are laid over the usual ones.
	settings settings
	// configure gives settings that depend on the world.
	configure func(w *world) settings
	// happen makes it happen, and asserts what is seen while it lasts and after it.
	happen func(r *faultRun)
}

// faultRun is a service that follows a world with load, and readers whose answers are judged from the beginning to the end, while a
// fault happens. What it asserts it also records: a row of docs/faults.md.
type faultRun struct {
	*testing.T
	w        *world
	j        *judge
	svc      *service
	settings settings
	proxy    *proxy           // between the service and the participant
	db       *proxy           // between the service and the database
	direct   string           // the database's URL, past the proxy
	server   *pgserver.Server // the database's own server, if it has one
	load     *load
	token    string // the file of the service's token, where the participant asks for one
	// current is the service that readers ask.
	mu      sync.Mutex
	current *service

	before map[string]float64
	row    faultRow
}

// faultRow is a line of docs/faults.md.
type faultRow struct {
	name               string
	store              string
	seen, told, answer []string
	after              []string
}

// runFault runs one fault.
func runFault(t *testing.T, f fault) faultRow {
	r := &faultRun{T: t, row: faultRow{name: f.name, store: "memory"}}
	var expected []string
	if f.sim.Auth != nil {
		r.w = newGuardedWorld(t, f.sim, 3)
	} else {
		r.w = newWorld(t, f.sim, 3)
	}
	r.proxy = newProxy(t, r.w.address)
	r.settings = r.w.follow().with(settings{"participant.address": r.proxy.address, "api.listen": proctest.FreeAddress(t), "ops.listen": proctest.FreeAddress(t)}).with(f.settings)
	if f.configure != nil {
		r.settings = r.settings.with(f.configure(r.w))
	}
	if f.database {
		r.row.store = "Postgres"
		expected = append(expected, "STORE_UNAVAILABLE")
		url := ""
		if f.ownServer {
			r.server = pgtest.Server(t, pgserver.Options{})
			if err := r.server.CreateDatabase(t.Context(), "e2e", pgserver.DatabaseOptions{}); err != nil {
				t.Fatal(err)
			}
			url = r.server.DSN("e2e")
		} else {
			url = pgtest.Database(t)
		}
		r.direct = url
		r.db, url = proxied(t, url)
		r.settings = atDatabase(t, r.settings, url)
	}
	if f.sim.Auth != nil {
		var setting string
		r.token, setting = tokenFile(t)
		r.w.grant(r.token)
		r.settings["participant.token_file"] = setting
	}
	r.j = newJudge(t, r.w)
	r.j.expect(expected...)
	r.start()
	r.svc.waitReady()
	r.load = startLoad(r.w, r.j, 1, 50*time.Millisecond)
	startReaders(r.j, 1, 10*time.Millisecond, r.api)
	r.metricsFromHere()
	f.happen(r)
	n, summary := r.j.total()
	t.Logf("%d answers judged: %s", n, summary)
	return r.row
}

// start starts the service, again where it was stopped.
func (r *faultRun) start() {
	r.Helper()
	svc := serve(r.T, r.settings)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.svc, r.current = svc, svc
}

func (r *faultRun) api() disclosurev1.DisclosureServiceClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.api
}

// metricsFromHere counts metrics from this moment.
func (r *faultRun) metricsFromHere() { r.before = r.svc.metrics() }

// shows waits until all of the counters have grown, or all of the gauges (by their names) differ from 0, and records them.
func (r *faultRun) shows(samples ...string) {
	r.Helper()
	for _, sample := range samples {
		until(r, patience, "the metric "+sample+" tells", func() error {
			if now := r.svc.metrics()[sample]; now <= r.before[sample] {
				return fmt.Errorf("it is %v", now)
			}
			return nil
		})
		r.row.told = append(r.row.told, "`"+sample+"`")
	}
}

// reseeded waits for a new generation of the given reason, and records it.
func (r *faultRun) reseeded(reason string) {
	r.Helper()
	r.shows(fmt.Sprintf("disclosured_stream_reseeds_total{reason=%q}", reason))
	r.j.learn()
}

// replaced waits for a new generation because of a history that another one has replaced, of which snapshot, which ends it, holds the
// reading; asserts that nothing of the former history is served meanwhile, to nobody; and has it go on.
func (r *faultRun) replaced(reason string, snapshot func()) {
	r.Helper()
	r.reseeded(reason)
	r.waitFor("snapshot", "NOT_READY", "NOT_READY")
	if got := r.prepare(true); got != "NOT_READY" {
		r.Errorf("with allow_stale the answer is %s", got)
	}
	r.shows("disclosured_stream_history_replaced")
	snapshot()
}

// is waits until the follower's state, /readyz and the answer to PrepareRedeem are as given at once, and records them. ready is "ready"
// or the reason; answer is "OK" or the reason.
func (r *faultRun) is(state, ready, answer string) {
	r.Helper()
	r.waitFor(state, ready, answer)
	r.row.seen = append(r.row.seen, state)
	r.row.answer = append(r.row.answer, fmt.Sprintf("/readyz %s, calls %s", readyText(ready), answer))
}

func readyText(ready string) string {
	if ready == "ready" {
		return "200"
	}
	return "503 " + ready
}

func (r *faultRun) waitFor(state, ready, answer string) {
	r.Helper()
	r.j.expect(answer)
	until(r, patience, fmt.Sprintf("state %s, /readyz %s, calls %s", state, readyText(ready), answer), func() error {
		info, err := r.svc.info()
		if err != nil {
			return err
		}
		isReady := "ready"
		if err := r.svc.ready(); err != nil {
			_, reason, _ := strings.Cut(err.Error(), ": ")
			isReady, _, _ = strings.Cut(reason, ":")
		}
		called := r.prepare(false)
		if info.StreamState != state || isReady != ready || called != answer {
			return fmt.Errorf("state %s (%s), /readyz %s, calls %s", info.StreamState, info.StreamDetail, isReady, called)
		}
		return nil
	})
}

// prepare asks once, and returns OK or the error's reason.
func (r *faultRun) prepare(stale bool) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := r.j.prepareRequest(consumption{r.w.Apps[0], newDigest()})
	request.Read = &disclosurev1.ReadOptions{AllowStale: stale}
	if _, err := r.svc.api.PrepareRedeem(ctx, request); err != nil {
		reason, _ := reasonOf(err)
		return reason
	}
	return "OK"
}

// staleAnswers asserts that allow_stale gets an answer all the same.
func (r *faultRun) staleAnswers() {
	r.Helper()
	if got := r.prepare(true); got != "OK" {
		r.Errorf("with allow_stale the answer is %s", got)
	}
	r.row.answer = append(r.row.answer, "with allow_stale OK")
}

// stays asserts for a while, in which the ledger moves on, that the service stays ready and keeps up.
func (r *faultRun) stays(state string) {
	r.Helper()
	for range 10 {
		r.advances()
		if err := r.svc.ready(); err != nil {
			r.Errorf("the service should stay ready: %v", err)
		}
	}
	r.is(state, "ready", "OK")
}

// advances waits until the index is at the present ledger end.
func (r *faultRun) advances() {
	r.Helper()
	end := r.w.sim.LedgerEnd()
	until(r, patience, fmt.Sprintf("the index reaches offset %d", end), func() error {
		info, err := r.svc.info()
		if err != nil {
			return err
		}
		if at := info.GetAnswer().GetPosition().GetOffset(); at < end {
			return fmt.Errorf("it is at %d, %s: %s", at, info.StreamState, info.StreamDetail)
		}
		return nil
	})
}

// follows waits until the service's live stream is open.
func (r *faultRun) follows() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := r.w.sim.AwaitTails(ctx, 1); err != nil {
		r.Fatalf("the live stream is open: %v", err)
	}
}

// loadAgain begins load anew.
func (r *faultRun) loadAgain() { r.load = startLoad(r.w, r.j, 1, 50*time.Millisecond) }

// grows waits until the ledger has so many offsets more.
func (r *faultRun) grows(offsets int64) {
	r.Helper()
	end := r.w.sim.LedgerEnd()
	until(r, patience, "the ledger moves on", func() error {
		if r.w.sim.LedgerEnd() < end+offsets {
			return errNotYet
		}
		return nil
	})
}

// stopsAt asserts that the service stands before the offset and is alive; told is the offset that the metric of the halt has.
func (r *faultRun) stopsAt(told, offset int64) {
	r.Helper()
	info, err := r.svc.info()
	if err != nil {
		r.Fatal(err)
	}
	if at := info.GetAnswer().GetPosition().GetOffset(); at >= offset {
		r.Errorf("the index stands at %d, and what can't be read is at %d", at, offset)
	}
	if at := int64(r.svc.metrics()["disclosured_stream_halted_at_offset"]); at != told {
		r.Errorf("the halt's offset is told as %d, it should be %d", at, told)
	}
	r.svc.live()
}

// imports imports a root of a consumer of its own, made long ago, and returns its contract id.
func (r *faultRun) imports(mode ledgersim.ImportMode) string {
	r.Helper()
	consumer := r.w.sim.AllocateParty(fmt.Sprintf("imported-%d", digests.Add(1)))
	_, ids, err := r.w.sim.Import(mode, time.Now().Add(-time.Hour), &wormhole.ReplayNode{Consumer: consumer, Operator: r.w.Operator, SplitThreshold: 16})
	if err != nil {
		r.Fatal(err)
	}
	return ids[0]
}

// askHistoryAtOnce asks at once for what only the database knows, more calls than it has connections (D06): each ends within its deadline,
// with an answer or an error of its own.
func (r *faultRun) askHistoryAtOnce(calls int) {
	r.Helper()
	const deadline = 2 * time.Second
	var asking sync.WaitGroup
	for range calls {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			begun := time.Now()
			_, err := r.svc.api.GetContractFate(ctx, &disclosurev1.GetContractFateRequest{
				ContractId: r.w.Apps[0].Root, Read: &disclosurev1.ReadOptions{AllowStale: true},
			})
			if err != nil {
				if reason, _ := reasonOf(err); reason != "STORE_UNAVAILABLE" && reason != "DEADLINE_EXCEEDED" && reason != "DeadlineExceeded" {
					r.Errorf("a call for history while the database is gone: %v", err)
				}
			}
			if took := time.Since(begun); took > deadline+3*time.Second {
				r.Errorf("a call with a deadline of %s took %s", deadline, took)
			}
		})
	}
	asking.Wait()
}

// recoversWithin is recovers with a bound of the service's own promise.
func (r *faultRun) recoversWithin(bound time.Duration, text string) {
	r.Helper()
	begun := time.Now()
	until(r, patience, "the service is ready again", r.svc.ready)
	if took := time.Since(begun); took > bound {
		r.Errorf("ready again after %s, the bound is %s", took, bound)
	} else {
		r.Logf("ready again after %s", took.Round(10*time.Millisecond))
	}
	r.recovers(text)
}

// recovers waits until the service follows again, and holds the index to the ledger; text says for the table what became of it.
func (r *faultRun) recovers(text string) {
	r.Helper()
	r.waitFor("live", "ready", "OK")
	audit := r.j.caughtUp(r.svc.api)
	if !audit.Clean {
		r.Errorf("the audit has findings: %v", audit.Counts)
	}
	r.row.after = append(r.row.after, text)
}

// theTable is docs/faults.md.
func theTable(rows []faultRow) string {
	var b strings.Builder
	b.WriteString(`# What happens when

Made by the tests of internal/e2e (go test ./internal/e2e -run TestFaults -update): each line is what a running service, with load on the
ledger and readers whose answers were compared with the ledger's truth all the time, was seen to do. In none was an answer wrong
(where the ledger became another one, by the former until the service knew, and never after). The bound on
the age of the last proof (api.freshness_bound) was ` + freshnessBound.String() + ` and the ledger end was asked for every 100 ms; by default
(participant.poll_interval) they are 15s and 1s, and what follows from them takes as much longer. The retries are the service's own.
"Ready" is /readyz and grpc.health. It is lost before answers are refused: while the ledger is not followed it holds until the last proof is older
than twice the poll interval and a second (3s by default; NOT_READY), where calls are answered to the bound. Where calls are refused, the reason is that of [errors.md](errors.md).

| what happens | index in | stream | callers see | metrics that tell | after it |
|---|---|---|---|---|---|
`)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.name, r.store, strings.Join(r.seen, " → "), strings.Join(r.answer, "; "),
			strings.Join(r.told, "<br>"), strings.Join(r.after, "; "))
	}
	return b.String()
}

// compareTable holds docs/faults.md to what was seen, or with -update rewrites it.
func compareTable(t *testing.T, rows []faultRow) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", "faults.md")
	table := theTable(rows)
	if *update {
		if err := os.WriteFile(path, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(written) != table {
		t.Errorf("docs/faults.md is not what was seen (run go test ./internal/e2e -run TestFaults -update); seen:\n%s", table)
	}
}
