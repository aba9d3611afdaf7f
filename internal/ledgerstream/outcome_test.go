package ledgerstream

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
)

// Every way for a call to fail, by error id or code, and what follows. The package comment's table is this one.
func TestOutcomes(t *testing.T) {
	api := func(code codes.Code, id string) error { return apiError(code, id, -1) }
	for _, c := range []struct {
		call   string
		err    error
		action action
		reason string
		reseed ledger.SeedReason
	}{
		{callTail, io.EOF, reconnect, "eof", ""},
		{callTail, status.Error(codes.Canceled, ""), reconnect, "canceled", ""},
		{callTail, status.Error(codes.Unavailable, ""), reconnect, "unavailable", ""},
		{callTail, status.Error(codes.Unknown, ""), reconnect, "unknown", ""},
		{callTail, errors.New("no status at all"), reconnect, "unknown", ""},
		{callTail, status.Error(codes.DeadlineExceeded, ""), reconnect, "deadline_exceeded", ""},
		{callTail, status.Error(codes.Internal, ""), reconnect, "internal", ""},
		{callTail, status.Error(codes.DataLoss, ""), reconnect, "data_loss", ""},
		{callTail, status.Error(codes.Aborted, ""), reconnect, "aborted", ""},
		{callTail, status.Error(codes.OutOfRange, ""), reconnect, "out_of_range", ""},
		{callTail, status.Error(codes.Code(77), ""), reconnect, "unknown", ""},
		{callTail, status.Error(codes.ResourceExhausted, ""), halt, "oversized", ""},
		{callProof, status.Error(codes.ResourceExhausted, ""), halt, "oversized", ""},
		{callSnapshot, status.Error(codes.ResourceExhausted, ""), halt, "oversized", ""},
		{callAnchor, status.Error(codes.ResourceExhausted, ""), halt, "oversized", ""},
		{callLedgerEnd, status.Error(codes.ResourceExhausted, ""), reconnect, "resource_exhausted", ""},
		{callParticipantID, status.Error(codes.ResourceExhausted, ""), reconnect, "resource_exhausted", ""},
		{callUpdateByOffset, status.Error(codes.ResourceExhausted, ""), reconnect, "resource_exhausted", ""},
		{callFilter, status.Error(codes.ResourceExhausted, ""), reconnect, "resource_exhausted", ""},
		{callAnchor, api(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED"), reconnect, "participant_pruned_data_accessed", ""},
		{callTail, status.Error(codes.PermissionDenied, ""), wait, "permission_denied", ""},
		{callTail, status.Error(codes.Unauthenticated, ""), wait, "unauthenticated", ""},
		{callTail, status.Error(codes.Unimplemented, ""), wait, "unimplemented", ""},
		{callTail, status.Error(codes.InvalidArgument, ""), wait, "invalid_argument", ""},
		{callTail, status.Error(codes.NotFound, ""), wait, "not_found", ""},
		{callTail, status.Error(codes.FailedPrecondition, ""), wait, "failed_precondition", ""},
		{callTail, api(codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN"), reconnect, "aborted_due_to_shutdown", ""},
		{callTail, api(codes.Unavailable, "SERVICE_NOT_RUNNING"), reconnect, "service_not_running", ""},
		{callTail, api(codes.Unavailable, "INDEX_DB_SQL_TRANSIENT_ERROR"), reconnect, "index_db_sql_transient_error", ""},
		{callTail, api(codes.Aborted, "STALE_STREAM_AUTHORIZATION"), reconnect, "stale_stream_authorization", ""},
		{callTail, api(codes.Aborted, "ACCESS_TOKEN_EXPIRED"), reconnect, "access_token_expired", ""},
		{callTail, api(codes.Aborted, "SERVER_OVERLOADED"), reconnect, "server_overloaded", ""},
		{callTail, api(codes.Aborted, "HEAP_MEMORY_OVER_LIMIT"), reconnect, "heap_memory_over_limit", ""},
		{callTail, api(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED"), reconnect, "participant_pruned_data_accessed", ledger.SeedPruned},
		{callProof, api(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED"), reconnect, "participant_pruned_data_accessed", ledger.SeedPruned},
		{callSnapshot, api(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED"), reconnect, "participant_pruned_data_accessed", ""},
		{callTail, api(codes.OutOfRange, "OFFSET_AFTER_LEDGER_END"), reconnect, "offset_after_ledger_end", ledger.SeedRewound},
		{callProof, api(codes.OutOfRange, "OFFSET_AFTER_LEDGER_END"), reconnect, "offset_after_ledger_end", ledger.SeedRewound},
		{callSnapshot, api(codes.OutOfRange, "OFFSET_AFTER_LEDGER_END"), reconnect, "offset_after_ledger_end", ""},
		{callFilter, api(codes.OutOfRange, "OFFSET_AFTER_LEDGER_END"), reconnect, "offset_after_ledger_end", ""},
		{callTail, api(codes.FailedPrecondition, "OFFSET_OUT_OF_RANGE"), reconnect, "offset_out_of_range", ""},
		{callTail, api(codes.FailedPrecondition, "PARTICIPANT_DATA_ACCESSED_AFTER_LEDGER_END"), reconnect, "participant_data_accessed_after_ledger_end", ""},
		{callTail, api(codes.NotFound, "PACKAGE_NAMES_NOT_FOUND"), wait, "package_names_not_found", ""},
		{callTail, api(codes.NotFound, "NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME"), wait, "no_templates_for_package_name_and_qualified_name", ""},
		{callTail, api(codes.InvalidArgument, "NEGATIVE_OFFSET"), fail, "negative_offset", ""},
		{callTail, api(codes.InvalidArgument, "NON_POSITIVE_OFFSET"), fail, "non_positive_offset", ""},
		{callTail, api(codes.InvalidArgument, "MISSING_FIELD"), fail, "missing_field", ""},
		{callTail, api(codes.InvalidArgument, "INVALID_FIELD"), fail, "invalid_field", ""},
		{callTail, api(codes.InvalidArgument, "INVALID_ARGUMENT"), fail, "invalid_argument", ""},
		// A reason that we don't know, and whose text is not ours to put into a metric: by its code.
		{callTail, api(codes.Aborted, "SOMETHING_NEW"), reconnect, "aborted", ""},
		{callTail, api(codes.FailedPrecondition, "SOMETHING_NEW"), wait, "failed_precondition", ""},
		{callTail, fmt.Errorf("x: %w", errStalled), reconnect, "stalled", ""},
		{callTail, fmt.Errorf("x: %w", errOrder), reconnect, "out_of_order", ""},
		{callTail, &DecodeError{Offset: 9, Err: errMissing}, halt, "undecodable", ""},
		{callTail, &DecodeError{Offset: 9, Err: ErrUnknownKind}, halt, "unknown_kind", ""},
	} {
		got := classify(c.call, c.err)
		if got.action != c.action || got.reason != c.reason || got.reseed != c.reseed {
			t.Errorf("%s: %v: got action %d, reason %q, reseed %q; want %d, %q, %q",
				c.call, c.err, got.action, got.reason, got.reseed, c.action, c.reason, c.reseed)
		}
		if got.err == nil || got.Error() == "" {
			t.Errorf("%s: %v: no words", c.call, c.err)
		}
	}
	if got := classify(callTail, &DecodeError{Offset: 9, Err: errMissing}); got.offset != 9 {
		t.Errorf("halted at %d, want 9", got.offset)
	}
	if got := classify(callTail, apiError(codes.Aborted, "STALE_STREAM_AUTHORIZATION", 0)); got.retryAfter != 0 {
		t.Errorf("retry after %s, want 0", got.retryAfter)
	}
	if got := classify(callTail, apiError(codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN", 10*time.Second)); got.retryAfter != 10*time.Second {
		t.Errorf("retry after %s, want 10s", got.retryAfter)
	}
	if got := classify(callTail, apiError(codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN", -1)); got.retryAfter != 0 {
		t.Errorf("retry after %s, want none", got.retryAfter)
	}
}

func TestConfigFaults(t *testing.T) {
	for name, c := range map[string]struct {
		cfg     Config
		setting string
	}{
		"no party":         {Config{}, "Parties"},
		"both":             {Config{Parties: []string{operator}, AnyParty: true}, "Parties"},
		"no party id":      {Config{Parties: []string{"operator"}}, "Parties"},
		"hash":             {Config{AnyParty: true, Packages: []string{packageID}}, "Packages"},
		"with a hash sign": {Config{AnyParty: true, Packages: []string{"#wormhole-core"}}, "Packages"},
		"empty package":    {Config{AnyParty: true, Packages: []string{""}}, "Packages"},
		"template":         {Config{AnyParty: true, Packages: []string{"a:B:C"}}, "Packages"},
		"negative time":    {Config{AnyParty: true, PollInterval: -1}, "PollInterval"},
		"negative bound":   {Config{AnyParty: true, BatchBytes: -1}, "BatchBytes"},
	} {
		var fault *ConfigError
		if err := c.cfg.Validate(); !errors.As(err, &fault) || fault.Setting != c.setting {
			t.Errorf("%s: got %v, want a fault of %s", name, err, c.setting)
		}
	}
	if err := (Config{Parties: []string{operator}}).Validate(); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
	err := Config{Parties: []string{"x"}, Packages: []string{""}, PollInterval: -1}.Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 3 {
		t.Errorf("three faults: %v", err)
	}
}
