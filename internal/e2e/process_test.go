package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// patience bounds the waits for what should take moments: the machine may be busy.
var patience = func() time.Duration {
	if raceEnabled {
		return 3 * time.Minute
	}
	return time.Minute
}()

// settings are a service's, by their names in the configuration file, as "participant.address".
type settings map[string]string

// with is a copy with others laid over.
func (s settings) with(others settings) settings {
	both := maps.Clone(s)
	maps.Copy(both, others)
	return both
}

// file writes the settings as a configuration file.
func (s settings) file(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	section := ""
	for _, key := range slices.Sorted(maps.Keys(s)) {
		group, name, _ := strings.Cut(key, ".")
		if group != section {
			fmt.Fprintf(&b, "%s:\n", group)
			section = group
		}
		fmt.Fprintf(&b, "  %s: %s\n", name, s[key])
	}
	return write(t, "disclosured.yaml", b.String())
}

// write puts content into a file of the test's own.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// freeAddress is a loopback address that nobody listens on. Its port is below those that the kernel gives to clients and to
// listeners on port 0, so that nobody gets it by chance before the service does.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(15000)))
		var config net.ListenConfig
		if l, err := config.Listen(t.Context(), "tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port found")
	return ""
}

// output is what a process writes, safe to read while it does.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a run of the program.
type process struct {
	t           testing.TB
	cmd         *exec.Cmd
	out, errOut output
	done        chan struct{} // closed when it has ended
	code        int           // its exit code, -1 where a signal ended it; valid once done is closed
}

// start runs the program with the arguments. The environment is ours without the program's own variables, plus env. It is killed
// when the test ends.
func start(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, done: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errOut
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "DISCLOSURED_") && !strings.HasPrefix(entry, "DISCLOSURED_POSTGRES_BIN=") || strings.HasPrefix(entry, "DATABASE_URL=")
	}), env...)
	p.cmd.SysProcAttr = dieWithUs()
	if err := parent.start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		err := p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.errOut.Write([]byte("waiting for the process: " + err.Error()))
		}
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		p.checkLog()
		if t.Failed() && args[0] == "serve" { // what other commands write, their tests show
			t.Logf("log of disclosured %s:\n%s", strings.Join(args, " "), tail(p.errOut.String(), 60))
		}
	})
	return p
}

// parent starts all processes from one thread, which lasts as long as the tests: what the kernel calls the death of a parent is that of the
// thread that started the process (see dieWithUs), and threads come and go.
var parent = &starter{}

type starter struct {
	once  sync.Once
	tasks chan func()
}

func (s *starter) start(cmd *exec.Cmd) error {
	s.once.Do(func() {
		s.tasks = make(chan func())
		go func() {
			runtime.LockOSThread()
			for task := range s.tasks {
				task()
			}
		}()
	})
	started := make(chan error)
	s.tasks <- func() { started <- cmd.Start() }
	return <-started
}

// stop ends the thread, and with it whatever process is left.
func (s *starter) stop() {
	if s.tasks != nil {
		close(s.tasks)
	}
}

// run runs the program to its end and returns its exit code and what it wrote.
func run(t testing.TB, env []string, args ...string) (code int, out, errOut string) {
	t.Helper()
	p := start(t, env, args...)
	code = p.wait(patience)
	return code, p.out.String(), p.errOut.String()
}

// signal sends a signal; a process that has ended is left alone.
func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(s)
	}
}

// wait waits for the end and returns the exit code.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.code
	case <-timer.C:
		p.t.Fatalf("the process did not end within %s", within)
		return 0
	}
}

// ended tells whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process as kill -9 does, and waits for the end.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait(patience)
}

// checkLog fails the test where the process panicked or raced.
func (p *process) checkLog() {
	p.t.Helper()
	log := p.errOut.String()
	for _, bad := range []string{"panic:", "WARNING: DATA RACE", "closed pool", "fatal error:"} {
		if at := strings.Index(log, bad); at >= 0 {
			p.t.Errorf("the log has %q:\n%s", bad, log[at:min(len(log), at+4000)])
		}
	}
}

// tail is the last lines of a log, without those of its calls.
func tail(text string, lines int) string {
	all := slices.DeleteFunc(strings.Split(strings.TrimRight(text, "\n"), "\n"), func(line string) bool { return strings.Contains(line, " msg=call ") })
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// service is a running `disclosured serve`.
type service struct {
	*process
	address, ops string
	conn         *grpc.ClientConn
	api          disclosurev1.DisclosureServiceClient
}

// serve starts the service with the settings. api.listen and ops.listen are chosen where not set.
func serve(t testing.TB, s settings, args ...string) *service {
	t.Helper()
	s = maps.Clone(s)
	for _, key := range []string{"api.listen", "ops.listen"} {
		if s[key] == "" {
			s[key] = freeAddress(t)
		}
	}
	svc := &service{address: s["api.listen"], ops: s["ops.listen"]}
	var err error
	svc.conn, err = grpc.NewClient(svc.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)), quickReconnect)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { svc.conn.Close() })
	svc.api = disclosurev1.NewDisclosureServiceClient(svc.conn)
	svc.process = start(t, nil, append([]string{"serve", "--config", s.file(t)}, args...)...)
	return svc
}

// get asks one of the operator's endpoints.
func (s *service) get(path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.ops+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := opsClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// opsClient keeps no connections, which would outlive the tests.
var opsClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ready returns nil if /readyz says so, else what it says.
func (s *service) ready() error {
	if s.ended() {
		return fmt.Errorf("the process has ended with code %d:\n%s", s.code, tail(s.errOut.String(), 5))
	}
	status, body, err := s.get("/readyz")
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("%d: %s", status, strings.TrimSpace(body))
	default:
		return nil
	}
}

// waitReady waits until the service is ready.
func (s *service) waitReady() {
	s.t.Helper()
	until(s.t, patience, "the service is ready", s.ready)
}

// waitNotReady waits until /readyz is 503 with the reason.
func (s *service) waitNotReady(within time.Duration, reason string) {
	s.t.Helper()
	until(s.t, within, "the service is not ready with "+reason, func() error {
		status, body, err := s.get("/readyz")
		switch {
		case err != nil:
			return err
		case status != http.StatusServiceUnavailable || !strings.HasPrefix(body, reason+":"):
			return fmt.Errorf("%d: %s", status, strings.TrimSpace(body))
		default:
			return nil
		}
	})
}

// live fails the test unless /livez is 200.
func (s *service) live() {
	s.t.Helper()
	if status, body, err := s.get("/livez"); err != nil || status != http.StatusOK {
		s.t.Errorf("/livez: %d %q %v", status, body, err)
	}
}

// info is GetServerInfo.
func (s *service) info() (*disclosurev1.GetServerInfoResponse, error) {
	if s.ended() {
		return nil, fmt.Errorf("the process has ended: %s", s.cmd.ProcessState)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.api.GetServerInfo(ctx, &disclosurev1.GetServerInfoRequest{})
}

// waitState waits until the follower's state is the one given, and returns what the log says about how the last connection ended, if it does.
func (s *service) waitState(within time.Duration, state string) string {
	s.t.Helper()
	until(s.t, within, "the stream's state is "+state, func() error {
		info, err := s.info()
		if err != nil {
			return err
		}
		if info.StreamState != state {
			return fmt.Errorf("it is %s: %s", info.StreamState, info.StreamDetail)
		}
		return nil
	})
	// Callers are told the state; what exactly is wrong is the operator's to read.
	ends := connectionEnded.FindAllStringSubmatch(s.errOut.String(), -1)
	if len(ends) == 0 {
		return ""
	}
	detail := ends[len(ends)-1][1]
	if unquoted, err := strconv.Unquote(detail); err == nil {
		return unquoted
	}
	return detail
}

// connectionEnded finds the error in the log's line of a connection to the ledger that ended.
var connectionEnded = regexp.MustCompile(`msg="the connection to the ledger ended" .*?error=("(?:[^"\\]|\\.)*"|\S+)`)

// metrics are the samples of one scrape, by the whole text before the value: name{labels}.
func (s *service) metrics() map[string]float64 {
	s.t.Helper()
	var body string
	until(s.t, patience, "/metrics answers", func() error {
		status, text, err := s.get("/metrics")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, text)
		}
		body = text
		return err
	})
	samples := map[string]float64{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			s.t.Fatalf("/metrics: the line %q: %v", line, err)
		}
		samples[line[:at]] = value
	}
	return samples
}

// stop ends the service as a supervisor does and returns how long it took; the exit code must be 0.
func (s *service) stop() time.Duration {
	s.t.Helper()
	begun := time.Now()
	s.signal(syscall.SIGTERM)
	if code := s.wait(stopBound + 5*time.Second); code != 0 {
		s.t.Fatalf("the exit code after SIGTERM is %d:\n%s", code, tail(s.errOut.String(), 20))
	}
	return time.Since(begun)
}

// stopBound is within which time a service ends after SIGTERM.
const stopBound = 10 * time.Second
