package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes, as docs/commands.md and each command's help tell them. A supervisor restarts on exitFailure; exitConfig needs a human.
const (
	exitOK      = 0
	exitFailure = 1 // the work failed, or the answer is no
	exitConfig  = 2 // the call, a setting or what it points to is wrong
)

// Annotations of the commands whose exit codes tell more.
const (
	// endsWell is when a command ends with exitOK, where it has no end of its own.
	endsWell = "exit-0"
	// answersNo is what a command ends with exitFailure for although all of its work was done.
	answersNo = "exit-1"
)

// exitCodes describes a command's exit codes, a line for each.
func exitCodes(cmd *cobra.Command) string {
	done, failed := "done", "failed"
	if when := cmd.Annotations[endsWell]; when != "" {
		done = when
	}
	if no := cmd.Annotations[answersNo]; no != "" {
		failed += ", or " + no
	}
	return fmt.Sprintf("  %d  %s\n  %d  %s\n  %d  the call, a setting or what it points to is wrong: the same again ends the same",
		exitOK, done, exitFailure, failed, exitConfig)
}

// commandsManual is docs/commands.md.
func commandsManual() string {
	var b strings.Builder
	b.WriteString(`# Commands

` + "`disclosured help COMMAND`" + ` tells of each what it takes. Those that ask a running service (resolve, scopes, audit) find it by ` + "`--server`" + `; the others
that have settings take the service's own ([configuration.md](configuration.md)).

This page is made from the commands.

| command | what it does | ends with 1 also where |
|---|---|---|
`)
	root := newRootCommand()
	for _, cmd := range root.Commands() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(cmd.Use, "|", `\|`), cmd.Short, cmd.Annotations[answersNo])
	}
	fmt.Fprintf(&b, `
## Exit codes

| code | what | to a supervisor |
|---|---|---|
| %d | Done. `+"`serve` and `sim`"+`: ended by SIGTERM or an interrupt. | leave it |
| %d | Failed, interrupted before it was done, or the answer is no (see above). | start it again |
| %d | The call, a setting or what it points to is wrong: a flag, a file, another participant than the one that is meant, a database that is not there or does not let us in, one of another schema or changed by hand. | a human has to mend it |

A second signal does not wait for the end: it has the system's own effect. A crash of the program (a Go panic or a fatal error, with a stack trace on
standard error) ends with 2 as well, as Go has it; with GOTRACEBACK=crash in its environment it ends by SIGABRT, and a supervisor can tell the two apart.
`, exitOK, exitFailure, exitConfig)
	return b.String()
}
