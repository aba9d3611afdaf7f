package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// The migrations: one SQL file per version, each with its way up and its way down. A released file is never changed, only
// followed by another. Each runs in one transaction together with the row that records its version.
//
//go:embed migrations/*.sql
var migrationFiles embed.FS

// ErrNotMigrated says that the database lacks migrations that this program needs.
var ErrNotMigrated = errors.New("the replay guard's schema is older than this program needs")

// ErrNewerSchema says that the database was migrated by a newer program. Nothing was written.
var ErrNewerSchema = errors.New("the replay guard's schema is newer than this program")

// Direction is what Migrate does.
type Direction string

const (
	// Up applies all pending migrations.
	Up Direction = "up"
	// Down undoes the last migration. It deletes what the migration's tables hold: every reservation is forgotten.
	Down Direction = "down"
)

const (
	schema       = "replayguard"
	versionTable = schema + ".schema_version"
	// migrationLock is the key of the transaction's advisory lock that migrating processes hold, a number of our own.
	migrationLock    = 0x7265706c61796764 // "replaygd"
	migrationTimeout = 10 * time.Minute
)

// Migrate changes the schema and gives the version that it has then; 0 is none. Of two processes that migrate at once, one
// waits for the other. It uses connections of its own, made as the pool makes them.
func Migrate(ctx context.Context, pool *pgxpool.Pool, direction Direction) (version int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	db, err := connect(ctx, pool)
	if err != nil {
		return 0, fmt.Errorf("replayguard: migrate %s: %w", direction, err)
	}
	defer db.Close()
	if err := withMigrationLock(ctx, db, func() error { return migrate(ctx, db, direction) }); err != nil {
		return 0, fmt.Errorf("replayguard: migrate %s: %w", direction, err)
	}
	version, err = schemaVersion(ctx, pool)
	if err != nil {
		return 0, fmt.Errorf("replayguard: migrate %s: %w", direction, err)
	}
	return version, nil
}

// connect makes a database/sql handle, as goose wants one, of what the pool knows.
func connect(ctx context.Context, pool *pgxpool.Pool) (*sql.DB, error) {
	cfg := pool.Config()
	conn := cfg.ConnConfig.Copy()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, conn); err != nil {
			return nil, err
		}
	}
	// Migrations are statements that run once: neither caching nor describing makes sense.
	conn.DefaultQueryExecMode = pgx.QueryExecModeExec
	return stdlib.OpenDB(*conn), nil
}

// withMigrationLock runs f while no other process migrates. The lock belongs to a transaction: a session's would stay behind
// on a server connection of a pooler.
func withMigrationLock(ctx context.Context, db *sql.DB, f func() error) error {
	lock, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer lock.Rollback()
	for _, statement := range []string{
		`SET LOCAL idle_in_transaction_session_timeout = 0`, // it waits idle while the migrations run
		fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, int64(migrationLock)),
	} {
		if _, err := lock.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("waiting for other migrating processes: %w", err)
		}
	}
	return f()
}

// migrate runs goose, under the lock.
func migrate(ctx context.Context, db *sql.DB, direction Direction) error {
	if _, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS `+schema); err != nil {
		return fmt.Errorf("creating the schema %s: %w", schema, err)
	}
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	have, err := provider.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("reading the schema's version: %w", err)
	}
	want, err := newest()
	if err != nil {
		return err
	}
	if have > want {
		return fmt.Errorf("schema version %d, want %d: %w", have, want, ErrNewerSchema)
	}
	switch direction {
	case Up:
		_, err = provider.Up(ctx)
	case Down:
		if have > 0 {
			_, err = provider.Down(ctx)
		}
	default:
		err = fmt.Errorf("unknown direction; want %s or %s", Up, Down)
	}
	return err
}

// newest is the version of this program's last migration.
func newest() (version int64, err error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		n, err := goose.NumericComponent(name)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", name, err)
		}
		version = max(version, n)
	}
	return version, nil
}

// schemaVersion is the schema's version in the database; 0 where there is none. It writes nothing.
func schemaVersion(ctx context.Context, pool *pgxpool.Pool) (version int64, err error) {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass('`+versionTable+`') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = pool.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM `+versionTable+` WHERE is_applied`).Scan(&version)
	return version, err
}

// checkVersion compares the schema with this program's.
func checkVersion(ctx context.Context, pool *pgxpool.Pool) error {
	want, err := newest()
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, pool)
	switch {
	case err != nil:
		return fmt.Errorf("reading the schema's version: %w", err)
	case have < want:
		return fmt.Errorf("schema version %d, want %d: %w", have, want, ErrNotMigrated)
	case have > want:
		return fmt.Errorf("schema version %d, want %d: %w", have, want, ErrNewerSchema)
	}
	return nil
}
