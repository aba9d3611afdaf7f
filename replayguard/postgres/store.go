package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/replayguard"
)

// Config says how a store works.
type Config struct {
	// Limits bound the store. Processes that share a database should have the same ones: each applies its own.
	Limits replayguard.Limits
	// Timeout bounds each call; 0 is 5 s.
	Timeout time.Duration
	// SweepEvery is how often expired rows are deleted in the background; 0 is a minute. Negative is never.
	SweepEvery time.Duration
	// Migrate applies pending migrations when the store is opened. Without it, pending migrations are an error.
	Migrate bool
	// Logger gets what happens in the background; nil is slog.Default().
	Logger *slog.Logger
}

const (
	defaultTimeout    = 5 * time.Second
	defaultSweepEvery = time.Minute
)

// Store is a replayguard.Store in PostgreSQL. Its methods are safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	log     *slog.Logger
	limits  replayguard.Limits
	fault   error
	// named is set once the database's default transactions are known to be of another kind than the store needs.
	named atomic.Bool

	stop       context.CancelFunc
	background sync.WaitGroup
}

var _ replayguard.Store = (*Store)(nil)

// Open makes a store over the pool's database, after a look at its schema: an error that wraps ErrNotMigrated or
// ErrNewerSchema where it is not this program's, and Config.Migrate does not help. The pool stays the caller's, and may
// serve others as well; any of pgx's ways to execute queries works, also those for poolers. Limits that make no sense make a
// store that refuses every reservation, as replayguard.NewMemory's; ask Limits.WithDefaults first to know.
func Open(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.SweepEvery == 0 {
		cfg.SweepEvery = defaultSweepEvery
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Store{pool: pool, timeout: cfg.Timeout, log: cfg.Logger}
	s.limits, s.fault = cfg.Limits.WithDefaults()

	err := s.call(ctx, "checking the schema", func(ctx context.Context) error { return checkVersion(ctx, pool) })
	if errors.Is(err, ErrNotMigrated) && cfg.Migrate {
		_, err = Migrate(ctx, pool, Up)
	}
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	s.stop = stop
	if cfg.SweepEvery > 0 {
		s.background.Go(func() { s.sweepLoop(life, cfg.SweepEvery) })
	}
	return s, nil
}

// Close stops the sweeper and waits for it. The pool stays open.
func (s *Store) Close() {
	s.stop()
	s.background.Wait()
}

const reserveQuery = `SELECT o_answer, coalesce(o_now, 0), coalesce(o_token, 0), coalesce(o_reserved_at, 0), coalesce(o_expires_at, 0),
	coalesce(o_outcome, 0), coalesce(o_took_over, false), coalesce(o_retry_after, 0)
	FROM replayguard.reserve($1::text, $2::bytea, $3::bytea, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::bigint)`

// Reserve is replayguard.Store's.
func (s *Store) Reserve(ctx context.Context, r replayguard.Request) (replayguard.Reservation, error) {
	if s.fault != nil {
		return replayguard.Reservation{}, configurationFault(s.fault)
	}
	if err := r.Check(); err != nil {
		return replayguard.Reservation{}, err
	}
	quota, err := s.limits.ClientQuota(r.Client)
	if err != nil {
		return replayguard.Reservation{}, err
	}
	var key []byte
	if r.Key != (replayguard.Key{}) {
		key = r.Key[:]
	}
	var (
		answer                                          string
		now, token, reservedAt, expiresAt, retrySeconds int64
		outcome                                         int16
		tookOver                                        bool
	)
	err = s.row(ctx, "reserving", []any{&answer, &now, &token, &reservedAt, &expiresAt, &outcome, &tookOver, &retrySeconds}, reserveQuery,
		r.Client, r.ID[:], key, r.ExpiresAt, int64(s.limits.MaxEntries), seconds(s.limits.MaxTTL),
		int64(quota.MaxLive), int64(quota.PerMinute), int64(quota.Burst), int64(quota.LapseCost))
	if err != nil {
		return replayguard.Reservation{}, err
	}
	retryAfter := time.Duration(min(retrySeconds, maxSeconds)) * time.Second
	switch answer {
	case "reserved", "again":
		return replayguard.Reservation{
			ID: r.ID, Token: replayguard.Token(token), ReservedAt: reservedAt, ExpiresAt: expiresAt,
			Outcome: replayguard.Outcome(outcome), Again: answer == "again", TookOver: tookOver,
		}, nil
	case "expiry":
		return replayguard.Reservation{}, expiryRefusal(r.ExpiresAt, now, s.limits.MaxTTL)
	case "duplicate":
		return replayguard.Reservation{}, &replayguard.Refusal{Reason: replayguard.AlreadyReceived, Cause: replayguard.CauseDuplicate, ExpiresAt: expiresAt}
	case "quota_rate":
		return replayguard.Reservation{}, other(replayguard.CauseQuotaRate, retryAfter)
	case "quota_live":
		return replayguard.Reservation{}, other(replayguard.CauseQuotaLive, 0)
	case "clock_back":
		return replayguard.Reservation{}, other(replayguard.CauseClockBack, retryAfter)
	case "capacity":
		return replayguard.Reservation{}, other(replayguard.CauseCapacity, retryAfter)
	}
	return replayguard.Reservation{}, fmt.Errorf("replayguard: reserving: the database answers %q, which this program does not know", answer)
}

// Settle is replayguard.Store's.
func (s *Store) Settle(ctx context.Context, c replayguard.Claim, outcome replayguard.Outcome) (replayguard.Reservation, error) {
	if err := outcome.Check(); err != nil {
		return replayguard.Reservation{}, err
	}
	var answer string
	var now, reservedAt, expiresAt int64
	var settled int16
	err := s.row(ctx, "settling", []any{&answer, &now, &reservedAt, &expiresAt, &settled},
		`SELECT o_answer, o_now, coalesce(o_reserved_at, 0), coalesce(o_expires_at, 0), coalesce(o_outcome, 0)
			FROM replayguard.settle($1::text, $2::bytea, $3::bigint, $4::smallint)`, c.Client, c.ID[:], int64(c.Token), int16(outcome))
	if err != nil {
		return replayguard.Reservation{}, err
	}
	if answer != "settled" {
		return replayguard.Reservation{}, replayguard.ErrNoReservation
	}
	return replayguard.Reservation{ID: c.ID, Token: c.Token, ReservedAt: reservedAt, ExpiresAt: expiresAt, Outcome: replayguard.Outcome(settled), Age: max(0, now-reservedAt)}, nil
}

// Extend is replayguard.Store's.
func (s *Store) Extend(ctx context.Context, c replayguard.Claim, expiresAt int64) (replayguard.Reservation, error) {
	var answer string
	var now, reservedAt, extended int64
	err := s.row(ctx, "extending", []any{&answer, &now, &reservedAt, &extended},
		`SELECT o_answer, coalesce(o_now, 0), coalesce(o_reserved_at, 0), coalesce(o_expires_at, 0)
			FROM replayguard.extend($1::text, $2::bytea, $3::bigint, $4::bigint, $5::bigint, $6::bigint)`,
		c.Client, c.ID[:], int64(c.Token), expiresAt, seconds(s.limits.MaxTTL), seconds(s.limits.MaxLifetime))
	if err != nil {
		return replayguard.Reservation{}, err
	}
	switch answer {
	case "extended":
		return replayguard.Reservation{ID: c.ID, Token: c.Token, ReservedAt: reservedAt, ExpiresAt: extended}, nil
	case "expiry":
		return replayguard.Reservation{}, expiryRefusal(expiresAt, now, s.limits.MaxTTL)
	case "shortened":
		return replayguard.Reservation{}, invalidExpiry(errors.New("the expiry lies before the reservation's own; extending never shortens"))
	case "lifetime":
		return replayguard.Reservation{}, invalidExpiry(errors.New("the reservation would live longer than it may in all"))
	}
	return replayguard.Reservation{}, replayguard.ErrNoReservation
}

// Release is replayguard.Store's.
func (s *Store) Release(ctx context.Context, c replayguard.Claim) error {
	if !s.limits.AllowRelease {
		return configurationFault(errors.New("releasing is off"))
	}
	var released bool
	err := s.row(ctx, "releasing", []any{&released}, `SELECT replayguard.release($1::text, $2::bytea, $3::bigint)`, c.Client, c.ID[:], int64(c.Token))
	if err == nil && !released {
		err = replayguard.ErrNoReservation
	}
	return err
}

// standingsQuery gives the standings of the clients that hold or owe something: of those that could be at a limit. What has expired
// and is not forgotten yet is counted as if it were.
const standingsQuery = `WITH clock AS MATERIALIZED (SELECT replayguard.now_seconds() AS now),
	expired AS (SELECT client, count(*) AS n, count(*) FILTER (WHERE outcome = 0) AS lapses FROM replayguard.reservation, clock WHERE expires_at < now GROUP BY client)
	SELECT now, c.name, coalesce(h.live, 0) - coalesce(e.n, 0), coalesce(h.lapses, 0) - c.lapses_charged + coalesce(e.lapses, 0), c.units, c.filled_at
	FROM clock, replayguard.client c LEFT JOIN replayguard.holding h ON h.client = c.name LEFT JOIN expired e ON e.client = c.name
	WHERE h.live > 0 OR h.lapses > c.lapses_charged OR c.units < 60`

// Stats is replayguard.Store's. Lapsed counts what was forgotten, which may be some time after it has lapsed.
func (s *Store) Stats(ctx context.Context) (stats replayguard.Stats, err error) {
	var standings []replayguard.Standing
	var now int64
	err = s.call(ctx, "counting", func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, `SELECT o_live, o_clients, o_lapsed FROM replayguard.stats()`).Scan(&stats.Live, &stats.Clients, &stats.Lapsed)
		if err != nil || s.fault != nil {
			return err
		}
		rows, err := s.pool.Query(ctx, standingsQuery)
		if err != nil {
			return err
		}
		standings, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c replayguard.Standing, err error) {
			err = row.Scan(&now, &c.Client, &c.Live, &c.Lapses, &c.Units, &c.FilledAt)
			return c, err
		})
		return err
	})
	if err == nil {
		stats.Quotas, err = s.limits.QuotaUse(standings, now)
	}
	return stats, err
}

// attempts is how often a call is tried in all, where trying again is safe, and backoff what lies between.
const attempts = 3

var backoff = [attempts - 1]time.Duration{20 * time.Millisecond, 200 * time.Millisecond}

// row makes a call that changes something and scans its one row. It is one statement and its own transaction, of the isolation level that the
// database gives by default: read committed, unless somebody has set another one for the database or the role, or has made transactions
// read only. Where that shows, the transaction is begun by name from then on, which takes three round trips in place of one.
func (s *Store) row(ctx context.Context, what string, into []any, statement string, arguments ...any) error {
	return s.call(ctx, what, func(ctx context.Context) error {
		if !s.named.Load() {
			err := s.pool.QueryRow(ctx, statement, arguments...).Scan(into...)
			if !otherTransactions(err) {
				return err
			}
			if !s.named.Swap(true) {
				s.log.Info("replay guard: the database's default transactions are not read committed and read-write: each is begun by name", "err", err)
			}
		}
		return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, statement, arguments...).Scan(into...)
		})
	})
}

// otherTransactions reports whether a statement was refused, without effect, for the kind of transaction that it was in.
func otherTransactions(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (answer.Code == "25000" || answer.Code == "25006") // invalid_transaction_state, read_only_sql_transaction
}

// call runs f with the deadline, and again where it is certain that it had no effect.
func (s *Store) call(ctx context.Context, what string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if !hadNoEffect(err) || attempt == attempts || !pause(ctx, backoff[attempt-1]) {
			return fmt.Errorf("replayguard: %s in the database: %w", what, err)
		}
	}
}

// hadNoEffect reports whether an error's statement was never sent, or was undone by the server, and may go well another
// time: no connection could be made, or the transaction got into another's way.
func hadNoEffect(err error) bool {
	var connect *pgconn.ConnectError
	var answer *pgconn.PgError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &connect), pgconn.SafeToRetry(err):
		return true
	case errors.As(err, &answer):
		return answer.Code == "40001" || answer.Code == "40P01" // serialization failure, deadlock
	}
	return false
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

const maxSeconds = int64((1<<63 - 1) / time.Second)

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func other(cause replayguard.Cause, retryAfter time.Duration) error {
	return &replayguard.Refusal{Reason: replayguard.Other, Cause: cause, RetryAfter: retryAfter}
}

func configurationFault(err error) error {
	return &replayguard.Refusal{Reason: replayguard.Other, Cause: replayguard.CauseConfiguration, Err: err}
}

func invalidExpiry(err error) error {
	return &replayguard.Refusal{Reason: replayguard.Invalid, Cause: replayguard.CauseExpiry, Err: err}
}

// expiryRefusal says in words what the database refused by the same rule.
func expiryRefusal(expiresAt, now int64, maxTTL time.Duration) error {
	if err := replayguard.CheckExpiry(expiresAt, now, maxTTL); err != nil {
		return err
	}
	return invalidExpiry(fmt.Errorf("the database refuses the expiry %d at %d", expiresAt, now))
}
