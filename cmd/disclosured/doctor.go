package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func newDoctorCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check connection, token, rights, packages, anchors and database, and say what to do",
		Long: "Check everything that `disclosured serve` needs with the settings that it would have: the connection, the token, the rights to read, the packages,\n" +
			"the anchors, the database. Says what is wrong and what to do, and changes nothing.",
		Annotations: map[string]string{answersNo: "something is wrong"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := contextWithTimeout(cmd.Context(), timeout)
			defer cancel()
			exam := &examination{out: cmd.OutOrStdout()}
			config, log, err := configured(cmd)
			if err != nil {
				return err
			}
			exam.ok("configuration", "complete and consistent")
			d := &daemon{cfg: config, log: log}
			peer, reached := exam.participant(ctx, d)
			exam.database(ctx, d, peer, reached)
			if exam.faults > 0 {
				return overdue(ctx, timeout, fmt.Errorf("%d of the checks failed", exam.faults))
			}
			return nil
		},
	}
	addConfigFlags(cmd.Flags())
	addTimeout(cmd.Flags(), &timeout, time.Minute, "how long all checks may take together")
	return cmd
}

// examination prints its checks as they are made.
type examination struct {
	out    io.Writer
	faults int
}

func (e *examination) ok(what, format string, args ...any) {
	printfLine(e.out, "ok     %-14s %s", what, fmt.Sprintf(format, args...))
}

func (e *examination) note(what, format string, args ...any) {
	printfLine(e.out, "note   %-14s %s", what, fmt.Sprintf(format, args...))
}

func (e *examination) wrong(what string, err error, todo string) {
	e.faults++
	fmt.Fprintf(e.out, "WRONG  %-14s %s\n", what, strings.ReplaceAll(printableLines(err.Error()), "\n", "\n"+strings.Repeat(" ", 22)))
	if todo != "" {
		fmt.Fprintf(e.out, "       %-14s → %s\n", "", todo)
	}
}

// participant checks the far end; reached tells whether it said who it is.
func (e *examination) participant(ctx context.Context, d *daemon) (peer ledgerstream.Peer, reached bool) {
	conn, err := dialParticipant(d.cfg, d.log)
	if err != nil {
		e.wrong("connection", err, "correct the participant settings")
		return peer, false
	}
	defer conn.Close()
	prober := ledgerstream.NewProber(streamConfig(d.cfg), conn)
	if peer, err = prober.Identify(ctx); err != nil {
		e.wrong("connection", fmt.Errorf("%s: %w", d.cfg.Participant.Address, err), cmp.Or(participantAdvice(err),
			"is participant.address right and reachable from here, with the TLS and token settings that it asks for?"))
		return peer, false
	}
	e.ok("connection", "%s answers as %s, Ledger API %s", d.cfg.Participant.Address, peer.ParticipantID, peer.LedgerAPIVersion)
	if want := d.cfg.Participant.ID; want != "" && want != peer.ParticipantID {
		e.wrong("participant", fmt.Errorf("participant.id is %s, and %s answers", want, peer.ParticipantID), "correct participant.id or participant.address")
	}
	e.ok("ledger", "ledger end %d, pruned to %d, connected to %s", peer.LedgerEnd, peer.PrunedTo, orList(peer.Synchronizers, "no synchronizer that it tells of"))
	if err := prober.CheckReading(ctx, &peer); err != nil {
		e.wrong("reading", err, "grant the token's user CanReadAs for each of participant.read_as, and see that packages.names are uploaded")
		return peer, true
	}
	// A participant without authorization lets everybody read as parties that it has never heard of.
	e.ok("reading", "the participant lets us read as %s, which does not show that it has such a party", orList(d.cfg.Participant.ReadAs, "any party"))
	if len(peer.MissingTemplates) > 0 {
		e.note("packages", "no version on this participant has %s: these are not served until one does", strings.Join(peer.MissingTemplates, ", "))
	} else {
		e.ok("packages", "%s: every template that is served is there", strings.Join(d.cfg.Packages.Names, ", "))
	}
	e.anchors(ctx, d, prober, peer)
	return peer, true
}

// anchors looks for the one CoreState that the service would serve.
func (e *examination) anchors(ctx context.Context, d *daemon, prober *ledgerstream.Prober, peer ledgerstream.Peer) {
	policy, err := policyOf(d.cfg)
	if err != nil {
		e.wrong("anchors", err, "correct packages.pinned_ids")
		return
	}
	var authentic, others []string
	count := func(c *ledger.Contract) {
		if class := policy.Classify(c); class == index.Authentic {
			authentic = append(authentic, c.ContractID)
		} else {
			others = append(others, fmt.Sprintf("%s (%s)", c.ContractID, class))
		}
	}
	templates := []damlvalue.TypeName{wormhole.CoreStateTemplate}
	err = prober.ReadActive(ctx, peer, peer.LedgerEnd, templates, func(active []ledger.Contract, inFlight []ledger.InFlight) error {
		for i := range active {
			count(&active[i])
		}
		for i := range inFlight {
			count(&inFlight[i].Contract)
		}
		return nil
	})
	switch {
	case err != nil:
		e.wrong("anchors", err, "")
	case len(authentic) == 0:
		e.wrong("anchors", fmt.Errorf("no CoreState is signed by guardian governance %s and an accepted operator; CoreStates of others: %s",
			d.cfg.Anchors.GuardianGovernance, orList(others, "none")), "correct anchors.guardian_governance, anchors.operators or participant.read_as")
	case len(authentic) > 1:
		e.wrong("anchors", fmt.Errorf("%d authentic CoreStates: %s", len(authentic), strings.Join(authentic, ", ")), "requests have to name one until the operator archives the others")
	default:
		e.ok("anchors", "CoreState %s; CoreStates of others: %d", authentic[0], len(others))
	}
}

// database checks the store.
func (e *examination) database(ctx context.Context, d *daemon, peer ledgerstream.Peer, reached bool) {
	if d.cfg.Database.URLFile == "" {
		e.note("database", "none is configured: the index lives in memory, is seeded from the ledger at each start, and history begins there")
		return
	}
	config := d.storeConfig()
	config.Migrate = false // an examination changes nothing
	store, err := postgres.Open(ctx, config)
	switch {
	case errors.Is(err, postgres.ErrNotMigrated) && d.cfg.Database.Migrate:
		e.note("database", "the schema is older than this program: `disclosured serve` will migrate it")
		return
	case err != nil:
		e.wrong("database", errors.New(oneLine(err)), databaseAdvice(err))
		return
	}
	defer store.Close()
	pos, ok, err := store.Position(ctx)
	switch {
	case err != nil:
		e.wrong("database", errors.New(oneLine(err)), databaseAdvice(err))
	case !ok:
		e.ok("database", "reachable, its schema is this program's, and no index is in it yet")
	case reached && pos.ParticipantID != peer.ParticipantID:
		e.wrong("database", fmt.Errorf("it holds the index of participant %s, not of %s", pos.ParticipantID, peer.ParticipantID), "use another database, or set participant.id to have the index built anew")
	case reached && pos.Offset > peer.LedgerEnd:
		e.wrong("database", fmt.Errorf("its index stands at offset %d, past the ledger end %d: the participant was restored to an earlier state", pos.Offset, peer.LedgerEnd), "`disclosured serve` will build the index anew")
	case reached && pos.Offset < peer.PrunedTo:
		e.note("database", "its index stands at offset %d and the participant is pruned to %d: `disclosured serve` will build it anew", pos.Offset, peer.PrunedTo)
	default:
		e.ok("database", "reachable; its index stands at offset %d of %s", pos.Offset, pos.ParticipantID)
	}
}

func orList(list []string, none string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, ", ")
}
