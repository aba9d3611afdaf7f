// Package pgtest gives tests a real, empty PostgreSQL database each.
//
// A test process shares one server: the one that DISCLOSURED_TEST_DATABASE_URL names, else a private one that is started
// when the first test asks and stopped when the last has run. A package that uses it has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// or, beside a check for leaked goroutines, goleak.VerifyTestMain(pgtest.Around(m)).
//
// A test that asks for a database where none can be had fails. It is not skipped: a green run always means that the
// database tests ran.
//
// # Leftovers
//
// On a shared server each test process holds an advisory lock whose key is part of its databases' names. Databases whose key
// nobody holds are those of a process that died, and are dropped by the next one.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/pgserver"
)

// URLVariable is the environment variable that names an existing server for tests: a postgres:// URL of a database that a role
// with the right to create databases may connect to.
const URLVariable = "DISCLOSURED_TEST_DATABASE_URL"

const (
	namePrefix   = "disclosured_test_"
	startTimeout = 5 * time.Minute // a first start may have to fetch the server
	stepTimeout  = time.Minute     // creating or dropping one database
)

// Main runs a package's tests, stops the server and ends the process.
func Main(m *testing.M) {
	os.Exit(Around(m).Run())
}

// Tests is a package's tests with the server's end after them.
type Tests struct{ m *testing.M }

// Around gives a package's tests as something to run that leaves no server and no goroutine behind.
func Around(m *testing.M) *Tests {
	return &Tests{m}
}

// Run runs the tests, stops the server and gives the exit code.
func (t *Tests) Run() int {
	mainRuns.Store(true)
	code := t.m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return max(code, 1)
	}
	return code
}

// mainRuns tells whether somebody will stop the server after the tests.
var mainRuns atomic.Bool

// Database gives the connection string of a fresh, empty database, which is dropped when the test ends.
func Database(t testing.TB) (dsn string) {
	t.Helper()
	return DatabaseWith(t, pgserver.DatabaseOptions{})
}

// DatabaseWith is Database with options, for example another collation.
func DatabaseWith(t testing.TB, options pgserver.DatabaseOptions) (dsn string) {
	t.Helper()
	if !mainRuns.Load() {
		t.Fatal("pgtest: the package's TestMain must call pgtest.Main")
	}
	host, err := shared.get()
	if err != nil {
		t.Fatalf("pgtest: no PostgreSQL for the tests: %v\n"+
			"Install its server programs (Debian: apt-get install postgresql, or make postgres), name their directory in %s,\n"+
			"or name an existing server in %s.", err, pgserver.BinDirVariable, URLVariable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	name := host.nextName()
	if err := pgserver.CreateDatabaseAt(ctx, host.dsn, name, options); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		if err := pgserver.DropDatabaseAt(ctx, host.dsn, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	dsn, err = pgserver.WithDatabase(host.dsn, name)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return dsn
}

// Server gives a test a server of its own, to kill and restart. It is stopped when the test ends.
func Server(t testing.TB, options pgserver.Options) *pgserver.Server {
	t.Helper()
	options.Download = true
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, options)
	if err != nil {
		t.Fatalf("pgtest: %v\nInstall PostgreSQL's server programs (Debian: apt-get install postgresql, or make postgres), or name "+
			"their directory in %s.", err, pgserver.BinDirVariable)
	}
	t.Cleanup(func() {
		if err := server.Stop(pgserver.Immediate); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// host is the server that a test process's databases are on.
type host struct {
	dsn    string           // of the maintenance database
	server *pgserver.Server // nil where the server is not ours
	lock   *pgx.Conn        // holds the advisory lock; nil where the server is ours alone
	key    int64
	made   atomic.Int64
}

func (h *host) nextName() string {
	return namePrefix + strconv.FormatInt(h.key, 36) + "_" + strconv.FormatInt(h.made.Add(1), 10)
}

// shared is the process's host: made by the first who asks, ended by Run.
var shared lazyHost

type lazyHost struct {
	once sync.Once
	host *host
	err  error
}

func (l *lazyHost) get() (*host, error) {
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		l.host, l.err = newHost(ctx, os.Getenv(URLVariable))
	})
	return l.host, l.err
}

func (l *lazyHost) close() error {
	l.once.Do(func() { l.err = errors.New("the tests are over") })
	if l.host == nil {
		return nil
	}
	var err error
	if l.host.lock != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		err = l.host.lock.Close(ctx)
	}
	if l.host.server != nil {
		err = errors.Join(err, l.host.server.Stop(pgserver.Immediate))
	}
	return err
}

// newHost starts a private server, or joins the existing one at url.
func newHost(ctx context.Context, url string) (*host, error) {
	h := &host{}
	if url == "" {
		server, err := pgserver.Start(ctx, pgserver.Options{Download: true})
		if err != nil {
			return nil, err
		}
		h.server, h.dsn = server, server.DSN("postgres")
		return h, nil
	}
	h.dsn = url
	if _, err := pgserver.WithDatabase(url, "x"); err != nil {
		return nil, fmt.Errorf("%s: %w", URLVariable, err)
	}
	if err := h.join(ctx); err != nil {
		return nil, fmt.Errorf("the server of %s: %w", URLVariable, err)
	}
	return h, nil
}

// join takes this process's advisory lock on a shared server and drops what dead processes left there.
func (h *host) join(ctx context.Context) (err error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("choosing a key: %w", err)
	}
	h.key = int64(binary.BigEndian.Uint64(random[:]) >> 1) // not negative: it is part of a name
	if h.lock, err = pgx.Connect(ctx, h.dsn); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.lock.Close(ctx))
		}
	}()
	if _, err := h.lock.Exec(ctx, "SELECT pg_advisory_lock($1)", h.key); err != nil {
		return fmt.Errorf("taking this process's lock: %w", err)
	}
	rows, err := h.lock.Query(ctx, "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", namePrefix)
	if err != nil {
		return fmt.Errorf("looking for leftovers: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("looking for leftovers: %w", err)
	}
	for _, name := range names {
		if err := h.dropLeftover(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// dropLeftover drops a database if the process that made it is gone.
func (h *host) dropLeftover(ctx context.Context, name string) error {
	text, _, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "_")
	key, err := strconv.ParseInt(text, 36, 64)
	if err != nil {
		return nil // not one of ours, whatever its name
	}
	if key == h.key {
		return nil
	}
	var orphaned bool
	if err := h.lock.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&orphaned); err != nil {
		return fmt.Errorf("asking for the owner of database %q: %w", name, err)
	}
	if !orphaned {
		return nil
	}
	drop := pgserver.DropDatabaseAt(ctx, h.dsn, name)
	if _, err := h.lock.Exec(ctx, "SELECT pg_advisory_unlock($1)", key); err != nil {
		return errors.Join(drop, fmt.Errorf("giving up the lock of database %q: %w", name, err))
	}
	return drop
}
