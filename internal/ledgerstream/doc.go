// Package ledgerstream brings the changes of one participant's ledger, in order and resumable, as domain types.
package ledgerstream
