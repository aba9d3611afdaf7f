package pgserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say how a server is made. The zero value is right for tests: C collation, UTF-8, a loopback port, no durability.
type Options struct {
	// BinDir is the directory of initdb and postgres. Empty: FindBinaries.
	BinDir string
	// Download allows to fetch a server build where FindBinaries finds none. It needs a network, once.
	Download bool
	// Dir is the directory to make the server's own in. Empty: the system's temporary directory.
	Dir string
	// Locale is the operating system's locale of the cluster. Empty: C.
	Locale string
	// ICULocale, for example "en-US", makes ICU the collation provider of the cluster's databases. Needs PostgreSQL 15.
	ICULocale string
	// Socket has the server listen on a Unix socket in its directory only, instead of on a loopback port.
	Socket bool
	// Fsync has the server write as durably as in production. Without it a crash of the machine, though not of the
	// server, may lose data, and commits are many times faster.
	Fsync bool
	// Settings are further server settings, as in postgresql.conf.
	Settings map[string]string
}

// Superuser is the name of the only role of a new server.
const Superuser = "postgres"

// Server is a running server, or one that was killed and may be restarted. Its methods may be called concurrently.
type Server struct {
	options  Options
	binDir   string
	as       *account
	dir      *runDir
	password string

	mu      sync.Mutex // serialises Stop, Kill and Restart
	process *process   // the newest run
	port    int        // fixed after the first start, so that connection strings stay valid over a restart
	stopped bool
}

// Start makes a new server and gives it when it answers. ctx bounds the start, not the server's life: that ends with Stop, or
// with this process.
func Start(ctx context.Context, options Options) (*Server, error) {
	s, err := start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, options Options) (_ *Server, err error) {
	s := &Server{options: options}
	if s.binDir, err = binaries(ctx, options); err != nil {
		return nil, err
	}
	if s.as, err = serverAccount(); err != nil {
		return nil, err
	}
	parent, err := parentDir(options.Dir, s.as)
	if err != nil {
		return nil, err
	}
	sweep(parent, s.as)
	if s.dir, err = newRunDir(parent, s.as); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(Immediate))
		}
	}()
	if options.Socket && len(s.dir.path) > maxSocketDir {
		return nil, fmt.Errorf("the directory %s is too long a path for a Unix socket", s.dir.path)
	}
	if err := s.initialise(ctx); err != nil {
		return nil, fmt.Errorf("with the programs in %s: %w", s.binDir, err)
	}
	if err := s.launch(ctx); err != nil {
		return nil, fmt.Errorf("with the programs in %s: %w", s.binDir, err)
	}
	return s, nil
}

// maxSocketDir is what macOS, the tightest system, leaves of a socket's path (104 bytes) beside "/.s.PGSQL.65535" and the end.
const maxSocketDir = 104 - len("/.s.PGSQL.65535") - 1

func binaries(ctx context.Context, options Options) (string, error) {
	if options.BinDir != "" {
		if !hasBinaries(options.BinDir) {
			return "", fmt.Errorf("%w in %s", ErrNoBinaries, options.BinDir)
		}
		return options.BinDir, nil
	}
	dir, err := FindBinaries()
	if errors.Is(err, ErrNoBinaries) && options.Download {
		return download(ctx)
	}
	return dir, err
}

// parentDir gives the directory to make the server's in: one that the server's user can get to.
func parentDir(wanted string, as *account) (string, error) {
	if wanted != "" {
		return wanted, as.checkReachable(wanted)
	}
	dir := os.TempDir()
	err := as.checkReachable(dir)
	if err != nil && as.checkReachable("/tmp") == nil {
		return "/tmp", nil
	}
	return dir, err
}

// initialise makes the data directory.
func (s *Server) initialise(ctx context.Context) error {
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("choosing a password: %w", err)
	}
	s.password = hex.EncodeToString(secret)
	passwordFile := filepath.Join(s.dir.path, "password")
	if err := os.WriteFile(passwordFile, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(passwordFile)
	if s.as != nil {
		if err := os.Chown(passwordFile, s.as.uid, s.as.gid); err != nil {
			return err
		}
	}

	locale := s.options.Locale
	if locale == "" {
		locale = "C"
	}
	args := []string{
		"-D", s.dir.data(), "-U", Superuser, "-E", "UTF8", "--locale=" + locale, "--lc-messages=C",
		"--auth=scram-sha-256", "--pwfile=" + passwordFile,
	}
	if s.options.ICULocale != "" {
		args = append(args, "--locale-provider=icu", "--icu-locale="+s.options.ICULocale)
	}
	if !s.options.Fsync {
		args = append(args, "--no-sync")
	}
	cmd := command(s.binDir, "initdb", s.dir, s.as, args...)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	initdb, err := spawn(cmd)
	if err != nil {
		return fmt.Errorf("running initdb: %w", err)
	}
	select {
	case <-initdb.ended.Done():
	case <-ctx.Done():
		initdb.signal(syscall.SIGTERM)
		<-initdb.ended.Done()
		return fmt.Errorf("running initdb: %w", context.Cause(ctx))
	}
	if initdb.err != nil {
		return fmt.Errorf("running initdb: %w\n%s", initdb.err, strings.TrimSpace(output.String()))
	}
	return nil
}

// Reasons in PostgreSQL's log why a start failed that another try may pass.
const (
	logPortTaken   = "could not create any TCP/IP sockets"
	logStillInUse  = "is still in use" // backends of a killed server still hold its shared memory
	logLockFileYet = "lock file \"postmaster.pid\" already exists"
)

// launch starts the postgres program and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		port := s.port
		if port == 0 {
			var err error
			if port, err = freePort(); err != nil {
				return err
			}
		}
		said, err := s.run(ctx, port)
		switch {
		case err == nil:
			s.port = port
			return nil
		case s.port == 0 && strings.Contains(said, logPortTaken):
			// Another program took the port between our choice and the server's bind.
		case strings.Contains(said, logStillInUse), strings.Contains(said, logLockFileYet):
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("%w\n%s", context.Cause(ctx), tail(said))
			}
		default:
			return fmt.Errorf("%w\n%s", err, tail(said))
		}
	}
}

// run makes one try to start the program on a port. It gives what the program logged.
func (s *Server) run(ctx context.Context, port int) (said string, err error) {
	log, err := os.OpenFile(s.dir.log(), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return "", fmt.Errorf("opening the server's log: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return "", fmt.Errorf("reading the server's log: %w", err)
	}
	cmd := command(s.binDir, "postgres", s.dir, s.as, s.arguments(port)...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := spawn(cmd)
	if err != nil {
		return "", fmt.Errorf("running postgres: %w", err)
	}
	s.process = p
	if err := s.waitReady(ctx, p, port); err != nil {
		_ = s.end(Immediate)
		content, _ := io.ReadAll(io.NewSectionReader(log, before, 1<<20))
		return string(content), err
	}
	return "", nil
}

// arguments are the server's settings, as command line.
func (s *Server) arguments(port int) []string {
	settings := map[string]string{
		"port":                    strconv.Itoa(port),
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"max_connections":         "200",
		"log_min_messages":        "warning",
	}
	if s.options.Socket {
		settings["listen_addresses"] = ""
		settings["unix_socket_directories"] = s.dir.path
		settings["unix_socket_permissions"] = "0700"
	}
	if !s.options.Fsync {
		// Commits still reach the operating system before they are answered (synchronous_commit stays on), so that a killed
		// server loses none: tests of crashes rely on it.
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, s.options.Settings)
	args := []string{"-D", s.dir.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// waitReady waits until the server lets us in.
func (s *Server) waitReady(ctx context.Context, p *process, port int) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	// Where another program has the port, it may take the connection and say nothing, while ours ends.
	attempts, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ended, cancel)()
	for {
		conn, err := pgx.Connect(attempts, s.dsn(port, "postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.ended.Done():
			return fmt.Errorf("postgres ended before it answered: %w", cmp.Or(p.err, errors.New("exit status 0")))
		case <-ctx.Done():
			return fmt.Errorf("waiting for postgres to answer: %w", errors.Join(context.Cause(ctx), err))
		case <-again.C:
		}
	}
}

// DSN is the connection string of a database, as the superuser. It stays valid over a restart.
func (s *Server) DSN(database string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dsn(s.port, database)
}

func (s *Server) dsn(port int, database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(Superuser, s.password), Path: "/" + database}
	query := url.Values{"sslmode": {"disable"}}
	if s.options.Socket {
		query.Set("host", s.dir.path)
		query.Set("port", strconv.Itoa(port))
	} else {
		u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// Version is the server program's own word for its version, for example "15.18 (Debian 15.18-0+deb12u1)".
func (s *Server) Version(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return "", fmt.Errorf("asking the server for its version: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", fmt.Errorf("asking the server for its version: %w", err)
	}
	return version, nil
}

// Done is closed when the present run of the server ends, asked or not.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.ended.Done()
}

// Log is what the server has logged so far, over all its runs.
func (s *Server) Log() (string, error) {
	content, err := os.ReadFile(s.dir.log())
	if err != nil {
		return "", fmt.Errorf("reading the server's log: %w", err)
	}
	return string(content), nil
}

// Mode says how a server is stopped.
type Mode int

const (
	// Fast ends the sessions, rolls their transactions back and writes a checkpoint.
	Fast Mode = iota
	// Immediate ends without a checkpoint, as a crash does: the next start recovers from the write-ahead log.
	Immediate
)

// Stop ends the server and removes its directory. It may be called again, and after Kill; only the first call does anything.
func (s *Server) Stop(mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	return errors.Join(s.end(mode), s.dir.remove())
}

// Kill ends the server with a kill signal and keeps its directory for Restart. Sessions break as soon as their backends notice,
// which may be a moment after Kill has returned; what they commit until then is kept, as all that was committed before.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("killing PostgreSQL: it was stopped")
	}
	s.process.signal(syscall.SIGKILL)
	<-s.process.ended.Done()
	return nil
}

// Restart ends the server if it runs, in the given mode, and starts it again with the same data and address. ctx bounds the
// start.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("restarting PostgreSQL: it was stopped")
	}
	if err := s.end(mode); err != nil {
		return fmt.Errorf("restarting PostgreSQL: %w", err)
	}
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("restarting PostgreSQL: %w", err)
	}
	return nil
}

// How long each signal gets before a stronger one is sent.
const (
	fastPatience      = 20 * time.Second
	immediatePatience = 10 * time.Second
)

// end ends the present run and waits for it. The error says that force was needed.
func (s *Server) end(mode Mode) error {
	if s.process == nil || !s.process.running() {
		return nil
	}
	if mode == Fast {
		s.process.signal(syscall.SIGINT)
		if s.endsWithin(fastPatience) {
			return nil
		}
	}
	s.process.signal(syscall.SIGQUIT)
	if s.endsWithin(immediatePatience) {
		if mode == Fast {
			return fmt.Errorf("stopping PostgreSQL: it did not end within %v, and was ended without a checkpoint", fastPatience)
		}
		return nil
	}
	s.process.signal(syscall.SIGKILL)
	<-s.process.ended.Done()
	return errors.New("stopping PostgreSQL: it did not end when asked, and was killed")
}

func (s *Server) endsWithin(patience time.Duration) bool {
	select {
	case <-s.process.ended.Done():
		return true
	case <-time.After(patience):
		return false
	}
}

// freePort gives a loopback port that was free a moment ago.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("choosing a port: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return 0, fmt.Errorf("choosing a port: %w", err)
	}
	return port, nil
}

// tail gives the last lines of a log.
func tail(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
