// Package wormhole is the domain: Wormhole's core bridge on Canton as pure values and functions. It has no I/O, no clock and
// no wire format; what it is given comes as Daml values (package damlvalue), and what it says of the ledger it says in the
// ledger's own words.
//
// # Values
//
// Digest and Prefix can't be malformed. SuffixSet is immutable, so that a node and the sixteen nodes that it is split into
// share one allocation. VAA is strict: every byte of its encoding is in it, encoding it again gives the same bytes.
//
// # Contracts
//
// Decode turns a record into one of five contracts. Two things can be wrong with a record, and they are kept apart. A record
// of another shape than its template's (ErrShape) means that this program does not know the package version: that is an
// error, and whoever follows the ledger must stop and say so. A record of the right shape with content that the model can't
// produce, such as a prefix that is not hex, is a *Malformed contract: anyone can create one under parties of their own, so it
// must stop nobody, and it is counted and never served.
//
// Package versions live side by side. Where a record has labels only they decide; where it has none its version is told by the
// number and types of its fields (see Schemas), and fields beyond a known version are accepted only if they are Optional,
// because no upgrade of a Daml template can append anything else.
//
// # Rules
//
// CoreState.Verify and its neighbours, ReplayNode.Consume, CoreState.SubmitGovernance and the choices of the registries and
// emitters are the model's choices as functions from contracts to contracts. They refuse what the ledger refuses, in its
// order and with its messages (*Rule), and change nothing that they are given.
//
// The model is wormhole-core 0.1.0 in this repository's daml folder. It differs from the genuine package in one rule that
// matters here: when a guardian set expires. See Expiry.
package wormhole
