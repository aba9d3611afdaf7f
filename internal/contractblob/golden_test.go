package contractblob

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Short names for the many small values below.
type (
	i  = damlvalue.Int
	n  = damlvalue.Numeric
	b  = damlvalue.Bool
	s  = damlvalue.Text
	o  = damlvalue.Optional
	l  = damlvalue.List
	tm = damlvalue.TextMap
	te = damlvalue.TextMapEntry
	gm = damlvalue.GenMap
	ge = damlvalue.GenMapEntry
)

func name(module, entity string) damlvalue.TypeName {
	return damlvalue.TypeName{PackageID: "any", Module: module, Entity: entity}
}

func record(id damlvalue.TypeName, labelsAndValues ...any) damlvalue.Record {
	r := damlvalue.Record{ID: id}
	for at := 0; at < len(labelsAndValues); at += 2 {
		r.Fields = append(r.Fields, damlvalue.Field{Label: labelsAndValues[at].(string), Value: labelsAndValues[at+1].(damlvalue.Value)})
	}
	return r
}

func date(t *testing.T, text string) damlvalue.Date {
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		t.Fatal(err)
	}
	return damlvalue.Date(at.Unix() / 86400)
}

func timestamp(t *testing.T, text string) damlvalue.Timestamp {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return damlvalue.Timestamp(at.UnixMicro())
}

// goldenValues are the values of testdata/golden.tsv, in its order.
func goldenValues(t *testing.T) []damlvalue.Value {
	variant := func(entity, constructor string, rank int, v b) damlvalue.Variant {
		return damlvalue.Variant{ID: name("Mod", entity), Constructor: constructor, Rank: rank, Value: v}
	}
	enum := func(entity, constructor string, rank int) damlvalue.Enum {
		return damlvalue.Enum{ID: name("Mod", entity), Constructor: constructor, Rank: rank}
	}
	pair := func(entity string, first, second b) damlvalue.Record {
		return record(name("Mod", entity), "_1", first, "_2", second)
	}
	return []damlvalue.Value{
		damlvalue.Unit{}, b(true), b(false), i(-1), i(0), i(1),
		n("-10000.0000000000"), n("0.0000000000"), n("10000.0000000000"), n("-10000."), n("0."), n("10000."),
		date(t, "1970-01-01"), date(t, "1969-07-21"), date(t, "2019-12-16"),
		timestamp(t, "1970-01-01T00:00:00Z"), timestamp(t, "1969-07-21T02:56:15Z"), timestamp(t, "2019-12-16T11:17:54.940779Z"),
		s(""), s("someText"), s("a¶‱😂"), damlvalue.Party("alice"), damlvalue.Party("bob"),
		damlvalue.ContractID("0007e7b5534931dfca8e1b485c105bae4e10808bd13ddc8e897f258015f9d921c5"),
		damlvalue.ContractID("0059b59ad7a6b6066e77b91ced54b8282f0e24e7089944685cb8f22f32fcbc4e1b"),
		o{}, o{Value: b(false)}, o{Value: b(true)}, o{Value: o{}}, o{Value: o{Value: b(false)}},
		l{}, l{b(false)}, l{b(true)}, l{b(false), b(false)}, l{b(false), b(true)}, l{b(true), b(false)},
		tm{}, tm{te{Key: "a", Value: b(false)}}, tm{te{Key: "a", Value: b(true)}}, tm{te{Key: "b", Value: b(false)}},
		tm{te{Key: "a", Value: b(false)}, te{Key: "b", Value: b(false)}}, tm{te{Key: "a", Value: b(true)}, te{Key: "b", Value: b(false)}},
		tm{te{Key: "a", Value: b(false)}, te{Key: "b", Value: b(true)}}, tm{te{Key: "a", Value: b(false)}, te{Key: "c", Value: b(false)}},
		gm{}, gm{ge{Key: s("a"), Value: b(false)}}, gm{ge{Key: s("a"), Value: b(true)}}, gm{ge{Key: s("b"), Value: b(false)}},
		gm{ge{Key: s("a"), Value: b(false)}, ge{Key: s("b"), Value: b(false)}}, gm{ge{Key: s("a"), Value: b(true)}, ge{Key: s("b"), Value: b(false)}},
		gm{ge{Key: s("a"), Value: b(false)}, ge{Key: s("b"), Value: b(true)}}, gm{ge{Key: s("a"), Value: b(false)}, ge{Key: s("c"), Value: b(false)}},
		enum("Color", "Red", 0), enum("Color", "Green", 1), enum("ColorBis", "Green", 1),
		record(name("Mod", "Unit")), record(name("Mod", "UnitBis")),
		pair("Tuple", false, false), pair("Tuple", true, false), pair("Tuple", false, true), pair("TupleBis", false, false),
		variant("Either", "Left", 0, false), variant("Either", "Left", 0, true), variant("Either", "Right", 1, false), variant("EitherBis", "Left", 0, false),
		record(name("Module", "ComplexRecord"),
			"fInt0", i(0), "fInt1", i(123456), "fInt2", i(-1), "fNumeric0", n("0.0000000000"), "fNumeric1", n("0.3333333333"),
			"fBool0", b(true), "fBool1", b(false), "fDate0", damlvalue.Date(0), "fDate1", damlvalue.Date(123456),
			"fTime0", damlvalue.Timestamp(0), "fTime1", damlvalue.Timestamp(123456), "fText0", s(""), "fText1", s("abcd-äöü€"),
			"fParty", damlvalue.Party("Alice"), "fUnit", damlvalue.Unit{}, "fOpt0", o{}, "fOpt1", o{Value: s("Some")},
			"fList", l{s("A"), s("B"), s("C")},
			"fVariant", damlvalue.Variant{ID: name("Module", "Variant"), Constructor: "VariantCons", Rank: 0, Value: i(0)},
			"fRecord", record(name("Module", "Record"), "field1", s("field1"), "field2", s("field2")),
			"fTextMap", tm{te{Key: "keyA", Value: i(0)}, te{Key: "keyB", Value: i(1)}},
			"fGenMap", gm{ge{Key: s("keyA"), Value: i(0)}, ge{Key: s("keyB"), Value: i(1)}},
		),
	}
}

func TestGoldenHashes(t *testing.T) {
	file, err := os.ReadFile("testdata/golden.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimRight(string(file), "\n"), "\n")[1:]
	values := goldenValues(t)
	if len(rows) != len(values) {
		t.Fatalf("%d rows, %d values", len(rows), len(values))
	}
	bare := func(encoding byte, hash func(d *digester) error) string {
		d := newDigester()
		d.byte(encoding)
		d.byte(1)
		if err := hash(d); err != nil {
			t.Fatal(err)
		}
		sum := d.sum()
		return hex.EncodeToString(sum[:])
	}
	for at, row := range rows {
		v, columns := values[at], strings.Split(row, "\t")
		template := name("module", "name")
		if at == len(rows)-1 {
			template = name("Module", "Template")
		}
		typed, err := contractHash(V12, &Contract{PackageName: "package-name-0", TemplateID: template}, v)
		if err != nil {
			t.Fatalf("%d, %#v: %v", at, v, err)
		}
		got := []string{
			hex.EncodeToString(typed[:]),
			bare(encodingLegacy, func(d *digester) error { return d.legacy(v) }),
			bare(encodingUpgradeFriendly, func(d *digester) error { return d.upgradeFriendly(v) }),
			bare(encodingUpgradeFriendly, func(d *digester) error {
				return d.upgradeFriendly(damlvalue.Record{Fields: []damlvalue.Field{{Value: v}}})
			}),
		}
		for column, want := range columns {
			if want != "" && got[column] != want {
				t.Errorf("%d, %#v: column %d: hash %s, want %s", at, v, column, got[column], want)
			}
		}
	}
}
