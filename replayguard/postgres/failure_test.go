package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/pgserver"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

// TestG08ServerKilled: what was reserved when the database's server is killed stays reserved until its expiry.
func TestG08ServerKilled(t *testing.T) {
	server := pgtest.Server(t, pgserver.Options{})
	pool := newPool(t, server.DSN("postgres"), 8)
	s := open(t, pool, replayguard.Limits{Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}})
	clock := stopClock(t, pool)

	// Reservations go on until the kill; each that was answered must be there afterwards.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var reserved []replayguard.Reservation
	enough := make(chan struct{})
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				r, err := s.Reserve(ctx, replayguard.Request{Client: "alice", ID: guardtest.ID(worker<<16 + i), ExpiresAt: guardtest.Start + 60})
				if err != nil {
					return // the server is gone
				}
				mu.Lock()
				if reserved = append(reserved, r); len(reserved) == 100 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	cancel()
	all.Wait()
	if err := server.Restart(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	// The port may be another.
	pool = newPool(t, server.DSN("postgres"), 8)
	s = open(t, pool, replayguard.Limits{})
	var last replayguard.Token
	for _, r := range reserved {
		_, err := s.Reserve(t.Context(), replayguard.Request{Client: "bob", ID: r.ID, ExpiresAt: guardtest.Start + 60})
		refusal := guardtest.WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		if refusal.ExpiresAt != r.ExpiresAt {
			t.Errorf("reserved until %d, want %d", refusal.ExpiresAt, r.ExpiresAt)
		}
		last = max(last, r.Token)
	}
	checkInvariants(t, pool)
	exec(t, pool, fmt.Sprintf(`UPDATE public.stopped_clock SET now = %d`, clock.Unix()+61))
	r, err := s.Reserve(t.Context(), replayguard.Request{Client: "bob", ID: reserved[0].ID, ExpiresAt: guardtest.Start + 120})
	if err != nil || r.Token <= last {
		t.Errorf("after the expiry: %+v, %v, want a token after %d", r, err, last)
	}
}

const childURL = "REPLAYGUARD_TEST_CHILD_URL"

// TestG08ProcessKilled: a process reserves and is killed; the next one finds its reservations.
func TestG08ProcessKilled(t *testing.T) {
	if url := os.Getenv(childURL); url != "" {
		reserveAndHang(t, url)
		return
	}
	url := pgtest.Database(t)
	s := open(t, newPool(t, url, 2), replayguard.Limits{})
	child := killedChild(t, url)
	expiresAt, token := int64(0), replayguard.Token(0)
	if _, err := fmt.Sscan(child, &expiresAt, &token); err != nil {
		t.Fatalf("the child said %q: %v", child, err)
	}
	_, err := s.Reserve(t.Context(), replayguard.Request{Client: "bob", ID: guardtest.ID(1), ExpiresAt: expiresAt})
	if refusal := guardtest.WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate); refusal.ExpiresAt != expiresAt {
		t.Errorf("reserved until %d, want %d", refusal.ExpiresAt, expiresAt)
	}
	// The holder's next process gets its reservation back by the key.
	r, err := s.Reserve(t.Context(), replayguard.Request{Client: "alice", ID: guardtest.ID(1), ExpiresAt: expiresAt, Key: replayguard.NewKey("alice's")})
	if err != nil || !r.Again || r.Token != token {
		t.Errorf("got %+v, %v, want token %d again", r, err, token)
	}
}

// killedChild runs this test in another process, kills that once it has reserved, and gives what it said.
func killedChild(t *testing.T, url string) string {
	t.Helper()
	cmd := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestG08ProcessKilled$", "-test.count=1")
	cmd.Env = append(os.Environ(), childURL+"="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	said := ""
	for lines.Scan() {
		var ok bool
		if said, ok = strings.CutPrefix(lines.Text(), "reserved "); ok {
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	return said
}

func reserveAndHang(t *testing.T, url string) {
	s := open(t, newPool(t, url, 2), replayguard.Limits{})
	r, err := s.Reserve(t.Context(), replayguard.Request{Client: "alice", ID: guardtest.ID(1), ExpiresAt: time.Now().Unix() + 1000, Key: replayguard.NewKey("alice's")})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("reserved", r.ExpiresAt, r.Token)
	<-t.Context().Done() // until killed
}

// TestDatabaseGone: a call fails within its timeout, and with no refusal.
func TestDatabaseGone(t *testing.T) {
	t.Run("refuses connections", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		wantFailure(t, ln.Addr().String())
	})
	t.Run("does not answer", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close() // it is never accepted from
		wantFailure(t, ln.Addr().String())
	})
}

func wantFailure(t *testing.T, address string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@"+address+"/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const timeout = 300 * time.Millisecond
	limits, _ := replayguard.Limits{AllowRelease: true}.WithDefaults()
	s := &Store{pool: pool, timeout: timeout, log: quiet, limits: limits}
	claim := replayguard.Claim{Client: "alice", ID: guardtest.ID(1), Token: 1}
	for name, call := range map[string]func() error{
		"Reserve": func() error {
			_, err := s.Reserve(t.Context(), replayguard.Request{Client: "alice", ID: guardtest.ID(1), ExpiresAt: time.Now().Unix() + 60})
			return err
		},
		"Settle":  func() error { _, err := s.Settle(t.Context(), claim, replayguard.Committed); return err },
		"Extend":  func() error { _, err := s.Extend(t.Context(), claim, 1); return err },
		"Release": func() error { return s.Release(t.Context(), claim) },
		"Stats":   func() error { _, err := s.Stats(t.Context()); return err },
		"Sweep":   func() error { return s.Sweep(t.Context()) },
	} {
		began := time.Now()
		err := call()
		var refusal *replayguard.Refusal
		if err == nil || errors.As(err, &refusal) || errors.Is(err, replayguard.ErrNoReservation) {
			t.Errorf("%s: got %v, want a failure", name, err)
		}
		// Without a timeout of its own a call would take the driver's two minutes; a busy machine takes seconds of what it likes.
		if took := time.Since(began); took > timeout+30*time.Second {
			t.Errorf("%s took %v, its timeout is %v", name, took, timeout)
		}
	}
}

// TestSchema: up, down and up again gives the same; a schema that is not this program's is told.
func TestSchema(t *testing.T) {
	ctx := t.Context()
	pool := newPool(t, pgtest.Database(t), 2)
	if _, err := Open(ctx, pool, Config{}); !errors.Is(err, ErrNotMigrated) {
		t.Fatalf("got %v, want ErrNotMigrated", err)
	}
	if query[bool](t, pool, `SELECT to_regnamespace('replayguard') IS NOT NULL`) {
		t.Error("a look at the schema has written something")
	}
	var all sync.WaitGroup
	for range 4 { // at once
		all.Go(func() {
			if _, err := Migrate(ctx, pool, Up); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	first := describe(t, pool)
	if strings.Count(first, "\n") < 20 {
		t.Fatalf("the schema is %s", first)
	}
	if missing := query[*string](t, pool, `SELECT string_agg(c.relname || '.' || a.attname, ' ') FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = 'replayguard'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND c.relname <> 'schema_version'
		AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid) IS NULL)`); missing != nil {
		t.Errorf("without a comment: %s", *missing)
	}
	if version, err := Migrate(ctx, pool, Down); err != nil || version != 0 {
		t.Fatalf("version %d, %v", version, err)
	}
	if left := describe(t, pool); strings.Contains(left, "reservation") || strings.Contains(left, "function") {
		t.Errorf("after all the way down: %s", left)
	}
	if version, err := Migrate(ctx, pool, Down); err != nil || version != 0 {
		t.Fatalf("down from nothing: version %d, %v", version, err)
	}
	if version, err := Migrate(ctx, pool, Up); err != nil || version != 1 {
		t.Fatalf("version %d, %v", version, err)
	}
	if second := describe(t, pool); second != first {
		t.Errorf("up, down, up:\n%s\nwas\n%s", second, first)
	}
	exec(t, pool, `INSERT INTO replayguard.schema_version (version_id, is_applied) VALUES (1000, true)`)
	if _, err := Open(ctx, pool, Config{Migrate: true}); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("got %v, want ErrNewerSchema", err)
	}
	if _, err := Migrate(ctx, pool, Down); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("got %v, want ErrNewerSchema", err)
	}
	if _, err := Migrate(ctx, pool, "sideways"); err == nil {
		t.Error("an unknown direction is no error")
	}
}

// describe lists what is in the schema.
func describe(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, pool, `SELECT coalesce(string_agg(line, E'\n' ORDER BY line COLLATE "C"), '') FROM (
		SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || a.attnotnull::text AS line
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			WHERE c.relnamespace = 'replayguard'::regnamespace AND c.relkind IN ('r', 'S') AND a.attnum > 0
		UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'replayguard'
		UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'replayguard'::regnamespace
		UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'replayguard'::regnamespace) lines`)
}
