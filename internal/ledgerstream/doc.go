// Package ledgerstream brings the changes of one participant's ledger into an index, in order, completely, and so that it can
// be stopped at any moment and go on where it was. It speaks the Ledger API v2 of Canton 3.5; what it hands on is free of it
// (package ledger).
//
// # Sessions
//
// A Follower lives in sessions, one connection's life each. Every session asks first who is there and where the index stands,
// builds the index anew where it must, and then follows; it ends at the first fault, and after a wait the next one begins with
// the same questions. So there is one way to recover from everything, and it is the way that is used every time.
//
//	ask ──▶ place ──▶ filter ──▶ compare ──┬─────────────────▶ follow ──▶ (any fault) ──▶ wait, then ask again
//	 │        │         │           │      └▶ snapshot, commit ──▲
//	 who,     index's   which       same participant, same history,
//	 end      offset    templates   nothing pruned, same filter?
//
// A session is one connection's: it ends when the connection breaks, even where gRPC has another one at once, and asks again who is
// there before it believes a stream, a proof or a snapshot, because behind an address, or a balancer, can be another participant
// from one call to the next.
//
// The index's own offset is the only cursor. It moves when the sink has made a batch durable, and at no other time, so that nothing
// runs ahead of it; all calls to the sink come from the goroutine of Run.
//
// # The snapshot
//
// A new generation is read at the ledger end (GetActiveContracts), into the sink beside the old one, and put in place in one
// step only after the participant has ended the snapshot with OK. What breaks off is dropped and done again. At ledger end 0 the
// empty index is right and nothing is asked: a snapshot "at 0" would be empty on any ledger. The generation is anchored at the last
// update of ours at or before it, which the range between its last activation and the snapshot tells (Seed.Anchor): so it can be
// recognised before the first update is applied to it, and it is known that there is none between the two.
//
// Reasons (ledger.SeedReason):
//
//	first                no index yet
//	another_participant  its id is another: offsets mean nothing to each other
//	rewound              the ledger ends before the index, or before an offset that it gave us: it was restored
//	diverged             the last update of ours that the index knows of is not, or not the same, at its offset; or there is one of ours
//	                     between it and the index's offset
//	pruned               the index's offset was pruned: archives were missed; old rows must not stay
//	rights_changed       a party that we read as came to be hosted here or ceased to be: contracts can appear and vanish
//	                     without an event
//	config_changed       other parties or templates than those that the index was built with
//	damaged              the store gave back what was never written to it
//	requested            RequestReseed
//
// # Which history
//
// A participant can be restored to an earlier state. Whether it was is asked in every session, because nothing that one connection showed
// is known of the next: whether the ledger ends before the index (rewound); whether the last update of ours is where it was; and whether
// there is none between that and the index's offset, which a restored ledger that has grown past the index can have (diverged). The last is
// one read of a range that is empty as a rule.
//
// What is pruned can't be asked for. Where the last update of ours is, and where the whole range is, the history is taken for the same: a
// participant that was restored, grew past the index and was pruned past it, all between two sessions, is not noticed, and what its
// former history ended is held for ended (an audit shows ghosts and gaps). Only an index without the old history mends that: the
// operator has it built from nothing.
//
// From the moment that a replaced history is known (another_participant, rewound, diverged) Status.HistoryReplaced says so, until the
// new generation is in place, and the last proof is taken back: what the index holds is nobody's ledger then.
//
// # The stream
//
// Two streams feed the index. The live one (GetUpdates without an end) is for speed. It alone can't say that nothing is
// missing: the ledger end is ahead of the last visible update as a rule, and an idle stream is silent for a minute or more, so
// that silence is neither health nor sickness. So the ledger end is asked for every second, and where it is ahead of the index
// a bounded stream is read up to it; its OK proves that the index holds everything up to there. Freshness (Status.ProvenAt) is when the
// ledger end behind the last proof was asked for. Where the index stands at the ledger end the proof is free.
//
// Both streams bring every matching update after a point that the index has passed, in order; so whichever brings the next one
// is right, and what is at or below the index's offset is dropped. Updates that are there together go into one batch, bounded by count
// and bytes; a slow sink slows the participant, and never makes us drop anything. Checkpoints of the live stream move the
// offset over what our filter doesn't show.
//
// # States
//
//	connecting    from the start until the first proof, or the first fault
//	snapshot      a new generation is being read
//	live          following; entered by a proof, never by a connection alone
//	reconnecting  the last session ended; stays until a proof
//	waiting       as reconnecting, and an operator must do something: Status.Detail says what
//	halted        as reconnecting, at an update that can't be decoded or received: never skipped, read again slowly
//	stopped       Run returned
//
// Status.StuckAt is set when three sessions in a row have followed the stream without moving the index.
//
// # What follows from which fault
//
// Decided by the Ledger API's error id (ErrorInfo.reason); where the participant redacts it, or something between answers, by
// the gRPC code; never by the text. "Again" is a jittered backoff from 250 ms to 30 s that starts over only after progress,
// with RetryInfo as its minimum, and 5 s as its bound while nobody answers the first calls; a
// connection where there was none ends it. "Slowly" is 15 s (waiting) or 30 s (halted).
//
//	OK (a live stream ends)                         again; it is no end of work
//	Canceled, own context alive                     again: what a participant's shutdown looks like
//	Unavailable, Aborted, DeadlineExceeded, Unknown again
//	ABORTED_DUE_TO_SHUTDOWN, SERVICE_NOT_RUNNING,
//	INDEX_DB_SQL_TRANSIENT_ERROR, SERVER_OVERLOADED,
//	HEAP_MEMORY_OVER_LIMIT                          again
//	ACCESS_TOKEN_EXPIRED                            again: each call takes a fresh token
//	STALE_STREAM_AUTHORIZATION                      again; the session's first calls check the rights
//	PERMISSION_DENIED, UNAUTHENTICATED              waiting, slowly
//	PACKAGE_NAMES_NOT_FOUND                         waiting, slowly, naming it
//	NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME  that template is left out, and asked for again after 5 min and in each
//	                                                session; when it is there: config_changed. None there: waiting
//	PARTICIPANT_PRUNED_DATA_ACCESSED                on a stream: snapshot (pruned). On a snapshot: again, at a later end
//	OFFSET_AFTER_LEDGER_END                         on a stream: snapshot (rewound). On a snapshot: again
//	PARTICIPANT_DATA_ACCESSED_AFTER_LEDGER_END,
//	OFFSET_OUT_OF_RANGE                             again
//	UPDATE_NOT_FOUND (the index's last update)      snapshot (diverged), unless it lies in what is pruned
//	INTERNAL, DATA_LOSS                             again; at the same offset three times: StuckAt. Never skipped
//	RESOURCE_EXHAUSTED on a stream                  halted: a message over our receive limit, after the offset told
//	RESOURCE_EXHAUSTED on another call              again: a quota
//	an update that can't be decoded, or of an
//	unknown kind                                    halted at its offset; what is before it is applied
//	NEGATIVE_OFFSET, NON_POSITIVE_OFFSET,
//	MISSING_FIELD, INVALID_FIELD, INVALID_ARGUMENT  Run returns a *ConfigError: no retry changes the request
//	UNIMPLEMENTED, other InvalidArgument, NotFound,
//	FailedPrecondition, AlreadyExists               waiting, slowly
//	three ledger end calls fail in a row            by the last one's error
//	no message of a bounded stream or snapshot for 60 s  again
//	the live stream owes for 30 s what a proof brought   again
//	the connection breaks                           again
//	nothing comes in time (DeadlineExceeded, a stall,
//	a live stream that owes)                        again, on a new connection: this one may be half-open
//	another participant answers                     again; the next session finds out
//	the ledger ends before the index                snapshot (rewound)
//	offsets that don't ascend                       again
//	the sink fails                                  again, within 3 s, from where the sink then says it stands
//	the sink's lease is lost                        Run returns ledger.ErrLostLease
//
// # What is taken in, and what is not
//
// Created, Archived, Assigned, Unassigned of the templates asked for. Left out and counted: other templates (a reassignment's
// batch can carry them), created events without acs_delta, exercises that archive nothing, empty events (repair commands make
// them), incomplete assignments of a snapshot. Archives of contracts that were never seen, assignments without an unassignment
// (party imports) and unassignments without an assignment (purges) are passed on: they are the index's to tolerate. Unknown fields
// are ignored. An unknown kind of update or event halts, because it may have changed what is active; a topology event of an unknown
// kind only calls for a snapshot. A contract whose blob is missing or doesn't verify is passed on, marked.
package ledgerstream
