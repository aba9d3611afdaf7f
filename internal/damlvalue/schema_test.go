package damlvalue

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

var (
	colour = EnumType{Name: TypeName{Module: "M", Entity: "Colour"}, Constructors: []string{"Red", "Green"}}
	shape  = VariantType{Name: TypeName{Module: "M", Entity: "Shape"}, Constructors: []FieldType{{"Dot", UnitType}, {"Box", IntType}}}
	point  = RecordType{Name: TypeName{Module: "M", Entity: "Point"}, Fields: []FieldType{{"x", IntType}, {"name", OptionalType{TextType}}}}
	all    = RecordType{Name: TypeName{Module: "M", Entity: "All"}, Fields: []FieldType{
		{"int", IntType}, {"text", TextType}, {"party", PartyType}, {"cid", ContractIDType}, {"bool", BoolType}, {"unit", UnitType},
		{"time", TimestampType}, {"date", DateType}, {"numeric", NumericType}, {"point", point}, {"points", ListType{point}},
		{"byText", TextMapType{point}}, {"set", SetType(PartyType)}, {"shape", shape}, {"colour", colour},
		{"maybe", OptionalType{point}}, {"last", OptionalType{point}},
	}}
)

func bare(values ...Value) Record {
	var r Record
	for _, v := range values {
		r.Fields = append(r.Fields, Field{Value: v})
	}
	return r
}

func bareAll() Record {
	return bare(Int(1), Text("t"), Party("p"), ContractID("00"), Bool(true), Unit{}, Timestamp(1), Date(2), Numeric("1.0"),
		bare(Int(1)), List{bare(Int(2), Optional{Text("two")})}, TextMap{{"k", bare(Int(3))}},
		bare(GenMap{{Party("p"), Unit{}}}), Variant{Constructor: "Box", Rank: -1, Value: Int(4)}, Enum{Constructor: "Green", Rank: -1},
		Optional{bare(Int(5))})
}

func TestLabel(t *testing.T) {
	got, err := Label(bareAll(), all)
	if err != nil {
		t.Fatal(err)
	}
	r := got.(Record)
	if r.ID != all.Name || len(r.Fields) != len(all.Fields)-1 {
		t.Errorf("got %v with %d fields", r.ID, len(r.Fields))
	}
	for i, f := range r.Fields {
		if f.Label != all.Fields[i].Label {
			t.Errorf("field %d: label %q, want %q", i, f.Label, all.Fields[i].Label)
		}
	}
	named := Record{ID: point.Name, Fields: []Field{{"x", Int(2)}, {"name", Optional{Text("two")}}}}
	if list := r.Field("points", -1).(List); !reflect.DeepEqual(list[0], Value(named)) {
		t.Errorf("in a list: got %v", list[0])
	}
	if v := r.Field("shape", -1).(Variant); v.Rank != 1 || v.ID != shape.Name {
		t.Errorf("variant: got %+v", v)
	}
	if e := r.Field("colour", -1).(Enum); e.Rank != 1 || e.ID != colour.Name {
		t.Errorf("enum: got %+v", e)
	}
	if set := r.Field("set", -1).(Record); set.ID.PackageID != SetPackageID || set.Fields[0].Label != "map" {
		t.Errorf("set: got %+v", set)
	}

	again, err := Label(got, all)
	if err != nil || !reflect.DeepEqual(got, again) {
		t.Errorf("labelled again: %v, %v", again, err)
	}
	if !reflect.DeepEqual(bareAll(), bareAll()) || bareAll().Labelled() {
		t.Error("the input changed")
	}

	given := named
	given.ID.PackageID = "abc"
	kept, err := Label(given, point)
	if err != nil || kept.(Record).ID.PackageID != "abc" {
		t.Errorf("a given package id: got %v, %v", kept, err)
	}
}

func TestLabelRefuses(t *testing.T) {
	for _, c := range []struct {
		value Value
		t     Type
		want  string
	}{
		{nil, IntType, "value: value has another shape than its type: want Int, got no value"},
		{Text("1"), IntType, "want Int, got Text"},
		{Int(1), OptionalType{IntType}, "want Optional, got Int"},
		{Int(1), ListType{IntType}, "want List, got Int"},
		{Int(1), TextMapType{IntType}, "want TextMap, got Int"},
		{Int(1), GenMapType{IntType, IntType}, "want Map, got Int"},
		{Int(1), point, "want record M:Point, got Int"},
		{Int(1), shape, "want variant M:Shape, got Int"},
		{Int(1), colour, "want enum M:Colour, got Int"},
		{Int(1), nil, "unknown type <nil>"},
		{Optional{Text("")}, OptionalType{IntType}, "want Int, got Text"},
		{List{Int(1), Text("")}, ListType{IntType}, "[1]: value has another shape than its type: want Int, got Text"},
		{TextMap{{"k", Text("")}}, TextMapType{IntType}, "[0]: "},
		{GenMap{{Int(1), Int(1)}}, GenMapType{TextType, IntType}, "[0]: "},
		{GenMap{{Int(1), Int(1)}}, GenMapType{IntType, TextType}, "[0]: "},
		{bare(), point, `field "x" of M:Point is missing`},
		{bare(Int(1), Optional{}, Optional{}), point, "want 2 fields of M:Point, got 3"},
		{Record{Fields: []Field{{"y", Int(1)}}}, point, `want field "x" of M:Point, got "y"`},
		{Record{ID: TypeName{Module: "M", Entity: "Other"}, Fields: []Field{{"x", Int(1)}}}, point, "want M:Point, got M:Other"},
		{bare(Text("")), point, "x: value has another shape than its type: want Int, got Text"},
		{Variant{Constructor: "Ring"}, shape, `M:Shape has no constructor "Ring"`},
		{Variant{Constructor: "Box", Value: Text("")}, shape, "Box: value has another shape than its type: want Int, got Text"},
		{Variant{ID: colour.Name, Constructor: "Box"}, shape, "want M:Shape, got M:Colour"},
		{Enum{Constructor: "Blue"}, colour, `M:Colour has no constructor "Blue"`},
		{Enum{ID: shape.Name, Constructor: "Red"}, colour, "want M:Colour, got M:Shape"},
	} {
		_, err := Label(c.value, c.t)
		if !errors.Is(err, ErrShape) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v as %v: got %v, want %s", c.value, c.t, err, c.want)
		}
	}
}

func TestRecordField(t *testing.T) {
	labelled := Record{Fields: []Field{{"a", Int(1)}, {"b", Int(2)}}}
	if labelled.Field("b", 0) != Int(2) || labelled.Field("c", 0) != nil {
		t.Error("labels do not decide")
	}
	unlabelled := bare(Int(1), Int(2))
	if unlabelled.Field("b", 1) != Int(2) || unlabelled.Field("b", 2) != nil || unlabelled.Field("b", -1) != nil {
		t.Error("positions do not decide")
	}
}
