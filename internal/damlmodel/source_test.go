package damlmodel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

const shop = `-- | A comment, "with quotes".
{- and a longer
   one -}
module Shop.Main where

import DA.Map (Map)
import DA.Map qualified as Map
import DA.Set (Set)
import Shop.Types
import Shop.Other (Cash, Coin(..))

type Name = Text
type Names = [Name]

data Line = Line
  with
    name : Name -- ^ what it is
    count : Int
  deriving (Eq, Show)

data Colour = Red | Green
  deriving (Eq, Show)

template Order
  with
    buyer : Party
    lines : [Line]
    index : Map Int (Optional Line)
    tags : Set Text
    paid : Optional Cash
    colour : Colour
  where
    signatory buyer
    observer seller
      where seller = buyer
    ensure length lines > 0

    -- | It closes.
    choice Close : (ContractId Order, [Item])
      with
        at : Time
        names : Names
      controller buyer
      do
        create this with
          lines = [] -- choice Fake : Text

    nonconsuming choice Look : ()
      controller buyer
      do
        pure ()

total : Order -> Int
total order = sum [line.count | line <- order.lines]
`

const types = `module Shop.Types where

data Item = Item with
    key : Text
    by : Party
`

const other = "module Shop.Other where\n\ndata Cash = Cash\n  with\n    amount : Decimal\n\ndata Coin = Coin with\n    v : Int\n"

func TestFromSources(t *testing.T) {
	got, err := FromSources(map[string]string{"shop": shop, "types": types}, map[string]string{"other": other})
	if err != nil {
		t.Fatal(err)
	}
	closing := []Field{{"at", "Time"}, {"names", "[Text]"}}
	want := Model{
		Records: map[string][]Field{
			"Shop.Main:Line": {{"name", "Text"}, {"count", "Int"}},
			"Shop.Main:Order": {
				{"buyer", "Party"}, {"lines", "[Shop.Main:Line]"}, {"index", "Map Int (Optional Shop.Main:Line)"}, {"tags", "Set Text"},
				{"paid", "Optional Shop.Other:Cash"}, {"colour", "Shop.Main:Colour"},
			},
			"Shop.Main:Close": closing,
			"Shop.Main:Look":  {},
			"Shop.Types:Item": {{"key", "Text"}, {"by", "Party"}},
		},
		Templates: map[string]Template{"Shop.Main:Order": {Choices: map[string]Choice{
			"Close": {Consuming: true, Arguments: closing, Result: "(ContractId Shop.Main:Order, [Shop.Types:Item])"},
			"Look":  {Arguments: []Field{}, Result: "()"},
		}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	reachable := got.Reachable()
	if _, ok := reachable.Records["Shop.Main:Line"]; !ok || len(reachable.Records) != 3 {
		t.Errorf("reachable are %v", reachable.Records)
	}
	erased := got.WithoutContractTypes().Templates["Shop.Main:Order"].Choices["Close"].Result
	if erased != "(ContractId, [Shop.Types:Item])" {
		t.Errorf("without contract types: %s", erased)
	}
}

func TestFromSourcesRefuses(t *testing.T) {
	for _, c := range []struct{ name, source, want string }{
		{"nothing", "", "no module header"},
		{"a template without fields", "module M where\ntemplate T\n  where\n    signatory x\n", "line 2: a template that is not"},
		{"a template without where", "module M where\ntemplate T with\n    a : Int\n", "line 2: a template without where"},
		{"an unknown clause", "module M where\ntemplate T\n  with\n    a : Party\n  where\n    signatory a\n    key a : Party\n", "line 7: a template's clause that is not known here: key"},
		{"an unknown kind", "module M where\ninterface I where\n", "line 2: a declaration of a kind that is not known here: interface"},
		{"an unknown type", "module M where\ndata R = R with\n    a : Nothing\n", "line 3: field a: type Nothing is not known"},
		{"a type that is not imported", "module M where\ndata R = R with\n    a : Map Int Int\n", "line 3: field a: type Map is not imported"},
		{"a type that is imported under a name only", "module M where\nimport DA.Set qualified as Set\ndata R = R with\n    a : Set Int\n", "type Set is not imported"},
		{"too many arguments", "module M where\ndata R = R with\n    a : Optional Int Int\n", "type Optional has 2 arguments, not 1"},
		{"a type with parameters", "module M where\ndata R = R with\n    a : R Int\n", "type R has parameters"},
		{"a synonym of itself", "module M where\ntype A = B\ntype B = A\ndata R = R with\n    a : A\n", "leads to no end"},
		{"a field without type", "module M where\ndata R = R with\n    a\n", "line 3: a field that is not"},
		{"a field aside", "module M where\ndata R = R with\n    a : Int\n   b : Int\n", "line 4: a field that does not begin"},
		{"two fields of a name", "module M where\ndata R = R with\n    a : Int\n    a : Int\n", "line 4: a second field a"},
		{"two types of a name", "module M where\ndata R = A | B\ntype R = Int\n", "line 3: type R is declared twice"},
		{"two modules", "module M where\nmodule N where\n", "a second module header"},
		{"a triple", "module M where\ntype A = (Int, Int, Int)\n", "more than two parts"},
		{"a function type", "module M where\ntype A = Int -> Int\n", "more after a type synonym"},
		{"a text without end", "module M where\nf = \"abc\n", "line 2: a text without end"},
		{"a comment without end", "module M where\n{- abc\n", "line 2: a comment without end"},
		{"a tab", "module M where\n\tx\n", "line 2: a tab"},
		{"an import of constructors", "module M where\nimport A (T(X))\n", "some of its constructors"},
		{"a choice without controllers", "module M where\ntemplate T\n  with\n    a : Party\n  where\n    signatory a\n    choice C : ()\n      do\n        pure ()\n", "a choice whose controllers do not follow"},
		{"a choice twice", "module M where\ntemplate T\n  with\n    a : Party\n  where\n    choice C : ()\n      controller a\n      do pure ()\n    choice C : ()\n      controller a\n      do pure ()\n", "choice C is defined twice"},
		{"deep", "module M where\ntype A = " + strings.Repeat("[", 200) + "Int" + strings.Repeat("]", 200) + "\n", "nests too deep"},
	} {
		_, err := FromSources(map[string]string{"m": c.source})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

func TestTextLiterals(t *testing.T) {
	got, err := TextLiterals("module M where\nf = \"a b\" <> \"\" -- \"no\"\ng x = x --> \"c\\\"d\\\\\\n\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a b", "", "c\"d\\\n"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTypeOf(t *testing.T) {
	line := damlvalue.RecordType{Name: damlvalue.TypeName{Module: "M", Entity: "Line"}, Fields: []damlvalue.FieldType{{Label: "a", Type: damlvalue.IntType}}}
	pair := damlvalue.RecordType{Name: damlvalue.TypeName{Module: "DA.Types", Entity: "Tuple2"}, Fields: []damlvalue.FieldType{
		{Label: "_1", Type: damlvalue.IntType}, {Label: "_2", Type: damlvalue.ListType{Elem: line}},
	}}
	for want, typ := range map[string]damlvalue.Type{
		"()":                       damlvalue.UnitType,
		"Time":                     damlvalue.TimestampType,
		"Optional (Optional Int)":  damlvalue.OptionalType{Elem: damlvalue.OptionalType{Elem: damlvalue.IntType}},
		"(Int, [M:Line])":          pair,
		"Map (Int, [M:Line]) Text": damlvalue.GenMapType{Key: pair, Value: damlvalue.TextType},
		"TextMap Bool":             damlvalue.TextMapType{Value: damlvalue.BoolType},
		"Set Party":                damlvalue.SetType(damlvalue.PartyType),
		"M:V":                      damlvalue.VariantType{Name: damlvalue.TypeName{Module: "M", Entity: "V"}},
		"M:E":                      damlvalue.EnumType{Name: damlvalue.TypeName{Module: "M", Entity: "E"}},
		"?":                        nil,
	} {
		if got := TypeOf(typ); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestTypeOfValue(t *testing.T) {
	set := damlvalue.Record{ID: damlvalue.TypeName{Module: "DA.Set.Types", Entity: "Set"}, Fields: []damlvalue.Field{
		{Label: "map", Value: damlvalue.GenMap{{Key: damlvalue.Text("a"), Value: damlvalue.Unit{}}}},
	}}
	pair := damlvalue.Record{Fields: []damlvalue.Field{{Label: "_1", Value: damlvalue.Int(1)}, {Label: "_2", Value: damlvalue.Text("")}}}
	for want, v := range map[string]damlvalue.Value{
		"()":                    damlvalue.Unit{},
		"Set Text":              set,
		"[(Int, Text)]":         damlvalue.List{pair},
		"[?]":                   damlvalue.List{},
		"Optional ?":            damlvalue.Optional{},
		"Optional (Optional ?)": damlvalue.Optional{Value: damlvalue.Optional{}},
		"TextMap Date":          damlvalue.TextMap{{Key: "k", Value: damlvalue.Date(1)}},
		"TextMap ?":             damlvalue.TextMap{},
		"Map ? ?":               damlvalue.GenMap{},
		"ContractId":            damlvalue.ContractID("00"),
		"M:V":                   damlvalue.Variant{ID: damlvalue.TypeName{Module: "M", Entity: "V"}},
		"M:E":                   damlvalue.Enum{ID: damlvalue.TypeName{Module: "M", Entity: "E"}},
		"?":                     nil,
	} {
		if got := TypeOfValue(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

func FuzzFromSources(f *testing.F) {
	for _, s := range []string{shop, types, other, "module M where\ntemplate T with\n    a : [(Int, ())]\n  where\n    signatory a\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		m, err := FromSources(map[string]string{"m": source})
		if err != nil {
			return
		}
		if found := Compare("a", m, "b", m.Clone()); len(found) > 0 {
			t.Errorf("a model differs from itself: %v", found)
		}
	})
}
