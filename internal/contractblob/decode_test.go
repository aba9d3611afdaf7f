package contractblob

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// everything is a contract with a value of each kind in its argument, and a key.
func everything() *Contract {
	id := ContractID{}
	id.raw = [69]byte{33: 0xca, 34: 0x12, 35: 0x12, 36: 0x20}
	return &Contract{
		SerializationVersion: SerializationKeyed,
		ContractID:           id,
		PackageName:          "a-package_1",
		TemplateID:           damlvalue.TypeName{PackageID: "0a", Module: "A.B$.C", Entity: "T.U"},
		Argument: record(damlvalue.TypeName{},
			"", i(-1), "", i(1<<62), "", s("é"), "", s(""), "", damlvalue.Party("p::1"), "", damlvalue.ContractID("00"+strings.Repeat("ab", 32)),
			"", b(true), "", b(false), "", damlvalue.Unit{}, "", damlvalue.Timestamp(minMicros), "", damlvalue.Timestamp(maxMicros),
			"", damlvalue.Date(minDays), "", damlvalue.Date(maxDays), "", n("-0.5"), "", n("0."),
			"", o{}, "", o{Value: o{}}, "", o{Value: s("x")}, "", l{}, "", l{i(1), i(2)},
			"", tm{}, "", tm{te{Key: "", Value: i(0)}, te{Key: "k", Value: i(1)}}, "", gm{}, "", gm{ge{Key: i(2), Value: s("v")}},
			"", damlvalue.Variant{Constructor: "Left", Rank: -1, Value: i(0)}, "", damlvalue.Enum{Constructor: "Red", Rank: -1},
			"", record(damlvalue.TypeName{}), "", o{},
		),
		Signatories: []string{"a::1", "m::1", "z::1"},
		Observers:   []string{"b::1"},
		CreatedAt:   -1,
		Salt:        [32]byte{31: 7},
		Key:         &Key{Value: s("key"), Maintainers: []string{"m::1"}, Hash: [32]byte{1, 2, 3}},
	}
}

func mustEncode(t testing.TB, c *Contract) []byte {
	blob, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

func TestEveryKindSurvives(t *testing.T) {
	c := everything()
	blob := mustEncode(t, c)
	got, err := Decode(blob)
	if err != nil {
		t.Fatal(err)
	}
	if d := difference(c.Argument, got.Argument); d != "" || len(got.Argument.Fields) != len(c.Argument.Fields) {
		t.Errorf("argument: %s; %d fields, want %d", d, len(got.Argument.Fields), len(c.Argument.Fields))
	}
	if got.TemplateID != c.TemplateID || got.CreatedAt != -1 || got.Key == nil || got.Key.Hash != c.Key.Hash || !bytes.Equal([]byte(got.Signatories[1]), []byte("m::1")) {
		t.Errorf("got %+v", got)
	}
	if again := mustEncode(t, got); !bytes.Equal(again, blob) {
		t.Errorf("encoded again\n got %x\nwant %x", again, blob)
	}
	// The key's hash and maintainers, and the signatories that are maintainers, are part of the unicum.
	hash := [32]byte{}
	unicum := got.unicum(hash)
	got.Key.Hash[0] ^= 1
	if got.unicum(hash) == unicum {
		t.Error("the key's hash is not covered")
	}
	got.Key.Hash[0] ^= 1
	got.Key.Maintainers = append(got.Key.Maintainers, "z::1")
	if got.unicum(hash) == unicum {
		t.Error("the key's maintainers are not covered")
	}
}

// Bytes of Daml-LF values, and whether they are well formed.
func TestValueStrictness(t *testing.T) {
	field := func(num protowire.Number, content string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), content))
	}
	number := func(num protowire.Number, v uint64) string {
		return string(protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v))
	}
	fixed := func(num protowire.Number, v uint64) string {
		return string(protowire.AppendFixed64(protowire.AppendTag(nil, num, protowire.Fixed64Type), v))
	}
	unit := field(unitField, "")
	nested := func(depth int) string {
		v := unit
		for range depth {
			v = field(optionalField, field(innerField, v))
		}
		return v
	}
	var negative int64 = -1
	for _, c := range []struct {
		name, bytes string
		ok          bool
	}{
		{"unit", unit, true},
		{"nothing", "", false},
		{"two values", unit + unit, false},
		{"unit with content", field(unitField, unit), false},
		{"unknown field", field(17, ""), false},
		{"field number beyond a byte", field(1001, ""), false},
		{"bool", number(boolField, 1), true},
		{"bool of 2", number(boolField, 2), false},
		{"bool as bytes", field(boolField, "1"), false},
		{"int as fixed", fixed(intField, 1), false},
		{"int in a group", string(protowire.AppendTag(nil, intField, protowire.StartGroupType)), false},
		{"negative date", number(dateField, uint64(negative)), true},
		{"negative date of 32 bits", number(dateField, uint64(uint32(negative))), false},
		{"date beyond 9999", number(dateField, maxDays+1), false},
		{"time beyond 9999", fixed(timestampField, maxMicros+1), false},
		{"unknown time", fixed(timestampField, 1<<63), false},
		{"numeric", field(numericField, "-10.50"), true},
		{"numeric of 38 digits", field(numericField, strings.Repeat("9", 38)+"."), true},
		{"numeric of 39 digits", field(numericField, strings.Repeat("9", 38)+".0"), false},
		{"numeric of scale 37", field(numericField, "0."+strings.Repeat("9", 37)), true},
		{"numeric of scale 38", field(numericField, "0."+strings.Repeat("9", 38)), false},
		{"numeric without point", field(numericField, "1"), false},
		{"numeric with leading zero", field(numericField, "01.0"), false},
		{"numeric with plus", field(numericField, "+1.0"), false},
		{"numeric -0", field(numericField, "-0.0"), false},
		{"numeric of letters", field(numericField, "1.e5"), false},
		{"numeric with two points", field(numericField, "1.2.3"), false},
		{"empty numeric", field(numericField, ""), false},
		{"party", field(partyField, "a-B_c:: 1"), true},
		{"empty party", field(partyField, ""), false},
		{"party of 256 characters", field(partyField, strings.Repeat("p", 256)), false},
		{"party with slash", field(partyField, "a/b"), false},
		{"text", field(textField, "\u20ac"), true},
		{"text that is not UTF-8", field(textField, "\xff"), false},
		{"text with NUL", field(textField, "a\x00"), false},
		{"contract id", field(valueIDField, strings.Repeat("\x00", 33)), true},
		{"contract id of second generation", field(valueIDField, "\x01"+strings.Repeat("x", 44)), true},
		{"short contract id", field(valueIDField, strings.Repeat("\x00", 32)), false},
		{"long contract id", field(valueIDField, strings.Repeat("\x00", 128)), false},
		{"contract id of no generation", field(valueIDField, "\x02"+strings.Repeat("x", 44)), false},
		{"none", field(optionalField, ""), true},
		{"some nothing", field(optionalField, field(innerField, "")), false},
		{"some, twice", field(optionalField, field(innerField, unit)+field(innerField, unit)), false},
		{"some in field 2", field(optionalField, field(2, unit)), false},
		{"list", field(listField, field(elementsField, unit)+field(elementsField, unit)), true},
		{"list with field 2", field(listField, field(2, unit)), false},
		{"list of numbers", field(listField, number(elementsField, 1)), false},
		{"list of nothing", field(listField, field(elementsField, "")), false},
		{"record", field(recordField, field(elementsField, field(innerField, unit))), true},
		{"record with a label", field(recordField, field(elementsField, field(innerField, unit)+field(2, "x"))), false},
		{"record with an empty field", field(recordField, field(elementsField, "")), false},
		{"map", field(genMapField, field(elementsField, field(1, unit)+field(2, unit))), true},
		{"map, value first", field(genMapField, field(elementsField, field(2, unit)+field(1, unit))), true},
		{"map without a key", field(genMapField, field(elementsField, field(2, unit))), false},
		{"map without a value", field(genMapField, field(elementsField, field(1, unit))), false},
		{"map, key twice", field(genMapField, field(elementsField, field(1, unit)+field(1, unit)+field(2, unit))), false},
		{"map with field 3", field(genMapField, field(elementsField, field(1, unit)+field(2, unit)+field(3, unit))), false},
		{"text map", field(textMapField, field(elementsField, field(2, unit))+field(elementsField, field(1, "a")+field(2, unit))), true},
		{"text map, not ascending", field(textMapField, field(elementsField, field(1, "b")+field(2, unit))+field(elementsField, field(1, "a")+field(2, unit))), false},
		{"text map, same key", field(textMapField, field(elementsField, field(1, "a")+field(2, unit))+field(elementsField, field(1, "a")+field(2, unit))), false},
		{"text map, key not UTF-8", field(textMapField, field(elementsField, field(1, "\xc3")+field(2, unit))), false},
		{"text map, number as key", field(textMapField, field(elementsField, number(1, 1)+field(2, unit))), false},
		{"variant", field(variantField, field(1, "Left")+field(2, unit)), true},
		{"variant without a constructor", field(variantField, field(2, unit)), false},
		{"variant with a bad constructor", field(variantField, field(1, "1")+field(2, unit)), false},
		{"variant without a value", field(variantField, field(1, "Left")), false},
		{"enum", field(enumField, field(1, "Red")), true},
		{"enum without a constructor", field(enumField, ""), false},
		{"enum of a number", field(enumField, number(1, 1)), false},
		{"enum in field 2", field(enumField, field(2, "Red")), false},
		{"100 deep", nested(100), true},
		{"101 deep", nested(101), false},
		{"cut off", field(textField, "abc")[:4], false},
		{"length beyond the end", "\x42\xff\xff\xff\xff\x7f", false},
		{"endless length", "\x42\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", false},
		{"field number 0", "\x02\x00", false},
	} {
		v, err := decodeValue("value", []byte(c.bytes))
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, %v", c.name, v, err)
		}
	}
}

// What is wrong in a contract is refused alike when it is written and when it is read.
func TestContractStrictness(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *Contract)
		kind   error
	}{
		{"no id", func(c *Contract) { c.ContractID = ContractID{} }, ErrMalformed},
		{"no package name", func(c *Contract) { c.PackageName = "" }, ErrMalformed},
		{"package name with a dot", func(c *Contract) { c.PackageName = "a.b" }, ErrMalformed},
		{"no package id", func(c *Contract) { c.TemplateID.PackageID = "" }, ErrMalformed},
		{"long package id", func(c *Contract) { c.TemplateID.PackageID = strings.Repeat("0", 65) }, ErrMalformed},
		{"no module", func(c *Contract) { c.TemplateID.Module = "" }, ErrMalformed},
		{"module with an empty segment", func(c *Contract) { c.TemplateID.Module = "A..B" }, ErrMalformed},
		{"module with a digit first", func(c *Contract) { c.TemplateID.Module = "A.1" }, ErrMalformed},
		{"long module", func(c *Contract) { c.TemplateID.Module = strings.Repeat("A.", 500) + "A" }, ErrMalformed},
		{"no entity", func(c *Contract) { c.TemplateID.Entity = "" }, ErrMalformed},
		{"no signatories", func(c *Contract) { c.Signatories, c.Key = nil, nil }, ErrMalformed},
		{"signatories out of order", func(c *Contract) { c.Signatories = []string{"m::1", "z::1", "a::1"} }, ErrMalformed},
		{"signatory twice", func(c *Contract) { c.Signatories = []string{"a::1", "a::1", "m::1"} }, ErrMalformed},
		{"observers out of order", func(c *Contract) { c.Observers = []string{"b", "a"} }, ErrMalformed},
		{"observer who signs", func(c *Contract) { c.Observers = []string{"z::1"} }, ErrMalformed},
		{"no party", func(c *Contract) { c.Observers = []string{""} }, ErrMalformed},
		{"time unknown", func(c *Contract) { c.CreatedAt = -1 << 63 }, ErrMalformed},
		{"year 10000", func(c *Contract) { c.CreatedAt = maxMicros + 1 }, ErrMalformed},
		{"version dev", func(c *Contract) { c.SerializationVersion = "dev" }, ErrUnsupported},
		{"key without version 2", func(c *Contract) { c.SerializationVersion = SerializationKeyless }, ErrMalformed},
		{"key without maintainers", func(c *Contract) { c.Key.Maintainers = nil }, ErrMalformed},
		{"maintainer who does not sign", func(c *Contract) { c.Key.Maintainers = []string{"n::1"} }, ErrMalformed},
		{"text with NUL", func(c *Contract) { c.Argument.Fields[0].Value = s("\x00") }, ErrMalformed},
		{"no value", func(c *Contract) { c.Argument.Fields[0].Value = nil }, ErrMalformed},
		{"contract id that is not hex", func(c *Contract) { c.Argument.Fields[0].Value = damlvalue.ContractID("0g") }, ErrMalformed},
		{"key without value", func(c *Contract) { c.Key.Value = nil }, ErrMalformed},
	} {
		contract := everything()
		c.change(contract)
		if _, err := Encode(contract); !errors.Is(err, c.kind) {
			t.Errorf("%s: encoded: %v, want %v", c.name, err, c.kind)
		}
		// The same, written without looking.
		var p prepender
		if err := p.contract(contract); err != nil {
			continue
		}
		p.close(versionedPayloadField, 0)
		p.textField(versionedVersionField, contract.SerializationVersion)
		got, err := Decode(p.written())
		// A blob gives maintainers apart, so that they can't be anything but signatories.
		if strings.HasPrefix(c.name, "maintainer who") && err == nil && len(got.Signatories) == 4 {
			continue
		}
		if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: decoded: %v, want %v", c.name, err, c.kind)
		}
	}
}

// The messages around the contract: fields that nobody knows, that are there twice, of a wrong wire type, or of a kind not known.
func TestEnvelopeStrictness(t *testing.T) {
	blob := mustEncode(t, everything())
	e, err := openEnvelope(blob)
	if err != nil {
		t.Fatal(err)
	}
	payload := e.argument // only to find the payload's place
	at := bytes.Index(blob, payload)
	if at < 0 {
		t.Fatal("no argument in the blob")
	}
	var versioned []byte
	m := newMessage("versioned", blob)
	if err := m.each(func() error {
		if m.num == versionedPayloadField {
			versioned = blob[m.lo:m.hi]
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	with := func(version string, more []byte) []byte {
		var p prepender
		p.bytesField(versionedPayloadField, append(bytes.Clone(versioned), more...))
		p.textField(versionedVersionField, version)
		return p.written()
	}
	text := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	number := func(num protowire.Number) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), 1)
	}
	for _, c := range []struct {
		name string
		blob []byte
		kind error
	}{
		{"as it was", with("2", nil), nil},
		{"empty", nil, ErrMalformed},
		{"too large", make([]byte, MaxBlobBytes+1), ErrMalformed},
		{"no version", with("", nil), ErrMalformed},
		{"another version", with("2.9", nil), ErrUnsupported},
		{"version twice", append(with("2", nil), text(versionedVersionField, "2")...), ErrMalformed},
		{"payload twice", append(with("2", nil), text(versionedPayloadField, "")...), ErrMalformed},
		{"a third field", append(with("2", nil), text(3, "")...), ErrMalformed},
		{"no payload", text(versionedVersionField, "2"), ErrMalformed},
		{"unknown field", with("2", text(10, "x")), ErrMalformed},
		{"unknown field 1000", with("2", text(1000, "x")), ErrMalformed},
		{"unknown field with bit 33", with("2", text(33, "x")), ErrMalformed},
		{"package version", with("2", number(packageVersionField)), ErrUnsupported},
		{"contract id twice", with("2", text(contractIDField, "")), ErrMalformed},
		{"package name twice", with("2", text(packageNameField, "b")), ErrMalformed},
		{"template twice", with("2", text(templateIDField, "")), ErrMalformed},
		{"argument twice", with("2", text(createArgField, "")), ErrMalformed},
		{"time twice", with("2", protowire.AppendFixed64(protowire.AppendTag(nil, createdAtField, protowire.Fixed64Type), 1)), ErrMalformed},
		{"key twice", with("2", text(keyField, "")), ErrMalformed},
		{"signatory as a number", with("2", number(signatoriesField)), ErrMalformed},
		{"time as a number", with("2", number(createdAtField)), ErrMalformed},
		{"signatory out of order", with("2", text(signatoriesField, "a")), ErrMalformed},
		{"signatory who is a maintainer", with("2", text(observersField, "m::1")), ErrMalformed},
		{"cut off", with("2", nil)[:len(blob)-1], ErrMalformed},
	} {
		if _, err := Decode(c.blob); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", c.name, err, c.kind)
		}
	}
}

func TestAuthenticationStrictness(t *testing.T) {
	message := func(version, algorithm uint64, salt []byte) []byte {
		var p prepender
		p.varintField(untypedVersionField, version)
		end := p.size()
		p.bytesField(saltBytesField, salt)
		p.varintField(saltAlgorithmField, algorithm)
		p.close(contractSaltField, end)
		p.close(untypedDataField, end)
		return p.written()
	}
	for _, c := range []struct {
		name  string
		bytes []byte
		kind  error
	}{
		{"right", message(30, 1, make([]byte, 32)), nil},
		{"later version", message(31, 1, make([]byte, 32)), ErrUnsupported},
		{"another algorithm", message(30, 2, make([]byte, 32)), ErrUnsupported},
		{"short salt", message(30, 1, make([]byte, 31)), ErrMalformed},
		{"long salt", message(30, 1, make([]byte, 33)), ErrMalformed},
		{"more", append(message(30, 1, make([]byte, 32)), 0x18, 0x01), ErrMalformed},
		{"nothing", nil, ErrUnsupported},
	} {
		if _, err := decodeAuthentication(c.bytes); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", c.name, err, c.kind)
		}
	}
}

// anyValue draws a value of any kind, as deep as depth.
func anyValue(depth int) *rapid.Generator[damlvalue.Value] {
	return rapid.Custom(func(t *rapid.T) damlvalue.Value {
		kinds := 9
		if depth > 0 {
			kinds = 15
		}
		inner := func() damlvalue.Value { return anyValue(depth-1).Draw(t, "inner") }
		size := func() int { return rapid.IntRange(0, 3).Draw(t, "size") }
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return damlvalue.Unit{}
		case 1:
			return damlvalue.Bool(rapid.Bool().Draw(t, "bool"))
		case 2:
			return damlvalue.Int(rapid.Int64().Draw(t, "int"))
		case 3:
			return damlvalue.Date(rapid.Int32Range(minDays, maxDays).Draw(t, "date"))
		case 4:
			return damlvalue.Timestamp(rapid.Int64Range(minMicros, maxMicros).Draw(t, "time"))
		case 5:
			return damlvalue.Numeric(rapid.StringMatching(`-?[1-9][0-9]{0,19}\.[0-9]{0,15}`).Draw(t, "numeric"))
		case 6:
			return damlvalue.Party(rapid.StringMatching(`[A-Za-z0-9:_ -]{1,20}`).Draw(t, "party"))
		case 7:
			return damlvalue.Text(strings.ReplaceAll(rapid.String().Draw(t, "text"), "\x00", ""))
		case 8:
			return damlvalue.Enum{Constructor: rapid.StringMatching(`[A-Z][a-z]*`).Draw(t, "enum"), Rank: -1}
		case 9:
			return damlvalue.Optional{Value: inner()}
		case 10:
			return damlvalue.Variant{Constructor: "Left", Rank: -1, Value: inner()}
		case 11:
			out := damlvalue.List{}
			for range size() {
				out = append(out, inner())
			}
			return out
		case 12:
			out := damlvalue.GenMap{}
			for range size() {
				out = append(out, damlvalue.GenMapEntry{Key: inner(), Value: inner()})
			}
			return out
		case 13:
			out := damlvalue.TextMap{}
			for _, key := range []string{"", "a", "ab"}[:size()] {
				out = append(out, damlvalue.TextMapEntry{Key: key, Value: inner()})
			}
			return out
		default:
			out := damlvalue.Record{}
			for range size() {
				out.Fields = append(out.Fields, damlvalue.Field{Value: inner()})
			}
			return out
		}
	})
}

func TestValuesSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(4).Draw(t, "value")
		var p prepender
		if err := p.prependValue(v, 0); err != nil {
			t.Fatal(err)
		}
		got, err := decodeValue("value", p.written())
		if err != nil {
			t.Fatal(err)
		}
		if d := difference(v, got); d != "" {
			t.Fatalf("decoded%s", d)
		}
		var again prepender
		if err := again.prependValue(got, 0); err != nil || !bytes.Equal(again.written(), p.written()) {
			t.Fatalf("encoded again: %v", err)
		}
		if normalForm := normal(v); !same(v, normalForm) {
			t.Fatalf("its normal form differs%s", difference(v, normalForm))
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(mustEncode(f, everything()))
	keyless := everything()
	keyless.Key, keyless.SerializationVersion = nil, SerializationKeyless
	seed := mustEncode(f, keyless)
	f.Add(seed)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		flipped := bytes.Clone(seed)
		flipped[random.IntN(len(flipped))] ^= byte(1 << random.IntN(8))
		f.Add(flipped)
	}
	f.Fuzz(func(t *testing.T, blob []byte) {
		c, err := Decode(blob)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("an error of no kind: %v", err)
			}
			return
		}
		canonical, err := Encode(c)
		if err != nil {
			t.Fatalf("decoded, but can't be encoded: %v", err)
		}
		again, err := Decode(canonical)
		if err != nil {
			t.Fatalf("what was encoded can't be decoded: %v", err)
		}
		if twice, err := Encode(again); err != nil || !bytes.Equal(twice, canonical) {
			t.Fatalf("encoded twice: %v\n%x\n%x", err, canonical, twice)
		}
		if err := Recompute(c, c.Argument); err == nil {
			t.Log("a contract id that belongs to its contract")
		}
	})
}
