package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// verifyReport is what `disclosured verify --json` prints.
type verifyReport struct {
	ContractID  string   `json:"contract_id"`
	TemplateID  string   `json:"template_id"`
	PackageName string   `json:"package_name"`
	Signatories []string `json:"signatories"`
	// ContractIDRecomputed: the contract id belongs to the content.
	ContractIDRecomputed bool `json:"contract_id_recomputed"`
	// Checks are those that were made, NotCovered what no check of a blob alone can show.
	Checks     []checkReport `json:"checks"`
	NotCovered []string      `json:"not_covered"`
	// Payload is the argument as the JSON Ledger API writes it; a list of its fields where their labels are not known.
	Payload any `json:"payload"`
}

// checkReport is one check.
type checkReport struct {
	Depth  int    `json:"depth"`
	Name   string `json:"name"`
	Result string `json:"result"`
	Detail string `json:"detail,omitzero"`
}

// templates are the templates' names as --template takes them, short or in full.
var templates = map[string]client.Template{
	"ReplayNode": client.ReplayNode, "CoreState": client.CoreState, "ReplayRootRegistry": client.ReplayRootRegistry,
	"EmitterRegistry": client.EmitterRegistry, "Emitter": client.Emitter,
}

func newVerifyCommand() *cobra.Command {
	var (
		contractID, digest, template, namespace string
		anchors                                 anchorFlags
		asJSON                                  bool
		expected                                client.Expected
	)
	cmd := &cobra.Command{
		Use:   "verify BLOB | -",
		Short: "Verify a created event blob: whether it is what it says, without asking anyone",
		Long: "Verify a created event blob (hex or base64; - reads it, as text or as bytes, from standard input): that it decodes, that it is what the flags\n" +
			"expect, that a replay node covers --digest and does not hold it, and that the contract id recomputes from the content. Asks nobody. An\n" +
			"expectation that does not apply to the contract fails.\n\n" +
			"Each check has a depth. 1: what the blob says is what was expected (template, parties, prefix). 2: the replay node does not hold the digest. 3: the\n" +
			"contract id recomputes from the blob, so that all that was checked before belongs to that id.\n\n" +
			"Without expectations it is only shown that the blob agrees with itself. And even one that is all that is expected can have been invented by anyone who\n" +
			"knows the parties' names: only a ledger that takes its disclosure shows that the contract exists. What no check covers is printed too.",
		Annotations: map[string]string{answersNo: "a check fails, or the contract id can't be recomputed"},
		Args:        oneArgument("a created event blob in hex or base64, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			blob, err := readBlob(args[0], cmd.InOrStdin())
			if err != nil {
				return configError{err}
			}
			flags := cmd.Flags()
			err = refuseEmpty(flags, "contract-id", "digest", "template", "package-name", "package-id", "operator", "guardian-governance", "consumer", "owner")
			if err != nil {
				return err
			}
			expected.ContractID, expected.Operators, expected.GuardianGovernance = strings.ToLower(contractID), anchors.operators, anchors.governance
			if template != "" {
				known, ok := templates[template[strings.LastIndexByte(template, ':')+1:]]
				if !ok || strings.Contains(template, ":") && template != string(known) {
					return configError{fmt.Errorf("--template %q is none of %s", template, strings.Join(slices.Sorted(maps.Keys(templates)), ", "))}
				}
				expected.Template = known
			}
			if flags.Changed("namespace") {
				expected.Namespace = &namespace
			}
			if digest != "" {
				if _, err := wormhole.ParseDigest(digest); err != nil {
					return configError{fmt.Errorf("--digest: %w", err)}
				}
				expected.Digest, expected.Held = digest, client.HeldAbsent
				if expected.Template == "" {
					expected.Template = client.ReplayNode
				}
			}
			report, refused := client.Verify(blob, expected)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), verifyJSON(blob, report))
			} else {
				err = printVerification(cmd.OutOrStdout(), report)
			}
			return errors.Join(err, refused)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&contractID, "contract-id", "", "the contract id that the blob is claimed to be of")
	flags.StringVar(&digest, "digest", "", "the digest that the blob, a replay node, should cover and not hold")
	flags.StringVar(&template, "template", "", "the template that it should be of: ReplayNode, CoreState, ReplayRootRegistry, EmitterRegistry or Emitter")
	flags.StringVar(&expected.PackageName, "package-name", "", "the name of the package that it should be of, such as "+wormhole.PackageName)
	flags.StringSliceVar(&expected.PackageIDs, "package-id", nil, "a package id that is accepted, which no recomputation covers; several are alternatives")
	anchors.add(flags)
	flags.StringVar(&expected.Consumer, "consumer", "", "the consumer that a replay node should be of")
	flags.StringVar(&namespace, "namespace", "", "the namespace that a replay node should be of, which may be empty")
	flags.BoolVar(&expected.WithoutNamespace, "without-namespace", false, "a replay node should be of a package version without namespaces")
	flags.StringVar(&expected.Owner, "owner", "", "the owner that an emitter should be of")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("namespace", "without-namespace")
	return cmd
}

// refuseEmpty refuses flags that are given without a value, as by a script whose variable is not set: they would expect nothing.
func refuseEmpty(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if value := flags.Lookup(name).Value.String(); flags.Changed(name) && (value == "" || value == "[]") {
			return configError{fmt.Errorf("--%s is empty: leave it out to expect nothing", name)}
		}
	}
	return nil
}

// readBlob reads a blob from its text, or from standard input, where it may also come as it is.
func readBlob(arg string, in io.Reader) ([]byte, error) {
	if arg != "-" {
		return decodeBlobText(arg)
	}
	raw, err := io.ReadAll(io.LimitReader(in, 2*contractblob.MaxBlobBytes+2))
	if err != nil {
		return nil, fmt.Errorf("reading the blob from standard input: %w", err)
	}
	// A blob's bytes begin with a protobuf tag and a length; its text is printable.
	if text := bytes.TrimSpace(raw); bytes.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return decodeBlobText(string(text))
	}
	return raw, nil
}

// decodeBlobText reads a blob in hex, with or without 0x, or in base64, standard or URL-safe, padded or not. A blob's base64 begins with
// "Cg", so that it is never hex.
func decodeBlobText(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("the blob is empty: give its createdEventBlob in hex or base64")
	}
	digits := strings.TrimPrefix(text, "0x")
	if raw, err := hex.DecodeString(digits); err == nil {
		return raw, nil
	}
	plain := strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(text), "=")
	raw, err := base64.RawStdEncoding.DecodeString(plain)
	if err != nil {
		return nil, fmt.Errorf("the blob %.20q is neither hex nor base64: give its createdEventBlob: %w", text, err)
	}
	return raw, nil
}

func verifyJSON(blob []byte, r *client.Report) verifyReport {
	out := verifyReport{
		ContractID: r.ContractID, TemplateID: r.TemplateID, PackageName: r.PackageName, Signatories: append([]string{}, r.Signatories...), ContractIDRecomputed: r.Recomputed,
		NotCovered: r.Uncovered(),
	}
	for _, c := range r.Checks {
		out.Checks = append(out.Checks, checkReport{int(c.Depth), c.Name, c.Result.String(), c.Detail})
	}
	contract, err := contractblob.Decode(blob)
	if err != nil {
		return out // the report's checks say so
	}
	var payload damlvalue.Value = contract.Argument
	for _, schema := range wormhole.Schemas(contract.TemplateID.QualifiedName()) {
		if labelled, err := damlvalue.Label(contract.Argument, schema); err == nil {
			payload = labelled
			break
		}
	}
	out.Payload = ledgerJSON(payload)
	return out
}

// ledgerJSON is a value as the JSON Ledger API writes it. Records without labels are lists.
func ledgerJSON(v damlvalue.Value) any {
	switch v := v.(type) {
	case damlvalue.Int:
		return strconv.FormatInt(int64(v), 10)
	case damlvalue.Text:
		return string(v)
	case damlvalue.Party:
		return string(v)
	case damlvalue.ContractID:
		return string(v)
	case damlvalue.Numeric:
		return string(v)
	case damlvalue.Bool:
		return bool(v)
	case damlvalue.Timestamp:
		return time.UnixMicro(int64(v)).UTC().Format("2006-01-02T15:04:05.999999Z07:00")
	case damlvalue.Date:
		return time.Unix(int64(v)*86400, 0).UTC().Format(time.DateOnly)
	case damlvalue.Unit:
		return struct{}{}
	case damlvalue.Optional:
		if v.Value == nil {
			return nil
		}
		if inner, ok := v.Value.(damlvalue.Optional); ok {
			if inner.Value == nil {
				return []any{}
			}
			return []any{ledgerJSON(inner)}
		}
		return ledgerJSON(v.Value)
	case damlvalue.List:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = ledgerJSON(e)
		}
		return out
	case damlvalue.TextMap:
		out := make(map[string]any, len(v))
		for _, e := range v {
			out[e.Key] = ledgerJSON(e.Value)
		}
		return out
	case damlvalue.GenMap:
		out := make([][2]any, len(v))
		for i, e := range v {
			out[i] = [2]any{ledgerJSON(e.Key), ledgerJSON(e.Value)}
		}
		return out
	case damlvalue.Variant:
		return map[string]any{"tag": v.Constructor, "value": ledgerJSON(v.Value)}
	case damlvalue.Enum:
		return v.Constructor
	case damlvalue.Record:
		if !v.Labelled() {
			out := make([]any, len(v.Fields))
			for i, f := range v.Fields {
				out[i] = ledgerJSON(f.Value)
			}
			return out
		}
		out := make(map[string]any, len(v.Fields))
		for _, f := range v.Fields {
			out[f.Label] = ledgerJSON(f.Value)
		}
		return out
	default:
		return nil
	}
}

func printVerification(out io.Writer, r *client.Report) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		printfLine(&b, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	if r.ContractID != "" {
		row("contract id", "%s", r.ContractID)
		row("template id", "%s", r.TemplateID)
		row("package", "%s", r.PackageName)
		row("signatories", "%s", strings.Join(r.Signatories, ", "))
		row("created at", "%s", r.CreatedAt.Format(time.RFC3339Nano))
	}
	if n := r.Node; n != nil {
		row("replay node", "prefix %q, %d consumed, splits at %d", n.Prefix, n.Consumed, n.SplitThreshold)
		row("  scope", "consumer %s, operator %s", n.Consumer, n.Operator)
	}
	if s := r.CoreState; s != nil {
		row("core state", "guardian set %d, message fee %d", s.GuardianSetIndex, s.MessageFee)
		row("  anchors", "operator %s, guardian governance %s", s.Operator, s.GuardianGovernance)
	}
	for _, c := range r.Checks {
		detail := ""
		if c.Detail != "" {
			detail = ": " + c.Detail
		}
		row(fmt.Sprintf("depth %d", c.Depth), "%s %s%s", c.Name, c.Result, detail)
	}
	if r.ContractID == "" {
		_, err := io.WriteString(out, b.String())
		return err // nothing was read, so that nothing of it is covered
	}
	for _, what := range r.Uncovered() {
		row("not covered", "%s", what)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
