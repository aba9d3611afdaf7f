package contractblob

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Serialization versions: how a blob was written.
const (
	// SerializationKeyless is that of every contract without a key, under any id version.
	SerializationKeyless = "2.1"
	// SerializationKeyed is that of contracts with a key.
	SerializationKeyed = "2"
)

// Contract is what a created event blob says.
type Contract struct {
	// SerializationVersion is SerializationKeyless or SerializationKeyed.
	SerializationVersion string
	ContractID           ContractID
	// PackageName is the name of the package that defines the template.
	PackageName string
	// TemplateID is the template, with the package id of the contract's creation.
	TemplateID damlvalue.TypeName
	// Argument is the template's payload. Decode gives it without labels and names; Encode ignores them.
	Argument damlvalue.Record
	// Signatories are all signatories, a key's maintainers included, ascending and without repeats; at least one.
	Signatories []string
	// Observers are the stakeholders that are not signatories, ascending and without repeats.
	Observers []string
	// CreatedAt is the ledger time of creation in microseconds since 1970-01-01T00:00:00Z, within the years 1 to 9999.
	CreatedAt int64
	// Salt blinds the contract id's hash.
	Salt [32]byte
	// Key is the contract's key, or nil.
	Key *Key
}

// Key is a contract's key.
type Key struct {
	// Value is the key, without labels and names.
	Value damlvalue.Value
	// Maintainers are the key's maintainers, ascending and without repeats; at least one. All are signatories.
	Maintainers []string
	// Hash is the key's hash. The contract id covers it, and not Value itself.
	Hash [32]byte
}

// CreatedTime is CreatedAt as a time, in UTC.
func (c *Contract) CreatedTime() time.Time { return time.UnixMicro(c.CreatedAt).UTC() }

// The range of Daml's Time in microseconds, 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999Z, and of its Date in days.
const (
	minMicros = -62135596800000000
	maxMicros = 253402300799999999
	minDays   = -719162
	maxDays   = 2932896
)

// check says what of the contract could not be in a blob. Decode and Encode share it; the argument and a key's value are
// checked where they are walked.
func (c *Contract) check() error {
	if c.ContractID.IsZero() {
		return fmt.Errorf("%w: no contract id", ErrMalformed)
	}
	if err := checkPackageName(c.PackageName); err != nil {
		return err
	}
	if err := checkTemplateID(c.TemplateID); err != nil {
		return err
	}
	if err := c.checkParties(); err != nil {
		return err
	}
	if c.CreatedAt < minMicros || c.CreatedAt > maxMicros {
		return fmt.Errorf("%w: created_at %d is not a time between the years 1 and 9999", ErrMalformed, c.CreatedAt)
	}
	switch {
	case c.SerializationVersion != SerializationKeyless && c.SerializationVersion != SerializationKeyed:
		return fmt.Errorf("%w: serialization version %q", ErrUnsupported, c.SerializationVersion)
	case c.Key != nil && c.SerializationVersion != SerializationKeyed:
		return fmt.Errorf("%w: a key in serialization version %s", ErrMalformed, c.SerializationVersion)
	}
	return nil
}

func (c *Contract) checkParties() error {
	if len(c.Signatories) == 0 {
		return fmt.Errorf("%w: no signatories", ErrMalformed)
	}
	if err := checkPartyList("signatories", c.Signatories); err != nil {
		return err
	}
	if err := checkPartyList("observers", c.Observers); err != nil {
		return err
	}
	if both, ok := shared(c.Signatories, c.Observers); ok {
		return fmt.Errorf("%w: party %q is a signatory and an observer", ErrMalformed, both)
	}
	if c.Key == nil {
		return nil
	}
	if len(c.Key.Maintainers) == 0 {
		return fmt.Errorf("%w: a key without maintainers", ErrMalformed)
	}
	if err := checkPartyList("maintainers", c.Key.Maintainers); err != nil {
		return err
	}
	for _, m := range c.Key.Maintainers {
		if _, ok := slices.BinarySearch(c.Signatories, m); !ok {
			return fmt.Errorf("%w: maintainer %q is not a signatory", ErrMalformed, m)
		}
	}
	return nil
}

// shared is a party that is in both ascending lists.
func shared(a, b []string) (string, bool) {
	for len(a) > 0 && len(b) > 0 {
		switch strings.Compare(a[0], b[0]) {
		case -1:
			a = a[1:]
		case +1:
			b = b[1:]
		default:
			return a[0], true
		}
	}
	return "", false
}

func checkPartyList(what string, parties []string) error {
	for i, p := range parties {
		if !validParty(p) {
			return fmt.Errorf("%w: %s: %q is not a party", ErrMalformed, what, clip(p))
		}
		if i > 0 && parties[i-1] >= p {
			return fmt.Errorf("%w: %s: not strictly ascending at %q", ErrMalformed, what, p)
		}
	}
	return nil
}

// The characters of the identifiers, as Daml-LF allows them.
const (
	nameStart = 1 << iota // of a segment of a module's, type's or constructor's name, or a label
	nameRest
	packageNameChar
	packageIDChar
	partyChar
)

var charClass = func() (class [256]uint8) {
	set := func(bits uint8, chars string) {
		for i := range len(chars) {
			class[chars[i]] |= bits
		}
	}
	set(nameStart|nameRest|packageNameChar|packageIDChar|partyChar, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
	set(nameRest|packageNameChar|packageIDChar|partyChar, "0123456789")
	set(nameStart|nameRest, "$")
	set(packageNameChar|packageIDChar|partyChar, "-")
	set(packageIDChar|partyChar, " ")
	set(partyChar, ":")
	return class
}()

func allOf[T string | []byte](s T, class uint8) bool {
	for i := range len(s) {
		if charClass[s[i]]&class == 0 {
			return false
		}
	}
	return true
}

func validParty[T string | []byte](s T) bool {
	return len(s) > 0 && len(s) <= 255 && allOf(s, partyChar)
}

// maxNameBytes is the greatest length of a dotted name, and of a name in one.
const maxNameBytes = 1000

func validSegment[T string | []byte](s T) bool {
	return len(s) > 0 && len(s) <= maxNameBytes && charClass[s[0]]&nameStart != 0 && allOf(s, nameRest)
}

func validDotted(s string) bool {
	if len(s) > maxNameBytes {
		return false
	}
	for {
		segment, rest, more := strings.Cut(s, ".")
		if !validSegment(segment) {
			return false
		}
		if !more {
			return true
		}
		s = rest
	}
}

func checkPackageName(name string) error {
	if name == "" || len(name) > 255 || !allOf(name, packageNameChar) {
		return fmt.Errorf("%w: %q is not a package name", ErrMalformed, clip(name))
	}
	return nil
}

func checkTemplateID(id damlvalue.TypeName) error {
	if id.PackageID == "" || len(id.PackageID) > 64 || !allOf(id.PackageID, packageIDChar) {
		return fmt.Errorf("%w: template id: %q is not a package id", ErrMalformed, clip(id.PackageID))
	}
	if !validDotted(id.Module) {
		return fmt.Errorf("%w: template id: %q is not a module's name", ErrMalformed, clip(id.Module))
	}
	if !validDotted(id.Entity) {
		return fmt.Errorf("%w: template id: %q is not a template's name", ErrMalformed, clip(id.Entity))
	}
	return nil
}

// clip shortens a text from outside for an error message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
