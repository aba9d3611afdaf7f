package submit

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons of rejections that a submitter acts upon.
const (
	// ReasonInactive: a contract that was used is archived or elsewhere; Contracts names it. A fresh one is needed.
	ReasonInactive = "LOCAL_VERDICT_INACTIVE_CONTRACTS"
	// ReasonLocked: another transaction is about to archive a contract that was used.
	ReasonLocked = "LOCAL_VERDICT_LOCKED_CONTRACTS"
	// ReasonNotFound: a contract is neither disclosed nor known to the participant.
	ReasonNotFound = "CONTRACT_NOT_FOUND"
	// ReasonFailure: the model said no; ModelMessage is its text.
	ReasonFailure = "DAML_FAILURE"
	// ReasonNotVetted: no version of a package that the command needs is vetted on any synchronizer that it could go to.
	ReasonNotVetted = "PACKAGE_SELECTION_FAILED"
	// ReasonDuplicate: the command was committed before.
	ReasonDuplicate = "DUPLICATE_COMMAND"
)

// Rejection is a participant's refusal.
type Rejection struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the participant's error id; empty where it is redacted, or the error is of gRPC itself.
	Reason string
	// Message is the participant's text, with its error id in front.
	Message string
	// Metadata is whatever it tells beyond.
	Metadata map[string]string
	// Contracts are the ids of the contracts that the error is about.
	Contracts []string
	// RetryAfter is the hint when to try again; Retryable says that there is one.
	RetryAfter time.Duration
	Retryable  bool

	cause error
}

// Error is code, reason and text.
func (r *Rejection) Error() string {
	if r.Reason == "" {
		return fmt.Sprintf("%s: %s", r.Code, r.Message)
	}
	return fmt.Sprintf("%s %s: %s", r.Code, r.Reason, r.Message)
}

// Unwrap is the gRPC error, so that status.FromError and errors.Is see it.
func (r *Rejection) Unwrap() error { return r.cause }

// ModelMessage is the model's own text in a DAML_FAILURE, "" in other rejections.
func (r *Rejection) ModelMessage() string {
	if r.Reason != ReasonFailure {
		return ""
	}
	_, text, _ := strings.Cut(r.Message, "(error category 9): ")
	return text
}

// rejected makes a *Rejection of a gRPC error.
func rejected(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	r := &Rejection{Code: st.Code(), Message: st.Message(), cause: err}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.Reason, r.Metadata = d.GetReason(), d.GetMetadata()
		case *errdetails.RetryInfo:
			r.RetryAfter, r.Retryable = d.GetRetryDelay().AsDuration(), true
		case *errdetails.ResourceInfo:
			if d.GetResourceType() == "CONTRACT_ID" {
				r.Contracts = append(r.Contracts, d.GetResourceName())
			}
		}
	}
	return r
}
