package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/disclosured/disclosured/internal/index"
)

// maxListed is how many contract ids or choices an error lists.
const maxListed = 8

// fromIndex makes of an error of the index one of the service's own; nil where it is not one that callers are told.
// ErrNoContract and ErrSeveralContracts say not which kind of contract: see missing.
func fromIndex(err error) *Error {
	var (
		unknown   *index.UnknownScopeError
		ambiguous *index.AmbiguousScopeError
		gap       *index.GapError
		fork      *index.ForkError
		inFlight  *index.InFlightError
		noCore    *index.NoCoreStateError
		twoCores  *index.DoubledCoreStateError
	)
	switch {
	case errors.As(err, &unknown):
		return failure(UnknownScope, "no replay node of such a scope was seen")
	case errors.As(err, &ambiguous):
		e := failure(AmbiguousScope, fmt.Sprintf("the scope selector matches %d tries", len(ambiguous.Choices)))
		e.with("choices", strconv.Itoa(len(ambiguous.Choices)))
		for i, choice := range ambiguous.Choices[:min(len(ambiguous.Choices), maxListed)] {
			if text := choiceText(choice); len(text) <= maxMetadataBytes { // half a JSON text is none
				e.with(fmt.Sprintf("choice_%d", i), text)
			}
		}
		return e
	case errors.As(err, &gap):
		return failure(Gap, fmt.Sprintf("no active replay node covers the digests under %q", gap.Prefix)).
			scope(gap.Scope).with("prefix", gap.Prefix.String())
	case errors.As(err, &fork):
		return failure(Fork, fmt.Sprintf("%d active replay nodes cover the digest", len(fork.ContractIDs))).
			scope(fork.Scope).contractIDs(fork.ContractIDs)
	case errors.As(err, &inFlight):
		return failure(InFlight, "the contract is in flight between two synchronizers").
			with("contract_id", inFlight.ContractID).
			with("source_synchronizer_id", inFlight.Source).
			with("target_synchronizer_id", inFlight.Target)
	case errors.As(err, &noCore):
		return failure(CoreStateMissing, "there is no such authentic CoreState").with("puppets", strconv.Itoa(noCore.Puppets))
	case errors.As(err, &twoCores):
		return failure(CoreStateDoubled, fmt.Sprintf("there are %d authentic CoreStates", len(twoCores.ContractIDs))).
			contractIDs(twoCores.ContractIDs)
	}
	return nil
}

// missing names the index's errors about registries and emitters by the reasons of their kind.
func missing(err error, none, several Reason, what string) error {
	var twice *index.SeveralContractsError
	switch {
	case errors.As(err, &twice):
		return failure(several, fmt.Sprintf("there are %d such %ss", len(twice.ContractIDs), what)).contractIDs(twice.ContractIDs)
	case errors.Is(err, index.ErrNoContract):
		return failure(none, "there is no such "+what)
	}
	return err
}

func (e *Error) scope(s index.Scope) *Error {
	e.with("package_name", s.PackageName).with("operator", s.Operator).with("consumer", s.Consumer)
	if s.Namespace.Present {
		e.with("namespace", s.Namespace.Value)
	}
	return e
}

func (e *Error) contractIDs(ids []string) *Error {
	e.with("contract_ids", strconv.Itoa(len(ids)))
	for i, id := range ids[:min(len(ids), maxListed)] {
		e.with(fmt.Sprintf("contract_id_%d", i), id)
	}
	return e
}

// choiceText is a scope as JSON, in the field names of ScopeSelector's JSON form, so that it can be put into the next request. The
// consumer is left out: the request had to name it.
func choiceText(s index.Scope) string {
	choice := struct {
		PackageName      string  `json:"packageName"`
		Operator         string  `json:"operator"`
		Namespace        *string `json:"namespace,omitempty"`
		WithoutNamespace bool    `json:"withoutNamespace,omitempty"`
	}{PackageName: s.PackageName, Operator: s.Operator, WithoutNamespace: !s.Namespace.Present}
	if s.Namespace.Present {
		choice.Namespace = &s.Namespace.Value
	}
	text, err := json.Marshal(choice)
	if err != nil { // strings always encode
		return ""
	}
	return string(text)
}
