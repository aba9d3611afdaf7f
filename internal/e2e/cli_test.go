package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// ran is one run of a command.
type ran struct {
	code        int
	out, errOut string
}

// command runs a command to its end.
func command(t *testing.T, args ...string) ran {
	t.Helper()
	code, out, errOut := run(t, nil, args...)
	return ran{code, out, errOut}
}

// wants checks the exit code and what was written.
func (r ran) wants(t *testing.T, code int, mentions ...string) ran {
	t.Helper()
	if r.code != code {
		t.Errorf("the exit code is %d, want %d:\n%s%s", r.code, code, r.out, r.errOut)
	}
	checkMentions(t, "the output", r.out+r.errOut, mentions...)
	return r
}

func TestResolve(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	svc := serve(t, w.follow())
	svc.waitReady()
	app := w.Apps[0]
	vaa, err := w.VAA(app, []byte("resolve"))
	if err != nil {
		t.Fatal(err)
	}
	resolve := func(args ...string) ran {
		t.Helper()
		return command(t, append([]string{"resolve", "--server", svc.address, "--consumer", app.Consumer}, args...)...)
	}
	resolve("0x"+vaa.EncodedHex()).wants(t, 0, "REDEEMABLE", vaa.Digest().String(), app.Root, w.CoreState, "disclose       ReplayNode", "disclose       CoreState", "as of")
	resolve(base64.StdEncoding.EncodeToString(vaa.Encode())).wants(t, 0, "REDEEMABLE", vaa.Digest().String())
	resolve("--digest", strings.ToUpper(vaa.Digest().String())).wants(t, 0, "NOT_CONSUMED", app.Root)

	var contracts []map[string]string
	if err := json.Unmarshal([]byte(resolve("--json", vaa.EncodedHex()).wants(t, 0).out), &contracts); err != nil {
		t.Fatal(err)
	}
	compareShape(t, contracts)
	for _, c := range contracts {
		truth := w.sim.ActiveAt(c["contractId"], w.sim.LedgerEnd())
		if len(truth) != 1 || base64.StdEncoding.EncodeToString(truth[0].Blob) != c["createdEventBlob"] || truth[0].SynchronizerID != c["synchronizerId"] {
			t.Errorf("the disclosure of %s is not the ledger's", c["contractId"])
		}
	}

	result, err := consumeDigest(t.Context(), w, nil, app, vaa.Digest())
	if err != nil {
		t.Fatal(err)
	}
	resolve("--after-update-id", result.UpdateID, vaa.EncodedHex()).wants(t, exitFailure, "ALREADY_CONSUMED", result.UpdateID, "the answer is no")
	if out := resolve("--json", "--after-update-id", result.UpdateID, vaa.EncodedHex()).wants(t, exitFailure).out; strings.TrimSpace(out) != "[]" {
		t.Errorf("the disclosures for a consumed digest are %s", out)
	}
	resolve("--not-contract-id", app.Root, "--wait", "1s", "--digest", newDigest().String()).wants(t, 0, result.Created[0].ContractID)

	resolve("--digest", "abc").wants(t, exitConfig, `--digest "abc"`, "64 hex digits")
	resolve("no VAA").wants(t, exitFailure, "INVALID_FIELD", "vaa")
	resolve().wants(t, exitConfig, "either a VAA or --digest")
	resolve("--namespace", "x", "--digest", vaa.Digest().String()).wants(t, exitFailure, "UNKNOWN_SCOPE")
	command(t, "resolve", "--server", proctest.FreeAddress(t), "--consumer", app.Consumer, "--digest", vaa.Digest().String()).wants(t, exitFailure, "Unavailable")
	svc.stop()
}

// compareShape holds disclosures to those of a recorded request: the same fields, of the same forms.
func compareShape(t *testing.T, contracts []map[string]string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "disclosed-contracts.json"))
	if err != nil {
		t.Fatal(err)
	}
	var recorded []map[string]string
	if err := json.Unmarshal(content, &recorded); err != nil {
		t.Fatal(err)
	}
	if len(contracts) != len(recorded) {
		t.Fatalf("%d disclosures, recorded were %d", len(contracts), len(recorded))
	}
	forms := map[string]*regexp.Regexp{
		"templateId":       regexp.MustCompile(`^[0-9a-f]{64}:Wormhole\.Core\.(State:CoreState|Replay:ReplayNode)$`),
		"contractId":       regexp.MustCompile(`^00[0-9a-f]{64}ca121220[0-9a-f]{64}$`),
		"createdEventBlob": regexp.MustCompile(`^[A-Za-z0-9+/]+=*$`),
		"synchronizerId":   regexp.MustCompile(`^[A-Za-z0-9_-]+::1220[0-9a-f]{64}$`),
	}
	keys := slices.Sorted(maps.Keys(forms))
	for _, c := range append(recorded, contracts...) {
		if got := slices.Sorted(maps.Keys(c)); !slices.Equal(got, keys) {
			t.Errorf("the fields are %v, recorded were %v", got, keys)
		}
		for key, form := range forms {
			if !form.MatchString(c[key]) {
				t.Errorf("%s %q is not of the recorded form", key, c[key])
			}
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 2, 16)
	s, url := withDatabase(t, w.follow())
	file := s.file(t)
	svc := serve(t, s)
	svc.waitReady()
	j := newJudge(t, w)
	for range 10 {
		for _, app := range w.Apps {
			if _, err := consumeDigest(t.Context(), w, j, app, newDigest()); err != nil {
				t.Fatal(err)
			}
		}
	}
	j.caughtUp(svc.api)
	audit := func(svc *service, args ...string) ran {
		t.Helper()
		return command(t, append([]string{"audit", "--server", svc.address}, args...)...)
	}
	audit(svc).wants(t, 0, "audit: clean")
	audit(svc, "--against-ledger", "--config", file).wants(t, 0, "audit: clean", "against the ledger: the same")
	audit(svc, "--consumer", w.Apps[0].Consumer).wants(t, 0, "audit: clean")
	audit(svc, "--consumer", "nobody::1220").wants(t, exitFailure, "UNKNOWN_SCOPE")

	// A gap, made on the ledger: both signatories archive a node.
	node := w.nodes(w.Apps[1])[0]
	if _, err := w.client.Do(t.Context(), []string{w.Operator, w.Apps[1].Consumer}, nil, submit.Archive(wormhole.ReplayNodeTemplate, wormhole.PackageName, node)); err != nil {
		t.Fatal(err)
	}
	j.caughtUp(svc.api)
	audit(svc, "--against-ledger", "--config", file).wants(t, exitFailure, "audit: findings", "gap", w.Apps[1].Consumer, "against the ledger: the same")
	svc.stop()

	// A difference, planted in the database. A row that is gone shows only by comparison. Digests taken out of a node, which would open
	// it for replays, either do too, or were seen when they were read and mended from the ledger: served they are not.
	nodes := w.nodes(w.Apps[0])
	for _, planted := range []struct{ what, statement, node, says string }{
		{"a row deleted", `DELETE FROM disclosured.contract WHERE contract_id = $1`, nodes[0], "active on the participant, not in the index: 1"},
		{"a reassignment that never was", `UPDATE disclosured.contract SET reassignment_counter = 7 WHERE contract_id = $1`, nodes[1], "in both, and not the same (synchronizer, reassignment, blob or content): 1"},
		{"digests removed", `UPDATE disclosured.contract SET consumed = '', consumed_count = 0 WHERE contract_id = (SELECT contract_id FROM disclosured.contract WHERE consumed_count > 0 AND contract_id <> $1 ORDER BY contract_id LIMIT 1)`, nodes[0], ""},
	} {
		if n := execute(t, url, planted.statement, planted.node); n != 1 {
			t.Fatalf("%s: %d rows", planted.what, n)
		}
		svc = serve(t, s)
		svc.waitReady()
		mended := svc.metrics()[`disclosured_stream_reseeds_total{reason="damaged"}`] > 0
		t.Logf("%s: mended from the ledger: %v", planted.what, mended)
		if mended {
			audit(svc, "--against-ledger", "--config", file).wants(t, exitFailure, "against the ledger: the same") // the gap is the ledger's own
		} else {
			audit(svc, "--against-ledger", "--config", file).wants(t, exitFailure, "against the ledger: DIFFERENT", planted.says, planted.node)
		}
		svc.stop()
	}
	audit(svc).wants(t, exitFailure, "Unavailable")
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	base := w.follow()
	doctor := func(s settings) ran {
		t.Helper()
		return command(t, "doctor", "--config", s.file(t))
	}
	t.Run("well", func(t *testing.T) {
		doctor(base).wants(t, 0, "ok     configuration", "ok     connection", w.sim.ParticipantID(), "ok     ledger", "ok     reading", "ok     packages", "ok     anchors", w.CoreState, "note   database")
	})
	t.Run("configuration", func(t *testing.T) {
		doctor(settings{"participant.address": "x"}).wants(t, exitConfig, "participant.read_as", "anchors.guardian_governance")
	})
	t.Run("connection", func(t *testing.T) {
		doctor(base.with(settings{"participant.address": proctest.FreeAddress(t)})).wants(t, exitFailure, "WRONG  connection", "connection refused", "→ ")
	})
	t.Run("participant", func(t *testing.T) {
		doctor(base.with(settings{"participant.id": `"other::1220"`})).wants(t, exitFailure, "WRONG  participant", "other::1220", w.sim.ParticipantID())
	})
	t.Run("package", func(t *testing.T) {
		doctor(base.with(settings{"packages.names": "[warm-hole]"})).wants(t, exitFailure, "WRONG  reading", "warm-hole", "→ ")
	})
	t.Run("anchors", func(t *testing.T) {
		doctor(base.with(settings{"anchors.guardian_governance": fmt.Sprintf("%q", w.Operator)})).wants(t, exitFailure, "WRONG  anchors", "CoreStates of others: ", "puppet")
	})
	t.Run("token", func(t *testing.T) {
		guarded := newGuardedWorld(t, ledgersim.Options{Auth: &ledgersim.AuthOptions{Secret: []byte("secret")}}, 16)
		path, setting := tokenFile(t)
		s := guarded.follow().with(settings{"participant.token_file": setting})
		guarded.grant(path)
		doctor(s).wants(t, 0, "ok     reading", "without TLS")
		guarded.sim.SetRights(reader, nil, nil)
		doctor(s).wants(t, exitFailure, "WRONG  reading", "CanReadAs")
		guarded.sim.ExpireTokens()
		doctor(s).wants(t, exitFailure, "WRONG  connection", "access token")
	})
	t.Run("two CoreStates", func(t *testing.T) {
		two := newWorld(t, ledgersim.Options{}, 16)
		core := two.sim.ActiveAt(two.CoreState, two.sim.LedgerEnd())[0].Payload
		if _, err := two.client.Do(t.Context(), []string{two.Operator, two.GuardianGovernance}, nil, submit.Create(core)); err != nil {
			t.Fatal(err)
		}
		doctor(two.follow()).wants(t, exitFailure, "WRONG  anchors", "2 authentic CoreStates", two.CoreState)
	})
	t.Run("database", func(t *testing.T) {
		doctor(base.with(settings{"database.url_file": fmt.Sprintf("%q", proctest.File(t, "url", "postgres://u:p@"+proctest.FreeAddress(t)+"/d"))})).wants(t, exitFailure, "WRONG  database", "connection refused")
		own := newWorld(t, ledgersim.Options{}, 16)
		s, url := withDatabase(t, own.follow())
		writesNothing(t, url, func() { doctor(s).wants(t, 0, "note   database", "will migrate") })
		writesNothing(t, url, func() {
			doctor(s.with(settings{"database.migrate": "false"})).wants(t, exitFailure, "WRONG  database", "migrate up")
		})
		command(t, "migrate", "--database-url-file", proctest.File(t, "url", url)).wants(t, 0, "applied")
		doctor(s).wants(t, 0, "ok     database", "no index is in it yet")
		svc := serve(t, s)
		svc.waitReady()
		svc.stop()
		writesNothing(t, url, func() { doctor(s).wants(t, 0, "ok     database", "its index stands at offset") })
		own.sim.RestoreTo(own.sim.LedgerEnd() - 3)
		doctor(s).wants(t, exitFailure, "WRONG  database", "past the ledger end", "→ ")
		own.sim.AdvanceLedgerEnd(100)
		own.sim.PruneTo(own.sim.LedgerEnd())
		doctor(s).wants(t, 0, "note   database", "pruned")
		own.sim.BecomeSibling(100)
		doctor(s).wants(t, exitFailure, "WRONG  database", "it holds the index of participant")
	})
}

// A19: an index that is wrong in a way that no start finds out is built anew when the operator says so, and only then.
func TestReseed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	s, url := withDatabase(t, w.follow())
	file := s.file(t)
	urlFile := proctest.File(t, "url", url)
	reseed := func(args ...string) ran {
		t.Helper()
		return command(t, append([]string{"reseed", "--database-url-file", urlFile}, args...)...)
	}
	audit := func(svc *service) ran {
		t.Helper()
		return command(t, "audit", "--server", svc.address, "--against-ledger", "--config", file)
	}
	svc := serve(t, s)
	svc.waitReady()
	reseed("--yes").wants(t, exitFailure, "stop the service first")
	svc.stop()
	lose := func() {
		t.Helper()
		if n := execute(t, url, `DELETE FROM disclosured.contract WHERE contract_id = (SELECT contract_id FROM disclosured.contract WHERE entity = 'ReplayNode' ORDER BY contract_id LIMIT 1)`); n != 1 {
			t.Fatalf("%d rows", n)
		}
	}
	lose() // what the count of contracts tells is mended by the start itself
	svc = serve(t, s)
	svc.waitReady()
	audit(svc).wants(t, 0, "audit: clean", "against the ledger: the same")
	if n := svc.metrics()[`disclosured_stream_reseeds_total{reason="damaged"}`]; n != 1 {
		t.Errorf("%v seeds because of damage", n)
	}
	svc.stop()
	lose()
	execute(t, url, `UPDATE disclosured.cursor SET contracts = contracts - 1`)
	svc = serve(t, s)
	svc.waitReady()
	audit(svc).wants(t, exitFailure, "DIFFERENT", "disclosured reseed")
	svc.stop()
	writesNothing(t, url, func() { reseed().wants(t, exitConfig, "--yes") })
	reseed("--yes").wants(t, 0, "retired the index of participant "+w.sim.ParticipantID())
	reseed("--yes").wants(t, 0, "there is no index")
	svc = serve(t, s)
	svc.waitReady()
	audit(svc).wants(t, 0, "audit: clean", "against the ledger: the same")
	if n := svc.metrics()[`disclosured_stream_reseeds_total{reason="first"}`]; n != 1 {
		t.Errorf("%v first seeds", n)
	}
	command(t, "reseed", "--database-url-file", "/nonexistent/url", "--yes").wants(t, exitConfig, "/nonexistent/url")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	file := proctest.File(t, "url", url)
	migrate := func(args ...string) ran {
		t.Helper()
		return command(t, append([]string{"migrate", "--database-url-file", file}, args...)...)
	}
	empty := dump(t, url)
	migrate("status").wants(t, 0, "00001 ", "pending")
	if after := dump(t, url); after != empty {
		t.Errorf("asking for the status wrote:\n%s", after)
	}
	migrate().wants(t, 0, "applied 20")
	migrate("up").wants(t, 0, "applied 20") // again
	migrate("status").wants(t, 0, "applied 20")
	migrate("down").wants(t, 0, "pending")
	migrate("sideways").wants(t, exitConfig, "sideways")
	command(t, "migrate", "--database-url-file", "/nonexistent/url").wants(t, exitConfig, "/nonexistent/url")
	command(t, "migrate").wants(t, exitConfig, "database-url-file")
}

func TestConfigCommand(t *testing.T) {
	t.Parallel()
	secret := "a-secret-token"
	token := proctest.File(t, "token", secret)
	file := settings{
		"participant.address": "file:1", "participant.read_as": `["operator::1220aa"]`, "participant.token_file": fmt.Sprintf("%q", token),
		"participant.poll_interval": "2s", "anchors.guardian_governance": `"governance::1220aa"`,
	}.file(t)
	code, out, errOut := run(t, []string{"DISCLOSURED_PARTICIPANT_ADDRESS=env:2", "DISCLOSURED_LOG_LEVEL=debug"}, "config", "--config", file, "--participant-address", "flag:3")
	effective := ran{code, out, errOut}.wants(t, 0, `address: "flag:3"`, "poll_interval: 2s", `level: "debug"`, "freshness_bound: 15s", token)
	if strings.Contains(effective.out, secret) {
		t.Error("the secret is printed")
	}
	// What it prints is a configuration file that gives the same.
	again := command(t, "config", "--config", proctest.File(t, "again.yaml", effective.out)).wants(t, 0)
	if again.out != effective.out {
		t.Errorf("read again it is\n%s\nit was\n%s", again.out, effective.out)
	}
	command(t, "config").wants(t, exitConfig, "participant.address", "anchors.guardian_governance")
	command(t, "config", "--list").wants(t, 0, "`participant.address`", "`--participant-address`", "`DISCLOSURED_PARTICIPANT_ADDRESS`")
}

func TestSmallCommands(t *testing.T) {
	t.Parallel()
	command(t, "version").wants(t, 0, "disclosured "+testVersion)
	command(t, "--version").wants(t, 0, testVersion)
	command(t, "help").wants(t, 0, "serve", "resolve", "audit", "doctor", "migrate", "demo", "sim", "completion")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		command(t, "completion", shell).wants(t, 0, "disclosured")
	}
	command(t, "serv").wants(t, exitConfig, "unknown command", "serv")
	command(t, "demo", "--for", "0s").wants(t, exitConfig, "--for")
	command(t, "sim", "--listen", "0.0.0.0:0").wants(t, exitConfig, "loopback")
}

// TestSimAndServe follows what the README says: the settings that the simulated participant prints are those of a service that follows it.
func TestSimAndServe(t *testing.T) {
	t.Parallel()
	sim := start(t, nil, "sim", "--listen", proctest.FreeAddress(t), "--thresholds", "4,16", "--traffic", "50ms")
	until(t, patience, "the settings are printed", func() error {
		if strings.Count(sim.Out.String(), "# DIGEST=") < 2 {
			return errNotYet
		}
		return nil
	})
	file := proctest.File(t, "printed.yaml", sim.Out.String())
	api, ops := proctest.FreeAddress(t), proctest.FreeAddress(t)
	svc := &service{address: api, ops: ops, t: t, Process: start(t, nil, "serve", "--config", file, "--api-listen", api, "--ops-listen", ops)}
	svc.waitReady()
	printed := map[string]string{} // of the last app
	for _, match := range regexp.MustCompile(`(?m)^# (CONSUMER|CID|VAA|DIGEST)=(\S+)$`).FindAllStringSubmatch(sim.Out.String(), -1) {
		printed[match[1]] = match[2]
	}
	resolve := func(args ...string) ran {
		return command(t, append([]string{"resolve", "--server", api, "--consumer", printed["CONSUMER"]}, args...)...)
	}
	resolve(printed["VAA"]).wants(t, 0, "REDEEMABLE", printed["DIGEST"])
	// There is traffic: the root gets a successor.
	resolve("--digest", printed["DIGEST"], "--not-contract-id", printed["CID"], "--wait", "10s").wants(t, 0, "NOT_CONSUMED")
	command(t, "audit", "--server", api, "--against-ledger", "--config", file).wants(t, 0, "audit: clean", "the same")
	svc.stop()
	sim.Signal(syscall.SIGTERM)
	if code := sim.Wait(patience); code != 0 {
		t.Errorf("the simulation's exit code is %d", code)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	for _, database := range []bool{false, true} {
		var env []string
		if database {
			env = []string{"DATABASE_URL=" + pgtest.Database(t)}
		}
		code, out, errOut := run(t, env, "demo", "--for", "2s")
		last := proctest.Tail(out, 1)
		ran{code, out, errOut}.wants(t, 0, "the ledger is simulated")
		if !regexp.MustCompile(`^demo: consumes=[1-9]\d* splits=\d+ retries=\d+ lookups=[1-9]\d* wrong=0 audit=clean p50=\S+ p99=\S+$`).MatchString(last) {
			t.Errorf("the last line is %q", last)
		}
		t.Log(last)
	}
}

// TestDemoIsInterrupted: an interrupt ends it in order, the database of its own included.
func TestDemoIsInterrupted(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	demo := start(t, []string{"DATABASE_URL=" + url}, "demo", "--for", "5m")
	until(t, patience, "the demo runs", func() error {
		if !strings.Contains(demo.Out.String(), "redeemers each") {
			return errNotYet
		}
		return nil
	})
	begun := time.Now()
	demo.Signal(os.Interrupt.(syscall.Signal))
	if code := demo.Wait(patience); code == -1 {
		t.Errorf("the demo was killed by the signal")
	}
	t.Logf("ended with code %d, %s after the interrupt: %s", demo.Code(), time.Since(begun).Round(10*time.Millisecond), proctest.Tail(demo.ErrOut.String(), 1))
	if bytes.Contains([]byte(dump(t, url)), []byte("disclosured.")) {
		t.Error("the demo wrote into the database that it was only to make another beside")
	}
}
