package client_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// recorded is a created event blob of a real participant with what its event said.
type recorded struct {
	Scenario    string
	Blob        []byte
	ContractID  string
	TemplateID  *struct{ PackageID, ModuleName, EntityName string }
	PackageName string
	Signatories []string
	Observers   []string
	CreatedAt   time.Time
}

func (r *recorded) template() client.Template {
	return client.Template(r.TemplateID.ModuleName + ":" + r.TemplateID.EntityName)
}

func readRows[T any](t testing.TB, file string) []*T {
	f, err := os.Open("../internal/contractblob/testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var rows []*T
	for d := json.NewDecoder(z); ; {
		row := new(T)
		if err := d.Decode(row); errors.Is(err, io.EOF) {
			return rows
		} else if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
}

func recordings(t testing.TB) (ofModel []*recorded) {
	for _, r := range readRows[recorded](t, "recorded.jsonl.gz") {
		if r.TemplateID != nil && strings.HasPrefix(r.TemplateID.ModuleName, "Wormhole.Core.") {
			ofModel = append(ofModel, r)
		}
	}
	return ofModel
}

// expected is what a recorded contract should be, with its own parties as anchors.
func (r *recorded) expected() client.Expected {
	e := client.Expected{ContractID: r.ContractID, Template: r.template(), PackageName: r.PackageName, PackageIDs: []string{r.TemplateID.PackageID}}
	c, err := contractblob.Decode(r.Blob)
	if err != nil {
		return e
	}
	payload, err := wormhole.Decode(c.TemplateID, c.Argument)
	if err != nil {
		return e
	}
	switch p := payload.(type) {
	case *wormhole.ReplayNode:
		e.Operators, e.Consumer = []string{p.Operator}, p.Consumer
		e.Digest, e.Held = p.Prefix.String()+strings.Repeat("5", 64-p.Prefix.Len()), client.HeldAbsent
		if p.Namespace.Present {
			e.Namespace = &p.Namespace.Value
		} else {
			e.WithoutNamespace = true
		}
	case *wormhole.CoreState:
		e.Operators, e.GuardianGovernance = []string{p.Operator}, p.GuardianGovernance
	case *wormhole.ReplayRootRegistry:
		e.Operators = []string{p.Operator}
	case *wormhole.EmitterRegistry:
		e.Operators = []string{p.Operator}
	case *wormhole.Emitter:
		e.Operators, e.Owner = []string{p.Operator}, p.Owner
	}
	return e
}

func TestVerifyEveryRecordedBlob(t *testing.T) {
	verified, unverifiable := 0, 0
	for _, r := range recordings(t) {
		report, err := client.Verify(r.Blob, r.expected())
		if err != nil && !report.Recomputed && report.Err(true) == nil {
			unverifiable++
			continue
		}
		if err != nil {
			t.Fatalf("%s %s: %v", r.Scenario, r.ContractID, err)
		}
		verified++
		slices.Sort(r.Signatories)
		if report.ContractID != r.ContractID || report.PackageName != r.PackageName || !slices.Equal(report.Signatories, r.Signatories) ||
			report.TemplateID != r.TemplateID.PackageID+":"+string(r.template()) || !report.CreatedAt.Equal(r.CreatedAt) {
			t.Errorf("%s: report %+v", r.ContractID, report)
		}
		if (r.template() == client.ReplayNode) != (report.Node != nil) || (r.template() == client.CoreState) != (report.CoreState != nil) {
			t.Errorf("%s: a %s has node %v and CoreState %v", r.ContractID, r.template(), report.Node, report.CoreState)
		}
		// What is read in one pass is what is read by way of values.
		if c, err := contractblob.Decode(r.Blob); err == nil && report.Node != nil {
			payload, err := wormhole.Decode(c.TemplateID, c.Argument)
			if err != nil {
				t.Fatal(err)
			}
			n := payload.(*wormhole.ReplayNode)
			if report.Node.Prefix != n.Prefix.String() || report.Node.Consumed != n.Consumed.Len() || report.Node.SplitThreshold != n.SplitThreshold {
				t.Errorf("%s: node %+v", r.ContractID, report.Node)
			}
			for digest := range n.Consumed.All() {
				held := r.expected()
				held.Digest, held.Held = digest.String(), client.HeldPresent
				if _, err := client.Verify(r.Blob, held); err != nil {
					t.Errorf("a digest that is held: %v", err)
				}
				held.Held = client.HeldAbsent
				if _, err := client.Verify(r.Blob, held); !errors.Is(err, client.ErrRefused) {
					t.Errorf("a digest that is held, called absent: %v", err)
				}
			}
		}
	}
	t.Logf("%d recorded contracts verify, %d can't be verified", verified, unverifiable)
	if verified < 300 {
		t.Errorf("%d recorded contracts verify", verified)
	}
}

// sample is 20 recorded blobs: all templates and sizes, nodes of every namespace and depth.
func sample(t testing.TB) []*recorded {
	var out []*recorded
	perTemplate := map[client.Template]int{}
	all := recordings(t)
	slices.SortStableFunc(all, func(a, b *recorded) int { return len(a.Blob)%97 - len(b.Blob)%97 })
	quota := map[client.Template]int{client.ReplayNode: 9, client.CoreState: 4, client.EmitterRegistry: 3, client.Emitter: 2, client.ReplayRootRegistry: 2}
	for _, r := range all {
		expected := r.expected()
		if report, err := client.Verify(r.Blob, expected); err != nil || !report.Recomputed {
			continue
		}
		if perTemplate[r.template()] < quota[r.template()] && (len(r.Blob) < 6000 || perTemplate[r.template()] == 0) {
			perTemplate[r.template()]++
			out = append(out, r)
		}
	}
	if len(out) != 20 {
		t.Fatalf("a sample of %d blobs: %v", len(out), perTemplate)
	}
	return out
}

// Every byte of a blob that is changed is caught at some depth, but for those that the documentation names: the package id, unless the
// accepted ids are listed, and the discriminator, unless the contract id is claimed.
func TestEveryChangedByteIsCaught(t *testing.T) {
	depths := map[client.Depth]int{}
	uncovered, tried := 0, 0
	for _, r := range sample(t) {
		strict := r.expected()
		loose := strict
		loose.ContractID, loose.PackageIDs = "", nil
		packageAt := strings.Index(string(r.Blob), r.TemplateID.PackageID)
		c, err := contractblob.Decode(r.Blob)
		if err != nil {
			t.Fatal(err)
		}
		discriminator := c.ContractID.Discriminator()
		discriminatorAt := strings.Index(string(r.Blob), string(discriminator[:]))
		for at := range r.Blob {
			documented := packageAt <= at && at < packageAt+len(r.TemplateID.PackageID) || discriminatorAt <= at && at < discriminatorAt+len(discriminator)
			for _, flip := range flips(at) {
				tried++
				changed := slices.Clone(r.Blob)
				changed[at] ^= flip
				// What is caught with less to go by is caught with more.
				report, err := client.Verify(changed, loose)
				if err == nil {
					uncovered++
					if !documented {
						t.Fatalf("%s %s: byte %d changed by %02x is not caught without a claimed id and a list of package ids, and no documentation says so", r.template(), r.ContractID, at, flip)
					}
					report, err = client.Verify(changed, strict)
				}
				if !errors.Is(err, client.ErrRefused) {
					t.Fatalf("%s %s: byte %d changed by %02x is not caught", r.template(), r.ContractID, at, flip)
				}
				for _, check := range report.Checks {
					if check.Result != client.Passed {
						depths[check.Depth]++
						break
					}
				}
			}
		}
	}
	t.Logf("%d changed bytes in 20 blobs, all caught: %v by depth; without a claimed contract id and a list of package ids %d are not, all of them in those two", tried, depths, uncovered)
	words := strings.Join((&client.Report{}).Uncovered(), "\n")
	for _, what := range []string{"package id", "discriminator", "synchronizer", "activeness"} {
		if !strings.Contains(words, what) {
			t.Errorf("what is not covered does not name the %s", what)
		}
	}
}

// flips are the changes tried on a byte: one bit, all bits and some, or all 255.
func flips(at int) []byte {
	if soak {
		all := make([]byte, 255)
		for i := range all {
			all[i] = byte(i + 1)
		}
		return all
	}
	return []byte{1 << (at % 8), 255, byte(at%253) + 1}
}

// altered are the blobs that were altered before they were submitted to a participant: what it refused for the blob, we refuse; what it
// accepted or refused for other reasons is documented.
func TestVerifyAlteredBlobs(t *testing.T) {
	type altered struct {
		Note string
		Blob []byte
	}
	rows := readRows[altered](t, "altered.jsonl.gz")
	if len(rows) == 0 {
		t.Fatal("no altered blobs")
	}
	for _, r := range rows {
		_, err := client.Verify(r.Blob, client.Expected{})
		uncovered := strings.Contains(r.Note, "package_id") || strings.Contains(r.Note, "package id") || strings.Contains(r.Note, "discriminator") || strings.Contains(r.Note, "changed contract id")
		if (err == nil) != uncovered {
			t.Errorf("%s: %v", r.Note, err)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	last := map[client.Template]*recorded{}
	var deep *recorded // a node whose prefix is not empty
	for _, r := range recordings(t) {
		last[r.template()] = r
		if e := r.expected(); r.template() == client.ReplayNode && e.Digest[0] != '5' {
			deep = r
		}
	}
	node, core, emitter := last[client.ReplayNode], last[client.CoreState], last[client.Emitter]
	other, digest := "other::1220", strings.Repeat("0", 64)
	for _, test := range []struct {
		name   string
		blob   *recorded
		change func(*client.Expected)
		check  string
	}{
		{"contract id", node, func(e *client.Expected) { e.ContractID = core.ContractID }, client.CheckContractID},
		{"template", core, func(e *client.Expected) { e.Template = client.ReplayNode }, client.CheckTemplate},
		{"package name", node, func(e *client.Expected) { e.PackageName = "wormhole-bore" }, client.CheckPackageName},
		{"package id", node, func(e *client.Expected) { e.PackageIDs = []string{"ab"} }, client.CheckPackageID},
		{"operator", node, func(e *client.Expected) { e.Operators = []string{other} }, client.CheckOperator},
		{"operator of a CoreState", core, func(e *client.Expected) { e.Operators = []string{other} }, client.CheckOperator},
		{"governance", core, func(e *client.Expected) { e.GuardianGovernance = other }, client.CheckGovernance},
		{"consumer", node, func(e *client.Expected) { e.Consumer = other }, client.CheckConsumer},
		{"namespace", node, func(e *client.Expected) { e.WithoutNamespace, e.Namespace = e.Namespace != nil, &other }, client.CheckNamespace},
		{"operator of a root registry", last[client.ReplayRootRegistry], func(e *client.Expected) { e.Operators = []string{other} }, client.CheckOperator},
		{"operator of an emitter registry", last[client.EmitterRegistry], func(e *client.Expected) { e.Operators = []string{other} }, client.CheckOperator},
		{"operator of an emitter", emitter, func(e *client.Expected) { e.Operators = []string{other} }, client.CheckOperator},
		{"owner", emitter, func(e *client.Expected) { e.Owner = other }, client.CheckOwner},
		// What does not apply is not as expected.
		{"no node, but a digest", core, func(e *client.Expected) { e.Template, e.Digest = client.ReplayNode, digest }, client.CheckCovers},
		{"a digest in a CoreState", core, func(e *client.Expected) { e.Digest, e.Held = digest, client.HeldPresent }, client.CheckPresent},
		{"a digest not in a CoreState", core, func(e *client.Expected) { e.Digest, e.Held = digest, client.HeldAbsent }, client.CheckAbsent},
		{"a CoreState's consumer", core, func(e *client.Expected) { e.Consumer = other }, client.CheckConsumer},
		{"a CoreState's namespace", core, func(e *client.Expected) { e.Namespace = &other }, client.CheckNamespace},
		{"a CoreState without namespace", core, func(e *client.Expected) { e.WithoutNamespace = true }, client.CheckNamespace},
		{"a node's governance", node, func(e *client.Expected) { e.GuardianGovernance = other }, client.CheckGovernance},
		{"a node's owner", node, func(e *client.Expected) { e.Owner = other }, client.CheckOwner},
		{"a digest absent from a node that does not cover it", deep, func(e *client.Expected) {
			e.Digest = "5" + e.Digest[1:]
		}, client.CheckAbsent},
	} {
		t.Run(test.name, func(t *testing.T) {
			expected := test.blob.expected()
			test.change(&expected)
			report, err := client.Verify(test.blob.Blob, expected)
			failed := ""
			for _, c := range report.Checks {
				if c.Result == client.Failed {
					failed += c.Name + ";"
				}
			}
			if !errors.Is(err, client.ErrRefused) || !strings.Contains(failed, test.check) {
				t.Errorf("error %v, failed checks %q", err, failed)
			}
		})
	}
	if _, err := client.Verify(nil, client.Expected{}); !errors.Is(err, client.ErrRefused) {
		t.Errorf("no blob: %v", err)
	}
	if _, err := client.Verify(node.Blob, client.Expected{Digest: "abc"}); !errors.Is(err, client.ErrRefused) {
		t.Errorf("a malformed digest: %v", err)
	}
	if _, err := client.Verify(node.Blob, client.Expected{Held: client.HeldPresent}); !errors.Is(err, client.ErrRefused) {
		t.Errorf("held without a digest: %v", err)
	}
}

// Anyone can make up a blob that recomputes: it passes, and the words about what is not covered say so.
func TestVerifyInvented(t *testing.T) {
	node := &wormhole.ReplayNode{Consumer: "app::1220", Operator: "operator::1220", SplitThreshold: 128}
	id, blob := invent(t, node, node.Consumer, node.Operator)
	report, err := client.Verify(blob, client.Expected{ContractID: id, Template: client.ReplayNode, PackageName: wormhole.PackageName,
		Operators: []string{node.Operator}, Consumer: node.Consumer, Digest: strings.Repeat("5", 64), Held: client.HeldAbsent})
	if err != nil || !report.Recomputed {
		t.Fatalf("an invented blob: %v, %+v", err, report.Checks)
	}
	if words := strings.Join(report.Uncovered(), "\n"); !strings.Contains(words, "anyone can invent a blob") {
		t.Errorf("what is not covered does not say so: %s", words)
	}
}

// invent makes up a contract as anyone can who knows its parties' names.
func invent(t testing.TB, p wormhole.Payload, signatories ...string) (id string, blob []byte) {
	t.Helper()
	record := wormhole.Encode(p)
	template := record.ID
	template.PackageID = strings.Repeat("ab", 32)
	contract, blob, err := contractblob.NewContract(contractblob.Draft{PackageName: wormhole.PackageName, TemplateID: template, Argument: record,
		CreatedAt: time.Unix(1, 0), Signatories: signatories})
	if err != nil {
		t.Fatal(err)
	}
	return contract.ContractID.String(), blob
}

func FuzzVerify(f *testing.F) {
	for _, r := range sample(f) {
		f.Add(r.Blob)
	}
	f.Fuzz(func(t *testing.T, blob []byte) {
		report, err := client.Verify(blob, client.Expected{Digest: strings.Repeat("5", 64), Held: client.HeldAbsent})
		if report == nil || (err == nil) != (report.Err(false) == nil) {
			t.Fatalf("report %+v, error %v", report, err)
		}
	})
}

// fullNode is a recorded node with 128 digests.
func fullNode(b *testing.B) *recorded {
	for _, r := range recordings(b) {
		if r.Scenario == "08-threshold-128" && r.template() == client.ReplayNode && len(r.Blob) > 10_000 {
			return r
		}
	}
	b.Fatal("no full node among the recordings")
	return nil
}

// The verification of a full node, against the SHA-256 of its bytes.
func BenchmarkVerify(b *testing.B) {
	node := fullNode(b)
	expected := node.expected()
	b.Run("sha256", func(b *testing.B) {
		b.SetBytes(int64(len(node.Blob)))
		for b.Loop() {
			sha256.Sum256(node.Blob)
		}
	})
	b.Run("full-node", func(b *testing.B) {
		b.SetBytes(int64(len(node.Blob)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := client.Verify(node.Blob, expected); err != nil {
				b.Fatal(err)
			}
		}
	})
}
