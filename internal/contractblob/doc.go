// Package contractblob reads, writes and authenticates created event blobs: the bytes that a participant gives with a created
// event, and that a submitter hands back as an explicit disclosure.
//
// # What a blob is
//
// A blob is one protobuf message, Versioned{version, payload}, whose payload is a FatContractInstance: the contract's id,
// package name, template, argument, parties, time of creation and a random salt, and for a contract with a key the key. Its
// argument is a Daml-LF value without any names: no field labels, no type names, no ranks of constructors. Field numbers are
// those of Daml-LF's transaction.proto and value.proto and of Canton's protocol v30, as of Canton 3.5; they differ from those of
// the Ledger API's own Value.
//
// # What its contract id says
//
// A contract id is 0x00 ‖ discriminator(32) ‖ suffix(36). The suffix is a version (ca10, ca11, ca12), a multihash header
// (12 20) and the unicum: a SHA-256 over the salt, the time of creation, the parties, the key's hash and the contract hash.
// The contract hash is a SHA-256 over the package name, the template's name and the argument, in an encoding that the
// version chooses:
//
//   - V10 (Canton up to 3.2) hashes the argument as it is in the blob, and the package id.
//   - V11 (3.3) hashes it so that default values don't count. Its encoding is known not to be free of collisions, so a match is
//     reported as unverifiable; a difference is a mismatch all the same.
//   - V12 (3.4 and later) hashes it with the names of its record types, its labels and ranks. They are not in the blob: they
//     come from the event (read with verbose set; it lacks ranks) or from a schema.
//
// So whoever has the blob and the names can recompute the id, without a participant. A match proves that the argument, the
// signatories and observers, the time of creation, the package name and the template's name belong to that suffix, and so
// do a key's hash and maintainers. It proves nothing about
//
//   - the package id in the template id (V12): a participant accepts a blob whose package id was changed;
//   - the discriminator, the 32 bytes of the id before the suffix: a participant accepts it and then finds no such contract;
//   - that a ledger ever had such a contract, or that a signatory agreed to it: the hash has no secret, and anyone can invent a whole
//     blob with an id that matches. What an invented one is good for ends at the participant, which finds no such contract;
//   - a key's value (its hash is covered);
//   - the synchronizer, which the blob doesn't name, and activeness: an archived contract's blob verifies for ever;
//   - whether the payload satisfies the template: anyone can create a contract under parties of their own.
//
// # Strictness
//
// Decode refuses unknown fields, fields given twice, wrong wire types, parties out of order, impossible names, values nested
// deeper than 100 and blobs over 10 MiB. What is refused as malformed wraps ErrMalformed. What is well formed and of a kind
// that this package does not know (another serialization version, a contract id of another form) wraps ErrUnsupported.
//
// Encode gives the bytes that a participant gives: encoding what was decoded from a participant's blob returns that blob.
//
// # Results of a check
//
// Check has three outcomes. Verified: the blob says what its event says, and the id recomputes. Mismatch: it does not; the
// blob, the event or the id is damaged or forged. Unverifiable: as far as can be seen blob and event agree, but the id can't
// be recomputed, because nobody gave the names that it needs or because its version is unknown or weak.
package contractblob

import "errors"

var (
	// ErrMalformed is wrapped by errors about bytes or text that no participant gives.
	ErrMalformed = errors.New("malformed")
	// ErrUnsupported is wrapped by errors about a well formed thing of a kind that this package does not know.
	ErrUnsupported = errors.New("not supported")
	// ErrMismatch is wrapped where a contract's id does not recompute from its content, or a blob disagrees with its event.
	ErrMismatch = errors.New("contract does not match")
	// ErrUnverifiable is wrapped where a contract's id can't be recomputed for want of names, or would prove too little.
	ErrUnverifiable = errors.New("contract can't be verified")
)

// MaxBlobBytes is the greatest size of a blob: a participant takes no request larger than 10 MiB, so that a larger blob could
// never be disclosed.
const MaxBlobBytes = 10 << 20

// MaxNesting is the greatest depth of a value below the outermost one, Daml-LF's own limit.
const MaxNesting = 100
