// Package integration tells one whole story to a participant, to the service that follows it and to a simulated participant beside them, and
// holds the three to each other. It has tests only.
//
// The participant is the one that DISCLOSURED_LEDGER names (`make integration LEDGER=host:port`), real or not; without it the test starts
// `disclosured sim` and takes that one's address. Nothing else changes: no scene uses anything of the participant but the Ledger API.
//
// # The three
//
//   - The subject is that participant. Packages are uploaded to it, parties allocated with hints of this run's own, anchors and apps made.
//   - The service is the program itself, built and started as a process, with a PostgreSQL of its own.
//   - The stand-in is a simulated participant in the test's process, with the subject's participant id and synchronizers. The same story
//     is told to it, so that it has the same parties, the same VAAs and the same tries; contract ids and blobs are its own.
//
// # A scene
//
// A scene does things on the ledger and asks the service. What commits must commit on both sides and make and archive the same. What is
// refused must be refused with the code and reason that the scene names, and by both sides alike: code, reason, metadata keys, kinds of
// resources, retry hint, the model's own words. And it must be what the service predicted: its verdict, the model's words in it, or that
// what was submitted is not what the service gave (what was changed is changed on purpose; disclosed blobs are also verified offline). Where a
// race decides, the set of what may come is named instead.
//
// Scenes build on each other and run in one order. Waiting is by the service's answers (reads that must not be older than an update), by
// its health stream and by the participant's answers, all bounded by one context.
//
// # What it leaves
//
// A report, and a recording of everything that was said to the subject, in the directory that DISCLOSURED_REPORT names.
package integration
