// Package postgres keeps the index durably in PostgreSQL. It is the index's only SQL.
//
// # What is stored
//
// The schema is the top-level package migrations. Raw facts are stored, one row per activation; what the policy makes of them
// is decided anew at each load, because the policy can change between two runs. Three things say which rows count:
//
//   - the cursor row: the place on the ledger, the present generation, the present history, the epoch of the writer;
//   - the generation in each row of present state: a reseed writes a new generation beside the present one, in many
//     transactions, and its last transaction moves the cursor to it;
//   - the history in each row of history: where a reseed is on another ledger history, its last transaction begins a new one.
//
// The cursor also has the number of the present generation's contracts, changed with them in one transaction: a load that finds another
// number says that rows were lost or added by somebody else.
//
// So neither a reseed nor the end of a history moves or deletes rows while anyone reads them: rows that no longer count are
// deleted in the background, some pages at a time.
//
// Every row carries the number of the commit that wrote it, and each commit notifies (Channel): what a process that only reads needs to
// follow. It is in the schema; nothing follows yet.
//
// # Writing
//
// Invariants, each held by the database and not by this process:
//
//   - A commit moves the cursor from exactly the place, generation and epoch that the writer believes in, and writes its rows, in one
//     transaction; else it changes nothing. ErrNotNext and ErrLostLease tell which belief was wrong.
//   - A lease's new holder raises the epoch on the lease row and on the cursor in one transaction. A commit under way holds the
//     cursor's row lock, a seed's transaction a key-share lock on the lease row: the new holder waits for them, and what the
//     old one begins afterwards finds another epoch. No clock is compared between two machines: expiry is by the database's
//     clock, and it only decides who may raise the epoch.
//   - Nothing lives in a session: no advisory lock of a session, no prepared statement that is named, no SET beyond a
//     transaction. All of it works behind a pooler that gives each transaction another server connection.
//
// A transaction is tried again only where it is certain that nothing was committed: it was not sent its COMMIT, or the
// server answered COMMIT with a serialization failure. Where COMMIT was sent and no answer came, the outcome is unknown: the
// error says so, and the caller asks Position.
//
// # Plans
//
// Right after a seed the planner's statistics know nothing of the new generation, and may not for long. Every query that runs once per
// lookup or commit is written so that it has one good plan whatever the statistics say: equality on all columns of an
// index, lists of keys looked up one by one (OFFSET 0).
//
// # Failure handling
//
// Every statement has a deadline, on the client (a server that is a black hole) and, in transactions, on the server (a client
// that vanished would otherwise hold the cursor's row lock). No method takes a second connection while it holds one, so the pool can't
// lock up whatever its size. A connection that was idle is pinged, with a deadline, before it is used.
package postgres
