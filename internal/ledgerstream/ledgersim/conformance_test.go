package ledgersim_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay/recordings"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

var update = flag.Bool("update", false, "write docs/conformance.md")

const report = "../../../docs/conformance.md"

// outOfScope are single calls that are not compared, with the reason; whole methods are those that are missing from methods.
var outOfScope = map[string]string{
	"02-consume-split 39": "it shows other scenarios' contracts",
	"10-packages 22":      "a package of the recorder's own",
	"10-packages 23":      "a package of the recorder's own",
}

// allowed are calls that differ, with the reason why that is accepted.
var allowed = map[string]string{
	"13-shutdown 17": "the recorded participant was still starting up",
	"13-shutdown 18": "the recorded participant was still starting up",
}

// TestConformance drives every recorded call that the daemon, the demo and the tests make against the simulated participant, each
// recording in its order and at its times, and compares what the two gave: codes, reasons, metadata keys, resources, kinds and order of
// events, fields present and absent, values.
func TestConformance(t *testing.T) {
	all, err := recordings.All()
	if err != nil {
		t.Fatal(err)
	}
	var results []result
	for _, r := range all {
		results = append(results, tell(t, r)...)
	}
	differing := 0
	for _, r := range results {
		key := fmt.Sprintf("%s %d", r.recording, r.call.N)
		why, accepted := allowed[key]
		switch {
		case len(r.diffs) > 0 && !accepted:
			differing++
			if differing <= 40 {
				t.Errorf("%s %s (%s):\n\t%s", key, r.call.Method, r.call.Note, strings.Join(r.diffs[:min(3, len(r.diffs))], "\n\t"))
			}
		case len(r.diffs) == 0 && accepted:
			t.Errorf("%s is allowed to differ (%s) and does not", key, why)
		}
	}
	if differing > 0 {
		t.Errorf("%d calls differ", differing)
	}
	text := summary(results)
	t.Log("\n" + text)
	if *update {
		if err := os.WriteFile(report, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("docs/conformance.md is not what the test found (run with -update):\n%s", diff)
	}
}

var recorded = flag.String("recording", "", "hold the simulated participant to this recording too: a calls.jsonl or calls.jsonl.gz, as package record writes")

// TestConformanceToOne holds the simulated participant to a recording as package record writes it: the one that -recording names, from
// another version of a participant say, else a small story of its own.
func TestConformanceToOne(t *testing.T) {
	path := *recorded
	if path == "" {
		path = recordOne(t)
	}
	r, err := replay.Load(os.DirFS(filepath.Dir(path)), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	compared, differing := 0, 0
	for _, result := range tell(t, r) {
		if result.outOfScope != "" || unrepeatable(result.call) {
			continue
		}
		compared++
		if len(result.diffs) > 0 {
			differing++
			t.Errorf("call %d %s (%s):\n\t%s", result.call.N, result.call.Method, result.call.Note, strings.Join(result.diffs[:min(3, len(result.diffs))], "\n\t"))
		}
	}
	t.Logf("%d of %d calls compared, %d differ", compared, len(r.Calls), differing)
	if *recorded == "" && compared != len(r.Calls) {
		t.Errorf("%d of %d calls were compared", compared, len(r.Calls))
	}
}

// unrepeatable tells whether a call can't be made again as it was: its answer came from the connection and not from the participant, or
// what it sent was too large to be kept.
func unrepeatable(c *replay.Call) bool {
	return c.Status.Code == codes.Unavailable && len(c.Status.Raw) == 0 || strings.Contains(c.RequestNote, "created_event_blob left out")
}

// recordOne records a small story and returns the path of its calls.
func recordOne(t *testing.T) string {
	t.Helper()
	sim := ledgersim.New(ledgersim.Options{Seed: 5})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Stop()
	recorder := record.New(record.Options{Name: "one", Compress: true})
	conn, err := grpc.NewClient(address, append(recorder.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := submit.New(conn, "one")
	for _, dar := range daml.DARs()[:2] {
		if err := c.UploadDAR(ctx, dar.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	var parties []string
	for _, hint := range []string{"operator-one", "consumerA-one"} {
		party, err := c.AllocateParty(ctx, hint)
		if err != nil {
			t.Fatal(err)
		}
		parties = append(parties, party)
	}
	begin := sim.LedgerEnd()
	made, err := c.Do(ctx, parties, nil, submit.Create(&wormhole.ReplayNode{Operator: parties[0], Consumer: parties[1], SplitThreshold: 1}))
	if err != nil {
		t.Fatal(err)
	}
	node := made.Created[0]
	for i := range byte(3) { // the first fills the node, the second splits it
		digest := wormhole.Digest{0, i}
		done, err := c.Do(ctx, parties[1:], nil, submit.ConsumeDigest(node.ContractID, digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		node = done.Created[0]
	}
	for _, disclosed := range [][]submit.Disclosure{nil, {submit.Disclose(made.Created[0].Contract)}} {
		if _, err := c.Do(ctx, parties[1:], disclosed, submit.ConsumeDigest(made.Created[0].ContractID, wormhole.Digest{9}.String())); err == nil {
			t.Fatal("a stale node was consumed on")
		}
	}
	templates := map[string][]record.Template{wormhole.PackageName: {{Module: "Wormhole.Core.Replay", Entity: "ReplayNode"}}}
	if err := record.ReadBack(ctx, conn, parties[:1], templates, begin, sim.LedgerEnd()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := recorder.Write(dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, recorder.CallsFile())
}

// tell drives one recording.
func tell(t *testing.T, r *replay.Recording) []result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s := &story{t: t, recording: r, clock: newClock(r.Calls[0].StartedAt.Add(-time.Minute - phase(r))), known: contentsOf(r), tails: map[int]*tailCall{}, ctx: ctx}
	options := ledgersim.Options{Seed: 7, Packages: []ledgersim.Package{}, Synchronizers: len(r.Synchronizers())}
	switch r.Name {
	case "11-auth":
		options.Packages = nil
		options.Auth = &ledgersim.AuthOptions{Secret: []byte("secret")}
	case "09a-pruning-refused", "13-shutdown":
		options.Packages = []ledgersim.Package{ledgersim.WormholeCore010, ledgersim.WormholeCore020, ledgersim.Integrator010}
	}
	s.start(options)
	s.connect()
	defer func() {
		if err := s.conn.Close(); err != nil {
			t.Error(err)
		}
		s.sim.Stop()
	}()
	s.compare = newComparer(s.fingerprints())
	if r.Name != "11-auth" {
		s.allocate()
	}
	s.run()
	slices.SortFunc(s.results, func(a, b result) int { return a.call.N - b.call.N })
	return s.results
}

// phases are when, relative to a recording's start, the recorded participant last renewed its cached checkpoint; that was not recorded, and
// with these its streams' checkpoints are explained. Elsewhere it makes no difference.
var phases = map[string]time.Duration{"10-packages": 12495 * time.Millisecond, "11-auth": 9 * time.Second}

func phase(r *replay.Recording) time.Duration {
	if *beat >= 0 {
		return *beat
	}
	return phases[r.Name]
}

var beat = flag.Duration("beat", -1, "try another phase of the checkpoints")

// reconnect goes on with another participant at the same address.
func (s *story) reconnect() {
	s.compare.fixed = s.fingerprints()
	s.compare.offsets = map[int64]int64{0: 0}
	s.conn.Connect()
	for state := s.conn.GetState(); state != connectivity.Ready; state = s.conn.GetState() {
		s.conn.ResetConnectBackoff()
		if !s.conn.WaitForStateChange(s.ctx, state) {
			s.t.Fatal("no connection to the next participant")
		}
	}
}

var (
	partyPattern = regexp.MustCompile(`[A-Za-z0-9-]+::1220[0-9a-f]{64}`)
	syncPattern  = regexp.MustCompile(`synchronizer-[0-9]+::1220[0-9a-f]{64}`)
)

// fingerprints replaces the recorded participant's and synchronizers' by the simulated ones.
func (s *story) fingerprints() *strings.Replacer {
	var pairs []string
	seen := map[string]bool{}
	add := func(recorded, simulated string) {
		if !seen[recorded] {
			seen[recorded] = true
			pairs = append(pairs, recorded, simulated)
		}
	}
	// Whole synchronizer ids first: in a sandbox they share the participant's fingerprint or not.
	for _, c := range s.recording.Calls {
		for _, id := range syncPattern.FindAllString(string(c.RequestJSON), -1) {
			s.addSynchronizer(id, add)
		}
	}
	for _, id := range s.recording.Synchronizers() {
		s.addSynchronizer(id, add)
	}
	for _, c := range s.recording.Calls {
		for _, response := range c.Responses {
			for _, id := range syncPattern.FindAllString(string(response.Raw), -1) {
				s.addSynchronizer(id, add)
			}
		}
	}
	_, mine, _ := strings.Cut(s.sim.ParticipantID(), "::")
	for _, fingerprint := range s.ownFingerprints() {
		add(fingerprint, mine)
	}
	return strings.NewReplacer(pairs...)
}

func (s *story) addSynchronizer(id string, add func(recorded, simulated string)) {
	alias, _, _ := strings.Cut(id, "::")
	for _, simulated := range s.sim.Synchronizers() {
		if strings.HasPrefix(simulated, alias+"::") {
			add(id, simulated)
		}
	}
}

// ownFingerprints are those of the recorded participants: of their parties, and of themselves.
func (s *story) ownFingerprints() []string {
	found := map[string]bool{}
	for _, c := range s.recording.Calls {
		for _, id := range partyPattern.FindAllString(string(c.RequestJSON), -1) {
			name, fingerprint, _ := strings.Cut(id, "::")
			if strings.HasPrefix(name, "operator") || strings.HasPrefix(name, "consumer") {
				found[fingerprint] = true
			}
		}
		for _, response := range c.Responses {
			for _, id := range partyPattern.FindAllString(string(response.Raw), -1) {
				if _, fingerprint, _ := strings.Cut(id, "::"); strings.Contains(id, "sandbox::") {
					found[fingerprint] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// parties are the simulated ids of all parties that the recording uses.
func (s *story) parties() []string {
	found := map[string]bool{}
	_, mine, _ := strings.Cut(s.sim.ParticipantID(), "::")
	for _, c := range s.recording.Calls {
		for _, id := range partyPattern.FindAllString(string(c.RequestJSON), -1) {
			if translated := s.compare.fixed.Replace(id); strings.HasSuffix(translated, "::"+mine) {
				found[translated] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// allocate makes the parties that the recording uses without allocating them.
func (s *story) allocate() {
	if slices.ContainsFunc(s.recording.Calls, func(c *replay.Call) bool { return strings.HasSuffix(c.Method, "/AllocateParty") }) {
		return
	}
	for _, id := range s.parties() {
		name, _, _ := strings.Cut(id, "::")
		if !strings.HasPrefix(name, "synchronizer") {
			s.sim.AllocateParty(name)
		}
	}
}

// summary is the table of what was compared.
func summary(results []result) string {
	type row struct{ compared, same, allowed, out int }
	byMethod, reasons := map[string]*row{}, map[string]int{}
	var total row
	var exceptions []string
	for _, r := range results {
		name := strings.TrimPrefix(r.call.Method, "/")
		name = strings.TrimPrefix(name, "com.daml.ledger.api.v2.")
		m := byMethod[name]
		if m == nil {
			m = &row{}
			byMethod[name] = m
		}
		if r.outOfScope != "" {
			m.out++
			total.out++
			if r.outOfScope != "method" {
				reasons[r.outOfScope]++
			}
			continue
		}
		m.compared++
		total.compared++
		switch why := allowed[fmt.Sprintf("%s %d", r.recording, r.call.N)]; {
		case len(r.diffs) == 0:
			m.same++
			total.same++
		case why != "":
			m.allowed++
			total.allowed++
			exceptions = append(exceptions, fmt.Sprintf("| %s | %d | %s | %s |", r.recording, r.call.N, r.call.Note, why))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# The simulated participant against recordings of a real one\n\n"+
		"Written by `go test ./internal/ledgerstream/ledgersim -run TestConformance -update`, and held to it by the same test.\n\n"+
		"Every recorded call that the daemon, the demo and the tests make is made again to the simulated participant, each recording in its order\n"+
		"and at its times. Compared are: gRPC code, reason, metadata keys, retry hint, resources, the model's messages; number, kinds and order of\n"+
		"responses and events; every field's presence and value, with ids matched one to one, offsets by a growing map and times by presence.\n\n"+
		"%d calls recorded, %d compared, %d the same, %d different for a reason given below, %d out of scope.\n\n"+
		"| method | compared | same | allowed | out of scope |\n|---|---|---|---|---|\n",
		total.compared+total.out, total.compared, total.same, total.allowed, total.out)
	for _, name := range slices.Sorted(maps.Keys(byMethod)) {
		m := byMethod[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, m.compared, m.same, m.allowed, m.out)
	}
	b.WriteString("\nMethods without a compared call are called by nobody here. Single calls are out of scope because of:\n\n")
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "- %s: %d\n", why, reasons[why])
	}
	if len(exceptions) > 0 {
		b.WriteString("\nAllowed differences:\n\n| recording | call | what | why |\n|---|---|---|---|\n" + strings.Join(exceptions, "\n") + "\n")
	}
	return b.String()
}
