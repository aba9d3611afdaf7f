package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// ownerVariable makes this test binary the owner of a server, for a test that kills it. Its value is the directory.
const ownerVariable = "DISCLOSURED_TEST_PGSERVER_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVariable); dir != "" {
		ownServer(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// ownServer starts a server, prints its address and waits to be killed.
func ownServer(dir string) {
	server, err := Start(context.Background(), Options{Dir: dir, Download: true})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(server.DSN("postgres"))
	<-server.Done()
}

func startServer(t *testing.T, options Options) *Server {
	t.Helper()
	options.Download = true
	server, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(Immediate); err != nil {
			t.Error(err)
		}
	})
	return server
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string) T {
	t.Helper()
	var value T
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// openDir makes a directory that the server's user may enter; t.TempDir's is closed to others.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// entries gives the names in a directory.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

func TestStartServesAndStopLeavesNothing(t *testing.T) {
	dir := openDir(t)
	server := startServer(t, Options{Dir: dir})
	conn := connect(t, server.DSN("postgres"))
	if got := query[string](t, conn, "SHOW server_encoding"); got != "UTF8" {
		t.Errorf("server encoding %s, want UTF8", got)
	}
	if got := query[string](t, conn, "SHOW fsync"); got != "off" {
		t.Errorf("fsync %s, want off", got)
	}
	if version, err := server.Version(t.Context()); err != nil || version == "" {
		t.Errorf("Version() = %q, %v", version, err)
	}

	info, err := os.Stat(server.dir.data())
	if err != nil {
		t.Fatal(err)
	}
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if want := os.Geteuid(); want != 0 && uid != want || uid == 0 {
		t.Errorf("the data directory belongs to user %d while we are %d", uid, want)
	}

	if err := server.Stop(Fast); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if err := server.Stop(Fast); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if err := server.Restart(t.Context(), Fast); err == nil {
		t.Error("a stopped server restarted")
	}
	if err := server.Kill(); err == nil {
		t.Error("a stopped server was killed")
	}
	if left := entries(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestKilledServerRestartsWithWhatWasCommitted(t *testing.T) {
	server := startServer(t, Options{})
	conn := connect(t, server.DSN("postgres"))
	mustExec(t, conn, "CREATE TABLE kept (n int)")
	for n := range 3 {
		mustExec(t, conn, "INSERT INTO kept SELECT generate_series(1, 100)")
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		<-server.Done()
		if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(300)"); err == nil { // ends when the backend notices, not before
			t.Error("a session survived the server")
		}
		if err := server.Restart(t.Context(), Fast); err != nil {
			t.Fatal(err)
		}
		conn = connect(t, server.DSN("postgres"))
		if got, want := query[int](t, conn, "SELECT count(*) FROM kept"), 100*(n+1); got != want {
			t.Fatalf("after kill %d: %d rows, want %d", n+1, got, want)
		}
	}
	for _, mode := range []Mode{Fast, Immediate} {
		if err := server.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
	}
	conn = connect(t, server.DSN("postgres"))
	if got := query[int](t, conn, "SELECT count(*) FROM kept"); got != 300 {
		t.Errorf("after restarts: %d rows, want 300", got)
	}

	// The address is the server's for its whole life. Where another program has taken it meanwhile, that is an error.
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context(), Fast); err == nil || !strings.Contains(err.Error(), logPortTaken) {
		t.Errorf("Restart on a taken port: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context(), Fast); err != nil {
		t.Errorf("Restart after the port was free again: %v", err)
	}
}

func TestPasswordAndCollations(t *testing.T) {
	server := startServer(t, Options{})
	u, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(Superuser, "guess")
	if conn, err := pgx.Connect(t.Context(), u.String()); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a wrong password was let in")
	}

	for name, want := range map[string]bool{"icu": true, "bytes": false} {
		options := DatabaseOptions{}
		if want {
			options.ICULocale = "en-US"
		}
		if err := server.CreateDatabase(t.Context(), name, options); err != nil {
			t.Fatal(err)
		}
		conn := connect(t, server.DSN(name))
		if got := query[bool](t, conn, "SELECT 'a' < 'B'"); got != want {
			t.Errorf("database %s: 'a' < 'B' is %v, want %v", name, got, want)
		}
	}
	if err := server.DropDatabase(t.Context(), "icu"); err != nil { // with our session in it
		t.Error(err)
	}
	if err := server.DropDatabase(t.Context(), "icu"); err != nil {
		t.Errorf("dropping a database that is not there: %v", err)
	}
	if err := server.CreateDatabase(t.Context(), "bytes", DatabaseOptions{}); err == nil {
		t.Error("a database was created twice")
	}
}

func TestSocketAndICUCluster(t *testing.T) {
	server := startServer(t, Options{Socket: true, ICULocale: "en-US", Fsync: true, Settings: map[string]string{"work_mem": "5MB"}})
	conn := connect(t, server.DSN("postgres"))
	if !query[bool](t, conn, "SELECT inet_server_addr() IS NULL") {
		t.Error("connected through TCP")
	}
	if !query[bool](t, conn, "SELECT 'a' < 'B'") {
		t.Error("the cluster's collation is not ICU's")
	}
	for setting, want := range map[string]string{"fsync": "on", "work_mem": "5MB", "listen_addresses": ""} {
		if got := query[string](t, conn, "SHOW "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
}

func TestParallelStarts(t *testing.T) {
	dir := openDir(t)
	const n = 2
	servers := make([]*Server, n)
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { servers[i], errs[i] = Start(t.Context(), Options{Dir: dir, Download: true}) })
	}
	wait.Wait()
	seen := map[string]bool{}
	for i := range n {
		if errs[i] != nil {
			t.Errorf("start %d: %v", i, errs[i])
			continue
		}
		seen[server(servers[i].DSN("postgres"))] = true
		if err := servers[i].Stop(Immediate); err != nil {
			t.Error(err)
		}
	}
	if len(seen) != n {
		t.Errorf("%d addresses for %d servers", len(seen), n)
	}
	if left := entries(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func server(dsn string) string {
	u, _ := url.Parse(dsn)
	return u.Host
}

func TestFailedStartLeavesNothingAndSaysWhy(t *testing.T) {
	dir := openDir(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx     context.Context
		options Options
		want    string
	}{
		"no programs":     {t.Context(), Options{BinDir: t.TempDir()}, ErrNoBinaries.Error()},
		"unknown setting": {t.Context(), Options{Settings: map[string]string{"no_such": "1"}}, `unrecognized configuration parameter "no_such"`},
		"unknown locale":  {t.Context(), Options{Locale: "xx_YY.no-such"}, "xx_YY.no-such"},
		"cancelled":       {cancelled, Options{}, context.Canceled.Error()},
		"path too long":   {t.Context(), Options{Socket: true, Dir: longDir(t, dir)}, "too long"},
		"no directory":    {t.Context(), Options{Dir: filepath.Join(dir, "missing")}, "missing"},
		"closed to it":    {t.Context(), Options{Dir: closedDir(t)}, "closed"},
	} {
		if test.options.Dir == "" {
			test.options.Dir = dir
		}
		test.options.Download = test.options.BinDir == ""
		server, err := Start(test.ctx, test.options)
		if err == nil {
			_ = server.Stop(Immediate)
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
	for _, name := range entries(t, dir) {
		if strings.HasPrefix(name, runPrefix) || strings.HasPrefix(name, freshPrefix) {
			t.Errorf("left behind: %s", name)
		}
	}
}

// closedDir gives a directory that no server can be made in, whoever we are: as root one below a directory that only root may
// enter, else one that nobody may write to.
func closedDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	return dir
}

func longDir(t *testing.T, below string) string {
	t.Helper()
	dir := filepath.Join(below, strings.Repeat("x", 100))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestServerAndDirectoryDoNotOutliveTheOwner(t *testing.T) {
	dir := openDir(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+dir)
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "postgres://") {
		t.Fatalf("the owner said %q, %v", line, err)
	}
	conn := connect(t, strings.TrimSpace(line))

	account, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	sweep(dir, account) // as another start does
	if got := len(entries(t, dir)); got != 1 {
		t.Fatalf("%d directories while the owner lives, want its one", got)
	}

	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(300)"); err == nil || ctx.Err() != nil {
		t.Fatalf("the server outlived its owner: %v", err)
	}

	// The backend's end comes before the server's own, which is when a new start may remove the directory.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for len(entries(t, dir)) > 0 {
		select {
		case <-again.C:
			sweep(dir, account)
		case <-ctx.Done():
			t.Fatalf("left behind: %v", entries(t, dir))
		}
	}
}

func TestSweepLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"other", runPrefix + "without-lock", freshPrefix + "new"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, runPrefix+"file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sweep(dir, nil)
	sweep(filepath.Join(dir, "missing"), nil)
	if got := len(entries(t, dir)); got != 4 {
		t.Errorf("%d entries of 4 left: %v", got, entries(t, dir))
	}
}

func TestFindBinaries(t *testing.T) {
	fake := t.TempDir()
	for _, program := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(fake, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	empty := t.TempDir()

	t.Setenv(BinDirVariable, fake)
	if got, err := FindBinaries(); got != fake || err != nil {
		t.Errorf("by variable: %q, %v, want %q", got, err, fake)
	}
	t.Setenv(BinDirVariable, empty)
	if _, err := FindBinaries(); err == nil || errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), empty) {
		t.Errorf("by a wrong variable: %v, want an error that names it", err)
	}

	t.Setenv(BinDirVariable, "")
	linked := t.TempDir() // initdb alone, as a link to where all programs are
	if err := os.Symlink(filepath.Join(fake, "initdb"), filepath.Join(linked, "initdb")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", linked)
	if got, err := FindBinaries(); got != fake || err != nil {
		t.Errorf("by a link in PATH: %q, %v, want %q", got, err, fake)
	}
}

func TestVersionIn(t *testing.T) {
	for path, want := range map[string]float64{
		"/usr/lib/postgresql/15/bin": 15, "/usr/lib/postgresql/9.6/bin": 9.6, "/usr/pgsql-17/bin": 17, "/opt/bin": 0,
	} {
		if got := versionIn(path); got != want {
			t.Errorf("versionIn(%s) = %v, want %v", path, got, want)
		}
	}
}

func TestWithDatabase(t *testing.T) {
	got, err := WithDatabase("postgres://u:p@h:1/a?sslmode=disable", "b")
	if want := "postgres://u:p@h:1/b?sslmode=disable"; got != want || err != nil {
		t.Errorf("WithDatabase = %q, %v, want %q", got, err, want)
	}
	for _, dsn := range []string{"host=h password=secret", "mysql://secret", "postgres://%zz:secret"} {
		if _, err := WithDatabase(dsn, "b"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("WithDatabase(%q): %v, want an error that hides the secret", dsn, err)
		}
	}
}
