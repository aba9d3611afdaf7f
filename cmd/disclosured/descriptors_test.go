package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/proctest"
)

// elsewhere is the variable that has a process of these tests be the program, with the arguments in it.
const elsewhere = "RUN_PROGRAM_WITH"

// TestElsewhere is the program in a process of its own, for limited.
func TestElsewhere(*testing.T) {
	if args := os.Getenv(elsewhere); args != "" {
		os.Unsetenv(elsewhere)
		os.Exit(run(strings.Split(args, "\n")))
	}
}

// limited starts the program in a process that may open so many files. It writes what it says to said, and is killed when the test ends.
func limited(t *testing.T, files string, said *bytes.Buffer, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `ulimit -n "$1" && exec "$0" -test.run='^TestElsewhere$'`, os.Args[0], files)
	cmd.Env = append(os.Environ(), elsewhere+"="+strings.Join(args, "\n"))
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func serveArgs(listen, ops string) []string {
	return []string{"serve", "--participant-plaintext", "--participant-address", "127.0.0.1:1", "--participant-read-as", operatorParty,
		"--participant-start-timeout", "1m", "--anchors-guardian-governance", "g::1220bb", "--api-listen", listen, "--ops-listen", ops}
}

// Where more connect than the process has descriptors for, the operator's endpoints answer all the same.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	listen, ops := proctest.FreeAddress(t), proctest.FreeAddress(t)
	var said bytes.Buffer
	service := limited(t, "150", &said, serveArgs(listen, ops)...)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	code := func(path string) int {
		resp, err := client.Get("http://" + ops + path)
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); code("/livez") != http.StatusOK; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the service does not start")
		}
	}
	for range 200 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // may be closed already
	}
	for i := range 10 {
		if live, ready := code("/livez"), code("/readyz"); live != http.StatusOK || ready != http.StatusServiceUnavailable {
			t.Fatalf("round %d: /livez is %d and /readyz %d (0: no answer)", i, live, ready)
		}
	}
	if err := service.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := service.Wait(); err != nil {
		t.Errorf("the end: %v", err)
	}
	for _, want := range []string{"fewer connections are taken", "files=150 ", "max_connections=86 of=4096", "ops_connections=16"} {
		if strings.Count(said.String(), want) != 1 {
			t.Errorf("the log does not say once %q:\n%s", want, said.String())
		}
	}
	if strings.Contains(said.String(), "too many open files") {
		t.Errorf("descriptors were missing:\n%s", said.String())
	}
}

// Where even few connections don't fit the service says what to do, and is not started again.
func TestTooFewDescriptors(t *testing.T) {
	var said bytes.Buffer
	err := limited(t, "64", &said, serveArgs("127.0.0.1:0", "127.0.0.1:0")...).Wait()
	failed := (*exec.ExitError)(nil)
	if !errors.As(err, &failed) || failed.ExitCode() != exitConfig {
		t.Errorf("%v, want exit code %d", err, exitConfig)
	}
	const want = "may open 64 files (RLIMIT_NOFILE), and the least that it works with are 96: 48 for database, participant and files, and 48 for callers: raise the limit"
	if !strings.Contains(said.String(), want) || !strings.Contains(said.String(), "to 4400 or more") {
		t.Errorf("it said %s", said.String())
	}
}

// What is kept for others than callers goes by the settings.
func TestReservedDescriptors(t *testing.T) {
	d := &daemon{cfg: defaultConfig(), log: slog.New(slog.DiscardHandler)}
	without := d.reservedDescriptors()
	d.cfg.Database.URLFile = "url"
	index := d.reservedDescriptors() - without
	d.cfg.Guard.AllowAnonymous = true
	guard := d.reservedDescriptors() - without - index
	if want := 2 * d.cfg.Database.MaxConnections; index != want || guard != 2*guardConnections {
		t.Errorf("%d for the index's database and %d for the guard's, want %d and %d", index, guard, want, 2*guardConnections)
	}
	// These tests may open more.
	if limit, known := descriptorLimit(); known && limit > 5000 {
		if got, err := d.fitted(d.apiConfig()); err != nil || got.Limits != d.apiConfig().Limits {
			t.Errorf("%+v, %v; want the limits as they are", got.Limits, err)
		}
	}
	if all := api.DefaultConfig().Limits.Connections(true); all+d.reservedDescriptors() > 8192 {
		t.Errorf("by default %d connections and %d other files are more than docs/deploy.md and the compose file allow", all, d.reservedDescriptors())
	}
}
