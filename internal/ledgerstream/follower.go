package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	adminapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/disclosured/disclosured/internal/ledger"
)

// stuckAfter is how many connections in a row must end without progress before Status.StuckAt tells it.
const stuckAfter = 3

// Follower keeps a sink at the end of one participant's ledger. See the package comment.
type Follower struct {
	cfg     Config
	sink    Sink
	log     *slog.Logger
	metrics Metrics

	versions ledgerapi.VersionServiceClient
	states   ledgerapi.StateServiceClient
	updates  ledgerapi.UpdateServiceClient
	parties  adminapi.PartyManagementServiceClient
	// conn is the connection, where it tells when it breaks; else nil.
	conn stateful

	// wake cuts a wait short and ends a connection: a reseed was requested.
	wake chan struct{}
	// lastHeard is when a stream last delivered anything, in Unix nanoseconds; 0 for never.
	lastHeard atomic.Int64

	mu      sync.Mutex
	status  Status
	changed chan struct{}
	// reseed is why the next connection must begin with a snapshot; empty for no reason to.
	reseed ledger.SeedReason
	// reseeds counts the reasons, so that one that comes while a snapshot is read is not lost with the snapshot's own.
	reseeds int
	// filter is the last session's, for FindUpdate; nil before there is one.
	filter *filter
}

// stateful is what a *grpc.ClientConn tells about itself.
type stateful interface {
	GetState() connectivity.State
	WaitForStateChange(ctx context.Context, source connectivity.State) bool
}

// Option is an optional part of a Follower.
type Option func(*Follower)

// WithLogger sets where the follower logs to; by default it does not.
func WithLogger(log *slog.Logger) Option {
	return func(f *Follower) { f.log = log }
}

// WithMetrics sets the follower's hooks.
func WithMetrics(m Metrics) Option {
	return func(f *Follower) { f.metrics = m }
}

// New makes a follower of the participant at the other end of conn (see Dial) for a sink that nothing else writes to.
// The configuration must be valid: see Config.Validate.
func New(cfg Config, conn grpc.ClientConnInterface, sink Sink, options ...Option) *Follower {
	f := &Follower{
		cfg: cfg.withDefaults(), sink: sink, log: slog.New(slog.DiscardHandler),
		versions: ledgerapi.NewVersionServiceClient(conn),
		states:   ledgerapi.NewStateServiceClient(conn),
		updates:  ledgerapi.NewUpdateServiceClient(conn),
		parties:  adminapi.NewPartyManagementServiceClient(conn),
		wake:     make(chan struct{}, 1),
		changed:  make(chan struct{}),
		status:   Status{State: StateConnecting, Since: time.Now()},
	}
	f.conn, _ = conn.(stateful)
	for _, o := range options {
		o(f)
	}
	return f
}

// Run follows the ledger until ctx ends (it returns ctx's error), the sink's lease is lost (an error that wraps
// ledger.ErrLostLease), or the participant refuses the configuration itself (a *ConfigError). Everything else is tried again. When it
// returns, nothing of it runs any more. It is called once.
func (f *Follower) Run(ctx context.Context) error {
	if err := f.cfg.Validate(); err != nil {
		return fmt.Errorf("ledger stream: %w", err)
	}
	defer f.enter(StateStopped, "")
	pause := &backoff.ExponentialBackOff{
		InitialInterval: f.cfg.BackoffInitial, MaxInterval: f.cfg.BackoffMax, Multiplier: 2, RandomizationFactor: 0.5,
	}
	fruitless := 0
	for {
		s := &session{f: f}
		end := s.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(end, ledger.ErrLostLease) {
			f.log.Error("stopping: another process writes the index now", "error", end)
			return fmt.Errorf("ledger stream: %w", end)
		}
		if end.action == fail {
			f.log.Error("stopping: the participant refuses the configuration", "error", end)
			return fmt.Errorf("ledger stream: %w", end)
		}
		if s.progressed {
			pause.Reset()
			fruitless = 0
		} else if s.followed {
			fruitless++
		}
		f.metrics.reconnect(end.reason)
		f.setReseed(end.reseed)
		delay := f.delay(end, s.followed, pause)
		f.note(end, s, fruitless, delay)
		f.renew(end)
		if err := f.sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// silence are the reasons of an ending that say that nothing came: the connection may be one whose other end is gone.
var silence = []string{"deadline_exceeded", "stalled", "tail_behind"}

// renew gives a connection up on which nothing came, where it can be made anew: on a half-open one every session would end like this.
func (f *Follower) renew(end *ending) {
	conn, ok := f.conn.(interface{ Renew() error })
	if !ok || !slices.Contains(silence, end.reason) {
		return
	}
	if err := conn.Renew(); err != nil {
		f.log.Warn("a new connection to the participant can't be made; the old one is kept", "error", err)
	}
}

// sinkRetry bounds the wait, jittered, before the sink is tried again.
const sinkRetry = 2 * time.Second

// absentRetry bounds the wait, jittered, while nobody is there to follow. What such a try costs the participant is a connection and one
// small call, and the first that succeeds is what ends the outage for everyone who asks us: a longer wait would be most of the time
// that an index takes to be fresh again. It is well below the bound on freshness, so that what a short restart leaves is a moment of
// age and no refusal of a call.
const absentRetry = 5 * time.Second

// absence are the reasons of an ending that say that no participant serves there now, as it does while it restarts.
var absence = []string{"unavailable", "deadline_exceeded", "canceled", "aborted_due_to_shutdown", "service_not_running"}

// delay is the wait before the next connection; followed is whether the session that ended read updates.
func (f *Follower) delay(end *ending, followed bool, pause *backoff.ExponentialBackOff) time.Duration {
	switch end.action {
	case wait:
		return jitter(f.cfg.WaitRetry)
	case halt:
		return jitter(f.cfg.HaltRetry)
	default:
		next := pause.NextBackOff()
		switch {
		case end.reason == "sink":
			return min(next, jitter(sinkRetry)) // a database that is back is to be used soon
		case !followed && slices.Contains(absence, end.reason):
			next = min(next, jitter(absentRetry))
		}
		// What the participant asks for is a minimum, within our own bound; 0 leaves our own jitter.
		return max(next, min(end.retryAfter, f.cfg.BackoffMax))
	}
}

// jitter spreads a wait over ±25 %.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}

// note logs the end of a connection, and shows it in the status.
func (f *Follower) note(end *ending, s *session, fruitless int, delay time.Duration) {
	state := StateReconnecting
	level := slog.LevelWarn
	switch {
	case end.action == wait:
		state = StateWaiting
	case end.action == halt:
		state, level = StateHalted, slog.LevelError
		f.metrics.halt(end.reason)
	case end.reason == "eof" && s.progressed, end.reason == "access_token_expired", end.reason == "stale_stream_authorization":
		level = slog.LevelInfo
	}
	attributes := []any{"reason", end.reason, "error", end.Error(), "again_in", delay}
	if s.seeded { // else the session ended before it knew where the index stands
		attributes = append(attributes, "offset", s.pos.Offset)
	}
	if fruitless >= stuckAfter {
		level = slog.LevelError
		attributes = append(attributes, "stuck_at", s.pos.Offset, "times", fruitless)
	}
	f.log.Log(context.Background(), level, "the connection to the ledger ended", attributes...)
	f.update(func(st *Status) {
		f.setState(st, state)
		st.Detail = end.Error()
		st.Reconnects++
		st.HaltedAt, st.HaltedAfter = 0, 0
		if end.action == halt {
			st.HaltedAt, st.HaltedAfter = end.offset, end.after
		}
		st.StuckAt = 0
		if fruitless >= stuckAfter {
			st.StuckAt = s.pos.Offset
		}
	})
}

// sleep waits until it is time for the next session: after d, or when there is a connection again where there was none. One that breaks as soon as
// it is made does not have us follow its pace: gRPC connects by itself only after an attempt that failed, with waits that grow.
func (f *Follower) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	ready, stop := f.untilReady(ctx)
	defer stop()
	select {
	case <-timer.C:
	case <-f.wake:
	case <-ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// untilReady tells when the connection is there again, if it is not there now; stop ends the watch and waits for its end.
func (f *Follower) untilReady(ctx context.Context) (ready <-chan struct{}, stop func()) {
	if f.conn == nil || f.conn.GetState() == connectivity.Ready {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	found, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for state := f.conn.GetState(); state != connectivity.Ready; state = f.conn.GetState() {
			if !f.conn.WaitForStateChange(ctx, state) {
				return
			}
		}
		close(found)
	}()
	return found, func() {
		cancel()
		<-done
	}
}

// RequestReseed has the index built anew from a snapshot, soon: the operator's way to mend what no event tells. It returns at once;
// Status.Reseeds counts generations that are in place. The reason is ledger.SeedRequested, unless another one fits better.
func (f *Follower) RequestReseed(reason ledger.SeedReason) {
	f.setReseed(reason)
	signal(f.wake)
}

// setReseed notes a reason for a new generation. One that says that our history is another's is not overwritten by one that
// says that it is the same.
func (f *Follower) setReseed(reason ledger.SeedReason) {
	if reason == "" {
		return
	}
	f.mu.Lock()
	if f.reseed == "" || f.reseed.SameHistory() {
		f.reseed = reason
	}
	f.reseeds++
	f.mu.Unlock()
	if !reason.SameHistory() {
		f.update(func(st *Status) { replaced(st, reason) })
	}
}

// replaced notes that what the index holds is of another history than the ledger's, and takes its proof back.
func replaced(st *Status, reason ledger.SeedReason) {
	if st.HistoryReplaced == "" {
		st.HistoryReplacedAt = time.Now()
	}
	st.HistoryReplaced = reason
	st.ProvenOffset, st.ProvenAt = 0, time.Time{}
}

// judged notes what a session that has compared index and ledger found: why a new generation is needed, or "". That can take back
// what an earlier session found: the participant that was meant is back.
func (f *Follower) judged(reason ledger.SeedReason) {
	f.update(func(st *Status) {
		switch pending := f.reseed; {
		case reason != "" && !reason.SameHistory():
			replaced(st, reason)
		case pending == "" || pending.SameHistory():
			st.HistoryReplaced, st.HistoryReplacedAt = "", time.Time{}
		}
	})
}

// mustReseed returns why a new generation is needed, or "", and the number to give to reseeded.
func (f *Follower) mustReseed() (ledger.SeedReason, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reseed, f.reseeds
}

// reseeded notes that a generation is in place whose snapshot was begun after mustReseed gave the number.
func (f *Follower) reseeded(number int) {
	f.update(func(st *Status) {
		st.Reseeds++
		if f.reseeds == number {
			f.reseed = ""
		}
		if f.reseed == "" || f.reseed.SameHistory() {
			st.HistoryReplaced, st.HistoryReplacedAt = "", time.Time{}
		}
	})
}

// Status returns what the follower knows about itself.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.status
	if at := f.lastHeard.Load(); at != 0 {
		st.LastMessageAt = time.Unix(0, at)
	}
	return st
}

// Changed returns a channel that is closed when Status next changes in anything but LastMessageAt. To wait for a condition, take the
// channel first and look at Status after.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// update changes the status, holding mu, and tells the waiters. change must not block.
func (f *Follower) update(change func(*Status)) {
	f.mu.Lock()
	before := f.status.State
	change(&f.status)
	after := f.status.State
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	if after != before {
		f.metrics.state(after)
	}
}

func (f *Follower) setState(st *Status, state State) {
	if st.State != state {
		st.State, st.Since = state, time.Now()
	}
}

// enter moves to a state.
func (f *Follower) enter(state State, detail string) {
	f.update(func(st *Status) {
		f.setState(st, state)
		st.Detail = detail
	})
}

// heard notes that a stream delivered something.
func (f *Follower) heard() { f.lastHeard.Store(time.Now().UnixNano()) }

// sawPackage notes a package id seen under a package name.
func (f *Follower) sawPackage(name, id string) {
	f.mu.Lock()
	known := slices.Contains(f.status.Packages[name], id)
	f.mu.Unlock()
	if known {
		return
	}
	f.log.Info("a package's version was seen for the first time", "package", name, "id", id)
	f.update(func(st *Status) {
		// Statuses that were handed out keep their map and lists.
		packages := maps.Clone(st.Packages)
		if packages == nil {
			packages = make(map[string][]string)
		}
		packages[name] = sortedSet(append(slices.Clone(packages[name]), id))
		st.Packages = packages
	})
}
