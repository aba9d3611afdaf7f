package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/telemetry"
	"github.com/disclosured/disclosured/replayguard"
	guardpostgres "github.com/disclosured/disclosured/replayguard/postgres"
)

const (
	// guardConnections are the connections of the replay guard's own pool. Reservations wait for each other in the database, so more
	// would wait there, and so few can't take the index's.
	guardConnections = 4
	// guardClockSkew is how much the database's clock may differ from ours: the guard in it takes expiries that much farther ahead.
	guardClockSkew = time.Minute
	// guardStatsTimeout bounds what a scrape waits for the guard's counts.
	guardStatsTimeout = 2 * time.Second
)

// guardServed reports whether anybody can reserve: the guard is on, and connections name a client or need not.
func (c Config) guardServed() bool {
	return c.Guard.Enabled && (c.API.ClientCAFile != "" || c.Guard.AllowAnonymous)
}

// limits are the guard's; those of a store by another clock than ours take expiries that much farther ahead.
func (g GuardConfig) limits(skew time.Duration) replayguard.Limits {
	return replayguard.Limits{
		MaxEntries: g.MaxEntries, MaxTTL: g.MaxTTL + skew, MaxLifetime: 4 * g.MaxTTL, AllowRelease: g.AllowRelease,
		Quota: replayguard.Quota{MaxLive: g.MaxLivePerClient, PerMinute: g.RatePerClient, Burst: g.BurstPerClient, LapseCost: g.LapseCost},
	}
}

// guardStore is the guard's store for as long as the service runs: in this process, or, where there is a database, in that, and until
// it is open, or where the guard is off, none.
type guardStore struct {
	opened atomic.Pointer[replayguard.Store]
}

func (g *guardStore) set(store replayguard.Store) { g.opened.Store(&store) }

var errGuardNotOpen = errors.New("the replay guard's database is not open yet")

func (g *guardStore) store() (replayguard.Store, error) {
	if store := g.opened.Load(); store != nil {
		return *store, nil
	}
	return nil, errGuardNotOpen
}

func (g *guardStore) Reserve(ctx context.Context, r replayguard.Request) (replayguard.Reservation, error) {
	store, err := g.store()
	if err != nil {
		return replayguard.Reservation{}, err
	}
	return store.Reserve(ctx, r)
}

func (g *guardStore) Settle(ctx context.Context, c replayguard.Claim, outcome replayguard.Outcome) (replayguard.Reservation, error) {
	store, err := g.store()
	if err != nil {
		return replayguard.Reservation{}, err
	}
	return store.Settle(ctx, c, outcome)
}

func (g *guardStore) Extend(ctx context.Context, c replayguard.Claim, expiresAt int64) (replayguard.Reservation, error) {
	store, err := g.store()
	if err != nil {
		return replayguard.Reservation{}, err
	}
	return store.Extend(ctx, c, expiresAt)
}

func (g *guardStore) Release(ctx context.Context, c replayguard.Claim) error {
	store, err := g.store()
	if err != nil {
		return err
	}
	return store.Release(ctx, c)
}

func (g *guardStore) Stats(ctx context.Context) (replayguard.Stats, error) {
	store, err := g.store()
	if err != nil {
		return replayguard.Stats{}, err
	}
	return store.Stats(ctx)
}

// startGuard makes the guard's part of what the API works with. In memory it is there at once; openGuard brings the database's.
func (d *daemon) startGuard(deps *api.Deps, metrics *telemetry.Metrics) *guardStore {
	guard := &guardStore{}
	if !d.cfg.Guard.Enabled {
		return guard
	}
	deps.Guard, deps.GuardMetrics = guard, metrics.Guard
	if !d.cfg.guardServed() {
		d.log.Info("the submission service is off: connections name no client; see api.client_ca_file and guard.allow_anonymous")
		return guard
	}
	if !d.hasDatabase() {
		guard.set(replayguard.NewMemory(d.cfg.Guard.limits(0), nil))
	}
	limits, err := d.cfg.Guard.limits(0).WithDefaults()
	if err != nil {
		return guard // validated
	}
	metrics.Guard.Watch(func() (telemetry.GuardLevels, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), guardStatsTimeout)
		defer cancel()
		stats, err := guard.Stats(ctx)
		return telemetry.GuardLevels{
			Live: stats.Live, MaxEntries: limits.MaxEntries, Clients: stats.Clients, MaxLive: limits.Quota.MaxLive, Lapsed: stats.Lapsed,
			HighestShare: stats.Quotas.HighestShare, ClientsAtLimit: stats.Quotas.AtLimit,
		}, err == nil
	})
	return guard
}

// openGuard opens the guard in the database, where there is one and the guard is served. The function that it returns closes it.
func (d *daemon) openGuard(ctx context.Context, guard *guardStore) (closeGuard func(), err error) {
	if !d.hasDatabase() || !d.cfg.guardServed() {
		return func() {}, nil
	}
	pool, err := guardPool(ctx, d.cfg.Database.URLFile, d.databaseURL)
	if err != nil {
		return nil, guardDatabaseError("opening the replay guard's database", err)
	}
	store, err := guardpostgres.Open(ctx, pool, guardpostgres.Config{
		Limits: d.cfg.Guard.limits(guardClockSkew), Migrate: d.cfg.Database.Migrate, Logger: d.log,
	})
	if err != nil {
		pool.Close()
		if errors.Is(err, guardpostgres.ErrNewerSchema) || errors.Is(err, guardpostgres.ErrNotMigrated) {
			return nil, configError{fmt.Errorf("the replay guard: %w: run `disclosured migrate`, or set database.migrate, or turn guard.enabled off", err)}
		}
		return nil, guardDatabaseError("opening the replay guard's database", err)
	}
	guard.set(store)
	return func() {
		store.Close()
		pool.Close()
	}, nil
}

// guardPool makes the guard's own small pool. A file with the URL is read again for each new connection, as the index's store does, so
// that a password can be changed without a restart.
func guardPool(ctx context.Context, urlFile, url string) (*pgxpool.Pool, error) {
	database := postgres.Config{URLFile: urlFile}
	if url != "" {
		database = postgres.Config{URL: url}
	}
	config, err := database.Parse()
	if err != nil {
		return nil, err
	}
	config.MaxConns = guardConnections
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = "disclosured-guard"
	config.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		now, err := database.Parse()
		if err != nil {
			return err
		}
		conn.User, conn.Password = now.ConnConfig.User, now.ConnConfig.Password
		return nil
	}
	return pgxpool.NewWithConfig(ctx, config)
}
