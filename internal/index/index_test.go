package index_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/indextest"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	consumer    = "consumer::1"
	participant = "participant"
)

var (
	policy = index.Policy{Operators: []string{indextest.Operator}, GuardianGovernance: indextest.Governance}
	scope  = index.Scope{PackageName: indextest.PackageName, Operator: indextest.Operator, Consumer: consumer}
)

func open(t *testing.T, store index.Store, opts index.Options) *index.Index {
	t.Helper()
	opts.Clock = func() time.Time { return indextest.Epoch }
	opts.Logger = slog.New(slog.DiscardHandler)
	x, err := index.Open(t.Context(), policy, store, opts)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func contract(id string, p wormhole.Payload) ledger.Contract {
	return ledger.Contract{
		ContractID:     id,
		TemplateID:     damlvalue.TypeName{PackageID: "p1", Module: "M", Entity: "E"},
		PackageName:    indextest.PackageName,
		SynchronizerID: "sync",
		Blob:           []byte("blob"),
		BlobCheck:      ledger.BlobVerified,
		Signatories:    wormhole.RequiredSignatories(p),
		Payload:        p,
	}
}

func root() *wormhole.ReplayNode {
	return &wormhole.ReplayNode{Consumer: consumer, Operator: indextest.Operator, SplitThreshold: 2}
}

// seed gives the index one root at offset 1.
func seed(t *testing.T, x *index.Index, reason ledger.SeedReason, offset int64, contracts ...ledger.Contract) error {
	t.Helper()
	s, err := x.BeginSeed(t.Context(), ledger.SeedStart{ParticipantID: participant, Offset: offset, Reason: reason})
	if err != nil {
		return err
	}
	if err := s.Add(t.Context(), contracts); err != nil {
		return err
	}
	return s.Commit(t.Context())
}

func mustSeed(t *testing.T, x *index.Index) {
	t.Helper()
	if err := seed(t, x, ledger.SeedFirst, 1, contract("root", root())); err != nil {
		t.Fatal(err)
	}
}

// consumeBatch is the batch that consumes the digest in the view at the next offset.
func consumeBatch(v *index.View, d wormhole.Digest) (ledger.Batch, error) {
	e, err := v.Covering(scope, d)
	if err != nil {
		return ledger.Batch{}, err
	}
	result, err := e.Payload.(*wormhole.ReplayNode).Consume(d.String())
	if err != nil {
		return ledger.Batch{}, err
	}
	offset := v.Position().Offset + 1
	u := ledger.Update{Offset: offset, UpdateID: fmt.Sprint("update-", offset), RecordTime: indextest.Epoch.Add(time.Duration(offset) * time.Second)}
	u.Events = append(u.Events, ledger.Event{Kind: ledger.Archived, ContractID: e.ContractID})
	for i, n := range result.Nodes {
		c := contract(fmt.Sprintf("node-%d-%x", offset, i), n)
		u.Events = append(u.Events, ledger.Event{Kind: ledger.Created, ContractID: c.ContractID, Contract: &c})
	}
	return ledger.Batch{ParticipantID: participant, After: offset - 1, Updates: []ledger.Update{u}, Through: offset}, nil
}

func TestACommitThatFailedChangedNothing(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	if _, ok, err := x.Position(t.Context()); ok || err != nil {
		t.Fatalf("position of an empty index: %v, %v", ok, err)
	}
	if err := x.Apply(t.Context(), ledger.Batch{ParticipantID: participant}); !errors.Is(err, ledger.ErrNotNext) {
		t.Fatalf("applying to an empty index: %v", err)
	}
	mustSeed(t, x)
	before := x.View()
	b, err := consumeBatch(before, wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}

	store.Fail(indextest.NotWritten)
	if err := x.Apply(t.Context(), b); !errors.Is(err, indextest.ErrFault) {
		t.Fatalf("got %v", err)
	}
	if x.View() != before {
		t.Error("what is not stored was published")
	}
	if pos, ok, err := x.Position(t.Context()); err != nil || !ok || pos.Offset != 1 || x.View() != before {
		t.Errorf("position %+v, %v, %v", pos, ok, err)
	}
	if err := x.Apply(t.Context(), b); err != nil || x.View().Position().Offset != 2 {
		t.Errorf("applying again: %v", err)
	}
}

func TestACommitThatWasNotHeardOfIsPublishedOnceKnown(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	mustSeed(t, x)
	b, err := consumeBatch(x.View(), wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}
	store.Fail(indextest.WrittenUnheard)
	if err := x.Apply(t.Context(), b); !errors.Is(err, indextest.ErrFault) {
		t.Fatalf("got %v", err)
	}
	if got := x.View().Position().Offset; got != 1 {
		t.Errorf("offset %d was published before its outcome was known", got)
	}
	if pos, ok, err := x.Position(t.Context()); err != nil || !ok || pos.Offset != 2 {
		t.Errorf("position %+v, %v, %v", pos, ok, err)
	}
	if e, err := x.View().Covering(scope, wormhole.Digest{1}); err != nil || e.ContractID != "node-2-0" {
		t.Errorf("got %v, %v", e, err)
	}

	// The same for a seed: it is loaded from the store.
	store.Fail(indextest.WrittenUnheard)
	if err := seed(t, x, ledger.SeedRequested, 5, contract("another", root())); !errors.Is(err, indextest.ErrFault) {
		t.Fatalf("got %v", err)
	}
	if pos, ok, err := x.Position(t.Context()); err != nil || !ok || pos.Offset != 5 {
		t.Errorf("position %+v, %v, %v", pos, ok, err)
	}
	if e, err := x.View().Covering(scope, wormhole.Digest{1}); err != nil || e.ContractID != "another" {
		t.Errorf("got %v, %v", e, err)
	}
}

func TestWhereAnotherProcessWritesNothingIsPublished(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	mustSeed(t, x)
	before := x.View()
	b, err := consumeBatch(before, wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}
	store.Fail(indextest.LeaseLost, indextest.LeaseLost)
	if err := x.Apply(t.Context(), b); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("got %v", err)
	}
	if err := seed(t, x, ledger.SeedRequested, 5); !errors.Is(err, ledger.ErrLostLease) {
		t.Errorf("got %v", err)
	}
	if x.View() != before {
		t.Error("published without the lease")
	}
}

func TestAFirstSeedThatFailedLeavesTheIndexEmpty(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	store.Fail(indextest.NotWritten)
	if err := seed(t, x, ledger.SeedFirst, 1); !errors.Is(err, indextest.ErrFault) {
		t.Fatalf("got %v", err)
	}
	if _, ok, err := x.Position(t.Context()); ok || err != nil || x.View() != nil {
		t.Errorf("position: %v, %v", ok, err)
	}
	mustSeed(t, x)
}

func TestASeedEndsOnce(t *testing.T) {
	x := open(t, nil, index.Options{})
	s, err := x.BeginSeed(t.Context(), ledger.SeedStart{ParticipantID: participant, Offset: 1, Reason: ledger.SeedFirst})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Abort(t.Context()); err != nil {
		t.Errorf("abort after commit: %v", err)
	}
	if s.Commit(t.Context()) == nil || s.Add(t.Context(), nil) == nil || s.AddInFlight(t.Context(), nil) == nil {
		t.Error("an ended seed goes on")
	}
}

func TestAnotherPolicyClassesWhatIsStoredAnew(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	shadow := root()
	shadow.Operator = indextest.OtherOperator
	if err := seed(t, x, ledger.SeedFirst, 1, contract("root", root()), contract("shadow", shadow)); err != nil {
		t.Fatal(err)
	}
	if got := x.View().FindingCounts()[index.FindingShadow]; got != 1 {
		t.Fatalf("%d shadows, want 1", got)
	}
	other := index.Policy{Operators: []string{indextest.OtherOperator}, GuardianGovernance: indextest.Governance}
	for _, what := range []string{"at once", "as stored"} {
		x, err := index.Open(t.Context(), other, store, index.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		v := x.View()
		scopes := v.Scopes()
		if len(scopes) != 1 || scopes[0].Operator != indextest.OtherOperator {
			t.Errorf("%s: scopes %v", what, scopes)
		}
		if e, err := v.Covering(scopes[0], wormhole.Digest{}); err != nil || e.ContractID != "shadow" {
			t.Errorf("%s: got %v, %v", what, e, err)
		}
		if counts := v.FindingCounts(); counts[index.FindingShadow] != 1 || counts[index.FindingGap] != 0 {
			t.Errorf("%s: findings %v", what, counts)
		}
	}
}

func TestWaitingIsForALaterView(t *testing.T) {
	x := open(t, nil, index.Options{})
	type seen struct {
		v   *index.View
		err error
	}
	got := make(chan seen)
	asked := make(chan int64, 10)
	go func() {
		v, err := x.Wait(t.Context(), func(v *index.View) bool {
			asked <- v.Position().Offset
			return v.Position().Offset >= 3
		})
		got <- seen{v, err}
	}()
	mustSeed(t, x)
	for n := range byte(2) {
		b, err := consumeBatch(x.View(), wormhole.Digest{n + 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Apply(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if s := <-got; s.err != nil || s.v.Position().Offset != 3 {
		t.Errorf("got %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Wait(ctx, func(*index.View) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestWaitingForAnUpdate(t *testing.T) {
	store := indextest.NewStore()
	for name, s := range map[string]index.Store{"in memory": nil, "over a store": store} {
		x := open(t, s, index.Options{})
		mustSeed(t, x)
		first, err := consumeBatch(x.View(), wormhole.Digest{1})
		if err != nil {
			t.Fatal(err)
		}
		type seen struct {
			v   *index.View
			ref index.UpdateRef
			err error
		}
		got := make(chan seen)
		const waiters = 5
		for range waiters {
			go func() {
				v, ref, err := x.WaitUpdate(t.Context(), "update-2")
				got <- seen{v, ref, err}
			}()
		}
		if err := x.Apply(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		for range waiters {
			if s := <-got; s.err != nil || s.ref.Offset != 2 || s.v.Position().Offset < 2 {
				t.Errorf("%s: got %+v", name, s)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		cancel(why)
		if _, _, err := x.WaitUpdate(ctx, "never"); !errors.Is(err, why) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A seed can bring the update that someone waits for: then all are woken to look.
func TestASeedWakesThoseWhoWait(t *testing.T) {
	store := indextest.NewStore()
	x := open(t, store, index.Options{})
	mustSeed(t, x)
	b, err := consumeBatch(x.View(), wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}
	store.Fail(indextest.WrittenUnheard)
	if err := x.Apply(t.Context(), b); err == nil {
		t.Fatal("no fault")
	}
	got := make(chan error)
	go func() {
		_, _, err := x.WaitUpdate(t.Context(), "update-2")
		got <- err
	}()
	if _, _, err := x.Position(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestPublicationsTellWhatCame(t *testing.T) {
	var told []index.Publication
	x := open(t, nil, index.Options{Published: func(p index.Publication) { told = append(told, p) }})
	mustSeed(t, x)
	b, err := consumeBatch(x.View(), wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}
	b.Updates[0].Events = append(b.Updates[0].Events, ledger.Event{Kind: ledger.Archived, ContractID: "unknown"})
	if err := x.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	// A batch that moves nothing is no publication.
	if err := x.Apply(t.Context(), ledger.Batch{ParticipantID: participant, After: 2, Through: 2}); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || told[0].Seed != ledger.SeedFirst || told[0].Stats != nil || told[1].Stats == nil {
		t.Fatalf("told %+v", told)
	}
	if s := told[1].Stats; s.Created != 1 || s.Archived != 2 || s.UnknownArchives != 1 || s.Blobs[ledger.BlobVerified] != 1 || s.Classes[index.Authentic] != 1 {
		t.Errorf("stats %+v", s)
	}
}

// Every answer that readers get while nodes split is from one view: exactly one covering node, active at the view's offset.
func TestReadersDuringSplits(t *testing.T) {
	x := open(t, nil, index.Options{})
	mustSeed(t, x)
	const readers, splits = 64, 100
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for n := range readers {
		wg.Go(func() {
			d := wormhole.Digest{byte(n * 4), byte(n)}
			for last := int64(0); ; {
				v, err := x.Wait(ctx, func(v *index.View) bool { return v.Position().Offset > last })
				if err != nil {
					return
				}
				last = v.Position().Offset
				e, err := v.Covering(scope, d)
				if err != nil {
					t.Errorf("at %d: %v", last, err)
					return
				}
				if held := v.Contract(e.ContractID); len(held) != 1 || held[0] != e || e.Offset > last {
					t.Errorf("at %d: %s is not active", last, e.ContractID)
				}
			}
		})
	}
	split := 0
	for n := uint32(0); split < splits; n++ {
		v := x.View()
		before := v.Stats().Nodes
		b, err := consumeBatch(v, wormhole.Digest{byte(n * 37), byte(n >> 8), byte(n), 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Apply(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if x.View().Stats().Nodes > before {
			split++
		}
	}
	stop()
	wg.Wait()
	if !x.View().Clean() {
		t.Errorf("findings: %+v", x.View().Findings())
	}
}

func TestFates(t *testing.T) {
	x := open(t, nil, index.Options{})
	mustSeed(t, x)
	b, err := consumeBatch(x.View(), wormhole.Digest{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"root": "superseded", "node-2-0": "active", "never": "unknown"} {
		fate, err := x.Fate(t.Context(), x.View(), id)
		if err != nil || fate.Word() != want {
			t.Errorf("%s: %s, %v; want %s", id, fate.Word(), err, want)
		}
	}
	if err := seed(t, x, ledger.SeedPruned, 9); err != nil {
		t.Fatal(err)
	}
	fate, err := x.Fate(t.Context(), x.View(), "node-2-0")
	if err != nil || fate.Word() != "gone" || fate.Ended.AfterOffset != 2 || fate.Ended.Offset != 9 {
		t.Errorf("got %+v, %v", fate, err)
	}
}

func TestErrorsNameWhatTheyAreAbout(t *testing.T) {
	for want, err := range map[string]error{
		"gap in the trie":  &index.GapError{Scope: scope},
		"fork in the trie": &index.ForkError{Scope: scope, ContractIDs: []string{"a", "b"}},
		"in flight":        &index.InFlightError{ContractID: "a", Source: "s", Target: "t"},
		"unknown scope":    &index.UnknownScopeError{},
		"ambiguous scope":  &index.AmbiguousScopeError{},
		"no CoreState":     &index.NoCoreStateError{},
		"several CoreS":    &index.DoubledCoreStateError{},
		"no such contract": &index.NoContractError{What: "Emitter"},
		"several such":     &index.SeveralContractsError{What: "Emitter"},
	} {
		if !strings.Contains(err.Error(), want) || errors.Unwrap(err) == nil {
			t.Errorf("%q", err)
		}
	}
}

// TestAnAnchoredSeedStandsAtItsLastUpdate: what a snapshot's last update is decides whether another history is noticed, and it can be
// waited for although no history has it.
func TestAnAnchoredSeedStandsAtItsLastUpdate(t *testing.T) {
	x, err := index.Open(t.Context(), index.Policy{}, nil, index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seed, err := x.BeginSeed(t.Context(), ledger.SeedStart{ParticipantID: "p::1", Offset: 10, Reason: ledger.SeedFirst})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	seed.Anchor(7, "1220aa", at)
	if err := seed.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pos, ok, err := x.Position(t.Context())
	if err != nil || !ok || pos.Offset != 10 || pos.UpdateOffset != 7 || pos.UpdateID != "1220aa" || !pos.RecordTime.Equal(at) {
		t.Errorf("the index stands at %+v, %t, %v", pos, ok, err)
	}
	if _, ref, err := x.WaitUpdate(t.Context(), "1220aa"); err != nil || ref.Offset != 7 {
		t.Errorf("waiting for the snapshot's last update: %+v, %v", ref, err)
	}
}
