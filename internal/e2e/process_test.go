package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/proctest"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// patience bounds the waits for what should take moments: the machine may be busy.
var patience = func() time.Duration {
	if proctest.Race {
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
	return proctest.ConfigFile(t, s)
}

// start runs the program with the arguments and, beside our environment, env.
func start(t testing.TB, env []string, args ...string) *proctest.Process {
	t.Helper()
	return proctest.Start(t, program, proctest.Options{Env: env}, args...)
}

// run runs the program to its end and returns its exit code and what it wrote.
func run(t testing.TB, env []string, args ...string) (code int, out, errOut string) {
	t.Helper()
	p := start(t, env, args...)
	code = p.Wait(patience)
	return code, p.Out.String(), p.ErrOut.String()
}

// service is a running `disclosured serve`.
type service struct {
	t testing.TB
	*proctest.Process
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
			s[key] = proctest.FreeAddress(t)
		}
	}
	svc := &service{t: t, address: s["api.listen"], ops: s["ops.listen"]}
	var err error
	svc.conn, err = grpc.NewClient(svc.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)), quickReconnect)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { svc.conn.Close() })
	svc.api = disclosurev1.NewDisclosureServiceClient(svc.conn)
	svc.Process = start(t, nil, append([]string{"serve", "--config", s.file(t)}, args...)...)
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
	if s.Ended() {
		return fmt.Errorf("the process has ended with code %d:\n%s", s.Code(), proctest.Tail(s.ErrOut.String(), 5))
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
	if s.Ended() {
		return nil, fmt.Errorf("the process has ended: %s", s.State())
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
	if state != "reconnecting" && state != "waiting" && state != "halted" {
		return ""
	}
	// Callers are told the state; what exactly is wrong is the operator's to read. The log has it by then, and comes through a pipe.
	var ends [][]string
	until(s.t, patience, "the log says how the connection ended", func() error {
		if ends = connectionEnded.FindAllStringSubmatch(s.ErrOut.String(), -1); len(ends) == 0 {
			return errNotYet
		}
		return nil
	})
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
	s.Signal(syscall.SIGTERM)
	if code := s.Wait(stopBound + 5*time.Second); code != 0 {
		s.t.Fatalf("the exit code after SIGTERM is %d:\n%s", code, proctest.Tail(s.ErrOut.String(), 20))
	}
	return time.Since(begun)
}

// stopBound is within which time a service ends after SIGTERM.
const stopBound = 10 * time.Second
