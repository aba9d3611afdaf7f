// Package daml holds the on-ledger model that the service follows and is tested with, in its two forms, and hands out the
// archives of it that a participant can be given.
//
//   - The sources (wormhole-core, example-integrator, wormhole-core-test) are the model as one would write it in Daml. They are
//     its reference shape, and are built with `make daml` where the Daml SDK is installed.
//   - lf holds the same model as textual Daml-LF, and the DARs that lf/lf2dar.py makes of it without an SDK. These DARs are what
//     this package embeds, and what the tests, the bootstrap command and the integration test upload.
//
// Two things must not come apart. `make dar` makes the DARs again and compares them byte for byte with those in the tree. The
// parity test of this package reads the declarations of the sources, decodes the DARs, and holds both to each other and to what
// the Go code reads and writes (internal/wormhole, internal/ledgerstream/submit, internal/ledgerstream/ledgersim): templates,
// fields in order, types, choices with their arguments and results, and the messages of refusals. Where the two forms of the
// model differ on purpose, the test has a table of it, and README.md says why.
//
// Nothing here can fail at run time but Find, which is asked for a build by name: what is embedded is there, and the table of
// builds is held to the archives by a test.
package daml
