package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/index/postgres"
)

func newMigrateCommand() *cobra.Command {
	var urlFile string
	cmd := &cobra.Command{
		Use:       "migrate [up | down | status]",
		Short:     "Bring the database's schema up to date, take it back, or show where it is",
		Long:      "Bring the database's schema up to date (up, the default), undo its last migration with what that holds (down), or show where it is (status).",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"up", "down", "status"},
		RunE: func(cmd *cobra.Command, args []string) error {
			direction := postgres.Up
			if len(args) == 1 {
				direction = postgres.Direction(args[0])
			}
			migrations, err := postgres.Migrate(cmd.Context(), postgres.Config{URLFile: urlFile}, direction)
			if err != nil {
				return fmt.Errorf("migrating the database: %w", err)
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
	cmd.Flags().StringVar(&urlFile, "database-url-file", "", "the file that holds the Postgres URL")
	if err := cmd.MarkFlagRequired("database-url-file"); err != nil {
		panic(err) // the flag is declared above
	}
	return cmd
}
