package apivalue_test

import (
	"errors"
	"testing"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

// values draws values as a verbose reader gets them: all names, no trailing None.
func values(depth int) *rapid.Generator[damlvalue.Value] {
	text := rapid.StringMatching(`[a-z0-9:]{0,8}`)
	leaf := []*rapid.Generator[damlvalue.Value]{
		rapid.Map(rapid.Int64(), func(i int64) damlvalue.Value { return damlvalue.Int(i) }),
		rapid.Map(text, func(s string) damlvalue.Value { return damlvalue.Text(s) }),
		rapid.Map(text, func(s string) damlvalue.Value { return damlvalue.Party(s) }),
		rapid.Map(text, func(s string) damlvalue.Value { return damlvalue.ContractID(s) }),
		rapid.Map(rapid.Bool(), func(b bool) damlvalue.Value { return damlvalue.Bool(b) }),
		rapid.Map(rapid.Int64(), func(i int64) damlvalue.Value { return damlvalue.Timestamp(i) }),
		rapid.Map(rapid.Int32(), func(i int32) damlvalue.Value { return damlvalue.Date(i) }),
		rapid.Just[damlvalue.Value](damlvalue.Unit{}),
		rapid.Just[damlvalue.Value](damlvalue.Numeric("1.0000000000")),
		rapid.Just[damlvalue.Value](damlvalue.Optional{}),
	}
	if depth == 0 {
		return rapid.OneOf(leaf...)
	}
	inner := values(depth - 1)
	name := damlvalue.TypeName{PackageID: "ab", Module: "M", Entity: "T"}
	return rapid.OneOf(append(leaf,
		rapid.Map(inner, func(v damlvalue.Value) damlvalue.Value { return damlvalue.Optional{Value: v} }),
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(vs []damlvalue.Value) damlvalue.Value { return damlvalue.List(vs) }),
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(vs []damlvalue.Value) damlvalue.Value {
			m := damlvalue.GenMap{}
			for _, v := range vs {
				m = append(m, damlvalue.GenMapEntry{Key: v, Value: damlvalue.Unit{}})
			}
			return m
		}),
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(vs []damlvalue.Value) damlvalue.Value {
			m := damlvalue.TextMap{}
			for i, v := range vs {
				m = append(m, damlvalue.TextMapEntry{Key: string(rune('a' + i)), Value: v})
			}
			return m
		}),
		rapid.Map(inner, func(v damlvalue.Value) damlvalue.Value {
			return damlvalue.Variant{ID: name, Constructor: "C", Rank: -1, Value: v}
		}),
		rapid.Just[damlvalue.Value](damlvalue.Enum{ID: name, Constructor: "C", Rank: -1}),
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(vs []damlvalue.Value) damlvalue.Value {
			r := damlvalue.Record{ID: name}
			for i, v := range vs {
				r.Fields = append(r.Fields, damlvalue.Field{Label: string(rune('a' + i)), Value: v})
			}
			return apivalue.TrimTrailingNones(r)
		}),
	)...)
}

func TestValuesGoThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := values(3).Draw(t, "value")
		got, err := apivalue.FromProto(apivalue.ToProto(want, true))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Transformer("empty", func(l damlvalue.List) []damlvalue.Value { return append([]damlvalue.Value{}, l...) }),
			cmp.Transformer("fields", func(r damlvalue.Record) []damlvalue.Field {
				return append([]damlvalue.Field{{Label: r.ID.String()}}, r.Fields...)
			})); diff != "" {
			t.Fatalf("(-sent +got):\n%s", diff)
		}
	})
}

func TestNotVerboseHasNoNames(t *testing.T) {
	r := damlvalue.Record{ID: damlvalue.TypeName{PackageID: "ab", Module: "M", Entity: "T"}, Fields: []damlvalue.Field{
		{Label: "a", Value: damlvalue.Int(1)}, {Label: "b", Value: damlvalue.Optional{}},
	}}
	got, err := apivalue.RecordFromProto(apivalue.RecordToProto(r, false))
	if err != nil {
		t.Fatal(err)
	}
	want := damlvalue.Record{Fields: []damlvalue.Field{{Value: damlvalue.Int(1)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRefusals(t *testing.T) {
	deep := &v2.Value{Sum: &v2.Value_Unit{}}
	for range apivalue.MaxDepth + 1 {
		deep = &v2.Value{Sum: &v2.Value_Optional{Optional: &v2.Optional{Value: deep}}}
	}
	if _, err := apivalue.FromProto(deep); !errors.Is(err, apivalue.ErrTooDeep) {
		t.Errorf("a value nested too deep: %v", err)
	}
	for _, v := range []*v2.Value{nil, {}, {Sum: &v2.Value_List{List: &v2.List{Elements: []*v2.Value{{}}}}}, {Sum: &v2.Value_Record{Record: &v2.Record{Fields: []*v2.RecordField{{}}}}}} {
		if _, err := apivalue.FromProto(v); !errors.Is(err, apivalue.ErrMissing) {
			t.Errorf("%v: %v", v, err)
		}
	}
}

// FuzzFromProto reads any message: an error or a value that is written and read again the same.
func FuzzFromProto(f *testing.F) {
	for _, v := range []damlvalue.Value{
		damlvalue.Int(7), damlvalue.List{damlvalue.Text("a")}, damlvalue.Optional{Value: damlvalue.Unit{}},
		damlvalue.Record{Fields: []damlvalue.Field{{Label: "a", Value: damlvalue.GenMap{{Key: damlvalue.Int(1), Value: damlvalue.Unit{}}}}}},
	} {
		raw, err := proto.Marshal(apivalue.ToProto(v, true))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m v2.Value
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		v, err := apivalue.FromProto(&m)
		if err != nil {
			return
		}
		if _, err := apivalue.FromProto(apivalue.ToProto(v, true)); err != nil {
			t.Fatalf("%v: %v", v, err)
		}
	})
}
