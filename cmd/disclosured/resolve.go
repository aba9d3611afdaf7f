package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// maxStdinVAA bounds what is read from standard input: a VAA is some kilobytes.
const maxStdinVAA = 4 << 20

func newResolveCommand() *cobra.Command {
	var (
		server  serverFlags
		scope   scopeFlags
		asJSON  bool
		digest  string
		after   string
		not     []string
		wait    time.Duration
		timeout time.Duration
		stale   bool
	)
	cmd := &cobra.Command{
		Use:   "resolve [VAA | -]",
		Short: "Ask a running service what to disclose to redeem a VAA",
		Long: "Ask a running service what to disclose to redeem a VAA (hex, 0x-hex or base64; - reads it from standard input) or, with --digest, to\n" +
			"consume a digest. Prints the answer as text or, with --json, as the JSON Ledger API's disclosedContracts.",
		Annotations: map[string]string{answersNo: "the VAA does not verify, or the digest is consumed already"},
		Args:        cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := scope.check(); err != nil {
				return err
			}
			if wait < 0 {
				return configError{fmt.Errorf("--wait can't be negative, is %s", wait)}
			}
			request := &disclosurev1.PrepareRedeemRequest{
				Scope: scope.selector(cmd.Flags()),
				Read:  &disclosurev1.ReadOptions{AfterUpdateId: after, NotContractIds: not, AllowStale: stale},
			}
			if cmd.Flags().Changed("wait") {
				request.Read.Wait = durationpb.New(wait)
			}
			switch {
			case (len(args) == 1) == (digest != ""):
				return configError{fmt.Errorf("give either a VAA or --digest")}
			case digest != "":
				if _, err := wormhole.ParseDigest(digest); err != nil {
					return configError{fmt.Errorf("--digest %q: %w", digest, err)}
				}
				request.Subject = &disclosurev1.PrepareRedeemRequest_Digest{Digest: digest}
			case args[0] == "-":
				text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxStdinVAA))
				if err != nil {
					return fmt.Errorf("reading the VAA from standard input: %w", err)
				}
				request.Subject = &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: strings.TrimSpace(string(text))}
			default:
				request.Subject = &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: args[0]}
			}
			conn, err := server.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := contextWithTimeout(cmd.Context(), timeout)
			defer cancel()
			answer, err := disclosurev1.NewDisclosureServiceClient(conn).PrepareRedeem(ctx, request)
			if err != nil {
				return overdue(ctx, timeout, explain(fmt.Sprintf("asking %s to prepare the redeem for consumer %q", server.address, scope.consumer), err))
			}
			if asJSON {
				err = printDisclosedContracts(cmd.OutOrStdout(), answer.DisclosedContracts)
			} else {
				err = printRedeem(cmd.OutOrStdout(), answer)
			}
			if err != nil {
				return err
			}
			switch answer.Verdict {
			case disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE, disclosurev1.RedeemVerdict_REDEEM_VERDICT_EXPIRES_SOON,
				disclosurev1.RedeemVerdict_REDEEM_VERDICT_NOT_CONSUMED:
				return nil
			}
			if rule := answer.FailedRule; rule != nil {
				return fmt.Errorf("%w: the VAA is invalid: %s (%s)", errNo, rule.Message, rule.Code)
			}
			return fmt.Errorf("%w: the verdict is %s", errNo, strings.TrimPrefix(answer.Verdict.String(), "REDEEM_VERDICT_"))
		},
	}
	server.add(cmd.Flags())
	scope.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&digest, "digest", "", "the digest instead of a VAA")
	flags.BoolVar(&asJSON, "json", false, "print the JSON Ledger API's disclosedContracts array, and nothing else")
	flags.StringVar(&after, "after-update-id", "", "wait until the service has seen this update")
	flags.StringSliceVar(&not, "not-contract-id", nil, "wait for a successor of this contract, which just failed")
	flags.DurationVar(&wait, "wait", 0, "how long the service may wait for either; what the service itself chooses if not given")
	addTimeout(flags, &timeout, 30*time.Second, "how long to wait for the answer")
	flags.BoolVar(&stale, "allow-stale", false, "take an answer although the service can't prove it complete just now")
	if err := cmd.MarkFlagRequired("consumer"); err != nil {
		panic(err) // the flag is declared above
	}
	return cmd
}

// jsonDisclosedContract is the JSON Ledger API's DisclosedContract.
type jsonDisclosedContract struct {
	TemplateID       string `json:"templateId"`
	ContractID       string `json:"contractId"`
	CreatedEventBlob string `json:"createdEventBlob"`
	SynchronizerID   string `json:"synchronizerId"`
}

func printDisclosedContracts(out io.Writer, contracts []*disclosurev1.DisclosedContract) error {
	list := make([]jsonDisclosedContract, 0, len(contracts))
	for _, c := range contracts {
		list = append(list, jsonDisclosedContract{
			TemplateID:       templateName(c.TemplateId),
			ContractID:       c.ContractId,
			CreatedEventBlob: base64.StdEncoding.EncodeToString(c.CreatedEventBlob),
			SynchronizerID:   c.SynchronizerId,
		})
	}
	return writeJSON(out, list)
}

func templateName(id *disclosurev1.Identifier) string {
	return id.GetPackageId() + ":" + id.GetModuleName() + ":" + id.GetEntityName()
}

func printRedeem(out io.Writer, answer *disclosurev1.PrepareRedeemResponse) error {
	var b strings.Builder
	row := func(name string, format string, args ...any) {
		printfLine(&b, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	row("verdict", "%s", strings.TrimPrefix(answer.Verdict.String(), "REDEEM_VERDICT_"))
	if f := answer.FailedRule; f != nil {
		row("  because", "%s (%s)", f.Message, f.Code)
		if f.ExpiredAt != nil {
			row("  expired at", "%s", f.ExpiredAt.AsTime().Format(time.RFC3339Nano))
		}
	}
	if at := answer.GuardianSetExpiresAt; at != nil {
		row("  expires at", "%s, with the guardian set that signed the VAA", at.AsTime().Format(time.RFC3339Nano))
	}
	row("digest", "%s", orUnset(answer.Digest))
	if c := answer.Consumption; c != nil {
		if c.UpdateId != "" {
			row("consumed by", "update %s at offset %d, record time %s", c.UpdateId, c.Offset, c.RecordTime.AsTime().Format(time.RFC3339Nano))
		} else {
			row("consumed", "%s", consumedText(c))
		}
	}
	if n := answer.ReplayNode; n != nil {
		row("replay node", "%s", n.Contract.GetContractId())
		row("  prefix", "%q, %d consumed, splits at %d", n.Prefix, n.ConsumedCount, n.SplitThreshold)
		row("  scope", "consumer %s, operator %s, package %s, namespace %s", n.Scope.GetConsumer(), n.Scope.GetOperator(), n.Scope.GetPackageName(), namespaceText(n.Scope))
	}
	if c := answer.Churn; c != nil {
		row("  churn", "%s", churnText(c))
	}
	if s := answer.CoreState; s != nil {
		row("core state", "%s", s.Contract.GetContractId())
		row("  guardians", "set %d, message fee %d", s.GuardianSetIndex, s.MessageFee)
	}
	for _, c := range answer.DisclosedContracts {
		row("disclose", "%s %s (%d bytes, synchronizer %s)", c.TemplateId.GetEntityName(), c.ContractId, len(c.CreatedEventBlob), c.SynchronizerId)
	}
	for _, f := range answer.Findings {
		row("audit", "%s at %q: %s", f.Kind, f.Prefix, f.Detail)
	}
	if p, f := answer.Answer.GetPosition(), answer.Answer.GetFreshness(); p != nil {
		row("as of", "offset %d of %s, update %s", p.Offset, p.ParticipantId, orNone(p.UpdateId))
		row("proven", "%s ago (bound %s)", f.GetAge().AsDuration().Round(time.Millisecond), f.GetBound().AsDuration())
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// consumedText says when a digest was consumed by an update that is not known, and why it is not.
func consumedText(c *disclosurev1.Consumption) string {
	if c.HistoryUnavailable {
		return fmt.Sprintf("at or before offset %d; which update it was history did not tell in time: ask again", c.BeforeHistoryOffset)
	}
	return fmt.Sprintf("at or before offset %d, by an update that this service's history does not know", c.BeforeHistoryOffset)
}

// churnText says how long a signer may take.
func churnText(c *disclosurev1.ChurnForecast) string {
	inherited := ""
	if c.InheritedConsumesSeen > 0 {
		inherited = fmt.Sprintf(", and a share of %d of the node that it was split from", c.InheritedConsumesSeen)
	}
	text := fmt.Sprintf("%v consumes a minute (%d in %s%s)", c.ConsumesPerMinute, c.ConsumesSeen, c.Window.AsDuration().Round(time.Second), inherited)
	if c.Window == nil {
		text = "nothing known"
	}
	if c.MedianLife != nil {
		of := ""
		if c.MedianLifeInherited {
			of = ", from the node that it was split from"
		}
		text += fmt.Sprintf(", a contract id lives %s (median of %d%s)", c.MedianLife.AsDuration().Round(time.Millisecond), c.LivesSeen, of)
	}
	if c.NextConsumeSplits {
		text += ", the next consume splits"
	}
	return text
}

// orUnset is a word for an empty text.
func orUnset(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

func namespaceText(s *disclosurev1.Scope) string {
	if s == nil || s.Namespace == nil {
		return "(none)"
	}
	return fmt.Sprintf("%q", *s.Namespace)
}

func orNone(s string) string {
	if s == "" {
		return "(none since the last seed)"
	}
	return s
}
