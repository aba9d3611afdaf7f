package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// command runs a command and returns what it printed.
func command(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(in))
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// vaaJSON runs `disclosured vaa --json`.
func vaaJSON(t *testing.T, in string, args ...string) (map[string]any, error) {
	t.Helper()
	out, err := command(t, in, append([]string{"vaa", "--json"}, args...)...)
	if errors.As(err, &configError{}) {
		return nil, err
	}
	var report map[string]any
	if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil {
		t.Fatalf("%v: %s", jsonErr, out)
	}
	return report, err
}

func TestVAACommandOnMainnetVAAs(t *testing.T) {
	zipped, err := os.Open("../../internal/wormhole/testdata/mainnet-vaas.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer zipped.Close()
	z, err := gzip.NewReader(zipped)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	sets := filepath.Join(t.TempDir(), "mainnet.json")
	if err := os.WriteFile(sets, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var mainnet struct {
		VAAs []struct {
			VAA, Digest string
			Sequence    json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &mainnet); err != nil {
		t.Fatal(err)
	}
	if len(mainnet.VAAs) != 43 {
		t.Fatalf("%d VAAs", len(mainnet.VAAs))
	}
	for i, v := range mainnet.VAAs {
		report, err := vaaJSON(t, "", v.VAA, "--guardian-sets", sets)
		vaa, perr := wormhole.ParseVAA(unhex(t, v.VAA))
		if perr != nil {
			t.Fatal(perr)
		}
		// Governance messages have sequences at random, half of which the ledger's 63 bits can't hold.
		verdict, message := "VALID", ""
		if vaa.Sequence > math.MaxInt64 {
			verdict, message = "INVALID", "number exceeds 63 bits"
		}
		if (err == nil) != (verdict == "VALID") || report["verdict"] != verdict || report["message"] != message || report["digest"] != v.Digest {
			t.Errorf("VAA %d: verdict %v, %v, digest %v, error %v", i, report["verdict"], report["message"], report["digest"], err)
		}
		keys := report["pub_keys"].([]any)
		if len(keys) != len(vaa.Signatures) {
			t.Errorf("VAA %d: %d keys of %d signatures", i, len(keys), len(vaa.Signatures))
		}
		for j, pair := range keys {
			p := pair.([]any)
			if p[0] != float64(vaa.Signatures[j].GuardianIndex) || !strings.HasPrefix(p[1].(string), "04") || len(p[1].(string)) != 130 {
				t.Errorf("VAA %d: key %d is %v", i, j, p)
			}
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.TrimPrefix(s, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVAACommand(t *testing.T) {
	guardian := wormhole.DevnetGuardian()
	body := wormhole.VAABody{EmitterChain: 2, Sequence: 1<<63 - 1, Payload: []byte("hello")}
	vaa := wormhole.SignVAA(body, 3, map[uint8]wormhole.GuardianKey{0: guardian})
	text := vaa.EncodedHex()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sets := file("sets.json", `{"3": ["0x`+strings.ToUpper(guardian.Address())+`"], "4": {"keys": ["`+guardian.Address()+`"], "expirationTime": null}}`)
	expired := file("expired.json", `{"coreState": {"guardianSets": {"3": {"keys": ["`+guardian.Address()+`"], "expirationTime": "2020-01-01T00:00:00Z"}}}}`)
	other := file("other.json", `{"guardian_sets": {"4": ["`+guardian.Address()+`"]}}`)
	core := &wormhole.CoreState{Operator: "operator::1220", GuardianGovernance: "governance::1220", GovernanceContract: strings.Repeat("0", 64),
		GuardianSets: map[int64]wormhole.GuardianSet{3: {Keys: []string{guardian.Address()}}}}
	record := wormhole.Encode(core)
	template := record.ID
	template.PackageID = "ab"
	_, blob, err := contractblob.NewContract(contractblob.Draft{PackageName: "wormhole-core", TemplateID: template, Argument: record, CreatedAt: time.Unix(1, 0),
		Signatories: []string{core.Operator, core.GuardianGovernance}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, in         string
		args             []string
		verdict, message string
	}{
		{"without sets", "", []string{text}, "UNVERIFIED", ""},
		{"from standard input", " 0x" + text + "\n", []string{"-", "--guardian-sets", sets}, "VALID", ""},
		{"base64", "", []string{base64.StdEncoding.EncodeToString(vaa.Encode()), "--guardian-sets", sets}, "VALID", ""},
		{"by a CoreState", "", []string{text, "--core-state", base64.StdEncoding.EncodeToString(blob)}, "VALID", ""},
		{"expired", "", []string{text, "--guardian-sets", expired}, "INVALID", "guardian set has expired"},
		{"another set", "", []string{text, "--guardian-sets", other}, "INVALID", "unknown guardian set index"},
		{"truncated", "", []string{text[:100]}, "INVALID", "unexpected end of bytes"},
		{"version", "", []string{"02" + text[2:]}, "INVALID", "unsupported VAA version: 2"},
		{"changed", "", []string{text + "00", "--guardian-sets", sets}, "INVALID", "public key does not match guardian address at index 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			report, err := vaaJSON(t, test.in, test.args...)
			if (err != nil) != (test.verdict == "INVALID") || report["verdict"] != test.verdict || report["message"] != test.message {
				t.Errorf("%v, error %v", report, err)
			}
			for _, field := range []string{"digest", "guardian_set_index", "emitter_chain", "emitter_address", "sequence", "pub_keys"} {
				if _, ok := report[field]; !ok {
					t.Errorf("no field %s in %v", field, report)
				}
			}
			if test.verdict == "VALID" && report["sequence"] != "9223372036854775807" {
				t.Errorf("sequence %v", report["sequence"])
			}
		})
	}
	for name, args := range map[string][]string{
		"no VAA":             {"zz"},
		"no file":            {text, "--guardian-sets", filepath.Join(dir, "nothing")},
		"no JSON":            {text, "--guardian-sets", file("bad.json", "x")},
		"no sets":            {text, "--guardian-sets", file("none.json", "{}")},
		"no index":           {text, "--guardian-sets", file("index.json", `{"x": []}`)},
		"no address":         {text, "--guardian-sets", file("address.json", `{"3": ["ab"]}`)},
		"an empty set":       {text, "--guardian-sets", file("empty.json", `{"3": []}`)},
		"a blob of no state": {text, "--core-state", "0a"},
	} {
		if _, err := vaaJSON(t, "", args...); !errors.As(err, &configError{}) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out, err := command(t, "", "vaa", text); err != nil || !strings.Contains(out, vaa.Digest().String()) {
		t.Errorf("as text: %s, %v", out, err)
	}
}

func TestVerifyCommand(t *testing.T) {
	f, err := os.Open("../../internal/contractblob/testdata/recorded.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for rows := json.NewDecoder(z); rows.More(); {
		var row struct {
			Blob       []byte
			ContractID string
			TemplateID *struct{ PackageID, ModuleName, EntityName string }
		}
		if err := rows.Decode(&row); err != nil {
			t.Fatal(err)
		}
		if row.TemplateID == nil || seen[row.TemplateID.EntityName] || !strings.HasPrefix(row.TemplateID.ModuleName, "Wormhole.Core.") {
			continue
		}
		seen[row.TemplateID.EntityName] = true
		for in, args := range map[string][]string{
			"":                                  {base64.StdEncoding.EncodeToString(row.Blob)},
			hex.EncodeToString(row.Blob) + "\n": {"-"},
			string(row.Blob):                    {"-"},
			base64.URLEncoding.EncodeToString(row.Blob): {"-", "--contract-id", row.ContractID},
		} {
			out, err := command(t, in, append([]string{"verify", "--json"}, args...)...)
			var report map[string]any
			if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil {
				t.Fatalf("%v: %s", jsonErr, out)
			}
			if err != nil || report["contract_id"] != row.ContractID || report["contract_id_recomputed"] != true ||
				report["template_id"] != row.TemplateID.PackageID+":"+row.TemplateID.ModuleName+":"+row.TemplateID.EntityName ||
				report["package_name"] != "wormhole-core" || len(report["signatories"].([]any)) == 0 {
				t.Errorf("%v, error %v", report, err)
			}
			if payload, ok := report["payload"].(map[string]any); !ok || payload["operator"] == nil {
				t.Errorf("payload %v", report["payload"])
			}
		}
		blob := bytes.Clone(row.Blob)
		blob[len(blob)-10] ^= 1
		for name, args := range map[string][]string{
			"damaged":              {base64.StdEncoding.EncodeToString(blob)},
			"another contract":     {hex.EncodeToString(row.Blob), "--contract-id", "00" + strings.Repeat("ab", 68)},
			"a digest not covered": {hex.EncodeToString(row.Blob), "--digest", wantUncovered(row.TemplateID.EntityName)},
			"nothing":              {"00"},
		} {
			if args[len(args)-1] == "" {
				continue
			}
			if _, err := command(t, "", append([]string{"verify", "--json"}, args...)...); err == nil || errors.As(err, &configError{}) {
				t.Errorf("%s: %s: error %v", row.TemplateID.EntityName, name, err)
			}
		}
		if out, err := command(t, "", "verify", hex.EncodeToString(row.Blob)); err != nil || !strings.Contains(out, "not covered") || !strings.Contains(out, "discriminator") {
			t.Errorf("as text: %s, %v", out, err)
		}
	}
	if len(seen) < 5 {
		t.Errorf("templates %v", seen)
	}
	for _, args := range [][]string{{"verify", "!!"}, {"verify", ""}, {"verify", "00", "--digest", "ab"}} {
		if _, err := command(t, "", args...); !errors.As(err, &configError{}) {
			t.Errorf("%q: error %v", args, err)
		}
	}
}

// wantUncovered is a digest that a contract of the template does not cover, "" for a node, whose prefix may be empty.
func wantUncovered(template string) string {
	if template == "ReplayNode" {
		return ""
	}
	return strings.Repeat("5", 64)
}
