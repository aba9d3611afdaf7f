package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/secretfile"
)

// environment names the variables that `make integration` sets.
const (
	ledgerVariable  = "DISCLOSURED_LEDGER"          // host:port of the participant's Ledger API
	tokenVariable   = "DISCLOSURED_TOKEN_FILE"      // a file with an access token of a participant administrator
	caVariable      = "DISCLOSURED_TLS_CA"          // PEM files; the first turns TLS on
	certVariable    = "DISCLOSURED_TLS_CERT"        //
	keyVariable     = "DISCLOSURED_TLS_KEY"         //
	restartVariable = "DISCLOSURED_RESTART_COMMAND" // a shell command that restarts the participant with its ledger
	pruneVariable   = "DISCLOSURED_PRUNE"           // "yes": prune it
	lfVariable      = "DISCLOSURED_LF"              // 2.3 or 2.2
	reportVariable  = "DISCLOSURED_REPORT"          // the directory for report and recording
)

// settings say what the story is told to.
type settings struct {
	address, token, ca, cert, key, lf, report string
	prune                                     bool
	// restart restarts the participant, nil if that can't be had; it returns once it answers again or at once.
	restart func() error
	// what the participant is, for the report.
	what string
	// patience bounds the whole story.
	patience time.Duration
}

// checkEnvironment says what is wrong in the environment, by the names that `make integration` takes, before anything is built or asked.
func checkEnvironment() error {
	var faults []error
	if address := os.Getenv(ledgerVariable); address != "" {
		conn, err := ledgerstream.Dial(ledgerstream.ConnConfig{Target: address, Plaintext: true}) // which dials nothing yet
		if err == nil {
			err = conn.Close()
		}
		if fault := (*ledgerstream.ConfigError)(nil); errors.As(err, &fault) {
			err = fault.Err
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("LEDGER: %w", err))
		}
	}
	for _, file := range [][2]string{{"TOKEN_FILE", tokenVariable}, {"TLS_CA", caVariable}, {"TLS_CERT", certVariable}, {"TLS_KEY", keyVariable}} {
		if path := os.Getenv(file[1]); path != "" {
			if err := secretfile.Check(path); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", file[0], err))
			}
		}
	}
	if (os.Getenv(certVariable) == "") != (os.Getenv(keyVariable) == "") {
		faults = append(faults, errors.New("TLS_CERT and TLS_KEY go together: give both or neither"))
	}
	if lf := os.Getenv(lfVariable); lf != "" && lf != daml.LF23 && lf != daml.LF22 {
		faults = append(faults, fmt.Errorf("LF must be %s or %s, is %q", daml.LF23, daml.LF22, lf))
	}
	return errors.Join(faults...)
}

// settingsOf reads the environment. Without a ledger they are those of no participant yet.
func settingsOf(t *testing.T) settings {
	t.Helper()
	s := settings{
		address: os.Getenv(ledgerVariable), token: os.Getenv(tokenVariable), ca: os.Getenv(caVariable), cert: os.Getenv(certVariable),
		key: os.Getenv(keyVariable), lf: os.Getenv(lfVariable), report: os.Getenv(reportVariable), prune: os.Getenv(pruneVariable) == "yes",
		what: "the participant at " + os.Getenv(ledgerVariable), patience: 30 * time.Minute,
	}
	if s.lf == "" {
		s.lf = daml.DefaultLF
	}
	if s.report == "" {
		s.report = t.TempDir()
	}
	for _, path := range []*string{&s.token, &s.ca, &s.cert, &s.key, &s.report} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			t.Fatal(err)
		}
		*path = absolute
	}
	if command := os.Getenv(restartVariable); command != "" {
		s.restart = func() error { return shell(command, 5*time.Minute) }
	}
	return s
}

// tls tells whether the connection is to be encrypted.
func (s settings) tls() bool { return s.ca != "" || s.cert != "" }

// conn are the settings as the Ledger API's client takes them.
func (s settings) conn() ledgerstream.ConnConfig {
	c := ledgerstream.ConnConfig{Target: s.address, Plaintext: !s.tls(), CAFile: s.ca, CertFile: s.cert, KeyFile: s.key}
	if s.token != "" {
		c.Token = ledgerstream.FileToken(s.token)
	}
	return c
}

// participant are the settings as the service takes them.
func (s settings) participant() map[string]string {
	c := map[string]string{"participant.address": s.address}
	if !s.tls() {
		c["participant.plaintext"] = "true"
	}
	for key, path := range map[string]string{
		"participant.ca_file": s.ca, "participant.cert_file": s.cert, "participant.key_file": s.key, "participant.token_file": s.token,
	} {
		if path != "" {
			c[key] = fmt.Sprintf("%q", path)
		}
	}
	return c
}
