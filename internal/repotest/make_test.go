package repotest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// makeIntegration runs `make integration` with a go that only says that it was called.
func makeIntegration(t *testing.T, settings ...string) (called bool, code int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"integration", "GO=echo go was called; env; #"}, settings...)...)
	cmd.Dir = root()
	// What a make around this test exports is not ours, and no PostgreSQL is installed here.
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !strings.HasPrefix(name, "DISCLOSURED_") && !strings.HasPrefix(name, "MAKE") && name != "MFLAGS" {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "DISCLOSURED_TEST_DATABASE_URL=postgres://nobody@127.0.0.1:1/none")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		failed := (*exec.ExitError)(nil)
		if !errors.As(err, &failed) {
			t.Fatal(err)
		}
		code = failed.ExitCode()
	}
	called = strings.Contains(out.String(), "\ngo was called\n")
	if called {
		return called, code, out.String()
	}
	return called, code, errOut.String()
}

// What can't work is said in one line by the name that make takes, before anything is compiled.
func TestIntegrationSettingsAreCheckedFirst(t *testing.T) {
	dangling := filepath.Join(t.TempDir(), "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		settings []string
		want     string
	}{
		{nil, "LEDGER is missing"},
		{[]string{"LEDGER=localhost"}, "the form is host:port"},
		{[]string{"LEDGER=::1:6865"}, "the form is host:port"},
		{[]string{"LEDGER=:6865"}, "the form is host:port"},
		{[]string{"LEDGER=localhost:"}, "the form is host:port"},
		{[]string{"LEDGER=local host:6865"}, "the form is host:port"},
		{[]string{"LEDGER=https://localhost:6865"}, "without https://"},
		{[]string{"LEDGER=localhost:0"}, "0 is not a port"},
		{[]string{"LEDGER=localhost:65536"}, "65536 is not a port"},
		{[]string{"LEDGER=localhost:6865", "TOKEN_FILE=absent"}, "TOKEN_FILE: there is no file"},
		{[]string{"LEDGER=localhost:6865", "TLS_KEY=go.mod"}, "TLS_CERT and TLS_KEY go together"},
		{[]string{"LEDGER=localhost:6865", "LF=2.1"}, "LF=2.1"},
		{[]string{"LEDGER=localhost:6865", "PRUNE=true"}, "PRUNE=true"},
		{[]string{"LEDGER=localhost:6865", "REPORT=go.mod"}, "REPORT:"},
		{[]string{"LEDGER=localhost:6865", "REPORT=go.mod/in/it"}, "/go.mod is not a directory"},
		{[]string{"LEDGER=localhost:6865", "REPORT=" + dangling}, "REPORT: " + dangling + " is not a directory"},
		{[]string{"LEDGER=localhost:6865", "TOKEN_FILE=" + t.TempDir()}, "is a directory, and not a file"},
		{[]string{"LEDGER=localhost:6865", "TLS_CA=/dev/null"}, "TLS_CA: /dev/null is not a regular file"},
		{[]string{"LEDGER=localhost:6865", "TOKEN_FILE=a b/absent"}, "/a b/absent"},
	} {
		called, code, said := makeIntegration(t, c.settings...)
		if lines := strings.Count(said, "make integration: "); called || code != 2 || lines != 1 || !strings.Contains(said, c.want) {
			t.Errorf("%q: go was called: %t; exit %d, want 2 and one line about %q; it said %s", c.settings, called, code, c.want, said)
		}
	}
}

// A path may have blanks, and is one path all the same.
func TestIntegrationPathsWithBlanksArrive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "of  my /own")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(dir, "a token")
	if err := os.WriteFile(token, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(root())
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, token)
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{token: token, relative: here + "/" + relative} {
		report := dir + "/the report"
		called, code, said := makeIntegration(t, "LEDGER=localhost:6865", "TOKEN_FILE="+given, "REPORT="+report)
		if !called || code != 0 || !strings.Contains(said, "\nDISCLOSURED_TOKEN_FILE="+want+"\n") || !strings.Contains(said, "\nDISCLOSURED_REPORT="+report+"\n") {
			t.Errorf("%s: go was called: %t; exit %d: %s", given, called, code, said)
		}
	}
}

// What can work comes to the test as it was given, quotes included.
func TestIntegrationSettingsArrive(t *testing.T) {
	for _, ledger := range []string{"localhost:6865", "[::1]:6865", "dns:///ledger.example:443"} {
		called, code, said := makeIntegration(t, "LEDGER="+ledger, "RESTART_COMMAND=echo 'it is' \"so\"", "TOKEN_FILE=go.mod", "PRUNE=yes", "LF=2.2")
		if !called || code != 0 {
			t.Errorf("%s: go was called: %t; exit %d: %s", ledger, called, code, said)
		}
		for _, want := range []string{"LEDGER=" + ledger, "RESTART_COMMAND=echo 'it is' \"so\"", "PRUNE=yes", "LF=2.2", "TLS_CA="} {
			if !strings.Contains(said, "\nDISCLOSURED_"+want+"\n") {
				t.Errorf("%s: %s did not arrive: %s", ledger, want, said)
			}
		}
		if !strings.Contains(said, "/go.mod\n") {
			t.Errorf("%s: the token's file is not named in whole: %s", ledger, said)
		}
	}
}
