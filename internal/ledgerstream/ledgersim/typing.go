package ledgersim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// conform checks a command's value against its type and gives it all names, as a participant's preprocessing does: fields
// may come in any order if all are labelled, Optional fields at the end may be missing, maps are sorted and free of repeats.
// The error is in the participant's words; every one of them becomes COMMAND_PREPROCESSING_FAILED.
func conform(v damlvalue.Value, t damlvalue.Type) (damlvalue.Value, error) {
	switch t := t.(type) {
	case damlvalue.Primitive:
		return conformPrimitive(v, t)
	case damlvalue.OptionalType:
		opt, ok := v.(damlvalue.Optional)
		if !ok {
			return nil, mismatch(t, v)
		}
		if opt.Value == nil {
			return opt, nil
		}
		inner, err := conform(opt.Value, t.Elem)
		return damlvalue.Optional{Value: inner}, err
	case damlvalue.ListType:
		list, ok := v.(damlvalue.List)
		if !ok {
			return nil, mismatch(t, v)
		}
		out := make(damlvalue.List, len(list))
		for i, e := range list {
			inner, err := conform(e, t.Elem)
			if err != nil {
				return nil, err
			}
			out[i] = inner
		}
		return out, nil
	case damlvalue.GenMapType:
		return conformGenMap(v, t)
	case damlvalue.RecordType:
		return conformRecord(v, t)
	default:
		return nil, mismatch(t, v)
	}
}

func conformPrimitive(v damlvalue.Value, t damlvalue.Primitive) (damlvalue.Value, error) {
	if _, err := damlvalue.Label(v, t); err != nil {
		return nil, mismatch(t, v)
	}
	switch v := v.(type) {
	case damlvalue.Text:
		if strings.ContainsRune(string(v), 0) {
			return nil, errors.New("Text contains null character")
		}
	case damlvalue.Party:
		if err := checkParty(string(v)); err != nil {
			return nil, err
		}
	case damlvalue.ContractID:
		if err := checkContractID(string(v)); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func conformGenMap(v damlvalue.Value, t damlvalue.GenMapType) (damlvalue.Value, error) {
	m, ok := v.(damlvalue.GenMap)
	if !ok {
		return nil, mismatch(t, v)
	}
	out := make(damlvalue.GenMap, 0, len(m))
	for _, e := range m {
		key, err := conform(e.Key, t.Key)
		if err != nil {
			return nil, err
		}
		value, err := conform(e.Value, t.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, damlvalue.GenMapEntry{Key: key, Value: value})
	}
	// A later entry of the same key replaces an earlier one.
	slices.SortStableFunc(out, func(a, b damlvalue.GenMapEntry) int { return compareKeys(a.Key, b.Key) })
	kept := out[:0]
	for i, e := range out {
		if i+1 < len(out) && compareKeys(e.Key, out[i+1].Key) == 0 {
			continue
		}
		kept = append(kept, e)
	}
	return kept, nil
}

// compareKeys orders the kinds of keys that occur in the model. Texts and parties are ordered by code points, which for UTF-8
// is the order of bytes.
func compareKeys(a, b damlvalue.Value) int {
	switch a := a.(type) {
	case damlvalue.Int:
		if b, ok := b.(damlvalue.Int); ok {
			return cmp.Compare(a, b)
		}
	case damlvalue.Text:
		if b, ok := b.(damlvalue.Text); ok {
			return cmp.Compare(a, b)
		}
	case damlvalue.Party:
		if b, ok := b.(damlvalue.Party); ok {
			return cmp.Compare(a, b)
		}
	}
	return 0
}

func conformRecord(v damlvalue.Value, t damlvalue.RecordType) (damlvalue.Value, error) {
	rec, ok := v.(damlvalue.Record)
	if !ok {
		return nil, mismatch(t, v)
	}
	values, err := fieldValues(rec, t)
	if err != nil {
		return nil, err
	}
	out := damlvalue.Record{ID: t.Name}
	for i, want := range t.Fields {
		if values[i] == nil {
			if _, optional := want.Type.(damlvalue.OptionalType); !optional {
				return nil, fmt.Errorf("Missing non-optional field %q, cannot upgrade non-optional fields.", want.Label)
			}
			values[i] = damlvalue.Optional{}
		}
		inner, err := conform(values[i], want.Type)
		if err != nil {
			return nil, err
		}
		out.Fields = append(out.Fields, damlvalue.Field{Label: want.Label, Value: inner})
	}
	return trimNones(out), nil
}

// fieldValues puts a record's fields in the order of its type; absent ones are nil.
func fieldValues(rec damlvalue.Record, t damlvalue.RecordType) ([]damlvalue.Value, error) {
	values := make([]damlvalue.Value, len(t.Fields))
	if !rec.Labelled() {
		if len(rec.Fields) > len(t.Fields) {
			return nil, fmt.Errorf("Unexpected non-optional extra field at index %d", len(t.Fields))
		}
		for i, f := range rec.Fields {
			values[i] = f.Value
		}
		return values, nil
	}
	var unknown []string
	for _, f := range rec.Fields {
		at := slices.IndexFunc(t.Fields, func(want damlvalue.FieldType) bool { return want.Label == f.Label })
		if at < 0 {
			unknown = append(unknown, f.Label)
			continue
		}
		values[at] = f.Value
	}
	if len(unknown) > 0 {
		for i, want := range t.Fields {
			if _, optional := want.Type.(damlvalue.OptionalType); values[i] == nil && !optional {
				return nil, fmt.Errorf("Missing non-optional field %q, cannot upgrade non-optional fields.", want.Label)
			}
		}
		return nil, fmt.Errorf("Found non-optional extra field %q, cannot remove for downgrading.", unknown[0])
	}
	return values, nil
}

// trimNones drops the None fields at the end: the normal form in which contracts are stored and hashed.
func trimNones(r damlvalue.Record) damlvalue.Record {
	n := len(r.Fields)
	for n > 0 {
		if opt, ok := r.Fields[n-1].Value.(damlvalue.Optional); !ok || opt.Value != nil {
			break
		}
		n--
	}
	r.Fields = r.Fields[:n:n]
	return r
}

func mismatch(t damlvalue.Type, v damlvalue.Value) error {
	return fmt.Errorf("mismatching type: %s and value: %s", typeName(t), show(v))
}

func typeName(t damlvalue.Type) string {
	switch t := t.(type) {
	case damlvalue.Primitive:
		if t == damlvalue.IntType {
			return "Int64"
		}
		return t.String()
	case damlvalue.OptionalType:
		return "Optional " + typeName(t.Elem)
	case damlvalue.ListType:
		return "List " + typeName(t.Elem)
	case damlvalue.GenMapType:
		return "GenMap " + typeName(t.Key) + " " + typeName(t.Value)
	case damlvalue.RecordType:
		return t.Name.QualifiedName()
	default:
		return fmt.Sprintf("%T", t)
	}
}

// show prints a value in the manner of the participant's messages.
func show(v damlvalue.Value) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case damlvalue.Text:
		return "Text(" + string(v) + ")"
	case damlvalue.Int:
		return "Int64(" + strconv.FormatInt(int64(v), 10) + ")"
	case damlvalue.Party:
		return "Party(" + string(v) + ")"
	case damlvalue.Optional:
		if v.Value == nil {
			return "Optional(None)"
		}
		return "Optional(Some(" + show(v.Value) + "))"
	default:
		return fmt.Sprintf("%s(%v)", damlvalue.Kind(v), v)
	}
}

// withoutNames is the value as a created event blob holds it.
func withoutNames(v damlvalue.Value) damlvalue.Value {
	return rename(v, func(damlvalue.TypeName) damlvalue.TypeName { return damlvalue.TypeName{} }, false)
}

// named is the value with the package's id in all type names that have none.
func named(v damlvalue.Value, packageID string) damlvalue.Value {
	return rename(v, func(n damlvalue.TypeName) damlvalue.TypeName {
		if n.PackageID == "" && n.Module != "" {
			n.PackageID = packageID
		}
		return n
	}, true)
}

func rename(v damlvalue.Value, name func(damlvalue.TypeName) damlvalue.TypeName, labels bool) damlvalue.Value {
	switch v := v.(type) {
	case damlvalue.Optional:
		if v.Value == nil {
			return v
		}
		return damlvalue.Optional{Value: rename(v.Value, name, labels)}
	case damlvalue.List:
		out := make(damlvalue.List, len(v))
		for i, e := range v {
			out[i] = rename(e, name, labels)
		}
		return out
	case damlvalue.GenMap:
		out := make(damlvalue.GenMap, len(v))
		for i, e := range v {
			out[i] = damlvalue.GenMapEntry{Key: rename(e.Key, name, labels), Value: rename(e.Value, name, labels)}
		}
		return out
	case damlvalue.Record:
		out := damlvalue.Record{ID: name(v.ID), Fields: make([]damlvalue.Field, len(v.Fields))}
		for i, f := range v.Fields {
			out.Fields[i].Value = rename(f.Value, name, labels)
			if labels {
				out.Fields[i].Label = f.Label
			}
		}
		return out
	default:
		return v
	}
}

// checkParty says in the participant's words what is wrong with a party's id.
func checkParty(p string) error {
	if p == "" {
		return errors.New("Daml-LF Party is empty")
	}
	if len(p) > 255 {
		return errors.New("Daml-LF Party is too long")
	}
	for _, r := range p {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(":-_ ", r)) {
			return fmt.Errorf("non expected character 0x%x in Daml-LF Party %q", r, p)
		}
	}
	return nil
}

// checkContractID says in the participant's words that a contract id is none.
func checkContractID(s string) error {
	if len(s) < 2+64 || len(s)%2 != 0 || !strings.HasPrefix(s, "00") || strings.Trim(s, "0123456789abcdef") != "" {
		return fmt.Errorf("cannot parse ContractId %q", s)
	}
	return nil
}
