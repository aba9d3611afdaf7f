package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// settingFlag marks the flags that are settings, in their annotations.
const settingFlag = "setting"

func init() {
	cobra.AddTemplateFunc("ownFlags", func(flags *pflag.FlagSet) string { return flagUsages(flags, false) })
	cobra.AddTemplateFunc("exitCodes", exitCodes)
	cobra.AddTemplateFunc("settingFlags", func(flags *pflag.FlagSet) string { return flagUsages(flags, true) })
}

// flagUsages describes the flags that are settings, or those that are not.
func flagUsages(flags *pflag.FlagSet, settings bool) string {
	some := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if _, is := f.Annotations[settingFlag]; is == settings {
			some.AddFlag(f)
		}
	})
	return strings.TrimRight(some.FlagUsages(), "\n")
}

// usageTemplate is cobra's with a command's own flags before the settings, of which there are many and which other commands have too, and its exit codes.
func usageTemplate(cobras string) string {
	return strings.Replace(cobras, "\n\nFlags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}",
		"{{with ownFlags .LocalFlags}}\n\nFlags:\n{{.}}{{end}}"+
			"{{with settingFlags .LocalFlags}}\n\nSettings (each also as a variable and in the file; see `disclosured config --list`):\n{{.}}{{end}}"+
			"{{if .Runnable}}\n\nExit codes:\n{{exitCodes .}}{{end}}", 1)
}
