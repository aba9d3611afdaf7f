package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/ledger"
)

// The bounds of what a status carries. A status travels twice in trailers, once with its details in base64 and once as
// percent-encoded text, and some clients accept no more than 8 KB of them.
const (
	maxMessageBytes    = 512
	maxMetadataBytes   = 512 // a value
	maxMetadataTotal   = 2048
	maxViolations      = 8
	maxFieldText       = 64
	maxDescriptionText = 160
)

// Error is an error of the service: a reason of the table, with what the caller needs to know. It answers for its own gRPC
// status.
type Error struct {
	Reason  Reason
	Message string
	// Metadata goes into ErrorInfo.
	Metadata map[string]string
	// Violations are the fields found wrong, for InvalidField.
	Violations []Violation
	// retryAfter, where greater, takes the place of the table's delay.
	retryAfter time.Duration
	// cause is what went wrong inside; it is logged and never sent.
	cause error
}

// Violation is one field that breaks a rule.
type Violation struct {
	// Field is the field's path, as "items[3].scope.consumer".
	Field string
	// Rule says what the field must be, and what was wrong, without repeating it.
	Rule string
}

func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Reason, e.Message, e.cause)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

func (e *Error) Unwrap() error { return e.cause }

// with is the error with one more metadata entry.
func (e *Error) with(key, value string) *Error {
	e.Metadata[key] = value
	return e
}

func failure(reason Reason, message string) *Error {
	return &Error{Reason: reason, Message: message, Metadata: map[string]string{}}
}

// at adds the position that the error was decided at, unless it has one.
func (e *Error) at(pos ledger.Position) *Error {
	if _, ok := e.Metadata["offset"]; ok {
		return e
	}
	e.Metadata["participant_id"] = pos.ParticipantID
	e.Metadata["offset"] = strconv.FormatInt(pos.Offset, 10)
	e.Metadata["update_id"] = pos.UpdateID
	e.Metadata["record_time"] = ""
	if !pos.RecordTime.IsZero() {
		e.Metadata["record_time"] = pos.RecordTime.UTC().Format(time.RFC3339Nano)
	}
	return e
}

// metadata is the error's metadata within bounds. The position's keys come first; the rest, in the order of keys, as far as it
// fits.
func (e *Error) metadata() map[string]string {
	bounded := make(map[string]string, len(e.Metadata))
	total := 0
	add := func(key string) {
		value, ok := e.Metadata[key]
		if _, done := bounded[key]; !ok || done {
			return
		}
		value = clip(value, maxMetadataBytes)
		if size := len(key) + len(value); total+size <= maxMetadataTotal {
			bounded[key] = value
			total += size
		}
	}
	for _, key := range PositionMetadata {
		add(key)
	}
	for _, key := range sortedKeys(e.Metadata) {
		add(key)
	}
	return bounded
}

// GRPCStatus is the error as a status: what grpc-go sends.
func (e *Error) GRPCStatus() *status.Status {
	row, ok := rowOf[e.Reason]
	if !ok {
		row = rowOf[Internal]
	}
	details := []proto.Message{&errdetails.ErrorInfo{Reason: string(row.Reason), Domain: Domain, Metadata: e.metadata()}}
	if len(e.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.Violations[:min(len(e.Violations), maxViolations)] {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: clip(v.Field, maxFieldText), Description: clip(v.Rule, maxDescriptionText), Reason: string(InvalidField),
			})
		}
		details = append(details, bad)
	}
	if delay := max(row.Delay, e.retryAfter); delay > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	st := &spb.Status{Code: int32(row.Code), Message: clip(e.Message, maxMessageBytes)}
	for _, detail := range details {
		// In the order of keys, so that the same error is the same bytes.
		packed := new(anypb.Any)
		if err := anypb.MarshalFrom(packed, detail, proto.MarshalOptions{Deterministic: true}); err != nil {
			return status.New(codes.Internal, "the error's details can't be encoded")
		}
		st.Details = append(st.Details, packed)
	}
	return status.FromProto(st)
}

// clip cuts a text to at most n bytes of valid UTF-8.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	cut := n - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// asError makes of any error one of the service's own. What it does not know is INTERNAL: its text stays inside.
func asError(err error) *Error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return own
	}
	if own := fromIndex(err); own != nil {
		return own
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return failure(DeadlineExceeded, "the call's deadline passed")
	case errors.Is(err, context.Canceled):
		return failure(Cancelled, "the call was cancelled")
	}
	own := failure(Internal, "internal error")
	own.cause = err
	return own
}
