package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/index/postgres"
	guardpostgres "github.com/disclosured/disclosured/replayguard/postgres"
)

func newMigrateCommand() *cobra.Command {
	var guard bool
	cmd := &cobra.Command{
		Use:   "migrate [up | down | status]",
		Short: "Bring the database's schema up to date, take it back, or show where it is",
		Long: "Bring the database's schema up to date (up, the default), undo its last migration with what that holds (down), or show where it is (status).\n\n" +
			"up and status are for the index's schema and the replay guard's, down is for the index's alone. --guard is for the guard's alone, and\n" +
			"--guard down forgets every reservation.",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"up", "down", "status"},
		RunE: func(cmd *cobra.Command, args []string) error {
			direction := postgres.Up
			if len(args) == 1 {
				direction = postgres.Direction(args[0])
			}
			urlFile, err := databaseURLFile(cmd)
			if err != nil {
				return err
			}
			doing := "migrating"
			if direction == postgres.Status {
				doing = "reading the version of"
			}
			if guard || direction != postgres.Down {
				state, err := migrateGuard(cmd.Context(), urlFile, direction)
				if err != nil {
					return guardDatabaseError(doing+" the replay guard's schema", err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "replay guard: %s\n", state)
				if guard {
					return nil
				}
			}
			migrations, err := postgres.Migrate(cmd.Context(), postgres.Config{URLFile: urlFile}, direction)
			if err != nil {
				return databaseError(doing+" the index's schema", err)
			}
			for _, m := range migrations {
				state := "pending"
				if !m.AppliedAt.IsZero() {
					state = "applied " + m.AppliedAt.Format(time.RFC3339)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%05d %s: %s\n", m.Version, m.Name, state)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&guard, "guard", false, "migrate the replay guard's schema alone")
	addConfigFlags(cmd.Flags(), "database.url_file")
	return cmd
}

// databaseURLFile is database.url_file of a command that is about the database alone: from its flag, its variable or the file of --config.
func databaseURLFile(cmd *cobra.Command) (string, error) {
	config, err := loadConfig(cmd.Flags(), os.Environ())
	if err != nil {
		return "", configError{err}
	}
	if config.Database.URLFile == "" {
		return "", configError{errors.New("database.url_file is not set: give --database-url-file FILE, or with --config a configuration that has it")}
	}
	if err := checkDatabaseURL(config.Database.URLFile); err != nil {
		return "", configError{fmt.Errorf("database.url_file: %w", err)}
	}
	return config.Database.URLFile, nil
}

// migrateGuard changes the guard's schema, or only reads it, and says where it is then.
func migrateGuard(ctx context.Context, urlFile string, direction postgres.Direction) (state string, err error) {
	pool, err := guardPool(ctx, urlFile, "")
	if err != nil {
		return "", err
	}
	defer pool.Close()
	if direction != postgres.Status {
		if _, err := guardpostgres.Migrate(ctx, pool, guardpostgres.Direction(direction)); err != nil {
			return "", err
		}
	}
	have, want, err := guardpostgres.Version(ctx, pool)
	switch {
	case err != nil:
		return "", err
	case have < want:
		return fmt.Sprintf("version %d, %d pending", have, want-have), nil
	}
	return fmt.Sprintf("version %d", have), nil
}
