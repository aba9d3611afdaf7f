package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DatabaseOptions are the properties of a new database. The zero value gives UTF-8 with the server's own collation.
type DatabaseOptions struct {
	// ICULocale makes ICU the database's collation provider, with this locale, for example "en-US": text then sorts as
	// people of that language expect and not by bytes, as in many production databases. Needs PostgreSQL 15 or newer.
	ICULocale string
}

// CreateDatabase makes an empty database.
func (s *Server) CreateDatabase(ctx context.Context, name string, options DatabaseOptions) error {
	return CreateDatabaseAt(ctx, s.DSN("postgres"), name, options)
}

// DropDatabase removes a database and ends the sessions in it. A database that is not there is no error.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	return DropDatabaseAt(ctx, s.DSN("postgres"), name)
}

// CreateDatabaseAt makes an empty database on the server that dsn connects to, which needs not be one of ours.
func CreateDatabaseAt(ctx context.Context, dsn, name string, options DatabaseOptions) error {
	// Of template0 nobody can have a session, so parallel creations don't disturb each other, and only from it may the
	// collation differ from the server's.
	statement := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE template0 ENCODING 'UTF8'"
	if options.ICULocale != "" {
		statement += " LOCALE_PROVIDER icu LOCALE 'C' ICU_LOCALE " + quoteLiteral(options.ICULocale)
	}
	if err := execAt(ctx, dsn, statement); err != nil {
		return fmt.Errorf("creating database %q: %w", name, err)
	}
	return nil
}

// DropDatabaseAt is DropDatabase on the server that dsn connects to.
func DropDatabaseAt(ctx context.Context, dsn, name string) error {
	if err := execAt(ctx, dsn, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("dropping database %q: %w", name, err)
	}
	return nil
}

// WithDatabase gives the same connection string for another database. The string must be a URL.
func WithDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", errors.New("a connection string that is not a postgres:// URL") // not shown: it may hold a password
	}
	u.Path = "/" + name
	return u.String(), nil
}

func execAt(ctx context.Context, dsn, statement string) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

func quoteLiteral(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
