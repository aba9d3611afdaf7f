package index

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// consumes is a trie's history of n consumes, one an update, from offset 2 on, as memory keeps it.
func consumes(t *testing.T, h *memoryHistory, n int) *View {
	t.Helper()
	v := after(t, start(), update(1, created("root-1", node(t, ""))))
	var held []string
	for i := range n {
		held = append(held, fmt.Sprintf("%04x", i))
		offset := int64(i + 2)
		var delta Delta
		v, delta = step1(t, v, update(offset, archived(fmt.Sprintf("root-%d", offset-1)), created(fmt.Sprintf("root-%d", offset), node(t, "", held...))))
		h.append(delta)
	}
	return v
}

func TestMemoryForgetsTheOldestAndSaysSo(t *testing.T) {
	ctx := t.Context()
	h := newMemoryHistory(time.Hour, 10, func() time.Time { return testEpoch })
	consumes(t, h, 30)
	since, err := h.HistorySince(ctx)
	if err != nil || since != 21 {
		t.Fatalf("since %d, %v; want 21: offsets 22 to 31 are the last ten", since, err)
	}
	for i := range 30 {
		offset := int64(i + 2)
		d := digest(t, fmt.Sprintf("%04x", i))
		want := offset > since
		c, known, err := h.Consumed(ctx, testScope, d, 1000)
		if err != nil || known != want || known && c.Offset != offset {
			t.Errorf("consume at %d: %+v, %v, %v; want known %v", offset, c, known, err, want)
		}
		_, known, err = h.EndOf(ctx, fmt.Sprintf("root-%d", offset-1), 1000)
		if err != nil || known != want {
			t.Errorf("end at %d: %v, %v; want known %v", offset, known, err, want)
		}
		_, known, err = h.UpdateByID(ctx, fmt.Sprintf("update-%d", offset))
		if err != nil || known != want {
			t.Errorf("update at %d: %v, %v; want known %v", offset, known, err, want)
		}
		if _, known, err = h.Consumed(ctx, testScope, d, offset-1); err != nil || known {
			t.Errorf("the consume at %d is known before: %v", offset, err)
		}
	}
	if n := len(h.consumes) + len(h.ends) + len(h.updates) + len(h.blocks); n != 40 {
		t.Errorf("%d records are kept, want 40", n)
	}
	lives, err := h.NodeLives(ctx, testScope, wormhole.Prefix{}, 30, 2)
	want := []NodeLife{
		{"root-29", wormhole.Prefix{}, update(29).RecordTime, update(30).RecordTime},
		{"root-28", wormhole.Prefix{}, update(28).RecordTime, update(29).RecordTime},
	}
	if err != nil || !cmp.Equal(lives, want, values) {
		t.Errorf("lives %+v, %v", lives, err)
	}
}

func TestMemoryForgetsByAge(t *testing.T) {
	now := testEpoch
	h := newMemoryHistory(20*time.Second, 1000, func() time.Time { return now })
	now = update(31).RecordTime
	consumes(t, h, 30)
	if since, _ := h.HistorySince(t.Context()); since != 10 {
		t.Errorf("since %d, want 10: what is 20 seconds old at offset 31 stays", since)
	}
	now = now.Add(time.Hour)
	h.append(Delta{Updates: []UpdateRef{{Offset: 40, UpdateID: "late", RecordTime: now}}})
	if since, _ := h.HistorySince(t.Context()); since != 31 {
		t.Errorf("since %d, want 31", since)
	}
	if len(h.scopes) != 0 || len(h.consumes) != 0 || len(h.ends) != 0 {
		t.Errorf("kept: %d scopes, %d consumes, %d ends", len(h.scopes), len(h.consumes), len(h.ends))
	}
}

func TestMemoryWithoutAnAgeForgetsByNumberAlone(t *testing.T) {
	now := testEpoch.Add(10 * 365 * 24 * time.Hour)
	h := newMemoryHistory(0, 20, func() time.Time { return now })
	consumes(t, h, 15)
	if since, _ := h.HistorySince(t.Context()); since != 0 {
		t.Errorf("since %d, want 0: nothing is too old", since)
	}
	x, err := Open(t.Context(), Policy{}, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if x.memory.age != 0 || x.memory.limit != defaultHistoryLimit {
		t.Errorf("an index without bounds has the age %s and the limit %d", x.memory.age, x.memory.limit)
	}
	h = newMemoryHistory(0, 5, func() time.Time { return now })
	consumes(t, h, 15)
	if since, _ := h.HistorySince(t.Context()); since == 0 {
		t.Error("more is kept than the limit says")
	}
}

func TestMemoryOfAnotherHistoryIsDropped(t *testing.T) {
	ctx := t.Context()
	for reason, kept := range map[ledger.SeedReason]bool{
		ledger.SeedPruned: true, ledger.SeedRequested: true, ledger.SeedRightsChanged: true, ledger.SeedConfigChanged: true,
		ledger.SeedFirst: false, ledger.SeedRewound: false, ledger.SeedDiverged: false, ledger.SeedAnotherParticipant: false,
	} {
		h := newMemoryHistory(time.Hour, 1000, func() time.Time { return testEpoch })
		consumes(t, h, 3)
		h.seed(ledger.SeedStart{Offset: 50, Reason: reason}, []Ended{{ContractID: "root-4", How: Gone, AfterOffset: 4, Offset: 50}})
		_, known, err := h.EndOf(ctx, "root-2", 100)
		if err != nil || known != kept {
			t.Errorf("%s: an old end is known: %v, %v; want %v", reason, known, err, kept)
		}
		if since, _ := h.HistorySince(ctx); since != 50 {
			t.Errorf("%s: since %d, want 50", reason, since)
		}
	}
}

func TestAContractCanEndTwice(t *testing.T) {
	ctx := t.Context()
	h := newMemoryHistory(time.Hour, 1000, func() time.Time { return testEpoch })
	payload := node(t, "")
	v := after(t, start(), update(1, created("root", payload)))
	for _, u := range []ledger.Update{
		update(2, unassigned("root", syncA, syncA, 1)),
		update(3, assigned("root", payload, syncA, syncA, 1)),
		update(4, archived("root")),
	} {
		var delta Delta
		v, delta = step1(t, v, u)
		h.append(delta)
	}
	for at, want := range map[int64]How{2: Purged, 3: Purged, 4: ArchivedOnly} {
		end, known, err := h.EndOf(ctx, "root", at)
		if err != nil || !known || end.How != want {
			t.Errorf("at %d: %+v, %v, %v; want %s", at, end, known, err, want)
		}
	}
	if _, known, _ := h.EndOf(ctx, "root", 1); known {
		t.Error("an end is known before there was one")
	}
	for _, b := range h.blocks {
		h.drop(b)
	}
	if len(h.ends) != 0 || len(h.scopes) != 0 {
		t.Errorf("%d ends and %d scopes are left", len(h.ends), len(h.scopes))
	}
	_ = v
}
