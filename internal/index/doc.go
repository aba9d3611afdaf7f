// Package index answers, at one ledger offset, which contracts are there: the covering replay node of a digest, the CoreState, the
// registries, the fate of a contract id.
package index
