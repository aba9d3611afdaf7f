package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNotSubmitted is wrapped by errors of the caller's function that say that nothing was submitted, and that trying again is no use: the
// user did not sign, say.
var ErrNotSubmitted = errors.New("nothing was submitted")

// LedgerError is a participant's answer to a submission. A gRPC status in an error's chain is read as one; who submits by other ways, such
// as the JSON Ledger API, returns one: its `code`, `grpcCodeValue`, `cause`, `context` and `resources`.
type LedgerError struct {
	// Reason is the error id, as LOCAL_VERDICT_INACTIVE_CONTRACTS: google.rpc.ErrorInfo's reason. Empty where the error is redacted, or
	// is none of the participant's but of the transport.
	Reason string
	// Code is the gRPC status code.
	Code codes.Code
	// Message is the participant's text.
	Message string
	// Metadata is ErrorInfo's.
	Metadata map[string]string
	// ContractIDs are the contracts that the error names as its resources.
	ContractIDs []string
	// RetryAfter is RetryInfo's delay, 0 for none.
	RetryAfter time.Duration

	cause error
}

// Error is code, reason and text.
func (e *LedgerError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%s %s: %s", e.Code, e.Reason, e.Message)
}

// Unwrap is the error that it was read from.
func (e *LedgerError) Unwrap() error { return e.cause }

// ModelMessage is the model's own text in a DAML_FAILURE, "" in other errors. What stands before it is Daml's and Canton's.
func (e *LedgerError) ModelMessage() string {
	if e.Reason != "DAML_FAILURE" {
		return ""
	}
	if _, text, ok := strings.Cut(e.Message, "(error category 9): "); ok {
		return text
	}
	return e.Message
}

// ledgerErrorOf reads a submission's error; nil where nothing of a participant's or of gRPC's is in it.
func ledgerErrorOf(err error) *LedgerError {
	var said *LedgerError
	if errors.As(err, &said) {
		return said
	}
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	e := &LedgerError{Code: st.Code(), Message: st.Message(), cause: err}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			e.Reason, e.Metadata = d.GetReason(), d.GetMetadata()
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.ResourceInfo:
			if d.GetResourceType() == "CONTRACT_ID" {
				e.ContractIDs = append(e.ContractIDs, d.GetResourceName())
			}
		}
	}
	return e
}

// Class is what an error of a submission means for the redeem.
type Class uint8

const (
	// ClassUnknown: the submission may have committed, or may yet. The digest is read before anything else is done.
	ClassUnknown Class = iota
	// ClassRefresh: this submission did nothing, because what it disclosed or where it went is not, or no longer, so. A fresh bundle.
	ClassRefresh
	// ClassBackoff: this submission did nothing, for a reason that passes. A fresh bundle, after a while.
	ClassBackoff
	// ClassDistrust: this submission did nothing, because what was disclosed is damaged. A fresh bundle, of another endpoint.
	ClassDistrust
	// ClassRefused: the model says no: it would say the same to any other submission of this VAA by this caller.
	ClassRefused
	// ClassConsumed: the model says that the digest is consumed. By whom is read.
	ClassConsumed
	// ClassDuplicate: a submission under this command id has committed. That was us; the update is read.
	ClassDuplicate
	// ClassInFlight: a submission under this command id is on its way. As ClassUnknown.
	ClassInFlight
	// ClassGiveUp: this submission did nothing, and no other will until somebody mends the submission, the rights or the participant.
	ClassGiveUp
)

// String is the class in a word or two, as docs/retries.md has it.
func (c Class) String() string {
	switch c {
	case ClassRefresh:
		return "refresh"
	case ClassBackoff:
		return "back off"
	case ClassDistrust:
		return "other endpoint"
	case ClassRefused:
		return "invalid"
	case ClassConsumed:
		return "consumed"
	case ClassDuplicate:
		return "duplicate"
	case ClassInFlight:
		return "in flight"
	case ClassGiveUp:
		return "give up"
	default:
		return "unknown outcome"
	}
}

// Classify says what the error of a submission means, and gives the participant's part of it; nil where there is none. It decides by
// the error id, and by the text only of a DAML_FAILURE, which has nothing else. What it does not know is ClassUnknown.
func Classify(err error) (Class, *LedgerError) {
	if errors.Is(err, ErrNotSubmitted) {
		return ClassGiveUp, ledgerErrorOf(err)
	}
	e := ledgerErrorOf(err)
	if e == nil {
		return ClassUnknown, nil
	}
	if e.Reason == "" {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return ClassUnknown, e
		}
		return classOfCode(e.Code), e
	}
	row, ok := errorRows[e.Reason]
	if !ok {
		return ClassUnknown, e
	}
	switch {
	case e.Reason == "DAML_FAILURE" && consumedMessage(e.ModelMessage()):
		return ClassConsumed, e
	case e.Reason == "DUPLICATE_COMMAND" && e.Metadata["accepted"] == "false":
		return ClassBackoff, e
	default:
		return row.Class, e
	}
}

// consumedMessage is what the versions of the model say of a digest that is consumed.
func consumedMessage(text string) bool {
	return text == "VAA already consumed" || text == "digest already consumed"
}

// classOfCode is for errors without an id: redacted ones, and those of gRPC itself. Those that a participant redacts are refusals before
// anything was done. All others may come from the way back as well: a connection that broke, an answer too large to receive.
func classOfCode(code codes.Code) Class {
	switch code {
	case codes.InvalidArgument:
		// Redacted: a security alert, such as two blobs for one contract id.
		return ClassDistrust
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return ClassGiveUp
	default:
		return ClassUnknown
	}
}
