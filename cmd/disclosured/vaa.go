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

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The verdicts of `disclosured vaa`. Without guardian sets nothing is verified.
const (
	vaaValid      = "VALID"
	vaaInvalid    = "INVALID"
	vaaUnverified = "UNVERIFIED"
)

// vaaReport is what `disclosured vaa --json` prints.
type vaaReport struct {
	Digest           string `json:"digest"`
	GuardianSetIndex uint32 `json:"guardian_set_index"`
	EmitterChain     uint16 `json:"emitter_chain"`
	EmitterAddress   string `json:"emitter_address"`
	// Sequence is text: it may exceed what JSON readers keep exactly.
	Sequence string `json:"sequence"`
	// PubKeys are pairs of a guardian index and a key.
	PubKeys [][2]any `json:"pub_keys"`
	Verdict string   `json:"verdict"`
	// Message is the ledger's, of the rule that fails.
	Message string `json:"message"`
}

func newVAACommand() *cobra.Command {
	var (
		setsFile, coreState string
		asJSON              bool
	)
	cmd := &cobra.Command{
		Use:   "vaa VAA | -",
		Short: "Read a VAA, recover its signers' keys, and say what the ledger would",
		Long: "Read a VAA (hex, 0x-hex or base64; - reads it from standard input): its digest, what it says, and its signers' public keys as a redeem takes\n" +
			"them. With guardian sets, from a file or from a CoreState's created event blob, say whether it verifies now: VALID, or INVALID with the ledger's own\n" +
			"message; without, UNVERIFIED. Asks nobody. Exits non-zero where the VAA is invalid.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			encoded, err := readVAA(args[0], cmd.InOrStdin())
			if err != nil {
				return configError{err}
			}
			sets, err := readGuardianSets(setsFile, coreState)
			if err != nil {
				return configError{err}
			}
			report := reportVAA(encoded, sets, time.Now())
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = printVAA(cmd.OutOrStdout(), report)
			}
			if err == nil && report.Verdict == vaaInvalid {
				err = errNo
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&setsFile, "guardian-sets", "", "a JSON file of guardian sets: addresses by index, or objects of keys and expirationTime")
	flags.StringVar(&coreState, "core-state", "", "a CoreState's created event blob (hex or base64) to take the guardian sets of")
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
	return wormhole.DecodeVAAText(arg)
}

// reportVAA reads the VAA and, where there are sets, verifies it.
func reportVAA(encoded []byte, sets map[int64]wormhole.GuardianSet, now time.Time) vaaReport {
	report := vaaReport{PubKeys: [][2]any{}, Verdict: vaaUnverified}
	vaa, err := wormhole.ParseVAA(encoded)
	if err != nil {
		report.Verdict, report.Message = vaaInvalid, err.Error()
		return report
	}
	report.Digest = vaa.Digest().String()
	report.GuardianSetIndex, report.EmitterChain = vaa.GuardianSetIndex, vaa.EmitterChain
	report.EmitterAddress, report.Sequence = hex.EncodeToString(vaa.EmitterAddress[:]), strconv.FormatUint(vaa.Sequence, 10)
	var set *wormhole.GuardianSet
	if known, ok := sets[int64(vaa.GuardianSetIndex)]; ok {
		set = &known
	}
	keys, _ := vaa.RecoverKeys(set) // what is wrong with a signature is said below, in the ledger's words
	for _, k := range keys {
		report.PubKeys = append(report.PubKeys, [2]any{k.Index, k.Key})
	}
	if sets == nil {
		return report
	}
	report.Verdict = vaaValid
	if err := (&wormhole.CoreState{GuardianSets: sets}).Verify(vaa, keys, now); err != nil {
		report.Verdict, report.Message = vaaInvalid, err.Error()
	}
	return report
}

// readGuardianSets reads the sets of a file or a blob; nil where neither is given.
func readGuardianSets(file, blob string) (map[int64]wormhole.GuardianSet, error) {
	switch {
	case blob != "":
		raw, err := decodeBlobText(blob)
		if err != nil {
			return nil, fmt.Errorf("--core-state: %w", err)
		}
		contract, err := contractblob.Decode(raw)
		if err != nil {
			return nil, fmt.Errorf("--core-state: %w", err)
		}
		payload, err := wormhole.Decode(contract.TemplateID, contract.Argument)
		if err != nil {
			return nil, fmt.Errorf("--core-state: %w", err)
		}
		core, ok := payload.(*wormhole.CoreState)
		if !ok {
			return nil, fmt.Errorf("--core-state: the blob is of a %s", contract.TemplateID.QualifiedName())
		}
		return core.GuardianSets, nil
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading --guardian-sets: %w", err)
		}
		sets, err := parseGuardianSets(text)
		if err != nil {
			return nil, fmt.Errorf("--guardian-sets %s: %w", file, err)
		}
		return sets, nil
	default:
		return nil, nil
	}
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
		fmt.Fprintf(&b, "%-14s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("verdict", "%s", r.Verdict)
	if r.Message != "" {
		row("because", "%s", r.Message)
	}
	if r.Digest != "" {
		row("digest", "%s", r.Digest)
		row("guardian set", "%d", r.GuardianSetIndex)
		row("emitter", "chain %d, address %s", r.EmitterChain, r.EmitterAddress)
		row("sequence", "%s", r.Sequence)
		for _, k := range r.PubKeys {
			row("public key", "%v of guardian %v", k[1], k[0])
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func writeJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
