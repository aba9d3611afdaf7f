package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/index/postgres"
	guardpostgres "github.com/disclosured/disclosured/replayguard/postgres"
)

func newMigrateCommand() *cobra.Command {
	var urlFile string
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
			if guard || direction != postgres.Down {
				state, err := migrateGuard(cmd.Context(), urlFile, direction)
				if err != nil {
					return migrateError("the replay guard's schema", err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "replay guard: %s\n", state)
				if guard {
					return nil
				}
			}
			migrations, err := postgres.Migrate(cmd.Context(), postgres.Config{URLFile: urlFile}, direction)
			if err != nil {
				return migrateError("the database", err)
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
	cmd.Flags().StringVar(&urlFile, "database-url-file", "", "the file that holds the Postgres URL")
	if err := cmd.MarkFlagRequired("database-url-file"); err != nil {
		panic(err) // the flag is declared above
	}
	return cmd
}

// migrateError says what could not be migrated, and by which flag the database was named where that is what is wrong.
func migrateError(what string, err error) error {
	if fault := (*postgres.ConfigError)(nil); errors.As(err, &fault) {
		return configError{fmt.Errorf("migrating %s: --database-url-file: %w", what, err)}
	}
	return fmt.Errorf("migrating %s: %w", what, err)
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
