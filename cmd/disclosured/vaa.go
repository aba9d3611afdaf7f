package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The verdicts of `disclosured vaa`. Without guardian sets nothing is verified.
const (
	vaaValid      = "VALID"
	vaaInvalid    = "INVALID"
	vaaUnverified = "UNVERIFIED"
)

// vaaReport is what `disclosured vaa --json` prints. Of bytes that are no VAA only the verdict and its message are there.
type vaaReport struct {
	Digest           string  `json:"digest,omitzero"`
	GuardianSetIndex *uint32 `json:"guardian_set_index,omitzero"`
	EmitterChain     *uint16 `json:"emitter_chain,omitzero"`
	EmitterAddress   string  `json:"emitter_address,omitzero"`
	// Sequence is text: it may exceed what JSON readers keep exactly.
	Sequence string `json:"sequence,omitzero"`
	// PubKeys are pairs of a guardian index and a key.
	PubKeys [][2]any `json:"pub_keys,omitzero"`
	Verdict string   `json:"verdict"`
	// Message is the ledger's, of the rule that fails.
	Message string `json:"message"`
	// RestsOn says whose guardian sets the verdict is by; empty for bytes that are no VAA, which need none.
	RestsOn string `json:"rests_on,omitzero"`
}

func newVAACommand() *cobra.Command {
	var (
		setsFile, coreState string
		anchors             anchorFlags
		asJSON              bool
	)
	cmd := &cobra.Command{
		Use:   "vaa VAA | -",
		Short: "Read a VAA, recover its signers' keys, and say what the ledger would",
		Long: "Read a VAA (hex, 0x-hex or base64; - reads it from standard input): its digest, what it says, and its signers' public keys as a redeem takes\n" +
			"them. With guardian sets, from a file or from a CoreState's created event blob, say whether it verifies now: VALID, or INVALID with the ledger's own\n" +
			"message; without, UNVERIFIED. Asks nobody.\n\n" +
			"A blob is verified first, as by `disclosured verify`; give --operator and --guardian-governance, as known from elsewhere, to have its parties compared.\n" +
			"That it recomputes does not show that a ledger made it: anyone can invent a CoreState that names these parties. The report says what the verdict rests on.",
		Annotations: map[string]string{answersNo: "the VAA is invalid"},
		Args:        oneArgument("a VAA in hex, 0x-hex or base64, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			encoded, err := readVAA(args[0], cmd.InOrStdin())
			if err != nil {
				return configError{err}
			}
			if err := refuseEmpty(cmd.Flags(), "guardian-sets", "core-state", "operator", "guardian-governance"); err != nil {
				return err
			}
			if anchors.given() && coreState == "" {
				return configError{errors.New("--operator and --guardian-governance are about the blob of --core-state")}
			}
			sets, restsOn, err := readGuardianSets(setsFile, coreState, &anchors)
			if err != nil {
				return configError{err}
			}
			report := reportVAA(encoded, sets, restsOn, time.Now())
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = printVAA(cmd.OutOrStdout(), report)
			}
			if err == nil && report.Verdict == vaaInvalid {
				err = fmt.Errorf("%w: the VAA is invalid: %s", errNo, report.Message)
				if report.Digest == "" {
					err = fmt.Errorf("%w: these %d bytes are no whole VAA: %s", errNo, len(encoded), report.Message)
				}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&setsFile, "guardian-sets", "", "a JSON file of guardian sets: addresses by index, or objects of keys and expirationTime")
	flags.StringVar(&coreState, "core-state", "", "a CoreState's created event blob (hex or base64) to take the guardian sets of")
	anchors.add(flags)
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("guardian-sets", "core-state")
	return cmd
}

// readVAA reads a VAA's bytes from its text, or from standard input.
func readVAA(arg string, in io.Reader) ([]byte, error) {
	if arg == "-" {
		text, err := io.ReadAll(io.LimitReader(in, maxStdinVAA))
		if err != nil {
			return nil, fmt.Errorf("reading the VAA from standard input: %w", err)
		}
		arg = strings.TrimSpace(string(text))
	}
	encoded, err := wormhole.DecodeVAAText(arg)
	if err != nil {
		return nil, fmt.Errorf("reading the VAA %.20q, which should be hex, 0x-hex or base64: %w", arg, err)
	}
	return encoded, nil
}

// reportVAA reads the VAA and, where there are sets, verifies it as the ledger would with the guardians' own keys.
func reportVAA(encoded []byte, sets map[int64]wormhole.GuardianSet, restsOn string, now time.Time) vaaReport {
	vaa, err := wormhole.ParseVAA(encoded)
	if err != nil {
		return vaaReport{Verdict: vaaInvalid, Message: err.Error()}
	}
	report := vaaReport{
		Digest: vaa.Digest().String(), GuardianSetIndex: &vaa.GuardianSetIndex, EmitterChain: &vaa.EmitterChain,
		EmitterAddress: hex.EncodeToString(vaa.EmitterAddress[:]), Sequence: strconv.FormatUint(vaa.Sequence, 10), PubKeys: [][2]any{},
		Verdict: vaaUnverified, RestsOn: restsOn,
	}
	var set *wormhole.GuardianSet
	if known, ok := sets[int64(vaa.GuardianSetIndex)]; ok {
		set = &known
	}
	keys, _ := vaa.RecoverKeys(set) // of a signature that is wrong there is no key, or another's
	for _, k := range keys {
		report.PubKeys = append(report.PubKeys, [2]any{k.Index, k.Key})
	}
	if sets == nil {
		return report
	}
	report.Verdict = vaaValid
	err = (&wormhole.CoreState{GuardianSets: sets}).VerifyWith(vaa, now, wormhole.ActiveBefore, func(set *wormhole.GuardianSet) error {
		_, err := set.RecoverSignatures(vaa)
		return err
	})
	if err != nil {
		report.Verdict, report.Message = vaaInvalid, err.Error()
	}
	return report
}

// anchorFlags are the parties that a contract is compared with.
type anchorFlags struct {
	operators  []string
	governance string
}

func (a *anchorFlags) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&a.operators, "operator", nil, "the bridge's operator that the contract must name; several are alternatives")
	flags.StringVar(&a.governance, "guardian-governance", "", "the party that must be a CoreState's guardian governance")
}

func (a *anchorFlags) given() bool { return len(a.operators) > 0 || a.governance != "" }

// readGuardianSets reads the sets of a file or a blob, and says what they rest on; nil where neither is given.
func readGuardianSets(file, blob string, anchors *anchorFlags) (sets map[int64]wormhole.GuardianSet, restsOn string, err error) {
	switch {
	case blob != "":
		raw, err := decodeBlobText(blob)
		if err != nil {
			return nil, "", fmt.Errorf("--core-state: %w", err)
		}
		return setsOfCoreState(raw, anchors)
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, "", fmt.Errorf("reading --guardian-sets: %w", err)
		}
		sets, err := parseGuardianSets(text)
		if err != nil {
			return nil, "", fmt.Errorf("--guardian-sets %s: %w", file, err)
		}
		return sets, "the guardian sets of the file", nil
	default:
		return nil, "no guardian sets: nothing was verified", nil
	}
}

// setsOfCoreState verifies a CoreState's blob as far as that can be done without a ledger, and says how far that is.
func setsOfCoreState(blob []byte, anchors *anchorFlags) (map[int64]wormhole.GuardianSet, string, error) {
	report, err := client.Verify(blob, client.Expected{
		Template: client.CoreState, Operators: anchors.operators, GuardianGovernance: anchors.governance, AcceptUnverifiable: true,
	})
	if err == nil && report.CoreState == nil {
		err = errors.New("its payload can't be read")
	}
	if err != nil {
		return nil, "", fmt.Errorf("--core-state: %w", err)
	}
	sets := make(map[int64]wormhole.GuardianSet, len(report.CoreState.GuardianSets))
	for i, set := range report.CoreState.GuardianSets {
		sets[i] = wormhole.GuardianSet{Keys: set.Keys, Expiration: set.Expiration}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the guardian sets of CoreState %s, signed by operator %s and guardian governance %s by its own account", report.ContractID,
		report.CoreState.Operator, report.CoreState.GuardianGovernance)
	switch {
	case len(anchors.operators) > 0 && anchors.governance != "":
		b.WriteString(", which are those expected")
	case anchors.given():
		b.WriteString(", of which one was compared: give both --operator and --guardian-governance")
	default:
		b.WriteString(", which nothing was compared with: give --operator and --guardian-governance")
	}
	if report.Recomputed {
		b.WriteString("; its contract id recomputes")
	} else {
		b.WriteString("; its contract id can't be recomputed, its package version is not known here")
	}
	b.WriteString("; that a ledger made it, and that it is active, the blob does not show")
	return sets, b.String(), nil
}

// parseGuardianSets reads guardian sets by index: an object of index → addresses, or → {keys, expirationTime}. They may be the whole
// document, or its guardian_sets or guardianSets, of the document or of its coreState.
func parseGuardianSets(text []byte) (map[int64]wormhole.GuardianSet, error) {
	var document map[string]json.RawMessage
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("want a JSON object of guardian sets by index: %w", err)
	}
	for _, inside := range []string{"coreState", "guardianSets", "guardian_sets"} {
		if found, ok := document[inside]; ok {
			document = nil
			if err := json.Unmarshal(found, &document); err != nil {
				return nil, fmt.Errorf("%s: want an object: %w", inside, err)
			}
		}
	}
	sets := make(map[int64]wormhole.GuardianSet, len(document))
	for name, value := range document {
		index, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not the index of a guardian set", name)
		}
		set := struct {
			Keys           []string
			ExpirationTime *time.Time
		}{}
		if err := json.Unmarshal(value, &set.Keys); err != nil {
			if err := json.Unmarshal(value, &set); err != nil {
				return nil, fmt.Errorf("guardian set %d: want a list of addresses, or an object of keys and expirationTime: %w", index, err)
			}
		}
		for i, key := range set.Keys {
			key = strings.ToLower(strings.TrimPrefix(key, "0x"))
			if raw, err := hex.DecodeString(key); err != nil || len(raw) != 20 {
				return nil, fmt.Errorf("guardian set %d: key %d, %q, is not an address of 20 bytes in hex", index, i, set.Keys[i])
			}
			set.Keys[i] = key
		}
		if len(set.Keys) == 0 {
			return nil, fmt.Errorf("guardian set %d has no keys", index)
		}
		sets[int64(index)] = wormhole.GuardianSet{Keys: set.Keys, Expiration: set.ExpirationTime}
	}
	if len(sets) == 0 {
		return nil, errors.New("no guardian set in it")
	}
	return sets, nil
}

func printVAA(out io.Writer, r vaaReport) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		printfLine(&b, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	row("verdict", "%s", r.Verdict)
	if r.Message != "" {
		row("because", "%s", r.Message)
	}
	if r.RestsOn != "" {
		row("rests on", "%s", r.RestsOn)
	}
	if r.Digest != "" {
		row("digest", "%s", r.Digest)
		row("guardian set", "%d", *r.GuardianSetIndex)
		row("emitter", "chain %d, address %s", *r.EmitterChain, r.EmitterAddress)
		row("sequence", "%s", r.Sequence)
		for _, k := range r.PubKeys {
			row("public key", "%v of guardian %v", k[1], k[0])
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
