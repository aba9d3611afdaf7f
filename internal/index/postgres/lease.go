package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/ledger"
)

// ErrLeaseHeld is wrapped by HeldError.
var ErrLeaseHeld = errors.New("another process holds the writer's lease")

// HeldError says who holds the lease.
type HeldError struct {
	Holder string
	// For is how long the lease holds unless it is renewed, by the database's clock.
	For time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%v: %s, for another %s unless it renews it", ErrLeaseHeld, e.Holder, e.For.Round(time.Millisecond))
}

// Unwrap makes errors.Is(err, ErrLeaseHeld) true.
func (e *HeldError) Unwrap() error { return ErrLeaseHeld }

// LeaseOptions say how a lease is taken and kept.
type LeaseOptions struct {
	// Holder names this process. A process that asks for a lease that its own name holds gets it at once: that is how one that was
	// killed and started again goes on. Two processes that run at the same time must therefore not have the same name: each would take the lease from
	// the other. Nothing worse would happen than that.
	Holder string
	// TTL is how long the lease holds without renewal; it is renewed every third of it. 0 is 15 s; the least is 1 s.
	TTL time.Duration
	// Wait waits for a lease that another process holds; without it that is a *HeldError.
	Wait bool
	// after replaces time.After in tests, and beaten, where set, gets a value after each renewal.
	after  func(time.Duration) <-chan time.Time
	beaten chan struct{}
}

const (
	defaultTTL = 15 * time.Second
	minTTL     = time.Second
	// renewals is how many times a lease is renewed within its TTL: two may fail before it expires.
	renewals = 3
	// longLease is how many of our own TTLs another's lease may still hold before somebody should look.
	longLease = 20
)

// Lease is the right to write. It is renewed until it is lost or released.
type Lease struct {
	store *Store
	opts  LeaseOptions
	epoch int64

	stop context.CancelFunc
	done chan struct{}

	mu  sync.Mutex
	err error // why done was closed; nil after a release
}

// AcquireLease takes the writer's lease. Every writer before is fenced off from then on: what it still commits has no effect.
func (s *Store) AcquireLease(ctx context.Context, opts LeaseOptions) (*Lease, error) {
	if opts.Holder == "" {
		return nil, errors.New("lease: the holder has no name")
	}
	if opts.TTL == 0 {
		opts.TTL = defaultTTL
	}
	if opts.TTL < minTTL {
		return nil, fmt.Errorf("lease: the TTL is %s; it is at least %s", opts.TTL, minTTL)
	}
	if opts.after == nil {
		opts.after = time.After
	}
	for {
		epoch, err := s.takeLease(ctx, opts)
		var held *HeldError
		switch {
		case err == nil:
			return s.keepLease(epoch, opts), nil
		case !opts.Wait || !errors.As(err, &held):
			return nil, err
		}
		if held.For > longLease*opts.TTL {
			s.log.Warn("waiting for the writer's lease, which is held for longer than leases last: if no process of that name runs, `UPDATE disclosured.lease SET expires_at = 'epoch'` in the database frees it",
				"holder", held.Holder, "for", held.For)
		} else {
			s.log.Info("waiting for the writer's lease", "holder", held.Holder, "for", held.For)
		}
		// The holder may release it before it expires, so waiting is asking again.
		select {
		case <-opts.after(min(held.For+10*time.Millisecond, opts.TTL/renewals)):
		case <-ctx.Done():
			return nil, fmt.Errorf("lease: %w: %w", err, ctx.Err())
		}
	}
}

// takeLease raises the epoch, if the lease is free, expired, or ours from a former life; else it fails with a *HeldError.
func (s *Store) takeLease(ctx context.Context, opts LeaseOptions) (epoch int64, err error) {
	err = s.write(ctx, "taking the writer's lease", func(ctx context.Context, tx pgx.Tx) error {
		// Asking must not disturb the holder: this lock lets its transactions pass, and only keeps the row as it was read.
		var holder string
		var micros int64
		// Somebody can have written that it expires never, or never began: of infinite times there is no difference.
		err := tx.QueryRow(ctx, `SELECT holder, (extract(epoch FROM LEAST(GREATEST(expires_at, `+s.clock+`), `+s.clock+` + interval '100 years') - `+s.clock+`) * 1000000)::bigint
			FROM disclosured.lease WHERE role = 'writer' FOR NO KEY UPDATE`).Scan(&holder, &micros)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			// Somebody deleted it. Nobody holds what is not there; its epoch goes on from the last one that wrote.
			if _, err := tx.Exec(ctx, `INSERT INTO disclosured.lease (role, epoch, holder, expires_at)
				SELECT 'writer', COALESCE(max(epoch), 0), '', 'epoch' FROM disclosured.cursor`); err != nil {
				return err
			}
		case err != nil:
			return err
		case holder != "" && holder != opts.Holder && micros > 0:
			return &HeldError{Holder: holder, For: time.Duration(micros) * time.Microsecond}
		}
		err = tx.QueryRow(ctx, `UPDATE disclosured.lease SET epoch = epoch + 1, holder = $1, expires_at = `+s.clock+` + $2::bigint * interval '1 microsecond'
			WHERE role = 'writer' RETURNING epoch`, opts.Holder, opts.TTL.Microseconds()).Scan(&epoch)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE disclosured.cursor SET epoch = $1`, epoch)
		return err
	})
	return epoch, err
}

// keepLease starts to renew a lease that was just taken.
func (s *Store) keepLease(epoch int64, opts LeaseOptions) *Lease {
	ctx, stop := context.WithCancel(context.Background())
	l := &Lease{store: s, opts: opts, epoch: epoch, stop: stop, done: make(chan struct{})}
	s.epoch.Store(epoch)
	s.background.Go(func() { l.renewLoop(ctx) })
	s.wakeSweeper()
	return l
}

// Epoch is the lease's epoch: greater than that of every lease before.
func (l *Lease) Epoch() int64 { return l.epoch }

// Done is closed when the lease is lost or released.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is why Done was closed: an error that wraps ledger.ErrLostLease, or nil after Release and before the end.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Release gives the lease up, so that another process can take it at once. It waits for the renewal to end. A lease that was lost
// is not an error.
func (l *Lease) Release(ctx context.Context) error {
	l.stop()
	<-l.done
	l.store.epoch.CompareAndSwap(l.epoch, 0)
	return l.store.write(ctx, "releasing the writer's lease", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE disclosured.lease SET holder = '', expires_at = 'epoch' WHERE role = 'writer' AND epoch = $1`, l.epoch)
		return err
	})
}

// renewLoop renews until the lease is lost or released. A renewal that fails is tried again at the next beat: a lease that
// expired is still ours as long as nobody took it, and every commit asks the database whether somebody did.
//
// Renewals are also how a database that has fallen silent shows itself, for they are short and regular, where a commit may rightly
// take its time: what is being written when one was not answered is given up (see watched), and the next try has a new connection.
func (l *Lease) renewLoop(ctx context.Context) {
	defer close(l.done)
	defer l.stop()
	answered := time.Now()
	for {
		select {
		case <-l.opts.after(l.opts.TTL / renewals):
		case <-l.store.life.Done():
			return
		case <-ctx.Done():
			return
		}
		err := l.renew(ctx)
		switch {
		case err == nil:
			answered = time.Now()
		case ctx.Err() != nil:
		case errors.Is(err, ledger.ErrLostLease):
			l.store.epoch.CompareAndSwap(l.epoch, 0)
			l.mu.Lock()
			l.err = err
			l.mu.Unlock()
			l.store.log.Error("the writer's lease was lost", "holder", l.opts.Holder, "epoch", l.epoch, "err", err)
			return
		default:
			l.store.log.Warn("renewing the writer's lease failed; trying again", "holder", l.opts.Holder, "epoch", l.epoch, "err", err)
			if time.Since(answered) >= l.opts.TTL*2/renewals {
				l.store.giveUp()
			}
		}
		if l.opts.beaten != nil {
			l.opts.beaten <- struct{}{}
		}
	}
}

// renew moves the expiry, if the epoch is still ours.
func (l *Lease) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.TTL/renewals)
	defer cancel()
	// As a write, begun as every write is: where transactions are read-only by default, a statement alone would fail.
	return l.store.write(ctx, "renewing the writer's lease", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE disclosured.lease SET expires_at = `+l.store.clock+` + $2::bigint * interval '1 microsecond' WHERE role = 'writer' AND epoch = $1`,
			l.epoch, l.opts.TTL.Microseconds())
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("epoch %d is over: %w", l.epoch, ledger.ErrLostLease)
		}
		return err
	})
}

// held is the epoch of the lease that this store holds.
func (s *Store) held() (int64, error) {
	if epoch := s.epoch.Load(); epoch != 0 {
		return epoch, nil
	}
	return 0, fmt.Errorf("database: this process holds no writer's lease: %w", ledger.ErrLostLease)
}

// errSilent is why a write was given up that was in progress while a renewal of the lease was not answered.
var errSilent = errors.New("the database does not answer")

// silence is a context that ends when the database is found silent.
type silence struct {
	context.Context //nolint:containedctx // it is the signal itself
	cancel          context.CancelCauseFunc
}

func newSilence() *silence {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &silence{ctx, cancel}
}

// giveUp ends the writes in progress. Those that begin later are not concerned.
func (s *Store) giveUp() {
	// With one connection alone a renewal may have waited for the very write.
	if s.pool.Config().MaxConns > 1 {
		s.silent.Swap(newSilence()).cancel(errSilent)
	}
}

// watched runs a write that is given up when the database falls silent.
func (s *Store) watched(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := s.silent.Load()
	defer context.AfterFunc(silent, func() { cancel(context.Cause(silent)) })()
	err := f(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}
