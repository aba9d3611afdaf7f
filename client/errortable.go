package client

// ErrorRow is one error id of a participant, and how the error is taken where a submission ends with it.
type ErrorRow struct {
	// Reason is the error id.
	Reason string
	// Code is the gRPC status that comes with it, in Canton's spelling.
	Code  string
	Class Class
	// Meaning says what is the case, Do what the client, or somebody else, does about it.
	Meaning, Do string
}

// Errors is the table of a participant's error ids. Sources: calls recorded from a Canton 3.5.10-SNAPSHOT participant, over gRPC and over
// the JSON Ledger API, and Canton 3.5.1's source.
var Errors = []ErrorRow{
	// What contention and time do.
	{"LOCAL_VERDICT_INACTIVE_CONTRACTS", "NOT_FOUND", ClassRefresh,
		"A contract that was disclosed is archived, or on another synchronizer: somebody else consumed on the node, or the signature took longer than it lived.",
		"Read the bundle anew, waiting for a successor of the contracts named."},
	{"LOCAL_VERDICT_LOCKED_CONTRACTS", "ABORTED", ClassRefresh,
		"Another transaction is about to archive a contract that was disclosed. The hint to retry after 1 s is no help: the contract will be gone.",
		"Read the bundle anew, waiting for a successor. Where none comes, the other transaction failed, and the same contract is used again after a while."},
	{"CONTRACT_NOT_FOUND", "NOT_FOUND", ClassRefresh,
		"A contract is neither disclosed nor known to the participant.",
		"Read the bundle anew. If it persists the submitting function leaves a disclosure out (the app's own contract, say)."},
	{"CONTRACT_NOT_ACTIVE", "NOT_FOUND", ClassRefresh,
		"A contract was consumed earlier in the same transaction, or is archived at the participant.",
		"Read the bundle anew. If it persists the submitting function uses the node twice."},
	{"INCONSISTENT", "FAILED_PRECONDITION", ClassRefresh,
		"The inputs are not consistent with the participant's ledger.",
		"Read the bundle anew."},
	{"FAILED_TO_DETERMINE_LEDGER_TIME", "ABORTED", ClassRefresh,
		"A contract that was not disclosed was archived while the command was prepared.",
		"Read the bundle anew."},
	{"LOCAL_VERDICT_LEDGER_TIME_OUT_OF_BOUND", "ABORTED", ClassBackoff,
		"The transaction's ledger time is too far from the synchronizer's.",
		"Try again after a while."},

	// What reassignments do.
	{"UNKNOWN_CONTRACT_SYNCHRONIZERS", "FAILED_PRECONDITION", ClassRefresh,
		"A contract is being reassigned: it is active nowhere.",
		"Read the bundle anew; the service says when the contract is in flight."},
	{"SUBMITTER_ALWAYS_STAKEHOLDER", "FAILED_PRECONDITION", ClassRefresh,
		"A disclosed contract is not on the synchronizer that its disclosure names, and the submitter, who is no stakeholder, can't bring it there.",
		"Read the bundle anew."},
	{"DISCLOSED_CONTRACTS_SYNCHRONIZER_ID_MISMATCH", "INVALID_ARGUMENT", ClassRefresh,
		"The disclosures that were used name different synchronizers.",
		"Read the bundle anew: the service gives bundles of one synchronizer. If it persists a disclosure of the caller's own is on another."},
	{"PRESCRIBED_SYNCHRONIZER_ID_MISMATCH", "INVALID_ARGUMENT", ClassRefresh,
		"The submission prescribes another synchronizer than the disclosures.",
		"Read the bundle anew, and prescribe none, or Prepared.SynchronizerID."},
	{"INVALID_PRESCRIBED_SYNCHRONIZER_ID", "FAILED_PRECONDITION", ClassRefresh,
		"The participant is not connected to the synchronizer that the disclosures or the submission name.",
		"Read the bundle anew. If it persists the participant has to be connected to the synchronizer of the contracts."},
	{"NO_SYNCHRONIZER_FOR_SUBMISSION", "FAILED_PRECONDITION", ClassRefresh,
		"No synchronizer has all contracts, and the submitter can't bring them together.",
		"Read the bundle anew. If it persists a stakeholder has to reassign, or a package is not vetted where the contracts are."},
	{"NO_SYNCHRONIZER_ON_WHICH_ALL_SUBMITTERS_CAN_SUBMIT", "NOT_FOUND", ClassGiveUp,
		"The submitting parties may not submit through this participant: external parties, say, have to sign.",
		"Submit the way that the parties can."},

	// What our own earlier submission does.
	{"DUPLICATE_COMMAND", "ALREADY_EXISTS", ClassDuplicate,
		"A submission under this command id has committed (accepted=true, completion_offset).",
		"It was ours. Read which update it was."},
	{"SUBMISSION_ALREADY_IN_FLIGHT", "ABORTED", ClassInFlight,
		"A submission under this command id is on its way.",
		"Wait and read whether the digest is consumed; then try again."},
	{"REQUEST_TIME_OUT", "DEADLINE_EXCEEDED", ClassUnknown,
		"The participant stopped waiting for the command's end.",
		"Read whether the digest is consumed, past the moment; then try again."},
	{"INVALID_DEDUPLICATION_PERIOD", "FAILED_PRECONDITION", ClassGiveUp,
		"The submission asks for a deduplication period that the participant does not have.",
		"Leave the period out, or shorten it (longest_duration, earliest_offset)."},

	// What the model says.
	{"DAML_FAILURE", "FAILED_PRECONDITION", ClassRefused,
		"An assertion failed: the text behind \"(error category 9): \" says which. \"VAA already consumed\" and \"digest already consumed\" are taken as: consumed.",
		"Stop: the VAA, or this caller, can't redeem. Where it is consumed, read by which update."},
	{"DAML_AUTHORIZATION_ERROR", "INVALID_ARGUMENT", ClassGiveUp,
		"The submitting parties lack the authority for what the command does.",
		"Submit as the choice's controller."},
	{"TEMPLATE_PRECONDITION_VIOLATED", "INVALID_ARGUMENT", ClassGiveUp,
		"A contract to be created breaks its template's precondition.",
		"Correct the command."},
	{"WRONGLY_TYPED_CONTRACT", "FAILED_PRECONDITION", ClassGiveUp,
		"A contract id is of another template than the argument wants: CoreState and node changed places, say.",
		"Correct the command."},

	// What is wrong with what was disclosed. The blobs were verified before, so that they were damaged on the way.
	{"INTERPRETATION_UPGRADE_ERROR_AUTHENTICATION_FAILED", "INVALID_ARGUMENT", ClassDistrust,
		"A disclosed blob's content does not belong to its contract id.",
		"Read the bundle anew, from another endpoint."},
	{"INTERPRETATION_UPGRADE_ERROR_VALIDATION_FAILED", "INVALID_ARGUMENT", ClassDistrust,
		"A disclosed blob's package name, signatories or template are not those that its content gives.",
		"Read the bundle anew, from another endpoint."},
	{"INTERPRETATION_UPGRADE_ERROR_TRANSLATION_FAILED", "INVALID_ARGUMENT", ClassGiveUp,
		"The contract is of a package version that the version chosen for the command can't read.",
		"Name the contract's package id in package_id_selection_preference (Disclosure.TemplateID has it)."},
	{"DISCLOSED_CONTRACT_AUTHENTICATION_FAILED", "INVALID_ARGUMENT", ClassDistrust,
		"A disclosed blob does not belong to its contract id (documented; not raised by Canton 3.5.1).",
		"Read the bundle anew, from another endpoint."},
	{"INVALID_DISCLOSED_CONTRACT", "INVALID_ARGUMENT", ClassDistrust,
		"A disclosed contract is not well formed for routing.",
		"Read the bundle anew, from another endpoint."},
	{"DISCLOSED_CONTRACTS_CONFLICTING_PAYLOADS", "INVALID_ARGUMENT", ClassDistrust,
		"Two disclosures of one contract differ. Redacted as a security alert: seen is INVALID_ARGUMENT without an id.",
		"Read the bundle anew. If it persists the caller's own disclosures contain an old one."},

	// What is wrong with the command. Nothing was done, and the same command fails again.
	{"INVALID_ARGUMENT", "INVALID_ARGUMENT", ClassGiveUp,
		"An argument is not valid: a disclosure that can't be decoded or does not match its ids, a value of the wrong form.",
		"Correct the command. The blobs were verified before they were handed over."},
	{"INVALID_FIELD", "INVALID_ARGUMENT", ClassGiveUp,
		"A field of the submission is not well formed: a template id by #name in a disclosure, a contract id in upper case.",
		"Correct the command."},
	{"MISSING_FIELD", "INVALID_ARGUMENT", ClassGiveUp,
		"A field of the submission is missing.",
		"Correct the command."},
	{"COMMAND_PREPROCESSING_FAILED", "INVALID_ARGUMENT", ClassGiveUp,
		"Template, choice or argument do not fit the package.",
		"Correct the command."},
	{"LEDGER_API_INTERNAL_ERROR", "INTERNAL", ClassUnknown,
		"A fault within the participant. Over the JSON Ledger API it is also what a value of the wrong JSON type gets.",
		"Read whether the digest is consumed. If it persists, correct the command's JSON (Int64 as strings, tuples as objects)."},

	// What is missing at the participant.
	{"PACKAGE_SELECTION_FAILED", "FAILED_PRECONDITION", ClassGiveUp,
		"A package is not vetted by all participants concerned, the submitter's own included.",
		"Upload and vet the packages."},
	{"UNRESOLVED_PACKAGE_NAME", "NOT_FOUND", ClassGiveUp,
		"No package of that name is known.",
		"Upload and vet the packages."},
	{"PACKAGE_NAME_DISCARDED_DUE_TO_UNVETTED_PACKAGES", "NOT_FOUND", ClassGiveUp,
		"A package of that name is known, and not vetted.",
		"Vet the packages."},
	{"PACKAGE_NAMES_NOT_FOUND", "NOT_FOUND", ClassGiveUp,
		"No package of that name is known.",
		"Upload and vet the packages."},
	{"NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME", "NOT_FOUND", ClassGiveUp,
		"No vetted version of the package has the template.",
		"Upload and vet the packages."},
	{"NO_INTERFACE_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME", "NOT_FOUND", ClassGiveUp,
		"No vetted version of the package has the interface.",
		"Upload and vet the packages."},
	{"UNKNOWN_SUBMITTERS", "NOT_FOUND", ClassGiveUp,
		"A submitting party is not hosted on a synchronizer of this participant.",
		"Submit through the participant of the party."},
	{"UNKNOWN_INFORMEES", "NOT_FOUND", ClassGiveUp,
		"A party of the transaction is not known on the synchronizer.",
		"Check the parties, and that the synchronizer is the right one."},

	// What passes.
	{"SEQUENCER_REQUEST_FAILED", "ABORTED", ClassUnknown,
		"The sequencer did not take the request. One that is too large (10 MiB by default) fails so each time.",
		"Read whether the digest is consumed; then try again, within the budget."},
	{"FAILED_TO_EXECUTE_TRANSACTION", "FAILED_PRECONDITION", ClassUnknown,
		"A prepared transaction could not be executed.",
		"Read whether the digest is consumed; then prepare and sign anew."},
	{"ABORTED_DUE_TO_SHUTDOWN", "UNAVAILABLE", ClassUnknown,
		"The participant shut down while it worked on the command.",
		"Read whether the digest is consumed; then try again."},
	{"SERVICE_NOT_RUNNING", "UNAVAILABLE", ClassUnknown,
		"A service of the participant does not run.",
		"Read whether the digest is consumed; then try again."},
	{"INDEX_DB_SQL_TRANSIENT_ERROR", "UNAVAILABLE", ClassUnknown,
		"The participant's database had a hiccup.",
		"Read whether the digest is consumed; then try again."},
	{"SERVER_OVERLOADED", "ABORTED", ClassBackoff,
		"The participant takes no more calls of this kind now.",
		"Try again after a while."},
	{"HEAP_MEMORY_OVER_LIMIT", "ABORTED", ClassBackoff,
		"The participant is short of memory, and takes no calls.",
		"Try again after a while."},

	// Who asks.
	{"INVALID_TOKEN", "INVALID_ARGUMENT", ClassGiveUp,
		"The submission names no user, and authentication does not give one.",
		"Set the user id, or a token."},
	{"ACCESS_TOKEN_EXPIRED", "ABORTED", ClassUnknown,
		"The token expired under an open call.",
		"Read whether the digest is consumed; then try again with a new token."},
	{"STALE_STREAM_AUTHORIZATION", "ABORTED", ClassUnknown,
		"The user's rights changed under an open call.",
		"Read whether the digest is consumed; then try again."},
	{"NA", "UNAUTHENTICATED or PERMISSION_DENIED", ClassGiveUp,
		"The JSON Ledger API's code for a redacted error: no, a bad or an expired token; no right to act as the parties.",
		"Renew the token, or have the rights granted."},

	// What other calls get. Where a submission's function makes such calls too, they say nothing of the submission.
	{"REASSIGNMENT_VALIDATION_FAILED", "NOT_FOUND", ClassUnknown, "Of reassignments: it is not valid, or not yet for this submitter.", "Not of a redeem; the digest is read."},
	{"OFFSET_AFTER_LEDGER_END", "OUT_OF_RANGE", ClassUnknown, "Of reads: the offset is past the ledger's end.", "Not of a redeem; the digest is read."},
	{"OFFSET_OUT_OF_RANGE", "FAILED_PRECONDITION", ClassUnknown, "Of reads: begin is after end.", "Not of a redeem; the digest is read."},
	{"NEGATIVE_OFFSET", "INVALID_ARGUMENT", ClassUnknown, "Of reads: an offset is negative.", "Not of a redeem; the digest is read."},
	{"NON_POSITIVE_OFFSET", "INVALID_ARGUMENT", ClassUnknown, "Of reads: an offset is not positive.", "Not of a redeem; the digest is read."},
	{"PARTICIPANT_PRUNED_DATA_ACCESSED", "FAILED_PRECONDITION", ClassUnknown, "Of reads: the offset is pruned.", "Not of a redeem; the digest is read."},
	{"PARTICIPANT_DATA_ACCESSED_AFTER_LEDGER_END", "FAILED_PRECONDITION", ClassUnknown, "Of reads: the read ran past the ledger's end.", "Not of a redeem; the digest is read."},
	{"DESCENDING_ORDER_MISSING_END", "INVALID_ARGUMENT", ClassUnknown, "Of reads: descending order needs an end.", "Not of a redeem; the digest is read."},
	{"INVALID_ACS_PAGE_TOKEN", "INVALID_ARGUMENT", ClassUnknown, "Of reads: the page token is another request's.", "Not of a redeem; the digest is read."},
	{"INVALID_CONTINUATION_TOKEN", "INVALID_ARGUMENT", ClassUnknown, "Of reads: the continuation token is another request's.", "Not of a redeem; the digest is read."},
	{"UPDATE_NOT_FOUND", "NOT_FOUND", ClassUnknown, "Of reads: there is no such update, or it is not visible.", "Not of a redeem; the digest is read."},
	{"CONTRACT_EVENTS_NOT_FOUND", "NOT_FOUND", ClassUnknown, "Of reads: the contract has no visible events.", "Not of a redeem; the digest is read."},
	{"CONTRACT_PAYLOAD_NOT_FOUND", "NOT_FOUND", ClassUnknown, "Of reads: the contract is not known.", "Not of a redeem; the digest is read."},
	{"JSON_API_MAXIMUM_LIST_ELEMENTS_NUMBER_REACHED", "ABORTED", ClassUnknown, "Of reads over JSON: the list is too long.", "Not of a redeem; the digest is read."},
	{"INVALID_DAR", "INVALID_ARGUMENT", ClassUnknown, "Of uploads: the DAR is none.", "Not of a redeem; the digest is read."},
	{"NOT_VALID_UPGRADE_PACKAGE", "INVALID_ARGUMENT", ClassUnknown, "Of uploads: the package is no upgrade of the vetted one.", "Not of a redeem; the digest is read."},
	{"UNSAFE_TO_PRUNE", "FAILED_PRECONDITION", ClassUnknown, "Of pruning: too early.", "Not of a redeem; the digest is read."},
}

var errorRows = func() map[string]*ErrorRow {
	rows := make(map[string]*ErrorRow, len(Errors))
	for i := range Errors {
		rows[Errors[i].Reason] = &Errors[i]
	}
	return rows
}()

// Step is what the client does with an error of the service.
type Step uint8

const (
	// StepElsewhere: ask another endpoint; the same again after a while.
	StepElsewhere Step = iota
	// StepAgain: the trie is in a state that passes. Ask again after a while.
	StepAgain
	// StepStop: the answer is the same until somebody changes the request or mends the trie. Other endpoints are asked, and where none
	// knows better the redeem gives up.
	StepStop
)

// String is the step in a word or two, as docs/retries.md has it.
func (s Step) String() string {
	switch s {
	case StepElsewhere:
		return "other endpoint"
	case StepAgain:
		return "again"
	default:
		return "give up"
	}
}

// ServiceErrorRow is one reason of the disclosure service. What each means is in docs/errors.md.
type ServiceErrorRow struct {
	Reason string
	Step   Step
	// Why says why.
	Why string
}

// ServiceErrors is the table of the service's reasons. A reason that is not in it, of a newer service, is taken by its gRPC code.
var ServiceErrors = []ServiceErrorRow{
	{"INVALID_FIELD", StepStop, "the request is wrong"},
	{"UNKNOWN_SCOPE", StepStop, "the consumer has no trie, or the operator is another; a replica that is behind may not know a new one"},
	{"AMBIGUOUS_SCOPE", StepStop, "the request has to name operator, package or namespace"},
	{"GAP", StepStop, "operator and consumer have to mend the trie"},
	{"FORK", StepStop, "operator and consumer have to mend the trie"},
	{"CORE_STATE_MISSING", StepStop, "the service has other anchors, or there is no bridge"},
	{"CORE_STATE_DOUBLED", StepStop, "the request has to name one (Request.CoreStateContractID)"},
	{"IN_FLIGHT", StepAgain, "a reassignment ends"},
	{"DIFFERENT_SYNCHRONIZERS", StepAgain, "a stakeholder reassigns"},
	{"BLOB_INCOMPLETE", StepAgain, "the service reads the blob again"},
	{"BEHIND", StepElsewhere, "another replica may be further"},
	{"UPDATE_NOT_SEEN", StepAgain, "asked again without after_update_id: the index may have been built after the update"},
	{"OFFSET_OF_ANOTHER_PARTICIPANT", StepElsewhere, "another replica may follow the participant"},
	{"STALE", StepElsewhere, "the endpoint can't prove that it is complete"},
	{"HALTED", StepElsewhere, "the endpoint's index does not move"},
	{"NOT_SEEDED", StepElsewhere, "the endpoint has no index yet"},
	{"NOT_READY", StepElsewhere, "the endpoint's index is not proven"},
	{"STORE_UNAVAILABLE", StepElsewhere, "the endpoint can't read its history"},
	{"RATE_LIMITED", StepElsewhere, "the endpoint takes no more of our calls now"},
	{"TOO_MANY_CALLS", StepElsewhere, "the endpoint takes no more calls now"},
	{"TOO_MANY_STREAMS", StepElsewhere, "the endpoint takes no more streams now"},
	{"DEADLINE_EXCEEDED", StepElsewhere, "the endpoint is slow"},
	{"CANCELLED", StepElsewhere, "the call was cut off on its way: our own end is looked at first"},
	{"SHUTTING_DOWN", StepElsewhere, "the endpoint stops"},
	{"INTERNAL", StepElsewhere, "a fault of the endpoint"},
	{"ANSWER_TOO_LARGE", StepStop, "not of one redeem"},
	{"PAGE_TOKEN_EXPIRED", StepStop, "not of a redeem"},
	{"REGISTRY_MISSING", StepStop, "not of a redeem"},
	{"REGISTRY_DOUBLED", StepStop, "not of a redeem"},
	{"EMITTER_MISSING", StepStop, "not of a redeem"},
	{"EMITTER_DOUBLED", StepStop, "not of a redeem"},
	{"SUBMISSIONS_OFF", StepStop, "of reservations, which a redeem does without"},
	{"VAA_REQUIRED", StepStop, "of reservations"},
	{"EXPIRY_INVALID", StepStop, "of reservations"},
	{"EXPIRED", StepStop, "of reservations"},
	{"NOT_AUTHENTIC", StepStop, "of reservations"},
	{"NO_RESERVATION", StepStop, "of reservations"},
	{"RELEASE_OFF", StepStop, "of reservations"},
	{"GUARD_UNAVAILABLE", StepStop, "of reservations"},
}

var serviceSteps = func() map[string]Step {
	steps := make(map[string]Step, len(ServiceErrors))
	for _, row := range ServiceErrors {
		steps[row.Reason] = row.Step
	}
	return steps
}()
