package contractblob

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math/big"
	"strings"
	"sync"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// digester is SHA-256 over a stream of small pieces, which it gathers in a buffer. All integers are big-endian; a text is written
// as its length in bytes, 4 bytes long, and its UTF-8.
type digester struct {
	sha hash.Hash
	n   int
	buf [2048]byte
	out [sha256.Size]byte // what sum is written to, so that no sum is allocated
}

var digesters = sync.Pool{New: func() any { return &digester{sha: sha256.New()} }}

func newDigester() *digester {
	d := digesters.Get().(*digester)
	d.sha.Reset()
	d.n = 0
	return d
}

// sum ends the stream and gives the digester back.
func (d *digester) sum() (out [sha256.Size]byte) {
	d.flush()
	d.sha.Sum(d.out[:0])
	out = d.out
	digesters.Put(d)
	return out
}

// drop gives the digester back without a sum.
func (d *digester) drop() { digesters.Put(d) }

func (d *digester) flush() {
	d.sha.Write(d.buf[:d.n]) // a hash never fails
	d.n = 0
}

// room makes place for n bytes in the buffer, n far below its size.
func (d *digester) room(n int) []byte {
	if d.n+n > len(d.buf) {
		d.flush()
	}
	at := d.n
	d.n += n
	return d.buf[at:d.n]
}

func (d *digester) byte(b byte)    { d.room(1)[0] = b }
func (d *digester) int32(v int)    { binary.BigEndian.PutUint32(d.room(4), uint32(v)) }
func (d *digester) int64(v int64)  { binary.BigEndian.PutUint64(d.room(8), uint64(v)) }
func (d *digester) raw(b []byte)   { writeAll(d, b) }
func (d *digester) bytes(b []byte) { d.int32(len(b)); writeAll(d, b) }

func (d *digester) text(s string) {
	d.int32(len(s))
	if len(s) <= len(d.buf)-d.n { // nearly always
		d.n += copy(d.buf[d.n:], s)
		return
	}
	writeAll(d, s)
}

func writeAll[T string | []byte](d *digester, s T) {
	for len(s) > 0 {
		if d.n == len(d.buf) {
			d.flush()
		}
		n := copy(d.buf[d.n:], s)
		d.n += n
		s = s[n:]
	}
}

func (d *digester) bool(v bool) {
	if v {
		d.byte(1)
	} else {
		d.byte(0)
	}
}

// dottedName writes the number of segments and each segment.
func (d *digester) dottedName(name string) {
	d.int32(strings.Count(name, ".") + 1)
	for {
		segment, rest, more := strings.Cut(name, ".")
		d.text(segment)
		if !more {
			return
		}
		name = rest
	}
}

func (d *digester) qualifiedName(id damlvalue.TypeName) {
	d.dottedName(id.Module)
	d.dottedName(id.Entity)
}

// numeric writes a numeric's unscaled value: its digits as a whole number, in two's complement and as short as possible, at least one
// byte. The scale is not written.
func (d *digester) numeric(v damlvalue.Numeric) error {
	digits := strings.Replace(string(v), ".", "", 1)
	unscaled, ok := new(big.Int).SetString(digits, 10)
	if !ok || len(digits) > numericDigits+2 {
		return fmt.Errorf("%w: %q is not a numeric", ErrMalformed, clip(string(v)))
	}
	d.bytes(twosComplement(unscaled))
	return nil
}

func twosComplement(v *big.Int) []byte {
	if v.Sign() >= 0 {
		// One more bit than the number has, for the sign.
		return v.FillBytes(make([]byte, v.BitLen()/8+1))
	}
	// -v-1 has the bits of v turned over, and is not negative.
	turned := new(big.Int).Not(v)
	out := turned.FillBytes(make([]byte, turned.BitLen()/8+1))
	for i := range out {
		out[i] = ^out[i]
	}
	return out
}

// contractID writes a contract id's bytes.
func (d *digester) contractID(id damlvalue.ContractID) error {
	var raw [maxAnyContractIDBytes]byte
	if len(id) > 2*len(raw) {
		return fmt.Errorf("%w: a contract id of %d characters", ErrMalformed, len(id))
	}
	n, err := hex.Decode(raw[:], []byte(id))
	if err != nil {
		return fmt.Errorf("%w: contract id %q: %w", ErrMalformed, clip(string(id)), err)
	}
	d.bytes(raw[:n])
	return nil
}

// The heads of a contract hash: the version of the encoding, and what the hash is for.
const (
	encodingLegacy          = 0
	encodingUpgradeFriendly = 1
	encodingTyped           = 3
	purposeContract         = 5
)

// contractHash is the hash of a contract's content, as the version of its id asks for it. V12 reads names, labels and ranks from
// typed, and returns errNames where one is lacking; the others hash the contract's own argument.
func contractHash(version IDVersion, c *Contract, typed damlvalue.Value) ([32]byte, error) {
	d := newDigester()
	var err error
	switch version {
	case V10, V11:
		encoding, value := byte(encodingLegacy), d.legacy
		if version == V11 {
			encoding, value = encodingUpgradeFriendly, d.upgradeFriendly
		}
		d.byte(encoding)
		d.byte(purposeContract)
		d.text(c.PackageName)
		d.text(c.TemplateID.PackageID)
		d.qualifiedName(c.TemplateID)
		err = value(c.Argument)
	case V12:
		d.byte(encodingTyped)
		d.byte(purposeContract)
		d.text(c.PackageName)
		d.qualifiedName(c.TemplateID)
		err = d.typed(typed)
	default:
		err = fmt.Errorf("%w: contract id version %s", ErrUnsupported, version)
	}
	if err != nil {
		d.drop()
		return [32]byte{}, err
	}
	return d.sum(), nil
}

// The tags of V12's encoding (Canton 3.4, SValueHash).
const (
	tagInt = iota
	tagNumeric
	tagText
	tagTimestamp
	tagParty
	tagBool
	tagUnit
	tagDate
	tagRecord
	tagVariant
	tagEnum
	tagList
	tagOptional
	tagTextMap
	tagGenMap
	tagContractID

	endOfRecord = 0xff
)

// errNames says that a value lacks names that V12's hash covers.
var errNames = errors.New("a name is lacking")

// typed writes a value in V12's encoding: every value has a tag, every record and constructor its names.
func (d *digester) typed(v damlvalue.Value) error {
	switch v := v.(type) {
	case damlvalue.Int:
		d.byte(tagInt)
		d.int64(int64(v))
	case damlvalue.Numeric:
		d.byte(tagNumeric)
		return d.numeric(v)
	case damlvalue.Text:
		d.byte(tagText)
		d.text(string(v))
	case damlvalue.Timestamp:
		d.byte(tagTimestamp)
		d.int64(int64(v))
	case damlvalue.Party:
		d.byte(tagParty)
		d.text(string(v))
	case damlvalue.Bool:
		d.byte(tagBool)
		d.bool(bool(v))
	case damlvalue.Unit:
		d.byte(tagUnit)
	case damlvalue.Date:
		d.byte(tagDate)
		d.int32(int(v))
	case damlvalue.Record:
		return d.typedRecord(v)
	case damlvalue.Variant:
		if v.ID.IsZero() || v.Rank < 0 {
			return fmt.Errorf("%w: the type or rank of constructor %q", errNames, v.Constructor)
		}
		d.byte(tagVariant)
		d.qualifiedName(v.ID)
		d.text(v.Constructor)
		d.int32(v.Rank)
		return d.typed(v.Value)
	case damlvalue.Enum:
		if v.ID.IsZero() || v.Rank < 0 {
			return fmt.Errorf("%w: the type or rank of constructor %q", errNames, v.Constructor)
		}
		d.byte(tagEnum)
		d.qualifiedName(v.ID)
		d.text(v.Constructor)
		d.int32(v.Rank)
	case damlvalue.List:
		d.byte(tagList)
		d.int32(len(v))
		for _, e := range v {
			if err := d.typed(e); err != nil {
				return err
			}
		}
	case damlvalue.Optional:
		d.byte(tagOptional)
		d.bool(v.Value != nil)
		if v.Value != nil {
			return d.typed(v.Value)
		}
	case damlvalue.TextMap:
		d.byte(tagTextMap)
		d.int32(len(v))
		for _, e := range v {
			d.text(e.Key)
			if err := d.typed(e.Value); err != nil {
				return err
			}
		}
	case damlvalue.GenMap:
		d.byte(tagGenMap)
		d.int32(len(v))
		for _, e := range v {
			if err := d.typed(e.Key); err != nil {
				return err
			}
			if err := d.typed(e.Value); err != nil {
				return err
			}
		}
	case damlvalue.ContractID:
		d.byte(tagContractID)
		return d.contractID(v)
	default:
		return fmt.Errorf("%w: %s where a value must be", ErrMalformed, damlvalue.Kind(v))
	}
	return nil
}

func (d *digester) typedRecord(r damlvalue.Record) error {
	if r.ID.IsZero() {
		return fmt.Errorf("%w: the name of a record's type", errNames)
	}
	d.byte(tagRecord)
	d.qualifiedName(r.ID)
	for i, f := range withoutTrailingNones(r.Fields) {
		if f.Label == "" {
			return fmt.Errorf("%w: the label of field %d of %s", errNames, i+1, r.ID.QualifiedName())
		}
		d.text(f.Label)
		if err := d.typed(f.Value); err != nil {
			return err
		}
	}
	d.byte(endOfRecord)
	return nil
}

// withoutTrailingNones is a record's fields up to the last that is not None. A record hashes and compares the same with and
// without trailing None fields, so that a newer version of its type may append some.
func withoutTrailingNones(fields []damlvalue.Field) []damlvalue.Field {
	for len(fields) > 0 {
		opt, ok := fields[len(fields)-1].Value.(damlvalue.Optional)
		if !ok || opt.Value != nil {
			break
		}
		fields = fields[:len(fields)-1]
	}
	return fields
}

// legacy writes a value in V10's encoding: no tags and no names; whole records, trailing None fields too.
func (d *digester) legacy(v damlvalue.Value) error {
	switch v := v.(type) {
	case damlvalue.Optional:
		// Four bytes where one would do: a quirk of this version.
		if v.Value == nil {
			d.int32(0)
			return nil
		}
		d.int32(1)
		return d.legacy(v.Value)
	case damlvalue.Record:
		d.int32(len(v.Fields))
		for _, f := range v.Fields {
			if err := d.legacy(f.Value); err != nil {
				return err
			}
		}
		return nil
	default:
		return d.untyped(v, d.legacy)
	}
}

// upgradeFriendly writes a value in V11's encoding: no tags and no names; of a record only the fields whose values are no defaults,
// each after its position.
func (d *digester) upgradeFriendly(v damlvalue.Value) error {
	switch v := v.(type) {
	case damlvalue.Optional:
		d.bool(v.Value != nil)
		if v.Value == nil {
			return nil
		}
		return d.upgradeFriendly(v.Value)
	case damlvalue.Record:
		for i, f := range v.Fields {
			if err := d.upgradeFriendlyField(i, f.Value); err != nil {
				return err
			}
		}
		d.byte(endOfRecord)
		return nil
	default:
		return d.untyped(v, d.upgradeFriendly)
	}
}

func (d *digester) upgradeFriendlyField(position int, v damlvalue.Value) error {
	switch v := v.(type) {
	case damlvalue.Unit:
		return nil
	case damlvalue.Bool:
		if !v {
			return nil
		}
	case damlvalue.Int:
		if v == 0 {
			return nil
		}
	case damlvalue.Timestamp:
		if v == 0 {
			return nil
		}
	case damlvalue.Date:
		if v == 0 {
			return nil
		}
	case damlvalue.Text:
		if v == "" {
			return nil
		}
	case damlvalue.Numeric:
		if strings.Trim(string(v), "0.") == "" {
			return nil
		}
	case damlvalue.List:
		if len(v) == 0 {
			return nil
		}
	case damlvalue.Optional:
		if v.Value == nil {
			return nil
		}
		// The position already says that there is a value.
		d.int32(position)
		return d.upgradeFriendly(v.Value)
	case damlvalue.TextMap:
		if len(v) == 0 {
			return nil
		}
		return d.upgradeFriendly(v) // without its position: a quirk, and one reason why this encoding is weak
	case damlvalue.GenMap:
		if len(v) == 0 {
			return nil
		}
		return d.upgradeFriendly(v) // likewise
	}
	d.int32(position)
	return d.upgradeFriendly(v)
}

// untyped writes what V10's and V11's encodings have in common; inner writes the values inside.
func (d *digester) untyped(v damlvalue.Value, inner func(damlvalue.Value) error) error {
	switch v := v.(type) {
	case damlvalue.Unit:
		d.byte(0)
	case damlvalue.Bool:
		d.bool(bool(v))
	case damlvalue.Int:
		d.int64(int64(v))
	case damlvalue.Timestamp:
		d.int64(int64(v))
	case damlvalue.Date:
		d.int32(int(v))
	case damlvalue.Text:
		d.text(string(v))
	case damlvalue.Party:
		d.text(string(v))
	case damlvalue.Numeric:
		return d.numeric(v)
	case damlvalue.ContractID:
		return d.contractID(v)
	case damlvalue.List:
		d.int32(len(v))
		for _, e := range v {
			if err := inner(e); err != nil {
				return err
			}
		}
	case damlvalue.TextMap:
		d.int32(len(v))
		for _, e := range v {
			d.text(e.Key)
			if err := inner(e.Value); err != nil {
				return err
			}
		}
	case damlvalue.GenMap:
		d.int32(len(v))
		for _, e := range v {
			if err := inner(e.Key); err != nil {
				return err
			}
			if err := inner(e.Value); err != nil {
				return err
			}
		}
	case damlvalue.Variant:
		d.text(v.Constructor)
		return inner(v.Value)
	case damlvalue.Enum:
		d.text(v.Constructor)
	default:
		return fmt.Errorf("%w: %s where a value must be", ErrMalformed, damlvalue.Kind(v))
	}
	return nil
}

// hashPurposeUnicum starts every unicum (Canton's HashPurpose.Unicum).
const hashPurposeUnicum = 29

// unicum is the hash in a contract id's suffix.
func (c *Contract) unicum(contract [32]byte) [32]byte {
	d := newDigester()
	d.int32(hashPurposeUnicum)
	d.raw(c.Salt[:])
	seconds, micros := floorDiv(c.CreatedAt, 1_000_000)
	d.int64(seconds)
	d.int32(int(micros) * 1000)
	d.partyList(c.Signatories)
	d.partyList(c.Observers)
	if c.Key == nil {
		d.byte(0)  // no key hash
		d.int32(1) // maintainers: one byte
		d.byte(0)  // that says that there are none
	} else {
		d.byte(1)
		d.raw(c.Key.Hash[:])
		d.int32(1 + partyListBytes(c.Key.Maintainers))
		d.byte(1)
		d.parties(c.Key.Maintainers)
	}
	d.raw(contract[:])
	return d.sum()
}

// partyList writes parties after the length in bytes of what it writes.
func (d *digester) partyList(parties []string) {
	d.int32(partyListBytes(parties))
	d.parties(parties)
}

func (d *digester) parties(parties []string) {
	d.int32(len(parties))
	for _, p := range parties {
		d.text(p)
	}
}

// partyListBytes is the length of what parties writes.
func partyListBytes(parties []string) int {
	n := 4
	for _, p := range parties {
		n += 4 + len(p)
	}
	return n
}

// floorDiv divides so that the rest is never negative.
func floorDiv(v, by int64) (quotient, rest int64) {
	quotient, rest = v/by, v%by
	if rest < 0 {
		quotient, rest = quotient-1, rest+by
	}
	return quotient, rest
}
