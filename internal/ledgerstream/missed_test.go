package ledgerstream

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/ledger"
)

// A place that was moved past an update by other hands is noticed at the start. One that was not is kept.
func TestAPlaceThatSkipsAnUpdate(t *testing.T) {
	for name, test := range map[string]struct {
		place  ledger.Position
		pruned int64
		want   []ledger.SeedReason
	}{
		"skips":                     {ledger.Position{Offset: 25, UpdateOffset: 10, UpdateID: "update-10", SeedOffset: 1}, 0, []ledger.SeedReason{ledger.SeedDamaged}},
		"its own":                   {ledger.Position{Offset: 19, UpdateOffset: 10, UpdateID: "update-10", SeedOffset: 1}, 0, nil},
		"at its last update":        {ledger.Position{Offset: 20, UpdateOffset: 20, UpdateID: "update-20", SeedOffset: 1}, 0, nil},
		"seeded after the update":   {ledger.Position{Offset: 25, UpdateOffset: 10, UpdateID: "update-10", SeedOffset: 22}, 0, nil},
		"it is not known how":       {ledger.Position{Offset: 25, UpdateOffset: 10, UpdateID: "update-10"}, 0, nil},
		"pruned past what it skips": {ledger.Position{Offset: 25, UpdateOffset: 10, UpdateID: "update-10", SeedOffset: 1}, 21, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))), tx(20, create(cid(2))), tx(25))
				p.pruned = test.pruned
				test.place.ParticipantID = p.id
				if test.place.UpdateID != "" {
					for _, u := range p.log {
						if u.GetTransaction().GetOffset() == test.place.UpdateOffset {
							test.place.UpdateID = u.GetTransaction().GetUpdateId()
						}
					}
				}
				sink := &memorySink{pos: test.place, seeded: true, active: map[string]ledger.Contract{}}
				r := start(t, testConfig(), p, sink)
				r.await(t, "following", func(st Status) bool { return st.State == StateLive && p.counted("tail") > 0 })
				if diff := cmp.Diff(test.want, sink.reasons()); diff != "" {
					t.Errorf("seeds (-want +got):\n%s", diff)
				}
			})
		})
	}
}
