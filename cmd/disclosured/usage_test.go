package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// exit runs a command and gives its exit code and what it said to standard error.
func exit(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	said = captured(t, &os.Stderr, func() { code = run(args) })
	return code, said
}

// outcome is exit with what the command printed to standard output.
func outcome(t *testing.T, args ...string) (code int, printed, said string) {
	t.Helper()
	printed = captured(t, &os.Stdout, func() { code, said = exit(t, args...) })
	return code, printed, said
}

// captured gives what is written to a standard stream meanwhile.
func captured(t *testing.T, stream **os.File, do func()) string {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	text := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(read) // what was read is compared
		text <- string(all)
	}()
	saved := *stream
	*stream = write
	do()
	*stream = saved
	write.Close()
	return <-text
}

func fileWith(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A supervisor doesn't restart what exits with 2: nothing but a human mends it.
func TestWrongUseExitsWithTwo(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(t.TempDir(), "absent")
	serve := func(more ...string) []string {
		return append([]string{"serve", "--participant-plaintext", "--participant-address", "127.0.0.1:1", "--participant-read-as", operatorParty,
			"--anchors-guardian-governance", "g::1220bb", "--api-listen", "127.0.0.1:0", "--ops-listen", ""}, more...)
	}
	for _, c := range []struct {
		args []string
		want string // in what is said
	}{
		{[]string{"bogus"}, "bogus"},
		{[]string{"help", "bogus"}, "bogus"},
		{[]string{"help", "serve", "bogus"}, "bogus"},
		{[]string{"version", "bogus"}, "bogus"},
		{[]string{"serve", "--bogus"}, "bogus"},
		{[]string{"resolve", "00"}, "consumer"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--key-file", "k", "00"}, "--cert-file and --key-file"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--cert-file", "k", "00"}, "--cert-file and --key-file"},
		{[]string{"audit", "--operator", "o"}, "--consumer"},
		{[]string{"audit", "--without-namespace"}, "--consumer"},
		{[]string{"migrate", "sideways", "--database-url-file", absent}, "sideways"},
		{[]string{"migrate"}, "database-url-file"},
		{[]string{"migrate", "status", "--config", fileWith(t, "database:\n  url_file: "+absent+"\n")}, absent},
		{[]string{"reseed", "--yes"}, "database-url-file"},
		{[]string{"reseed", "--yes", "--config", fileWith(t, "database:\n  url_file: "+absent+"\n")}, absent},
		{[]string{"config", "--config", fileWith(t, "anchrs:\n  operators: [a]\n")}, "did you mean anchors.operators?"},
		{[]string{"config", "--config", fileWith(t, "anchors:\n\toperators: [a]\n")}, "tab"},
		{[]string{"migrate", "--database-url-file", absent}, absent},
		{[]string{"migrate", "--database-url-file", fileWith(t, "")}, "database.url_file: database: the file"},
		{[]string{"migrate", "status", "--database-url-file", fileWith(t, "hunter2")}, "can't be read"},
		{[]string{"migrate", "down", "--database-url-file", pipe}, "regular"},
		{serve("--database-url-file", absent), absent},
		{serve("--database-url-file", fileWith(t, "")), "empty"},
		{serve("--database-url-file", fileWith(t, "postgres://u:1/hunter2@127.0.0.1/db")), "database.url_file"},
		{serve("--database-url-file", "/dev/zero"), "regular"},
		{serve("--participant-token-file", pipe), "regular"},
		{serve("--participant-token-file", fileWith(t, " \n")), "empty"},
		{serve("--participant-token-file", fileWith(t, "hunter2 hunter2")), "participant.token_file"},
		{serve("--participant-address", "127.0.0.1:99999"), "port"},
		{serve("--participant-oauth-token-url", "https://u:hunter2@issuer.example/", "--participant-oauth-client-id", "c",
			"--participant-oauth-client-secret-file", fileWith(t, "s")), "oauth_token_url"},
		{serve("--participant-oauth-token-url", "https://issuer.example/", "--participant-oauth-client-id", "c",
			"--participant-oauth-client-secret-file", fileWith(t, "\n")), "empty"},
		{serve("--api-cert-file", pipe, "--api-key-file", pipe), "regular"},
		{[]string{"sim", "--synchronizers", "-1"}, "--synchronizers"},
		{[]string{"sim", "--commit-latency", "-1s"}, "--commit-latency"},
		{[]string{"sim", "--traffic", "-1s"}, "--traffic"},
		{[]string{"sim", "--thresholds", "4,0"}, "--thresholds"},
		{[]string{"sim", "--thresholds", "4097"}, "--thresholds"},
		{[]string{"sim", "--listen", "0.0.0.0:1"}, "loopback"},
		{serve("--api-send-timeout", "0s"), "api.send_timeout"},
		{serve("--api-max-calls", "0"), "api.max_calls:"},
		{serve("--api-max-calls-per-caller", "0"), "api.max_calls_per_caller:"},
		{serve("--api-max-connections", "0"), "api.max_connections:"},
		{serve("--api-max-connections-per-caller", "-1"), "api.max_connections_per_caller:"},
		{serve("--api-answer-bytes", "1000"), "api.answer_bytes:"},
		{serve("--api-answer-bytes-per-caller", "1000"), "api.answer_bytes_per_caller:"},
		{[]string{"healthcheck", "--ops-listen", ""}, "ops.listen"},
		{[]string{"healthcheck", "--ops-listen", "7421"}, "ops.listen"},
		{serve("--participant-address", "127.0.0.1"), "participant.address: \"127.0.0.1\": the form is host:port"},
		{serve("--participant-ca-file", fileWith(t, "no certificate"), "--participant-plaintext=false"), "participant.ca_file"},
		{serve("--anchors-operators", "operator::1220…"), "put your own party in whole"},
		{[]string{"serve", "own.yaml"}, "--config own.yaml"},
		{[]string{"vaa"}, "a VAA in hex"},
		{[]string{"verify", "00", "00"}, "a created event blob in hex"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--server", "127.0.0.1", "00"}, "host:port"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--digest", "12"}, "--digest"},
		{[]string{"resolve", "--consumer", "alice", "--digest", "12"}, "a party is name::fingerprint"},
		{[]string{"scopes", "--consumer", "alice"}, "a party is name::fingerprint"},
		{[]string{"scopes", "--operator", "no party!"}, "a party is name::fingerprint"},
		{[]string{"scopes", "--operator", "::1220ab"}, "a party is name::fingerprint"},
		{[]string{"audit", "--consumer", "a::"}, "a party is name::fingerprint"},
		{[]string{"audit", "--consumer", "c::1220ab", "--operator", "o"}, "--operator: \"o\" is not a party"},
		{[]string{"scopes", "--server", "127.0.0.1:99999"}, "is not a port: give host:port"},
		{[]string{"scopes", "--server", "127.0.0.1:0"}, "is not a port"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--server", "127.0.0.1:no-such-port", "00"}, "is not a port"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--wait", "-1s", "00"}, "--wait"},
		{[]string{"resolve", "--consumer", "c::1220ab", "--timeout", "-1s", "00"}, "--timeout"},
		{[]string{"scopes", "--timeout", "-1s"}, "--timeout"},
		{[]string{"audit", "--timeout", "-1s"}, "--timeout"},
		{[]string{"doctor", "--timeout", "-1s"}, "--timeout"},
		{[]string{"healthcheck", "--timeout", "-1s"}, "--timeout"},
		{[]string{"healthcheck", "--timeout", "soon"}, "--timeout"},
		{[]string{"audit", "--against-ledger", "--server", "127.0.0.1:1"}, "participant.address: is required"},
		{[]string{"bootstrap", "--participant-address", "localhost"}, "participant.address: \"localhost\": the form is host:port"},
		{[]string{"bootstrap"}, "participant.address"},
		{[]string{"bootstrap", "--participant-address", "127.0.0.1:1", "--lf", "2.1"}, "--lf"},
		{[]string{"bootstrap", "--participant-address", "127.0.0.1:1", "--thresholds", "0"}, "--thresholds"},
		{[]string{"bootstrap", "--participant-address", "127.0.0.1:1", "--out", filepath.Join(absent, "file")}, "--out"},
		{[]string{"bootstrap", "--participant-address", "127.0.0.1:1", "--timeout", "-1s"}, "--timeout"},
	} {
		code, said := exit(t, c.args...)
		if code != exitConfig || !strings.Contains(said, c.want) {
			t.Errorf("%q: exit %d, want %d and words about %q; it said %s", c.args, code, exitConfig, c.want, said)
		}
		if strings.Contains(said, "hunter2") || strings.Contains(said, "insecure_listen") {
			t.Errorf("%q: says what it must not: %s", c.args, said)
		}
	}
}

func TestConfigShowsNoPassword(t *testing.T) {
	for _, url := range []string{"https://u:hunter2@issuer.example/token", "https://u:hunter2@issuer.example:port/token"} {
		c := defaultConfig()
		c.Participant.OAuthTokenURL = url
		if strings.Contains(c.render(), "hunter2") {
			t.Errorf("%s is shown", url)
		}
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), "oauth_token_url") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", url, err)
		}
	}
}

func TestHolderIsTheBoundAddress(t *testing.T) {
	if holder("127.0.0.1:1001") == holder("127.0.0.1:1002") {
		t.Error("two processes on one host have one name")
	}
	name := holder("127.0.0.1:1001")
	if host, rest, _ := strings.Cut(name, "/127.0.0.1:1001#"); host == "" || len(rest) != 8 {
		t.Errorf("%q does not tell host, address and place", name)
	}
	if again := holder("127.0.0.1:1001"); again != name {
		t.Errorf("another name after a restart: %s, %s", name, again)
	}
}

// What may be mended by waiting is waited for and exits with 1, and isn't said in the log with every attempt.
func TestAnAbsentParticipantIsSaidOnce(t *testing.T) {
	code, said := exit(t, "serve", "--participant-plaintext", "--participant-address", "127.0.0.1:1", "--participant-read-as", operatorParty,
		"--anchors-guardian-governance", "g::1220bb", "--api-listen", "127.0.0.1:0", "--ops-listen", "", "--participant-start-timeout", "1800ms")
	if code != exitFailure || !strings.Contains(said, "participant.start_timeout") {
		t.Errorf("exit %d, and it said %s", code, said)
	}
	if n := strings.Count(said, "does not answer yet"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, said)
	}
}
