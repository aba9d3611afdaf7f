package postgres

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "rapid.checks" })
	if !asked && os.Getenv("DISCLOSURED_SOAK") != "1" {
		flag.Set("rapid.checks", "10") // each is dozens of transactions
	}
	goleak.VerifyTestMain(pgtest.Around(m))
}

// quiet is a logger for tests in which warnings are expected.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// execModes are the ways to talk to the server that must all work: the default; the two that poolers may force.
var execModes = []string{"cache_describe", "exec", "simple_protocol"}

// forEachMode runs a test in each mode, each with a database of its own.
func forEachMode(t *testing.T, f func(t *testing.T, url string)) {
	for _, mode := range execModes {
		t.Run(mode, func(t *testing.T) { f(t, withParam(pgtest.Database(t), "default_query_exec_mode="+mode)) })
	}
}

// withParam adds a parameter to a URL.
func withParam(url, param string) string {
	if strings.Contains(url, "?") {
		return url + "&" + param
	}
	return url + "?" + param
}

// open opens a store on a migrated database, closed with the test.
func open(t testing.TB, url string) *Store {
	t.Helper()
	return openWith(t, Config{URL: url})
}

func openWith(t testing.TB, cfg Config) *Store {
	t.Helper()
	cfg.Migrate = true
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// writer opens a store and takes the lease.
func writer(t testing.TB, url string) *Store {
	t.Helper()
	s := open(t, url)
	lease(t, s, "writer")
	return s
}

func lease(t testing.TB, s *Store, holder string) *Lease {
	t.Helper()
	l, err := s.AcquireLease(t.Context(), LeaseOptions{Holder: holder, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// seedWith commits a seed of the entries.
func seedWith(t testing.TB, s *Store, start ledger.SeedStart, end index.SeedEnd, entries ...*index.Entry) {
	t.Helper()
	ctx := t.Context()
	seed, err := s.BeginSeed(ctx, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := seed.Add(ctx, entries); err != nil {
		t.Fatal(err)
	}
	end.Position.ParticipantID, end.Position.Offset = start.ParticipantID, start.Offset
	if err := seed.Commit(ctx, end); err != nil {
		t.Fatal(err)
	}
}

// load reads the present generation.
func load(t testing.TB, s *Store) (map[index.Key]*index.Entry, index.Loaded) {
	t.Helper()
	entries := map[index.Key]*index.Entry{}
	loaded, err := s.Load(context.WithoutCancel(t.Context()), func(e *index.Entry) error {
		if entries[e.Key()] != nil {
			t.Errorf("loaded twice: %v", e.Key())
		}
		entries[e.Key()] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries, loaded
}

// countRows counts all rows of a table, whatever generation they are of.
func countRows(t testing.TB, s *Store, table string) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM disclosured.`+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
