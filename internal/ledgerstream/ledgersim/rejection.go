package ledgersim

import (
	"fmt"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// category is the participant's own class of an error; it decides the gRPC code and what a client is told.
type category int

const (
	transient       category = 1  // UNAVAILABLE
	contention      category = 2  // ABORTED
	unauthenticated category = 6  // UNAUTHENTICATED, redacted
	unauthorized    category = 7  // PERMISSION_DENIED, redacted
	invalidArgument category = 8  // INVALID_ARGUMENT
	invalidState    category = 9  // FAILED_PRECONDITION
	alreadyExists   category = 10 // ALREADY_EXISTS
	notFound        category = 11 // NOT_FOUND
	outOfRange      category = 12 // OUT_OF_RANGE
	securityAlert   category = 5  // INVALID_ARGUMENT, redacted
)

// rejection is an error as a participant reports it, free of gRPC. Reasons, metadata keys, resources and hints are those that
// a recorded participant gave.
type rejection struct {
	category category
	reason   string
	message  string
	metadata map[string]string
	// resources are what the error is about, in order.
	resources []resource
	// retry is the hint when to try again, nil for none.
	retry *time.Duration
	// indefinite leaves out the metadata definite_answer; definite makes it true.
	indefinite, definite bool
	// ofCommands adds the submission's own description to the metadata.
	ofCommands bool
	// anonymous leaves out what names the participant and the request.
	anonymous, withoutRequest bool
}

type resource struct{ kind, name string }

func (r *rejection) Error() string { return fmt.Sprintf("%s: %s", r.reason, r.message) }

func reject(c category, reason, format string, args ...any) *rejection {
	return &rejection{category: c, reason: reason, message: fmt.Sprintf(format, args...)}
}

func (r *rejection) with(key, value string) *rejection {
	if r.metadata == nil {
		r.metadata = map[string]string{}
	}
	r.metadata[key] = value
	return r
}

func (r *rejection) about(kind, name string) *rejection {
	r.resources = append(r.resources, resource{kind, name})
	return r
}

func (r *rejection) after(d time.Duration) *rejection {
	r.retry = &d
	return r
}

func (r *rejection) ofSubmission() *rejection {
	r.ofCommands = true
	return r
}

// ---- what requests get

func missingField(name string) *rejection {
	return reject(invalidArgument, "MISSING_FIELD", "The submitted command is missing a mandatory field: %s", name).with("field_name", name)
}

func invalidField(name string, err error) *rejection {
	return reject(invalidArgument, "INVALID_FIELD", "The submitted command has a field with invalid value: Invalid field %s: %s", name, err)
}

func invalidArguments(format string, args ...any) *rejection {
	return reject(invalidArgument, "INVALID_ARGUMENT", "The submitted request has invalid arguments: "+format, args...)
}

func missingUser(format string) *rejection {
	return reject(invalidArgument, "INVALID_TOKEN", "The submitted request is missing a user-id: %s", format)
}

func negativeOffset(field string, offset int64) *rejection {
	r := reject(invalidArgument, "NEGATIVE_OFFSET",
		"Offset %d in %s is a negative integer: the offset in %s field has to be a non-negative integer (>=0)", offset, field, field)
	r.indefinite = true
	return r
}

func afterLedgerEnd(what string, offset, end int64) *rejection {
	return reject(outOfRange, "OFFSET_AFTER_LEDGER_END", "%s (%d) is after ledger end (%d)", what, offset, end).after(time.Second)
}

func prunedData(pruned int64, format string, args ...any) *rejection {
	return reject(invalidState, "PARTICIPANT_PRUNED_DATA_ACCESSED", format, args...).with("earliest_offset", fmt.Sprint(pruned))
}

// ---- what submissions get

func contractNotFound(cid string) *rejection {
	return reject(notFound, "CONTRACT_NOT_FOUND", "Contract could not be found with id %s", cid).about("CONTRACT_ID", cid).ofSubmission()
}

func preprocessingFailed(err error) *rejection {
	return reject(invalidArgument, "COMMAND_PREPROCESSING_FAILED", "%s", err).ofSubmission()
}

// failure is an assertion of the model's that did not hold. A wormhole.Rule is one too.
func failure(message string) error { return &assertion{message} }

type assertion struct{ message string }

func (a *assertion) Error() string { return a.message }

const assertionFailed = "UNHANDLED_EXCEPTION/DA.Exception.AssertionFailed:AssertionFailed"

// damlFailure is how the participant reports an assertion; trace is where in the choices it happened.
func damlFailure(message, trace string) *rejection {
	return reject(invalidState, "DAML_FAILURE", "Interpretation error: Error: User failure: %s (error category 9): %s", assertionFailed, message).
		with("error_id", assertionFailed).with("exercise_trace", trace).ofSubmission()
}

// asRejection turns any error of interpretation into the one that the participant reports.
func asRejection(err error, trace string) *rejection {
	switch e := err.(type) {
	case *rejection:
		return e
	case *wormhole.Rule:
		return damlFailure(e.Message, trace)
	case *assertion:
		return damlFailure(e.message, trace)
	default:
		return preprocessingFailed(err)
	}
}

// verdict is a rejection by the synchronizer's confirmers: it is known only after sequencing, and takes an offset.
func (l *state) verdict(c category, reason, what string, cids []string, sync string, confirming []string) *rejection {
	r := reject(c, reason, "Rejected transaction is referring to %s contracts ", what).
		with("CONTRACT_ID", "List("+strings.Join(cids, ", ")+")").
		with("confirming_parties", strings.Join(append([]string{l.participant}, confirming...), ", ")).
		with("psid", short(sync)+"::35-0").
		with("reported_by_participant_id", "PAR::"+l.participant)
	for _, cid := range cids {
		r.about("CONTRACT_ID", cid)
	}
	return r
}

// short shortens an id's fingerprint as the participant's messages do.
func short(id string) string {
	name, fingerprint, ok := strings.Cut(id, "::")
	if !ok || len(fingerprint) <= 12 {
		return id
	}
	return name + "::" + fingerprint[:12] + "..."
}
