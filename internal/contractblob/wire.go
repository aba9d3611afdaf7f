package contractblob

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// message walks the fields of one protobuf message, strictly.
type message struct {
	// name is the message's name in errors.
	name string
	buf  []byte
	at   int
	// seen has a bit for every field met that may be there only once.
	seen uint32

	// The field that next read: its number and wire type, where its tag starts, and its content, the bytes in buf[lo:hi] for
	// a field with a length and the number otherwise.
	num    protowire.Number
	typ    protowire.Type
	lo, hi int
	value  uint64
}

func newMessage(name string, buf []byte) message { return message{name: name, buf: buf} }

// next reads the next field, and reports whether there was one.
func (m *message) next() (bool, error) {
	if m.at == len(m.buf) {
		return false, nil
	}
	num, typ, n := protowire.ConsumeTag(m.buf[m.at:])
	if n < 0 {
		return false, m.broken("a field's tag", n)
	}
	m.at += n
	m.num, m.typ = num, typ
	switch typ {
	case protowire.VarintType:
		m.value, n = protowire.ConsumeVarint(m.buf[m.at:])
	case protowire.Fixed64Type:
		m.value, n = protowire.ConsumeFixed64(m.buf[m.at:])
	case protowire.BytesType:
		var size uint64
		size, n = protowire.ConsumeVarint(m.buf[m.at:])
		if n >= 0 {
			if size > uint64(len(m.buf)-m.at-n) {
				return false, fmt.Errorf("%s: field %d: %w: %d bytes announced, %d there", m.name, num, ErrMalformed, size, len(m.buf)-m.at-n)
			}
			m.lo = m.at + n
			m.hi = m.lo + int(size)
			n += int(size)
		}
	default:
		return false, fmt.Errorf("%s: field %d: %w: wire type %d", m.name, num, ErrMalformed, typ)
	}
	if n < 0 {
		return false, m.broken(fmt.Sprintf("field %d", num), n)
	}
	m.at += n
	return true, nil
}

func (m *message) broken(what string, code int) error {
	return fmt.Errorf("%s: %s: %w: %w", m.name, what, ErrMalformed, protowire.ParseError(code))
}

// each calls field for every field of the message.
func (m *message) each(field func() error) error {
	for {
		more, err := m.next()
		if err != nil || !more {
			return err
		}
		if err := field(); err != nil {
			return err
		}
	}
}

// bytes is the content of a field that may be repeated.
func (m *message) bytes() ([]byte, error) {
	if err := m.want(protowire.BytesType); err != nil {
		return nil, err
	}
	return m.buf[m.lo:m.hi], nil
}

// appendText appends the content of a repeated field of texts.
func (m *message) appendText(list *[]string) error {
	b, err := m.bytes()
	*list = append(*list, string(b))
	return err
}

// onceBytes, onceText and onceNumber set the content of a field that is there once at most.

func (m *message) onceBytes(to *[]byte) error {
	b, err := m.bytes()
	if err != nil {
		return err
	}
	*to = b
	return m.once()
}

func (m *message) onceText(to *string) error {
	b, err := m.bytes()
	if err != nil {
		return err
	}
	*to = string(b)
	return m.once()
}

func (m *message) onceNumber(to *uint64, typ protowire.Type) error {
	if err := m.want(typ); err != nil {
		return err
	}
	*to = m.value
	return m.once()
}

// want checks the field's wire type.
func (m *message) want(typ protowire.Type) error {
	if m.typ != typ {
		return fmt.Errorf("%s: field %d: %w: wire type %d, want %d", m.name, m.num, ErrMalformed, m.typ, typ)
	}
	return nil
}

// once refuses a field that was there before. It is called for known fields: numbers up to 30 and 1001 have a bit each.
func (m *message) once() error {
	bit := uint32(1) << 31
	if m.num != keyField {
		bit = 1 << m.num
	}
	if m.seen&bit != 0 {
		return fmt.Errorf("%s: field %d: %w: given twice", m.name, m.num, ErrMalformed)
	}
	m.seen |= bit
	return nil
}

// unknown refuses the field.
func (m *message) unknown() error {
	return fmt.Errorf("%s: %w: unknown field %d", m.name, ErrMalformed, m.num)
}

// prepender writes protobuf from its end to its start: the length of a message is known once its content is there, so that
// nested messages need neither a pass to size them nor a copy.
type prepender struct {
	buf []byte
	at  int // the written part is buf[at:]
}

func (p *prepender) written() []byte { return p.buf[p.at:] }

// size is the length of what was written; taken before a message's content it marks the message's end.
func (p *prepender) size() int { return len(p.buf) - p.at }

func (p *prepender) reset() { p.at = len(p.buf) }

// room makes place for n more bytes.
func (p *prepender) room(n int) {
	if p.at >= n {
		return
	}
	grown := make([]byte, 2*len(p.buf)+n+64)
	at := len(grown) - p.size()
	copy(grown[at:], p.written())
	p.buf, p.at = grown, at
}

func (p *prepender) uvarint(v uint64) {
	n := protowire.SizeVarint(v)
	p.room(n)
	p.at -= n
	protowire.AppendVarint(p.buf[p.at:p.at], v)
}

func (p *prepender) tag(num protowire.Number, typ protowire.Type) {
	p.uvarint(protowire.EncodeTag(num, typ))
}

// head writes the tag and the length of a field with a length. Nearly all are a byte each.
func (p *prepender) head(num protowire.Number, size int) {
	if num < 1<<4 && size < 1<<7 {
		p.room(2)
		p.at -= 2
		p.buf[p.at] = byte(num)<<3 | byte(protowire.BytesType)
		p.buf[p.at+1] = byte(size)
		return
	}
	p.uvarint(uint64(size))
	p.tag(num, protowire.BytesType)
}

// close writes the head of the field whose content was written since the mark end.
func (p *prepender) close(num protowire.Number, end int) { p.head(num, p.size()-end) }

func (p *prepender) varintField(num protowire.Number, v uint64) {
	p.uvarint(v)
	p.tag(num, protowire.VarintType)
}

func (p *prepender) fixed64Field(num protowire.Number, v uint64) {
	p.room(8)
	p.at -= 8
	protowire.AppendFixed64(p.buf[p.at:p.at], v)
	p.tag(num, protowire.Fixed64Type)
}

func (p *prepender) bytesField(num protowire.Number, b []byte) {
	p.room(len(b))
	p.at -= len(b)
	copy(p.buf[p.at:], b)
	p.head(num, len(b))
}

func (p *prepender) textField(num protowire.Number, s string) {
	p.room(len(s))
	p.at -= len(s)
	copy(p.buf[p.at:], s)
	p.head(num, len(s))
}
