package api_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Once it is known that the ledger's history is another one, nothing of the former is served, however fresh it was and however stale the
// caller would have it, until the new index is in place.
func TestNothingOfAReplacedHistoryIsServed(t *testing.T) {
	w := populated(t)
	root := &disclosurev1.GetContractFateRequest{ContractId: cid("root"), Read: &disclosurev1.ReadOptions{AllowStale: true}}
	asks := []proto.Message{
		prepareDigest(digest("ab").String()), root, readWith(&disclosurev1.ReadOptions{AllowStale: true}), batchOf(2),
		&disclosurev1.ListScopesRequest{Read: &disclosurev1.ReadOptions{AllowStale: true}}, &disclosurev1.AuditRequest{Read: &disclosurev1.ReadOptions{AllowStale: true}},
	}
	known := epoch.Add(3 * time.Second)
	w.setStatus(func(s *api.Status) { s.State, s.HistoryReplaced, s.HistoryReplacedAt = "snapshot", "rewound", known })
	for _, ask := range asks {
		_, err := w.ask(t.Context(), ask)
		info := wantReason(t, err, api.NotReady)
		checkRow(t, err)
		if got := info.GetMetadata(); got["history_replaced"] != "rewound" || got["known_since"] != known.Format(time.RFC3339Nano) {
			t.Errorf("%T: metadata %v", ask, got)
		}
	}
	response, err := http.Get(w.opsURL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz %d", response.StatusCode)
	}
	info, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
	if err != nil || info.GetReady() || info.GetAnswer().GetFreshness().GetFresh() {
		t.Errorf("%v, %v", info, err)
	}
	// In place, and lower than the former.
	w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 60, Reason: ledger.SeedRewound}, contract("core", core(guardianSets())), contract("root", node(t, "")))
	w.setStatus(func(s *api.Status) { s.State, s.HistoryReplaced, s.HistoryReplacedAt = "live", "", time.Time{} })
	answer, err := w.client.PrepareRedeem(t.Context(), prepareDigest(digest("ab").String()))
	if err != nil || answer.GetAnswer().GetPosition().GetOffset() != 60 || !answer.GetAnswer().GetFreshness().GetFresh() {
		t.Errorf("%v, %v", answer, err)
	}
}

// switching does something while history is asked, after it has answered.
type switching struct {
	*index.Index
	during func()
}

type switchingHistory struct {
	index.History
	during func()
}

func (s *switching) History() index.History { return switchingHistory{s.Index.History(), s.during} }

func (s switchingHistory) EndOf(ctx context.Context, id string, at int64) (index.Ended, bool, error) {
	s.during()
	return s.History.EndOf(ctx, id, at)
}

func (s *switching) WaitUpdate(ctx context.Context, id string) (*index.View, index.UpdateRef, error) {
	v, ref, err := s.Index.WaitUpdate(ctx, id)
	s.during()
	return v, ref, err
}

// An answer is of one history: where another one comes while it is computed, at however high an offset, it is computed anew.
func TestAnAnswerIsOfOneHistory(t *testing.T) {
	sw := &switching{during: func() {}}
	w := basic(t, func(_ *api.Config, d *api.Deps) { sw.Index = d.Index.(*index.Index); d.Index = sw })
	w.apply(archived("root"), created(contract("n1", node(t, "", digest("ab")))))
	ask := func() (*disclosurev1.GetContractFateResponse, error) {
		return w.client.GetContractFate(t.Context(), &disclosurev1.GetContractFateRequest{ContractId: cid("root")})
	}
	if f, err := ask(); err != nil || f.GetFate() != disclosurev1.Fate_FATE_SUPERSEDED {
		t.Fatalf("before: %v, %v", f, err)
	}
	diverge := func(offset int64) {
		w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: offset, Reason: ledger.SeedDiverged}, contract("core", core(guardianSets())))
	}
	sw.during = sync.OnceFunc(func() { diverge(203) })
	if f, err := ask(); err != nil || f.GetFate() != disclosurev1.Fate_FATE_UNKNOWN || f.GetAnswer().GetPosition().GetOffset() != 203 {
		t.Errorf("another history meanwhile: %v at offset %d, %v; want unknown at 203", f.GetFate(), f.GetAnswer().GetPosition().GetOffset(), err)
	}
	// Known, and not yet in place.
	sw.during = sync.OnceFunc(func() { w.setStatus(func(s *api.Status) { s.HistoryReplaced = "rewound" }) })
	_, err := ask()
	wantReason(t, err, api.NotReady)
	w.setStatus(func(s *api.Status) { s.HistoryReplaced = "" })
	// One after the other: no answer is better than one of two histories.
	offset := int64(300)
	sw.during = func() { offset++; diverge(offset) }
	_, err = ask()
	wantReason(t, err, api.NotReady)
	checkRow(t, err)
}

// An update that was waited for, and was of a history that another one replaced before the answer, is not in the answer.
func TestAnUpdateOfAReplacedHistoryIsNotInTheAnswer(t *testing.T) {
	sw := &switching{during: func() {}}
	w := basic(t, func(_ *api.Config, d *api.Deps) { sw.Index = d.Index.(*index.Index); d.Index = sw })
	id := w.apply(archived("root"), created(contract("n1", node(t, "", digest("ab")))))
	if _, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{AfterUpdateId: id})); err != nil {
		t.Fatal(err)
	}
	sw.during = sync.OnceFunc(func() {
		w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 500, Reason: ledger.SeedDiverged}, contract("core", core(guardianSets())))
	})
	_, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{AfterUpdateId: id}))
	wantReason(t, err, api.UpdateNotSeen)
	checkRow(t, err)
}

// A list that was begun in a history ends with it.
func TestAPageTokenEndsWithItsHistory(t *testing.T) {
	w := basic(t)
	for i := range 3 {
		w.apply(created(contract(fmt.Sprint("s", i), nodeIn(t, func(n *wormhole.ReplayNode) { n.Consumer = fmt.Sprintf("c%d::1220", i) }))))
	}
	page := func(token string) (*disclosurev1.ListScopesResponse, error) {
		return w.client.ListScopes(t.Context(), &disclosurev1.ListScopesRequest{PageSize: 2, PageToken: token})
	}
	first, err := page("")
	if err != nil {
		t.Fatal(err)
	}
	w.apply()
	if _, err := page(first.GetNextPageToken()); err != nil {
		t.Fatalf("a later view of the same history: %v", err)
	}
	w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 500, Reason: ledger.SeedDiverged}, contract("core", core(guardianSets())))
	_, err = page(first.GetNextPageToken())
	wantReason(t, err, api.PageTokenExpired)
}

// after_update_id of an update that only a snapshot brought: the participant tells where it is, and a view that goes as far has it. So it
// does where history can't be read. What it doesn't know, or another participant knows, is not seen.
func TestAnUpdateThatASnapshotBrought(t *testing.T) {
	where := map[string]int64{"1220aa": 42, "1220bb": 103, "1220cc": 5000}
	find := func(_ context.Context, id string) (string, int64, bool) {
		offset, ok := where[id]
		return participant, offset, ok
	}
	long := durationpb.New(20 * time.Second)
	after := func(id string, wait *durationpb.Duration) *disclosurev1.GetCoreStateRequest {
		return readWith(&disclosurev1.ReadOptions{AfterUpdateId: id, Wait: wait})
	}
	t.Run("found", func(t *testing.T) {
		w := basic(t, func(_ *api.Config, d *api.Deps) { d.FindUpdate = find })
		if _, err := w.client.GetCoreState(t.Context(), after("1220aa", long)); err != nil {
			t.Error(err)
		}
		_, err := w.client.GetCoreState(t.Context(), after("1220dd", durationpb.New(100*time.Millisecond)))
		wantReason(t, err, api.UpdateNotSeen)
		_, err = w.client.GetCoreState(t.Context(), after("1220cc", durationpb.New(100*time.Millisecond)))
		wantReason(t, err, api.UpdateNotSeen)
		w.setStatus(func(s *api.Status) { s.ParticipantID = "other::1220" })
		_, err = w.client.GetCoreState(t.Context(), after("1220aa", long))
		wantReason(t, err, api.NotReady)
	})
	t.Run("not reached yet", func(t *testing.T) {
		waits := make(chan struct{}, 10)
		w := basic(t, noticed(waits), func(_ *api.Config, d *api.Deps) { d.FindUpdate = find })
		got := make(chan error, 1)
		go func() {
			_, err := w.client.GetCoreState(context.Background(), after("1220bb", long))
			got <- err
		}()
		<-waits // for the update
		<-waits // for its offset
		w.apply()
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
	t.Run("history is gone", func(t *testing.T) {
		w := basic(t, func(_ *api.Config, d *api.Deps) { d.FindUpdate, d.Index = find, brokenHistory{d.Index.(*index.Index)} })
		if _, err := w.client.GetCoreState(t.Context(), after("1220aa", long)); err != nil {
			t.Error(err)
		}
		_, err := w.client.GetCoreState(t.Context(), after("1220dd", long))
		wantReason(t, err, api.StoreUnavailable)
	})
	t.Run("another participant answers", func(t *testing.T) {
		w := basic(t, func(_ *api.Config, d *api.Deps) {
			d.FindUpdate = func(context.Context, string) (string, int64, bool) { return "other::1220", 42, true }
		})
		_, err := w.client.GetCoreState(t.Context(), after("1220aa", durationpb.New(100*time.Millisecond)))
		wantReason(t, err, api.UpdateNotSeen)
	})
	t.Run("at most so many at once", func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		full, release := make(chan struct{}), make(chan struct{})
		w := basic(t, func(c *api.Config, d *api.Deps) {
			c.Limits.MaxCallsPerCaller = 100
			d.FindUpdate = func(ctx context.Context, id string) (string, int64, bool) {
				mu.Lock()
				running++
				if most = max(most, running); most == 4 && running == 4 {
					select {
					case <-full:
					default:
						close(full)
					}
				}
				mu.Unlock()
				<-release
				mu.Lock()
				running--
				mu.Unlock()
				return find(ctx, id)
			}
		})
		got := make(chan error)
		const calls = 12
		for range calls {
			go func() {
				_, err := w.client.GetCoreState(context.Background(), after("1220aa", long))
				got <- err
			}()
		}
		<-full
		close(release)
		for range calls {
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
		if most > 4 {
			t.Errorf("%d lookups at once", most)
		}
	})
}

// Who is followed, and where that ledger ends, is told before there is an index: that is when an operator looks.
func TestServerInfoBeforeTheFirstSeed(t *testing.T) {
	w := newWorld(t)
	w.setStatus(func(s *api.Status) { s.State, s.LedgerEnd = "waiting", 4711 })
	info, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	a := info.GetAnswer()
	if info.GetReady() || info.GetNotReadyReason() != "NOT_SEEDED" || a.GetPosition().GetParticipantId() != participant || a.GetPosition().GetOffset() != 0 ||
		a.GetFreshness().GetLedgerEnd() != 4711 || a.GetFreshness().GetFresh() || a.GetFreshness().GetProvenAt() != nil {
		t.Errorf("%v", info)
	}
	w.setStatus(func(s *api.Status) { *s = api.Status{State: "connecting"} })
	if info, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{}); err != nil || info.GetAnswer() != nil {
		t.Errorf("nobody was reached: %v, %v", info.GetAnswer(), err)
	}
}

// A halt at what does not tell its offset tells where the index stands before it.
func TestHaltedAfter(t *testing.T) {
	w := basic(t)
	w.setStatus(func(s *api.Status) { s.State, s.HaltedAfter = "halted", 106 })
	_, err := w.client.PrepareRedeem(t.Context(), prepareDigest(digest("ab").String()))
	info := wantReason(t, err, api.Halted)
	checkRow(t, err)
	if _, at := info.GetMetadata()["halted_at_offset"]; at || info.GetMetadata()["halted_after_offset"] != "106" {
		t.Errorf("metadata %v", info.GetMetadata())
	}
}
