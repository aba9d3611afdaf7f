package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

func newAuditCommand() *cobra.Command {
	var (
		server        serverFlags
		scope         scopeFlags
		againstLedger bool
		limit         int32
		timeout       time.Duration
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Audit a running service's index: gaps, forks, losses, ghosts and the rest",
		Long: "Make a running service audit its whole index anew, and print the findings. With --against-ledger also read the active contracts from the\n" +
			"participant at the very offset of that audit and hold the two to each other; the participant's settings are those of `disclosured serve`.",
		Annotations: map[string]string{answersNo: "there is a finding (other people's look-alikes aside) or a difference"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if scope.consumer == "" && scope.given(cmd.Flags()) {
				return configError{errors.New("--operator, --package, --namespace and --without-namespace pick among a consumer's tries: give --consumer too, or none of them to audit everything")}
			}
			if err := scope.check(); err != nil {
				return err
			}
			var config Config
			var log *slog.Logger
			if againstLedger { // before anything is asked
				var err error
				if config, log, err = configured(cmd); err != nil {
					return err
				}
			}
			ctx, cancel := contextWithTimeout(cmd.Context(), timeout)
			defer cancel()
			conn, err := server.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			request := &disclosurev1.AuditRequest{Full: true, Limit: limit, Activations: againstLedger}
			if scope.consumer != "" {
				request.Scope = scope.selector(cmd.Flags())
			}
			client := disclosurev1.NewDisclosureServiceClient(conn)
			audit, err := client.Audit(ctx, request)
			if againstLedger && reasonOf(err) == "ANSWER_TOO_LARGE" {
				request.Activations = false // more contracts than one answer lists: whether they are the same can still be told
				audit, err = client.Audit(ctx, request)
			}
			if err != nil {
				return overdue(ctx, timeout, explain("asking "+server.address+" for an audit", err))
			}
			if err := printAudit(cmd.OutOrStdout(), audit); err != nil {
				return err
			}
			if againstLedger {
				same, err := compareWithLedger(ctx, cmd.OutOrStdout(), config, log, audit, int(limit))
				if err != nil {
					return overdue(ctx, timeout, err)
				}
				if !same {
					return errNo
				}
			}
			if !audit.Clean || !audit.IncrementalAgrees {
				return errNo
			}
			return nil
		},
	}
	server.add(cmd.Flags())
	scope.add(cmd)
	addConfigFlags(cmd.Flags())
	cmd.Flags().BoolVar(&againstLedger, "against-ledger", false, "compare the index with the participant's active contracts at the same offset")
	cmd.Flags().Int32Var(&limit, "limit", 100, "how many findings, and how many differing contracts of each kind, to print at most")
	addTimeout(cmd.Flags(), &timeout, 10*time.Minute, "how long all of it may take")
	return cmd
}

func printAudit(out io.Writer, audit *disclosurev1.AuditResponse) error {
	position := audit.Answer.GetPosition()
	printfLine(out, "audit of %d activations at offset %d of %s", audit.Activations, position.GetOffset(), position.GetParticipantId())
	for _, f := range audit.Findings {
		where := ""
		if f.Scope != nil {
			where = fmt.Sprintf(" (consumer %s, operator %s, namespace %s, prefix %q)", f.Scope.Consumer, f.Scope.Operator, namespaceText(f.Scope), f.Prefix)
		}
		printfLine(out, "%s: %s%s", f.Kind, f.Detail, where)
		for _, cid := range f.ContractIds {
			printfLine(out, "  %s", cid)
		}
	}
	if audit.Truncated {
		fmt.Fprintln(out, "… and more: see --limit")
	}
	if !audit.IncrementalAgrees {
		fmt.Fprintln(out, "the findings kept after each update differ from those computed anew: this is a fault of the service")
	}
	result := "clean"
	if !audit.Clean {
		result = "findings"
	}
	for _, kind := range slices.Sorted(maps.Keys(audit.Counts)) {
		result += fmt.Sprintf(" %s=%d", kind, audit.Counts[kind])
	}
	_, err := fmt.Fprintf(out, "audit: %s\n", printable(result))
	return err
}

// compareWithLedger reads the active contracts at the audit's offset and says whether the index holds the same; if not, which contracts differ, of
// each kind as many as limit.
func compareWithLedger(ctx context.Context, out io.Writer, config Config, log *slog.Logger, audit *disclosurev1.AuditResponse, limit int) (bool, error) {
	conn, err := dialParticipant(config, log)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	prober := ledgerstream.NewProber(streamConfig(config), conn)
	peer, err := prober.Identify(ctx)
	if err != nil {
		return false, advised(fmt.Errorf("asking the participant at %s who it is: %w", config.Participant.Address, err), participantAdvice(err))
	}
	position := audit.Answer.GetPosition()
	if peer.ParticipantID != position.GetParticipantId() {
		return false, configError{fmt.Errorf("the service follows participant %s, and at %s answers %s: they can't be compared",
			position.GetParticipantId(), config.Participant.Address, peer.ParticipantID)}
	}
	view, err := viewFromLedger(ctx, prober, peer, position.GetOffset(), config, log)
	if err != nil {
		return false, err
	}
	hash, activations := view.StateHash()
	if hex.EncodeToString(hash[:]) == audit.StateHash {
		_, err := fmt.Fprintf(out, "against the ledger: the same %d activations at offset %d\n", activations, position.GetOffset())
		return true, err
	}
	fmt.Fprintf(out, "against the ledger: DIFFERENT at offset %d: the index has %d activations, the participant %d.\n", position.GetOffset(), audit.Activations, activations)
	if len(audit.Listed) == 0 && audit.Activations > 0 {
		fmt.Fprintln(out, "there are too many contracts for one answer to list, so which of them differ is not known")
	} else {
		differences(audit.Listed, view).print(out, limit)
	}
	_, err = fmt.Fprint(out, "Either the index is wrong (report it with this output, and have it built anew: stop the service, run `disclosured reseed` where it has a database, and start it) or the participant's active contracts are (a contract that the stream showed archived and a snapshot shows active is a known fault of participants).\n")
	return false, err
}

// difference are the contract ids in which an index and a participant's active contracts differ, sorted.
type difference struct{ indexOnly, ledgerOnly, differing []string }

// differences compares by contract id and hash: a contract on two synchronizers has two hashes.
func differences(listed []*disclosurev1.Activation, view *index.View) difference {
	indexed, active := map[string][]string{}, map[string][]string{}
	for _, a := range listed {
		indexed[a.ContractId] = append(indexed[a.ContractId], string(a.Hash))
	}
	for e := range view.Each {
		hash := e.StateHash()
		active[e.ContractID] = append(active[e.ContractID], string(hash[:16]))
	}
	var d difference
	for id, hashes := range indexed {
		others, ok := active[id]
		slices.Sort(hashes)
		slices.Sort(others)
		switch {
		case !ok:
			d.indexOnly = append(d.indexOnly, id)
		case !slices.Equal(hashes, others):
			d.differing = append(d.differing, id)
		}
	}
	for id := range active {
		if _, ok := indexed[id]; !ok {
			d.ledgerOnly = append(d.ledgerOnly, id)
		}
	}
	slices.Sort(d.indexOnly)
	slices.Sort(d.ledgerOnly)
	slices.Sort(d.differing)
	return d
}

func (d difference) print(out io.Writer, limit int) {
	for _, part := range []struct {
		what string
		ids  []string
	}{
		{"in the index, not active on the participant", d.indexOnly},
		{"active on the participant, not in the index", d.ledgerOnly},
		{"in both, and not the same (synchronizer, reassignment, blob or content)", d.differing},
	} {
		if len(part.ids) == 0 {
			continue
		}
		fmt.Fprintf(out, "%s: %d\n", part.what, len(part.ids))
		for _, id := range part.ids[:min(limit, len(part.ids))] {
			printfLine(out, "  %s", id)
		}
		if len(part.ids) > limit {
			fmt.Fprintln(out, "  … and more: see --limit")
		}
	}
}

// viewFromLedger is a view made of the participant's active contracts at an offset, and of nothing else.
func viewFromLedger(ctx context.Context, prober *ledgerstream.Prober, peer ledgerstream.Peer, offset int64, config Config, log *slog.Logger) (*index.View, error) {
	policy, err := policyOf(config)
	if err != nil {
		return nil, configError{err}
	}
	x, err := index.Open(ctx, policy, nil, index.Options{Logger: log})
	if err != nil {
		return nil, fmt.Errorf("opening an index in memory: %w", err)
	}
	seed, err := x.BeginSeed(ctx, ledger.SeedStart{ParticipantID: peer.ParticipantID, Offset: offset, Reason: ledger.SeedFirst})
	if err != nil {
		return nil, fmt.Errorf("beginning an index in memory: %w", err)
	}
	err = prober.ReadActive(ctx, peer, offset, nil, func(active []ledger.Contract, inFlight []ledger.InFlight) error {
		if err := seed.Add(ctx, active); err != nil {
			return err
		}
		return seed.AddInFlight(ctx, inFlight)
	})
	if err == nil {
		err = seed.Commit(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the participant's active contracts at offset %d: %w", offset, err)
	}
	return x.View(), nil
}
