package ledgerstream

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// maxNesting is Daml's own bound on how deep a value nests.
const maxNesting = 100

var errNoValue = errors.New("value is missing or of a kind that this version doesn't know")

// typeName converts an identifier; a nil one is the zero name.
func typeName(id *ledgerapi.Identifier) damlvalue.TypeName {
	return damlvalue.TypeName{PackageID: id.GetPackageId(), Module: id.GetModuleName(), Entity: id.GetEntityName()}
}

// recordOf converts a record. An error names the place within it.
func recordOf(r *ledgerapi.Record) (damlvalue.Record, error) {
	return convertRecord(r, 0)
}

func convertRecord(r *ledgerapi.Record, depth int) (damlvalue.Record, error) {
	out := damlvalue.Record{ID: typeName(r.GetRecordId()), Fields: make([]damlvalue.Field, len(r.GetFields()))}
	for i, f := range r.GetFields() {
		v, err := convertValue(f.GetValue(), depth+1)
		if err != nil {
			name := f.GetLabel()
			if name == "" {
				name = fmt.Sprintf("field %d", i)
			}
			return damlvalue.Record{}, fmt.Errorf("%s: %w", name, err)
		}
		out.Fields[i] = damlvalue.Field{Label: f.GetLabel(), Value: v}
	}
	return out, nil
}

func convertValue(v *ledgerapi.Value, depth int) (damlvalue.Value, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("value nests deeper than %d", maxNesting)
	}
	switch s := v.GetSum().(type) {
	case *ledgerapi.Value_Unit:
		return damlvalue.Unit{}, nil
	case *ledgerapi.Value_Bool:
		return damlvalue.Bool(s.Bool), nil
	case *ledgerapi.Value_Int64:
		return damlvalue.Int(s.Int64), nil
	case *ledgerapi.Value_Date:
		return damlvalue.Date(s.Date), nil
	case *ledgerapi.Value_Timestamp:
		return damlvalue.Timestamp(s.Timestamp), nil
	case *ledgerapi.Value_Numeric:
		return damlvalue.Numeric(s.Numeric), nil
	case *ledgerapi.Value_Party:
		return damlvalue.Party(s.Party), nil
	case *ledgerapi.Value_Text:
		return damlvalue.Text(s.Text), nil
	case *ledgerapi.Value_ContractId:
		return damlvalue.ContractID(s.ContractId), nil
	case *ledgerapi.Value_Optional:
		if s.Optional.GetValue() == nil {
			return damlvalue.Optional{}, nil
		}
		inner, err := convertValue(s.Optional.GetValue(), depth+1)
		return damlvalue.Optional{Value: inner}, err
	case *ledgerapi.Value_List:
		return convertList(s.List.GetElements(), depth)
	case *ledgerapi.Value_TextMap:
		return convertTextMap(s.TextMap.GetEntries(), depth)
	case *ledgerapi.Value_GenMap:
		return convertGenMap(s.GenMap.GetEntries(), depth)
	case *ledgerapi.Value_Record:
		return convertRecord(s.Record, depth)
	case *ledgerapi.Value_Variant:
		inner, err := convertValue(s.Variant.GetValue(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Variant.GetConstructor(), err)
		}
		return damlvalue.Variant{
			ID: typeName(s.Variant.GetVariantId()), Constructor: s.Variant.GetConstructor(), Rank: -1, Value: inner,
		}, nil
	case *ledgerapi.Value_Enum:
		return damlvalue.Enum{ID: typeName(s.Enum.GetEnumId()), Constructor: s.Enum.GetConstructor(), Rank: -1}, nil
	default:
		return nil, errNoValue
	}
}

func convertList(elements []*ledgerapi.Value, depth int) (damlvalue.Value, error) {
	out := make(damlvalue.List, len(elements))
	for i, e := range elements {
		v, err := convertValue(e, depth+1)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		out[i] = v
	}
	return out, nil
}

func convertTextMap(entries []*ledgerapi.TextMap_Entry, depth int) (damlvalue.Value, error) {
	out := make(damlvalue.TextMap, len(entries))
	for i, e := range entries {
		v, err := convertValue(e.GetValue(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		out[i] = damlvalue.TextMapEntry{Key: e.GetKey(), Value: v}
	}
	slices.SortFunc(out, func(a, b damlvalue.TextMapEntry) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

func convertGenMap(entries []*ledgerapi.GenMap_Entry, depth int) (damlvalue.Value, error) {
	out := make(damlvalue.GenMap, len(entries))
	for i, e := range entries {
		k, err := convertValue(e.GetKey(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("entry %d's key: %w", i, err)
		}
		v, err := convertValue(e.GetValue(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		out[i] = damlvalue.GenMapEntry{Key: k, Value: v}
	}
	return out, nil
}
