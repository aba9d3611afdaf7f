package contractblob

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Result is the outcome of a check.
type Result uint8

const (
	// Unchecked is the zero value, and never a check's outcome.
	Unchecked Result = iota
	// Verified: the blob says what its event says, and its contract id belongs to it.
	Verified
	// Unverifiable: as far as can be seen the blob says what its event says; its contract id can't be recomputed.
	Unverifiable
	// Mismatch: the blob is damaged, says something else than its event, or its contract id does not belong to it.
	Mismatch
)

// String is the result's name in lower case.
func (r Result) String() string {
	switch r {
	case Verified:
		return "verified"
	case Unverifiable:
		return "unverifiable"
	case Mismatch:
		return "mismatch"
	default:
		return "unchecked"
	}
}

// Facts is what an event says about its contract.
type Facts struct {
	// ContractID is in lowercase hex.
	ContractID  string
	TemplateID  damlvalue.TypeName
	PackageName string
	// Signatories and Observers are full sets, in any order; observers are the stakeholders that are not signatories.
	Signatories, Observers []string
	CreatedAt              time.Time
	// Argument may have names and labels, and then those are what the contract id is recomputed with.
	Argument damlvalue.Record
}

// Check checks a created event blob against its event, and the contract id against both: see the package comment for what the results
// mean and what they leave open. The error is nil for Verified and else says what is wrong or lacking; it wraps ErrMismatch or
// ErrUnverifiable, and contains no part of the argument.
//
// The names that the id of version V12 needs are taken from the event's argument where it has them all, and else from the first of
// schemas that fits and with which the id recomputes. Schemas are the versions of the template's type, best first. Where some schema
// fits and the id recomputes with none, the result is Mismatch; where none fits it is Unverifiable.
//
// An empty blob is a mismatch; a caller for whom a missing blob is another thing looks at its length first.
func Check(blob []byte, facts Facts, schemas []damlvalue.Type) (Result, error) {
	err := check(blob, &facts, schemas)
	switch {
	case err == nil:
		return Verified, nil
	case errors.Is(err, ErrUnverifiable):
		return Unverifiable, err
	case errors.Is(err, ErrMismatch):
		return Mismatch, err
	case errors.Is(err, ErrUnsupported):
		return Unverifiable, fmt.Errorf("%w: %w", ErrUnverifiable, err)
	default:
		return Mismatch, fmt.Errorf("%w: %w", ErrMismatch, err)
	}
}

func check(blob []byte, facts *Facts, schemas []damlvalue.Type) error {
	e, err := openEnvelope(blob)
	if err != nil {
		return fmt.Errorf("created event blob: %w", err)
	}
	if err := e.contract.compareFacts(facts); err != nil {
		return err
	}
	if err := e.compareArgument(facts.Argument); err != nil {
		return err
	}
	c := &e.contract
	version := c.ContractID.Version()
	if version != V12 {
		// These versions hash the argument as the blob has it.
		if err := e.decodeArgument(); err != nil {
			return fmt.Errorf("created event blob: %w", err)
		}
	}
	got, err := suffix(version, c, facts.Argument)
	if errors.Is(err, ErrUnverifiable) {
		return c.recomputeWithSchemas(facts.Argument, schemas, err)
	}
	if err != nil {
		return err
	}
	return c.compareSuffix(got)
}

// compareFacts compares what the blob says beside its argument.
func (c *Contract) compareFacts(facts *Facts) error {
	switch {
	case !c.ContractID.is(facts.ContractID):
		return differs("contract id", facts.ContractID, c.ContractID.String())
	case c.TemplateID != facts.TemplateID:
		return differs("template id", facts.TemplateID.String(), c.TemplateID.String())
	case c.PackageName != facts.PackageName:
		return differs("package name", facts.PackageName, c.PackageName)
	case !sameSet(c.Signatories, facts.Signatories):
		return differs("signatories", fmt.Sprintf("%q", facts.Signatories), fmt.Sprintf("%q", c.Signatories))
	case !sameSet(c.Observers, facts.Observers):
		return differs("observers", fmt.Sprintf("%q", facts.Observers), fmt.Sprintf("%q", c.Observers))
	case !c.CreatedTime().Equal(facts.CreatedAt):
		return differs("time of creation", facts.CreatedAt.UTC().Format(time.RFC3339Nano), c.CreatedTime().Format(time.RFC3339Nano))
	}
	return nil
}

func differs(what, event, blob string) error {
	return fmt.Errorf("%w: its %s is %s in the event and %s in the blob", ErrMismatch, what, event, blob)
}

// sameSet compares a sorted list without repeats with one in any order.
func sameSet(sorted, list []string) bool {
	return slices.Equal(sorted, list) || slices.Equal(sorted, sortedSet(list))
}

// encoders hold the buffers of compareArgument. One that grew large is not kept.
var encoders = sync.Pool{New: func() any { return new(prepender) }}

const keptEncoderBytes = 64 << 10

// compareArgument compares the blob's argument with the event's. A participant writes a value in one way only, and drops trailing
// None fields from events and from blobs alike; so the event's argument is written as a blob has it, and the bytes are compared.
// Only where they differ both are compared as values, which finds the place, or, in a blob written otherwise, no difference.
func (e *envelope) compareArgument(event damlvalue.Record) error {
	p := encoders.Get().(*prepender)
	p.reset()
	equal := p.prependValue(event, 0) == nil && bytes.Equal(p.written(), e.argument)
	if len(p.buf) <= keptEncoderBytes {
		encoders.Put(p)
	}
	if equal {
		return nil
	}
	if err := e.decodeArgument(); err != nil {
		return fmt.Errorf("created event blob: %w", err)
	}
	if d := difference(event, e.contract.Argument); d != "" {
		return fmt.Errorf("%w: its argument in the event and in the blob differ:%s", ErrMismatch, d)
	}
	return nil
}

// recomputeWithSchemas tries the template's known types; lacking is the error that says what the event's argument lacks.
func (c *Contract) recomputeWithSchemas(argument damlvalue.Record, schemas []damlvalue.Type, lacking error) error {
	result := lacking
	for _, schema := range schemas {
		typed, err := damlvalue.Label(argument, schema)
		if err != nil {
			continue // of another version
		}
		got, err := suffix(c.ContractID.Version(), c, typed)
		if err != nil {
			continue
		}
		if err = c.compareSuffix(got); err == nil {
			return nil
		}
		result = err
	}
	return result
}
