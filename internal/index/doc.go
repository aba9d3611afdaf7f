// Package index answers, at one ledger offset, which contracts are there: the covering replay node of a digest, the CoreState,
// the registries, the emitters, the fate of a contract id, and what an audit of all of it finds.
//
// # Two things
//
// A View is the whole state at one offset. It is immutable: every answer that is computed from one View belongs to one offset,
// and readers need no lock. Apply gives the next View and the Delta between the two; it shares with the old one everything
// that the batch did not touch (persistent tries, see nibbleTrie and digestSet; go-immutable-radix for plain maps).
//
// An Index owns the present View, a Store (or none) and the history. It is what the follower writes to and what the API reads
// from. Its order of work is fixed: compute the next View and its Delta, commit the Delta, publish the View. So a reader never
// sees what is not durable, and the database never decides anything that the View did not decide.
//
// # States of an Index
//
//	empty    no View. The first seed ends it.
//	serving  a View is published; Apply moves it on, a seed's Commit puts another generation in its place in one step.
//	unsure   a commit's outcome is not known. The published View goes on serving (it was true, and is at its offset). Position,
//	         Apply and BeginSeed first ask the store where it stands: at the old place (nothing happened), at the new one
//	         (the computed View is published), or elsewhere (everything is loaded again).
//	suspect  what was loaded is not what was written (Options.CheckLoaded). It is not published; Position says that a new
//	         generation is needed, and only a seed's Commit ends it.
//
// An error that wraps ledger.ErrLostLease is passed through as it is; the Index never publishes after it.
//
// # What counts
//
// Policy.Classify puts each contract in a Class. Only Authentic ones are in tries and lookups. All others are kept (their fate
// can be asked, they are counted) and most are findings.
//
// Contracts are active per synchronizer. Where one is active on several, or active and in flight, the activation with the
// greatest reassignment counter counts, an active one before one in flight, then the smaller synchronizer id: Entry and slot
// have the rules of reassignment.
//
// # The trie of a scope
//
// All authentic nodes of a scope, in flight or not, sit in one trie by prefix. In a clean trie they partition the digest space.
// Each trie node carries sums over what is below it (gaps, forks, nodes, depth), so that the number of findings is known
// without walking, listing them walks only where there are some, and a batch costs what it touches. Audit computes the same
// findings with another algorithm from the plain list of contracts; a property test holds the two together.
//
// # What a trie remembers
//
// A digest that an authentic node held and that no node of the trie holds now is missing: it could be consumed again. The set of
// missing digests is part of the state, in memory as in the store. A missing digest under an active node is a loss; where no
// node covers it, it is only part of a gap. A digest leaves the set when a node holds it again.
//
// A consume is a digest's entry into the trie: held by no node before the update and not missing, held after it by a node that the
// update created, while the update archived a node that covers it. Everything else that brings digests (roots with content,
// imports, re-creations) is not a consume, because when the digest was consumed is not known.
package index
