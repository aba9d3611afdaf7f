package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// describe lists everything in the database's schemas that is ours to make: tables, columns, constraints, indexes, comments.
func describe(t testing.TB, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `
		WITH relation AS (SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast'))
		SELECT 'table ' || relname || ' ' || relkind::text || ' ' || COALESCE(array_to_string(reloptions, ','), '') || ' -- ' || COALESCE(obj_description(oid, 'pg_class'), '') FROM relation WHERE relkind <> 'i'
		UNION ALL
		SELECT 'column ' || r.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' || a.attstorage::text || ' ' || a.attidentity::text || ' ' || COALESCE(c.collname, '')
			|| ' ' || COALESCE(pg_get_expr(d.adbin, d.adrelid), '') || ' -- ' || COALESCE(col_description(r.oid, a.attnum), '')
		FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped LEFT JOIN pg_collation c ON c.oid = a.attcollation
			LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum WHERE r.relkind = 'r'
		UNION ALL
		SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN relation r ON r.oid = i.indrelid
		UNION ALL
		SELECT 'constraint ' || r.relname || ' ' || c.conname || ' ' || pg_get_constraintdef(c.oid) FROM pg_constraint c JOIN relation r ON r.oid = c.conrelid
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func migrateAll(t *testing.T, cfg Config, direction Direction) []Migration {
	t.Helper()
	cfg.Logger = quiet
	var all []Migration
	for { // down undoes one migration at a time
		var err error
		if all, err = Migrate(t.Context(), cfg, direction); err != nil {
			t.Fatal(err)
		}
		if direction == Up || all[0].AppliedAt.IsZero() {
			return all
		}
	}
}

// All migrations go up, down and up again, on an empty database and on a filled one, and what they make is always the same (D12).
func TestMigrationsUpDownUp(t *testing.T) {
	url := pgtest.Database(t)
	cfg := Config{URL: url}
	for i, m := range migrateAll(t, cfg, Up) {
		if m.AppliedAt.IsZero() || m.Version != int64(i+1) {
			t.Errorf("after up: %+v", m)
		}
	}
	made := describe(t, url)

	migrateAll(t, cfg, Down)
	for line := range strings.Lines(describe(t, url)) {
		if !strings.Contains(line, "schema_version") {
			t.Errorf("left after down: %s", line)
		}
	}
	migrateAll(t, cfg, Up)
	if diff := cmp.Diff(made, describe(t, url)); diff != "" {
		t.Errorf("up after down (-first +second):\n%s", diff)
	}

	s := writer(t, url)
	seedWith(t, s, first(20), index.SeedEnd{Ghosts: samples()[:1]}, samples()...)
	d := index.Delta{From: position(20), To: position(21), Remove: []index.Key{samples()[0].Key()}, Scopes: []index.Scope{scope1},
		Consumes:   []index.Consume{{Scope: scope1, Digest: digest(1), Offset: 21, UpdateID: "u", RecordTime: at(21)}},
		Ended:      []index.Ended{{ContractID: samples()[0].ContractID, How: index.Split, Offset: 21, Successors: []string{id("a")}, Scope: &scope1}},
		Updates:    []index.UpdateRef{{Offset: 21, UpdateID: "u", RecordTime: at(21)}},
		MissingAdd: []index.ScopedDigest{{Scope: scope1, Digest: digest(2)}}}
	if err := s.Commit(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	s.Close()
	migrateAll(t, cfg, Up) // nothing to do, nothing lost
	entries, loaded := load(t, open(t, url))
	if len(entries) != len(samples())-1 || loaded.Position.Offset != 21 {
		t.Errorf("after another up: %d entries at %d", len(entries), loaded.Position.Offset)
	}
	for { // the last migrations again, over rows: all but the first, which makes the tables
		cfg.Logger = quiet
		all, err := Migrate(t.Context(), cfg, Down)
		if err != nil {
			t.Fatal(err)
		}
		if all[1].AppliedAt.IsZero() {
			break
		}
	}
	migrateAll(t, cfg, Up)
	entries, loaded = load(t, open(t, url))
	if len(entries) != len(samples())-1 || loaded.Unreadable.Rows != 0 {
		t.Errorf("after going back to the first migration: %d entries, unreadable: %v", len(entries), loaded.Unreadable.First)
	}
	migrateAll(t, cfg, Down)
	migrateAll(t, cfg, Up)
	if diff := cmp.Diff(made, describe(t, url)); diff != "" {
		t.Errorf("up after down of a filled database (-first +second):\n%s", diff)
	}
}

// The schema explains itself: each table and each column has a comment; all text that is compared is in the C collation.
func TestSchemaIsCommented(t *testing.T) {
	url := pgtest.Database(t)
	open(t, url)
	for line := range strings.Lines(describe(t, url)) {
		line = strings.TrimSpace(line)
		table := strings.HasPrefix(line, "table ") && !strings.Contains(line, "_seq S")
		column := strings.HasPrefix(line, "column ")
		if (table || column) && strings.HasSuffix(line, "--") {
			t.Errorf("no comment: %s", line)
		}
		if column && strings.Contains(line, " text") && !strings.Contains(line, " C ") && !strings.Contains(line, ".blob_fault ") {
			t.Errorf("not in the C collation: %s", line)
		}
	}
}

// Processes that migrate one database at the same time all succeed, and the migrations are applied once.
func TestMigratingAtOnce(t *testing.T) {
	url := pgtest.Database(t)
	errs := make(chan error)
	const processes = 6
	for range processes {
		go func() {
			s, err := Open(t.Context(), Config{URL: url, Migrate: true, Logger: quiet})
			if err == nil {
				s.Close()
			}
			errs <- err
		}()
	}
	for range processes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	s := open(t, url)
	var rows, versions int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT version_id) FROM disclosured.schema_version`).Scan(&rows, &versions); err != nil || rows != versions {
		t.Errorf("%d records of %d versions, %v", rows, versions, err)
	}
}

// A database that is not of this program's schema is a named error that says what to do, and nothing is written to it.
func TestSchemaMustFit(t *testing.T) {
	url := pgtest.Database(t)
	untouched := describe(t, url)
	refused := func(what string, want error, err error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	openErr := func(cfg Config) error {
		cfg.Logger = quiet
		s, err := Open(t.Context(), cfg)
		if err == nil {
			s.Close()
		}
		return err
	}
	refused("not migrated", ErrNotMigrated, openErr(Config{URL: url}))
	if all, err := Migrate(t.Context(), Config{URL: url, Logger: quiet}, Status); err != nil || len(all) == 0 || !all[0].AppliedAt.IsZero() {
		t.Errorf("status of an empty database: %+v, %v", all, err)
	}
	if _, err := Migrate(t.Context(), Config{URL: url, Logger: quiet}, Down); err != nil {
		t.Errorf("down of an empty database: %v", err)
	}
	if diff := cmp.Diff(untouched, describe(t, url)); diff != "" {
		t.Errorf("written to a database that is not migrated (-before +after):\n%s", diff)
	}

	s := open(t, url)
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO disclosured.schema_version (version_id, is_applied) VALUES (999, true)`); err != nil {
		t.Fatal(err)
	}
	newer, records := describe(t, url), countRows(t, s, "schema_version")
	refused("newer", ErrNewerSchema, openErr(Config{URL: url}))
	refused("newer, to be migrated", ErrNewerSchema, openErr(Config{URL: url, Migrate: true}))
	for _, direction := range []Direction{Up, Down} {
		_, err := Migrate(t.Context(), Config{URL: url, Logger: quiet}, direction)
		refused("newer, "+string(direction), ErrNewerSchema, err)
	}
	if diff := cmp.Diff(newer, describe(t, url)); diff != "" || countRows(t, s, "schema_version") != records {
		t.Errorf("a newer database was written to (-before +after):\n%s", diff)
	}
	if _, err := Migrate(t.Context(), Config{URL: url}, "sideways"); err == nil {
		t.Error("an unknown direction was accepted")
	}
}

// A connection string that is wrong is an error that does not repeat it: it holds a password.
// A schema whose version's record is lost is left alone, and whoever asks is told what to do.
func TestTheVersionIsLost(t *testing.T) {
	for name, lose := range map[string]string{
		"emptied":              `DELETE FROM disclosured.schema_version`,
		"all but the first":    `DELETE FROM disclosured.schema_version WHERE version_id > 0`,
		"the table is dropped": `DROP TABLE disclosured.schema_version`,
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			s := open(t, url)
			if _, err := s.pool.Exec(t.Context(), lose); err != nil {
				t.Fatal(err)
			}
			_, err := Migrate(t.Context(), Config{URL: url, Logger: quiet}, Up)
			if !errors.Is(err, ErrVersionLost) || !strings.Contains(err.Error(), "DROP SCHEMA disclosured CASCADE") {
				t.Errorf("migrating: %v", err)
			}
			if _, err := Open(t.Context(), Config{URL: url, Migrate: true, Logger: quiet}); !errors.Is(err, ErrVersionLost) {
				t.Errorf("opening: %v", err)
			}
		})
	}
}

func TestBadURLs(t *testing.T) {
	const password = "s3cret"
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, cfg := range map[string]Config{
		"none":        {},
		"both":        {URL: "postgres://localhost", URLFile: file("both", "postgres://localhost")},
		"no file":     {URLFile: filepath.Join(dir, "absent")},
		"empty file":  {URLFile: file("empty", "\n")},
		"bad port":    {URL: "postgres://user:" + password + "@localhost:port/db"},
		"bad escape":  {URL: "postgres://user:" + password + "%zz@localhost/db"},
		"bad keyword": {URL: "host=localhost password='" + password},
		"bad mode":    {URL: "postgres://user:" + password + "@localhost/db?sslmode=sideways"},
		"refused":     {URL: "postgres://user:" + password + "@127.0.0.1:1/db"},
		"in a file":   {URLFile: file("refused", "postgres://user:"+password+"@127.0.0.1:1/db\n")},
	} {
		s, err := Open(t.Context(), cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if strings.Contains(fmt.Sprintf("%v %+v %q", err, err, err), password) {
			t.Errorf("%s: the error holds the password: %v", name, err)
		}
		if _, err := Migrate(t.Context(), cfg, Status); err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("%s: migrate: %v", name, err)
		}
	}
}

// A URL in a file is read again for each connection.
func TestURLFileIsReread(t *testing.T) {
	url := pgtest.Database(t)
	open(t, url)
	path := filepath.Join(t.TempDir(), "url")
	write := func(content string) {
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(url)
	s := openWith(t, Config{URLFile: path})
	write("postgres://nobody:wrong@127.0.0.1:1/none")
	s.pool.Reset()
	if err := s.Ping(t.Context()); err == nil {
		t.Error("the old URL is still used")
	}
	write(url)
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("the new URL is not used: %v", err)
	}
}
