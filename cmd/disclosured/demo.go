package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/pgserver"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// The demo's size: redeemers per app, and how the simulated ledger behaves.
const (
	redeemersPerApp = 4
	// demoLatency is the window of contention: while a submission is in it, others that use its inputs lose.
	demoLatency = 3 * time.Millisecond
	// demoGrace is how long what was begun may take to end once the time is over.
	demoGrace = 10 * time.Second
)

func newDemoCommand() *cobra.Command {
	var (
		lasts   time.Duration
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the whole job on a simulated ledger: redeemers find, disclose and consume",
		Long: "Start a simulated participant, the service that follows it, and redeemers who are stakeholders of nothing: they ask the service what to disclose,\n" +
			"redeem VAAs signed by a development guardian, contend, retry, and live through splits, governance and reassignments. Every answer is compared with\n" +
			"the simulated ledger's truth at the answer's offset.\n\n" +
			"The index is kept in the Postgres that the environment variable DATABASE_URL names (in a database of its own, dropped at the end), else in a\n" +
			"throwaway one if server binaries are found, else in memory alone.",
		Annotations: map[string]string{answersNo: "anything was wrong"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lasts < time.Second || lasts > time.Hour {
				return configError{fmt.Errorf("--for must be in 1s..1h, is %s", lasts)}
			}
			log := slog.New(slog.DiscardHandler)
			if verbose {
				log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			}
			return runDemo(cmd.Context(), cmd.OutOrStdout(), log, lasts)
		},
	}
	cmd.Flags().DurationVar(&lasts, "for", 20*time.Second, "how long the redeemers redeem")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show the service's log")
	return cmd
}

// runDemo is the demo from start to end: ledger, database, service, redeemers, audit; everything is stopped in the reverse order.
func runDemo(ctx context.Context, out io.Writer, log *slog.Logger, lasts time.Duration) (err error) {
	fmt.Fprintln(out, "demo: the ledger is simulated; the Ledger API, the service and its API are real gRPC over loopback")
	sim := ledgersim.New(ledgersim.Options{Synchronizers: 2, CommitLatency: demoLatency, Seed: randomSeed()})
	address, err := sim.Start()
	if err != nil {
		return fmt.Errorf("demo: starting the simulated participant: %w", err)
	}
	defer sim.Stop()
	world, err := makeWorld(ctx, address, []int64{4, 16, 128})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	database, dropDatabase, err := demoDatabase(ctx, out)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, dropDatabase()) }()

	service, err := startService(ctx, followWorld(address, world), database, log)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, service.stop()) }()
	if err := service.waitReady(ctx); err != nil {
		return fmt.Errorf("demo: waiting for the service: %w", err)
	}
	fmt.Fprintf(out, "demo: service at %s, metrics at http://%s/metrics, %d apps with %d redeemers each, for %s\n",
		service.address, service.ops, len(world.Apps), redeemersPerApp, lasts)

	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer conn.Close()
	run := newDemoRun(sim, world, submit.New(conn, "demo"), service.api)
	if err := run.redeem(ctx, out, lasts); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return run.conclude(ctx, out, followWorld(address, world), log)
}

// demoDatabase gives the URL of an empty database, "" where there is none to be had, and how to drop it.
func demoDatabase(ctx context.Context, out io.Writer) (url string, drop func() error, err error) {
	nothing := func() error { return nil }
	name := fmt.Sprintf("disclosured_demo_%d_%d", os.Getpid(), time.Now().UnixNano())
	if given := os.Getenv("DATABASE_URL"); given != "" {
		if err := pgserver.CreateDatabaseAt(ctx, given, name, pgserver.DatabaseOptions{}); err != nil {
			return "", nothing, advised(fmt.Errorf("DATABASE_URL: %w", inOneLine{err}), "correct it, or leave it out: the demo needs no database of yours")
		}
		drop = func() error { return pgserver.DropDatabaseAt(context.WithoutCancel(ctx), given, name) }
		url, err := pgserver.WithDatabase(given, name)
		if err != nil {
			return "", nothing, errors.Join(fmt.Errorf("DATABASE_URL: %w", err), drop())
		}
		fmt.Fprintf(out, "demo: the index is kept in the Postgres of DATABASE_URL, in a database of its own (%s)\n", name)
		return url, drop, nil
	}
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if errors.Is(err, pgserver.ErrNoBinaries) {
		fmt.Fprintln(out, "demo: no Postgres server is installed and DATABASE_URL is not set: the index is kept in memory alone")
		return "", nothing, nil
	}
	if err != nil {
		return "", nothing, fmt.Errorf("starting a throwaway Postgres: %w", err)
	}
	drop = func() error { return server.Stop(pgserver.Fast) }
	if err := server.CreateDatabase(ctx, name, pgserver.DatabaseOptions{}); err != nil {
		return "", nothing, errors.Join(err, drop())
	}
	fmt.Fprintln(out, "demo: the index is kept in a throwaway Postgres (set DATABASE_URL to use your own)")
	return server.DSN(name), drop, nil
}

// service is the daemon, running within this process on ports of its own.
type service struct {
	address, ops string
	api          disclosurev1.DisclosureServiceClient

	conn   *grpc.ClientConn
	cancel context.CancelFunc
	group  *errgroup.Group
}

func startService(ctx context.Context, config Config, databaseURL string, log *slog.Logger) (*service, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	ops, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("listening: %w", err)
	}
	s := &service{address: listener.Addr().String(), ops: ops.Addr().String()}
	// A short interval, so that the demo shows the service rather than its patience; and one caller plays all redeemers.
	config.Participant.PollInterval = 100 * time.Millisecond
	config.API.RatePerCaller = 0
	config.API.Listen, config.Ops.Listen = s.address, s.ops
	s.conn, err = grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		listener.Close()
		ops.Close()
		return nil, fmt.Errorf("connecting to the service: %w", err)
	}
	s.api = disclosurev1.NewDisclosureServiceClient(s.conn)
	// Not the caller's own context: on an interrupt the redeemers end first.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.group = &errgroup.Group{}
	d := &daemon{cfg: config, log: log, databaseURL: databaseURL, listener: listener, ops: ops}
	s.group.Go(func() error { return d.run(running) })
	return s, nil
}

func (s *service) stop() error {
	s.conn.Close()
	s.cancel()
	if err := s.group.Wait(); err != nil {
		return fmt.Errorf("the service: %w", err)
	}
	return nil
}

// waitReady asks until the service is ready, or says why it is not.
func (s *service) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		info, err := s.api.GetServerInfo(ctx, &disclosurev1.GetServerInfoRequest{})
		if err == nil && info.Ready {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("%s: %s", info.NotReadyReason, info.StreamDetail)
			}
			return err
		}
	}
}

// conclude audits the index, compares it with the ledger, prints the last line and returns an error if anything was wrong.
func (r *demoRun) conclude(ctx context.Context, out io.Writer, config Config, log *slog.Logger) error {
	audit, err := r.api.Audit(ctx, &disclosurev1.AuditRequest{Full: true, Read: &disclosurev1.ReadOptions{
		MinOffset: r.sim.LedgerEnd(), ParticipantId: r.sim.ParticipantID(),
	}})
	if err != nil {
		return fmt.Errorf("demo: %w", explain("asking for the audit", err))
	}
	conn, err := dialParticipant(config, log)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer conn.Close()
	prober := ledgerstream.NewProber(streamConfig(config), conn)
	peer, err := prober.Identify(ctx)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	view, err := viewFromLedger(ctx, prober, peer, audit.Answer.Position.Offset, config, log)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if hash, n := view.StateHash(); fmt.Sprintf("%x", hash) != audit.StateHash {
		r.wrong("the index at offset %d has %d activations and is not the ledger's active set, of %d", audit.Answer.Position.Offset, audit.Activations, n)
	}
	verdict := "clean"
	if !audit.Clean || !audit.IncrementalAgrees {
		verdict = "findings"
		if err := printAudit(out, audit); err != nil {
			return err
		}
	}
	faults := r.faults()
	for _, fault := range faults {
		fmt.Fprintln(out, "WRONG:", fault)
	}
	fmt.Fprintln(out, r.summary(verdict))
	if len(faults) > 0 || verdict != "clean" {
		return errors.New("the demo found something wrong: see above")
	}
	return nil
}

// isTerminal tells whether a line can be written over.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && !strings.EqualFold(os.Getenv("TERM"), "dumb")
}
