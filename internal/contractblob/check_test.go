package contractblob_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// aNode is a recorded replay node with some digests, read with its names.
func aNode(t testing.TB) *recording {
	for _, r := range recordings(t) {
		if r.labelled() && r.TemplateID.EntityName == "ReplayNode" && len(r.Blob) > 900 && len(r.Argument.Fields) == 5 {
			return r
		}
	}
	t.Fatal("no node among the recordings")
	return nil
}

// withField is the record with one field replaced.
func withField(r damlvalue.Record, at int, v damlvalue.Value) damlvalue.Record {
	r.Fields = slices.Clone(r.Fields)
	r.Fields[at].Value = v
	return r
}

func TestCheckComparesWithTheEvent(t *testing.T) {
	r := aNode(t)
	other := func() string { // another recorded node's id
		for _, o := range recordings(t) {
			if o.ContractID != "" && o.ContractID != r.ContractID {
				return o.ContractID
			}
		}
		return ""
	}()
	none := damlvalue.Field{Label: "later", Value: damlvalue.Optional{}}
	for _, c := range []struct {
		name   string
		change func(f *contractblob.Facts)
		want   contractblob.Result
		words  string
	}{
		{"nothing", func(*contractblob.Facts) {}, contractblob.Verified, ""},
		{"another contract id", func(f *contractblob.Facts) { f.ContractID = other }, contractblob.Mismatch, "contract id is " + other},
		{"upper-case contract id", func(f *contractblob.Facts) { f.ContractID = strings.ToUpper(f.ContractID) }, contractblob.Mismatch, "contract id"},
		{"another package", func(f *contractblob.Facts) { f.TemplateID.PackageID = "00" }, contractblob.Mismatch, "template id"},
		{"another template", func(f *contractblob.Facts) { f.TemplateID.Entity = "Node" }, contractblob.Mismatch, "template id"},
		{"another package name", func(f *contractblob.Facts) { f.PackageName = "wormhole" }, contractblob.Mismatch, "package name"},
		{"signatories in another order", func(f *contractblob.Facts) {
			f.Signatories = slices.Clone(f.Signatories)
			slices.Reverse(f.Signatories)
		}, contractblob.Verified, ""},
		{"a signatory less", func(f *contractblob.Facts) { f.Signatories = f.Signatories[1:] }, contractblob.Mismatch, "signatories"},
		{"an observer more", func(f *contractblob.Facts) { f.Observers = []string{"bob::1"} }, contractblob.Mismatch, "observers"},
		{"a microsecond later", func(f *contractblob.Facts) { f.CreatedAt = f.CreatedAt.Add(time.Microsecond) }, contractblob.Mismatch, "time of creation"},
		{"in another zone", func(f *contractblob.Facts) { f.CreatedAt = f.CreatedAt.In(time.FixedZone("", 3600)) }, contractblob.Verified, ""},
		{"another prefix", func(f *contractblob.Facts) { f.Argument = withField(f.Argument, 2, damlvalue.Text("f")) }, contractblob.Mismatch, "field 3: another Text"},
		{"another type", func(f *contractblob.Facts) { f.Argument = withField(f.Argument, 2, damlvalue.Int(1)) }, contractblob.Mismatch, "field 3: Int against Text"},
		{"a field less", func(f *contractblob.Facts) { f.Argument.Fields = f.Argument.Fields[:4] }, contractblob.Mismatch, "4 fields against 5"},
		{"a None more", func(f *contractblob.Facts) { f.Argument.Fields = append(slices.Clone(f.Argument.Fields), none) }, contractblob.Verified, ""},
		{"no value", func(f *contractblob.Facts) { f.Argument = withField(f.Argument, 2, nil) }, contractblob.Mismatch, "field 3: no value"},
		{"another label", func(f *contractblob.Facts) {
			f.Argument.Fields = slices.Clone(f.Argument.Fields)
			f.Argument.Fields[2].Label = "suffix"
		}, contractblob.Mismatch, "ends in"},
		{"another type's name", func(f *contractblob.Facts) { f.Argument.ID.Entity = "Node" }, contractblob.Mismatch, "ends in"},
		{"a label less", func(f *contractblob.Facts) {
			f.Argument.Fields = slices.Clone(f.Argument.Fields)
			f.Argument.Fields[2].Label = ""
		}, contractblob.Unverifiable, "label of field 3"},
		{"no names", func(f *contractblob.Facts) { f.Argument = unlabelled(f.Argument).(damlvalue.Record) }, contractblob.Unverifiable, "name"},
	} {
		facts := r.facts(t)
		c.change(&facts)
		result, err := contractblob.Check(r.Blob, facts, nil)
		if result != c.want {
			t.Errorf("%s: %v, %v; want %v", c.name, result, err, c.want)
		}
		if c.words == "" && err != nil || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.words)
		}
		if (result == contractblob.Mismatch) != errors.Is(err, contractblob.ErrMismatch) || (result == contractblob.Unverifiable) != errors.Is(err, contractblob.ErrUnverifiable) {
			t.Errorf("%s: %v with the error %v", c.name, result, err)
		}
	}
}

// An argument's content is private: words about a difference don't contain it.
func TestCheckKeepsArgumentsPrivate(t *testing.T) {
	r := aNode(t)
	facts := r.facts(t)
	facts.Argument = withField(facts.Argument, 2, damlvalue.Text("secret"))
	_, err := contractblob.Check(r.Blob, facts, nil)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestCheckBySchema(t *testing.T) {
	r := aNode(t)
	facts := r.facts(t)
	facts.Argument = unlabelled(facts.Argument).(damlvalue.Record)
	schemas := wormhole.Schemas("Wormhole.Core.Replay:ReplayNode")
	other := wormhole.Schemas("Wormhole.Core.State:CoreState")
	renamed := schemas[1].(damlvalue.RecordType)
	renamed.Fields = slices.Clone(renamed.Fields)
	renamed.Fields[2].Label = "head"
	for _, c := range []struct {
		name    string
		schemas []damlvalue.Type
		want    contractblob.Result
	}{
		{"all versions", schemas, contractblob.Verified},
		{"none", nil, contractblob.Unverifiable},
		{"none that fits", other, contractblob.Unverifiable},
		{"one that fits, of other names", []damlvalue.Type{renamed}, contractblob.Mismatch},
		{"the right one after a wrong one", []damlvalue.Type{renamed, schemas[1]}, contractblob.Verified},
	} {
		if result, err := contractblob.Check(r.Blob, facts, c.schemas); result != c.want {
			t.Errorf("%s: %v, %v; want %v", c.name, result, err, c.want)
		}
	}
}

func TestCheckOfBrokenBlobs(t *testing.T) {
	r := aNode(t)
	facts := r.facts(t)
	for _, c := range []struct {
		name string
		blob []byte
		want contractblob.Result
	}{
		{"empty", nil, contractblob.Mismatch},
		{"cut off", r.Blob[:len(r.Blob)-1], contractblob.Mismatch},
		{"unknown field", append(slices.Clone(r.Blob), 0x1a, 0), contractblob.Mismatch},
		{"unknown serialization version", bytes.Replace(r.Blob, []byte("2.1"), []byte("2.9"), 1), contractblob.Unverifiable},
		{"unknown version of the id", bytes.Replace(r.Blob, []byte{0xca, 0x12, 0x12, 0x20}, []byte{0xca, 0x13, 0x12, 0x20}, 1), contractblob.Unverifiable},
	} {
		if result, err := contractblob.Check(c.blob, facts, nil); result != c.want || err == nil {
			t.Errorf("%s: %v, %v; want %v", c.name, result, err, c.want)
		}
	}
}

// A blob whose fields are in another order is another text of the same contract.
func TestCheckOfReorderedBlob(t *testing.T) {
	r := aNode(t)
	// The first field of a blob is its version, 5 bytes.
	reordered := append(slices.Clone(r.Blob[5:]), r.Blob[:5]...)
	if result, err := contractblob.Check(reordered, r.facts(t), nil); result != contractblob.Verified {
		t.Errorf("%v, %v", result, err)
	}
}

func draft(t testing.TB) contractblob.Draft {
	r := aNode(t)
	facts := r.facts(t)
	return contractblob.Draft{
		Discriminator: [32]byte{1}, Salt: [32]byte{2},
		CreatedAt: facts.CreatedAt, PackageName: facts.PackageName, TemplateID: facts.TemplateID, Argument: facts.Argument,
		Signatories: facts.Signatories, Observers: facts.Observers,
	}
}

// Made of a recorded contract's parts, a contract is that contract, to the byte.
func TestNewContractIsTheRecordedOne(t *testing.T) {
	for _, r := range recordings(t) {
		if !r.labelled() {
			continue
		}
		recorded, err := contractblob.Decode(r.Blob)
		if err != nil {
			t.Fatal(err)
		}
		facts := r.facts(t)
		c, blob, err := contractblob.NewContract(contractblob.Draft{
			Discriminator: recorded.ContractID.Discriminator(), Salt: recorded.Salt,
			CreatedAt: facts.CreatedAt, PackageName: facts.PackageName, TemplateID: facts.TemplateID, Argument: facts.Argument,
			Signatories: facts.Signatories, Observers: facts.Observers,
		})
		if err != nil {
			t.Fatal(err)
		}
		if c.ContractID.String() != r.ContractID || !bytes.Equal(blob, r.Blob) {
			t.Errorf("%s: made %s\n%x\nwant\n%x", r.ContractID, c.ContractID, blob, r.Blob)
		}
	}
}

func TestNewContract(t *testing.T) {
	d := draft(t)
	d.Signatories = []string{"z::1", "a::1", "z::1"}
	d.Observers = []string{"z::1", "y::1", "b::1"}
	d.CreatedAt = time.Date(1950, 1, 1, 0, 0, 0, 1999, time.UTC)
	d.Argument.Fields = append(slices.Clone(d.Argument.Fields), damlvalue.Field{Label: "later", Value: damlvalue.Optional{}})
	c, blob, err := contractblob.NewContract(d)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Signatories, []string{"a::1", "z::1"}) || !slices.Equal(c.Observers, []string{"b::1", "y::1"}) || len(c.Argument.Fields) != 5 {
		t.Errorf("signatories %q, observers %q, %d fields", c.Signatories, c.Observers, len(c.Argument.Fields))
	}
	if want := time.Date(1950, 1, 1, 0, 0, 0, 1000, time.UTC); !c.CreatedTime().Equal(want) {
		t.Errorf("created at %v, want %v", c.CreatedTime(), want)
	}
	if c.ContractID.Version() != contractblob.V12 || c.ContractID.Discriminator() != d.Discriminator {
		t.Errorf("id %s", c.ContractID)
	}
	if result, err := contractblob.Check(blob, factsOf(c), nil); result != contractblob.Verified {
		t.Errorf("%v, %v", result, err)
	}
	if _, _, err := contractblob.NewContract(contractblob.Draft{}); err == nil {
		t.Error("a contract of nothing")
	}
	d.Argument = unlabelled(d.Argument).(damlvalue.Record)
	if _, _, err := contractblob.NewContract(d); !errors.Is(err, contractblob.ErrUnverifiable) {
		t.Errorf("a contract without names: %v", err)
	}
}

// Every part that the package comment says is covered is.
func TestRecomputeCovers(t *testing.T) {
	base, _, err := contractblob.NewContract(draft(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		covered bool
		change  func(c *contractblob.Contract)
	}{
		{"package name", true, func(c *contractblob.Contract) { c.PackageName += "x" }},
		{"module", true, func(c *contractblob.Contract) { c.TemplateID.Module += "x" }},
		{"entity", true, func(c *contractblob.Contract) { c.TemplateID.Entity += "x" }},
		{"signatories", true, func(c *contractblob.Contract) { c.Signatories = c.Signatories[:1] }},
		{"observers", true, func(c *contractblob.Contract) { c.Observers = []string{"b"} }},
		{"time", true, func(c *contractblob.Contract) { c.CreatedAt++ }},
		{"salt", true, func(c *contractblob.Contract) { c.Salt[31] ^= 1 }},
		{"argument", true, func(c *contractblob.Contract) { c.Argument = withField(c.Argument, 3, damlvalue.Int(7)) }},
		{"key", true, func(c *contractblob.Contract) {
			c.Key = &contractblob.Key{Value: damlvalue.Int(1), Maintainers: c.Signatories[:1]}
		}},
		{"package id", false, func(c *contractblob.Contract) { c.TemplateID.PackageID = "00" }},
		{"discriminator", false, func(c *contractblob.Contract) {
			raw := c.ContractID.Bytes()
			raw[1] ^= 1
			c.ContractID, _ = contractblob.ContractIDFromBytes(raw)
		}},
	} {
		changed := *base
		c.change(&changed)
		err := contractblob.Recompute(&changed, changed.Argument)
		if c.covered && !errors.Is(err, contractblob.ErrMismatch) || !c.covered && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := contractblob.Recompute(base, withField(base.Argument, 3, damlvalue.Int(7))); !errors.Is(err, contractblob.ErrMismatch) {
		t.Errorf("with the names of another argument: %v", err)
	}
	if err := contractblob.Recompute(base, nil); !errors.Is(err, contractblob.ErrUnverifiable) {
		t.Errorf("without names: %v", err)
	}
	ranked := withField(base.Argument, 3, damlvalue.Enum{ID: damlvalue.TypeName{Module: "M", Entity: "E"}, Constructor: "C", Rank: -1})
	changed := *base
	changed.Argument = ranked
	if err := contractblob.Recompute(&changed, ranked); !errors.Is(err, contractblob.ErrUnverifiable) {
		t.Errorf("without a rank: %v", err)
	}
}

// V11's hash is computed, so that a mismatch is seen; a match is no proof.
func TestV11(t *testing.T) {
	c, _, err := contractblob.NewContract(draft(t))
	if err != nil {
		t.Fatal(err)
	}
	raw := c.ContractID.Bytes()
	raw[34] = 0x11
	if c.ContractID, err = contractblob.ContractIDFromBytes(raw); err != nil {
		t.Fatal(err)
	}
	if err := contractblob.Recompute(c, nil); !errors.Is(err, contractblob.ErrMismatch) {
		t.Errorf("with V12's hash: %v", err)
	}
	suffix, err := contractblob.Suffix(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.ContractID, err = contractblob.ContractIDFromBytes(append(raw[:33:33], suffix[:]...)); err != nil {
		t.Fatal(err)
	}
	if err := contractblob.Recompute(c, nil); !errors.Is(err, contractblob.ErrUnverifiable) {
		t.Errorf("with its own hash: %v", err)
	}
	blob, err := contractblob.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	if result, err := contractblob.Check(blob, factsOf(c), nil); result != contractblob.Unverifiable {
		t.Errorf("check: %v, %v", result, err)
	}
}
