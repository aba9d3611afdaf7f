// Package apivalue translates Daml values between the Ledger API's messages and package damlvalue. It knows shapes and no
// types: whether a value is of the type that it should have is the business of damlvalue.Label and of the domain's decoders.
//
// The simulated participant and the command client share it. Both directions lose nothing but what the Ledger API itself
// leaves out: variants and enums come without the rank of their constructor, and records written for a reader that is not
// verbose have no names.
package apivalue

import (
	"errors"
	"fmt"
	"strconv"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// MaxDepth is the deepest nesting of a value that is read; the ledger allows no more (Daml-LF's MAXIMUM_NESTING, 100).
const MaxDepth = 100

// ErrTooDeep is wrapped by the error about a value nested deeper than MaxDepth.
var ErrTooDeep = errors.New("value is nested deeper than " + strconv.Itoa(MaxDepth))

// ErrMissing is wrapped by the error about a value, or a part of one, that is absent or of a kind not known here.
var ErrMissing = errors.New("no value, or one of an unknown kind")

// FromProto reads a value. Labels and type names are kept where they are present.
func FromProto(v *v2.Value) (damlvalue.Value, error) { return fromProto(v, 0) }

// RecordFromProto reads a record.
func RecordFromProto(r *v2.Record) (damlvalue.Record, error) { return recordFromProto(r, 0) }

func fromProto(v *v2.Value, depth int) (damlvalue.Value, error) {
	if depth > MaxDepth {
		return nil, ErrTooDeep
	}
	switch sum := v.GetSum().(type) {
	case *v2.Value_Unit:
		return damlvalue.Unit{}, nil
	case *v2.Value_Bool:
		return damlvalue.Bool(sum.Bool), nil
	case *v2.Value_Int64:
		return damlvalue.Int(sum.Int64), nil
	case *v2.Value_Date:
		return damlvalue.Date(sum.Date), nil
	case *v2.Value_Timestamp:
		return damlvalue.Timestamp(sum.Timestamp), nil
	case *v2.Value_Numeric:
		return damlvalue.Numeric(sum.Numeric), nil
	case *v2.Value_Party:
		return damlvalue.Party(sum.Party), nil
	case *v2.Value_Text:
		return damlvalue.Text(sum.Text), nil
	case *v2.Value_ContractId:
		return damlvalue.ContractID(sum.ContractId), nil
	case *v2.Value_Optional:
		if sum.Optional.GetValue() == nil {
			return damlvalue.Optional{}, nil
		}
		inner, err := fromProto(sum.Optional.GetValue(), depth+1)
		if err != nil {
			return nil, err
		}
		return damlvalue.Optional{Value: inner}, nil
	case *v2.Value_List:
		list := make(damlvalue.List, 0, len(sum.List.GetElements()))
		for i, e := range sum.List.GetElements() {
			inner, err := fromProto(e, depth+1)
			if err != nil {
				return nil, fmt.Errorf("element %d: %w", i, err)
			}
			list = append(list, inner)
		}
		return list, nil
	case *v2.Value_TextMap:
		m := make(damlvalue.TextMap, 0, len(sum.TextMap.GetEntries()))
		for _, e := range sum.TextMap.GetEntries() {
			inner, err := fromProto(e.GetValue(), depth+1)
			if err != nil {
				return nil, fmt.Errorf("entry %q: %w", e.GetKey(), err)
			}
			m = append(m, damlvalue.TextMapEntry{Key: e.GetKey(), Value: inner})
		}
		return m, nil
	case *v2.Value_GenMap:
		m := make(damlvalue.GenMap, 0, len(sum.GenMap.GetEntries()))
		for i, e := range sum.GenMap.GetEntries() {
			key, err := fromProto(e.GetKey(), depth+1)
			if err != nil {
				return nil, fmt.Errorf("key %d: %w", i, err)
			}
			value, err := fromProto(e.GetValue(), depth+1)
			if err != nil {
				return nil, fmt.Errorf("value %d: %w", i, err)
			}
			m = append(m, damlvalue.GenMapEntry{Key: key, Value: value})
		}
		return m, nil
	case *v2.Value_Record:
		return recordFromProto(sum.Record, depth)
	case *v2.Value_Variant:
		inner, err := fromProto(sum.Variant.GetValue(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", sum.Variant.GetConstructor(), err)
		}
		return damlvalue.Variant{ID: TypeName(sum.Variant.GetVariantId()), Constructor: sum.Variant.GetConstructor(), Rank: -1, Value: inner}, nil
	case *v2.Value_Enum:
		return damlvalue.Enum{ID: TypeName(sum.Enum.GetEnumId()), Constructor: sum.Enum.GetConstructor(), Rank: -1}, nil
	default:
		return nil, ErrMissing
	}
}

func recordFromProto(r *v2.Record, depth int) (damlvalue.Record, error) {
	if depth > MaxDepth {
		return damlvalue.Record{}, ErrTooDeep
	}
	rec := damlvalue.Record{ID: TypeName(r.GetRecordId())}
	for i, f := range r.GetFields() {
		inner, err := fromProto(f.GetValue(), depth+1)
		if err != nil {
			return damlvalue.Record{}, fmt.Errorf("field %d %s: %w", i, f.GetLabel(), err)
		}
		rec.Fields = append(rec.Fields, damlvalue.Field{Label: f.GetLabel(), Value: inner})
	}
	return rec, nil
}

// ToProto writes a value as a participant does: with labels and type names if verbose, without otherwise; trailing None
// fields of records are left out either way.
func ToProto(v damlvalue.Value, verbose bool) *v2.Value {
	switch v := v.(type) {
	case damlvalue.Unit:
		return &v2.Value{Sum: &v2.Value_Unit{Unit: &emptypb.Empty{}}}
	case damlvalue.Bool:
		return &v2.Value{Sum: &v2.Value_Bool{Bool: bool(v)}}
	case damlvalue.Int:
		return &v2.Value{Sum: &v2.Value_Int64{Int64: int64(v)}}
	case damlvalue.Date:
		return &v2.Value{Sum: &v2.Value_Date{Date: int32(v)}}
	case damlvalue.Timestamp:
		return &v2.Value{Sum: &v2.Value_Timestamp{Timestamp: int64(v)}}
	case damlvalue.Numeric:
		return &v2.Value{Sum: &v2.Value_Numeric{Numeric: string(v)}}
	case damlvalue.Party:
		return &v2.Value{Sum: &v2.Value_Party{Party: string(v)}}
	case damlvalue.Text:
		return &v2.Value{Sum: &v2.Value_Text{Text: string(v)}}
	case damlvalue.ContractID:
		return &v2.Value{Sum: &v2.Value_ContractId{ContractId: string(v)}}
	case damlvalue.Optional:
		opt := &v2.Optional{}
		if v.Value != nil {
			opt.Value = ToProto(v.Value, verbose)
		}
		return &v2.Value{Sum: &v2.Value_Optional{Optional: opt}}
	case damlvalue.List:
		list := &v2.List{Elements: make([]*v2.Value, 0, len(v))}
		for _, e := range v {
			list.Elements = append(list.Elements, ToProto(e, verbose))
		}
		return &v2.Value{Sum: &v2.Value_List{List: list}}
	case damlvalue.TextMap:
		m := &v2.TextMap{Entries: make([]*v2.TextMap_Entry, 0, len(v))}
		for _, e := range v {
			m.Entries = append(m.Entries, &v2.TextMap_Entry{Key: e.Key, Value: ToProto(e.Value, verbose)})
		}
		return &v2.Value{Sum: &v2.Value_TextMap{TextMap: m}}
	case damlvalue.GenMap:
		m := &v2.GenMap{Entries: make([]*v2.GenMap_Entry, 0, len(v))}
		for _, e := range v {
			m.Entries = append(m.Entries, &v2.GenMap_Entry{Key: ToProto(e.Key, verbose), Value: ToProto(e.Value, verbose)})
		}
		return &v2.Value{Sum: &v2.Value_GenMap{GenMap: m}}
	case damlvalue.Record:
		return &v2.Value{Sum: &v2.Value_Record{Record: RecordToProto(v, verbose)}}
	case damlvalue.Variant:
		variant := &v2.Variant{Constructor: v.Constructor, Value: ToProto(v.Value, verbose)}
		if verbose {
			variant.VariantId = Identifier(v.ID)
		}
		return &v2.Value{Sum: &v2.Value_Variant{Variant: variant}}
	case damlvalue.Enum:
		enum := &v2.Enum{Constructor: v.Constructor}
		if verbose {
			enum.EnumId = Identifier(v.ID)
		}
		return &v2.Value{Sum: &v2.Value_Enum{Enum: enum}}
	default:
		return &v2.Value{}
	}
}

// RecordToProto writes a record, as ToProto does.
func RecordToProto(r damlvalue.Record, verbose bool) *v2.Record {
	fields := TrimTrailingNones(r).Fields
	out := &v2.Record{Fields: make([]*v2.RecordField, 0, len(fields))}
	if verbose {
		out.RecordId = Identifier(r.ID)
	}
	for _, f := range fields {
		field := &v2.RecordField{Value: ToProto(f.Value, verbose)}
		if verbose {
			field.Label = f.Label
		}
		out.Fields = append(out.Fields, field)
	}
	return out
}

// TrimTrailingNones is the record without the None fields at its end, as every participant gives it. Records inside are
// not touched.
func TrimTrailingNones(r damlvalue.Record) damlvalue.Record {
	n := len(r.Fields)
	for n > 0 {
		if opt, ok := r.Fields[n-1].Value.(damlvalue.Optional); !ok || opt.Value != nil {
			break
		}
		n--
	}
	return damlvalue.Record{ID: r.ID, Fields: r.Fields[:n:n]}
}

// Identifier writes a type's name; the zero name is nil.
func Identifier(n damlvalue.TypeName) *v2.Identifier {
	if n.IsZero() {
		return nil
	}
	return &v2.Identifier{PackageId: n.PackageID, ModuleName: n.Module, EntityName: n.Entity}
}

// TypeName reads a type's name; nil is the zero name.
func TypeName(id *v2.Identifier) damlvalue.TypeName {
	return damlvalue.TypeName{PackageID: id.GetPackageId(), Module: id.GetModuleName(), Entity: id.GetEntityName()}
}
