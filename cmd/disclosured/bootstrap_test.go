package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func startSim(t *testing.T, options ledgersim.Options) (sim *ledgersim.Sim, address string) {
	t.Helper()
	sim = ledgersim.New(options)
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	return sim, address
}

// bootstrapped runs the command with --out and gives what it said, and what was written as the service reads it.
func bootstrapped(t *testing.T, address string, more ...string) (said string, config Config) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "disclosured.yaml")
	code, said := exit(t, append([]string{"bootstrap", "--participant-plaintext", "--participant-address", address, "--out", out, "--timeout", "30s"}, more...)...)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, said)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addConfigFlags(flags)
	if err := flags.Set("config", out); err != nil {
		t.Fatal(err)
	}
	config, err := loadConfig(flags, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := config.validate(); err != nil {
		t.Fatalf("what was written is no configuration of the service: %v", err)
	}
	return said, config
}

// The packages are uploaded to a participant that has none, all else is made, and a second run finds all of it.
func TestBootstrapTwice(t *testing.T) {
	for _, lf := range []string{daml.LF23, daml.LF22} {
		sim, address := startSim(t, ledgersim.Options{Packages: []ledgersim.Package{}})
		said, config := bootstrapped(t, address, "--lf", lf, "--reader", "service")
		dar, err := daml.Find(daml.WormholeCorePackage, lf)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(said, "found") || !strings.Contains(said, dar.PackageID) {
			t.Errorf("LF %s: found something on an empty ledger, or another package: %s", lf, said)
		}
		if config.Participant.ID != sim.ParticipantID() || config.Participant.Address != address || !config.Participant.Plaintext {
			t.Errorf("LF %s: wrote %+v", lf, config.Participant)
		}
		scope := ledgersim.Scope{Consumer: "app3::" + strings.SplitAfter(sim.ParticipantID(), "::")[1], Operator: config.Anchors.Operators[0]}
		roots := sim.Covering(scope, wormhole.Digest{}, sim.LedgerEnd())
		if len(roots) != 1 || roots[0].TemplateID.PackageID != dar.PackageID {
			t.Errorf("LF %s: the third app has the roots %+v", lf, roots)
		}
		end := sim.LedgerEnd()
		said, again := bootstrapped(t, address, "--lf", lf, "--reader", "service")
		if strings.Contains(said, "made ") || sim.LedgerEnd() != end {
			t.Errorf("LF %s: the second run made something: %s", lf, said)
		}
		if got, want := again.renderChanges(), config.renderChanges(); got != want {
			t.Errorf("LF %s: the second run wrote\n%s\nand the first\n%s", lf, got, want)
		}
	}
}

// A participant has one build of a version: the other is refused before anything is made.
func TestBootstrapRefusesTheOtherBuild(t *testing.T) {
	sim, address := startSim(t, ledgersim.Options{})
	before := sim.LedgerEnd()
	code, said := exit(t, "bootstrap", "--participant-plaintext", "--participant-address", address, "--lf", daml.LF22)
	if code != exitConfig || !strings.Contains(said, "--lf") {
		t.Errorf("exit %d: %s", code, said)
	}
	if end := sim.LedgerEnd(); end != before {
		t.Errorf("something was made: the ledger end was %d and is %d", before, end)
	}
}

func TestBootstrapGivesUpOnAnAbsentParticipant(t *testing.T) {
	code, said := exit(t, "bootstrap", "--participant-plaintext", "--participant-address", "127.0.0.1:1", "--timeout", "1200ms")
	if code != exitFailure || !strings.Contains(said, "127.0.0.1:1") || !strings.Contains(said, "--timeout") {
		t.Errorf("exit %d: %s", code, said)
	}
}

// A participant that starts later than the command is waited for.
func TestBootstrapWaitsForTheParticipant(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	sim := ledgersim.New(ledgersim.Options{})
	started := make(chan error, 1)
	go func() {
		// The command has come by once, and found nobody.
		conn, err := listener.Accept()
		if err == nil {
			err = conn.Close()
		}
		listener.Close()
		if err == nil {
			_, err = sim.StartOn(address)
		}
		started <- err
	}()
	said, _ := bootstrapped(t, address)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	if !strings.Contains(said, "waiting for the participant") || !strings.Contains(said, "made   CoreState") {
		t.Errorf("it said %s", said)
	}
}

// With authorization on, an administrator's token is enough; a wrong one is said at once.
func TestBootstrapWithAToken(t *testing.T) {
	sim, address := startSim(t, ledgersim.Options{Auth: &ledgersim.AuthOptions{Secret: []byte("secret")}})
	_, config := bootstrapped(t, address, "--reader", "service", "--participant-token-file", fileWith(t, sim.Token(ledgersim.AdminUser, time.Minute)))
	if config.Participant.TokenFile != "" {
		t.Errorf("the administrator's token is given on to the service: %s", config.Participant.TokenFile)
	}
	// The reader can do what the service does.
	written := fileWith(t, config.renderChanges())
	code, said := exit(t, "doctor", "--config", written, "--participant-token-file", fileWith(t, sim.Token("service", time.Minute)))
	if code != exitOK {
		t.Errorf("doctor as the reader: exit %d: %s", code, said)
	}
	code, said = exit(t, "bootstrap", "--participant-plaintext", "--participant-address", address, "--participant-token-file", fileWith(t, "wrong"))
	if code != exitFailure || !strings.Contains(said, "Unauthenticated") {
		t.Errorf("with a wrong token: exit %d: %s", code, said)
	}
}

// Containers take variables from a file without quotes.
func TestBootstrapWritesVariables(t *testing.T) {
	_, address := startSim(t, ledgersim.Options{})
	out := filepath.Join(t.TempDir(), "disclosured.env")
	if code, said := exit(t, "bootstrap", "--participant-plaintext", "--participant-address", address, "--thresholds", "7", "--suffix", "-x", "--out", out); code != exitOK {
		t.Fatalf("exit %d: %s", code, said)
	}
	content, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var variables []string
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, "#") {
			variables = append(variables, strings.TrimSpace(line))
		}
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addConfigFlags(flags)
	config, err := loadConfig(flags, variables)
	if err != nil {
		t.Fatal(err)
	}
	if err := config.validate(); err != nil || !strings.HasPrefix(config.Anchors.GuardianGovernance, "guardianGovernance-x::") {
		t.Errorf("%v: %q", err, variables)
	}
}
