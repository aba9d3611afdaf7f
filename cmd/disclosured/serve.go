package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/internal/telemetry"
)

func newServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Follow a participant and serve what redeemers must disclose",
		Long: "Follow a participant and serve what redeemers must disclose, until SIGTERM or an interrupt.\n\n" +
			"Every setting is a flag, an environment variable and a key of the configuration file: see `disclosured config --list`.",
		Annotations: map[string]string{endsWell: "ended by SIGTERM or an interrupt"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, log, err := configured(cmd)
			if err != nil {
				return err
			}
			log.Info("starting", "version", version, "participant", config.Participant.Address, "read_as", config.Participant.ReadAs,
				"packages", config.Packages.Names, "operators", config.Anchors.Operators, "guardian_governance", config.Anchors.GuardianGovernance)
			d := &daemon{cfg: config, log: log}
			if err := d.run(cmd.Context()); err != nil {
				return err
			}
			log.Info("stopped")
			return nil
		},
	}
	addConfigFlags(cmd.Flags())
	return cmd
}

// configured reads and checks a command's configuration and makes its logger.
func configured(cmd *cobra.Command) (Config, *slog.Logger, error) {
	config, err := loadConfig(cmd.Flags(), os.Environ())
	if err != nil {
		return Config{}, nil, configError{err}
	}
	if err := config.validate(); err != nil {
		return Config{}, nil, configError{fmt.Errorf("the configuration is not complete or not right (`disclosured config --list` explains each setting):\n%w", err)}
	}
	log, err := telemetry.NewLogger(cmd.ErrOrStderr(), telemetry.LogConfig{Format: config.Log.Format, Level: config.Log.Level})
	if err != nil {
		return Config{}, nil, configError{err}
	}
	return config, slog.New(advisingHandler{log.Handler()}), nil
}

func contextWithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// timeoutFlag is a duration that can't be negative; 0 is for ever.
type timeoutFlag struct{ value *time.Duration }

func (f timeoutFlag) String() string {
	if f.value == nil {
		return "" // of which pflag asks the zero value
	}
	return f.value.String()
}

func (f timeoutFlag) Type() string { return "duration" }

func (f timeoutFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return err
	case d < 0:
		return errors.New("it can't be negative; 0 is for ever")
	}
	*f.value = d
	return nil
}

// addTimeout adds --timeout, which is the same for every command.
func addTimeout(flags *pflag.FlagSet, timeout *time.Duration, usual time.Duration, usage string) {
	*timeout = usual
	flags.Var(timeoutFlag{timeout}, "timeout", usage)
}

// overdue says of what failed after --timeout was over that it was, and how to give it more. A service that keeps the deadline which we gave it may say
// so before our own clock does.
func overdue(ctx context.Context, timeout time.Duration, err error) error {
	said := (*serviceError)(nil)
	if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) && !(timeout > 0 && errors.As(err, &said) && said.status.Code() == codes.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("--timeout %s was over, raise it if that was too short: %w", timeout, err)
}
