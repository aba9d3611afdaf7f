package e2e

import (
	"testing"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
)

// TestUnreadableRows: rows of the database can't be decoded any more. The ledger has all of it: the service says so, builds the index anew, and
// then holds what the ledger holds, also after the next start.
func TestUnreadableRows(t *testing.T) {
	for name, spoil := range map[string]string{
		"digests of no length":     `UPDATE disclosured.contract SET consumed = '\x00' WHERE kind = 'replay_node'`,
		"a prefix that is not hex": `UPDATE disclosured.contract SET prefix = 'zz' WHERE kind = 'replay_node'`,
		"no dictionary":            `DELETE FROM disclosured.scope`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, ledgersim.Options{}, 4)
			follow, url := withDatabase(t, w.follow())
			first := serve(t, follow)
			first.waitReady()
			first.stop()

			if n := execute(t, url, spoil); n == 0 {
				t.Fatal("nothing was changed")
			}

			second := serve(t, follow)
			second.waitReady()
			j := newJudge(t, w)
			j.caughtUp(second.api)
			if n := second.metrics()[`disclosured_stream_reseeds_total{reason="damaged"}`]; n != 1 {
				t.Errorf("%v reseeds are counted as of a damaged store, want 1", n)
			}
			checkMentions(t, "the log", second.ErrOut.String(), "it was damaged or edited", "unreadable=", "reason=damaged")
			second.stop()

			third := serve(t, follow)
			third.waitReady()
			if n := third.metrics()[`disclosured_stream_reseeds_total{reason="damaged"}`]; n != 0 {
				t.Errorf("it is built anew once more")
			}
			third.stop()
		})
	}
}
