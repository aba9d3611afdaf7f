package e2e

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
)

// TestB09SwappedBlobs: two rows of the database have each other's blob. The service sees it before it serves anything, builds the index
// anew, and then holds what the ledger holds.
func TestB09SwappedBlobs(t *testing.T) {
	w := newWorld(t, ledgersim.Options{}, 4, 16)
	follow, url := withDatabase(t, w.follow())
	first := serve(t, follow)
	first.waitReady()
	first.stop()

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tag, err := conn.Exec(t.Context(), `UPDATE disclosured.contract c SET blob = other.blob
		FROM disclosured.contract other
		WHERE c.entity = 'ReplayNode' AND other.entity = 'ReplayNode' AND c.contract_id <> other.contract_id`)
	if err != nil || tag.RowsAffected() != 2 {
		t.Fatalf("%d blobs changed, want 2: %v", tag.RowsAffected(), err)
	}

	second := serve(t, follow)
	second.waitReady()
	j := newJudge(t, w)
	if _, err := j.equalsLedger(second.api); err != nil {
		t.Error(err)
	}
	checkMentions(t, "the log", second.ErrOut.String(), "it was damaged or edited", "contracts=2", "reason=damaged")
	second.stop()
}
