package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/proctest"
)

// The exit codes of the program.
const (
	exitFailure = 1 // a supervisor may start it again
	exitConfig  = 2 // a human has to act; nothing was written
)

// refused runs serve, which has to end by itself with the code, and returns the one line that says why.
func refused(t *testing.T, s settings, code int) string {
	t.Helper()
	s = s.with(settings{"api.listen": proctest.FreeAddress(t), "ops.listen": proctest.FreeAddress(t)})
	begun := time.Now()
	got, _, errOut := run(t, nil, "serve", "--config", s.file(t))
	if got != code {
		t.Fatalf("the exit code is %d, want %d:\n%s", got, code, proctest.Tail(errOut, 20))
	}
	line := proctest.Tail(errOut, 1)
	if !strings.HasPrefix(line, "disclosured: ") {
		t.Errorf("the last line does not say why: %q", line)
	}
	t.Logf("exit %d after %s: %s", got, time.Since(begun).Round(10*time.Millisecond), line)
	return line
}

// dump is everything in a database: every row of every table, sorted. Two that are equal hold the same.
func dump(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	rows, err := conn.Query(t.Context(), `SELECT table_schema || '.' || quote_ident(table_name) FROM information_schema.tables
		WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, table := range tables {
		rows, err := conn.Query(t.Context(), `SELECT t::text FROM `+table+` AS t ORDER BY 1`)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %d rows\n%s\n", table, len(lines), strings.Join(lines, "\n"))
	}
	return b.String()
}

// execute runs a statement, as somebody who spoils a database does.
func execute(t *testing.T, url, statement string, args ...any) int64 {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	tag, err := conn.Exec(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	return tag.RowsAffected()
}

// writesNothing holds the database's content after f to that before it.
func writesNothing(t *testing.T, url string, f func()) {
	t.Helper()
	before := dump(t, url)
	f()
	if after := dump(t, url); after != before {
		t.Errorf("the database has changed; before:\n%s\nafter:\n%s", before, after)
	}
}

func TestStartWithAWrongConfigurationListsAllFaults(t *testing.T) {
	t.Parallel()
	code, _, errOut := run(t, nil, "serve", "--participant-poll-interval", "1ms", "--database-max-connections", "1", "--api-listen", "0.0.0.0:7420",
		"--log-level", "loud", "--anchors-operators", "not a party!", "--database-url-file", "/nonexistent/url")
	if code != exitConfig {
		t.Fatalf("the exit code is %d:\n%s", code, errOut)
	}
	checkMentions(t, "the fault list", errOut, "participant.address", "participant.read_as", "participant.poll_interval", "database.max_connections",
		"api.listen", "log.level", "anchors.operators", "anchors.guardian_governance", "database.url_file", "disclosured config --list")
}

func TestStartWithAnUnknownSettingNamesIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"file", nil, []string{"--config", proctest.File(t, "c.yaml", "participant:\n  adress: x:1\n")}, "adress"},
		{"no file", nil, []string{"--config", "/nonexistent/disclosured.yaml"}, "/nonexistent/disclosured.yaml"},
		{"not YAML", nil, []string{"--config", proctest.File(t, "c.yaml", "participant: [\n")}, "c.yaml"},
		{"variable", []string{"DISCLOSURED_PARTICIPANT_ADRESS=x:1"}, nil, "DISCLOSURED_PARTICIPANT_ADRESS"},
		{"flag", nil, []string{"--participant-adress", "x:1"}, "participant-adress"},
		{"duration", []string{"DISCLOSURED_PARTICIPANT_POLL_INTERVAL=soon"}, nil, "soon"},
	} {
		code, _, errOut := run(t, test.env, append([]string{"serve"}, test.args...)...)
		if code != exitConfig {
			t.Errorf("%s: the exit code is %d: %s", test.name, code, errOut)
		}
		checkMentions(t, test.name, errOut, test.want)
	}
}

func TestStartWithAnUnreachableParticipant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	s, url := withDatabase(t, w.follow())
	s = s.with(settings{"participant.address": proctest.FreeAddress(t), "participant.start_timeout": "1s"})
	writesNothing(t, url, func() {
		checkMentions(t, "the error", refused(t, s, exitFailure), "participant.address", s["participant.address"], "participant.start_timeout", "connection refused")
	})
}

// TestStartWithASilentParticipant: something accepts and never answers, as a wrong port or a dead load balancer.
func TestStartWithASilentParticipant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	p := newProxy(t, w.address)
	p.swallow()
	s := w.follow().with(settings{"participant.address": p.address, "participant.start_timeout": "1s"})
	checkMentions(t, "the error", refused(t, s, exitFailure), "participant.start_timeout", p.address)
}

func TestStartWithAnotherParticipantThanNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	s, url := withDatabase(t, w.follow())
	s = s.with(settings{"participant.id": `"other::1220aa"`})
	writesNothing(t, url, func() { // not even the schema
		checkMentions(t, "the error", refused(t, s, exitConfig), "participant.id", "other::1220aa", w.sim.ParticipantID())
	})
}

// TestA06DatabaseOfAnotherParticipant: the same address leads to another participant when the service starts again. Its offsets mean
// nothing there: the service refuses, and the index stays as it is.
func TestA06DatabaseOfAnotherParticipant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	s, url := withDatabase(t, w.follow())
	svc := serve(t, s)
	svc.waitReady()
	svc.stop()
	first := w.sim.ParticipantID()
	w.sim.BecomeSibling(1000)
	writesNothing(t, url, func() {
		checkMentions(t, "the error", refused(t, s, exitConfig), first, w.sim.ParticipantID(), "another database", "participant.id")
	})
	// Said on purpose, the index is built anew in the same database.
	svc = serve(t, s.with(settings{"participant.id": fmt.Sprintf("%q", w.sim.ParticipantID())}))
	svc.waitReady()
	if _, err := newJudge(t, w).equalsLedger(svc.api); err != nil {
		t.Error(err)
	}
	svc.stop()
}

func TestStartWithADatabaseOfANewerSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	s, url := withDatabase(t, w.follow())
	svc := serve(t, s)
	svc.waitReady()
	svc.stop()
	if n := execute(t, url, `INSERT INTO disclosured.schema_version (version_id, is_applied) VALUES (99999, true)`); n != 1 {
		t.Fatalf("%d rows", n)
	}
	writesNothing(t, url, func() {
		checkMentions(t, "the error", refused(t, s, exitConfig), "newer")
	})
}

func TestStartWithADatabaseThatIsNotMigrated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	s, url := withDatabase(t, w.follow())
	writesNothing(t, url, func() {
		checkMentions(t, "the error", refused(t, s.with(settings{"database.migrate": "false"}), exitConfig), "migrate")
	})
}

func TestStartWithADatabaseThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	secret := "a-secret-password"
	url := "postgres://somebody:" + secret + "@" + proctest.FreeAddress(t) + "/nowhere?sslmode=disable"
	s := w.follow().with(settings{"database.url_file": fmt.Sprintf("%q", proctest.File(t, "url", url))})
	line := refused(t, s, exitFailure)
	checkMentions(t, "the error", line, "database")
	if strings.Contains(line, secret) {
		t.Error("the error has the password")
	}
}

// TestA20UnknownPackageIsWaitedFor: a package that the participant does not have is named and waited for; once it is there the service
// goes on by itself.
func TestA20UnknownPackageIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newParticipant(t, ledgersim.Options{Packages: []ledgersim.Package{}})
	namespace := strings.TrimPrefix(w.sim.ParticipantID(), "sandbox::")
	w.World = &devnet.World{Operator: "operator::" + namespace, GuardianGovernance: "guardianGovernance::" + namespace}
	svc := serve(t, w.follow())
	detail := svc.waitState(patience, "waiting")
	checkMentions(t, "the detail", detail, "wormhole-core")
	svc.waitNotReady(patience, "NOT_SEEDED")
	svc.live()
	dar, err := ledgersim.DAR(ledgersim.WormholeCore010, ledgersim.Integrator010)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.UploadDAR(t.Context(), dar); err != nil {
		t.Fatal(err)
	}
	if w.World, err = devnet.Make(t.Context(), w.client, devnet.Options{Thresholds: []int64{4}}); err != nil {
		t.Fatal(err)
	}
	svc.waitReady()
	newJudge(t, w).caughtUp(svc.api)
	svc.stop()
}

func TestStartWithAPortInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgersim.Options{}, 16)
	var config net.ListenConfig
	taken, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, setting := range []string{"api.listen", "ops.listen"} {
		s := w.follow().with(settings{"api.listen": proctest.FreeAddress(t), "ops.listen": proctest.FreeAddress(t)}).with(settings{setting: taken.Addr().String()})
		code, _, errOut := run(t, nil, "serve", "--config", s.file(t))
		if code != exitConfig {
			t.Errorf("%s: the exit code is %d:\n%s", setting, code, errOut)
		}
		checkMentions(t, setting, proctest.Tail(errOut, 1), setting, taken.Addr().String(), "address already in use")
	}
}
