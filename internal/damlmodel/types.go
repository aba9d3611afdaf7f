package damlmodel

import (
	"strings"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// The records of Daml's standard library that have a notation of their own.
const (
	setName   = "DA.Set.Types:Set"
	tupleName = "DA.Types:Tuple2"
)

// FieldsOf are a record type's fields.
func FieldsOf(t damlvalue.RecordType) []Field {
	fields := make([]Field, len(t.Fields))
	for i, f := range t.Fields {
		fields[i] = Field{f.Label, TypeOf(f.Type)}
	}
	return fields
}

// TypeOf is a type in Daml's notation. A type that damlvalue does not name is "?".
func TypeOf(t damlvalue.Type) string {
	switch t := t.(type) {
	case damlvalue.Primitive:
		if t == damlvalue.UnitType {
			return "()"
		}
		return t.String()
	case damlvalue.OptionalType:
		return apply("Optional", TypeOf(t.Elem))
	case damlvalue.ListType:
		return "[" + TypeOf(t.Elem) + "]"
	case damlvalue.TextMapType:
		return apply("TextMap", TypeOf(t.Value))
	case damlvalue.GenMapType:
		return apply("Map", TypeOf(t.Key), TypeOf(t.Value))
	case damlvalue.RecordType:
		return typeOfRecord(t.Name, FieldsOf(t))
	case damlvalue.VariantType:
		return t.Name.QualifiedName()
	case damlvalue.EnumType:
		return t.Name.QualifiedName()
	default:
		return "?"
	}
}

// FieldsOfValue are a labelled record's fields with the types that their values show.
func FieldsOfValue(r damlvalue.Record) []Field {
	fields := make([]Field, len(r.Fields))
	for i, f := range r.Fields {
		fields[i] = Field{f.Label, TypeOfValue(f.Value)}
	}
	return fields
}

// TypeOfValue is the type that a value shows: an empty list or map and None show "?" for what they could hold.
func TypeOfValue(v damlvalue.Value) string {
	switch v := v.(type) {
	case damlvalue.Unit:
		return "()"
	case damlvalue.Optional:
		if v.Value == nil {
			return "Optional ?"
		}
		return apply("Optional", TypeOfValue(v.Value))
	case damlvalue.List:
		if len(v) == 0 {
			return "[?]"
		}
		return "[" + TypeOfValue(v[0]) + "]"
	case damlvalue.TextMap:
		if len(v) == 0 {
			return "TextMap ?"
		}
		return apply("TextMap", TypeOfValue(v[0].Value))
	case damlvalue.GenMap:
		if len(v) == 0 {
			return "Map ? ?"
		}
		return apply("Map", TypeOfValue(v[0].Key), TypeOfValue(v[0].Value))
	case damlvalue.Record:
		return typeOfRecord(v.ID, FieldsOfValue(v))
	case damlvalue.Variant:
		return v.ID.QualifiedName()
	case damlvalue.Enum:
		return v.ID.QualifiedName()
	case nil:
		return "?"
	default:
		return damlvalue.Kind(v)
	}
}

// typeOfRecord has notations for pairs and sets. A pair built by hand may carry no name.
func typeOfRecord(name damlvalue.TypeName, fields []Field) string {
	pair := len(fields) == 2 && fields[0].Name == "_1" && fields[1].Name == "_2"
	switch q := name.QualifiedName(); {
	case pair && (q == tupleName || name.IsZero()):
		return "(" + fields[0].Type + ", " + fields[1].Type + ")"
	case q == setName && len(fields) == 1:
		if elem, ok := strings.CutPrefix(fields[0].Type, "Map "); ok {
			return "Set " + strings.TrimSuffix(elem, " ()")
		}
		return "Set ?"
	default:
		return q
	}
}

// apply is a type applied to arguments, in parentheses where they are needed.
func apply(name string, arguments ...string) string {
	for _, a := range arguments {
		if strings.Contains(a, " ") && !strings.HasPrefix(a, "[") && !strings.HasPrefix(a, "(") {
			a = "(" + a + ")"
		}
		name += " " + a
	}
	return name
}
