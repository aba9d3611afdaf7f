// Package e2e holds the service to its promises from the outside: tests run the real program as a process of its own, against a
// simulated participant over real gRPC and a real PostgreSQL, do to it what the world does, and judge every answer by the simulated
// ledger's truth at the offset that the answer names. There is no code here but tests.
//
// # Parts
//
//   - The program (process_test.go) is built once, with the race detector where the tests have it, and run with files, flags and
//     ports of its own. Each of its ends is waited for; a panic or a data race in its log fails the test that ran it.
//   - The ledger (ledger_test.go) is a ledgersim with a devnet on it, and load: consumes that contend and split.
//   - The judge (judge_test.go) reads through the service's API all the time and compares: exactly one covering node, active at the
//     stated offset, with the blob that the ledger has; consumed or not and by which update; what became of a contract; and
//     where an answer says that it is fresh, that it has everything that was committed before the moment it names. An error has to
//     be one that the test expects: no answer is not a wrong answer, a wrong error is.
//   - The proxy (proxy_test.go) stands between two of them and fails as networks do: it cuts, or swallows without a word.
//
// # Time
//
// Nothing sleeps: tests wait, within a bound, for conditions that they ask for (until). The bounds are wide, for a busy machine; what
// the service itself promises in seconds is asserted with its own figure. Many of the tests mostly wait, so they run side by side
// (see TestMain); those that measure or load the machine run alone.
//
// DISCLOSURED_SOAK=1 runs the full counts; E2E_IDLE=10m makes the idle ledger last that long.
package e2e
