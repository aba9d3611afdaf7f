package main

import (
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
			"up is for the index's schema and the replay guard's. down and status are for the index's alone; --guard is for the guard's alone, and\n" +
			"--guard down forgets every reservation.",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"up", "down", "status"},
		RunE: func(cmd *cobra.Command, args []string) error {
			direction := postgres.Up
			if len(args) == 1 {
				direction = postgres.Direction(args[0])
			}
			if guard || direction == postgres.Up {
				if guard && direction == postgres.Status {
					return configError{errors.New("--guard takes up or down")}
				}
				version, err := migrateGuard(cmd.Context(), urlFile, guardpostgres.Direction(direction))
				if err != nil {
					return databaseError("migrating the replay guard's schema", err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "replay guard: version %d\n", version)
				if guard {
					return nil
				}
			}
			migrations, err := postgres.Migrate(cmd.Context(), postgres.Config{URLFile: urlFile}, direction)
			if err != nil {
				return databaseError("migrating the database", err)
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
