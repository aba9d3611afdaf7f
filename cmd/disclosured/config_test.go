package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

const operatorParty = "operator::1220aa"

// load reads a configuration as a command would.
func load(t *testing.T, yaml string, environ []string, args ...string) (Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addConfigFlags(flags)
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "disclosured.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return loadConfig(flags, environ)
}

func TestPrecedenceIsFlagEnvironmentFileDefault(t *testing.T) {
	yaml := "participant:\n  address: file:1\n  poll_interval: 2s\n  call_timeout: 3s\n  read_as: [a::1, b::2]\n"
	environ := []string{"DISCLOSURED_PARTICIPANT_ADDRESS=env:1", "DISCLOSURED_PARTICIPANT_POLL_INTERVAL=4s", "DISCLOSURED_ANCHORS_OPERATORS=x::1, y::2", "PATH=/bin"}
	c, err := load(t, yaml, environ, "--participant-address", "flag:1", "--packages-names", "p,q")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Participant.Address, "flag:1"; got != want {
		t.Errorf("address: got %q, want the flag's %q", got, want)
	}
	if got, want := c.Participant.PollInterval, 4*time.Second; got != want {
		t.Errorf("poll interval: got %s, want the environment's %s", got, want)
	}
	if got, want := c.Participant.CallTimeout, 3*time.Second; got != want {
		t.Errorf("call timeout: got %s, want the file's %s", got, want)
	}
	if got, want := c.Participant.MaxMessageBytes, 64<<20; got != want {
		t.Errorf("max message bytes: got %d, want the default %d", got, want)
	}
	for name, lists := range map[string][2]string{
		"read_as":   {strings.Join(c.Participant.ReadAs, " "), "a::1 b::2"},
		"operators": {strings.Join(c.Anchors.Operators, " "), "x::1 y::2"},
		"names":     {strings.Join(c.Packages.Names, " "), "p q"},
	} {
		if lists[0] != lists[1] {
			t.Errorf("%s: got %q, want %q", name, lists[0], lists[1])
		}
	}
}

func TestUnknownSettingsAreRefused(t *testing.T) {
	if _, err := load(t, "participant:\n  adress: x:1\n", nil); err == nil || !strings.Contains(err.Error(), "adress") {
		t.Errorf("a misspelt key in the file: got %v, want an error that names it", err)
	}
	if _, err := load(t, "", []string{"DISCLOSURED_PARTICIPANT_ADRESS=x:1"}); err == nil || !strings.Contains(err.Error(), "DISCLOSURED_PARTICIPANT_ADRESS") {
		t.Errorf("a misspelt variable: got %v, want an error that names it", err)
	}
	if _, err := load(t, "participant:\n  poll_interval: fast\n", nil); err == nil {
		t.Error("a duration that is none: got no error")
	}
}

func TestAllFaultsAreListedAtOnce(t *testing.T) {
	c, err := load(t, "", nil, "--api-listen", "0.0.0.0:1", "--packages-names", "#wormhole-core", "--log-level", "loud",
		"--participant-token-file", "/does/not/exist", "--api-rate-per-caller", "-1", "--anchors-operators", "a/b")
	if err != nil {
		t.Fatal(err)
	}
	err = c.validate()
	if err == nil {
		t.Fatal("got no fault")
	}
	for _, want := range []string{"participant.address", "participant.read_as", "participant.token_file", "anchors.guardian_governance",
		"anchors.operators", "api.listen", "api.rate_per_caller", "packages.names", "log.level"} {
		if !strings.Contains(err.Error(), want+": ") {
			t.Errorf("the fault of %s is missing in:\n%v", want, err)
		}
	}
}

func TestSmallestConfigurationIsValid(t *testing.T) {
	c, err := load(t, "", nil, "--participant-address", "localhost:6865", "--participant-plaintext", "--participant-read-as", operatorParty,
		"--anchors-guardian-governance", "governance::1220bb")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.validate(); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestPackageIdsAsNamesAreRefusedNamingTheSetting(t *testing.T) { // bugs A18, A20
	c, err := load(t, "", nil, "--packages-names", strings.Repeat("0a", 32))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.validate(); err == nil || !strings.Contains(err.Error(), "packages.names") {
		t.Errorf("got %v", err)
	}
}

func TestRenderedConfigurationReadsBackTheSame(t *testing.T) {
	c, err := load(t, "", nil, "--participant-address", `quo"te:1`, "--participant-read-as", "a::1,b::2", "--api-freshness-bound", "1m30s")
	if err != nil {
		t.Fatal(err)
	}
	again, err := load(t, c.render(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.render(), c.render(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestEverySettingIsExplained(t *testing.T) {
	for _, s := range settings() {
		if s.usage == "" {
			t.Errorf("%s has no comment in config.go", s.key)
		}
	}
}

// TestConfigurationManual holds docs/configuration.md to the comments; UPDATE_DOCS=1 writes it anew.
func TestConfigurationManual(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "configuration.md")
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(configurationManual()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != configurationManual() {
		t.Errorf("%s is not what config.go gives; make it anew with UPDATE_DOCS=1 go test -run TestConfigurationManual ./cmd/disclosured", path)
	}
}
