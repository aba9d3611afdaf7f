package api

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Domain is the ErrorInfo domain of every reason below.
const Domain = "disclosured"

// Reason is the stable name of an error condition, the reason of its google.rpc.ErrorInfo. Reasons are never renamed and their
// codes never change within disclosure.v1; new ones may be added.
type Reason string

// The reasons. What each means, and what to do, is in the table below and in docs/errors.md.
const (
	InvalidField Reason = "INVALID_FIELD"

	UnknownScope           Reason = "UNKNOWN_SCOPE"
	AmbiguousScope         Reason = "AMBIGUOUS_SCOPE"
	Gap                    Reason = "GAP"
	Fork                   Reason = "FORK"
	InFlight               Reason = "IN_FLIGHT"
	CoreStateMissing       Reason = "CORE_STATE_MISSING"
	CoreStateDoubled       Reason = "CORE_STATE_DOUBLED"
	DifferentSynchronizers Reason = "DIFFERENT_SYNCHRONIZERS"
	RegistryMissing        Reason = "REGISTRY_MISSING"
	RegistryDoubled        Reason = "REGISTRY_DOUBLED"
	EmitterMissing         Reason = "EMITTER_MISSING"
	EmitterDoubled         Reason = "EMITTER_DOUBLED"
	BlobIncomplete         Reason = "BLOB_INCOMPLETE"

	OffsetOfAnotherParticipant Reason = "OFFSET_OF_ANOTHER_PARTICIPANT"
	Behind                     Reason = "BEHIND"
	UpdateNotSeen              Reason = "UPDATE_NOT_SEEN"
	Stale                      Reason = "STALE"
	Halted                     Reason = "HALTED"
	NotSeeded                  Reason = "NOT_SEEDED"
	NotReady                   Reason = "NOT_READY"
	StoreUnavailable           Reason = "STORE_UNAVAILABLE"
	PageTokenExpired           Reason = "PAGE_TOKEN_EXPIRED"

	SubmissionsOff   Reason = "SUBMISSIONS_OFF"
	VAARequired      Reason = "VAA_REQUIRED"
	ExpiryInvalid    Reason = "EXPIRY_INVALID"
	Expired          Reason = "EXPIRED"
	NotAuthentic     Reason = "NOT_AUTHENTIC"
	NoReservation    Reason = "NO_RESERVATION"
	ReleaseOff       Reason = "RELEASE_OFF"
	GuardUnavailable Reason = "GUARD_UNAVAILABLE"

	RateLimited      Reason = "RATE_LIMITED"
	TooManyCalls     Reason = "TOO_MANY_CALLS"
	TooManyStreams   Reason = "TOO_MANY_STREAMS"
	AnswerTooLarge   Reason = "ANSWER_TOO_LARGE"
	DeadlineExceeded Reason = "DEADLINE_EXCEEDED"
	Cancelled        Reason = "CANCELLED"
	ShuttingDown     Reason = "SHUTTING_DOWN"
	Internal         Reason = "INTERNAL"
)

// Retry says when the same request may succeed.
type Retry string

const (
	// RetryNow: the same request, after RetryInfo's delay with jitter.
	RetryNow Retry = "now"
	// RetryAfterRefresh: after what it rests on was read anew, or something on the ledger or in the service has changed.
	RetryAfterRefresh Retry = "after-refresh"
	// RetryNever: the request itself has to change.
	RetryNever Retry = "never"
)

// Row is one reason's line in the table of errors.
type Row struct {
	Reason Reason
	// Code is the gRPC status code, HTTP the status of the same condition over HTTP.
	Code codes.Code
	HTTP int
	// Retry is when to try again; Delay goes into google.rpc.RetryInfo and is zero where Retry is not RetryNow.
	Retry Retry
	Delay time.Duration
	// Meaning says what is the case, Do what the caller or the operator does about it.
	Meaning, Do string
	// Metadata are the keys of ErrorInfo's metadata besides the position's. A key that ends in _N stands for _0, _1, …
	Metadata []string
}

// PositionMetadata are the metadata keys of every error that was decided at a view: the position as in Answer.position.
// record_time is RFC 3339 and, like update_id, empty where no update was seen since the last seed.
var PositionMetadata = []string{"participant_id", "offset", "update_id", "record_time"}

// Reasons is the table of errors: every reason once, in the order of docs/errors.md, which is generated from it.
var Reasons = []Row{
	{InvalidField, codes.InvalidArgument, 400, RetryNever, 0,
		"A field of the request breaks a rule. google.rpc.BadRequest lists every field found wrong.",
		"Correct the field.",
		[]string{"field", "rule"}},

	{UnknownScope, codes.NotFound, 404, RetryAfterRefresh, 0,
		"No authentic replay node of such a scope was ever seen by this index.",
		"Compare consumer, operator, package name and namespace with ListScopes. Right after the root was made: ask with after_update_id.",
		nil},
	{AmbiguousScope, codes.FailedPrecondition, 409, RetryNever, 0,
		"The selector matches several tries, which are never mixed.",
		"Name the fields in which the choices differ. choice_N are matches as JSON, at most eight and as far as they fit; choices is their whole number.",
		[]string{"choices", "choice_N"}},
	{Gap, codes.FailedPrecondition, 409, RetryAfterRefresh, 0,
		"No active node covers the digest: nothing under the prefix can be redeemed.",
		"First rule out that the index is wrong (disclosured audit --against-ledger). Then the operator and the consumer have to create a node for the prefix, with every digest that was consumed under it.",
		[]string{"package_name", "operator", "consumer", "namespace", "prefix"}},
	{Fork, codes.FailedPrecondition, 409, RetryAfterRefresh, 0,
		"Two or more active nodes cover the digest: each would let it be consumed once.",
		"The operator and the consumer have to archive all but one of contract_id_N (at most eight of contract_ids).",
		[]string{"package_name", "operator", "consumer", "namespace", "contract_ids", "contract_id_N"}},
	{InFlight, codes.Unavailable, 503, RetryNow, time.Second,
		"The contract was unassigned from one synchronizer and not yet assigned to the next: it is active nowhere.",
		"Try again; the reassignment has to be completed by a stakeholder.",
		[]string{"contract_id", "source_synchronizer_id", "target_synchronizer_id"}},
	{CoreStateMissing, codes.NotFound, 404, RetryAfterRefresh, 0,
		"There is no authentic CoreState for the request: of the configured guardian governance and the operator asked for, and, where named, with that contract id.",
		"Check the anchors (GetServerInfo) and the contract id; look-alikes of other parties are never served.",
		[]string{"puppets"}},
	{CoreStateDoubled, codes.FailedPrecondition, 409, RetryNever, 0,
		"There are several authentic CoreStates.",
		"Name one by its contract id: contract_id_N (at most eight of contract_ids).",
		[]string{"contract_ids", "contract_id_N"}},
	{DifferentSynchronizers, codes.FailedPrecondition, 409, RetryAfterRefresh, 0,
		"CoreState and replay node are on different synchronizers. A submission needs all its disclosures on one, and a redeemer, who is no stakeholder, can't bring them together.",
		"A stakeholder has to reassign one of the two.",
		[]string{"core_state_contract_id", "core_state_synchronizer_id", "replay_node_contract_id", "replay_node_synchronizer_id"}},
	{RegistryMissing, codes.NotFound, 404, RetryAfterRefresh, 0,
		"The operator has no active registry of that kind.",
		"Check the operator and the kind.",
		nil},
	{RegistryDoubled, codes.FailedPrecondition, 409, RetryNever, 0,
		"Several registries match: of several operators, or of one that made more than one.",
		"Name the operator; where it is named, its operator has to archive all but one of contract_id_N.",
		[]string{"contract_ids", "contract_id_N"}},
	{EmitterMissing, codes.NotFound, 404, RetryAfterRefresh, 0,
		"There is no active emitter of that operator, owner and id.",
		"Check the three. Right after the registration: ask with after_update_id.",
		nil},
	{EmitterDoubled, codes.FailedPrecondition, 409, RetryNever, 0,
		"Several emitters match: of several operators, or doubled by their signatories.",
		"Name the operator; where it is named, the signatories have to archive all but one of contract_id_N.",
		[]string{"contract_ids", "contract_id_N"}},
	{BlobIncomplete, codes.Unavailable, 503, RetryNow, 5 * time.Second,
		"The contract is active and its created event blob is not at hand or was not checked: a disclosure without it is worthless.",
		"Try again; where it persists the participant withholds blobs: see the log and the metric of blobs by check.",
		[]string{"contract_id"}},

	{OffsetOfAnotherParticipant, codes.FailedPrecondition, 409, RetryNever, 0,
		"min_offset is an offset of another participant: it says nothing here.",
		"Use after_update_id, which means the same on every participant.",
		[]string{"asked_participant_id"}},
	{Behind, codes.Unavailable, 503, RetryNow, 500 * time.Millisecond,
		"The index did not reach min_offset within the wait.",
		"Try again; offset is how far it is.",
		[]string{"wanted_offset"}},
	{UpdateNotSeen, codes.NotFound, 404, RetryAfterRefresh, 0,
		"The update was not seen within the wait: it is not there yet, concerns no contract served here, or is forgotten already.",
		"Try again once; then ask without after_update_id.",
		nil},
	{Stale, codes.Unavailable, 503, RetryNow, time.Second,
		"The last proof that the index is complete is older than the bound: the participant can't be reached, or does not tell.",
		"Try again, or set allow_stale to have the answer as of the position. The operator: see /healthz and the log.",
		[]string{"proven_at", "age", "bound"}},
	{Halted, codes.Unavailable, 503, RetryAfterRefresh, 0,
		"An update could not be decoded or applied; the index does not move past it.",
		"The operator has to upgrade or repair the service. allow_stale gives the answer as of the position.",
		[]string{"halted_at_offset", "halted_after_offset"}},
	{NotSeeded, codes.Unavailable, 503, RetryNow, time.Second,
		"There is no index yet: the first snapshot is being read, or something that only an operator can mend is missing.",
		"Try again. The operator: see /healthz and the log.",
		[]string{"stream_state"}},
	{NotReady, codes.Unavailable, 503, RetryNow, time.Second,
		"The index can't be relied on: it was not proven complete since the start, or it is that of another participant than the one now followed, or of a history of the ledger that another one has replaced (the participant was restored to an earlier state).",
		"Try again; allow_stale lifts the missing proof, not the other participant or history, of which nothing is served until the new index is in place.",
		[]string{"stream_state", "history_replaced", "known_since"}},
	{StoreUnavailable, codes.Unavailable, 503, RetryNow, time.Second,
		"History is needed for the answer and could not be read.",
		"Try again. The operator: see the log.",
		nil},
	{PageTokenExpired, codes.FailedPrecondition, 410, RetryAfterRefresh, 0,
		"The page token's place on the ledger is no longer kept, or it is another replica's.",
		"Begin with the first page.",
		nil},

	{SubmissionsOff, codes.Unimplemented, 501, RetryNever, 0,
		"The submission service is off: the operator has turned it off (why=disabled), or the connection names no client and an anonymous one is not allowed (why=no_client_certificate).",
		"Submit without a reservation; it is safe. Or connect with a client certificate. The operator: guard.enabled, api.client_ca_file, guard.allow_anonymous.",
		[]string{"why"}},
	{VAARequired, codes.PermissionDenied, 403, RetryNever, 0,
		"A bare digest can't be reserved here: nothing shows that a genuine VAA has it.",
		"Send the VAA. The operator: guard.allow_digest.",
		nil},
	{ExpiryInvalid, codes.InvalidArgument, 400, RetryNever, 0,
		"expires_at is not after 1970, is farther ahead than allowed, or would shorten the reservation or prolong it beyond the greatest lifetime. Nothing was reserved or changed.",
		"Choose another expiry. A message whose expiry is too far ahead may be sent again later.",
		[]string{"max_ttl"}},
	{Expired, codes.FailedPrecondition, 410, RetryNever, 0,
		"expires_at is past, at the call's begin or at the reservation. Nothing was reserved or changed.",
		"Send it with a new expiry, if it is still wanted. Where that persists, compare the clocks.",
		nil},
	{NotAuthentic, codes.PermissionDenied, 403, RetryAfterRefresh, 0,
		"The VAA does not verify by the CoreState served: failed_rule is PrepareRedeem's. Nothing was reserved, so a forged copy never blocks the genuine VAA.",
		"Don't submit it. Of GUARDIAN_SET_UNKNOWN a later CoreState may think otherwise.",
		[]string{"failed_rule"}},
	{NoReservation, codes.NotFound, 404, RetryNever, 0,
		"The token names no live reservation of this client: it has lapsed, was released, is settled already (of Extend and Release), or never was this client's.",
		"Nothing, if the outcome is known. To go on submitting, reserve anew.",
		nil},
	{ReleaseOff, codes.PermissionDenied, 403, RetryNever, 0,
		"Reservations can't be released here.",
		"Leave it to its expiry. The operator: guard.allow_release.",
		nil},
	{GuardUnavailable, codes.Unavailable, 503, RetryNow, time.Second,
		"The guard's store could not be reached or failed. Whether the digest is reserved is not known.",
		"Try again with the same idempotency key, which tells; or submit without a reservation, which is safe. The operator: see the log.",
		nil},

	{RateLimited, codes.ResourceExhausted, 429, RetryNow, time.Second,
		"This caller's address made more calls than its rate allows. An item of a batch counts as a call, and so does each question to reflection, whose stream ends then; a batch waits up to five seconds for what it lacks.",
		"Slow down. RetryInfo says after how long the call would pass if nothing else is called meanwhile.",
		nil},
	{TooManyCalls, codes.ResourceExhausted, 429, RetryNow, time.Second,
		"Too many calls run at once, or too many bytes of answers were not taken yet, of this caller (limit_of=caller) or of all (limit_of=server; no caller gets more than it leaves free). A call counts until its answer was taken. Of audits one that is full and four others run at once.",
		"Take the answers, and try again.",
		[]string{"limit_of"}},
	{TooManyStreams, codes.ResourceExhausted, 429, RetryNow, 5 * time.Second,
		"Too many streams are open, of this caller (limit_of=caller) or of all (limit_of=server).",
		"Close one, or try again.",
		[]string{"limit_of"}},
	{AnswerTooLarge, codes.ResourceExhausted, 413, RetryNever, 0,
		"The answer exceeds what the server sends in one message.",
		"Ask for fewer items; of a batch, for disclosures_once.",
		[]string{"limit_bytes"}},
	{DeadlineExceeded, codes.DeadlineExceeded, 504, RetryNow, 0,
		"The call's deadline, or the server's own bound on calls, passed.",
		"Try again with a later deadline or a smaller request.",
		nil},
	{Cancelled, codes.Canceled, 499, RetryNow, 0,
		"The caller gave the call up.",
		"Nothing.",
		nil},
	{ShuttingDown, codes.Unavailable, 503, RetryNow, time.Second,
		"The server stops, or the wait was cut short because it stops.",
		"Try again, at another replica if there is one.",
		nil},
	{Internal, codes.Internal, 500, RetryNever, 0,
		"A fault of this service.",
		"Report it with request_id.",
		[]string{"request_id"}},
}

// rowOf is the table's line of each reason.
var rowOf = func() map[Reason]Row {
	rows := make(map[Reason]Row, len(Reasons))
	for _, row := range Reasons {
		rows[row.Reason] = row
	}
	return rows
}()
