package main

import (
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
