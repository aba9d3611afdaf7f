package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// newPool connects to a database with so many connections.
func newPool(t testing.TB, url string, conns int) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = int32(conns)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// open opens a store without a sweeper on a migrated database.
func open(t testing.TB, pool *pgxpool.Pool, limits replayguard.Limits) *Store {
	t.Helper()
	s, err := Open(t.Context(), pool, Config{Limits: limits, Migrate: true, SweepEvery: -1, Timeout: time.Minute, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// withParam adds a parameter to a URL.
func withParam(url, param string) string {
	if strings.Contains(url, "?") {
		return url + "&" + param
	}
	return url + "?" + param
}

func exec(t testing.TB, pool *pgxpool.Pool, statement string) {
	t.Helper()
	if _, err := pool.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func query[T any](t testing.TB, pool *pgxpool.Pool, statement string) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.WithoutCancel(t.Context()), statement).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// stopClock puts a clock that stands still into the database's function, and gives it.
func stopClock(t testing.TB, pool *pgxpool.Pool) *guardtest.Clock {
	t.Helper()
	exec(t, pool, `CREATE TABLE IF NOT EXISTS public.stopped_clock (now bigint NOT NULL)`)
	exec(t, pool, `CREATE OR REPLACE FUNCTION replayguard.now_seconds() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT now FROM public.stopped_clock'`)
	exec(t, pool, `TRUNCATE public.stopped_clock; INSERT INTO public.stopped_clock VALUES (0)`)
	return guardtest.NewClock(func(now time.Time) {
		exec(t, pool, fmt.Sprintf(`UPDATE public.stopped_clock SET now = %d`, now.Unix()))
	})
}

// empty forgets all, as if the schema were new.
func empty(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `DELETE FROM replayguard.reservation; DELETE FROM replayguard.holding; DELETE FROM replayguard.client;
		UPDATE replayguard.pool SET retained = 0, lapsed = 0, horizon = -9223372036854775808`)
}

// checkInvariants compares the counts with the rows.
func checkInvariants(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for what, wrong := range map[string]string{
		"the pool counts other than the rows":     `SELECT retained::text FROM replayguard.pool WHERE retained <> (SELECT count(*) FROM replayguard.reservation)`,
		"there is not one pool":                   `SELECT count(*)::text FROM replayguard.pool HAVING count(*) <> 1`,
		"a client's count is other than its rows": `SELECT client FROM replayguard.holding h WHERE live <> (SELECT count(*) FROM replayguard.reservation r WHERE r.client = h.client)`,
		"a client has rows and no count":          `SELECT client FROM replayguard.reservation r WHERE NOT EXISTS (SELECT FROM replayguard.holding h WHERE h.client = r.client)`,
		"a client has rows and is not known":      `SELECT client FROM replayguard.reservation r WHERE NOT EXISTS (SELECT FROM replayguard.client c WHERE c.name = r.client)`,
		"a client has paid for what has not lapsed": `SELECT name FROM replayguard.client c JOIN replayguard.holding h ON h.client = c.name WHERE lapses_charged >
			lapses + (SELECT count(*) FROM replayguard.reservation r WHERE r.client = c.name AND r.outcome = 0 AND r.expires_at < replayguard.now_seconds())`,
	} {
		if got := query[*string](t, pool, `SELECT (`+wrong+` LIMIT 1)`); got != nil {
			t.Errorf("%s: %s", what, *got)
		}
	}
}
