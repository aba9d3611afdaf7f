// Package api serves the disclosure service of proto/disclosure/v1 over gRPC, and the operator's endpoints over HTTP.
//
// # An answer
//
// Every call goes the same way:
//
//  1. The request is checked whole, before anything is looked up (validate.go). What is wrong is named: field and rule.
//  2. The caller's ReadOptions are met or refused (read.go): readiness, freshness, read-your-writes. Each wait is bounded by the
//     caller's wait, the server's own bound and the call's deadline, whichever is first, and is woken by the index.
//  3. One view of the index is taken. Nothing is read from another view after that: what history says is limited to
//     the view's offset, and where a new generation took over meanwhile the call starts again from step 3.
//  4. The answer is computed from the view alone, so the same view gives the same bytes: lists are sorted, maps are encoded in
//     the order of their keys. What also goes by the clock says so: freshness, a guardian set's expiry, the churn forecast.
//
// # A verdict
//
// PrepareRedeem answers as the ledger would (verdict.go, prepare.go), in the ledger's order: the CoreState is chosen, the VAA is verified by
// it, then the covering node is looked at. So an invalid VAA is INVALID also where the trie has a gap, and consumed or not. The checks
// and their words are package wormhole's. Keys are recovered from the VAA, so that a signature that is not the guardian's is an
// invalid signature, whatever keys a submitter would bring. The costly part, the signatures against a set's keys, is judged once per VAA and
// keys, and remembered within bounds; sets, expiry and the time are looked at for every answer. Expired is judged by the later of
// our clock and the record time last seen: a clock that goes ahead of the ledger's says "expired" too early, one that is behind does not
// say it too late by more than the ledger's silence.
//
// What the ledger did not tell is not guessed: a consume before our history is called that, and a forecast (churn.go) counts what was seen
// and says how much that is. Nothing that the view knows waits for the store: which update consumed a digest, and the forecast, are left out
// where history does not answer within a second (a forecast: a quarter of one) or half of the call's time, and then it is left alone for a while.
// A batch asks once for all its items. So redeems can be prepared while the
// database is away. Only the fate of a contract that is not active is history's own: without it within the second, or in the pause after it
// failed, the call fails with a reason of its own.
//
// # An error
//
// Domain errors become statuses in one place: errors.go maps them to a Reason, and the table in reasons.go says which gRPC
// code, HTTP status and retry class a reason has; docs/errors.md is that table. Every status carries a google.rpc.ErrorInfo
// with the reason and, as metadata, the position of the view it was decided at. Texts from outside are never echoed, and every
// text is cut to a bound: trailers have to fit into 8 KB, the least that clients accept.
//
// # Ready
//
// What calls ask for (ready.go): a view that belongs to the participant followed, a proof of completeness not older than the bound, a
// follower that is not halted. A lost connection does not matter to them: within the bound it harms no answer.
//
// /readyz, grpc.health, GetServerInfo and disclosured_ready ask for that, and that the ledger is being followed, in one function, so that
// they can't disagree. A connection that is lost is not seen until it has been away for a grace time: streams end and begin again
// all the time.
//
// # Limits
//
// Everything that a caller can make us hold is bounded. A caller is the address of the socket's other end; headers that claim another
// address are not looked at. In the order in which a call meets the bounds:
//
//   - Connections, in all and per caller (conns.go), here and at the operator's endpoints. They have seconds to say what they are. Where all are
//     taken the one that is longest without calls makes room, of the caller with the most; calls are not cut for it.
//     Of scrapes a caller has one that is made at a time, and bytes that it has not read (scrapes.go).
//   - Calls and streams at once, in all and per caller, and calls per second per caller (places.go): decided when a call's headers are
//     there. A request has to arrive within the greatest deadline. Each further request in a stream costs as much as a call.
//   - A request's bytes, and its fields, counted on the wire before it is decoded (shape.go). A batch pays for its items here.
//   - Lists, waits, pages, deadlines (validate.go, read.go).
//   - An answer's bytes, and those of all answers not yet taken, in all and per caller. A call has its place until its answer is written to
//     the connection, so that clients that read slowly take up their own places. Who does not take an answer within the send timeout, or
//     whose socket takes nothing for so long, loses the connection; from a client whose socket is full nothing is read.
//
// A panic in a call is that call's INTERNAL error, logged with its request id.
//
// # Ends
//
// Serve stops in an order: health says NOT_SERVING, waits end (SHUTTING_DOWN), running calls get the drain time, then
// connections are cut. The operator's endpoints go last, so that /livez and /metrics answer to the end.
//
// The operator's HTTP endpoints live here and not in telemetry, because readiness is this package's own answer; /metrics is a
// handler given from outside. Metrics are reported through the Metrics interface below, which telemetry's API type implements,
// so this package does not know Prometheus.
package api
