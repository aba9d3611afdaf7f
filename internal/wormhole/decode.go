package wormhole

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// ErrShape is wrapped by Decode's error for a record that is of no known version of its template.
var ErrShape = damlvalue.ErrShape

// ErrUnknownTemplate is wrapped by Decode's error for a template that is not served.
var ErrUnknownTemplate = errors.New("template is not served")

// MaxNamespace is the greatest length of a replay scope's namespace in characters.
const MaxNamespace = 128

// Decode reads a contract's payload. The template is known by its module and name; its package id is not looked at.
//
// A record with labels is read by label: unknown fields are ignored, whatever their type. A record without is read by the
// version that its fields fit: newer fields are ignored if they are Optional. In both, trailing None fields may be missing.
//
// The error wraps ErrUnknownTemplate, or ErrShape and names the template, the field, what was wanted and what was found.
// Content that the model can't produce is no error but a *Malformed.
func Decode(template damlvalue.TypeName, record damlvalue.Record) (Payload, error) {
	name := damlvalue.TypeName{Module: template.Module, Entity: template.Entity}
	d := &decoder{template: name.QualifiedName(), record: record}
	if id := record.ID; id.Module != "" || id.Entity != "" {
		if id.Module != name.Module || id.Entity != name.Entity {
			return nil, fmt.Errorf("decode %s: %w: the record is a %s", d.template, ErrShape, id.QualifiedName())
		}
	}
	var payload Payload
	switch name {
	case ReplayNodeTemplate:
		payload = d.replayNode()
	case CoreStateTemplate:
		payload = d.coreState()
	case ReplayRootRegistryTemplate:
		payload = d.replayRootRegistry()
	case EmitterRegistryTemplate:
		payload = d.emitterRegistry()
	case EmitterTemplate:
		payload = d.emitter()
	default:
		return nil, fmt.Errorf("decode %s: %w", d.template, ErrUnknownTemplate)
	}
	if d.err != nil {
		return nil, d.err
	}
	if d.fault != "" {
		return &Malformed{Template: d.template, Operator: d.operator, Consumer: d.consumer, Fault: d.fault}, nil
	}
	return payload, nil
}

// DecodeReplayRootRequest reads a ReplayRootRequest's payload. The error wraps ErrShape.
func DecodeReplayRootRequest(record damlvalue.Record) (*ReplayRootRequest, error) {
	d := &decoder{template: ReplayRootRequestTemplate.QualifiedName(), record: record}
	d.version()
	request := &ReplayRootRequest{Consumer: d.party("consumer"), Operator: d.party("operator"), SplitThreshold: d.int("splitThreshold")}
	return request, d.err
}

// DecodeEmitterRequest reads an EmitterRequest's payload. The error wraps ErrShape.
func DecodeEmitterRequest(record damlvalue.Record) (*EmitterRequest, error) {
	d := &decoder{template: EmitterRequestTemplate.QualifiedName(), record: record}
	d.version()
	request := &EmitterRequest{Owner: d.party("owner"), Operator: d.party("operator")}
	return request, d.err
}

// decoder reads one record. It keeps the first error and the first fault; after an error its answers are zero values.
type decoder struct {
	template string
	record   damlvalue.Record
	// schema gives the fields' places where the record has no labels; nil where it has.
	schema *damlvalue.RecordType
	err    error
	fault  string
	// operator and consumer are what was read under these labels, for Malformed.
	operator, consumer string
}

func (d *decoder) replayNode() Payload {
	d.version()
	node := &ReplayNode{
		Consumer: d.party("consumer"),
		Operator: d.party("operator"),
	}
	if d.has("namespace") {
		node.Namespace = Namespace{Present: true, Value: d.text("namespace")}
		d.check(utf8.RuneCountInString(node.Namespace.Value) <= MaxNamespace, "namespace has more than %d characters", MaxNamespace)
	}
	node.Prefix = d.prefix("prefix")
	node.SplitThreshold = d.int("splitThreshold")
	d.check(minSplitThreshold <= node.SplitThreshold && node.SplitThreshold <= maxSplitThreshold,
		"splitThreshold %d is not in %d..%d", node.SplitThreshold, minSplitThreshold, maxSplitThreshold)
	node.Consumed = d.suffixes("consumed", node.Prefix)
	return node
}

func (d *decoder) coreState() Payload {
	d.version()
	state := &CoreState{
		Operator:           d.party("operator"),
		GuardianGovernance: d.party("guardianGovernance"),
	}
	if d.has("guardianObserver") {
		state.GuardianObserver = d.party("guardianObserver")
	}
	state.ChainID = d.int("chainId")
	state.GovernanceChainID = d.int("governanceChainId")
	state.GovernanceContract = d.hexText("governanceContract", 64)
	state.GuardianSetIndex = d.int("guardianSetIndex")
	state.GuardianSets = d.guardianSets("guardianSets")
	state.MessageFee = d.int("messageFee")
	for _, key := range d.set("consumedGovernance") {
		digest, ok := key.(damlvalue.Text)
		if !ok {
			d.wrong("consumedGovernance", "Text", key)
			return nil
		}
		d.check(len(digest) == DigestNibbles && isLowerHex(string(digest)), "consumedGovernance: %q is not a digest in lowercase hex", clip(string(digest)))
		state.ConsumedGovernance = append(state.ConsumedGovernance, string(digest))
	}
	slices.Sort(state.ConsumedGovernance)
	return state
}

func (d *decoder) guardianSets(label string) map[int64]GuardianSet {
	entries, ok := d.field(label).(damlvalue.GenMap)
	if !ok {
		d.wrong(label, "Map", d.field(label))
		return nil
	}
	sets := make(map[int64]GuardianSet, len(entries))
	for _, e := range entries {
		index, ok := e.Key.(damlvalue.Int)
		if !ok {
			d.wrong(label+" key", "Int", e.Key)
			return nil
		}
		record, ok := e.Value.(damlvalue.Record)
		if !ok {
			d.wrong(label+" value", "record", e.Value)
			return nil
		}
		sets[int64(index)] = d.guardianSet(label, record)
	}
	d.check(len(sets) == len(entries), "%s: an index occurs twice", label)
	return sets
}

func (d *decoder) guardianSet(label string, record damlvalue.Record) GuardianSet {
	var set GuardianSet
	keys, ok := record.Field("keys", 0).(damlvalue.List)
	if !ok {
		d.wrong(label+".keys", "List", record.Field("keys", 0))
		return set
	}
	set.Keys = make([]string, len(keys))
	for i, k := range keys {
		key, ok := k.(damlvalue.Text)
		if !ok {
			d.wrong(label+".keys", "Text", k)
			return set
		}
		d.check(len(key) == 40 && isLowerHex(string(key)), "%s: guardian %q is not an address of 20 bytes in lowercase hex", label, clip(string(key)))
		set.Keys[i] = string(key)
	}
	switch expiration := record.Field("expirationTime", 1).(type) {
	case nil: // a trailing None
	case damlvalue.Optional:
		switch at := expiration.Value.(type) {
		case nil:
		case damlvalue.Timestamp:
			t := time.UnixMicro(int64(at)).UTC()
			set.Expiration = &t
		default:
			d.wrong(label+".expirationTime", "Time", at)
		}
	default:
		d.wrong(label+".expirationTime", "Optional", expiration)
	}
	return set
}

func (d *decoder) replayRootRegistry() Payload {
	// A later version keeps no list of consumers; of its fields only the first is known (see Schemas), so that without labels
	// it is told by what its second field is not.
	registry := &ReplayRootRegistry{}
	if d.record.Labelled() {
		registry.Operator = d.party("operator")
		if !d.has("granted") {
			return registry
		}
	} else {
		d.schema = &rootRegistryGranted
		registry.Operator = d.party("operator")
		if _, isRecord := d.field("granted").(damlvalue.Record); !isRecord {
			return registry
		}
	}
	registry.Granted = []string{}
	for _, key := range d.set("granted") {
		consumer, ok := key.(damlvalue.Party)
		if !ok {
			d.wrong("granted", "Party", key)
			return nil
		}
		registry.Granted = append(registry.Granted, string(consumer))
	}
	slices.Sort(registry.Granted)
	return registry
}

func (d *decoder) emitterRegistry() Payload {
	d.version()
	registry := &EmitterRegistry{Operator: d.party("operator")}
	if d.has("guardianObserver") {
		registry.GuardianObserver = d.party("guardianObserver")
	}
	registry.NextID = d.int("nextId")
	d.check(registry.NextID >= 0, "nextId %d is negative", registry.NextID)
	return registry
}

func (d *decoder) emitter() Payload {
	d.version()
	emitter := &Emitter{
		Operator:       d.party("operator"),
		Owner:          d.party("owner"),
		EmitterID:      d.int("emitterId"),
		EmitterAddress: d.hexText("emitterAddress", 64),
		Sequence:       d.int("sequence"),
	}
	d.check(emitter.EmitterID >= 0, "emitterId %d is negative", emitter.EmitterID)
	d.check(emitter.Sequence >= 0, "sequence %d is negative", emitter.Sequence)
	return emitter
}

// version finds the template's version that an unlabelled record fits. A labelled record needs none.
func (d *decoder) version() {
	if d.record.Labelled() {
		return
	}
	versions := schemas[d.template]
	best, misfit := -1, error(nil)
	for i := range versions {
		at, err := fits(d.record, &versions[i])
		if err == nil {
			d.schema = &versions[i]
			return
		}
		if at > best {
			best, misfit = at, err
		}
	}
	d.fail(fmt.Errorf("decode %s without labels: %w", d.template, misfit))
}

// fits tells whether the record can be of the type, by the types of its fields and not of their parts; if not, at which field
// the two part.
func fits(record damlvalue.Record, t *damlvalue.RecordType) (int, error) {
	for i, f := range record.Fields {
		if i >= len(t.Fields) {
			if _, optional := f.Value.(damlvalue.Optional); !optional {
				return i, fmt.Errorf("%w: field %d: only an Optional can follow %q, got %s", ErrShape, i+1, t.Fields[len(t.Fields)-1].Label, damlvalue.Kind(f.Value))
			}
			continue
		}
		if want := kindOf(t.Fields[i].Type); damlvalue.Kind(f.Value) != want {
			return i, fmt.Errorf("%w: field %q: want %s, got %s", ErrShape, t.Fields[i].Label, want, damlvalue.Kind(f.Value))
		}
	}
	for i := len(record.Fields); i < len(t.Fields); i++ {
		if kindOf(t.Fields[i].Type) != "Optional" {
			return i, fmt.Errorf("%w: field %q: want %s, got no value", ErrShape, t.Fields[i].Label, kindOf(t.Fields[i].Type))
		}
	}
	return len(t.Fields), nil
}

// kindOf is damlvalue.Kind of the type's values, for the types that the templates use.
func kindOf(t damlvalue.Type) string {
	switch t := t.(type) {
	case damlvalue.Primitive:
		return t.String()
	case damlvalue.OptionalType:
		return "Optional"
	case damlvalue.ListType:
		return "List"
	case damlvalue.GenMapType:
		return "Map"
	case damlvalue.RecordType:
		return "record"
	default:
		return fmt.Sprintf("%T", t)
	}
}

// field is the record's value for the label, nil where it is absent.
func (d *decoder) field(label string) damlvalue.Value {
	return d.record.Field(label, d.position(label))
}

// position is the label's place in the schema, -1 where there is none.
func (d *decoder) position(label string) int {
	if d.schema == nil {
		return -1
	}
	return slices.IndexFunc(d.schema.Fields, func(f damlvalue.FieldType) bool { return f.Label == label })
}

func (d *decoder) has(label string) bool { return d.field(label) != nil }

func (d *decoder) party(label string) string {
	v, ok := d.field(label).(damlvalue.Party)
	if !ok {
		d.wrong(label, "Party", d.field(label))
		return ""
	}
	d.check(v != "", "%s is empty", label)
	switch label {
	case "operator":
		d.operator = string(v)
	case "consumer":
		d.consumer = string(v)
	}
	return string(v)
}

func (d *decoder) int(label string) int64 {
	v, ok := d.field(label).(damlvalue.Int)
	if !ok {
		d.wrong(label, "Int", d.field(label))
	}
	return int64(v)
}

func (d *decoder) text(label string) string {
	v, ok := d.field(label).(damlvalue.Text)
	if !ok {
		d.wrong(label, "Text", d.field(label))
	}
	return string(v)
}

// hexText is a text of that many lowercase hex digits.
func (d *decoder) hexText(label string, digits int) string {
	v := d.text(label)
	d.check(len(v) == digits && isLowerHex(v), "%s %q is not %d lowercase hex digits", label, clip(v), digits)
	return v
}

func (d *decoder) prefix(label string) Prefix {
	v := d.text(label)
	ok := len(v) <= MaxPrefixNibbles && isLowerHex(v)
	d.check(ok, "%s %q is not at most %d lowercase hex digits", label, clip(v), MaxPrefixNibbles)
	if !ok {
		return Prefix{}
	}
	return Prefix{v}
}

// set is the keys of a DA.Set.Types:Set, in the ledger's order.
func (d *decoder) set(label string) []damlvalue.Value {
	record, ok := d.field(label).(damlvalue.Record)
	if !ok {
		d.wrong(label, "record DA.Set.Types:Set", d.field(label))
		return nil
	}
	entries, ok := record.Field("map", 0).(damlvalue.GenMap)
	if !ok {
		d.wrong(label+".map", "Map", record.Field("map", 0))
		return nil
	}
	keys := make([]damlvalue.Value, len(entries))
	for i, e := range entries {
		if _, unit := e.Value.(damlvalue.Unit); !unit {
			d.wrong(label+".map value", "Unit", e.Value)
			return nil
		}
		keys[i] = e.Key
	}
	return keys
}

// suffixes is a node's set of consumed digests: each of the record's suffixes after the prefix.
func (d *decoder) suffixes(label string, prefix Prefix) SuffixSet {
	keys := d.set(label)
	packed := make([]byte, len(keys)*digestBytes)
	var digits [DigestNibbles]byte
	copy(digits[:], prefix.nibbles)
	ascending := true
	for i, key := range keys {
		suffix, ok := key.(damlvalue.Text)
		if !ok {
			d.wrong(label, "Text", key)
			return SuffixSet{}
		}
		if len(suffix) != DigestNibbles-prefix.Len() || !isLowerHex(string(suffix)) {
			d.check(false, "%s: suffix %q is not %d lowercase hex digits", label, clip(string(suffix)), DigestNibbles-prefix.Len())
			return SuffixSet{}
		}
		copy(digits[prefix.Len():], suffix)
		at := i * digestBytes
		if _, err := hex.Decode(packed[at:at+digestBytes], digits[:]); err != nil {
			d.check(false, "%s: suffix %q: %v", label, clip(string(suffix)), err)
			return SuffixSet{}
		}
		ascending = ascending && (i == 0 || bytes.Compare(packed[at-digestBytes:at], packed[at:at+digestBytes]) < 0)
	}
	if ascending {
		return SuffixSet{packed}
	}
	digests := make([]Digest, len(keys))
	for i := range digests {
		digests[i] = Digest(packed[i*digestBytes : (i+1)*digestBytes])
	}
	return NewSuffixSet(digests...)
}

// wrong keeps the error that the label's value is of another type.
func (d *decoder) wrong(label, want string, got damlvalue.Value) {
	d.fail(fmt.Errorf("decode %s: %w: field %q: want %s, got %s", d.template, ErrShape, label, want, damlvalue.Kind(got)))
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// check keeps the first fault of content.
func (d *decoder) check(ok bool, format string, args ...any) {
	if !ok && d.fault == "" {
		d.fault = fmt.Sprintf(format, args...)
	}
}

// clip keeps texts of others short enough for a message.
func clip(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	for cut := limit; cut > limit-utf8.UTFMax; cut-- {
		if utf8.RuneStart(s[cut]) {
			return s[:cut] + "…"
		}
	}
	return s[:limit] + "…"
}
