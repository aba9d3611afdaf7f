package postgres

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

func first(offset int64) ledger.SeedStart {
	return ledger.SeedStart{ParticipantID: participant, Offset: offset, Reason: ledger.SeedFirst}
}

// position is the place after the update at the offset.
func position(offset int64) ledger.Position {
	return ledger.Position{ParticipantID: participant, Offset: offset, UpdateOffset: offset, UpdateID: contract("", offset).UpdateID, RecordTime: at(offset)}
}

// Every column comes back as it was given, whichever way it went in and whatever the mode (D02, D09).
func TestRoundTrip(t *testing.T) {
	forEachMode(t, func(t *testing.T, url string) {
		s := writer(t, url)
		want := byKey(samples()...)

		seedWith(t, s, first(20), index.SeedEnd{Ghosts: samples()[:2]}, samples()...)
		got, loaded := load(t, s)
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Errorf("copied (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(byKey(samples()[:2]...), byKey(loaded.Ghosts...), compare); diff != "" {
			t.Errorf("ghosts (-want +got):\n%s", diff)
		}

		for i, e := range samples() { // one by one they are inserted, not copied
			from, to := loaded.Position, position(int64(21+i))
			if err := s.Commit(t.Context(), index.Delta{From: from, To: to, Put: []*index.Entry{e}}); err != nil {
				t.Fatal(err)
			}
			loaded.Position = to
		}
		got, loaded = load(t, s)
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Errorf("inserted (-want +got):\n%s", diff)
		}
		if want := position(int64(20 + len(samples()))); loaded.Position != want {
			t.Errorf("position %+v, want %+v", loaded.Position, want)
		}
	})
}

func TestUnseeded(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	if _, ok, err := s.Position(t.Context()); ok || err != nil {
		t.Errorf("position: %v, %v; want none", ok, err)
	}
	if _, err := s.Load(t.Context(), func(*index.Entry) error { return nil }); !errors.Is(err, ErrEmpty) {
		t.Errorf("load: %v, want ErrEmpty", err)
	}
	if err := s.Commit(t.Context(), index.Delta{}); !errors.Is(err, ledger.ErrNotNext) {
		t.Errorf("commit: %v, want ErrNotNext", err)
	}
	if since, err := s.HistorySince(t.Context()); since != 0 || err != nil {
		t.Errorf("history since %d, %v", since, err)
	}
}
