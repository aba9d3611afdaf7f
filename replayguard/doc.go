// Package replayguard admits an id once until it expires.
//
// Relayers put it in front of a submission that costs something: two relayers, two connections or a retry then do not pay
// twice for what only one of them can win. The guard saves cost. It is not a safety device: the ledger stays the judge of
// what is consumed.
//
// # One submission
//
// A [Config] holds a submit function and what stands before it. Submit goes through five steps, in this order:
//
//  1. the message's time to live is validated;
//  2. a copy of the message gets its connection's identity, and is authenticated;
//  3. the time to live is validated again, because step 2 may take its time;
//  4. the id is reserved in the [Store], atomically among all connections of the Config and its copies;
//  5. the submit function is called, once.
//
// Whatever stops a submission before step 5 is a [Refusal] with its [Reason], or an error of the store that is none; nothing
// is reserved then, and the submit function has not run. A forged copy is stopped at step 2 and so never blocks the genuine
// message. From step 4 on the reservation stays until its expiry, whether the submit function accepts, rejects, panics,
// calls runtime.Goexit or finds its context cancelled: nobody can know what it had done by then. Its result and its panic
// reach the caller of Submit as they are; the guard holds no lock meanwhile.
//
// A Config that was not made by [NewConfig], or that lacks a part, refuses everything: it fails closed.
//
// # Reservations
//
// A [Store] remembers reservations. [Memory] is one for a process; package replayguard/postgres is one for many. Each
// follows one order: expiry; duplicate; its client's quota; capacity; only then the reservation. So a duplicate is a
// duplicate also in a full store, and a client's flood meets its own quota before it meets the capacity that all share. A
// reservation has a fencing [Token], greater than those of all earlier reservations of its id. A holder that asks again with
// its idempotency [Key] gets its reservation back. It settles a reservation when the outcome is known; one that lapses
// unsettled costs its client standing ([Quota].LapseCost), because ids are public and reserving those of others is free
// otherwise.
//
// # Time
//
// Time is whole seconds since 1970 in 64 bits; a clock's fractions are cut off. A reservation is live while now ≤ its
// expiry. The clock is the store's: a process's for Memory, the database's for Postgres.
//
//   - An expiry of 0 or less is [Invalid]. There is no value that means "never" or "unset".
//   - An expiry that is past is [Expired]; one too far ahead, up to and with the greatest int64, is [Invalid].
//   - Dates before 1970 and after 2106 have no special meaning.
//   - A clock that goes forward forgets only what has expired by it.
//   - A clock that goes back finds the same live reservations. What was forgotten is not readmitted: a store keeps the
//     horizon, the second after the greatest expiry that it has forgotten, and while its clock is before that, every new id
//     is refused as Other, with the time until then, because it may be one that was forgotten and is not expired now. A jump
//     forward and back so costs refusals for at most as long as expiries reach ahead; a step back of a second costs a
//     second.
//
// # Memory's algorithm
//
// Entries are in a map by id and in one list per second of expiry; a heap holds the seconds that have a list, of which there
// are about as many as the greatest time to live has seconds, and not as many as there are entries. Each call first forgets
// the lists whose second has passed. An entry is added once and forgotten once, in constant time, so a reservation costs
// amortized constant time plus the heap's logarithm once per second. No goroutine is needed, and nothing is scanned. After a
// pause one call pays for all that expired in it, less than 1 µs each; where that is too much at once, call [Memory.Prune]
// from time to time.
//
// Invariants: after each call, the map and the lists hold the same entries; each has an expiry not before the horizon; there
// are at most MaxEntries; a client's live count is the number of its entries. A live entry is never evicted: where it is
// full, new ids are refused until one expires.
//
// # Sizing
//
// An entry takes about 250 bytes with all that belongs to it, whatever the message's size: ids and keys are hashes, and a
// client's name (at most [MaxClientBytes]) is kept once per client. MaxEntries should be at least the greatest rate of
// reservations times the time to live: the default of 10,000 is 5 per second over 30 minutes, in 2.5 MB. A quota's MaxLive
// decides how many clients fill the store together; the default is a quarter.
//
// A Memory forgets everything with its process. Where a restart must not readmit, or several processes share their clients,
// use the Postgres store.
package replayguard
