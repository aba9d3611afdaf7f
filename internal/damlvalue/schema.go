package damlvalue

import (
	"errors"
	"fmt"
	"strconv"
)

// Type is a Daml type as far as the shape of its values goes: one of the types below. A type tree is finite, so that walking
// a value along it always ends.
type Type interface{ damlType() }

// Primitive is a type without parts.
type Primitive uint8

// The primitive types. Numeric and ContractId stand for all their instances: the scale and the contract's template are not
// part of a value's shape.
const (
	IntType Primitive = iota + 1
	TextType
	PartyType
	ContractIDType
	BoolType
	UnitType
	TimestampType
	DateType
	NumericType
)

type (
	// OptionalType is Optional Elem.
	OptionalType struct{ Elem Type }
	// ListType is [Elem].
	ListType struct{ Elem Type }
	// TextMapType is TextMap Value.
	TextMapType struct{ Value Type }
	// GenMapType is Map Key Value.
	GenMapType struct{ Key, Value Type }
	// RecordType is a record, tuple or template payload.
	RecordType struct {
		// Name is the record's name. Its PackageID may be empty: hashes of contracts don't contain it.
		Name   TypeName
		Fields []FieldType
	}
	// VariantType is a variant; a constructor's rank is its place in Constructors.
	VariantType struct {
		Name         TypeName
		Constructors []FieldType
	}
	// EnumType is an enum; a constructor's rank is its place in Constructors.
	EnumType struct {
		Name         TypeName
		Constructors []string
	}
)

// FieldType is a field of a record, or a constructor of a variant with its argument's type.
type FieldType struct {
	Label string
	Type  Type
}

func (Primitive) damlType()    {}
func (OptionalType) damlType() {}
func (ListType) damlType()     {}
func (TextMapType) damlType()  {}
func (GenMapType) damlType()   {}
func (RecordType) damlType()   {}
func (VariantType) damlType()  {}
func (EnumType) damlType()     {}

// String is the primitive's name in Daml's words, as Kind gives it for its values.
func (p Primitive) String() string {
	switch p {
	case IntType:
		return "Int"
	case TextType:
		return "Text"
	case PartyType:
		return "Party"
	case ContractIDType:
		return "ContractId"
	case BoolType:
		return "Bool"
	case UnitType:
		return "Unit"
	case TimestampType:
		return "Time"
	case DateType:
		return "Date"
	case NumericType:
		return "Numeric"
	default:
		return "Primitive(" + strconv.Itoa(int(p)) + ")"
	}
}

// SetType is the standard library's Set of elem. On the ledger a set is a record with one field, a map to unit
// (DA.Set.Types, a stable package).
func SetType(elem Type) RecordType {
	return RecordType{
		Name:   TypeName{PackageID: SetPackageID, Module: "DA.Set.Types", Entity: "Set"},
		Fields: []FieldType{{Label: "map", Type: GenMapType{Key: elem, Value: UnitType}}},
	}
}

// SetPackageID is the id of the stable package that defines DA.Set.Types:Set.
const SetPackageID = "c3bb0c5d04799b3f11bad7c3c102963e115cf53da3e4afcbcfd9f06ebd82b4ff"

// ErrShape is wrapped by every error about a value that is not of the type it should have.
var ErrShape = errors.New("value has another shape than its type")

// Label returns v with the names that its type gives: record, variant and enum ids, field labels, ranks. It refuses a value
// that is not of type t, by an error that wraps ErrShape and names the place, what was wanted and what was found.
//
//   - Names that v already carries are checked and kept; a package id is kept where v has one, and taken from t otherwise.
//   - A record may be shorter than its type if all missing fields are Optional: participants drop trailing None fields. It
//     stays short.
//   - A record with more fields than its type is refused: it is of another version of the type.
//
// v is not changed; parts without names are shared with the result.
func Label(v Value, t Type) (Value, error) {
	return label(v, t, "")
}

func label(v Value, t Type, at string) (Value, error) {
	switch t := t.(type) {
	case Primitive:
		if !t.matches(v) {
			return nil, shapeError(at, t.String(), v)
		}
		return v, nil
	case OptionalType:
		opt, ok := v.(Optional)
		if !ok {
			return nil, shapeError(at, "Optional", v)
		}
		if opt.Value == nil {
			return opt, nil
		}
		inner, err := label(opt.Value, t.Elem, at)
		if err != nil {
			return nil, err
		}
		return Optional{inner}, nil
	case ListType:
		list, ok := v.(List)
		if !ok {
			return nil, shapeError(at, "List", v)
		}
		out := make(List, len(list))
		for i, e := range list {
			inner, err := label(e, t.Elem, at+"["+strconv.Itoa(i)+"]")
			if err != nil {
				return nil, err
			}
			out[i] = inner
		}
		return out, nil
	case TextMapType:
		m, ok := v.(TextMap)
		if !ok {
			return nil, shapeError(at, "TextMap", v)
		}
		out := make(TextMap, len(m))
		for i, e := range m {
			inner, err := label(e.Value, t.Value, at+"["+strconv.Itoa(i)+"]")
			if err != nil {
				return nil, err
			}
			out[i] = TextMapEntry{Key: e.Key, Value: inner}
		}
		return out, nil
	case GenMapType:
		m, ok := v.(GenMap)
		if !ok {
			return nil, shapeError(at, "Map", v)
		}
		out := make(GenMap, len(m))
		for i, e := range m {
			place := at + "[" + strconv.Itoa(i) + "]"
			key, err := label(e.Key, t.Key, place)
			if err != nil {
				return nil, err
			}
			value, err := label(e.Value, t.Value, place)
			if err != nil {
				return nil, err
			}
			out[i] = GenMapEntry{Key: key, Value: value}
		}
		return out, nil
	case RecordType:
		return labelRecord(v, t, at)
	case VariantType:
		return labelVariant(v, t, at)
	case EnumType:
		return labelEnum(v, t, at)
	default:
		return nil, fmt.Errorf("%s: %w: unknown type %T", place(at), ErrShape, t)
	}
}

func labelRecord(v Value, t RecordType, at string) (Value, error) {
	rec, ok := v.(Record)
	if !ok {
		return nil, shapeError(at, "record "+t.Name.QualifiedName(), v)
	}
	id, err := labelName(rec.ID, t.Name, at)
	if err != nil {
		return nil, err
	}
	if len(rec.Fields) > len(t.Fields) {
		return nil, fmt.Errorf("%s: %w: want %d fields of %s, got %d", place(at), ErrShape, len(t.Fields), t.Name.QualifiedName(), len(rec.Fields))
	}
	out := Record{ID: id, Fields: make([]Field, len(rec.Fields))}
	for i, f := range rec.Fields {
		want := t.Fields[i]
		if f.Label != "" && f.Label != want.Label {
			return nil, fmt.Errorf("%s: %w: want field %q of %s, got %q", place(at), ErrShape, want.Label, t.Name.QualifiedName(), f.Label)
		}
		inner, err := label(f.Value, want.Type, at+"."+want.Label)
		if err != nil {
			return nil, err
		}
		out.Fields[i] = Field{Label: want.Label, Value: inner}
	}
	for _, missing := range t.Fields[len(rec.Fields):] {
		if _, optional := missing.Type.(OptionalType); !optional {
			return nil, fmt.Errorf("%s: %w: field %q of %s is missing", place(at), ErrShape, missing.Label, t.Name.QualifiedName())
		}
	}
	return out, nil
}

func labelVariant(v Value, t VariantType, at string) (Value, error) {
	variant, ok := v.(Variant)
	if !ok {
		return nil, shapeError(at, "variant "+t.Name.QualifiedName(), v)
	}
	id, err := labelName(variant.ID, t.Name, at)
	if err != nil {
		return nil, err
	}
	for rank, c := range t.Constructors {
		if c.Label != variant.Constructor {
			continue
		}
		inner, err := label(variant.Value, c.Type, at+"."+c.Label)
		if err != nil {
			return nil, err
		}
		return Variant{ID: id, Constructor: c.Label, Rank: rank, Value: inner}, nil
	}
	return nil, fmt.Errorf("%s: %w: %s has no constructor %q", place(at), ErrShape, t.Name.QualifiedName(), variant.Constructor)
}

func labelEnum(v Value, t EnumType, at string) (Value, error) {
	enum, ok := v.(Enum)
	if !ok {
		return nil, shapeError(at, "enum "+t.Name.QualifiedName(), v)
	}
	id, err := labelName(enum.ID, t.Name, at)
	if err != nil {
		return nil, err
	}
	for rank, c := range t.Constructors {
		if c == enum.Constructor {
			return Enum{ID: id, Constructor: c, Rank: rank}, nil
		}
	}
	return nil, fmt.Errorf("%s: %w: %s has no constructor %q", place(at), ErrShape, t.Name.QualifiedName(), enum.Constructor)
}

// labelName joins what the value says of its type's name and what the type says.
func labelName(got, want TypeName, at string) (TypeName, error) {
	if got.Module == "" && got.Entity == "" {
		return want, nil
	}
	if got.Module != want.Module || got.Entity != want.Entity {
		return TypeName{}, fmt.Errorf("%s: %w: want %s, got %s", place(at), ErrShape, want.QualifiedName(), got.QualifiedName())
	}
	if got.PackageID == "" {
		got.PackageID = want.PackageID
	}
	return got, nil
}

func (p Primitive) matches(v Value) bool {
	var ok bool
	switch p {
	case IntType:
		_, ok = v.(Int)
	case TextType:
		_, ok = v.(Text)
	case PartyType:
		_, ok = v.(Party)
	case ContractIDType:
		_, ok = v.(ContractID)
	case BoolType:
		_, ok = v.(Bool)
	case UnitType:
		_, ok = v.(Unit)
	case TimestampType:
		_, ok = v.(Timestamp)
	case DateType:
		_, ok = v.(Date)
	case NumericType:
		_, ok = v.(Numeric)
	}
	return ok
}

func shapeError(at, want string, got Value) error {
	return fmt.Errorf("%s: %w: want %s, got %s", place(at), ErrShape, want, Kind(got))
}

func place(at string) string {
	if at == "" {
		return "value"
	}
	if at[0] == '.' {
		return at[1:]
	}
	return at
}
