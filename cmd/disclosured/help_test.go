package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command's own flags come before the settings, and each flag comes once.
func TestHelpShowsOwnFlagsFirst(t *testing.T) {
	for _, cmd := range newRootCommand().Commands() {
		cmd.InitDefaultHelpFlag()
		help := cmd.UsageString()
		own, settings, _ := strings.Cut(help, "\nSettings (")
		if !strings.Contains(own, "\nFlags:\n") || strings.Contains(own, "--participant-") || strings.Contains(own, "--config string") {
			t.Errorf("%s: the flags are not in two parts:\n%s", cmd.Name(), help)
		}
		if strings.Contains(settings, "--help") {
			t.Errorf("%s: a flag of its own stands among the settings", cmd.Name())
		}
		if cmd.Flags().Lookup("config") != nil && settings == "" {
			t.Errorf("%s: no settings", cmd.Name())
		}
	}
}

// Each command's help tells its exit codes, and docs/commands.md has all; UPDATE_DOCS=1 writes that anew.
func TestCommandsManual(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "commands.md")
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(commandsManual()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != commandsManual() {
		t.Errorf("%s is not what the commands give; make it anew with UPDATE_DOCS=1 go test -run TestCommandsManual ./cmd/disclosured", path)
	}
	for _, cmd := range newRootCommand().Commands() {
		cmd.InitDefaultHelpFlag()
		if help := cmd.UsageString(); strings.Count(help, "\nExit codes:\n  0  ") != 1 || !strings.Contains(help, cmd.Annotations[answersNo]) {
			t.Errorf("%s: its help does not tell its exit codes once:\n%s", cmd.Name(), help)
		}
		if strings.Contains(strings.ToLower(cmd.Long), "non-zero") {
			t.Errorf("%s: tells of its exit code twice", cmd.Name())
		}
	}
}

// A no is told by exit code 1, after the work was done, and what is wrong with the call by 2.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitOK, []string{"version"}},
		{exitOK, []string{"help", "serve"}},
		{exitFailure, []string{"vaa", "00"}},
		{exitFailure, []string{"verify", "0a"}},
		{exitConfig, []string{"vaa", "zz"}},
		{exitConfig, []string{"verify", "-z"}},
		{exitConfig, []string{"config"}},
	} {
		if code, _, said := outcome(t, c.args...); code != c.code {
			t.Errorf("%q: exit %d, want %d: %s", c.args, code, c.code, said)
		}
	}
}
