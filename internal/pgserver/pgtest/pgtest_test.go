package pgtest

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/pgserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Around(m)) }

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// databases gives the names of the test databases on a server.
func databases(t *testing.T, dsn string) []string {
	t.Helper()
	conn := connect(t, dsn)
	rows, err := conn.Query(t.Context(), "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", namePrefix)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestDatabasesAreFreshAndDropped(t *testing.T) {
	var first, second string
	t.Run("use", func(t *testing.T) {
		first, second = Database(t), DatabaseWith(t, pgserver.DatabaseOptions{ICULocale: "en-US"})
		for _, dsn := range []string{first, second} {
			if _, err := connect(t, dsn).Exec(t.Context(), "CREATE TABLE mine (n int)"); err != nil {
				t.Errorf("the database is not fresh: %v", err)
			}
		}
	})
	if first == second {
		t.Errorf("one database for two: %s", first)
	}
	for _, dsn := range []string{first, second} {
		if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
			_ = conn.Close(t.Context())
			t.Error("a database outlived its test")
		}
	}
}

func TestSharedServerIsSweptOfTheDeadOnly(t *testing.T) {
	url := Server(t, pgserver.Options{}).DSN("postgres")
	join := func() *lazyHost {
		t.Helper()
		l := &lazyHost{}
		l.once.Do(func() { l.host, l.err = newHost(t.Context(), url) })
		if l.err != nil {
			t.Fatal(l.err)
		}
		return l
	}
	create := func(name string) string {
		t.Helper()
		if err := pgserver.CreateDatabaseAt(t.Context(), url, name, pgserver.DatabaseOptions{}); err != nil {
			t.Fatal(err)
		}
		return name
	}
	foreign := create(namePrefix + "!") // only looks like ours
	dead, living := join(), join()
	leftover, used := create(dead.host.nextName()), create(living.host.nextName())
	if err := dead.close(); err != nil { // its session ends, as a dead process's does
		t.Fatal(err)
	}
	newcomer := join()
	got, want := databases(t, url), []string{foreign, used}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("databases %v, want %v (%s is the dead one's)", got, want, leftover)
	}
	for _, l := range []*lazyHost{living, newcomer} {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNoServerIsAnErrorThatHidesThePassword(t *testing.T) {
	for _, url := range []string{"host=x password=hidden", "postgres://u:hidden@127.0.0.1:1/postgres?connect_timeout=1"} {
		if _, err := newHost(t.Context(), url); err == nil {
			t.Errorf("a server at %s", url)
		} else if s := err.Error(); len(s) == 0 || slices.Contains([]string{url}, s) || containsHidden(s) {
			t.Errorf("the error shows the password: %s", s)
		}
	}
}

func containsHidden(s string) bool {
	for i := 0; i+6 <= len(s); i++ {
		if s[i:i+6] == "hidden" {
			return true
		}
	}
	return false
}
