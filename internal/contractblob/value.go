package contractblob

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// The fields of Daml-LF's value.proto. Value is a oneof; the others are the messages in it.
const (
	unitField       = 1
	boolField       = 2
	intField        = 3
	dateField       = 4
	timestampField  = 5
	numericField    = 6
	partyField      = 7
	textField       = 8
	valueIDField    = 9
	optionalField   = 10
	listField       = 11
	genMapField     = 12
	recordField     = 13
	variantField    = 14
	enumField       = 15
	textMapField    = 16
	elementsField   = 1 // of Record, List, GenMap, TextMap: fields, elements, entries
	innerField      = 1 // of Record.Field, Optional, Enum: the value
	firstField      = 1 // of an entry its key, of Variant its constructor
	secondField     = 2 // of an entry and of Variant the value
	localIDBytes    = 33
	numericDigits   = 38
	numericMaxScale = 37
)

// valueDecoder reads Daml-LF values. Its texts are parts of one copy of the bytes.
type valueDecoder struct {
	name string
	text string
	buf  []byte
}

// decodeValue reads a serialized Value. name says in errors what it is the value of.
func decodeValue(name string, b []byte) (damlvalue.Value, error) {
	d := valueDecoder{name: name, text: string(b), buf: b}
	return d.value(0, len(b), 0)
}

// message walks buf[lo:hi]; the positions of its fields are those in buf.
func (d *valueDecoder) message(lo, hi int) message {
	return message{name: d.name, buf: d.buf[:hi], at: lo}
}

// only reads the single field of a message that must have exactly one, or at most one.
func (d *valueDecoder) only(lo, hi int, what string, optional bool) (m message, found bool, err error) {
	m = d.message(lo, hi)
	found, err = m.next()
	switch {
	case err != nil:
		return m, false, err
	case !found && optional:
		return m, false, nil
	case !found:
		return m, false, fmt.Errorf("%s: %w: %s without content", d.name, ErrMalformed, what)
	case m.at != hi:
		return m, false, fmt.Errorf("%s: %w: %s with more than one field", d.name, ErrMalformed, what)
	}
	return m, true, nil
}

func (d *valueDecoder) value(lo, hi, depth int) (damlvalue.Value, error) {
	if depth > MaxNesting {
		return nil, fmt.Errorf("%s: %w: nested deeper than %d", d.name, ErrMalformed, MaxNesting)
	}
	m, _, err := d.only(lo, hi, "a value", false)
	if err != nil {
		return nil, err
	}
	typ := protowire.BytesType
	switch m.num {
	case boolField, intField, dateField:
		typ = protowire.VarintType
	case timestampField:
		typ = protowire.Fixed64Type
	}
	if err := m.want(typ); err != nil {
		return nil, err
	}
	switch m.num {
	case unitField:
		if m.lo != m.hi {
			return nil, d.malformed("a unit with content")
		}
		return damlvalue.Unit{}, nil
	case boolField:
		if m.value > 1 {
			return nil, d.malformed("a bool of %d", m.value)
		}
		return damlvalue.Bool(m.value == 1), nil
	case intField:
		return damlvalue.Int(protowire.DecodeZigZag(m.value)), nil
	case dateField:
		days := int64(m.value)
		if days < minDays || days > maxDays {
			return nil, d.malformed("a date of %d days", days)
		}
		return damlvalue.Date(days), nil
	case timestampField:
		micros := int64(m.value)
		if micros < minMicros || micros > maxMicros {
			return nil, d.malformed("a time of %d microseconds", micros)
		}
		return damlvalue.Timestamp(micros), nil
	case numericField:
		s := d.text[m.lo:m.hi]
		if !validNumeric(s) {
			return nil, d.malformed("%q is not a numeric", clip(s))
		}
		return damlvalue.Numeric(s), nil
	case partyField:
		s := d.text[m.lo:m.hi]
		if !validParty(s) {
			return nil, d.malformed("%q is not a party", clip(s))
		}
		return damlvalue.Party(s), nil
	case textField:
		s, err := d.textPart(m.lo, m.hi)
		return damlvalue.Text(s), err
	case valueIDField:
		raw := d.buf[m.lo:m.hi]
		// Ids of every kind can be in an argument: of contracts of any age, and of the second generation.
		if len(raw) < localIDBytes || len(raw) > maxAnyContractIDBytes || raw[0] > 1 {
			return nil, d.malformed("%d bytes are not a contract id", len(raw))
		}
		return damlvalue.ContractID(hex.EncodeToString(raw)), nil
	case optionalField:
		inner, found, err := d.only(m.lo, m.hi, "an optional", true)
		if err != nil {
			return nil, err
		}
		if !found {
			return damlvalue.Optional{}, nil
		}
		v, err := d.field(&inner, innerField, depth+1)
		return damlvalue.Optional{Value: v}, err
	case listField:
		return d.list(m.lo, m.hi, depth)
	case genMapField:
		return d.genMap(m.lo, m.hi, depth)
	case textMapField:
		return d.textMap(m.lo, m.hi, depth)
	case recordField:
		return d.record(m.lo, m.hi, depth)
	case variantField:
		return d.variant(m.lo, m.hi, depth)
	case enumField:
		inner, _, err := d.only(m.lo, m.hi, "an enum", false)
		if err != nil {
			return nil, err
		}
		name, err := d.constructor(&inner, innerField)
		return damlvalue.Enum{Constructor: name, Rank: -1}, err
	default:
		return nil, m.unknown()
	}
}

func (d *valueDecoder) malformed(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", d.name, ErrMalformed, fmt.Sprintf(format, args...))
}

// field reads the value in m's current field, which must have the number num.
func (d *valueDecoder) field(m *message, num protowire.Number, depth int) (damlvalue.Value, error) {
	if m.num != num {
		return nil, m.unknown()
	}
	if err := m.want(protowire.BytesType); err != nil {
		return nil, err
	}
	return d.value(m.lo, m.hi, depth)
}

// textPart is a text, checked.
func (d *valueDecoder) textPart(lo, hi int) (string, error) {
	s := d.text[lo:hi]
	if !utf8.ValidString(s) {
		return "", d.malformed("a text that is not UTF-8")
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "", d.malformed("a text with NUL")
	}
	return s, nil
}

// constructor reads the constructor in m's current field.
func (d *valueDecoder) constructor(m *message, num protowire.Number) (string, error) {
	if m.num != num {
		return "", m.unknown()
	}
	if err := m.want(protowire.BytesType); err != nil {
		return "", err
	}
	s := d.text[m.lo:m.hi]
	if !validSegment(s) {
		return "", d.malformed("%q is not a constructor", clip(s))
	}
	return s, nil
}

// elements walks the repeated field of a List, GenMap, TextMap or Record: it counts the elements, so that their slice is made
// once and in its size, and calls add with each one's place.
func (d *valueDecoder) elements(lo, hi int, size func(n int), add func(lo, hi int) error) error {
	n := 0
	m := d.message(lo, hi)
	for {
		more, err := m.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if m.num != elementsField {
			return m.unknown()
		}
		if err := m.want(protowire.BytesType); err != nil {
			return err
		}
		n++
	}
	size(n)
	m = d.message(lo, hi)
	return m.each(func() error { return add(m.lo, m.hi) })
}

func (d *valueDecoder) list(lo, hi, depth int) (damlvalue.Value, error) {
	var list damlvalue.List
	err := d.elements(lo, hi, func(n int) { list = make(damlvalue.List, 0, n) }, func(lo, hi int) error {
		v, err := d.value(lo, hi, depth+1)
		list = append(list, v)
		return err
	})
	return list, err
}

func (d *valueDecoder) record(lo, hi, depth int) (damlvalue.Value, error) {
	var record damlvalue.Record
	err := d.elements(lo, hi, func(n int) { record.Fields = make([]damlvalue.Field, 0, n) }, func(lo, hi int) error {
		m, _, err := d.only(lo, hi, "a field", false)
		if err != nil {
			return err
		}
		v, err := d.field(&m, innerField, depth+1)
		record.Fields = append(record.Fields, damlvalue.Field{Value: v})
		return err
	})
	return record, err
}

func (d *valueDecoder) genMap(lo, hi, depth int) (damlvalue.Value, error) {
	var entries damlvalue.GenMap
	err := d.elements(lo, hi, func(n int) { entries = make(damlvalue.GenMap, 0, n) }, func(lo, hi int) error {
		var e damlvalue.GenMapEntry
		m := d.message(lo, hi)
		err := d.pair(&m, "an entry", func() (err error) {
			e.Key, err = d.field(&m, firstField, depth+1)
			return err
		}, func() (err error) {
			e.Value, err = d.field(&m, secondField, depth+1)
			return err
		})
		entries = append(entries, e)
		return err
	})
	return entries, err
}

func (d *valueDecoder) textMap(lo, hi, depth int) (damlvalue.Value, error) {
	var entries damlvalue.TextMap
	err := d.elements(lo, hi, func(n int) { entries = make(damlvalue.TextMap, 0, n) }, func(lo, hi int) error {
		var e damlvalue.TextMapEntry
		m := d.message(lo, hi)
		// A key that is the empty text is not written.
		err := d.pairOptionalFirst(&m, "an entry", func() (err error) {
			if err := m.want(protowire.BytesType); err != nil {
				return err
			}
			e.Key, err = d.textPart(m.lo, m.hi)
			return err
		}, func() (err error) {
			e.Value, err = d.field(&m, secondField, depth+1)
			return err
		})
		if err != nil {
			return err
		}
		if n := len(entries); n > 0 && entries[n-1].Key >= e.Key {
			return d.malformed("a text map's keys are not strictly ascending at %q", clip(e.Key))
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

func (d *valueDecoder) variant(lo, hi, depth int) (damlvalue.Value, error) {
	v := damlvalue.Variant{Rank: -1}
	m := d.message(lo, hi)
	err := d.pair(&m, "a variant", func() (err error) {
		v.Constructor, err = d.constructor(&m, firstField)
		return err
	}, func() (err error) {
		v.Value, err = d.field(&m, secondField, depth+1)
		return err
	})
	return v, err
}

// pair walks a message of two fields, both there, once and in any order.
func (d *valueDecoder) pair(m *message, what string, first, second func() error) error {
	if err := d.pairOptionalFirst(m, what, first, second); err != nil {
		return err
	}
	if m.seen&(1<<firstField) == 0 {
		return d.malformed("%s without its first part", what)
	}
	return nil
}

func (d *valueDecoder) pairOptionalFirst(m *message, what string, first, second func() error) error {
	err := m.each(func() error {
		switch m.num {
		case firstField:
			if err := m.once(); err != nil {
				return err
			}
			return first()
		case secondField:
			if err := m.once(); err != nil {
				return err
			}
			return second()
		default:
			return m.unknown()
		}
	})
	if err == nil && m.seen&(1<<secondField) == 0 {
		err = d.malformed("%s without its value", what)
	}
	return err
}

// validNumeric checks Daml-LF's one form of a numeric: no needless zeros before the point, always a point, at most 38 digits and
// at most 37 after the point. A negative zero does not exist.
func validNumeric(s string) bool {
	digits, negative := strings.CutPrefix(s, "-")
	whole, decimals, point := strings.Cut(digits, ".")
	if !point || whole == "" || len(whole) > 1 && whole[0] == '0' || len(decimals) > numericMaxScale {
		return false
	}
	precision := len(decimals)
	if whole != "0" {
		precision += len(whole)
	}
	if precision > numericDigits {
		return false
	}
	zero := true
	for _, part := range []string{whole, decimals} {
		for i := range len(part) {
			if part[i] < '0' || part[i] > '9' {
				return false
			}
			zero = zero && part[i] == '0'
		}
	}
	return !(zero && negative)
}

// prependValue writes v as a Value before what p holds. Labels and names are left out, as in every blob; nothing else is: trailing None
// fields stay.
func (p *prepender) prependValue(v damlvalue.Value, depth int) error {
	if depth > MaxNesting {
		return fmt.Errorf("%w: a value nested deeper than %d", ErrMalformed, MaxNesting)
	}
	end := p.size()
	switch v := v.(type) {
	case damlvalue.Unit:
		p.close(unitField, end)
	case damlvalue.Bool:
		p.varintField(boolField, protowire.EncodeBool(bool(v)))
	case damlvalue.Int:
		p.varintField(intField, protowire.EncodeZigZag(int64(v)))
	case damlvalue.Date:
		p.varintField(dateField, uint64(int64(v)))
	case damlvalue.Timestamp:
		p.fixed64Field(timestampField, uint64(v))
	case damlvalue.Numeric:
		p.textField(numericField, string(v))
	case damlvalue.Party:
		p.textField(partyField, string(v))
	case damlvalue.Text:
		p.textField(textField, string(v))
	case damlvalue.ContractID:
		n := hex.DecodedLen(len(v))
		p.room(n)
		if _, err := hex.Decode(p.buf[p.at-n:p.at], []byte(v)); err != nil {
			return fmt.Errorf("%w: contract id %q: %w", ErrMalformed, clip(string(v)), err)
		}
		p.at -= n
		p.close(valueIDField, end)
	case damlvalue.Optional:
		if v.Value != nil {
			if err := p.prependInner(innerField, v.Value, depth); err != nil {
				return err
			}
		}
		p.close(optionalField, end)
	case damlvalue.List:
		for i := len(v) - 1; i >= 0; i-- {
			if err := p.prependInner(elementsField, v[i], depth); err != nil {
				return err
			}
		}
		p.close(listField, end)
	case damlvalue.GenMap:
		for i := len(v) - 1; i >= 0; i-- {
			entry := p.size()
			if err := p.prependInner(secondField, v[i].Value, depth); err != nil {
				return err
			}
			if err := p.prependInner(firstField, v[i].Key, depth); err != nil {
				return err
			}
			p.close(elementsField, entry)
		}
		p.close(genMapField, end)
	case damlvalue.TextMap:
		for i := len(v) - 1; i >= 0; i-- {
			entry := p.size()
			if err := p.prependInner(secondField, v[i].Value, depth); err != nil {
				return err
			}
			if v[i].Key != "" {
				p.textField(firstField, v[i].Key)
			}
			p.close(elementsField, entry)
		}
		p.close(textMapField, end)
	case damlvalue.Record:
		for i := len(v.Fields) - 1; i >= 0; i-- {
			field := p.size()
			if err := p.prependInner(innerField, v.Fields[i].Value, depth); err != nil {
				return err
			}
			p.close(elementsField, field)
		}
		p.close(recordField, end)
	case damlvalue.Variant:
		if err := p.prependInner(secondField, v.Value, depth); err != nil {
			return err
		}
		p.textField(firstField, v.Constructor)
		p.close(variantField, end)
	case damlvalue.Enum:
		p.textField(innerField, v.Constructor)
		p.close(enumField, end)
	default:
		return fmt.Errorf("%w: %s where a value must be", ErrMalformed, damlvalue.Kind(v))
	}
	return nil
}

func (p *prepender) prependInner(num protowire.Number, v damlvalue.Value, depth int) error {
	end := p.size()
	if err := p.prependValue(v, depth+1); err != nil {
		return err
	}
	p.close(num, end)
	return nil
}
