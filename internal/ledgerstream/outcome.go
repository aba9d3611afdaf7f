package ledgerstream

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
)

// The calls that the follower makes, as messages name them.
const (
	callVersion        = "GetLedgerApiVersion"
	callParticipantID  = "GetParticipantId"
	callLedgerEnd      = "GetLedgerEnd"
	callPruned         = "GetLatestPrunedOffsets"
	callSynchronizers  = "GetConnectedSynchronizers"
	callUpdateByOffset = "GetUpdateByOffset"
	callFilter         = "GetUpdates (filter check)"
	callSnapshot       = "GetActiveContracts"
	callAnchor         = "GetUpdates (before a snapshot)"
	callTail           = "GetUpdates (live)"
	callProof          = "GetUpdates (bounded)"
)

// action is what follows the end of a connection.
type action uint8

const (
	// reconnect: try again after a backoff that grows while there is no progress.
	reconnect action = iota
	// wait: an operator must mend something; try again slowly.
	wait
	// halt: what was sent can't be taken in; try again slowly, never past it.
	halt
	// fail: no retry can help; Run returns.
	fail
)

// ending is why a connection ended, and what follows. It is the error that every part of a session returns.
type ending struct {
	action action
	// reason is a word from a bounded set, for metrics.
	reason string
	// advice says what to do, where somebody can do something.
	advice string
	// retryAfter is the least wait that the participant asked for.
	retryAfter time.Duration
	// reseed is set where the index must be built anew.
	reseed ledger.SeedReason
	// offset is the update's that halted, 0 if not known; after is the offset at which the stream stood then, 0 for a snapshot.
	offset, after int64
	err           error
}

func (e *ending) Error() string {
	if e.advice == "" {
		return e.err.Error()
	}
	return e.err.Error() + "; " + e.advice
}

func (e *ending) Unwrap() error { return e.err }

// ended makes an ending that is a plain reconnect.
func ended(reason, format string, args ...any) *ending {
	return &ending{action: reconnect, reason: reason, err: fmt.Errorf(format, args...)}
}

var (
	errStalled = errors.New("no message within the stall timeout")
	errOrder   = errors.New("the stream is out of order")

	errAnotherParticipant = errors.New("another participant answers")
)

// classify says what follows from a call's error. It goes by the Ledger API's error id (ErrorInfo's reason); where the
// participant redacts it, or something else than the participant answers, by the gRPC code; never by the text. The caller has
// ruled out that its own context ended: a participant's shutdown arrives as Canceled.
func classify(call string, err error) *ending {
	e := &ending{err: fmt.Errorf("%s: %w", call, err)}
	var undecodable *DecodeError
	switch {
	case errors.Is(err, io.EOF):
		e.reason = "eof"
		e.err = fmt.Errorf("%s: the participant, or something between, ended the stream", call)
		return e
	case errors.Is(err, errStalled):
		e.reason = "stalled"
		return e
	case errors.Is(err, errOrder):
		e.reason = "out_of_order"
		return e
	case errors.Is(err, errAnotherParticipant):
		e.reason = "another_participant"
		return e
	case errors.As(err, &undecodable):
		e.action, e.reason, e.offset = halt, "undecodable", undecodable.Offset
		e.advice = "nothing after it is applied until this version, or a newer one, can read it"
		if errors.Is(err, ErrUnknownKind) {
			e.reason = "unknown_kind"
		}
		return e
	}
	id, retryAfter := errorDetails(err)
	e.retryAfter = retryAfter
	if !e.byID(call, id) {
		e.byCode(call, status.Code(err))
	}
	return e
}

// errorDetails returns the Ledger API's id of an error, or "", and the wait that the participant asks for, or 0.
func errorDetails(err error) (id string, retryAfter time.Duration) {
	if err == nil {
		return "", 0
	}
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			id = d.GetReason()
		case *errdetails.RetryInfo:
			retryAfter = max(0, d.GetRetryDelay().AsDuration())
		}
	}
	return id, retryAfter
}

func errorID(err error) string {
	id, _ := errorDetails(err)
	return id
}

// byID decides by the Ledger API's error id and reports whether it knows it.
func (e *ending) byID(call, id string) bool {
	e.reason = strings.ToLower(id)
	switch id {
	case "ABORTED_DUE_TO_SHUTDOWN", "SERVICE_NOT_RUNNING", "INDEX_DB_SQL_TRANSIENT_ERROR",
		"SERVER_OVERLOADED", "HEAP_MEMORY_OVER_LIMIT", "THREADPOOL_OVERLOADED", "MAXIMUM_NUMBER_OF_STREAMS",
		"ACCESS_TOKEN_EXPIRED", "STALE_STREAM_AUTHORIZATION",
		"PARTICIPANT_DATA_ACCESSED_AFTER_LEDGER_END", "OFFSET_OUT_OF_RANGE", "UPDATE_NOT_FOUND":
		e.action = reconnect
	case "PARTICIPANT_PRUNED_DATA_ACCESSED":
		e.action = reconnect
		if call == callTail || call == callProof {
			e.reseed = ledger.SeedPruned
		}
	case "OFFSET_AFTER_LEDGER_END":
		// The ledger ends before an offset that it gave us: it is another one than it was.
		e.action = reconnect
		if call == callTail || call == callProof {
			e.reseed = ledger.SeedRewound
		}
	case "PACKAGE_NAMES_NOT_FOUND":
		e.action = wait
		e.advice = "upload the package to the participant, or correct Packages"
	case "NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME", "TEMPLATES_OR_INTERFACES_NOT_FOUND":
		e.action = wait
		e.advice = "the participant has no version of the package with the template: upload one, or correct Packages"
	case "NEGATIVE_OFFSET", "NON_POSITIVE_OFFSET", "MISSING_FIELD", "INVALID_FIELD", "INVALID_ARGUMENT":
		e.action = fail
		e.err = &ConfigError{Setting: "Parties or Packages", Err: fmt.Errorf("the participant refuses the request: %w", e.err)}
	default:
		return false
	}
	return true
}

// byCode decides by the gRPC code. Redacted by the participant are INTERNAL, UNAUTHENTICATED, PERMISSION_DENIED and
// UNIMPLEMENTED; the others come from between.
//
// What streams send can be larger than we receive; gRPC tells by the same code as a proxy or a participant tells that a quota is used up.
// Other answers are small, so of other calls it is the quota: a matter of time.
func (e *ending) byCode(call string, code codes.Code) {
	e.reason = codeLabel(code)
	streams := call == callTail || call == callProof || call == callSnapshot || call == callAnchor
	switch code {
	case codes.Unauthenticated:
		e.action = wait
		e.advice = "check the access token: present, signed by the participant's issuer, not expired, with a lifetime that the participant" +
			" allows (5 minutes unless configured), and with the right audience or scope"
	case codes.PermissionDenied:
		e.action = wait
		e.advice = "check that the token's user exists, is active, and may read as every configured party (CanReadAs; CanReadAsAnyParty for" +
			" any party), and that the token is meant for this participant"
	case codes.Unimplemented:
		e.action = wait
		e.advice = "check that the address is that of a participant's Ledger API v2"
	case codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.NotFound:
		e.action = wait
	case codes.ResourceExhausted:
		if !streams {
			e.action = reconnect
			return
		}
		e.action = halt
		e.reason = "oversized"
		e.advice = "a message is larger than the receive limit: raise it (MaxReceiveBytes)"
	default:
		e.action = reconnect
	}
}

// codeLabel is a gRPC code in the form of the Ledger API's reasons: "deadline_exceeded".
func codeLabel(code codes.Code) string {
	if code > codes.Unauthenticated {
		return "unknown"
	}
	var b strings.Builder
	for i, r := range code.String() {
		if unicode.IsUpper(r) && i > 0 && code != codes.OK {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
