package contractblob

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Sealed is a created event blob of which everything was read but its argument. Whoever checks blobs that others hand out recomputes
// their ids straight from the argument's bytes: no values are made of them, so that it costs little more than the hash itself.
type Sealed struct{ envelope }

// Open reads a created event blob but for its argument. Its errors are those of Decode. The result refers to blob.
func Open(blob []byte) (*Sealed, error) {
	s := &Sealed{}
	if err := s.open(blob); err != nil {
		return nil, fmt.Errorf("created event blob: %w", err)
	}
	return s, nil
}

// Contract is what the blob says, without the argument and not to be changed.
func (s *Sealed) Contract() *Contract { return &s.contract }

// Decode is the whole contract, as the function Decode gives it.
func (s *Sealed) Decode() (*Contract, error) {
	whole := s.envelope
	if err := whole.decodeArgument(); err != nil {
		return nil, fmt.Errorf("created event blob: %w", err)
	}
	return &whole.contract, nil
}

// Leaf is a value without parts in an argument, a map's keys included, but for units, numerics, enums and what is in variants and
// TextMaps.
type Leaf struct {
	// Field is the label of the argument's field that the value is in, at whatever depth.
	Field string
	Kind  damlvalue.Primitive
	// Bytes is the content of a Text, Party or ContractId, a part of the blob.
	Bytes []byte
	// Number is the content of an Int, Bool (0 or 1), Time or Date.
	Number int64
}

// Recompute checks that the contract's id of version V12 belongs to the blob, whose argument is of the type schema, and calls visit,
// unless it is nil, for the argument's leaves from the first to the last. Nil is what Recompute, the function, says nil to. Errors
// wrap ErrMalformed, damlvalue.ErrShape where the argument is not of that type, ErrMismatch, or ErrUnverifiable for ids of other
// versions, which say nothing about labels. After an error what visit was given is worth nothing.
func (s *Sealed) Recompute(schema damlvalue.Type, visit func(Leaf)) error {
	c := &s.contract
	if c.ContractID.Version() != V12 {
		return fmt.Errorf("computing a contract id by schema: %w: an id of version %s", ErrUnverifiable, c.ContractID.Version())
	}
	w := walker{digester: newDigester(), buf: s.argument, visit: visit}
	w.byte(encodingTyped)
	w.byte(purposeContract)
	w.text(c.PackageName)
	w.qualifiedName(c.TemplateID)
	if err := w.value(0, len(w.buf), schema, 0); err != nil {
		w.drop()
		return err
	}
	unicum := c.unicum(w.sum())
	got := [SuffixBytes]byte{idVersionMark, byte(V12), multihashSHA256, unicumBytes}
	copy(got[4:], unicum[:])
	return c.compareSuffix(got)
}

// walker hashes a serialized value along its type, as strictly as valueDecoder reads it.
type walker struct {
	*digester
	buf   []byte
	visit func(Leaf)
	field string
}

func (w *walker) malformed(format string, args ...any) error {
	return fmt.Errorf("create_arg: %w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

func (w *walker) misfit(want fmt.Stringer, num protowire.Number) error {
	return fmt.Errorf("create_arg: field %q: %w: want %s, got a value of kind %d", w.field, damlvalue.ErrShape, want, num)
}

// kindName names a kind of value that is no Primitive.
type kindName string

func (k kindName) String() string { return string(k) }

// head reads the field with a length that begins at at: its number, and its content's place. Nearly all heads are two bytes.
func (w *walker) head(at, hi int) (num protowire.Number, lo, end int, err error) {
	if at+1 < hi {
		tag, size := w.buf[at], int(w.buf[at+1])
		if tag < 0x80 && tag > 7 && tag&7 == byte(protowire.BytesType) && size < 0x80 && at+2+size <= hi {
			return protowire.Number(tag >> 3), at + 2, at + 2 + size, nil
		}
	}
	m := message{name: "create_arg", buf: w.buf[:hi], at: at}
	more, err := m.next()
	if err == nil && !more {
		err = w.malformed("a message without content")
	}
	if err == nil {
		err = m.want(protowire.BytesType)
	}
	return m.num, m.lo, m.hi, err
}

// sole is head for a message of exactly one field.
func (w *walker) sole(at, hi int) (num protowire.Number, lo, end int, err error) {
	num, lo, end, err = w.head(at, hi)
	if err == nil && end != hi {
		err = w.malformed("a message with more than one field")
	}
	return num, lo, end, err
}

// value hashes the Value in buf[lo:hi].
func (w *walker) value(lo, hi int, t damlvalue.Type, depth int) error {
	switch t := t.(type) {
	case damlvalue.Primitive:
		switch t {
		case damlvalue.IntType, damlvalue.BoolType, damlvalue.TimestampType, damlvalue.DateType:
			return w.number(lo, hi, t)
		case damlvalue.NumericType:
			return w.decoded(lo, hi, t)
		default:
			return w.bytesLeaf(lo, hi, t)
		}
	case damlvalue.OptionalType:
		lo, hi, some, err := w.optional(lo, hi)
		if err != nil {
			return err
		}
		w.byte(tagOptional)
		w.bool(some)
		if !some {
			return nil
		}
		return w.value(lo, hi, t.Elem, depth+1)
	case damlvalue.ListType:
		lo, hi, err := w.part(lo, hi, listField, kindName("List"))
		if err != nil {
			return err
		}
		w.byte(tagList)
		return w.elements(lo, hi, func(lo, hi int) error { return w.value(lo, hi, t.Elem, depth+1) })
	case damlvalue.GenMapType:
		lo, hi, err := w.part(lo, hi, genMapField, kindName("Map"))
		if err != nil {
			return err
		}
		w.byte(tagGenMap)
		if t.Key == damlvalue.TextType && t.Value == damlvalue.UnitType {
			return w.textSet(lo, hi, depth)
		}
		return w.elements(lo, hi, func(lo, hi int) error { return w.entry(lo, hi, t, depth) })
	case damlvalue.RecordType:
		lo, hi, err := w.part(lo, hi, recordField, kindName("record"))
		if err != nil {
			return err
		}
		return w.record(lo, hi, &t, depth)
	default:
		return w.decoded(lo, hi, t)
	}
}

// part is the content of a value that must be of the one kind, which has a length.
func (w *walker) part(at, hi int, want protowire.Number, kind fmt.Stringer) (lo, end int, err error) {
	if at < hi && w.buf[at]&7 != byte(protowire.BytesType) {
		return 0, 0, w.misfit(kind, protowire.Number(w.buf[at]>>3))
	}
	num, lo, end, err := w.sole(at, hi)
	if err == nil && num != want {
		err = w.misfit(kind, num)
	}
	return lo, end, err
}

// number hashes a value of fixed size.
func (w *walker) number(lo, hi int, t damlvalue.Primitive) error {
	m := message{name: "create_arg", buf: w.buf[:hi], at: lo}
	more, err := m.next()
	switch {
	case err != nil:
		return err
	case !more:
		return w.malformed("a value without content")
	case m.at != hi:
		return w.malformed("a value with more than one field")
	}
	var n int64
	typ := protowire.VarintType
	switch {
	case t == damlvalue.IntType && m.num == intField:
		n = protowire.DecodeZigZag(m.value)
	case t == damlvalue.BoolType && m.num == boolField:
		if n = int64(m.value); m.value > 1 {
			return w.malformed("a bool of %d", m.value)
		}
	case t == damlvalue.DateType && m.num == dateField:
		if n = int64(m.value); n < minDays || n > maxDays {
			return w.malformed("a date of %d days", n)
		}
	case t == damlvalue.TimestampType && m.num == timestampField:
		if n, typ = int64(m.value), protowire.Fixed64Type; n < minMicros || n > maxMicros {
			return w.malformed("a time of %d microseconds", n)
		}
	default:
		return w.misfit(t, m.num)
	}
	if err := m.want(typ); err != nil {
		return err
	}
	switch t {
	case damlvalue.BoolType:
		w.byte(tagBool)
		w.bool(n == 1)
	case damlvalue.DateType:
		w.byte(tagDate)
		w.int32(int(n))
	case damlvalue.TimestampType:
		w.byte(tagTimestamp)
		w.int64(n)
	default:
		w.byte(tagInt)
		w.int64(n)
	}
	w.leaf(Leaf{Kind: t, Number: n})
	return nil
}

// bytesFields are the numbers of the primitive values that have a length.
var bytesFields = [...]protowire.Number{
	damlvalue.TextType: textField, damlvalue.PartyType: partyField, damlvalue.ContractIDType: valueIDField, damlvalue.UnitType: unitField,
}

// bytesLeaf hashes a Text, Party, ContractId or Unit.
func (w *walker) bytesLeaf(at, end int, t damlvalue.Primitive) error {
	if int(t) >= len(bytesFields) {
		return w.decoded(at, end, t)
	}
	lo, hi, err := w.part(at, end, bytesFields[t], t)
	if err != nil {
		return err
	}
	content := w.buf[lo:hi]
	switch t {
	case damlvalue.TextType:
		if !plainText(content) {
			return w.malformed("a text that is not UTF-8 without NUL")
		}
		w.byte(tagText)
		w.bytes(content)
	case damlvalue.PartyType:
		if !validParty(content) {
			return w.malformed("%q is not a party", clip(string(content)))
		}
		w.byte(tagParty)
		w.bytes(content)
	case damlvalue.ContractIDType:
		if len(content) < localIDBytes || len(content) > maxAnyContractIDBytes || content[0] > 1 {
			return w.malformed("%d bytes are not a contract id", len(content))
		}
		w.byte(tagContractID)
		w.bytes(content)
	default:
		if len(content) > 0 {
			return w.malformed("a unit with content")
		}
		w.byte(tagUnit)
		return nil
	}
	w.leaf(Leaf{Kind: t, Bytes: content})
	return nil
}

// plainText reports whether a text is UTF-8 without NUL. Nearly all are ASCII, which is seen eight bytes at a time.
func plainText(b []byte) bool {
	const low, high = 0x0101010101010101, 0x8080808080808080
	at := 0
	for ; at+8 <= len(b); at += 8 {
		// A byte of 0 borrows from its high bit in v-low; the other bytes of ASCII don't.
		if v := binary.LittleEndian.Uint64(b[at:]); (v|(v-low))&high != 0 {
			break
		}
	}
	return at == len(b) || utf8.Valid(b[at:]) && bytes.IndexByte(b[at:], 0) < 0
}

func (w *walker) leaf(l Leaf) {
	if w.visit != nil {
		l.Field = w.field
		w.visit(l)
	}
}

// optional is the place of the Value in an Optional, and whether there is one.
func (w *walker) optional(at, end int) (lo, hi int, some bool, err error) {
	lo, hi, err = w.part(at, end, optionalField, kindName("Optional"))
	if err != nil || lo == hi {
		return lo, hi, false, err
	}
	num, lo, hi, err := w.sole(lo, hi)
	if err == nil && num != innerField {
		err = w.malformed("unknown field %d", num)
	}
	return lo, hi, true, err
}

// elements hashes the number of a repeated field's elements, and each.
func (w *walker) elements(lo, hi int, element func(lo, hi int) error) error {
	n := 0
	for at := lo; at < hi; n++ {
		num, _, end, err := w.head(at, hi)
		if err == nil && num != elementsField {
			err = w.malformed("unknown field %d", num)
		}
		if err != nil {
			return err
		}
		at = end
	}
	w.int32(n)
	for at := lo; at < hi; {
		_, lo, end, err := w.head(at, hi)
		if err == nil {
			err = element(lo, end)
		}
		if err != nil {
			return err
		}
		at = end
	}
	return nil
}

// entry hashes an entry of a map, whose two parts may come in any order.
func (w *walker) entry(at, hi int, t damlvalue.GenMapType, depth int) error {
	var lo, end [secondField + 1]int
	for at < hi {
		num, from, to, err := w.head(at, hi)
		switch {
		case err != nil:
			return err
		case num != firstField && num != secondField:
			return w.malformed("unknown field %d", num)
		case end[num] != 0:
			return w.malformed("field %d given twice", num)
		}
		lo[num], end[num], at = from, to, to
	}
	if end[firstField] == 0 || end[secondField] == 0 {
		return w.malformed("an entry without key or value")
	}
	if err := w.value(lo[firstField], end[firstField], t.Key, depth+1); err != nil {
		return err
	}
	return w.value(lo[secondField], end[secondField], t.Value, depth+1)
}

// textSet hashes a set of texts: it does what elements and entry do, in one loop, because nearly all of a replay node is one.
func (w *walker) textSet(lo, hi, depth int) error {
	n := 0
	for at := lo; at < hi; n++ {
		num, _, end, err := w.head(at, hi)
		if err == nil && num != elementsField {
			err = w.malformed("unknown field %d", num)
		}
		if err != nil {
			return err
		}
		at = end
	}
	w.int32(n)
	for at := lo; at < hi; {
		if at = w.shortEntries(at, hi); at == hi {
			break
		}
		_, lo, end, err := w.head(at, hi)
		if err == nil {
			err = w.entry(lo, end, textSetType, depth)
		}
		if err != nil {
			return err
		}
		at = end
	}
	return nil
}

var textSetType = damlvalue.GenMapType{Key: damlvalue.TextType, Value: damlvalue.UnitType}

// An entry of a set of texts, as participants write it, is the head of the entry, of its key and of the key's text, each with a length of one
// byte, the text, and a unit.
const (
	entryFrame = 8 // bytes of an entry's content beside its text
	entryHeads = (elementsField<<3 | 2) | (firstField<<3|2)<<16 | (textField<<3|2)<<32
	entryUnit  = (secondField<<3 | 2) | 2<<8 | (unitField<<3|2)<<16
	halfText   = 32 // shortEntries takes texts from this length to twice of it: all that nodes of less than 33 digits of prefix hold
)

// shortEntries hashes the entries from at on of a set of texts, as long as the texts are ASCII without NUL and of 32 to 64 bytes, as what nodes
// hold of digests is, and the entries are written as participants write them. It returns the end of the last one.
func (w *walker) shortEntries(at, hi int) int {
	const high = 0x8080808080808080
	d := w.digester
	for {
		b := w.buf[at:hi]
		if len(b) < 2+entryFrame+halfText {
			return at
		}
		n := int(b[1]) - entryFrame
		if n < halfText || n > 2*halfText || len(b) < 2+entryFrame+n {
			return at
		}
		// The six bytes before the text, and the four behind it, at once.
		heads := entryHeads | uint64(n+entryFrame)<<8 | uint64(n+2)<<24 | uint64(n)<<40
		if binary.LittleEndian.Uint64(b)&(1<<48-1) != heads || binary.LittleEndian.Uint32(b[6+n:]) != entryUnit {
			return at
		}
		// The text's first half and its last, which overlap.
		text := b[6 : 6+n]
		first, last := (*[halfText]byte)(text), (*[halfText]byte)(text[n-halfText:])
		if (oddBits(first)|oddBits(last))&high != 0 {
			return at // to be read the long way
		}
		const most = 1 + 4 + 2*halfText + 1
		if d.n > len(d.buf)-most {
			d.flush()
		}
		out := d.buf[d.n:][:most]
		d.n += 1 + 4 + n + 1
		out[0] = tagText
		binary.BigEndian.PutUint32(out[1:], uint32(n))
		*(*[halfText]byte)(out[5:]) = *first
		*(*[halfText]byte)(out[5+n-halfText:]) = *last
		out[5+n] = tagUnit
		if w.visit != nil {
			w.visit(Leaf{Field: w.field, Kind: damlvalue.TextType, Bytes: text})
		}
		at += 2 + entryFrame + n
	}
}

// oddBits has a byte's high bit set if that byte, or one before it of the same eight, is not ASCII or is NUL: see plainText.
func oddBits(b *[halfText]byte) uint64 {
	const low = 0x0101010101010101
	v0, v1 := binary.LittleEndian.Uint64(b[0:]), binary.LittleEndian.Uint64(b[8:])
	v2, v3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	return v0 | (v0 - low) | v1 | (v1 - low) | v2 | (v2 - low) | v3 | (v3 - low)
}

// record hashes a record's fields with their labels. Trailing None fields don't count.
func (w *walker) record(at, hi int, t *damlvalue.RecordType, depth int) error {
	if err := w.countFields(at, hi, t); err != nil {
		return err
	}
	w.byte(tagRecord)
	w.qualifiedName(t.Name)
	i, nones := 0, 0
	for ; at < hi; i++ {
		num, lo, end, err := w.head(at, hi)
		switch {
		case err != nil:
			return err
		case num != elementsField:
			return w.malformed("unknown field %d", num)
		}
		at = end
		if num, lo, end, err = w.sole(lo, end); err != nil {
			return err
		}
		if num != innerField {
			return w.malformed("unknown field %d", num)
		}
		field := &t.Fields[i]
		if depth == 0 {
			w.field = field.Label
		}
		if _, optional := field.Type.(damlvalue.OptionalType); optional {
			_, _, some, err := w.optional(lo, end)
			if err != nil {
				return err
			}
			if !some {
				nones++
				continue
			}
		}
		for j := i - nones; j < i; j++ {
			w.text(t.Fields[j].Label)
			w.byte(tagOptional)
			w.bool(false)
		}
		nones = 0
		w.text(field.Label)
		if err := w.value(lo, end, field.Type, depth+1); err != nil {
			return err
		}
	}
	w.byte(endOfRecord)
	return nil
}

// countFields refuses a record with more or fewer fields than its type can have, before anything of it is hashed: of the versions of
// a type, all but one are refused here.
func (w *walker) countFields(at, hi int, t *damlvalue.RecordType) error {
	n := 0
	for ; at < hi; n++ {
		_, _, end, err := w.head(at, hi)
		if err != nil {
			return err
		}
		at = end
	}
	if n > len(t.Fields) {
		return errMoreFields
	}
	for _, f := range t.Fields[n:] {
		if _, optional := f.Type.(damlvalue.OptionalType); !optional {
			return errFewerFields
		}
	}
	return nil
}

// These are met on the way to the right version of a type, so they are made once.
var (
	errMoreFields  = fmt.Errorf("create_arg: %w: more fields than the type has", damlvalue.ErrShape)
	errFewerFields = fmt.Errorf("create_arg: %w: a field is missing", damlvalue.ErrShape)
)

// decoded hashes a value of a kind that the model's contracts don't have, by way of the value.
func (w *walker) decoded(lo, hi int, t damlvalue.Type) error {
	v, err := decodeValue("create_arg", w.buf[lo:hi])
	if err != nil {
		return err
	}
	named, err := damlvalue.Label(v, t)
	if err != nil {
		return fmt.Errorf("create_arg: field %q: %w", w.field, err)
	}
	err = w.typed(named)
	if errors.Is(err, errNames) {
		return fmt.Errorf("%w: %w", ErrUnverifiable, err)
	}
	return err
}
