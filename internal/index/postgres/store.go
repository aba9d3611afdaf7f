package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
)

// Store is index.Store over PostgreSQL. Its methods are safe for concurrent use; one goroutine at a time writes.
//
// Writing needs a lease (AcquireLease), and Commit needs to know the present generation: by Load, or because this store's own
// seed made it.
type Store struct {
	pool    *pgxpool.Pool
	dialer  *dialer
	log     *slog.Logger
	timeout time.Duration
	// beginWrite begins a transaction with the deadlines that the server keeps.
	beginWrite string
	// clock is the SQL expression by which leases expire. Tests set another.
	clock string

	// epoch is the held lease's; 0 without one.
	epoch atomic.Int64
	// silent ends, and is replaced, when the database is found silent.
	silent atomic.Pointer[silence]
	// generation is the one that Commit's deltas are computed from; 0 where it is not known.
	generation atomic.Int64

	scopes scopeCache

	// life ends with Close. background is the sweeper, which deletes rows that no longer count, and the renewal of a lease.
	life       context.Context
	stop       context.CancelFunc
	sweepNow   chan struct{}
	background sync.WaitGroup
	closed     sync.Once
}

var _ index.Store = (*Store)(nil)

// Open connects to the database and compares its schema with this program's. It fails with an error that wraps ErrNotMigrated or
// ErrNewerSchema where they differ, and has then written nothing; with Config.Migrate pending migrations are applied first.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	dialer := newDialer(cfg.ConnectTimeout)
	poolConfig, err := cfg.poolConfig(dialer.dial)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	s := newStore(pool, dialer, cfg)
	err = s.read(ctx, "checking the schema", func(ctx context.Context, conn *pgxpool.Conn) error { return checkVersion(ctx, conn) })
	if errors.Is(err, ErrNotMigrated) && cfg.Migrate {
		_, err = Migrate(ctx, cfg, Up)
	}
	if err != nil {
		s.closePool()
		return nil, err
	}
	s.start(cfg)
	return s, nil
}

// newStore is a store over connections, of which nothing is known yet.
func newStore(pool *pgxpool.Pool, dialer *dialer, cfg Config) *Store {
	s := &Store{pool: pool, dialer: dialer, log: cfg.Logger, timeout: cfg.Timeout, clock: "clock_timestamp()", sweepNow: make(chan struct{}, 1)}
	s.beginWrite = fmt.Sprintf("begin isolation level read committed read write; set local statement_timeout = %d; set local idle_in_transaction_session_timeout = %d",
		cfg.Timeout.Milliseconds(), min(cfg.Timeout, idleTimeout).Milliseconds())
	s.silent.Store(newSilence())
	return s
}

// start starts what runs in the background, until Close.
func (s *Store) start(cfg Config) {
	s.life, s.stop = context.WithCancel(context.Background())
	if !cfg.noSweeper {
		s.background.Go(s.sweepLoop)
	}
}

// Close stops what runs in the background, waits for it, and closes the connections, within seconds whatever the server does. No
// other method may be running. A lease that was not released is left to expire.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.stop()
		s.background.Wait()
		s.closePool()
	})
}

// closePool closes the connections, by force where they don't close by themselves.
func (s *Store) closePool() {
	force := time.AfterFunc(goodbye, s.dialer.end)
	defer force.Stop()
	s.pool.Close()
}

// Ping proves that the database answers.
func (s *Store) Ping(ctx context.Context) error {
	return s.read(ctx, "pinging", func(ctx context.Context, conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, "SELECT 1")
		return err
	})
}

// Stat is the pool's state, for metrics.
func (s *Store) Stat() *pgxpool.Stat { return s.pool.Stat() }

// attempts is how often a transaction is tried in all, where trying again is safe, and backoff what lies between.
const attempts = 3

var backoff = [attempts - 1]time.Duration{50 * time.Millisecond, 250 * time.Millisecond}

// errOutcomeUnknown is wrapped where COMMIT was sent and not answered.
var errOutcomeUnknown = errors.New("it is not known whether the transaction was committed")

// write runs f in one transaction, and again where it is certain that nothing was committed: f must not keep anything of an
// attempt that failed.
func (s *Store) write(ctx context.Context, what string, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.retry(ctx, what, func(ctx context.Context, conn *pgxpool.Conn) (again bool, err error) {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: s.beginWrite})
		if err != nil {
			return transient(err), err
		}
		if err := f(ctx, tx); err != nil {
			s.rollback(ctx, tx)
			return transient(err), err
		}
		err = tx.Commit(ctx)
		var answer *pgconn.PgError
		switch {
		case err == nil:
			return false, nil
		case errors.Is(err, pgx.ErrTxCommitRollback):
			return false, err
		case errors.As(err, &answer) && serialization(answer), pgconn.SafeToRetry(err): // undone by the server; never sent
			return true, err
		default:
			return false, fmt.Errorf("%w: %w", errOutcomeUnknown, err)
		}
	})
}

// read runs f on one connection, and again if the connection turns out to be broken.
func (s *Store) read(ctx context.Context, what string, f func(ctx context.Context, conn *pgxpool.Conn) error) error {
	return s.retry(ctx, what, func(ctx context.Context, conn *pgxpool.Conn) (bool, error) {
		err := f(ctx, conn)
		return transient(err), err
	})
}

// retry gives f a connection and the deadline, up to three times.
func (s *Store) retry(ctx context.Context, what string, f func(ctx context.Context, conn *pgxpool.Conn) (again bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		conn, err := s.pool.Acquire(ctx)
		again := true
		if err == nil {
			again, err = f(ctx, conn)
			conn.Release()
		}
		if err == nil {
			return nil
		}
		if !again || attempt == attempts || !pause(ctx, backoff[attempt-1]) {
			return fmt.Errorf("database: %s: %w", what, err)
		}
	}
}

// pause waits; false where the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// rollback ends a transaction that failed, even where the context has ended: a connection given back inside of a transaction
// would be closed, which costs a new one.
func (s *Store) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // a connection that can't is closed by the pool, and the server rolls back
}

// transient reports whether an error before COMMIT is worth another try: the connection broke, the server is stopping or
// starting, or transactions got into each other's way.
func transient(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		var connect *pgconn.ConnectError
		return errors.As(err, &connect) || pgconn.SafeToRetry(err) || brokenConnection(err)
	}
	class := answer.Code[:min(2, len(answer.Code))]
	return serialization(answer) || class == "08" || class == "57" && answer.Code != "57014"
}

// brokenConnection reports whether the error is the connection's own end.
func brokenConnection(err error) bool {
	var network *net.OpError
	return errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network)
}

// serialization: the server undid the transaction because of another one.
func serialization(err *pgconn.PgError) bool { return err.Code == "40001" || err.Code == "40P01" }

// Position is the place of the present generation; see index.Store.
func (s *Store) Position(ctx context.Context) (pos ledger.Position, ok bool, err error) {
	err = s.read(ctx, "reading the index's place", func(ctx context.Context, conn *pgxpool.Conn) error {
		c, found, err := readCursor(ctx, conn)
		pos, ok = c.pos, found
		return err
	})
	return pos, ok && err == nil, err
}

// cursor is the cursor row.
type cursor struct {
	pos                          ledger.Position
	generation, epoch, commitSeq int64
	changesSince                 int64
	history, historySince        int64
	contracts                    *int64 // nil where they were not counted at this commit; -1 where somebody took the count away
}

// readCursor reads the cursor row; false where there is none.
func readCursor(ctx context.Context, q rowQuerier) (cursor, bool, error) {
	var c cursor
	var recordTime *time.Time
	err := q.QueryRow(ctx, `SELECT participant_id, ledger_offset, update_offset, update_id, record_time, filter, generation, epoch, commit_seq, changes_since, history, history_since,
		CASE WHEN counted_seq = commit_seq THEN COALESCE(contracts, -1) END
		FROM disclosured.cursor`).Scan(&c.pos.ParticipantID, &c.pos.Offset, &c.pos.UpdateOffset, &c.pos.UpdateID, &recordTime,
		&c.pos.Filter, &c.generation, &c.epoch, &c.commitSeq, &c.changesSince, &c.history, &c.historySince, &c.contracts)
	if errors.Is(err, pgx.ErrNoRows) {
		return cursor{}, false, nil
	}
	if err != nil {
		return cursor{}, false, fmt.Errorf("reading the cursor: %w", err)
	}
	c.pos.RecordTime = timeOf(recordTime)
	return c, true, nil
}
