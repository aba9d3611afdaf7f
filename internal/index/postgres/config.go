package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/secretfile"
)

// Config says which database, and how patiently.
type Config struct {
	// URL is the database's connection string, as a URL or in keyword form. Exactly one of URL and URLFile is set.
	URL string
	// URLFile is a file that holds the connection string. It is read again for each new connection, so that a password can
	// be changed without a restart.
	URLFile string
	// MaxConns is the greatest number of connections; 0 is the URL's pool_max_conns, or 8. One is enough to work.
	MaxConns int32
	// ConnectTimeout bounds the making of one connection; 0 is 5 s.
	ConnectTimeout time.Duration
	// Timeout bounds each transaction and each statement outside of one, but for Load and migrations; 0 is 30 s.
	Timeout time.Duration
	// Migrate applies pending migrations when the store is opened. Without it, pending migrations are an error.
	Migrate bool
	// Logger gets what happens in the background; nil is slog.Default().
	Logger *slog.Logger

	// noSweeper leaves sweeping to the test.
	noSweeper bool
}

const (
	defaultMaxConns       = 8
	defaultConnectTimeout = 5 * time.Second
	defaultTimeout        = 30 * time.Second

	// idleTimeout is how long the server lets a writing transaction be between two statements. A writer is there at once with the
	// next one; one that isn't was suspended, and would hold its lease's row, and so its successor, for that long.
	idleTimeout = 5 * time.Second

	// pingTimeout is how long an idle connection has to prove that it lives. It is short because each dead connection of a
	// pool costs its time once after an outage.
	pingTimeout = time.Second

	applicationName = "disclosured"
)

func (c Config) withDefaults() Config {
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = defaultConnectTimeout
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// ConfigError is a Config that can't work. No error of it shows any of the connection string, which holds a password.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return "database: " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// connString is the connection string, read from its file where it lies in one.
func (c Config) connString() (string, error) {
	switch {
	case c.URL != "" && c.URLFile != "":
		return "", &ConfigError{errors.New("a URL and a file with a URL are given; give one")}
	case c.URL != "":
		return c.URL, nil
	case c.URLFile == "":
		return "", &ConfigError{errors.New("no URL is given")}
	}
	text, err := secretfile.ReadText(c.URLFile)
	switch {
	case err != nil:
		return "", &ConfigError{fmt.Errorf("reading the file with the URL: %w", err)}
	case text == "":
		return "", &ConfigError{fmt.Errorf("the file %s is empty; it should hold the database's URL", c.URLFile)}
	case strings.ContainsAny(text, "\r\n"):
		return "", &ConfigError{fmt.Errorf("the file %s has several lines; it should hold the database's URL and nothing else", c.URLFile)}
	}
	return text, nil
}

// Parse reads the connection string, and sets nothing beside it; the error is a *ConfigError. It is for whoever else connects to the
// same database.
func (c Config) Parse() (*pgxpool.Config, error) {
	cfg, _, err := c.parse()
	return cfg, err
}

// parse reads the connection string. The pool's parser is used for single connections too, because the string may hold settings
// of the pool. What the parser says is left out, because it repeats parts of the string.
func (c Config) parse() (cfg *pgxpool.Config, url string, err error) {
	if url, err = c.connString(); err != nil {
		return nil, "", err
	}
	if cfg, err = pgxpool.ParseConfig(url); err != nil {
		return nil, "", &ConfigError{errors.New("the URL can't be read; it should look like postgres://user:password@host:5432/database?sslmode=verify-full")}
	}
	// A / or @ in a password that isn't encoded ends the password: the rest of it is then taken for a part of the host or of the
	// database's name, and shown in each error of a connection.
	shown := []string{cfg.ConnConfig.Database, cfg.ConnConfig.Host}
	for _, other := range cfg.ConnConfig.Fallbacks {
		shown = append(shown, other.Host)
	}
	for name := range cfg.ConnConfig.RuntimeParams {
		shown = append(shown, name)
	}
	if slices.ContainsFunc(shown, func(s string) bool { return strings.Contains(s, "@") }) {
		return nil, "", &ConfigError{errors.New("the URL has an @ in its host, its database's name or a parameter's: in a user's name and a password, write @ as %40 and / as %2F, as everywhere in a URL")}
	}
	return cfg, url, nil
}

// connConfig is the configuration of one connection.
func (c Config) connConfig(dial pgconn.DialFunc) (*pgx.ConnConfig, error) {
	cfg, url, err := c.parse()
	if err != nil {
		return nil, err
	}
	c.prepare(cfg.ConnConfig, url, dial)
	return cfg.ConnConfig, nil
}

// prepare sets what a connection needs whatever the URL says.
func (c Config) prepare(cfg *pgx.ConnConfig, url string, dial pgconn.DialFunc) {
	cfg.ConnectTimeout = c.ConnectTimeout
	cfg.DialFunc = dial
	if !strings.Contains(url, "default_query_exec_mode") {
		// Descriptions are cached, statements are not named: safe behind a transaction pooler, and binary.
		cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = applicationName
	}
}

// poolConfig is the pool's configuration.
func (c Config) poolConfig(dial pgconn.DialFunc) (*pgxpool.Config, error) {
	cfg, url, err := c.parse()
	if err != nil {
		return nil, err
	}
	c.prepare(cfg.ConnConfig, url, dial)
	switch {
	case c.MaxConns > 0:
		cfg.MaxConns = c.MaxConns
	case !strings.Contains(url, "pool_max_conns"):
		cfg.MaxConns = defaultMaxConns
	}
	cfg.MinConns = 0
	cfg.AfterConnect = greet
	cfg.PingTimeout = pingTimeout
	cfg.HealthCheckPeriod = 15 * time.Second
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.MaxConnLifetime = time.Hour
	cfg.MaxConnLifetimeJitter = 10 * time.Minute
	if c.URLFile != "" {
		cfg.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
			fresh, err := c.connConfig(dial)
			if err != nil {
				return err
			}
			*conn = *fresh
			return nil
		}
	}
	return cfg, nil
}
