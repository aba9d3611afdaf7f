package contractblob_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// recording is one recorded blob with what its event said.
type recording struct {
	Scenario    string
	Blob        []byte
	ContractID  string
	TemplateID  *jsonName
	PackageName string
	Signatories []string
	Observers   []string
	CreatedAt   time.Time
	Argument    *jsonRecord
}

func (r *recording) facts(t testing.TB) contractblob.Facts {
	argument, err := r.Argument.value()
	if err != nil {
		t.Fatal(err)
	}
	return contractblob.Facts{
		ContractID: r.ContractID, TemplateID: r.TemplateID.value(), PackageName: r.PackageName,
		Signatories: r.Signatories, Observers: r.Observers, CreatedAt: r.CreatedAt, Argument: argument,
	}
}

// labelled reports whether the event came with names and labels.
func (r *recording) labelled() bool { return r.Argument != nil && r.Argument.RecordID != nil }

func readRows[T any](t testing.TB, file string) []*T {
	f, err := os.Open(file)
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
		if err := d.Decode(row); err == io.EOF {
			return rows
		} else if err != nil {
			t.Fatalf("%s: row %d: %v", file, len(rows)+1, err)
		}
		rows = append(rows, row)
	}
}

func recordings(t testing.TB) []*recording {
	return readRows[recording](t, "testdata/recorded.jsonl.gz")
}

// The Ledger API's values, as protojson writes them.
type (
	jsonName struct {
		PackageID  string `json:"packageId"`
		ModuleName string `json:"moduleName"`
		EntityName string `json:"entityName"`
	}
	jsonRecord struct {
		RecordID *jsonName `json:"recordId"`
		Fields   []struct {
			Label string
			Value jsonValue
		}
	}
	jsonValue struct {
		Record     *jsonRecord
		Party      *damlvalue.Party
		Text       *damlvalue.Text
		ContractID *damlvalue.ContractID
		Bool       *damlvalue.Bool
		Unit       *struct{}
		Int64      *string
		Timestamp  *string
		Optional   *struct{ Value *jsonValue }
		List       *struct{ Elements []jsonValue }
		GenMap     *struct {
			Entries []struct{ Key, Value jsonValue }
		}
	}
)

func (n *jsonName) value() damlvalue.TypeName {
	if n == nil {
		return damlvalue.TypeName{}
	}
	return damlvalue.TypeName{PackageID: n.PackageID, Module: n.ModuleName, Entity: n.EntityName}
}

func (r *jsonRecord) value() (damlvalue.Record, error) {
	out := damlvalue.Record{ID: r.RecordID.value()}
	for _, f := range r.Fields {
		v, err := f.Value.value()
		if err != nil {
			return out, err
		}
		out.Fields = append(out.Fields, damlvalue.Field{Label: f.Label, Value: v})
	}
	return out, nil
}

func (j *jsonValue) value() (damlvalue.Value, error) {
	switch {
	case j.Record != nil:
		return j.Record.value()
	case j.Party != nil:
		return *j.Party, nil
	case j.Text != nil:
		return *j.Text, nil
	case j.ContractID != nil:
		return *j.ContractID, nil
	case j.Bool != nil:
		return *j.Bool, nil
	case j.Unit != nil:
		return damlvalue.Unit{}, nil
	case j.Int64 != nil:
		n, err := strconv.ParseInt(*j.Int64, 10, 64)
		return damlvalue.Int(n), err
	case j.Timestamp != nil:
		n, err := strconv.ParseInt(*j.Timestamp, 10, 64)
		return damlvalue.Timestamp(n), err
	case j.Optional != nil:
		if j.Optional.Value == nil {
			return damlvalue.Optional{}, nil
		}
		v, err := j.Optional.Value.value()
		return damlvalue.Optional{Value: v}, err
	case j.List != nil:
		out := damlvalue.List{}
		for _, e := range j.List.Elements {
			v, err := e.value()
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case j.GenMap != nil:
		out := damlvalue.GenMap{}
		for _, e := range j.GenMap.Entries {
			k, err := e.Key.value()
			if err != nil {
				return nil, err
			}
			v, err := e.Value.value()
			if err != nil {
				return nil, err
			}
			out = append(out, damlvalue.GenMapEntry{Key: k, Value: v})
		}
		return out, nil
	default:
		return nil, fmt.Errorf("a kind of value that the recordings don't have")
	}
}

// recomputeBySchema labels a decoded contract along each known version of its template until its id recomputes.
func recomputeBySchema(c *contractblob.Contract) error {
	err := fmt.Errorf("%w: no schema", contractblob.ErrUnverifiable)
	for _, schema := range wormhole.Schemas(c.TemplateID.QualifiedName()) {
		typed, labelErr := damlvalue.Label(c.Argument, schema)
		if labelErr != nil {
			continue
		}
		if err = contractblob.Recompute(c, typed); err == nil {
			return nil
		}
	}
	return err
}

func TestRecordedBlobs(t *testing.T) {
	var all, byEvent, bySchema, checkedByEvent, checkedBySchema, events int
	templates := map[string]int{}
	for at, r := range recordings(t) {
		all++
		c, err := contractblob.Decode(r.Blob)
		if err != nil {
			t.Fatalf("%d, %s: %v", at, r.Scenario, err)
		}
		if c.SerializationVersion != contractblob.SerializationKeyless || c.ContractID.Version() != contractblob.V12 || c.Key != nil {
			t.Errorf("%d, %s: version %s, id %s, key %v", at, r.Scenario, c.SerializationVersion, c.ContractID.Version(), c.Key)
		}
		template := c.TemplateID.QualifiedName()
		templates[template]++
		again, err := contractblob.Encode(c)
		if err != nil || !bytes.Equal(again, r.Blob) {
			t.Errorf("%d, %s, %s: encoded again: %v\n got %x\nwant %x", at, r.Scenario, template, err, again, r.Blob)
		}
		schemas := wormhole.Schemas(template)
		// One recorded node is of a package that appended an Optional field and uses it: no schema has that field.
		known := len(schemas) > 0 && !(template == "Wormhole.Core.Replay:ReplayNode" && len(c.Argument.Fields) == 6 && damlvalue.Kind(c.Argument.Fields[5].Value) == "Optional")
		if known {
			if err := recomputeBySchema(c); err != nil {
				t.Errorf("%d, %s, %s: by schema: %v", at, r.Scenario, template, err)
			} else {
				bySchema++
			}
		}
		if r.Argument == nil {
			continue
		}
		events++
		facts := r.facts(t)
		if r.labelled() {
			if err := contractblob.Recompute(c, facts.Argument); err != nil {
				t.Errorf("%d, %s, %s: by event: %v", at, r.Scenario, template, err)
			} else {
				byEvent++
			}
			if result, err := contractblob.Check(r.Blob, facts, nil); result != contractblob.Verified || err != nil {
				t.Errorf("%d, %s, %s: check by event: %v, %v", at, r.Scenario, template, result, err)
			} else {
				checkedByEvent++
			}
		}
		facts.Argument = unlabelled(facts.Argument).(damlvalue.Record)
		want := contractblob.Verified
		if !known {
			want = contractblob.Unverifiable
		}
		if result, err := contractblob.Check(r.Blob, facts, schemas); result != want {
			t.Errorf("%d, %s, %s: check by schema: %v, %v", at, r.Scenario, template, result, err)
		} else if result == contractblob.Verified {
			checkedBySchema++
		}
	}
	t.Logf("%d blobs, %d with events; recomputed with an event's names %d, with schemas %d; checked %d and %d; templates %v",
		all, events, byEvent, bySchema, checkedByEvent, checkedBySchema, templates)
	if bySchema != 400 || checkedBySchema != 388 {
		t.Errorf("%d recomputed and %d checked with schemas, want 400 and 388", bySchema, checkedBySchema)
	}
	if all != 438 || events != 423 || byEvent != 406 || checkedByEvent != 406 {
		t.Errorf("%d blobs, %d with events, %d recomputed and %d checked with an event's names; want 438, 423, 406, 406", all, events, byEvent, checkedByEvent)
	}
}

// unlabelled removes every name, as a read without verbose does.
func unlabelled(v damlvalue.Value) damlvalue.Value {
	switch v := v.(type) {
	case damlvalue.Record:
		out := damlvalue.Record{}
		for _, f := range v.Fields {
			out.Fields = append(out.Fields, damlvalue.Field{Value: unlabelled(f.Value)})
		}
		return out
	case damlvalue.Optional:
		if v.Value == nil {
			return v
		}
		return damlvalue.Optional{Value: unlabelled(v.Value)}
	case damlvalue.List:
		out := damlvalue.List{}
		for _, e := range v {
			out = append(out, unlabelled(e))
		}
		return out
	case damlvalue.GenMap:
		out := damlvalue.GenMap{}
		for _, e := range v {
			out = append(out, damlvalue.GenMapEntry{Key: unlabelled(e.Key), Value: unlabelled(e.Value)})
		}
		return out
	default:
		return v
	}
}

func v10Blobs(t testing.TB) [][]byte {
	file, err := os.ReadFile("testdata/v10.b64")
	if err != nil {
		t.Fatal(err)
	}
	var blobs [][]byte
	for line := range strings.Lines(string(file)) {
		blob, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, blob)
	}
	return blobs
}

// A V10 blob is all that its id needs.
func TestV10(t *testing.T) {
	blobs := v10Blobs(t)
	if len(blobs) != 2 {
		t.Fatalf("%d blobs, want 2", len(blobs))
	}
	for at, blob := range blobs {
		c, err := contractblob.Decode(blob)
		if err != nil {
			t.Fatalf("%d: %v", at, err)
		}
		if got := c.ContractID.Version(); got != contractblob.V10 {
			t.Errorf("%d: version %v, want V10", at, got)
		}
		if err := contractblob.Recompute(c, nil); err != nil {
			t.Errorf("%d: %v", at, err)
		}
		again, err := contractblob.Encode(c)
		if err != nil || !bytes.Equal(again, blob) {
			t.Errorf("%d: encoded again: %v\n got %x\nwant %x", at, err, again, blob)
		}
		facts := factsOf(c)
		if result, err := contractblob.Check(blob, facts, nil); result != contractblob.Verified || err != nil {
			t.Errorf("%d: check: %v, %v", at, result, err)
		}
		c.Salt[0] ^= 1
		if err := contractblob.Recompute(c, nil); !errors.Is(err, contractblob.ErrMismatch) {
			t.Errorf("%d: with another salt: %v", at, err)
		}
	}
}

// factsOf is what an event would say of a contract.
func factsOf(c *contractblob.Contract) contractblob.Facts {
	return contractblob.Facts{
		ContractID: c.ContractID.String(), TemplateID: c.TemplateID, PackageName: c.PackageName,
		Signatories: c.Signatories, Observers: c.Observers, CreatedAt: c.CreatedTime(), Argument: c.Argument,
	}
}

// What a participant said about altered blobs, and what it means here.
func TestAlteredBlobs(t *testing.T) {
	type altered struct {
		Scenario string
		N        int
		Note     string
		Blob     []byte
		Verdict  string
	}
	seen := map[string]int{}
	for _, a := range readRows[altered](t, "testdata/altered.jsonl.gz") {
		place := fmt.Sprintf("%s, call %d, %s, %s", a.Scenario, a.N, a.Note, a.Verdict)
		seen[a.Verdict]++
		c, err := contractblob.Decode(a.Blob)
		switch a.Verdict {
		case "INVALID_ARGUMENT": // the participant could not decode it
			if !errors.Is(err, contractblob.ErrMalformed) && !errors.Is(err, contractblob.ErrUnsupported) {
				t.Errorf("%s: %v", place, err)
			}
		case "INTERPRETATION_UPGRADE_ERROR_AUTHENTICATION_FAILED", "INTERPRETATION_UPGRADE_ERROR_VALIDATION_FAILED":
			if err == nil {
				err = recomputeBySchema(c)
			}
			// An altered last byte can leave a version of the authentication data that is not known.
			if !errors.Is(err, contractblob.ErrMismatch) && !(strings.Contains(a.Note, "last byte") && errors.Is(err, contractblob.ErrUnsupported)) {
				t.Errorf("%s: %v", place, err)
			}
		case "CONTRACT_NOT_FOUND", "OK": // the discriminator, and the package id, are not authenticated
			if err == nil {
				err = recomputeBySchema(c)
			}
			if err != nil {
				t.Errorf("%s: %v", place, err)
			}
		default:
			t.Errorf("%s: what does this verdict mean?", place)
		}
	}
	t.Log(seen)
	if len(seen) != 5 {
		t.Errorf("verdicts %v, want 5 kinds", seen)
	}
}

// Every single bit of a blob is either covered, in that changing it gives an error or another id, or it lies in the package id or
// in the discriminator.
func TestFlippedBits(t *testing.T) {
	picked := map[string]*recording{}
	for _, r := range recordings(t) {
		if !r.labelled() {
			continue
		}
		// The first contract of each template that was read with its names, up to five.
		if e := r.TemplateID.EntityName; picked[e] == nil && len(picked) < 5 && len(wormhole.Schemas(r.TemplateID.value().QualifiedName())) > 0 {
			picked[e] = r
		}
	}
	if len(picked) != 5 {
		t.Fatalf("%d templates, want 5", len(picked))
	}
	for template, r := range picked {
		original, err := contractblob.Decode(r.Blob)
		if err != nil {
			t.Fatal(err)
		}
		discriminator := original.ContractID.Discriminator()
		uncovered := func(at int) bool {
			for _, part := range []string{string(discriminator[:]), original.TemplateID.PackageID} {
				from := bytes.Index(r.Blob, []byte(part))
				if from < 0 {
					t.Fatalf("%s: no %q in the blob", template, part)
				}
				if at >= from && at < from+len(part) {
					return true
				}
			}
			return false
		}
		facts := r.facts(t)
		var refused, mismatched, passed int
		for at := range r.Blob {
			for bit := range 8 {
				flipped := slices.Clone(r.Blob)
				flipped[at] ^= 1 << bit
				// The blob against its event is never right.
				if result, err := contractblob.Check(flipped, facts, nil); result == contractblob.Verified {
					t.Errorf("%s: byte %d, bit %d: checked: %v, %v", template, at, bit, result, err)
				}
				c, err := contractblob.Decode(flipped)
				if err != nil {
					refused++
					continue
				}
				if err := recomputeBySchema(c); err != nil {
					mismatched++
					continue
				}
				passed++
				if !uncovered(at) {
					t.Errorf("%s: byte %d, bit %d: passes", template, at, bit)
				}
			}
		}
		t.Logf("%s: %d bytes: of %d flips %d refused, %d with another id, %d not covered", template, len(r.Blob), 8*len(r.Blob), refused, mismatched, passed)
	}
}
