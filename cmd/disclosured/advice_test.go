package main

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
)

// Whoever asks at a wrong port, or with TLS where there is none, is told so, and does not wait for it to pass.
func TestWrongTransportIsExplained(t *testing.T) {
	sim := ledgersim.New(ledgersim.Options{Seed: 1})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	began := time.Now()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"resolve", "--consumer", "c::1220ab", "--server", address, "--tls", "00"}, "leave out --tls"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--server", "127.0.0.1:1", "00"}, "is `disclosured serve` running"},
		{[]string{"bootstrap", "--participant-address", address}, "--participant-plaintext"},
		{[]string{"healthcheck", "--ops-listen", address}, "is no HTTP server"},
	} {
		if code, said := exit(t, c.args...); code != exitFailure || !strings.Contains(said, c.want) {
			t.Errorf("%q: exit %d, want %d and words about %q; it said %s", c.args, code, exitFailure, c.want, said)
		}
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %s: something that can't pass was waited for", took)
	}
}

// PostgreSQL's client tells each attempt in a line of its own: of what a command can't do with a database there is one line, and what to do.
func TestAnAbsentDatabaseIsSaidInOneLine(t *testing.T) {
	_, participant := startSim(t, ledgersim.Options{})
	url := fileWith(t, "postgres://u:hunter2@127.0.0.1:1/db")
	serve := []string{"serve", "--participant-plaintext", "--participant-address", participant, "--participant-read-as", operatorParty,
		"--anchors-guardian-governance", "g::1220bb", "--api-listen", "127.0.0.1:0", "--ops-listen", "", "--log-level", "error"}
	for _, args := range [][]string{
		serve, {"migrate"}, {"migrate", "status"}, {"migrate", "down"}, {"migrate", "up", "--guard"}, {"reseed", "--yes"},
	} {
		code, said := exit(t, append(args, "--database-url-file", url)...)
		if code != exitFailure || strings.Count(said, "\n") != 1 || strings.Count(said, "connection refused") != 1 ||
			!strings.Contains(said, "127.0.0.1:1") || !strings.Contains(said, "→ is PostgreSQL running") || strings.Contains(said, "hunter2") {
			t.Errorf("%q: exit %d, want %d, one line, and what to do; it said %s", args[:2], code, exitFailure, said)
		}
	}
	t.Setenv("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/db")
	if code, said := exit(t, "demo"); code != exitFailure || strings.Count(said, "\n") != 1 || !strings.Contains(said, "→ correct it") || strings.Contains(said, "hunter2") {
		t.Errorf("demo: exit %d: %s", code, said)
	}
}

// Each address that was tried is told once, and what follows a colon stays with it.
func TestOneLine(t *testing.T) {
	err := errors.New("failed to connect to `user=u database=db`:\n\ta (1): refused\n\ta (1): refused\n\tb (2):  refused\n")
	if got, want := oneLine(err), "failed to connect to `user=u database=db`: a (1): refused; b (2): refused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What was given up because its time was over says so, and by which flag it gets more.
func TestTimeoutsAreSaid(t *testing.T) {
	_, participant := startSim(t, ledgersim.Options{})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	nobody := silent.Addr().String()
	for _, c := range []struct {
		args    []string
		timeout string
	}{
		{[]string{"bootstrap", "--participant-plaintext", "--participant-address", participant}, "1ms"},
		{[]string{"bootstrap", "--participant-plaintext", "--participant-address", nobody}, "50ms"},
		{[]string{"bootstrap", "--participant-plaintext", "--participant-address", "127.0.0.1:1"}, "50ms"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--server", nobody, "00"}, "50ms"},
		{[]string{"audit", "--server", nobody}, "50ms"},
		{[]string{"scopes", "--server", nobody}, "50ms"},
		{[]string{"healthcheck", "--ops-listen", nobody}, "50ms"},
		{[]string{"doctor", "--participant-plaintext", "--participant-address", nobody, "--participant-read-as", operatorParty,
			"--anchors-guardian-governance", "g::1220bb"}, "50ms"},
	} {
		code, _, said := outcome(t, append(c.args, "--timeout", c.timeout)...)
		if code != exitFailure || !strings.Contains(said, "--timeout "+c.timeout+" was over, raise it") {
			t.Errorf("%q: exit %d, want %d and words about its timeout; it said %s", c.args, code, exitFailure, said)
		}
	}
}
