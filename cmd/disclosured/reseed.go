package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/index/postgres"
)

func newReseedCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "reseed",
		Short: "Have the next start build the index anew from the ledger",
		Long: "Take the index in the database out of use, with its history, so that the next `disclosured serve` builds it from the ledger alone: for an index\n" +
			"that `disclosured audit --against-ledger` found to be wrong, or one that was made on a branch of the ledger's history which is gone. Stop the service\n" +
			"first; without a database, starting it again is all that is needed.\n\n" +
			"What is lost is the past: by which update a digest was consumed, and how a contract ended, is known from the new start on alone. That a digest is\n" +
			"consumed is the ledger's to say, and is lost by nothing. Reservations of the replay guard stay.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return configError{errors.New("reseed forgets the index and its history: say --yes if that is meant")}
			}
			urlFile, err := databaseURLFile(cmd)
			if err != nil {
				return err
			}
			store, err := postgres.Open(cmd.Context(), postgres.Config{URLFile: urlFile})
			if err != nil {
				return databaseError("retiring the index", err)
			}
			defer store.Close()
			said, err := reseed(cmd.Context(), store)
			if err != nil {
				return databaseError("retiring the index", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "forget the index and its history")
	addConfigFlags(cmd.Flags(), "database.url_file")
	return cmd
}

// reseed retires the index under a lease of its own, and says what it has done.
func reseed(ctx context.Context, store *postgres.Store) (said string, err error) {
	lease, err := store.AcquireLease(ctx, postgres.LeaseOptions{Holder: fmt.Sprintf("%s/%d", holder("reseed"), os.Getpid())})
	if err != nil {
		if errors.Is(err, postgres.ErrLeaseHeld) {
			return "", fmt.Errorf("the index is in use, stop the service first: %w", err)
		}
		return "", err
	}
	defer func() {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		err = errors.Join(err, lease.Release(releasing))
	}()
	pos, found, err := store.Retire(ctx)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "there is no index in the database: the next start builds one", nil
	}
	return fmt.Sprintf("retired the index of participant %s at offset %d, last written to at record time %s: the next start builds it anew",
		pos.ParticipantID, pos.Offset, pos.RecordTime.UTC().Format(time.RFC3339)), nil
}
