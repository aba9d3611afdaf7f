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
	"slices"
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

// unzipped is a file of package wormhole's test data.
func unzipped(t *testing.T, name string) (path string, text []byte) {
	t.Helper()
	zipped, err := os.Open("../../internal/wormhole/testdata/" + name + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer zipped.Close()
	z, err := gzip.NewReader(zipped)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, text
}

func TestVAACommandOnMainnetVAAs(t *testing.T) {
	sets, text := unzipped(t, "mainnet-vaas.json")
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

// The model's VAAs and what a participant and an off-ledger verifier say of them: the command says the same, in the ledger's words where these
// are about the VAA.
func TestVAACommandOnModelVAAs(t *testing.T) {
	file, text := unzipped(t, "model-vaas.json")
	var model struct {
		VAAs []struct {
			Name, Call, EncodedVAA, Expected string
			Verifies                         bool
			PubKeys                          [][2]any
		}
	}
	if err := json.Unmarshal(text, &model); err != nil {
		t.Fatal(err)
	}
	if len(model.VAAs) != 33 {
		t.Fatalf("%d VAAs", len(model.VAAs))
	}
	// What the ledger says of the keys that the caller brought, and not of the VAA.
	beside := []string{"missing public key", "public key does not match"}
	for _, v := range model.VAAs {
		report, err := vaaJSON(t, "", v.EncodedVAA, "--guardian-sets", file)
		if errors.As(err, &configError{}) {
			if v.Verifies {
				t.Errorf("%s: %v", v.Name, err)
			}
			continue
		}
		if (report["verdict"] == "VALID") != v.Verifies || (err == nil) != v.Verifies {
			t.Errorf("%s: %v, error %v; verifies: %t", v.Name, report, err, v.Verifies)
		}
		aside := slices.ContainsFunc(beside, func(words string) bool { return strings.Contains(v.Expected, words) })
		if !v.Verifies && !aside && report["message"] != v.Expected {
			t.Errorf("%s: %v, the ledger says %q", v.Name, report["message"], v.Expected)
		}
		t.Logf("%-30s %v %q; the ledger: %q", v.Name, report["verdict"], report["message"], v.Expected)
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
	draft := contractblob.Draft{PackageName: "wormhole-core", TemplateID: template, Argument: record, CreatedAt: time.Unix(1, 0),
		Signatories: []string{core.Operator, core.GuardianGovernance}}
	_, blob, err := contractblob.NewContract(draft)
	if err != nil {
		t.Fatal(err)
	}
	state := base64.StdEncoding.EncodeToString(blob)
	draft.Signatories = []string{core.Operator}
	_, puppet, err := contractblob.NewContract(draft)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(blob)
	damaged[len(damaged)/2] ^= 1
	for _, test := range []struct {
		name, in         string
		args             []string
		verdict, message string
	}{
		{"without sets", "", []string{text}, "UNVERIFIED", ""},
		{"from standard input", " 0x" + text + "\n", []string{"-", "--guardian-sets", sets}, "VALID", ""},
		{"base64", "", []string{base64.StdEncoding.EncodeToString(vaa.Encode()), "--guardian-sets", sets}, "VALID", ""},
		{"by a CoreState", "", []string{text, "--core-state", state}, "VALID", ""},
		{"by the CoreState of known parties", "", []string{text, "--core-state", state, "--operator", core.Operator, "--guardian-governance", core.GuardianGovernance}, "VALID", ""},
		{"expired", "", []string{text, "--guardian-sets", expired}, "INVALID", "guardian set has expired"},
		{"another set", "", []string{text, "--guardian-sets", other}, "INVALID", "unknown guardian set index"},
		{"truncated", "", []string{text[:100]}, "INVALID", "unexpected end of bytes"},
		{"version", "", []string{"02" + text[2:]}, "INVALID", "unsupported VAA version: 2"},
		{"changed", "", []string{text + "00", "--guardian-sets", sets}, "INVALID", "invalid signature for guardian index 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			report, err := vaaJSON(t, test.in, test.args...)
			if (err != nil) != (test.verdict == "INVALID") || report["verdict"] != test.verdict || report["message"] != test.message {
				t.Errorf("%v, error %v", report, err)
			}
			// What was not read is not there.
			read := test.name != "truncated" && test.name != "version"
			for _, field := range []string{"digest", "guardian_set_index", "emitter_chain", "emitter_address", "sequence", "pub_keys", "rests_on"} {
				if _, ok := report[field]; ok != read {
					t.Errorf("field %s is there: %t, in %v", field, ok, report)
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
		"a damaged blob":     {text, "--core-state", base64.StdEncoding.EncodeToString(damaged)},
		"a puppet":           {text, "--core-state", base64.StdEncoding.EncodeToString(puppet)},
		"another operator":   {text, "--core-state", state, "--operator", "other::1220"},
		"another governance": {text, "--core-state", state, "--guardian-governance", "other::1220"},
		"a party for a file": {text, "--guardian-sets", sets, "--operator", core.Operator},
		"an empty operator":  {text, "--core-state", state, "--operator", ""},
	} {
		if _, err := vaaJSON(t, "", args...); !errors.As(err, &configError{}) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for words, args := range map[string][]string{
		"nothing was compared with":  {},
		"one was compared":           {"--operator", core.Operator},
		"which are those expected":   {"--operator", core.Operator, "--guardian-governance", core.GuardianGovernance},
		"the blob does not show":     {},
		"its contract id recomputes": {},
	} {
		out, err := command(t, "", append([]string{"vaa", text, "--core-state", state}, args...)...)
		if err != nil || !strings.Contains(out, words) {
			t.Errorf("%q: %v: %s; want %q in it", args, err, out, words)
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
			"another operator":     {hex.EncodeToString(row.Blob), "--operator", "other::1220"},
			"another package":      {hex.EncodeToString(row.Blob), "--package-name", "wormhole-bore"},
			"another package id":   {hex.EncodeToString(row.Blob), "--package-id", strings.Repeat("ab", 32)},
			"another governance":   {hex.EncodeToString(row.Blob), "--guardian-governance", "other::1220"},
			"another consumer":     {hex.EncodeToString(row.Blob), "--consumer", "other::1220"},
			"another namespace":    {hex.EncodeToString(row.Blob), "--namespace", "of nobody"},
			"another owner":        {hex.EncodeToString(row.Blob), "--owner", "other::1220"},
		} {
			if args[len(args)-1] == "" {
				continue
			}
			if _, err := command(t, "", append([]string{"verify", "--json"}, args...)...); err == nil || errors.As(err, &configError{}) {
				t.Errorf("%s: %s: error %v", row.TemplateID.EntityName, name, err)
			}
		}
		for _, name := range []string{row.TemplateID.EntityName, row.TemplateID.ModuleName + ":" + row.TemplateID.EntityName} {
			args := []string{"verify", hex.EncodeToString(row.Blob), "--package-name", "wormhole-core", "--package-id", row.TemplateID.PackageID, "--template", name}
			if out, err := command(t, "", args...); err != nil {
				if templates[row.TemplateID.EntityName] != "" || !errors.As(err, &configError{}) {
					t.Errorf("as expected: %s, %v", out, err)
				}
			}
		}
		if out, err := command(t, "", "verify", hex.EncodeToString(row.Blob)); err != nil || !strings.Contains(out, "not covered") || !strings.Contains(out, "discriminator") || !strings.Contains(out, "anyone can invent") {
			t.Errorf("as text: %s, %v", out, err)
		}
	}
	if len(seen) < 5 {
		t.Errorf("templates %v", seen)
	}
	for _, args := range [][]string{{"verify", "!!"}, {"verify", ""}, {"verify", "00", "--digest", "ab"}, {"verify", "00", "--digest", ""}, {"verify", "00", "--operator", ""},
		{"verify", "00", "--template", "Node"}, {"verify", "00", "--template", "Other:CoreState"}} {
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
