package contractblob_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// bySealed and byValues recompute a blob's id by a schema in the two ways that there are: from the bytes, and by way of values.
func bySealed(blob []byte, schema damlvalue.Type, visit func(contractblob.Leaf)) error {
	s, err := contractblob.Open(blob)
	if err != nil {
		return err
	}
	return s.Recompute(schema, visit)
}

func byValues(blob []byte, schema damlvalue.Type) error {
	c, err := contractblob.Decode(blob)
	if err != nil {
		return err
	}
	typed, err := damlvalue.Label(c.Argument, schema)
	if err != nil {
		return err
	}
	return contractblob.Recompute(c, typed)
}

// verdict is what an error says, in the two ways' common words.
func verdict(err error) string {
	for _, kind := range []error{contractblob.ErrUnsupported, contractblob.ErrMalformed, damlvalue.ErrShape, contractblob.ErrMismatch} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return fmt.Sprint(err)
}

func TestSealedRecomputesAsValuesDo(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	recomputed := 0
	for _, r := range recordings(t) {
		c, err := contractblob.Decode(r.Blob)
		if err != nil {
			t.Fatal(err)
		}
		for _, schema := range wormhole.Schemas(c.TemplateID.QualifiedName()) {
			got, want := bySealed(r.Blob, schema, nil), byValues(r.Blob, schema)
			if verdict(got) != verdict(want) {
				t.Fatalf("%s %s: from bytes: %v, by values: %v", r.Scenario, c.ContractID, got, want)
			}
			if got == nil {
				recomputed++
			}
			// Damaged, too, both say the same; which of two faults they meet first may differ.
			for range 40 {
				damaged := append([]byte{}, r.Blob...)
				damaged[random.IntN(len(damaged))] ^= 1 << random.IntN(8)
				got, want := bySealed(damaged, schema, nil), byValues(damaged, schema)
				if (got == nil) != (want == nil) {
					t.Fatalf("%s %s, damaged: from bytes: %v, by values: %v", r.Scenario, c.ContractID, got, want)
				}
			}
		}
	}
	if recomputed < 300 {
		t.Errorf("%d blobs recomputed, want most of the recordings", recomputed)
	}
}

// everything is a type with every kind of value.
var everything = damlvalue.RecordType{Name: damlvalue.TypeName{Module: "M", Entity: "All"}, Fields: []damlvalue.FieldType{
	{Label: "int", Type: damlvalue.IntType}, {Label: "text", Type: damlvalue.TextType}, {Label: "party", Type: damlvalue.PartyType},
	{Label: "cid", Type: damlvalue.ContractIDType}, {Label: "bool", Type: damlvalue.BoolType}, {Label: "unit", Type: damlvalue.UnitType},
	{Label: "time", Type: damlvalue.TimestampType}, {Label: "date", Type: damlvalue.DateType}, {Label: "numeric", Type: damlvalue.NumericType},
	{Label: "none", Type: damlvalue.OptionalType{Elem: damlvalue.IntType}},
	{Label: "some", Type: damlvalue.OptionalType{Elem: damlvalue.OptionalType{Elem: damlvalue.IntType}}},
	{Label: "list", Type: damlvalue.ListType{Elem: damlvalue.TextType}}, {Label: "texts", Type: damlvalue.TextMapType{Value: damlvalue.IntType}},
	{Label: "map", Type: damlvalue.GenMapType{Key: damlvalue.IntType, Value: damlvalue.ListType{Elem: damlvalue.BoolType}}},
	{Label: "variant", Type: damlvalue.VariantType{Name: damlvalue.TypeName{Module: "M", Entity: "V"}, Constructors: []damlvalue.FieldType{{Label: "A", Type: damlvalue.UnitType}, {Label: "B", Type: damlvalue.IntType}}}},
	{Label: "enum", Type: damlvalue.EnumType{Name: damlvalue.TypeName{Module: "M", Entity: "E"}, Constructors: []string{"X", "Y"}}},
	{Label: "last", Type: damlvalue.OptionalType{Elem: damlvalue.IntType}}, {Label: "later", Type: damlvalue.OptionalType{Elem: damlvalue.IntType}},
}}

func values(list ...damlvalue.Value) damlvalue.Record {
	var r damlvalue.Record
	for _, v := range list {
		r.Fields = append(r.Fields, damlvalue.Field{Value: v})
	}
	return r
}

func TestSealedRecomputesEveryKind(t *testing.T) {
	bare := values(damlvalue.Int(-5), damlvalue.Text("é"), damlvalue.Party("p::1"), damlvalue.ContractID("00"+strings.Repeat("ab", 32)), damlvalue.Bool(true),
		damlvalue.Unit{}, damlvalue.Timestamp(-1), damlvalue.Date(-3), damlvalue.Numeric("-1.50"), damlvalue.Optional{}, damlvalue.Optional{Value: damlvalue.Optional{}},
		damlvalue.List{damlvalue.Text(""), damlvalue.Text("b")}, damlvalue.TextMap{{Key: "", Value: damlvalue.Int(1)}, {Key: "k", Value: damlvalue.Int(2)}},
		damlvalue.GenMap{{Key: damlvalue.Int(1), Value: damlvalue.List{}}, {Key: damlvalue.Int(2), Value: damlvalue.List{damlvalue.Bool(false)}}},
		damlvalue.Variant{Constructor: "B", Rank: -1, Value: damlvalue.Int(7)}, damlvalue.Enum{Constructor: "Y", Rank: -1},
	)
	typed, err := damlvalue.Label(bare, everything)
	if err != nil {
		t.Fatal(err)
	}
	_, blob, err := contractblob.NewContract(contractblob.Draft{PackageName: "p", TemplateID: damlvalue.TypeName{PackageID: "aa", Module: "M", Entity: "All"},
		Argument: typed.(damlvalue.Record), Signatories: []string{"s::1"}})
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	if err := bySealed(blob, everything, func(l contractblob.Leaf) {
		fields = append(fields, fmt.Sprintf("%s %s %q %d", l.Field, l.Kind, l.Bytes, l.Number))
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{`int Int "" -5`, `text Text "é" 0`, `party Party "p::1" 0`, fmt.Sprintf("cid ContractId %q 0", "\x00"+strings.Repeat("\xab", 32)),
		`bool Bool "" 1`, `time Time "" -1`, `date Date "" -3`, `list Text "" 0`, `list Text "b" 0`, `map Int "" 1`, `map Int "" 2`, `map Bool "" 0`}
	if d := cmp.Diff(want, fields); d != "" {
		t.Errorf("leaves (-want +got):\n%s", d)
	}
	// Every byte turned: the same answer from the bytes as by way of values.
	for i := range blob {
		for bit := range 8 {
			damaged := append([]byte{}, blob...)
			damaged[i] ^= 1 << bit
			if got, want := bySealed(damaged, everything, nil), byValues(damaged, everything); (got == nil) != (want == nil) {
				t.Fatalf("byte %d, bit %d turned: from bytes: %v, by values: %v", i, bit, got, want)
			}
		}
	}
}

// Sets of texts, which nearly all of a replay node is, are hashed by a way of their own. Of every length of text, and with a character that is
// no text or not one byte at every place, it says what the way by values says.
func TestSealedTextSets(t *testing.T) {
	schema := damlvalue.RecordType{Name: damlvalue.TypeName{Module: "M", Entity: "S"}, Fields: []damlvalue.FieldType{
		{Label: "set", Type: damlvalue.GenMapType{Key: damlvalue.TextType, Value: damlvalue.UnitType}},
	}}
	for n := range 130 {
		text := strings.Repeat("0123456789abcdef", 9)[:n]
		set := damlvalue.GenMap{{Key: damlvalue.Text(text), Value: damlvalue.Unit{}}}
		for _, more := range []string{"~" + text, "\u007f", "é" + text} {
			set = append(set, damlvalue.GenMapEntry{Key: damlvalue.Text(more), Value: damlvalue.Unit{}})
		}
		typed, err := damlvalue.Label(values(set), schema)
		if err != nil {
			t.Fatal(err)
		}
		_, blob, err := contractblob.NewContract(contractblob.Draft{PackageName: "p", TemplateID: damlvalue.TypeName{PackageID: "aa", Module: "M", Entity: "S"},
			Argument: typed.(damlvalue.Record), Signatories: []string{"s::1"}})
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		if err := bySealed(blob, schema, func(l contractblob.Leaf) { texts = append(texts, string(l.Bytes)) }); err != nil {
			t.Fatalf("texts of %d bytes: %v", n, err)
		}
		if d := cmp.Diff([]string{text, "~" + text, "\u007f", "é" + text}, texts); d != "" {
			t.Fatalf("texts of %d bytes (-want +got):\n%s", n, d)
		}
		if n < 8 {
			continue // not to be found in the blob for sure
		}
		at := bytes.Index(blob, []byte(text))
		for i := at - 6; i < at+n+4; i++ {
			for _, b := range []byte{0, 1, 0x7f, 0x80, 0xc3, 0xff, blob[i] + 1} {
				damaged := append([]byte{}, blob...)
				damaged[i] = b
				got, want := bySealed(damaged, schema, nil), byValues(damaged, schema)
				inText := i >= at && i < at+n // elsewhere, which of two faults they meet first may differ
				if (got == nil) != (want == nil) || inText && verdict(got) != verdict(want) {
					t.Fatalf("texts of %d bytes, %#x at place %d: from bytes: %v, by values: %v", n, b, i-at, got, want)
				}
			}
		}
	}
}

// Trailing None fields that are written all the same don't change the hash.
func TestSealedIgnoresTrailingNones(t *testing.T) {
	schema := damlvalue.RecordType{Name: damlvalue.TypeName{Module: "M", Entity: "T"}, Fields: []damlvalue.FieldType{
		{Label: "a", Type: damlvalue.OptionalType{Elem: damlvalue.IntType}}, {Label: "b", Type: damlvalue.IntType}, {Label: "c", Type: damlvalue.OptionalType{Elem: damlvalue.IntType}},
	}}
	typed, err := damlvalue.Label(values(damlvalue.Optional{}, damlvalue.Int(1), damlvalue.Optional{}), schema)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := contractblob.NewContract(contractblob.Draft{PackageName: "p", TemplateID: damlvalue.TypeName{PackageID: "aa", Module: "M", Entity: "T"},
		Argument: typed.(damlvalue.Record), Signatories: []string{"s::1"}})
	if err != nil {
		t.Fatal(err)
	}
	c.Argument = typed.(damlvalue.Record) // with its trailing None, as no participant writes it
	blob, err := contractblob.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := bySealed(blob, schema, nil); err != nil {
		t.Error(err)
	}
	if err := bySealed(blob, damlvalue.RecordType{Name: schema.Name, Fields: schema.Fields[:2]}, nil); !errors.Is(err, damlvalue.ErrShape) {
		t.Errorf("of a shorter type: %v", err)
	}
}

func FuzzSealedRecompute(f *testing.F) {
	for i, r := range recordings(f) {
		if i%40 == 0 {
			f.Add(r.Blob)
		}
	}
	f.Fuzz(func(t *testing.T, blob []byte) {
		s, err := contractblob.Open(blob)
		if err != nil {
			return
		}
		for _, schema := range wormhole.Schemas(s.Contract().TemplateID.QualifiedName()) {
			got, want := bySealed(blob, schema, func(contractblob.Leaf) {}), byValues(blob, schema)
			if (got == nil) != (want == nil) && s.Contract().ContractID.Version() == contractblob.V12 {
				t.Fatalf("from bytes: %v, by values: %v", got, want)
			}
		}
	})
}

// What a wallet does with a full node that a service gives it.
func BenchmarkSealedRecompute(b *testing.B) {
	blob := fullNode(b).Blob
	s, err := contractblob.Open(blob)
	if err != nil {
		b.Fatal(err)
	}
	schemas := wormhole.Schemas(s.Contract().TemplateID.QualifiedName())
	b.SetBytes(int64(len(blob)))
	b.ReportAllocs()
	for b.Loop() {
		s, err := contractblob.Open(blob)
		if err != nil {
			b.Fatal(err)
		}
		for _, schema := range schemas {
			if err = s.Recompute(schema, nil); err == nil {
				break
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
