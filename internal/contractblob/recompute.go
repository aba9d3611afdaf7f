package contractblob

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Suffix computes the last 36 bytes of a contract's id from its content. Which version is that of the contract's id, V12 where it has
// none yet.
//
// V12 needs typed: the contract's argument with the names of its types, the labels of its fields and the ranks of its constructors,
// as an event read with verbose set gives it (but for the ranks), or damlvalue.Label. Where it lacks one, or is nil, the error wraps
// ErrUnverifiable; where it is not the contract's argument, ErrMismatch. V10 and V11 don't look at it.
func Suffix(c *Contract, typed damlvalue.Value) ([SuffixBytes]byte, error) {
	version := c.ContractID.Version()
	if c.ContractID.IsZero() {
		version = V12
	}
	if version == V12 && typed != nil && !same(c.Argument, typed) {
		return [SuffixBytes]byte{}, fmt.Errorf("computing a contract id: %w: the typed argument is another than the contract's: %s", ErrMismatch, difference(c.Argument, typed))
	}
	return suffix(version, c, typed)
}

// suffix is Suffix for a typed argument that is known to be the contract's.
func suffix(version IDVersion, c *Contract, typed damlvalue.Value) (out [SuffixBytes]byte, err error) {
	if version == V12 && typed == nil {
		return out, fmt.Errorf("computing a contract id: %w: the names in %s are not known", ErrUnverifiable, c.TemplateID.QualifiedName())
	}
	hash, err := contractHash(version, c, typed)
	if errors.Is(err, errNames) {
		return out, fmt.Errorf("computing a contract id: %w: %w", ErrUnverifiable, err)
	}
	if err != nil {
		return out, fmt.Errorf("computing a contract id: %w", err)
	}
	unicum := c.unicum(hash)
	out = [SuffixBytes]byte{idVersionMark, byte(version), multihashSHA256, unicumBytes}
	copy(out[4:], unicum[:])
	return out, nil
}

// Recompute checks that a contract's id belongs to its content. Nil says that it does; ErrMismatch that it does not. ErrUnverifiable
// says that this can't be told: names are lacking in typed (see Suffix), or the id is of version V11 and belongs to the
// content, which proves little because V11's encoding has collisions.
//
// See the package comment for what the id does not cover.
func Recompute(c *Contract, typed damlvalue.Value) error {
	got, err := Suffix(c, typed)
	if err != nil {
		return err
	}
	return c.compareSuffix(got)
}

func (c *Contract) compareSuffix(got [SuffixBytes]byte) error {
	if want := c.ContractID.Suffix(); got != want {
		return mismatch(got, want)
	}
	if c.ContractID.Version() == V11 {
		return fmt.Errorf("%w: its id of version V11 belongs to its content, but V11 has collisions", ErrUnverifiable)
	}
	return nil
}

// mismatch is apart so that the suffixes are allocated only where they are told.
func mismatch(got, want [SuffixBytes]byte) error {
	return fmt.Errorf("%w: its content gives an id that ends in %x, its id ends in %x", ErrMismatch, got[4:], want[4:])
}

// Draft is what a new contract is made of.
type Draft struct {
	// Discriminator and Salt should be random; a ledger derives them from its transaction's seed.
	Discriminator, Salt [32]byte
	// CreatedAt is truncated to microseconds.
	CreatedAt   time.Time
	PackageName string
	TemplateID  damlvalue.TypeName
	// Argument is the payload with the names of its types, labels and ranks. Trailing None fields are dropped from its records, at
	// any depth, as participants do.
	Argument damlvalue.Record
	// Signatories and Observers are in any order and may have repeats; an observer who is also a signatory counts as a signatory.
	Signatories, Observers []string
}

// NewContract makes a contract with an id of version V12 that belongs to it, and its created event blob, as a participant of Canton 3.5
// would. The contract has no key. Its Argument is the draft's in normal form, with its names.
func NewContract(d Draft) (*Contract, []byte, error) {
	argument := normal(d.Argument).(damlvalue.Record)
	c := &Contract{
		SerializationVersion: SerializationKeyless,
		PackageName:          d.PackageName,
		TemplateID:           d.TemplateID,
		Argument:             argument,
		Signatories:          sortedSet(d.Signatories),
		CreatedAt:            d.CreatedAt.UnixMicro(),
		Salt:                 d.Salt,
	}
	for _, o := range sortedSet(d.Observers) {
		if _, ok := slices.BinarySearch(c.Signatories, o); !ok {
			c.Observers = append(c.Observers, o)
		}
	}
	suffix, err := suffix(V12, c, argument)
	if err != nil {
		return nil, nil, fmt.Errorf("making a contract of %s: %w", d.TemplateID.QualifiedName(), err)
	}
	c.ContractID = newContractID(d.Discriminator, suffix)
	blob, err := Encode(c)
	if err != nil {
		return nil, nil, fmt.Errorf("making a contract of %s: %w", d.TemplateID.QualifiedName(), err)
	}
	return c, blob, nil
}

func sortedSet(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return slices.Compact(out)
}

// normal is v without the trailing None fields of its records, at any depth.
func normal(v damlvalue.Value) damlvalue.Value {
	switch v := v.(type) {
	case damlvalue.Record:
		fields := slices.Clone(withoutTrailingNones(v.Fields))
		for i := range fields {
			fields[i].Value = normal(fields[i].Value)
		}
		return damlvalue.Record{ID: v.ID, Fields: fields}
	case damlvalue.Variant:
		v.Value = normal(v.Value)
		return v
	case damlvalue.Optional:
		if v.Value != nil {
			v.Value = normal(v.Value)
		}
		return v
	case damlvalue.List:
		out := slices.Clone(v)
		for i := range out {
			out[i] = normal(out[i])
		}
		return out
	case damlvalue.TextMap:
		out := slices.Clone(v)
		for i := range out {
			out[i].Value = normal(out[i].Value)
		}
		return out
	case damlvalue.GenMap:
		out := slices.Clone(v)
		for i := range out {
			out[i] = damlvalue.GenMapEntry{Key: normal(out[i].Key), Value: normal(out[i].Value)}
		}
		return out
	default:
		return v
	}
}
