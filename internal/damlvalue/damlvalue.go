// Package damlvalue holds Daml values as a participant gives them, free of any wire format.
//
// Two rooms read Daml values from different bytes: ledgerstream from the Ledger API's Value messages, contractblob from
// the Daml-LF values inside a created event blob. Both produce the types of this package, and the domain (package
// wormhole) decodes only these, so that a contract read from a blob and one read from an event go through one decoder.
//
// A record may lack its field labels and its type's name: a blob never carries them, an event only when it was read with
// verbose set. Trailing None fields are dropped by participants in every read, so a record may be shorter than its type,
// and a newer package version may have appended fields, so it may be longer (Ledger API 3.5; see Record.Field).
package damlvalue

import "fmt"

// Value is one Daml value: one of the types of this package, never a pointer to one. A nil Value is no value at all.
type Value interface{ damlValue() }

type (
	// Int is Daml's Int, 64 bits signed.
	Int int64
	// Text is Daml's Text: valid UTF-8 without NUL.
	Text string
	// Party is a party identifier, "hint::fingerprint".
	Party string
	// ContractID is a contract id in lowercase hex.
	ContractID string
	// Bool is Daml's Bool.
	Bool bool
	// Unit is Daml's ().
	Unit struct{}
	// Timestamp is Daml's Time, in microseconds since 1970-01-01T00:00:00Z.
	Timestamp int64
	// Date is Daml's Date, in days since 1970-01-01.
	Date int32
	// Numeric is Daml's Numeric in decimal notation with all its decimals, as "1.0000000000".
	Numeric string
	// Optional is Daml's Optional; a nil Value is None.
	Optional struct{ Value Value }
	// List is Daml's list.
	List []Value
	// TextMap is Daml's TextMap, entries sorted by key.
	TextMap []TextMapEntry
	// GenMap is Daml's Map, entries in Daml's key order.
	GenMap []GenMapEntry
	// Record is a Daml record, tuple or template payload.
	Record struct {
		// ID is the record type's name, or the zero TypeName where the source did not say.
		ID     TypeName
		Fields []Field
	}
	// Variant is one constructor of a Daml variant with its argument.
	Variant struct {
		ID          TypeName
		Constructor string
		// Rank is the constructor's place in its type's declaration, from 0; -1 where the source did not say.
		Rank  int
		Value Value
	}
	// Enum is one constructor of a Daml enum.
	Enum struct {
		ID          TypeName
		Constructor string
		// Rank is as in Variant.
		Rank int
	}
)

// TextMapEntry is one entry of a TextMap.
type TextMapEntry struct {
	Key   string
	Value Value
}

// GenMapEntry is one entry of a GenMap.
type GenMapEntry struct{ Key, Value Value }

// Field is a record's field. Label is "" where the source did not say.
type Field struct {
	Label string
	Value Value
}

// TypeName names a Daml type: the package that defines it, its module (dotted) and its name in the module.
type TypeName struct {
	// PackageID is the package's id in hex; it may be empty where only the qualified name is known.
	PackageID string
	Module    string
	Entity    string
}

// IsZero reports whether the name is absent.
func (n TypeName) IsZero() bool { return n == TypeName{} }

// QualifiedName is "Module:Entity", the name without its package.
func (n TypeName) QualifiedName() string { return n.Module + ":" + n.Entity }

// String is "package:Module:Entity", the form in which the JSON Ledger API names templates.
func (n TypeName) String() string { return n.PackageID + ":" + n.Module + ":" + n.Entity }

func (Int) damlValue()        {}
func (Text) damlValue()       {}
func (Party) damlValue()      {}
func (ContractID) damlValue() {}
func (Bool) damlValue()       {}
func (Unit) damlValue()       {}
func (Timestamp) damlValue()  {}
func (Date) damlValue()       {}
func (Numeric) damlValue()    {}
func (Optional) damlValue()   {}
func (List) damlValue()       {}
func (TextMap) damlValue()    {}
func (GenMap) damlValue()     {}
func (Record) damlValue()     {}
func (Variant) damlValue()    {}
func (Enum) damlValue()       {}

// Labelled reports whether the record carries field labels. A record without fields counts as labelled.
func (r Record) Labelled() bool {
	for _, f := range r.Fields {
		if f.Label == "" {
			return false
		}
	}
	return true
}

// Field returns the field called label. Where the record has labels only they decide, whatever the position; where it has
// none, position (counted from 0) does. It returns nil where the field is absent, as trailing None fields are.
func (r Record) Field(label string, position int) Value {
	if r.Labelled() {
		for _, f := range r.Fields {
			if f.Label == label {
				return f.Value
			}
		}
		return nil
	}
	if position < 0 || position >= len(r.Fields) {
		return nil
	}
	return r.Fields[position].Value
}

// Kind names the value's type in Daml's words, for error messages.
func Kind(v Value) string {
	switch v.(type) {
	case nil:
		return "no value"
	case Int:
		return "Int"
	case Text:
		return "Text"
	case Party:
		return "Party"
	case ContractID:
		return "ContractId"
	case Bool:
		return "Bool"
	case Unit:
		return "Unit"
	case Timestamp:
		return "Time"
	case Date:
		return "Date"
	case Numeric:
		return "Numeric"
	case Optional:
		return "Optional"
	case List:
		return "List"
	case TextMap:
		return "TextMap"
	case GenMap:
		return "Map"
	case Record:
		return "record"
	case Variant:
		return "variant"
	case Enum:
		return "enum"
	default:
		return fmt.Sprintf("%T", v)
	}
}
