package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/telemetry"
)

// daemon is the service: the rooms, wired. It starts and stops in one order, each step in run:
//
//	start: participant (who is it?) → database → replay guard → writer's lease → index → follower
//	stop:  the API says not ready and drains → the follower ends → lease released → guard and database closed
//
// The API is served from the beginning, so that whoever asks learns why the service is not ready, and to the end: an answer that
// is still being made may need the database. The participant comes first, because opening the database can migrate it, and a
// service that was pointed at the wrong participant writes nothing.
type daemon struct {
	cfg Config
	log *slog.Logger
	// databaseURL is used in place of the file that cfg names: the demo's throwaway database has no file.
	databaseURL string
	// listener and ops are used in place of the addresses in cfg, where set.
	listener, ops net.Listener
}

// run serves until the context ends and then returns nil, or returns why it can't.
func (d *daemon) run(ctx context.Context) error {
	served, err := d.fitted(d.apiConfig())
	if err != nil {
		return err
	}
	metrics := telemetry.New(version)
	listener, ops, err := d.listen(ctx)
	if err != nil {
		return err
	}
	participant, err := dialParticipant(d.cfg, d.log)
	if err != nil {
		listener.Close()
		closeIfOpen(ops)
		return err
	}
	defer participant.Close()

	current := newLate()
	watchLevels(metrics, current)
	deps := api.Deps{
		Index: current, Status: current.status, FindUpdate: current.findUpdate, Log: d.log, Metrics: metrics.API, MetricsHandler: metrics.Handler(),
	}
	guard := d.startGuard(&deps, metrics)
	server, err := api.New(served, deps)
	if err != nil {
		listener.Close()
		closeIfOpen(ops)
		return configError{err}
	}
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	indexing, stopIndexing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopIndexing()
	var group errgroup.Group
	group.Go(func() error {
		defer stopIndexing() // the last answer is out
		return server.ServeOn(serving, listener, ops)
	})
	group.Go(func() error {
		defer stopServing()
		err := d.index(indexing, stopServing, listener.Addr().String(), participant, metrics, current, guard)
		if indexing.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // our own stop
		}
		return err
	})
	return group.Wait()
}

func (d *daemon) listen(ctx context.Context) (listener, ops net.Listener, err error) {
	var config net.ListenConfig
	listener, ops = d.listener, d.ops
	if listener == nil {
		if listener, err = config.Listen(ctx, "tcp", d.cfg.API.Listen); err != nil {
			return nil, nil, configError{fmt.Errorf("api.listen: %w", err)}
		}
	}
	if ops == nil && d.cfg.Ops.Listen != "" {
		if ops, err = config.Listen(ctx, "tcp", d.cfg.Ops.Listen); err != nil {
			listener.Close()
			return nil, nil, configError{fmt.Errorf("ops.listen: %w", err)}
		}
	}
	return listener, ops, nil
}

func closeIfOpen(l net.Listener) {
	if l != nil {
		l.Close()
	}
}

// index keeps the index at the ledger's end until the context ends, which is when nothing is served any more. Where it fails
// before, it has the serving stopped, and waits for that, before it closes what answers are made from.
func (d *daemon) index(ctx context.Context, stopServing func(), address string, participant *ledgerstream.Conn, metrics *telemetry.Metrics, current *late, guard *guardStore) error {
	peer, err := d.identify(ctx, participant)
	if err != nil {
		return err
	}
	store, err := d.openStore(ctx)
	if err != nil {
		return err
	}
	if store != nil {
		defer store.Close()
	}
	if err := d.checkPlace(ctx, store, peer); err != nil {
		return err
	}
	closeGuard, err := d.openGuard(ctx, guard)
	if err != nil {
		return err
	}
	defer closeGuard()
	var lease *postgres.Lease
	if store != nil {
		lease, err = store.AcquireLease(ctx, postgres.LeaseOptions{Holder: holder(address), TTL: d.cfg.Database.LeaseTTL, Wait: true})
		if err != nil {
			return databaseError(waitingForLease, err)
		}
		defer func() {
			// Also after a stop, so that a standby need not wait for the lease to expire.
			releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
			defer cancel()
			if err := lease.Release(releasing); err != nil {
				d.log.Warn("releasing the writer's lease failed; it expires by itself", "error", err)
			}
		}()
	}
	policy, err := policyOf(d.cfg)
	if err != nil {
		return configError{err}
	}
	var kept index.Store
	if store != nil {
		kept = store
	}
	x, err := index.Open(ctx, policy, kept, index.Options{
		Logger: d.log, Published: countPublication(metrics.Index), HistoryAge: d.cfg.Database.HistoryRetention, CheckLoaded: checkLoaded,
	})
	if err != nil {
		return databaseError("opening the index", err)
	}
	follower := ledgerstream.New(streamConfig(d.cfg), participant, &pinned{Sink: x, participantID: d.cfg.Participant.ID},
		ledgerstream.WithLogger(d.log), ledgerstream.WithMetrics(streamMetrics(metrics.Stream)))
	current.set(x, follower)

	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return follower.Run(groupCtx) })
	if lease != nil {
		group.Go(func() error { return watchLease(groupCtx, lease, stopServing) })
	}
	if store != nil && d.cfg.Database.HistoryRetention > 0 {
		group.Go(func() error { return d.pruneHistory(groupCtx, store) })
	}
	err = group.Wait()
	stopServing()
	<-ctx.Done()
	if refused := (*ledgerstream.ConfigError)(nil); errors.As(err, &refused) {
		return configError{err}
	}
	return err
}

// watchLease ends the service once another process has its lease. A commit would find that out too, but on a ledger where nothing happens there
// is none, and what the database says of the past is the other's by then.
func watchLease(ctx context.Context, lease *postgres.Lease, stopServing func()) error {
	select {
	case <-lease.Done():
		stopServing()
		return lease.Err()
	case <-ctx.Done():
		return nil
	}
}

const (
	releaseTimeout = 2 * time.Second
	// identifyRetry is how long after a failed first question the participant is asked again.
	identifyRetry = 500 * time.Millisecond
	// identifyLogged is how often it is said in the log that the participant does not answer yet.
	identifyLogged = 5 * time.Second
	// pruneInterval is how often history beyond its retention is deleted.
	pruneInterval = 10 * time.Minute
)

func (d *daemon) hasDatabase() bool { return d.databaseURL != "" || d.cfg.Database.URLFile != "" }

// openStore opens the database, or returns nil where none is configured.
func (d *daemon) openStore(ctx context.Context) (*postgres.Store, error) {
	if !d.hasDatabase() {
		d.log.Info("no database: the index lives in memory, is seeded from the ledger now, and history begins now")
		return nil, nil
	}
	store, err := postgres.Open(ctx, d.storeConfig())
	if err != nil {
		return nil, databaseError("opening the database", err)
	}
	return store, nil
}

func (d *daemon) storeConfig() postgres.Config {
	config := postgres.Config{URLFile: d.cfg.Database.URLFile, MaxConns: int32(d.cfg.Database.MaxConnections), Migrate: d.cfg.Database.Migrate, Logger: d.log}
	if d.databaseURL != "" {
		config.URL, config.URLFile = d.databaseURL, ""
	}
	return config
}

// identify asks the participant who it is, before anything is written: a service that was pointed at the wrong one must say so. Once
// the service runs, outages and changes of the participant are the follower's to handle.
func (d *daemon) identify(ctx context.Context, participant *ledgerstream.Conn) (ledgerstream.Peer, error) {
	prober := ledgerstream.NewProber(streamConfig(d.cfg), participant)
	waiting, cancel := contextWithTimeout(ctx, d.cfg.Participant.StartTimeout)
	defer cancel()
	var (
		failed error
		logged time.Time
	)
	for {
		peer, err := prober.Identify(waiting)
		if err == nil {
			return peer, d.checkPeer(peer)
		}
		if refused := (*ledgerstream.ConfigError)(nil); errors.As(err, &refused) {
			return peer, configError{fmt.Errorf("participant: %w", err)}
		}
		if waiting.Err() == nil || failed == nil {
			failed = err // and not that our own time was over
			if time.Since(logged) >= identifyLogged {
				logged = time.Now()
				d.log.Info("the participant does not answer yet", "address", d.cfg.Participant.Address, "error", err)
			}
		}
		if d.cfg.Participant.StartTimeout > 0 {
			select {
			case <-time.After(identifyRetry):
				continue
			case <-waiting.Done():
			}
		}
		if ctx.Err() != nil {
			return peer, ctx.Err()
		}
		return peer, advised(fmt.Errorf("participant.address %s did not answer as a participant within participant.start_timeout (%s): %w",
			d.cfg.Participant.Address, d.cfg.Participant.StartTimeout, failed), participantAdvice(failed))
	}
}

// checkPeer compares the participant with the one that was meant, where that was said.
func (d *daemon) checkPeer(peer ledgerstream.Peer) error {
	if want := d.cfg.Participant.ID; want != "" && peer.ParticipantID != want {
		return configError{fmt.Errorf("participant.id is %s, and at %s answers %s: correct one of the two", want, d.cfg.Participant.Address, peer.ParticipantID)}
	}
	return nil
}

// checkPlace refuses a database that holds another participant's index, unless participant.id says that the present one is meant.
func (d *daemon) checkPlace(ctx context.Context, store *postgres.Store, peer ledgerstream.Peer) error {
	if store == nil || d.cfg.Participant.ID != "" {
		return nil
	}
	pos, ok, err := store.Position(ctx)
	if err != nil {
		return databaseError("reading the index's place", err)
	}
	if ok && pos.ParticipantID != peer.ParticipantID {
		return configError{fmt.Errorf("the database holds the index of participant %s, and at %s answers %s: use another database, or, to build the index anew in this one, set participant.id to the participant meant",
			pos.ParticipantID, d.cfg.Participant.Address, peer.ParticipantID)}
	}
	return nil
}

// holder names the process that serves at an address for the writer's lease: the same after a restart, so that it gets at once the lease that
// it held when it was killed, and another than that of any process that runs at the same time. The address is the one that was bound, and
// within one network of one running system only one process has it. Hosts' names are for the reader: clones and containers share them.
func holder(address string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return host + "/" + address + "#" + place()
}

// place names the running system and the network within it that the process is in. Where the system does not tell, it is another at each
// start, and a process that was killed waits for its own lease to expire.
var place = sync.OnceValue(func() string {
	boot, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, err2 := os.Readlink("/proc/self/ns/net")
	if err1 != nil || err2 != nil {
		return rand.Text()[:8]
	}
	sum := sha256.Sum256(append(boot, network...))
	return hex.EncodeToString(sum[:4])
})

// pruneHistory deletes what is older than the retention, until the context ends.
func (d *daemon) pruneHistory(ctx context.Context, store *postgres.Store) error {
	ticker := time.NewTicker(pruneInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := store.Prune(ctx, time.Now().Add(-d.cfg.Database.HistoryRetention)); err != nil && ctx.Err() == nil {
			d.log.Warn("pruning history failed; it is tried again later", "error", err)
		}
	}
}

func (d *daemon) apiConfig() api.Config {
	config := api.DefaultConfig()
	a := d.cfg.API
	config.Listen, config.OpsListen, config.InsecureListen = a.Listen, d.cfg.Ops.Listen, a.InsecureListen
	config.TLS = api.TLSFiles{CertFile: a.CertFile, KeyFile: a.KeyFile, ClientCAFile: a.ClientCAFile}
	config.FreshnessBound = a.FreshnessBound
	// A proof can be an interval old when the connection is lost, and the first try to make it anew takes less than another and a second.
	config.ConnectionGrace = 2*d.cfg.Participant.PollInterval + time.Second
	config.MaxWait = a.MaxWait
	config.ExpiryMargin = a.ExpiryMargin
	config.DefaultWait = min(config.DefaultWait, a.MaxWait)
	config.Guard = api.GuardConfig{AllowAnonymous: d.cfg.Guard.AllowAnonymous, AllowDigest: d.cfg.Guard.AllowDigest, MaxTTL: d.cfg.Guard.MaxTTL}
	config.SendTimeout = a.SendTimeout
	config.Limits.RatePerSecond, config.Limits.Burst = a.RatePerCaller, a.BurstPerCaller
	config.Limits.MaxCalls, config.Limits.MaxCallsPerCaller = a.MaxCalls, a.MaxCallsPerCaller
	config.Limits.MaxConnections, config.Limits.MaxConnectionsPerCaller = a.MaxConnections, a.MaxConnectionsPerCaller
	config.Limits.AnswerBytes, config.Limits.AnswerBytesPerCaller = a.AnswerBytes, a.AnswerBytesPerCaller
	config.Info = api.Info{
		Version: version, Operators: d.cfg.Anchors.Operators, GuardianGovernance: d.cfg.Anchors.GuardianGovernance,
		Store: "none", ReadAs: d.cfg.Participant.ReadAs, StartedAt: time.Now(),
	}
	config.Info.PinnedPackages, _ = d.cfg.Packages.pinned() // validated
	if d.hasDatabase() {
		config.Info.Store = "postgres"
	}
	return config
}

// policyOf is what of the ledger counts.
func policyOf(cfg Config) (index.Policy, error) {
	pinned, err := cfg.Packages.pinned()
	if err != nil {
		return index.Policy{}, fmt.Errorf("packages.pinned_ids: %w", err)
	}
	return index.Policy{PackageIDs: pinned, Operators: cfg.Anchors.Operators, GuardianGovernance: cfg.Anchors.GuardianGovernance}, nil
}

func streamConfig(cfg Config) ledgerstream.Config {
	p := cfg.Participant
	return ledgerstream.Config{
		Parties: p.ReadAs, AnyParty: p.ReadAsAnyParty, Packages: cfg.Packages.Names,
		PollInterval: p.PollInterval, CallTimeout: p.CallTimeout,
	}
}

// dialParticipant makes the connection; it does not wait for it.
func dialParticipant(cfg Config, log *slog.Logger) (*ledgerstream.Conn, error) {
	p := cfg.Participant
	var token ledgerstream.TokenSource
	switch {
	case p.TokenFile != "":
		token = ledgerstream.FileToken(p.TokenFile)
	case p.OAuthTokenURL != "":
		source, err := ledgerstream.NewClientCredentials(ledgerstream.ClientCredentials{
			TokenURL: p.OAuthTokenURL, ClientID: p.OAuthClientID, SecretFile: p.OAuthClientSecretFile,
			Audience: p.OAuthAudience, Scopes: p.OAuthScopes,
		}, log)
		if err != nil {
			setting, err := participantSetting(err)
			return nil, configError{fmt.Errorf("%s: %w", setting, err)}
		}
		token = source
	}
	conn, err := ledgerstream.DialRenewable(ledgerstream.ConnConfig{
		Target: p.Address, Plaintext: p.Plaintext, CAFile: p.CAFile, CertFile: p.CertFile, KeyFile: p.KeyFile, ServerName: p.ServerName,
		MaxReceiveBytes: p.MaxMessageBytes, Token: token, Log: log,
	})
	if err != nil {
		setting, err := participantSetting(err)
		return nil, configError{fmt.Errorf("%s: %w", setting, err)}
	}
	return conn, nil
}

// pinned keeps an index from being built from another participant than the one that the operator named.
type pinned struct {
	ledgerstream.Sink
	participantID string
}

func (p *pinned) BeginSeed(ctx context.Context, start ledger.SeedStart) (ledger.Seed, error) {
	if p.participantID != "" && start.ParticipantID != p.participantID {
		return nil, fmt.Errorf("participant.id is %s, and %s answers at the address: correct one of the two", p.participantID, start.ParticipantID)
	}
	return p.Sink.BeginSeed(ctx, start)
}

// late is the index before and after it is open: the API is served from the start, and until then nothing is there.
type late struct {
	opened atomic.Pointer[opened]
	// ready is closed by set.
	ready chan struct{}
}

type opened struct {
	index    *index.Index
	follower *ledgerstream.Follower
}

func newLate() *late { return &late{ready: make(chan struct{})} }

// set is called once.
func (l *late) set(x *index.Index, f *ledgerstream.Follower) {
	l.opened.Store(&opened{x, f})
	close(l.ready)
}

func (l *late) View() *index.View {
	if o := l.opened.Load(); o != nil {
		return o.index.View()
	}
	return nil
}

// wait returns the index once it is open.
func (l *late) wait(ctx context.Context) (*index.Index, error) {
	select {
	case <-l.ready:
		return l.opened.Load().index, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *late) Wait(ctx context.Context, ok func(*index.View) bool) (*index.View, error) {
	x, err := l.wait(ctx)
	if err != nil {
		return nil, err
	}
	return x.Wait(ctx, ok)
}

func (l *late) WaitUpdate(ctx context.Context, updateID string) (*index.View, index.UpdateRef, error) {
	x, err := l.wait(ctx)
	if err != nil {
		return nil, index.UpdateRef{}, err
	}
	return x.WaitUpdate(ctx, updateID)
}

// History is asked only for what a view says, and there is no view before the index is open.
func (l *late) History() index.History { return l.opened.Load().index.History() }

// findUpdate asks the participant; that it does not answer is no news to whoever asked.
func (l *late) findUpdate(ctx context.Context, updateID string) (participantID string, offset int64, found bool) {
	o := l.opened.Load()
	if o == nil {
		return "", 0, false
	}
	at, found, err := o.follower.FindUpdate(ctx, updateID)
	return at.ParticipantID, at.Offset, found && err == nil
}

func (l *late) status() api.Status {
	o := l.opened.Load()
	if o == nil {
		return api.Status{State: string(ledgerstream.StateConnecting), Detail: "the database or the participant is not there yet, or another process holds the writer's lease"}
	}
	s := o.follower.Status()
	return api.Status{
		State: string(s.State), Detail: s.Detail, ParticipantID: s.ParticipantID, LedgerAPIVersion: s.LedgerAPIVersion,
		LedgerEnd: s.LedgerEnd, ProvenOffset: s.ProvenOffset, ProvenAt: s.ProvenAt, LastMessageAt: s.LastMessageAt,
		HistoryReplaced: string(s.HistoryReplaced), HistoryReplacedAt: s.HistoryReplacedAt,
		HaltedAt: s.HaltedAt, HaltedAfter: s.HaltedAfter, Synchronizers: s.Synchronizers, Packages: s.Packages,
	}
}
