package main

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/secretfile"
	guardpostgres "github.com/disclosured/disclosured/replayguard/postgres"
)

// What PostgreSQL and its client say names neither the setting nor what to do, and does not tell whether a restart mends it. Three kinds are told
// apart, by their codes (https://www.postgresql.org/docs/current/errcodes-appendix.html) and not by words, which the server may have translated:
//
//   - a setting is wrong, the URL's or a right's: a human mends it;
//   - the schema or what it holds is not what this program made (codes 22, 23, 3F and 42 of our own statements): a human mends it;
//   - the server is not there, stops, starts, or has no room: it may pass, and a supervisor may start the program again.

// databaseFault is what is known of an error beside what it says.
type databaseFault struct {
	// todo is what to do, "" where the error says it.
	todo string
	// human: no restart mends it.
	human bool
}

// damage is what to do where a schema or its contents were changed by hand.
type damage struct{ schema, contents string }

var (
	indexDamage = damage{
		schema: "the database's schema was changed by hand: run DROP SCHEMA disclosured CASCADE and then `disclosured migrate up`. The index is built anew from the ledger; " +
			"only history is lost",
		contents: "the database's contents were changed by hand: stop the service and run `disclosured reseed`, which has the index built anew from the ledger; where that fails " +
			"too, run DROP SCHEMA disclosured CASCADE and then `disclosured migrate up`. Only history is lost",
	}
	guardDamage = damage{
		schema:   "the replay guard's schema was changed by hand: run DROP SCHEMA replayguard CASCADE and then `disclosured migrate up`. Only reservations are lost",
		contents: "the replay guard's tables were changed by hand: run DROP SCHEMA replayguard CASCADE and then `disclosured migrate up`. Only reservations are lost",
	}
)

// databaseFaultOf tells what kind of fault an error of a database is.
func databaseFaultOf(err error, damaged damage) databaseFault {
	refusal, failed := (*pgconn.PgError)(nil), (*pgconn.ConnectError)(nil)
	switch {
	case errors.Is(err, postgres.ErrNotMigrated): // which names the command
		return databaseFault{"with the same --config or --database-url-file; or set database.migrate", true}
	case errors.Is(err, guardpostgres.ErrNotMigrated):
		return databaseFault{"run `disclosured migrate up` with the same --config or --database-url-file; or set database.migrate", true}
	case slices.ContainsFunc(wrongSchema, func(wrong error) bool { return errors.Is(err, wrong) }):
		return databaseFault{"", true}
	case errors.As(err, &failed):
		return connectFault(failed)
	case errors.As(err, &refusal):
		return statementFault(refusal, damaged)
	case misread(err):
		return databaseFault{damaged.schema, true}
	case lostConnection(err):
		return databaseFault{stoppedMeanwhile, false}
	}
	return databaseFault{}
}

// wrongSchema are the schema's states that need a human.
var wrongSchema = []error{postgres.ErrNewerSchema, postgres.ErrVersionLost, guardpostgres.ErrNewerSchema}

const stoppedMeanwhile = "PostgreSQL stopped or broke the connection meanwhile: see that it runs (its own log says why it ended), and start again"

// connectFault is the fault of a connection that can't be made.
func connectFault(failed *pgconn.ConnectError) databaseFault {
	refusal := (*pgconn.PgError)(nil)
	if !errors.As(failed, &refusal) {
		return reachFault(failed)
	}
	if name := unknownParameter(failed.Config, refusal); name != "" {
		return databaseFault{fmt.Sprintf("take %s out of the URL in the file of database.url_file, or correct it: what is no setting of the connection is asked of the server", name), true}
	}
	if fault, known := refusedFault(refusal.Code); known {
		return fault
	}
	return databaseFault{"does PostgreSQL take connections as the file of database.url_file says?", false}
}

// refusedFault is the fault of a connection that the server refuses with a code that needs no more to be understood.
func refusedFault(code string) (fault databaseFault, known bool) {
	switch {
	case code == "3D000":
		return databaseFault{"create the database (createdb), or correct its name in the file of database.url_file", true}, true
	case code == "28P01":
		return databaseFault{"correct user and password in the file of database.url_file", true}, true
	case strings.HasPrefix(code, "28"):
		return databaseFault{"correct user, password and sslmode in the file of database.url_file, or have the server let them in (pg_hba.conf)", true}, true
	case code == "42501":
		return databaseFault{"grant the user of the file of database.url_file the right to CONNECT to the database", true}, true
	case strings.HasPrefix(code, "53"):
		return databaseFault{"the server has no room: give it more max_connections, or lower database.max_connections", false}, true
	case strings.HasPrefix(code, "57"), strings.HasPrefix(code, "55"):
		return databaseFault{"PostgreSQL starts, stops or takes no connections now: start again when it does", false}, true
	}
	return databaseFault{}, false
}

// unknownParameter is the parameter of the URL that the server refuses, or a pooler in its place; "" where it refuses something else.
func unknownParameter(config *pgconn.Config, refusal *pgconn.PgError) string {
	class := refusal.Code[:min(2, len(refusal.Code))]
	if class != "42" && class != "22" && class != "08" {
		return ""
	}
	for name := range config.RuntimeParams {
		if strings.Contains(refusal.Message, `"`+name+`"`) || strings.HasSuffix(refusal.Message, ": "+name) {
			return name
		}
	}
	if class != "08" && refusal.Code != "42501" && config.RuntimeParams["options"] != "" {
		return "options" // whose settings have names of their own, which the server says
	}
	return ""
}

// reachFault is the fault of a connection about which no server said anything.
func reachFault(failed *pgconn.ConnectError) databaseFault {
	network, said := (*net.OpError)(nil), failed.Error()
	// Of several hosts one may only be away: the others' TLS is no fault then.
	human := !errors.As(failed, &network) && !strings.Contains(said, "connection refused")
	switch {
	case strings.Contains(said, "server refused TLS connection") && onlyTLS(failed.Config):
		return databaseFault{"the server has no TLS, and sslmode in the URL of the file of database.url_file asks for it: turn the server's ssl on, or set sslmode=disable", human}
	case strings.Contains(said, "x509: "), strings.Contains(said, "tls: "):
		return databaseFault{"TLS with the server fails: correct sslmode, sslrootcert (the authority of its certificate), sslcert and sslkey, and the host's name, in the file of database.url_file",
			!strings.Contains(said, "connection refused")}
	}
	return databaseFault{"is PostgreSQL running and reachable where the file of database.url_file says?", false}
}

// onlyTLS tells whether no connection without TLS is tried.
func onlyTLS(c *pgconn.Config) bool {
	return c.TLSConfig != nil && !slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.TLSConfig == nil })
}

// statementFault is the fault that the server found in a statement of ours. On a schema that this program made it finds none of its kinds 22, 23, 3F
// and 42.
func statementFault(refusal *pgconn.PgError, damaged damage) databaseFault {
	switch code := refusal.Code; {
	case code == "42501":
		return databaseFault{"grant the user of the file of database.url_file the rights on the schema, or give that of its owner", true}
	case code == "42P05", code == "26000":
		return databaseFault{"a pooler gives each statement another connection: leave default_query_exec_mode out of the URL in the file of database.url_file, or set it to exec", true}
	case code == "25006":
		return databaseFault{"the database takes no writes: the file of database.url_file should name the primary", false}
	case strings.HasPrefix(code, "42"), strings.HasPrefix(code, "3F"):
		return databaseFault{damaged.schema, true}
	case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "23"):
		return databaseFault{damaged.contents, true}
	case strings.HasPrefix(code, "53"):
		return databaseFault{"the server has no room (disk, memory or connections): give it more", false}
	case strings.HasPrefix(code, "57P"), strings.HasPrefix(code, "08"):
		return databaseFault{stoppedMeanwhile, false}
	}
	return databaseFault{}
}

// misread tells whether a column is of another type than the one that was made, or holds NULL where it may not.
func misread(err error) bool {
	scan, said := pgx.ScanArgError{}, err.Error()
	return errors.As(err, &scan) || strings.Contains(said, "sql: Scan error") || strings.Contains(said, "failed to encode args[")
}

// lostConnection tells whether a connection ended without a word.
func lostConnection(err error) bool {
	network := (*net.OpError)(nil)
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed, driver.ErrBadConn},
		func(end error) bool { return errors.Is(err, end) }) || errors.As(err, &network)
}

// databaseAdvice is what to do about the index's database that can't be used, "" where the error says it.
func databaseAdvice(err error) string { return databaseFaultOf(err, indexDamage).todo }

// databaseError says what could not be done with the index's database and what to do, in one line. It is the configuration's where no restart
// mends it.
func databaseError(doing string, err error) error { return faultyDatabase(doing, err, indexDamage) }

// guardDatabaseError is the same for the replay guard's part.
func guardDatabaseError(doing string, err error) error {
	return faultyDatabase(doing, err, guardDamage)
}

func faultyDatabase(doing string, err error, damaged damage) error {
	if fault := (*postgres.ConfigError)(nil); errors.As(err, &fault) {
		return configError{fmt.Errorf("%s: database.url_file: %w", doing, err)}
	}
	fault := databaseFaultOf(err, damaged)
	told := advised(fmt.Errorf("%s: %w", doing, inOneLine{err}), fault.todo)
	if failed := (*pgconn.ConnectError)(nil); fault.human && !(errors.As(err, &failed) && doing == waitingForLease) {
		return configError{told}
	}
	return told
}

// waitingForLease is what a standby does, perhaps for weeks: that it can't connect meanwhile may be because a password is just being changed. It is
// to be started again, and the start tells whether the setting is wrong.
const waitingForLease = "waiting for the writer's lease"

// checkDatabaseURL reads the file with the database's URL. What the parser says is kept back, because it repeats parts of the URL, but for what it
// says of the files and modes of TLS.
func checkDatabaseURL(urlFile string) error {
	_, err := postgres.Config{URLFile: urlFile}.Parse()
	if err == nil {
		return nil
	}
	url, readErr := secretfile.ReadText(urlFile)
	if readErr != nil || url == "" {
		return err
	}
	refusal := (*pgconn.ParseConfigError)(nil)
	if _, parseErr := pgxpool.ParseConfig(url); !errors.As(parseErr, &refusal) || !strings.Contains(parseErr.Error(), "failed to configure TLS") {
		return err
	}
	said := refusal.Unwrap()
	if file := (*fs.PathError)(nil); errors.As(said, &file) {
		said = fmt.Errorf("the file of sslrootcert, sslcert or sslkey: %w", file)
	}
	if said == nil || strings.Contains(said.Error(), "@") {
		return err // an @ may end a password
	}
	return fmt.Errorf("the URL's TLS (sslmode, sslrootcert, sslcert, sslkey): %w", said)
}

// inOneLine is an error whose text is one line.
type inOneLine struct{ error }

func (e inOneLine) Error() string { return oneLine(e.error) }
func (e inOneLine) Unwrap() error { return e.error }

// oneLine is an error's text without the lines and tabs in which PostgreSQL's client lists its attempts, and without those that say the same: it tries
// each address with TLS and without.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
