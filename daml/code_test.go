package daml

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/damlmodel"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// example is a contract of each template with something in every field, as internal/wormhole has it in Go, the record that it writes, and how
// it reads one.
type example struct {
	template damlvalue.TypeName
	contract any
	record   damlvalue.Record
	decode   func(damlvalue.Record) (any, error)
}

func examples(t *testing.T) []example {
	t.Helper()
	digest, err := wormhole.ParseDigest(strings.Repeat("5a", 32))
	if err != nil {
		t.Fatal(err)
	}
	end := time.UnixMicro(1_800_000_000_000_000).UTC()
	var out []example
	for _, c := range []struct {
		template damlvalue.TypeName
		contract wormhole.Payload
	}{
		{wormhole.ReplayNodeTemplate, &wormhole.ReplayNode{Consumer: "app::1", Operator: "operator::1", SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(digest)}},
		{wormhole.CoreStateTemplate, &wormhole.CoreState{
			Operator: "operator::1", GuardianGovernance: "governance::1", GuardianObserver: "observer::1", ChainID: 72, GovernanceChainID: 1,
			GovernanceContract: strings.Repeat("00", 31) + "04", GuardianSetIndex: 3,
			GuardianSets: map[int64]wormhole.GuardianSet{3: {Keys: []string{strings.Repeat("ab", 20)}, Expiration: &end}},
			MessageFee:   7, ConsumedGovernance: []string{digest.String()},
		}},
		{wormhole.ReplayRootRegistryTemplate, &wormhole.ReplayRootRegistry{Operator: "operator::1", Granted: []string{"app::1"}}},
		{wormhole.EmitterRegistryTemplate, &wormhole.EmitterRegistry{Operator: "operator::1", NextID: 5}},
		{wormhole.EmitterTemplate, &wormhole.Emitter{
			Operator: "operator::1", Owner: "owner::1", EmitterID: 5, EmitterAddress: strings.Repeat("0e", 32), Sequence: 9,
		}},
	} {
		out = append(out, example{c.template, c.contract, wormhole.Encode(c.contract), func(r damlvalue.Record) (any, error) {
			return wormhole.Decode(c.template, r)
		}})
	}
	rootRequest := &wormhole.ReplayRootRequest{Consumer: "app::1", Operator: "operator::1", SplitThreshold: 128}
	emitterRequest := &wormhole.EmitterRequest{Owner: "owner::1", Operator: "operator::1"}
	return append(out,
		example{wormhole.ReplayRootRequestTemplate, rootRequest, rootRequest.Record(), func(r damlvalue.Record) (any, error) {
			return wormhole.DecodeReplayRootRequest(r)
		}},
		example{wormhole.EmitterRequestTemplate, emitterRequest, emitterRequest.Record(), func(r damlvalue.Record) (any, error) {
			return wormhole.DecodeEmitterRequest(r)
		}},
	)
}

// codeModel is what internal/wormhole writes: the records of the examples, and those inside them.
func codeModel(all []example) damlmodel.Model {
	m := damlmodel.Model{Records: map[string][]damlmodel.Field{}, Templates: map[string]damlmodel.Template{}}
	for _, e := range all {
		m.Templates[e.record.ID.QualifiedName()] = damlmodel.Template{}
		collect(e.record, m.Records)
	}
	return m
}

func collect(v damlvalue.Value, into map[string][]damlmodel.Field) {
	switch v := v.(type) {
	case damlvalue.Record:
		if v.ID.Module != "DA.Set.Types" {
			into[v.ID.QualifiedName()] = damlmodel.FieldsOfValue(v)
		}
		for _, f := range v.Fields {
			collect(f.Value, into)
		}
	case damlvalue.GenMap:
		for _, e := range v {
			collect(e.Value, into)
		}
	case damlvalue.List:
		for _, e := range v {
			collect(e, into)
		}
	case damlvalue.Optional:
		if v.Value != nil {
			collect(v.Value, into)
		}
	}
}

// payloads is a model's templates without their choices, and what the payloads are made of.
func payloads(m damlmodel.Model) damlmodel.Model {
	m = m.Clone()
	for name := range m.Templates {
		m.Templates[name] = damlmodel.Template{}
	}
	return m.Reachable()
}

func TestCodeWritesWhatTheDARsDeclare(t *testing.T) {
	for _, lf := range []string{LF23, LF22} {
		got := damlmodel.Compare("the DAR", payloads(declared(t, WormholeCorePackage, lf)), "the code", codeModel(examples(t)))
		if len(got) > 0 {
			t.Errorf("LF %s:\n%s", lf, strings.Join(got, "\n"))
		}
	}
}

func TestCodeHasASchemaOfEachTemplate(t *testing.T) {
	model := declared(t, WormholeCorePackage, DefaultLF)
	for name := range model.Templates {
		var known [][]damlmodel.Field
		for _, s := range wormhole.Schemas(name) {
			record, ok := s.(damlvalue.RecordType)
			if !ok {
				t.Fatalf("%s: the schema is a %T", name, s)
			}
			known = append(known, damlmodel.FieldsOf(record))
		}
		if !slices.ContainsFunc(known, func(fields []damlmodel.Field) bool { return slices.Equal(fields, model.Records[name]) }) {
			t.Errorf("%s: no schema of internal/wormhole has the DAR's fields %v: %v", name, model.Records[name], known)
		}
	}
}

// TestCodeReadsEveryField decodes each template's record with labels and without, and with something else in each field in turn.
func TestCodeReadsEveryField(t *testing.T) {
	for _, e := range examples(t) {
		name := e.template.QualifiedName()
		for form, record := range map[string]damlvalue.Record{"with labels": e.record, "without labels": withoutLabels(e.record).(damlvalue.Record)} {
			got, err := e.decode(record)
			if err != nil {
				t.Errorf("%s %s: %v", name, form, err)
				continue
			}
			if diff := cmp.Diff(e.contract, got, cmp.Comparer(func(a, b wormhole.SuffixSet) bool {
				return slices.Equal(slices.Collect(a.All()), slices.Collect(b.All()))
			}), cmp.Comparer(func(a, b wormhole.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("%s %s (-wrote +read):\n%s", name, form, diff)
			}
		}
		for i, f := range e.record.Fields {
			changed := damlvalue.Record{ID: e.record.ID, Fields: slices.Clone(e.record.Fields)}
			changed.Fields[i].Value = damlvalue.Bool(true)
			if _, err := e.decode(changed); !errors.Is(err, wormhole.ErrShape) {
				t.Errorf("%s: a Bool as %s: got error %v, want one of the shape", name, f.Label, err)
			}
		}
	}
}

// withoutLabels is a value as a created event blob has it.
func withoutLabels(v damlvalue.Value) damlvalue.Value {
	switch v := v.(type) {
	case damlvalue.Record:
		out := damlvalue.Record{Fields: make([]damlvalue.Field, len(v.Fields))}
		for i, f := range v.Fields {
			out.Fields[i].Value = withoutLabels(f.Value)
		}
		return out
	case damlvalue.GenMap:
		out := make(damlvalue.GenMap, len(v))
		for i, e := range v {
			out[i] = damlvalue.GenMapEntry{Key: e.Key, Value: withoutLabels(e.Value)}
		}
		return out
	default:
		return v
	}
}

// TestChangedCodeIsSeen changes what the code writes, each change in a copy of its own.
func TestChangedCodeIsSeen(t *testing.T) {
	const node, set = "Wormhole.Core.Replay:ReplayNode", "Wormhole.Core.GuardianSet:GuardianSet"
	for _, c := range []struct {
		change string
		make   func(damlmodel.Model)
		want   string
	}{
		{"a field renamed", func(m damlmodel.Model) { m.Records[node][2].Name = "path" },
			"record " + node + ": field 3 is prefix : Text in the DAR, path : Text in the code"},
		{"fields reordered", func(m damlmodel.Model) {
			fields := m.Records[node]
			fields[0], fields[1] = fields[1], fields[0]
		}, "record " + node + ": field 1 is consumer : Party in the DAR, operator : Party in the code"},
		{"a field retyped", func(m damlmodel.Model) { m.Records[node][3].Type = "Text" },
			"record " + node + ": field 4 is splitThreshold : Int in the DAR, splitThreshold : Text in the code"},
		{"a field dropped", func(m damlmodel.Model) { m.Records[set] = m.Records[set][:1] },
			"record " + set + ": field 2 is expirationTime : Optional Time in the DAR, missing in the code"},
		{"a template dropped", func(m damlmodel.Model) { delete(m.Templates, node) }, "template " + node + ": only in the DAR"},
	} {
		model := codeModel(examples(t))
		c.make(model)
		got := damlmodel.Compare("the DAR", payloads(declared(t, WormholeCorePackage, DefaultLF)), "the code", model)
		if !slices.Contains(got, c.want) {
			t.Errorf("%s: %q is not among what was found:\n%s", c.change, c.want, strings.Join(got, "\n"))
		}
	}
}
