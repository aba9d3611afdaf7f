// Package ledgersim is a simulated participant of a Canton ledger: the Ledger API v2 over real gRPC, with the on-ledger model of
// wormhole-core and example-integrator behind it, for tests, the demo and load. It is held to recordings of a real participant by a
// test (conformance_test.go), and does what that one cannot do on demand: fail.
//
// # Parts
//
//   - The ledger (state.go, commit.go, reassign.go): one participant's state and the rules by which it moves. It knows neither
//     gRPC nor time. What it refuses it refuses as a rejection (rejection.go), with reason, metadata and resources as recorded.
//   - Interpretation (interpret.go, model.go, typing.go, packages.go): commands become a tree of nodes. The domain's rules are not
//     written here: they are the pure functions of package wormhole. Contract ids and created event blobs are real, of version V12,
//     made by package contractblob, and disclosed blobs are checked by it.
//   - The services (services_*.go, filter.go, project.go, status.go): requests validated, updates projected to what a filter asks for.
//   - Faults (faults.go, inject.go) and the truth (truth.go): what a test does to the participant, and what it compares answers with.
//
// # States and invariants
//
// Sim holds the ledger under one lock. A submission is interpreted and its inputs are locked in one step; it commits in another, after
// the commit latency. Between the two a submission that uses what the first will archive loses with LOCAL_VERDICT_LOCKED_CONTRACTS, as on
// a participant. Offsets grow; a transaction is seen at the offset after ledger end and moves ledger end by three, a rejection by the
// confirmers moves it by one. Updates, contracts and nodes never change once they are in the ledger, so streams read them without the
// lock. Every activation is kept with the offsets between which it holds, so that the active contracts at any offset since the last
// pruning can be told.
//
// # Failure handling
//
// Whatever a client sends gets a status; nothing panics. A fault that replaces or cuts back the ledger ends what is in flight on it with
// UNAVAILABLE, whose outcome the client can't know. Stop ends all streams and waits for every goroutine.
//
// # What it leaves out
//
// Interfaces, contract keys, completions, interactive submission, pages and continuation tokens, identity providers, traffic costs,
// several participants on one synchronizer. Daml values in commands are typed against the model's own templates only; a package of
// another name can be uploaded and has no templates.
package ledgersim
