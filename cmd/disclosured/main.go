// Command disclosured follows a Canton participant and tells wallets and relayers, at one exact ledger offset, which contracts to
// disclose to redeem a VAA. See the README for what it is and `disclosured help` for its commands.
//
// This package reads flags and files into one Config (config.go, settings.go), wires the rooms together (daemon.go) and stops
// them in order; each command has a file of its own. It holds no rule of the ledger, the index or the API.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker (see the Makefile).
var version = "dev"

// configError marks an error that no restart will mend.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

func main() { os.Exit(run(os.Args[1:])) }

// run runs one command until it is done or a signal ends it. A second signal ends the process at once.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // from here on a signal has its default effect
	}()
	root := newRootCommand()
	began := false
	for _, cmd := range root.Commands() {
		work := cmd.RunE
		if work == nil {
			continue
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			began = true
			return work(cmd, args)
		}
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(os.Stderr, "disclosured:", printableLines(err.Error()))
	// What fails before a command begins is how it was called.
	if config := (configError{}); !began || errors.As(err, &config) {
		return exitConfig
	}
	return exitFailure
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "disclosured",
		Short:         "Which contracts to disclose, exactly now, to redeem a VAA on Canton",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return configError{err} })
	root.SetHelpCommand(newHelpCommand(root))
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	root.AddCommand(
		newServeCommand(),
		newMigrateCommand(),
		newDemoCommand(),
		newSimCommand(),
		newBootstrapCommand(),
		newResolveCommand(),
		newScopesCommand(),
		newAuditCommand(),
		newReseedCommand(),
		newVAACommand(),
		newVerifyCommand(),
		newDoctorCommand(),
		newHealthcheckCommand(),
		newConfigCommand(),
		newVersionCommand(),
	)
	return root
}

// newHelpCommand is cobra's, except that asking for what isn't there is an error.
func newHelpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = fmt.Errorf("unknown command %q for %q", rest[0], about.CommandPath())
			}
			if err != nil {
				return configError{err}
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "disclosured", version)
			return err
		},
	}
}

func newConfigCommand() *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective configuration, without secrets, and check it",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if list {
				_, err := fmt.Fprint(out, configurationManual())
				return err
			}
			config, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return configError{err}
			}
			if _, err := fmt.Fprint(out, config.render()); err != nil {
				return err
			}
			if err := config.validate(); err != nil {
				return configError{fmt.Errorf("the configuration is not complete or not right:\n%w", err)}
			}
			return nil
		},
	}
	addConfigFlags(cmd.Flags())
	cmd.Flags().BoolVar(&list, "list", false, "print every setting with its default and its meaning instead")
	return cmd
}
