package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

const (
	maxSimSynchronizers = 64
	// maxSimThreshold keeps a replay node of the simulation within some 300 KB.
	maxSimThreshold = 4096
)

// randomSeed makes a simulated ledger unlike all others: a service that followed another one must notice.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand's documentation
	return binary.BigEndian.Uint64(b[:])
}

func newSimCommand() *cobra.Command {
	var (
		listen        string
		synchronizers int
		latency       time.Duration
		empty         bool
		traffic       time.Duration
		thresholds    []int64
		seed          uint64
	)
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Serve a simulated participant over the real Ledger API",
		Long: "Serve a simulated Canton participant over the real gRPC Ledger API v2, in memory, until it is interrupted. Unless --empty is given it is filled\n" +
			"with a small Wormhole: the anchors and an app with a replay trie for each threshold. Prints the settings with which `disclosured serve` follows it.\n" +
			"The ledger is simulated: its rules are held to recordings of a real participant, and it is for development and tests only.",
		Annotations: map[string]string{endsWell: "ended by SIGTERM or an interrupt"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkListen(listen, true); err != nil {
				return configError{fmt.Errorf("--listen: %w", err)}
			}
			if host, _, _ := net.SplitHostPort(listen); !isLoopback(host) {
				return configError{fmt.Errorf("--listen: %q is not a loopback address: a simulated participant lets everyone do everything and stays on this host", listen)}
			}
			switch {
			case synchronizers < 1 || synchronizers > maxSimSynchronizers:
				return configError{fmt.Errorf("--synchronizers must be in 1..%d, is %d", maxSimSynchronizers, synchronizers)}
			case latency < 0:
				return configError{fmt.Errorf("--commit-latency can't be negative, is %s", latency)}
			case traffic < 0:
				return configError{fmt.Errorf("--traffic can't be negative, is %s", traffic)}
			case slices.ContainsFunc(thresholds, func(n int64) bool { return n < 1 || n > maxSimThreshold }):
				return configError{fmt.Errorf("--thresholds must each be in 1..%d, are %d", maxSimThreshold, thresholds)}
			}
			if !cmd.Flags().Changed("seed") {
				seed = randomSeed()
			}
			sim := ledgersim.New(ledgersim.Options{Synchronizers: synchronizers, CommitLatency: latency, Seed: seed})
			address, err := sim.StartOn(listen)
			if err != nil {
				return configError{fmt.Errorf("--listen: %w", err)}
			}
			defer sim.Stop()
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "# a simulated participant, %s, at %s\n", sim.ParticipantID(), address)
			if !empty {
				world, err := makeWorld(cmd.Context(), address, thresholds)
				if err != nil {
					return err
				}
				fmt.Fprintln(out, "# its settings for `disclosured serve --config`:")
				tries, err := worldTries(world)
				if err != nil {
					return err
				}
				fmt.Fprint(out, followWorld(address, world).renderChanges(), tries)
				if traffic > 0 {
					fmt.Fprintf(out, "# CID is a trie's first root: with --traffic %s it is soon replaced, and GetCoveringNode gives the node that is active\n", traffic)
					return makeTraffic(cmd.Context(), address, sim, world, traffic)
				}
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:6865", "where to serve the Ledger API")
	flags.IntVar(&synchronizers, "synchronizers", 1, "how many synchronizers the participant is connected to")
	flags.DurationVar(&latency, "commit-latency", 0, "how long a submission takes from locking its inputs to its commit")
	flags.DurationVar(&traffic, "traffic", 0, "so often each app consumes a new digest; 0 is never")
	flags.Uint64Var(&seed, "seed", 0, "makes the participant's id and all other ids; random if not given, because another ledger with the same ids is taken for the same one")
	flags.BoolVar(&empty, "empty", false, "begin with an empty ledger")
	flags.Int64SliceVar(&thresholds, "thresholds", []int64{4, 16, 128}, "an app for each, with a replay trie that splits at it")
	return cmd
}

// makeWorld makes a devnet on the participant at the address.
func makeWorld(ctx context.Context, address string, thresholds []int64) (*devnet.World, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting to the simulated participant: %w", err)
	}
	defer conn.Close()
	return devnet.Make(ctx, submit.New(conn, "devnet"), devnet.Options{Thresholds: thresholds})
}

// makeTraffic lets each app consume a new digest on its covering node, again and again, until the context ends.
func makeTraffic(ctx context.Context, address string, sim *ledgersim.Sim, world *devnet.World, every time.Duration) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connecting to the simulated participant: %w", err)
	}
	defer conn.Close()
	client := submit.New(conn, "traffic")
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, app := range world.Apps {
			var digest wormhole.Digest
			if _, err := rand.Read(digest[:]); err != nil {
				return fmt.Errorf("making a digest: %w", err)
			}
			nodes := sim.Covering(ledgersim.Scope{Consumer: app.Consumer, Operator: world.Operator}, digest, sim.LedgerEnd())
			if len(nodes) != 1 {
				continue // somebody made a gap or a fork: nothing to consume on
			}
			// Somebody else may have consumed on the node in this moment; the next tick takes another.
			if _, err := client.Do(ctx, []string{app.Consumer}, nil, submit.ConsumeDigest(nodes[0].ContractID, digest.String())); ctx.Err() != nil {
				return nil
			} else if rejection := (*submit.Rejection)(nil); err != nil && !errors.As(err, &rejection) {
				return fmt.Errorf("consuming: %w", err)
			}
		}
	}
}

// followWorld is the configuration of a service that follows the devnet at the address.
func followWorld(address string, world *devnet.World) Config {
	config := defaultConfig()
	config.Participant.Address, config.Participant.Plaintext = address, true
	config.Participant.ReadAs = []string{world.Operator}
	config.Anchors = AnchorsConfig{Operators: []string{world.Operator}, GuardianGovernance: world.GuardianGovernance}
	return config
}

// worldTries are comments that say, for each app of the devnet, what to ask the service for.
func worldTries(world *devnet.World) (string, error) {
	var b strings.Builder
	for _, app := range world.Apps {
		vaa, err := world.VAA(app, []byte("hello"))
		if err != nil {
			return "", err
		}
		root := "# CID=" + app.Root
		if app.Root == "" {
			root = "# (its first root was replaced: GetCoveringNode gives the node that is active)"
		}
		fmt.Fprintf(&b, "# an app whose trie splits at %d:\n# CONSUMER=%s\n%s\n# VAA=%s\n# DIGEST=%s\n",
			app.Threshold, app.Consumer, root, vaa.EncodedHex(), vaa.Digest())
	}
	return b.String(), nil
}
