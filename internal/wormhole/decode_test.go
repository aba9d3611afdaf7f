package wormhole_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func templateName(qualified string) damlvalue.TypeName {
	module, entity, _ := strings.Cut(qualified, ":")
	return damlvalue.TypeName{Module: module, Entity: entity}
}

// TestDecodeRecorded decodes what a participant gave, with labels and without: both give the same contract, signed by whom
// the payload names, and encoding it gives what the participant gave, but for the fields that a newer version appended.
func TestDecodeRecorded(t *testing.T) {
	var data recording
	readJSON(t, "recorded-contracts.json.gz", &data)
	counts := map[string]int{}
	for cid, c := range data.Contracts {
		template := templateName(c.Template)
		var decoded []wormhole.Payload
		for _, recorded := range []*jsonRecord{c.Labelled, c.Unlabelled} {
			if recorded == nil {
				continue
			}
			record := recorded.record(t)
			p, err := wormhole.Decode(template, record)
			if err != nil {
				t.Errorf("%s: %v", cid, err)
				continue
			}
			if m, ok := p.(*wormhole.Malformed); ok {
				t.Errorf("%s: malformed: %s", cid, m.Fault)
				continue
			}
			decoded = append(decoded, p)
			counts[c.Template]++
			if got := wormhole.RequiredSignatories(p); !slices.Equal(got, c.Signatories) {
				t.Errorf("%s: signatories %v, want %v", cid, got, c.Signatories)
			}
			if got := wormhole.Observers(p); !slices.Equal(got, c.Observers) {
				t.Errorf("%s: observers %v, want %v", cid, got, c.Observers)
			}
			want := withoutLabels(record).(damlvalue.Record)
			got := withoutLabels(wormhole.Encode(p)).(damlvalue.Record)
			if len(want.Fields) > len(got.Fields) {
				if _, optional := want.Fields[len(got.Fields)].Value.(damlvalue.Optional); !optional {
					t.Errorf("%s: field %d was lost", cid, len(got.Fields))
				}
				want.Fields = want.Fields[:len(got.Fields)]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: encoded again (-want +got):\n%s", cid, diff)
			}
		}
		if len(decoded) == 2 {
			if diff := cmp.Diff(decoded[0], decoded[1], compareValues); diff != "" {
				t.Errorf("%s: with and without labels (-with +without):\n%s", cid, diff)
			}
		}
	}
	for _, template := range wormhole.Templates() {
		if counts[template.QualifiedName()] == 0 {
			t.Errorf("no %s was recorded", template.QualifiedName())
		}
	}
	t.Logf("decoded %v", counts)
}

// TestRecordedTransitions holds Consume to every recorded transaction that replaced one ReplayNode: the digest that the new
// nodes hold and the old one did not, consumed from the old one, gives the new ones.
func TestRecordedTransitions(t *testing.T) {
	var data recording
	readJSON(t, "recorded-contracts.json.gz", &data)
	decode := func(cid string) wormhole.Payload {
		c := data.Contracts[cid]
		recorded := c.Labelled
		if recorded == nil {
			recorded = c.Unlabelled
		}
		p, err := wormhole.Decode(templateName(c.Template), recorded.record(t))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	consumes, splits, fees, upgrades := 0, 0, 0, 0
	for _, tr := range data.Transitions {
		switch old := decode(tr.Archived).(type) {
		case *wormhole.ReplayNode:
			var created []*wormhole.ReplayNode
			var digests []wormhole.Digest
			for _, cid := range tr.Created {
				node := decode(cid).(*wormhole.ReplayNode)
				created = append(created, node)
				for d := range node.Consumed.All() {
					if !old.Consumed.Contains(d) {
						digests = append(digests, d)
					}
				}
			}
			if len(digests) != 1 {
				t.Errorf("%s: %d new digests", tr.Archived, len(digests))
				continue
			}
			slices.SortFunc(created, func(a, b *wormhole.ReplayNode) int { return strings.Compare(a.Prefix.String(), b.Prefix.String()) })
			result := consume(t, old, digests[0])
			if diff := cmp.Diff(created, result.Nodes, compareValues); diff != "" {
				t.Errorf("%s (-recorded +computed):\n%s", tr.Archived, diff)
			}
			consumes++
			if result.Split() {
				splits++
			}
		case *wormhole.CoreState:
			next := decode(tr.Created[0]).(*wormhole.CoreState)
			if next.GuardianSetIndex != old.GuardianSetIndex {
				upgrades++
				if next.GuardianSetIndex != old.GuardianSetIndex+1 || next.GuardianSets[old.GuardianSetIndex].Expiration == nil {
					t.Errorf("%s: upgrade from %d to %d", tr.Archived, old.GuardianSetIndex, next.GuardianSetIndex)
				}
			} else {
				fees++
			}
			if len(next.ConsumedGovernance) != len(old.ConsumedGovernance)+1 {
				t.Errorf("%s: %d consumed after %d", tr.Archived, len(next.ConsumedGovernance), len(old.ConsumedGovernance))
			}
		default:
			t.Errorf("%s: a transition of %T", tr.Archived, old)
		}
	}
	if splits == 0 || fees == 0 || upgrades == 0 {
		t.Errorf("too little was recorded: %d consumes, %d splits, %d fees, %d upgrades", consumes, splits, fees, upgrades)
	}
	t.Logf("%d consumes, %d of them splits; %d fees, %d guardian set upgrades", consumes, splits, fees, upgrades)
}

func TestDecodeEncodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawPayload(t)
		record := wormhole.Encode(want)
		template := record.ID
		template.PackageID = "any"
		labelled, err := damlvalue.Label(withoutLabels(record), schemaOf(t, record))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(damlvalue.Value(record), labelled); diff != "" {
			t.Fatalf("labelled by its schema (-want +got):\n%s", diff)
		}
		appended := record
		appended.Fields = append(slices.Clone(record.Fields), damlvalue.Field{Label: "appended", Value: damlvalue.Optional{Value: damlvalue.Text("x")}})
		for name, r := range map[string]damlvalue.Record{
			"with labels":                       record,
			"without labels":                    withoutLabels(record).(damlvalue.Record),
			"with an appended field":            appended,
			"with an appended field, no labels": withoutLabels(appended).(damlvalue.Record),
		} {
			got, err := wormhole.Decode(template, r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if diff := cmp.Diff(want, got, compareValues, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

// schemaOf is the version whose number of fields the record has.
func schemaOf(t *rapid.T, record damlvalue.Record) damlvalue.Type {
	for _, s := range wormhole.Schemas(record.ID.QualifiedName()) {
		if len(s.(damlvalue.RecordType).Fields) == len(record.Fields) {
			return s
		}
	}
	t.Fatalf("no version of %s has %d fields", record.ID, len(record.Fields))
	return nil
}

func TestDecodeRefusesOtherShapes(t *testing.T) {
	node := func(change func(r *damlvalue.Record)) damlvalue.Record {
		r := wormhole.Encode(&wormhole.ReplayNode{Consumer: "c", Operator: "o", SplitThreshold: 1, Consumed: wormhole.NewSuffixSet(wormhole.Digest{})})
		change(&r)
		return r
	}
	for _, c := range []struct {
		name     string
		template damlvalue.TypeName
		record   damlvalue.Record
		wantErr  error
		want     string
	}{
		{"another template", damlvalue.TypeName{Module: "Late", Entity: "Thing"}, damlvalue.Record{}, wormhole.ErrUnknownTemplate,
			"decode Late:Thing: template is not served"},
		{"a request", wormhole.ReplayRootRequestTemplate, damlvalue.Record{}, wormhole.ErrUnknownTemplate,
			"decode Wormhole.Core.Replay:ReplayRootRequest: template is not served"},
		{"a record of another template", wormhole.EmitterTemplate, node(func(*damlvalue.Record) {}), wormhole.ErrShape,
			"decode Wormhole.Core.Emitters:Emitter: value has another shape than its type: the record is a Wormhole.Core.Replay:ReplayNode"},
		{"no fields", wormhole.ReplayNodeTemplate, damlvalue.Record{}, wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode: value has another shape than its type: field "consumer": want Party, got no value`},
		{"a field of another type", wormhole.ReplayNodeTemplate, node(func(r *damlvalue.Record) { r.Fields[3].Value = damlvalue.Text("4") }), wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode: value has another shape than its type: field "splitThreshold": want Int, got Text`},
		{"a missing field", wormhole.ReplayNodeTemplate, node(func(r *damlvalue.Record) { r.Fields = r.Fields[:4] }), wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode: value has another shape than its type: field "consumed": want record DA.Set.Types:Set, got no value`},
		{"a missing field, no labels", wormhole.ReplayNodeTemplate, node(func(r *damlvalue.Record) { *r = withoutLabels(*r).(damlvalue.Record); r.Fields = r.Fields[:4] }), wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode without labels: value has another shape than its type: field "consumed": want record, got no value`},
		{"another field appended, no labels", wormhole.ReplayNodeTemplate, node(func(r *damlvalue.Record) {
			*r = withoutLabels(*r).(damlvalue.Record)
			r.Fields = append(r.Fields, damlvalue.Field{Value: damlvalue.Text("namespace?")})
		}), wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode without labels: value has another shape than its type: field 6: only an Optional can follow "consumed", got Text`},
		{"a set of other values", wormhole.ReplayNodeTemplate, node(func(r *damlvalue.Record) {
			r.Fields[4].Value = damlvalue.Record{Fields: []damlvalue.Field{{Label: "map", Value: damlvalue.GenMap{{Key: damlvalue.Text(""), Value: damlvalue.Int(1)}}}}}
		}), wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode: value has another shape than its type: field "consumed.map value": want Unit, got Int`},
		{"a set of other keys", wormhole.ReplayNodeTemplate, node(func(r *damlvalue.Record) {
			r.Fields[4].Value = damlvalue.Record{Fields: []damlvalue.Field{{Label: "map", Value: damlvalue.GenMap{{Key: damlvalue.Int(1), Value: damlvalue.Unit{}}}}}}
		}), wormhole.ErrShape,
			`decode Wormhole.Core.Replay:ReplayNode: value has another shape than its type: field "consumed": want Text, got Int`},
	} {
		got, err := wormhole.Decode(c.template, c.record)
		if got != nil || !errors.Is(err, c.wantErr) || err.Error() != c.want {
			t.Errorf("%s: got %v and\n%v\nwant\n%s", c.name, got, err, c.want)
		}
	}
}

func TestDecodeMalformed(t *testing.T) {
	suffix := strings.Repeat("0", 64)
	node := func(label string, v damlvalue.Value) damlvalue.Record {
		r := wormhole.Encode(&wormhole.ReplayNode{Consumer: "c", Operator: "o", Namespace: wormhole.Namespace{Present: true}, SplitThreshold: 1})
		return with(r, label, v)
	}
	state := func(label string, v damlvalue.Value) damlvalue.Record {
		return with(wormhole.Encode(&wormhole.CoreState{Operator: "o", GuardianGovernance: "g", GovernanceContract: suffix}), label, v)
	}
	for _, c := range []struct {
		name   string
		record damlvalue.Record
		want   string
	}{
		{"uppercase prefix", node("prefix", damlvalue.Text("A")), `prefix "A" is not at most 63 lowercase hex digits`},
		{"prefix with 0x", node("prefix", damlvalue.Text("0xa")), `prefix "0xa" is not at most 63 lowercase hex digits`},
		{"prefix of 64", node("prefix", damlvalue.Text(suffix)), `prefix "` + suffix + `" is not at most 63 lowercase hex digits`},
		{"threshold 0", node("splitThreshold", damlvalue.Int(0)), "splitThreshold 0 is not in 1..4096"},
		{"threshold 4097", node("splitThreshold", damlvalue.Int(4097)), "splitThreshold 4097 is not in 1..4096"},
		{"short suffix", node("consumed", setOf(damlvalue.Text(suffix[1:]))), `consumed: suffix "` + suffix[1:] + `" is not 64 lowercase hex digits`},
		{"uppercase suffix", node("consumed", setOf(damlvalue.Text("A"+suffix[1:]))), `consumed: suffix "A` + suffix[1:] + `" is not 64 lowercase hex digits`},
		{"long namespace", node("namespace", damlvalue.Text(strings.Repeat("é", 129))), "namespace has more than 128 characters"},
		{"no consumer", node("consumer", damlvalue.Party("")), "consumer is empty"},
		{"governance contract", state("governanceContract", damlvalue.Text("04")), `governanceContract "04" is not 64 lowercase hex digits`},
		{"consumed governance", state("consumedGovernance", setOf(damlvalue.Text("zz"))), `consumedGovernance: "zz" is not a digest in lowercase hex`},
		{"guardian", state("guardianSets", damlvalue.GenMap{{Key: damlvalue.Int(0), Value: damlvalue.Record{Fields: []damlvalue.Field{
			{Label: "keys", Value: damlvalue.List{damlvalue.Text(strings.Repeat("BE", 20))}}}}}}),
			`guardianSets: guardian "` + strings.Repeat("BE", 20) + `" is not an address of 20 bytes in lowercase hex`},
		{"next id", with(wormhole.Encode(&wormhole.EmitterRegistry{Operator: "o"}), "nextId", damlvalue.Int(-1)), "nextId -1 is negative"},
		{"emitter address", with(wormhole.Encode(&wormhole.Emitter{Operator: "o", Owner: "w"}), "emitterAddress", damlvalue.Text("")), `emitterAddress "" is not 64 lowercase hex digits`},
	} {
		got, err := wormhole.Decode(c.record.ID, c.record)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		m, ok := got.(*wormhole.Malformed)
		if !ok || m.Fault != c.want || m.Template != c.record.ID.QualifiedName() || m.Operator != "o" {
			t.Errorf("%s: got %+v, want %s", c.name, got, c.want)
		}
	}
}

// TestDecodeNamespaces: an absent namespace and an empty one are two scopes.
func TestDecodeNamespaces(t *testing.T) {
	for _, want := range []wormhole.Namespace{{}, {Present: true}, {Present: true, Value: "ntt-usdc"}, {Present: true, Value: strings.Repeat("é", 128)}} {
		record := wormhole.Encode(&wormhole.ReplayNode{Consumer: "c", Operator: "o", Namespace: want, SplitThreshold: 1})
		for _, r := range []damlvalue.Record{record, withoutLabels(record).(damlvalue.Record)} {
			got, err := wormhole.Decode(record.ID, r)
			if err != nil {
				t.Fatal(err)
			}
			if ns := got.(*wormhole.ReplayNode).Namespace; ns != want {
				t.Errorf("got %+v, want %+v", ns, want)
			}
		}
	}
	// With labels the field's place does not matter.
	record := wormhole.Encode(&wormhole.ReplayNode{Consumer: "c", Operator: "o", Namespace: wormhole.Namespace{Present: true, Value: "n"}, SplitThreshold: 1})
	slices.Reverse(record.Fields)
	got, err := wormhole.Decode(record.ID, record)
	if err != nil || got.(*wormhole.ReplayNode).Namespace.Value != "n" {
		t.Errorf("reversed: got %+v, %v", got, err)
	}
}

// TestDecodeLaterRootRegistry: a later version has no list of consumers.
func TestDecodeLaterRootRegistry(t *testing.T) {
	record := damlvalue.Record{Fields: []damlvalue.Field{
		{Label: "operator", Value: damlvalue.Party("o")}, {Label: "claimFee", Value: damlvalue.Int(5)}, {Label: "more", Value: damlvalue.Text("x")},
	}}
	for _, r := range []damlvalue.Record{record, withoutLabels(record).(damlvalue.Record)} {
		got, err := wormhole.Decode(wormhole.ReplayRootRegistryTemplate, r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&wormhole.ReplayRootRegistry{Operator: "o"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	got, err := wormhole.Decode(wormhole.ReplayRootRegistryTemplate, wormhole.Encode(&wormhole.ReplayRootRegistry{Operator: "o", Granted: []string{}}))
	if err != nil || got.(*wormhole.ReplayRootRegistry).Granted == nil {
		t.Errorf("an empty list: got %+v, %v", got, err)
	}
}

func TestDecodeRequests(t *testing.T) {
	root := &wormhole.ReplayRootRequest{Consumer: "c", Operator: "o", SplitThreshold: 4}
	emitter := &wormhole.EmitterRequest{Owner: "w", Operator: "o"}
	for _, bare := range []bool{false, true} {
		rootRecord, emitterRecord := root.Record(), emitter.Record()
		if bare {
			rootRecord, emitterRecord = withoutLabels(rootRecord).(damlvalue.Record), withoutLabels(emitterRecord).(damlvalue.Record)
		}
		if got, err := wormhole.DecodeReplayRootRequest(rootRecord); err != nil || *got != *root {
			t.Errorf("got %+v, %v", got, err)
		}
		if got, err := wormhole.DecodeEmitterRequest(emitterRecord); err != nil || *got != *emitter {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if _, err := wormhole.DecodeReplayRootRequest(emitter.Record()); !errors.Is(err, wormhole.ErrShape) {
		t.Errorf("got %v", err)
	}
}

// FuzzDecodeRecord decodes records made of bytes: no input may panic, and what decodes well encodes to what decodes the same.
func FuzzDecodeRecord(f *testing.F) {
	f.Add(byte(0), []byte{})
	f.Add(byte(0), []byte{2, 1, 'c', 2, 1, 'o', 1, 0, 0, 4, 5, 1, 6, 0})
	f.Add(byte(1), []byte("\x02\x01a\x02\x01b\x00\x01\x00\x02\x01\x01z"))
	f.Add(byte(130), []byte{2, 1, 'c', 2, 1, 'o', 1, 0, 0, 4, 5, 1, 6, 0})
	f.Fuzz(func(t *testing.T, which byte, raw []byte) {
		templates := wormhole.Templates()
		template := templates[int(which&0x7f)%len(templates)]
		values := valuesFrom(&raw, 3)
		var record damlvalue.Record
		if which&0x80 != 0 {
			schema := wormhole.Schemas(template.QualifiedName())[0].(damlvalue.RecordType)
			for i, v := range values {
				if i < len(schema.Fields) {
					record.Fields = append(record.Fields, damlvalue.Field{Label: schema.Fields[i].Label, Value: v})
				}
			}
		} else {
			for _, v := range values {
				record.Fields = append(record.Fields, damlvalue.Field{Value: v})
			}
		}
		p, err := wormhole.Decode(template, record)
		if err != nil {
			if !errors.Is(err, wormhole.ErrShape) {
				t.Fatalf("%v does not wrap ErrShape", err)
			}
			return
		}
		if _, malformed := p.(*wormhole.Malformed); malformed {
			return
		}
		again, err := wormhole.Decode(template, wormhole.Encode(p))
		if err != nil {
			t.Fatalf("decode again: %v", err)
		}
		if diff := cmp.Diff(p, again, compareValues, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("decoded again:\n%s", diff)
		}
	})
}

// valuesFrom makes values of bytes: a kind, then what the kind needs.
func valuesFrom(raw *[]byte, depth int) []damlvalue.Value {
	next := func() byte {
		if len(*raw) == 0 {
			return 0
		}
		b := (*raw)[0]
		*raw = (*raw)[1:]
		return b
	}
	text := func() string {
		n := min(int(next()), len(*raw))
		s := string((*raw)[:n])
		*raw = (*raw)[n:]
		return s
	}
	inner := func() []damlvalue.Value {
		if depth == 0 {
			return nil
		}
		n := min(int(next()), len(*raw))
		part := (*raw)[:n]
		*raw = (*raw)[n:]
		return valuesFrom(&part, depth-1)
	}
	var out []damlvalue.Value
	for len(*raw) > 0 {
		switch next() % 10 {
		case 0:
			out = append(out, damlvalue.Int(int8(next())))
		case 1:
			out = append(out, damlvalue.Text(text()))
		case 2:
			out = append(out, damlvalue.Party(text()))
		case 3:
			out = append(out, damlvalue.List(inner()))
		case 4:
			m := damlvalue.GenMap{}
			for _, v := range inner() {
				m = append(m, damlvalue.GenMapEntry{Key: v, Value: damlvalue.Unit{}})
			}
			out = append(out, m)
		case 5:
			var r damlvalue.Record
			for _, v := range inner() {
				r.Fields = append(r.Fields, damlvalue.Field{Value: v})
			}
			out = append(out, r)
		case 6:
			parts := inner()
			m := damlvalue.GenMap{}
			for i := 0; i+1 < len(parts); i += 2 {
				m = append(m, damlvalue.GenMapEntry{Key: parts[i], Value: parts[i+1]})
			}
			out = append(out, m)
		case 7:
			var opt damlvalue.Optional
			if parts := inner(); len(parts) > 0 {
				opt.Value = parts[0]
			}
			out = append(out, opt)
		case 8:
			out = append(out, damlvalue.Timestamp(next()))
		default:
			out = append(out, nil)
		}
	}
	return out
}

func drawPayload(t *rapid.T) wormhole.Payload {
	party := rapid.StringMatching(`[a-z]{1,8}::1220[0-9a-f]{8}`)
	hex := func(n int) *rapid.Generator[string] {
		return rapid.StringOfN(rapid.RuneFrom([]rune("0123456789abcdef")), n, n, -1)
	}
	switch rapid.SampledFrom([]string{"node", "state", "roots", "emitters", "emitter"}).Draw(t, "template") {
	case "node":
		node := &wormhole.ReplayNode{
			Consumer: party.Draw(t, "consumer"), Operator: party.Draw(t, "operator"),
			SplitThreshold: rapid.Int64Range(1, 4096).Draw(t, "threshold"),
		}
		if rapid.Bool().Draw(t, "namespaced") {
			node.Namespace = wormhole.Namespace{Present: true, Value: rapid.StringN(0, 128, -1).Draw(t, "namespace")}
		}
		digest := wormhole.Digest(draw32(t, "digest"))
		node.Prefix = digest.Prefix(rapid.IntRange(0, 63).Draw(t, "depth"))
		for range rapid.IntRange(0, 5).Draw(t, "digests") {
			other, err := wormhole.ParseDigest(node.Prefix.String() + hex(64-node.Prefix.Len()).Draw(t, "suffix"))
			if err != nil {
				t.Fatal(err)
			}
			node.Consumed = node.Consumed.With(other)
		}
		return node
	case "state":
		state := &wormhole.CoreState{
			Operator: party.Draw(t, "operator"), GuardianGovernance: party.Draw(t, "governance"),
			ChainID: rapid.Int64().Draw(t, "chain"), GovernanceChainID: rapid.Int64().Draw(t, "governance chain"),
			GovernanceContract: hex(64).Draw(t, "contract"), GuardianSetIndex: rapid.Int64().Draw(t, "index"),
			GuardianSets: map[int64]wormhole.GuardianSet{}, MessageFee: rapid.Int64().Draw(t, "fee"),
		}
		if rapid.Bool().Draw(t, "observed") {
			state.GuardianObserver = party.Draw(t, "observer")
		}
		for range rapid.IntRange(0, 3).Draw(t, "sets") {
			set := wormhole.GuardianSet{Keys: rapid.SliceOfN(hex(40), 0, 3).Draw(t, "keys")}
			if rapid.Bool().Draw(t, "expires") {
				at := time.UnixMicro(rapid.Int64Range(-62135596800000000, 253402300799999999).Draw(t, "expiration")).UTC()
				set.Expiration = &at
			}
			state.GuardianSets[rapid.Int64().Draw(t, "set")] = set
		}
		state.ConsumedGovernance = rapid.SliceOfNDistinct(hex(64), 0, 3, rapid.ID[string]).Draw(t, "consumed")
		slices.Sort(state.ConsumedGovernance)
		return state
	case "roots":
		granted := rapid.SliceOfNDistinct(party, 0, 4, rapid.ID[string]).Draw(t, "granted")
		slices.Sort(granted)
		return &wormhole.ReplayRootRegistry{Operator: party.Draw(t, "operator"), Granted: append([]string{}, granted...)}
	case "emitters":
		registry := &wormhole.EmitterRegistry{Operator: party.Draw(t, "operator"), NextID: rapid.Int64Min(0).Draw(t, "next")}
		if rapid.Bool().Draw(t, "observed") {
			registry.GuardianObserver = party.Draw(t, "observer")
		}
		return registry
	default:
		return &wormhole.Emitter{
			Operator: party.Draw(t, "operator"), Owner: party.Draw(t, "owner"), EmitterID: rapid.Int64Min(0).Draw(t, "id"),
			EmitterAddress: hex(64).Draw(t, "address"), Sequence: rapid.Int64Min(0).Draw(t, "sequence"),
		}
	}
}

// with is the record with another value for the label.
func with(r damlvalue.Record, label string, v damlvalue.Value) damlvalue.Record {
	for i := range r.Fields {
		if r.Fields[i].Label == label {
			r.Fields[i].Value = v
		}
	}
	return r
}

func setOf(keys ...damlvalue.Value) damlvalue.Record {
	m := damlvalue.GenMap{}
	for _, k := range keys {
		m = append(m, damlvalue.GenMapEntry{Key: k, Value: damlvalue.Unit{}})
	}
	return damlvalue.Record{Fields: []damlvalue.Field{{Label: "map", Value: m}}}
}

func BenchmarkDecodeFullNode(b *testing.B) {
	digests := make([]wormhole.Digest, 128)
	for i := range digests {
		body := sampleBody(uint64(i))
		digests[i] = body.Digest()
	}
	record := withoutLabels(wormhole.Encode(&wormhole.ReplayNode{Consumer: "c", Operator: "o", SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(digests...)})).(damlvalue.Record)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wormhole.Decode(wormhole.ReplayNodeTemplate, record); err != nil {
			b.Fatal(err)
		}
	}
}
