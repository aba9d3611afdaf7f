package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/disclosured/disclosured/migrations"
)

// ErrNotMigrated says that the database lacks migrations that this program needs.
var ErrNotMigrated = errors.New("the database's schema is older than this program needs; run `disclosured migrate up`")

// ErrNewerSchema says that the database was migrated by a newer program. Nothing was written.
var ErrNewerSchema = errors.New("the database's schema is newer than this program; run the program's newer version, or migrate down with it first")

// ErrVersionLost says that the schema is there and the record of its version is not. Nothing was written: applying the migrations to a
// schema of an unknown version could only fail half-way.
var ErrVersionLost = errors.New("the table disclosured.schema_version, which says which migrations are applied, has lost its rows. Restore it from a backup; or have the index built anew from the ledger, which loses its history: run DROP SCHEMA disclosured CASCADE and then `disclosured migrate up`")

// Direction is what Migrate does.
type Direction string

const (
	// Up applies all pending migrations.
	Up Direction = "up"
	// Down undoes the last migration. It deletes what the migration's tables hold.
	Down Direction = "down"
	// Status changes nothing.
	Status Direction = "status"
)

// Migration is one migration and whether it is applied.
type Migration struct {
	Version int64
	// Name is the migration's file.
	Name string
	// AppliedAt is when it was applied, in UTC; zero where it is pending.
	AppliedAt time.Time
}

const (
	schema       = "disclosured"
	versionTable = schema + ".schema_version"
	// migrationLock is the key of the transaction's advisory lock that migrating processes hold, a number of our own.
	migrationLock = 0x646973636c6f7365 // "disclose"
	// migrationTimeout bounds one run of migrations. They may rewrite large tables.
	migrationTimeout = time.Hour
)

// Migrate changes the schema, or only reads it, and returns all migrations with their state afterwards.
//
// Two processes may migrate at once: one waits for the other. The lock is an advisory lock of a transaction, held open on a
// connection of its own: a session's lock, goose's usual way, would stay behind on a server connection of a pooler. Should
// that connection break half-way, each migration is still one transaction with the row that records it: the second process'
// would fail on what the first created, and change nothing.
func Migrate(ctx context.Context, cfg Config, direction Direction) ([]Migration, error) {
	cfg = cfg.withDefaults()
	connConfig, err := cfg.connConfig(newDialer(cfg.ConnectTimeout).dial)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	// Migrations are statements that run once: neither caching nor describing makes sense.
	connConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*connConfig, stdlib.OptionAfterConnect(greet))
	defer db.Close()

	switch direction {
	case Status:
	case Up, Down:
		err = withMigrationLock(ctx, db, func() error { return migrate(ctx, db, cfg, direction) })
	default:
		err = fmt.Errorf("unknown direction %q; want %s, %s or %s", direction, Up, Down, Status)
	}
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w", direction, err)
	}
	all, err := status(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migrate %s: reading the migrations' state: %w", direction, err)
	}
	return all, nil
}

// withMigrationLock runs f while no other process migrates.
func withMigrationLock(ctx context.Context, db *sql.DB, f func() error) error {
	lock, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer lock.Rollback()
	// The transaction waits idle while the migrations run.
	if _, err := lock.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		return fmt.Errorf("waiting for other migrating processes: %w", err)
	}
	if _, err := lock.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1::bigint)`, int64(migrationLock)); err != nil {
		return fmt.Errorf("waiting for other migrating processes: %w", err)
	}
	return f()
}

// migrate runs goose, under the lock.
func migrate(ctx context.Context, db *sql.DB, cfg Config, direction Direction) error {
	err := checkVersion(ctx, sqlQuerier{db})
	if errors.Is(err, ErrNotMigrated) {
		if direction == Down && !errors.Is(err, errPartlyMigrated) {
			return nil // nothing was applied
		}
		err = nil
	}
	if err != nil {
		return err
	}
	// Only where it is missing: CREATE SCHEMA needs a right that the schema's owner need not have, IF NOT EXISTS or not.
	var exists bool
	if err := db.QueryRowContext(ctx, `SELECT to_regnamespace('`+schema+`') IS NOT NULL`).Scan(&exists); err != nil {
		return fmt.Errorf("looking for the schema %s: %w", schema, err)
	}
	if !exists {
		if _, err := db.ExecContext(ctx, `CREATE SCHEMA `+schema); err != nil {
			return fmt.Errorf("creating the schema %s: %w", schema, err)
		}
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithTableName(versionTable), goose.WithSlog(cfg.Logger), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	if direction == Up {
		_, err = provider.Up(ctx)
		return err
	}
	_, err = provider.Down(ctx)
	return err
}

// status reads which migrations are applied. It writes nothing, not even goose's table.
func status(ctx context.Context, db *sql.DB) ([]Migration, error) {
	all, err := embedded()
	if err != nil {
		return nil, err
	}
	var exists bool
	if err := db.QueryRowContext(ctx, versionTableExists).Scan(&exists); err != nil || !exists {
		return all, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id, max(tstamp) FROM `+versionTable+` WHERE is_applied AND version_id > 0 GROUP BY version_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	applied := map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, err
		}
		applied[version] = at.UTC()
	}
	for i := range all {
		all[i].AppliedAt = applied[all[i].Version]
	}
	return all, rows.Err()
}

// embedded lists this program's migrations, oldest first.
func embedded() ([]Migration, error) {
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(names))
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		all = append(all, Migration{Version: version, Name: name})
	}
	return all, nil
}

const versionTableExists = `SELECT to_regclass('` + versionTable + `') IS NOT NULL`

// errPartlyMigrated tells, inside ErrNotMigrated, that some migrations are applied.
var errPartlyMigrated = errors.New("some migrations are applied")

// rowQuerier is what checkVersion needs of a pool, a connection or a database/sql handle.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type sqlQuerier struct{ db *sql.DB }

func (q sqlQuerier) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return q.db.QueryRowContext(ctx, sql, args...)
}

// checkVersion compares the schema with this program's: nil where they are equal, else an error that wraps ErrNotMigrated or
// ErrNewerSchema. It writes nothing.
func checkVersion(ctx context.Context, q rowQuerier) error {
	all, err := embedded()
	if err != nil {
		return err
	}
	want := all[len(all)-1].Version
	var exists, inUse bool
	if err := q.QueryRow(ctx, `SELECT to_regclass('`+versionTable+`') IS NOT NULL, to_regclass('`+schema+`.cursor') IS NOT NULL`).Scan(&exists, &inUse); err != nil {
		return fmt.Errorf("reading the schema's version: %w", err)
	}
	if !exists && inUse {
		return fmt.Errorf("schema version unknown, want %d: %w", want, ErrVersionLost)
	}
	if !exists {
		return fmt.Errorf("schema version 0, want %d: %w", want, ErrNotMigrated)
	}
	var have, rows int64
	if err := q.QueryRow(ctx, `SELECT COALESCE(max(version_id) FILTER (WHERE is_applied), 0), count(*) FROM `+versionTable).Scan(&have, &rows); err != nil {
		return fmt.Errorf("reading the schema's version: %w", err)
	}
	switch {
	case rows == 0, have == 0 && inUse:
		return fmt.Errorf("schema version unknown, want %d: %w", want, ErrVersionLost)
	case have > want:
		return fmt.Errorf("schema version %d, want %d: %w", have, want, ErrNewerSchema)
	case have == 0:
		return fmt.Errorf("schema version 0, want %d: %w", want, ErrNotMigrated)
	case have < want:
		return fmt.Errorf("schema version %d, want %d: %w: %w", have, want, ErrNotMigrated, errPartlyMigrated)
	}
	return nil
}
