// Package indextest holds an index to its rules. Exercise runs one suite of random histories over any Index, whatever it
// stores to: each history is generated as a participant would tell it, cut into batches anywhere, with reseeds in between,
// and after each batch everything that the Index answers is compared with what Naive answers.
//
// Naive is the rules in their plainest form: slices, scans and sets, with nothing kept between two updates but the entries, the
// missing digests and the history. It shares types with package index and no code.
//
// World is the generator: a small ledger of several operators, consumers, namespaces and packages in which everything happens
// that can: consumes and splits, archives by the signatories, forks, twins, re-creations with loss, shadows, puppets, malformed
// payloads, bad blobs, reassignments in every order, imports, purges, governance. Its choices come from a Source: a seeded one
// for volume, rapid's for shrinking.
package indextest
