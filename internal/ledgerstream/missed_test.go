package ledgerstream

import (
	"context"
	"testing"
	"testing/synctest"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
)

// A place with an update of ours between it and the last one that the index knows of is noticed at the start, wherever it comes from. One
// without is kept.
func TestAPlaceThatSkipsAnUpdate(t *testing.T) {
	diverged := []ledger.SeedReason{ledger.SeedDiverged}
	for name, test := range map[string]struct {
		place  ledger.Position
		pruned int64
		want   []ledger.SeedReason
	}{
		"skips":                          {ledger.Position{Offset: 25, UpdateOffset: 10, UpdateID: "update-10"}, 0, diverged},
		"its own":                        {ledger.Position{Offset: 19, UpdateOffset: 10, UpdateID: "update-10"}, 0, nil},
		"at its last update":             {ledger.Position{Offset: 20, UpdateOffset: 20, UpdateID: "update-20"}, 0, nil},
		"foreign updates":                {ledger.Position{Offset: 27, UpdateOffset: 20, UpdateID: "update-20"}, 0, nil},
		"of a forgotten update, skips":   {ledger.Position{Offset: 25, UpdateOffset: 10}, 5, diverged},
		"of a forgotten update, its own": {ledger.Position{Offset: 25, UpdateOffset: 20}, 5, nil},
		"of no update":                   {ledger.Position{Offset: 9}, 0, nil},
		"of no update, skips":            {ledger.Position{Offset: 25}, 15, diverged},
		"pruned past what it skips":      {ledger.Position{Offset: 25, UpdateOffset: 10, UpdateID: "update-10"}, 21, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))), tx(20, create(cid(2))), tx(25))
				p.pruned = test.pruned
				test.place.ParticipantID = p.id
				if test.place.UpdateID != "" {
					test.place.UpdateID = p.updateID(test.place.UpdateOffset)
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

// A participant is restored to a state between our last update and our place, and grows past the place while it can't be reached: at the
// place and at the update all looks as it did. It is noticed by the next session, of this process as of another.
func TestRestoredBetweenTheLastUpdateAndThePlace(t *testing.T) {
	for name, restart := range map[string]bool{"connection lost": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(5, create(cid(0))))
				sink := &memorySink{}
				r := start(t, testConfig(), p, sink)
				r.await(t, "seeded", proven(7))
				p.add(tx(10, create(cid(1))))
				r.await(t, "our last update", proven(12))
				p.change(func() { p.end = 40 })
				r.await(t, "at 40", proven(40))
				if restart {
					_ = r.stop()
				} else {
					p.refuse(true)
					r.await(t, "cut off", func(st Status) bool { return st.State == StateReconnecting })
				}
				p.add(tx(30, archive(cid(1)), create(cid(2)))) // after the restored state, 20 say
				p.change(func() { p.end = 50 })
				p.refuse(false)
				if restart {
					r = start(t, testConfig(), p, sink)
				}
				r.await(t, "built anew", proven(50))
				wantContracts(t, sink, cid(0), cid(2))
				if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedFirst, ledger.SeedDiverged}, sink.reasons()); diff != "" {
					t.Errorf("seeds (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The same right after a seed, before anything was applied to it: what was on the ledger between its last update and the snapshot is
// known too. With no update of ours before the snapshot there must be none later either; updates that only ended contracts count as
// all others.
func TestRestoredBetweenTheLastUpdateAndTheSeed(t *testing.T) {
	for name, c := range map[string]struct {
		pruned       int64
		before       []*ledgerapi.GetUpdatesResponse
		restoredWith *ledgerapi.GetUpdatesResponse // at an offset before the snapshot's; nil where the history goes on
		want         []string
	}{
		"an activation": {0, []*ledgerapi.GetUpdatesResponse{tx(10, create(cid(1)))}, tx(30, archive(cid(1)), create(cid(2))), []string{cid(2)}},
		"an archive after it": {0, []*ledgerapi.GetUpdatesResponse{tx(8, create(cid(3))), tx(10, create(cid(1))), tx(12, archive(cid(3)))},
			tx(30, archive(cid(1))), nil},
		"nothing at all":          {0, nil, tx(30, create(cid(2))), []string{cid(2)}},
		"a forgotten activation":  {15, []*ledgerapi.GetUpdatesResponse{tx(10, create(cid(1)))}, tx(30, create(cid(2))), []string{cid(1), cid(2)}},
		"the history goes on":     {0, []*ledgerapi.GetUpdatesResponse{tx(10, create(cid(1))), tx(12, create(cid(2))), tx(14, archive(cid(1)))}, nil, []string{cid(2)}},
		"goes on, all is archive": {0, []*ledgerapi.GetUpdatesResponse{tx(10, create(cid(1))), tx(14, archive(cid(1)))}, nil, nil},
		"goes on, forgotten":      {15, []*ledgerapi.GetUpdatesResponse{tx(10, create(cid(1)))}, nil, []string{cid(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(c.before...)
				p.change(func() { p.end, p.pruned = 40, c.pruned })
				sink := &memorySink{}
				r := start(t, testConfig(), p, sink)
				r.await(t, "seeded", proven(40))
				_ = r.stop()
				want := []ledger.SeedReason{ledger.SeedFirst}
				if c.restoredWith != nil {
					p.add(c.restoredWith)
					want = append(want, ledger.SeedDiverged)
				}
				p.change(func() { p.end = 50 })
				for range 2 { // and what was built anew is kept
					r = start(t, testConfig(), p, sink)
					r.await(t, "proven", proven(50))
					_ = r.stop()
				}
				wantContracts(t, sink, c.want...)
				if diff := cmp.Diff(want, sink.reasons()); diff != "" {
					t.Errorf("seeds (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A history that was replaced is noticed also where the filter has changed, although the range can't be compared then; and a change of the
// filter alone is none of history, whether or not the last update is of a template still asked for.
func TestAnotherFilterAndAnotherHistory(t *testing.T) {
	for name, c := range map[string]struct {
		replaced bool
		want     ledger.SeedReason
	}{"same history": {false, ledger.SeedConfigChanged}, "another": {true, ledger.SeedDiverged}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))), tx(20, create(cid(2))))
				sink := seededSink(p, 22, cid(1), cid(2))
				sink.pos.UpdateOffset, sink.pos.UpdateID, sink.pos.Filter = 20, p.updateID(20), "another"
				if c.replaced {
					p.change(func() { p.log = p.log[:1] })
					p.add(tx(21, create(cid(3))))
				}
				r := start(t, testConfig(), p, sink)
				r.await(t, "proven", proven(22))
				if diff := cmp.Diff([]ledger.SeedReason{c.want}, sink.reasons()); diff != "" {
					t.Errorf("seeds (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// updateID is that of the transaction at the offset.
func (p *participant) updateID(offset int64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.log {
		if u.GetTransaction().GetOffset() == offset {
			return u.GetTransaction().GetUpdateId()
		}
	}
	return ""
}

// refuse has the participant answer no session, or answer again.
func (p *participant) refuse(now bool) {
	var hook func(context.Context, int) error
	if now {
		hook = func(context.Context, int) error { return status.Error(codes.Unavailable, "down") }
	}
	p.change(func() { p.onID, p.onEnd = hook, hook })
}
