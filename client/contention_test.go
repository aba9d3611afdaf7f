package client_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// redeemerEnv makes this test's program a process that redeems: a job on its standard input, ends on its standard output.
const redeemerEnv = "DISCLOSURED_TEST_REDEEMER"

// redeemers is how many processes redeem at once.
const redeemers = 8

// job is what one process redeems, as a user who is a stakeholder of nothing.
type job struct {
	Services, VAAs             []string
	Ledger, Party              string
	Operator, Governance       string
	Consumer, Integrator, Sync string
	IntegratorBlob             []byte
	// Impatience is a chance in 100 that a submission is left by its submitter before it has an answer.
	Impatience int
}

// jobEnd is how one redeem of a job ended.
type jobEnd struct {
	Outcome client.Outcome
	Err     string
}

// run redeems one VAA after the other.
func (j *job) run(ctx context.Context) ([]jobEnd, error) {
	plaintext := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient(j.Ledger, plaintext)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c, err := client.New(j.Services, client.Options{
		Anchors: client.Anchors{Operators: []string{j.Operator}, GuardianGovernance: j.Governance}, Dial: []grpc.DialOption{plaintext},
		BackoffInitial: 5 * time.Millisecond, BackoffMax: 500 * time.Millisecond, MaxSubmissions: 1000, SubmitTimeout: 5 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	redeem := redeemWith(submit.New(conn, j.Party[:8]), j.Party, j.Integrator,
		submit.Disclosure{Blob: j.IntegratorBlob, ContractID: j.Integrator, SynchronizerID: j.Sync})
	impatient := func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if rand.N(100) < j.Impatience {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, rand.N(8*time.Millisecond))
			defer cancel()
		}
		return redeem(ctx, p)
	}
	var ends []jobEnd
	for _, encoded := range j.VAAs {
		vaa, err := hex.DecodeString(encoded)
		if err != nil {
			return nil, err
		}
		outcome, err := c.Redeem(ctx, client.Request{Consumer: j.Consumer, VAA: vaa}, impatient)
		end := jobEnd{Outcome: outcome}
		if err != nil {
			end.Err = err.Error()
		}
		ends = append(ends, end)
	}
	return ends, nil
}

// redeemerMain is the whole of a redeemer's process.
func redeemerMain() int {
	var j job
	err := json.NewDecoder(os.Stdin).Decode(&j)
	var ends []jobEnd
	if err == nil {
		ends, err = j.run(context.Background())
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(ends)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "redeemer:", err)
		return 1
	}
	return 0
}

// inProcess runs the job in a process of its own.
func (j *job) inProcess(ctx context.Context) ([]jobEnd, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), redeemerEnv+"=1")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("a redeemer's process: %w", err)
	}
	var ends []jobEnd
	return ends, json.Unmarshal(out, &ends)
}

// Redeemers on one trie who know nothing of each other: all VAAs are committed, each once, and no error comes out.
func TestContention(t *testing.T) {
	for _, test := range []struct {
		name       string
		impatience int
		faults     bool
	}{{"contention", 0, false}, {"faults", 10, true}} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, worldOptions{threshold: 16, latency: 3 * time.Millisecond, services: 2})
			vaas := 200
			switch {
			case soak:
				vaas = 1000
			case raceEnabled:
				vaas = 64
			}
			jobs := make([]*job, redeemers)
			for i := range jobs {
				services := slices.Clone(w.services)
				if i%2 == 1 {
					slices.Reverse(services)
				}
				jobs[i] = &job{Services: services, Ledger: w.ledger, Party: w.party(fmt.Sprintf("stranger%d", i)), Operator: w.world.Operator,
					Governance: w.world.GuardianGovernance, Consumer: w.app.Consumer, Integrator: w.app.Integrator.ContractID,
					IntegratorBlob: w.app.Integrator.Blob, Sync: w.app.Integrator.SynchronizerID, Impatience: test.impatience}
			}
			digests := make([]wormhole.Digest, vaas)
			for i := range vaas {
				vaa := w.vaa()
				digests[i] = vaa.Digest()
				jobs[i%redeemers].VAAs = append(jobs[i%redeemers].VAAs, vaa.EncodedHex())
			}
			var disturbing sync.WaitGroup
			disturbed, stop := context.WithCancel(t.Context())
			if test.faults {
				disturbing.Go(func() { w.disturb(disturbed) })
			}
			begun := time.Now()
			ends := make([][]jobEnd, redeemers)
			errs := make([]error, redeemers)
			var running sync.WaitGroup
			for i, j := range jobs {
				running.Go(func() {
					ends[i], errs[i] = j.inProcess(t.Context())
				})
			}
			running.Wait()
			stop()
			disturbing.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			retries, submissions, probes, most := map[string]int{}, 0, 0, 0
			committed := map[string]string{}
			for _, e := range slices.Concat(ends...) {
				if e.Err != "" || e.Outcome.State != client.Committed {
					t.Errorf("a redeem ended %s: %s; %+v", e.Outcome.State, e.Err, e.Outcome)
				}
				committed[e.Outcome.Digest] = e.Outcome.UpdateID
				for class, n := range e.Outcome.Retries {
					retries[class] += n
				}
				submissions, probes, most = submissions+e.Outcome.Submissions, probes+e.Outcome.Probes, max(most, e.Outcome.Submissions)
			}
			for _, d := range digests {
				if on := w.consumed(d); len(on) != 1 || on[0].UpdateID != committed[d.String()] {
					t.Errorf("digest %s was consumed by %v on the ledger, and by %q for its redeemer", d, on, committed[d.String()])
				}
			}
			t.Logf("%d VAAs by %d processes in %s: %d submissions, %d probes, at most %d for one VAA; not committed: %v", vaas, redeemers,
				time.Since(begun).Round(time.Millisecond), submissions, probes, most, sortedCounts(retries))
			if test.faults && retries[client.ClassUnknown.String()] == 0 {
				t.Error("no outcome was unknown: the faults did not reach anyone")
			}
		})
	}
}

func sortedCounts(m map[string]int) (out []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", k, m[k]))
	}
	return out
}

// disturb makes the participant drop connections, refuse calls without a word of whether it took them, and lose answers after the commit.
func (w *world) disturb(ctx context.Context) {
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	var before int64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		// Refusals queue up; more of them only once somebody got through.
		end := w.sim.LedgerEnd()
		if end == before {
			continue
		}
		before = end
		switch rand.N(8) {
		case 0:
			w.sim.DropConnections()
		case 1, 2:
			w.sim.FailNext(submitMethod, status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL"))
		case 3, 4:
			w.sim.FailNext(submitMethod, status.Error(codes.Unavailable, "error reading from server: EOF"))
		default:
			w.sim.LoseAnswers(1)
		}
	}
}

// Several redeemers with the same VAA: one commits it, and all others are told so.
func TestOneVAAManyRedeemers(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4, latency: 2 * time.Millisecond})
	c := w.client(w.options())
	for round := range 4 {
		vaa := w.vaa()
		outcomes := make([]client.Outcome, 6)
		errs := make([]error, len(outcomes))
		var running sync.WaitGroup
		for i := range outcomes {
			user := w.party(fmt.Sprintf("rival%d-%d", round, i))
			running.Go(func() { outcomes[i], errs[i] = c.Redeem(t.Context(), w.request(vaa), w.redeemer(user)) })
		}
		running.Wait()
		states := map[client.State]int{}
		for i, o := range outcomes {
			states[o.State]++
			w.want(o, errs[i], o.State, vaa.Digest())
		}
		if states[client.Committed] != 1 || states[client.Consumed] != len(outcomes)-1 {
			t.Errorf("six redeemers of one VAA ended %v, want one committed", states)
		}
	}
}
