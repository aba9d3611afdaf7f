package wormhole_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// readJSON reads a gzipped JSON file of testdata.
func readJSON(t testing.TB, name string, into any) {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(into); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
}

// recording is recorded-contracts.json.
type recording struct {
	Contracts   map[string]recordedContract `json:"contracts"`
	Transitions []struct {
		Template string   `json:"template"`
		Archived string   `json:"archived"`
		Created  []string `json:"created"`
	} `json:"transitions"`
}

type recordedContract struct {
	Template    string      `json:"template"`
	Signatories []string    `json:"signatories"`
	Observers   []string    `json:"observers"`
	Labelled    *jsonRecord `json:"labelled"`
	Unlabelled  *jsonRecord `json:"unlabelled"`
}

// jsonValue is a Value in protojson.
type jsonValue struct {
	Int64     *int64       `json:"int64,string"`
	Timestamp *int64       `json:"timestamp,string"`
	Text      *string      `json:"text"`
	Party     *string      `json:"party"`
	Unit      *struct{}    `json:"unit"`
	Record    *jsonRecord  `json:"record"`
	Optional  *jsonWrapped `json:"optional"`
	List      *struct {
		Elements []jsonValue `json:"elements"`
	} `json:"list"`
	GenMap *struct {
		Entries []struct {
			Key   jsonValue `json:"key"`
			Value jsonValue `json:"value"`
		} `json:"entries"`
	} `json:"genMap"`
}

type jsonWrapped struct {
	Value *jsonValue `json:"value"`
}

type jsonRecord struct {
	RecordID struct {
		PackageID  string `json:"packageId"`
		ModuleName string `json:"moduleName"`
		EntityName string `json:"entityName"`
	} `json:"recordId"`
	Fields []struct {
		Label string    `json:"label"`
		Value jsonValue `json:"value"`
	} `json:"fields"`
}

func (r *jsonRecord) record(t testing.TB) damlvalue.Record {
	out := damlvalue.Record{ID: damlvalue.TypeName{PackageID: r.RecordID.PackageID, Module: r.RecordID.ModuleName, Entity: r.RecordID.EntityName}}
	for _, f := range r.Fields {
		out.Fields = append(out.Fields, damlvalue.Field{Label: f.Label, Value: f.Value.value(t)})
	}
	return out
}

func (v *jsonValue) value(t testing.TB) damlvalue.Value {
	switch {
	case v.Int64 != nil:
		return damlvalue.Int(*v.Int64)
	case v.Timestamp != nil:
		return damlvalue.Timestamp(*v.Timestamp)
	case v.Text != nil:
		return damlvalue.Text(*v.Text)
	case v.Party != nil:
		return damlvalue.Party(*v.Party)
	case v.Unit != nil:
		return damlvalue.Unit{}
	case v.Record != nil:
		return v.Record.record(t)
	case v.Optional != nil:
		if v.Optional.Value == nil {
			return damlvalue.Optional{}
		}
		return damlvalue.Optional{Value: v.Optional.Value.value(t)}
	case v.List != nil:
		list := damlvalue.List{}
		for i := range v.List.Elements {
			list = append(list, v.List.Elements[i].value(t))
		}
		return list
	case v.GenMap != nil:
		m := damlvalue.GenMap{}
		for i := range v.GenMap.Entries {
			e := &v.GenMap.Entries[i]
			m = append(m, damlvalue.GenMapEntry{Key: e.Key.value(t), Value: e.Value.value(t)})
		}
		return m
	default:
		t.Fatalf("value of an unknown kind: %s", fmt.Sprint(v))
		return nil
	}
}

// withoutLabels is a value as a read without verbose gives it.
func withoutLabels(v damlvalue.Value) damlvalue.Value {
	switch v := v.(type) {
	case damlvalue.Record:
		out := damlvalue.Record{Fields: make([]damlvalue.Field, len(v.Fields))}
		for i, f := range v.Fields {
			out.Fields[i].Value = withoutLabels(f.Value)
		}
		return out
	case damlvalue.Optional:
		if v.Value == nil {
			return v
		}
		return damlvalue.Optional{Value: withoutLabels(v.Value)}
	case damlvalue.List:
		out := make(damlvalue.List, len(v))
		for i, e := range v {
			out[i] = withoutLabels(e)
		}
		return out
	case damlvalue.GenMap:
		out := make(damlvalue.GenMap, len(v))
		for i, e := range v {
			out[i] = damlvalue.GenMapEntry{Key: withoutLabels(e.Key), Value: withoutLabels(e.Value)}
		}
		return out
	default:
		return v
	}
}
