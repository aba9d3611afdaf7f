// Package postgres is the replay guard's store for many processes: a replayguard.Store whose reservations are in PostgreSQL.
// They survive the death of each process and of the database's server, and hold across all replicas that use the database.
//
// # How it works
//
// The rules are SQL functions of the schema replayguard, which the migrations of this package make; the schema may be in a
// database with others. A reservation is one call of one function: one round trip, one transaction. What it does, in this
// order, is the contract's: it locks the client's row, looks at the expiry, looks for a duplicate, asks the quota, takes the
// lock that all reservations share, deletes expired rows where the store is full, and inserts.
//
// Invariants, which the functions keep and the tests check:
//
//   - Locks are taken in one order: client, pool, reservation. So nothing deadlocks.
//   - Rows of reservations come and go only under the lock on the pool's row. So the capacity is exact, and tokens, which
//     come from a sequence under that lock, grow with each reservation. The price is that reservations, and only they, wait
//     for each other's commit: a database does about as many per second as its disk does flushes. Duplicates, refusals by
//     quota and settling do not take that lock, and no refusal waits for the disk.
//   - The number of a client's reservations is kept in a row, under that lock. A count over the table would miss what
//     others have not committed yet.
//   - Time is the database's, through the function replayguard.now_seconds, read after the locks were taken. No process's
//     clock is asked, so replicas need no common time.
//
// # Failures
//
// A call that fails before anything was sent, or that the server undid, is tried again, three times in all. After any other
// failure it is not known whether the id is reserved: the error says what failed, the caller's idempotency key tells. If the
// database can't be reached, every call fails within Config.Timeout.
//
// A failover to a standby that had not received the last commits loses those reservations, unless the database replicates
// synchronously; and a standby's clock that is behind has the effect of a clock that goes back: refusals until it has caught
// up.
//
// Expired rows are deleted by the reservations that need the room, and by a sweeper in each process, in small batches.
// Nothing depends on the sweeper but the size of the table.
package postgres
