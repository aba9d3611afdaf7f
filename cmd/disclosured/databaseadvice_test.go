package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/pgserver"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// edited runs statements on a database.
func edited(t *testing.T, url string, statements ...string) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	for _, sql := range statements {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// startsWith starts a service on a database and gives why it ended, nil where it became ready.
func startsWith(t *testing.T, config Config, url string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	svc, err := startService(ctx, config, url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- svc.group.Wait()
		cancel()
	}()
	if svc.waitReady(ctx) == nil {
		if err := svc.stop(); err != nil {
			t.Error(err)
		}
		return nil
	}
	svc.conn.Close()
	svc.cancel()
	return <-ended
}

// What a human did to the schema or to rows, no restart mends: it is said in one line with what does, and that does mend it.
func TestHandEditsOfTheDatabaseEndWithAdvice(t *testing.T) {
	_, participant := startSim(t, ledgersim.Options{})
	world, err := makeWorld(t.Context(), participant, []int64{4})
	if err != nil {
		t.Fatal(err)
	}
	config := followWorld(participant, world)
	config.Guard.AllowAnonymous = true
	const schema, contents = "schema was changed by hand: run DROP SCHEMA disclosured CASCADE", "contents were changed by hand: stop the service and run `disclosured reseed`"
	const guard = "schema was changed by hand: run DROP SCHEMA replayguard CASCADE"
	for _, c := range []struct{ edit, want string }{
		{`ALTER TABLE disclosured.cursor DROP COLUMN contracts`, schema},
		{`DROP TABLE disclosured.consume CASCADE`, schema},
		{`ALTER TABLE disclosured.cursor ALTER COLUMN ledger_offset TYPE text`, schema},
		{`DELETE FROM disclosured.schema_version WHERE version_id = 2`, schema},
		{`UPDATE disclosured.lease SET epoch = 9223372036854775807`, contents},
		{`DELETE FROM replayguard.schema_version WHERE version_id = 1`, guard},
	} {
		url := pgtest.Database(t)
		if err := startsWith(t, config, url); err != nil {
			t.Fatal(err)
		}
		edited(t, url, c.edit)
		err := startsWith(t, config, url)
		if human := (configError{}); !errors.As(err, &human) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want one line, of an error that a human mends, with %q", c.edit, err, c.want)
			continue
		}
		_, advice, _ := strings.Cut(c.want, "run ")
		if !strings.HasPrefix(advice, "DROP") {
			advice = "DROP SCHEMA disclosured CASCADE" // the last resort of what reseed can't mend
		}
		edited(t, url, advice)
		if err := startsWith(t, config, url); err != nil {
			t.Errorf("%s: the advice does not mend it: %v", c.edit, err)
		}
	}
}

// Which of the server's codes are whose: a statement's own, or the connection's.
func TestKindsOfDatabaseErrors(t *testing.T) {
	refused := func(code string) error {
		return fmt.Errorf("database: doing: %w", &pgconn.PgError{Code: code, Message: "m"})
	}
	for _, c := range []struct {
		err   error
		human bool
		want  string
	}{
		{refused("42703"), true, "schema was changed by hand"},
		{refused("3F000"), true, "schema was changed by hand"},
		{pgx.ScanArgError{Err: errors.New("cannot scan NULL into *int64")}, true, "schema was changed by hand"},
		{refused("22003"), true, "disclosured reseed"},
		{refused("23502"), true, "disclosured reseed"},
		{refused("42501"), true, "grant"},
		{refused("42P05"), true, "default_query_exec_mode"},
		{refused("25006"), false, "primary"},
		{refused("53100"), false, "no room"},
		{refused("57P01"), false, "PostgreSQL stopped"},
		{refused("57P02"), false, "PostgreSQL stopped"},
		{refused("08006"), false, "PostgreSQL stopped"},
		{io.ErrUnexpectedEOF, false, "PostgreSQL stopped"},
		{refused("40001"), false, ""},
		{context.DeadlineExceeded, false, ""},
		{postgres.ErrVersionLost, true, "DROP SCHEMA disclosured CASCADE"},
	} {
		err := databaseError("opening the index", c.err)
		if human := (configError{}); errors.As(err, &human) != c.human || !strings.Contains(err.Error(), c.want) || c.want == "" && strings.Contains(err.Error(), "→") {
			t.Errorf("%v: got %v; want words about %q, for a human: %v", c.err, err, c.want, c.human)
		}
	}
}

// ownServer is a server that asks for passwords and has no TLS, and the URL of its only database with another user, password, name or query.
func ownServer(t *testing.T) (server *pgserver.Server, with func(change func(u *url.URL, query url.Values)) string) {
	t.Helper()
	server = pgtest.Server(t, pgserver.Options{})
	return server, func(change func(u *url.URL, query url.Values)) string {
		u, err := url.Parse(server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		query := u.Query()
		change(u, query)
		u.RawQuery = query.Encode()
		return u.String()
	}
}

// A setting of the URL that is wrong is named, and is the human's.
func TestWrongSettingsOfTheDatabaseAreNamed(t *testing.T) {
	_, participant := startSim(t, ledgersim.Options{})
	_, with := ownServer(t)
	absent := filepath.Join(t.TempDir(), "absent.pem")
	noPEM := fileWith(t, "no certificate")
	set := func(name, value string) func(*url.URL, url.Values) {
		return func(_ *url.URL, query url.Values) { query.Set(name, value) }
	}
	for _, c := range []struct {
		what, want string
		change     func(*url.URL, url.Values)
	}{
		{"TLS asked of a server without", "sslmode", set("sslmode", "require")},
		{"an authority that is not there", absent + ": no such file", set("sslrootcert", absent)},
		{"an authority that is none", "sslrootcert", set("sslrootcert", noPEM)},
		{"a mode of TLS that is none", "sslmode", set("sslmode", "demand")},
		{"an unknown parameter", "take slmode out of the URL", set("slmode", "require")},
		{"a parameter's value", "take work_mem out of the URL", set("work_mem", "much")},
		{"an unknown option", "take options out of the URL", set("options", "-c disclosured=1")},
		{"a wrong password", "correct user and password", func(u *url.URL, _ url.Values) { u.User = url.UserPassword(pgserver.Superuser, "hunter2") }},
		{"an unknown user", "correct user and password", func(u *url.URL, _ url.Values) { u.User = url.UserPassword("nobody", "hunter2") }},
		{"an unknown database", "createdb", func(u *url.URL, _ url.Values) { u.Path = "/nowhere" }},
	} {
		file := fileWith(t, with(c.change))
		for _, args := range [][]string{
			{"serve", "--participant-plaintext", "--participant-address", participant, "--participant-read-as", operatorParty,
				"--anchors-guardian-governance", "g::1220bb", "--api-listen", "127.0.0.1:0", "--ops-listen", "", "--log-level", "error"},
			{"migrate"}, {"reseed", "--yes"},
		} {
			code, said := exit(t, append(args, "--database-url-file", file)...)
			last := strings.Split(strings.TrimSpace(said), "\n")
			if code != exitConfig || !strings.Contains(last[len(last)-1], c.want) || strings.Contains(said, "is PostgreSQL running") || strings.Contains(said, "hunter2") {
				t.Errorf("%s: %s: exit %d, want %d and words about %q; it said %s", c.what, args[0], code, exitConfig, c.want, said)
			}
		}
	}
}

// A schema that lacks migrations is told of once.
func TestAnOldSchemaIsToldOnce(t *testing.T) {
	url := pgtest.Database(t)
	file := fileWith(t, url)
	if code, said := exit(t, "migrate", "--database-url-file", file); code != exitOK {
		t.Fatal(said)
	}
	if code, said := exit(t, "migrate", "down", "--database-url-file", file); code != exitOK {
		t.Fatal(said)
	}
	code, said := exit(t, "reseed", "--yes", "--database-url-file", file)
	if code != exitConfig || strings.Count(said, "disclosured migrate up") != 1 || !strings.Contains(said, "--database-url-file") {
		t.Errorf("exit %d: %s", code, said)
	}
}

// A standby whose password is changed while it waits for the lease is to be started again, and not given up.
func TestAStandbyOutlivesAChangeOfPassword(t *testing.T) {
	err := fmt.Errorf("database: taking the writer's lease: %w", refusedConnection(t))
	if human := (configError{}); errors.As(databaseError(waitingForLease, err), &human) {
		t.Error("a standby ends for good")
	}
	if human := (configError{}); !errors.As(databaseError("opening the database", err), &human) {
		t.Error("a start goes on for ever")
	}
}

func refusedConnection(t *testing.T) error {
	t.Helper()
	_, with := ownServer(t)
	_, err := pgx.Connect(t.Context(), with(func(u *url.URL, _ url.Values) { u.User = url.UserPassword(pgserver.Superuser, "wrong") }))
	if refusal := (*pgconn.PgError)(nil); !errors.As(err, &refusal) || refusal.Code != "28P01" {
		t.Fatalf("got %v", err)
	}
	return err
}

// A server that is killed while a statement runs may come back: one line, with advice, and a supervisor starts again.
func TestAServerThatStopsMeanwhile(t *testing.T) {
	server, with := ownServer(t)
	db, err := pgx.Connect(t.Context(), with(func(*url.URL, url.Values) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	failed := make(chan error, 1)
	go func() {
		_, err := db.Exec(t.Context(), "SELECT pg_sleep(60)")
		failed <- err
	}()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	err = databaseError("opening the index", <-failed)
	if human := (configError{}); errors.As(err, &human) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "→ PostgreSQL stopped") {
		t.Errorf("got %v", err)
	}
}

// While the ledger is followed what to do stands in the log, whose errors may be texts.
func TestTheLogSaysWhatToDo(t *testing.T) {
	refused := &pgconn.PgError{Severity: "ERROR", Code: "22003", Message: "bigint out of range"}
	for _, c := range []struct {
		attribute slog.Attr
		want      string
	}{
		{slog.Any("error", fmt.Errorf("committing: %w", refused)), "disclosured reseed"},
		{slog.String("error", "committing: "+refused.Error()), "disclosured reseed"},
		{slog.Any("err", &pgconn.PgError{Code: "42703"}), "DROP SCHEMA disclosured CASCADE"},
		{slog.String("error", "replayguard: reserving: ERROR: x (SQLSTATE 42P01)"), "DROP SCHEMA replayguard CASCADE"},
		{slog.String("error", "failed to connect to `user=u database=d`: FATAL: x (SQLSTATE 28P01)"), "correct user and password"},
		{slog.String("error", "the participant is away"), ""},
		{slog.Any("error", &pgconn.PgError{Code: "40001"}), ""},
		{slog.String("error", "terminating connection (SQLSTATE 57P01)"), ""},
		{slog.String("other", refused.Error()), ""},
	} {
		var out strings.Builder
		log := slog.New(advisingHandler{slog.NewTextHandler(&out, nil)}).With("a", 1).WithGroup("g")
		log.LogAttrs(t.Context(), slog.LevelWarn, "failed", c.attribute)
		if advised := strings.Contains(out.String(), "todo="); advised != (c.want != "") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: %s; want %q in it", c.attribute, out.String(), c.want)
		}
	}
}

// linesWith gives each line that is written to it and has the words.
type linesWith struct {
	words string
	lines chan string
}

func (w linesWith) Write(line []byte) (int, error) {
	if strings.Contains(string(line), w.words) {
		select {
		case w.lines <- string(line):
		default: // one is enough
		}
	}
	return len(line), nil
}

// A counter that a hand set to its end stops every commit: the service tries on, and says what mends it.
func TestAFollowerSaysWhatMendsItsDatabase(t *testing.T) {
	ctx := t.Context()
	_, participant := startSim(t, ledgersim.Options{})
	world, err := makeWorld(ctx, participant, []int64{4})
	if err != nil {
		t.Fatal(err)
	}
	config := followWorld(participant, world)
	url := pgtest.Database(t)
	said := linesWith{"22003", make(chan string, 1)}
	svc, err := startService(ctx, config, url, slog.New(advisingHandler{slog.NewTextHandler(said, nil)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := svc.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := svc.waitReady(ctx); err != nil {
		t.Fatal(err)
	}
	edited(t, url, `UPDATE disclosured.cursor SET commit_seq = 9223372036854775807`)
	conn, err := dialParticipant(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	app := world.Apps[0]
	if _, err := submit.New(conn, bootstrapUser).Do(ctx, []string{app.Consumer}, nil, submit.ConsumeDigest(app.Root, strings.Repeat("ab", 32))); err != nil {
		t.Fatal(err)
	}
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	select {
	case line := <-said.lines:
		if !strings.Contains(line, "disclosured reseed") {
			t.Errorf("it does not say what to do: %s", line)
		}
	case <-deadline.C:
		t.Error("nothing is said of the commit that fails")
	}
}
