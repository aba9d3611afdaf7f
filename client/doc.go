// Package client is what relayers and wallets import: it redeems a VAA through the disclosure service and the caller's own participant,
// and ends every attempt in a known state. It also verifies, offline, what a service hands out.
//
// # A redeem
//
// Redeem runs the retry protocol. It owns the reading and the deciding; the caller's function submits, to whatever participant and with
// whatever keys the caller has.
//
//	resolve ──▶ verify ──▶ submit (the caller's function) ──▶ committed
//	   ▲                       │
//	   │    refused: stale, locked, in contention     (known: this submission did nothing)
//	   ├───────────────────────┤
//	   │                       │ no answer, or one that says nothing   (unknown: it may have committed, or may yet)
//	   └── not consumed ── settle: read past the moment ──▶ consumed: by us? by another?
//
// The ends are in Outcome.State: Committed, Consumed (by another), Invalid, GaveUp (nothing of ours is on the ledger), Unknown (with what
// to check). What each rests on is in Outcome.Basis: the ledger's answers, endpoints that agree, or one endpoint's word. How each error of a participant and of the service is taken is a table, Errors and ServiceErrors; docs/retries.md is
// made from it.
//
// # What makes a resubmission safe
//
// A redeem consumes its VAA's digest in the same transaction as everything else it does, and the ledger lets a digest be consumed once.
// So no number of submissions redeems twice. What can go wrong is knowing: a second submission fails with "already consumed", and
// whoever takes that for somebody else's redeem is mistaken. Hence three rules.
//
//  1. The command id follows from the trie and the digest (CommandID): from the package name, the operator and the namespace too, because one consumer may
//     have several tries, in each of which a digest is redeemed by itself. From consumer and digest alone, the redeem in the second trie would be
//     refused as a duplicate of that in the first, and taken for it. The participant deduplicates by it: while one submission is on
//     its way another is refused, and after one has committed another is refused with DUPLICATE_COMMAND, which says that it was us. This
//     holds at one participant, for one user and the same parties, and for its deduplication time (7 days by default).
//  2. After an unknown outcome nothing is submitted before the digest was read from an index that is complete up to a moment after that
//     outcome: one whose proof of completeness began after the outcome was known, by the service's own clock. (That spares a submission as a
//     rule. It proves nothing about a participant that is behind the synchronizer, and replicas behind one address have several clocks; what
//     makes it safe to go on is 1, and the ledger.)
//  3. Not consumed, past the moment, does not mean that the submission is dead: it may still be on its way. It is dead once the node that
//     it names is archived without the digest consumed, which the client asks for (GetContractFate), or once the ledger has called that node
//     inactive. Until then it counts as open; submitting again is safe by 1 and by the ledger, and a redeem that ends with an open submission
//     ends Unknown.
//
// Who consumed the digest, after an unknown outcome, is asked of the participant: the open submission is repeated unchanged. As the
// digest is consumed it can't do anything (and if the service lied about that, it may commit, which is as well); DUPLICATE_COMMAND says that the
// first one had committed, a verdict of inactive contracts that it had not. So the caller's function must always submit to the same participant within one Redeem.
//
// # What is believed
//
// Of every answer the created event blobs are verified (Verify): contracts of the configured anchors, that cover the digest, whose ids
// recompute. That keeps damaged, foreign and mixed-up contracts out. It does not prove that they exist: a contract id is a hash of the blob's
// content, and whoever knows the parties' names can invent a node or a CoreState that verifies. Nor does a blob tell that its contract is
// active still, or on which synchronizer. All of that only a ledger shows, when it takes the disclosure. So:
//
//   - What an invented or stale contract costs, where there is something to submit, is a submission that fails. An endpoint that hands out
//     again what the ledger called inactive, or put elsewhere, rests, and another is asked; so is one whose bundles went stale three times in a
//     row. A bundle that was refused for good is tried once more as another endpoint has it, if that differs.
//   - An end without a submission, consumed or invalid, is not final by one endpoint's word. The others are asked. If one has a bundle,
//     the redeem goes on with that: the ledger decides, and the endpoint that would have ended it rests. (If the one with the bundle is
//     merely behind, it is first asked again to wait for the update that the other saw.) If nobody else can be asked, or nobody agrees, the end is
//     given, and Outcome.Basis says that it rests on one endpoint's word.
//   - Whose a consumption is the participant says, and no service. That an open submission is dead is a service's word too, unless the ledger
//     has called its contracts inactive; an end that rests on it asks the other endpoints, and says so in its Basis.
//   - A no that nobody can check (no such trie, say) is final where all endpoints say no. One that is only down is waited for, some seconds.
//
// Time is the ledger's: whether a guardian set has expired is judged by the record time of the answer, or left to the ledger. A VAA of a set
// newer than CoreState's own is waited for (Options.GuardianSetWait), and Outcome.MayPass says, where that was not enough, not to drop it.
//
// # Relayers
//
// Where several parties would redeem the same VAA, a Guard admits one of them at a time, so that the others do not pay for a submission that is
// doomed. A Relayer puts one before Redeem as a whole: resolve and verify; ask the guard; if admitted, the protocol above, under one
// reservation; settle it. NewLocalGuard is a guard of one process, over package replayguard, NewRemoteGuard one of all who reserve at
// the service. The guard decides nothing about the redeem. Where it can't be had the submission goes ahead, Unguarded, with the error, an event and
// a warning; where it, or the way to it, is set up wrongly, it does not (see NewRemoteGuard for which error is which).
//
//	resolve ──▶ verify ──▶ Guard.Admit ──▶ admitted ──▶ submit, classify, … ──▶ settle
//	   │                       │    └────▶ unguarded ──▶ submit, classify, …
//	   └▶ invalid, consumed    └▶ already received (until), already consumed (by), refused (why, retry after)
//
// # Nothing is kept
//
// Between two tries nothing of a bundle is kept: CoreState and node are read together, at one offset, for each submission. A participant
// that refuses a bundle may name only one of its stale contracts.
package client
