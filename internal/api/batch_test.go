package api_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// asking is an index whose history's questions are counted.
type asking struct {
	*index.Index
	questions *atomic.Int32
}

type askedHistory struct {
	index.History
	questions *atomic.Int32
}

func (a asking) History() index.History { return askedHistory{a.Index.History(), a.questions} }

func (a askedHistory) Consumed(ctx context.Context, s index.Scope, d wormhole.Digest, at int64) (index.Consume, bool, error) {
	a.questions.Add(1)
	return a.History.Consumed(ctx, s, d, at)
}

func (a askedHistory) ConsumedAmong(ctx context.Context, digests []index.ScopedDigest, at int64) (map[index.ScopedDigest]index.Consume, error) {
	a.questions.Add(1)
	return a.History.ConsumedAmong(ctx, digests, at)
}

// A batch asks history once, however many of its digests are consumed, and says of each what a question of its own would.
func TestBatchAsksHistoryOnce(t *testing.T) {
	var questions atomic.Int32
	w := basic(t, func(_ *api.Config, d *api.Deps) { d.Index = asking{d.Index.(*index.Index), &questions} })
	w.apply(archived("root"), created(contract("n1", node(t, "", digest("ab")))))
	w.apply(archived("n1"), created(contract("n2", node(t, "", digest("ab"), digest("cd")))))
	batch := batchOf(api.MaxBatchItems)
	asked := []string{digest("ab").String(), digest("cd").String(), digest("ef").String()}
	for i := range batch.Items {
		batch.Items[i] = prepareDigest(asked[i%len(asked)])
	}
	batch.Items[7].Scope.Consumer = "stranger::1220"
	answer, err := w.client.BatchPrepareRedeem(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	if n := questions.Load(); n != 1 {
		t.Errorf("history was asked %d times, want once", n)
	}
	for i, item := range answer.GetItems() {
		if i == 7 {
			if item.GetError().GetReason() != string(api.UnknownScope) {
				t.Errorf("item of an unknown scope: %v", item)
			}
			continue
		}
		alone, err := w.client.PrepareRedeem(t.Context(), batch.Items[i%len(asked)])
		if err != nil {
			t.Fatal(err)
		}
		if got, want := item.GetResponse().GetConsumption(), alone.GetConsumption(); got.String() != want.String() || got.GetHistoryUnavailable() || (got.GetUpdateId() == "") != (i%len(asked) == 2) {
			t.Fatalf("item %d: %v, alone %v", i, got, want)
		}
		if i == 20 {
			break
		}
	}
}

// A caller with little time has the verdicts that the view knows, without waiting for a database that hangs to its deadline; and that it was in
// a hurry is not held against the database.
func TestBatchInAHurryWithoutHistory(t *testing.T) {
	w := basic(t, func(_ *api.Config, d *api.Deps) { d.Index = hungHistory{d.Index.(*index.Index)} })
	w.apply(archived("root"), created(contract("n1", node(t, "", digest("ab")))))
	batch := batchOf(3)
	for i := range batch.Items {
		batch.Items[i] = prepareDigest(digest("ab").String())
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		began := time.Now()
		answer, err := w.client.BatchPrepareRedeem(ctx, batch)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 500*time.Millisecond {
			t.Errorf("history was not asked: the answer came after %s", took)
		}
		for _, item := range answer.GetItems() {
			if got := item.GetResponse(); got.GetVerdict() != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || !got.GetConsumption().GetHistoryUnavailable() {
				t.Fatal(got)
			}
		}
	}
}

// What many items disclose is given once to who asks for that, and is the same.
func TestBatchDisclosuresOnce(t *testing.T) {
	most := 0
	options := []option{func(c *api.Config, _ *api.Deps) {
		if most > 0 {
			c.MaxAnswerBytes = most
		}
	}}
	w := basic(t, options...)
	w.apply(archived("root"), created(contract("low", node(t, "a", digest("ab")))), created(contract("high", node(t, "b"))))
	batch := batchOf(100)
	for i := range batch.Items {
		batch.Items[i] = prepareDigest(digest([]string{"aa", "ab", "bb", "ff"}[i%4]).String()) // redeemable, consumed, redeemable, in a gap
	}
	each, err := w.client.BatchPrepareRedeem(t.Context(), batch)
	if err != nil || len(each.GetDisclosedContracts()) != 0 {
		t.Fatalf("%d contracts, %v", len(each.GetDisclosedContracts()), err)
	}
	batch.DisclosuresOnce = true
	once, err := w.client.BatchPrepareRedeem(t.Context(), batch)
	if err != nil || len(once.GetDisclosedContracts()) != 3 {
		t.Fatalf("%d contracts, %v; want CoreState and two nodes", len(once.GetDisclosedContracts()), err)
	}
	by := map[string]*disclosurev1.DisclosedContract{}
	for _, d := range once.GetDisclosedContracts() {
		by[d.GetContractId()] = d
	}
	for i, item := range once.GetItems() {
		want := each.GetItems()[i]
		if response := item.GetResponse(); response != nil {
			if len(response.GetDisclosedContracts()) != 0 {
				t.Fatalf("item %d has disclosures of its own", i)
			}
			for _, d := range want.GetResponse().GetDisclosedContracts() {
				if id := d.GetContractId(); id != response.GetCoreState().GetContract().GetContractId() && id != response.GetReplayNode().GetContract().GetContractId() {
					t.Errorf("item %d: %s is neither its CoreState nor its node", i, id)
				}
				response.DisclosedContracts = append(response.DisclosedContracts, by[d.GetContractId()])
			}
		}
		if !proto.Equal(item, want) {
			t.Fatalf("item %d: %v, want %v", i, item, want)
		}
	}

	// So a batch fits that did not.
	batch.DisclosuresOnce = false
	most = proto.Size(each) - 1000
	w = basic(t, options...)
	w.apply(archived("root"), created(contract("low", node(t, "a", digest("ab")))), created(contract("high", node(t, "b"))))
	_, err = w.client.BatchPrepareRedeem(t.Context(), batch)
	wantReason(t, err, api.AnswerTooLarge)
	batch.DisclosuresOnce = true
	if _, err = w.client.BatchPrepareRedeem(t.Context(), batch); err != nil {
		t.Error(err)
	}
}

// Bug: beside calls that take the tokens one by one, the bucket is never full, and a batch that needs all of them starved. It waits for
// what it lacks, and what waiting does not mend is refused with the time that it takes.
func TestBatchBesideSteadyCalls(t *testing.T) {
	const burst = 400
	use := func(w *world) {
		for range burst - 1 {
			if _, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.RatePerSecond, c.Limits.Burst = 5000, burst })
	use(w)
	began := time.Now()
	if _, err := w.client.BatchPrepareRedeem(t.Context(), batchOf(api.MaxBatchItems)); err != nil {
		t.Fatalf("a batch where one token is left: %v", err)
	}
	if took := time.Since(began); took < 70*time.Millisecond {
		t.Errorf("it did not wait for its tokens: %s", took)
	}

	w = basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.RatePerSecond, c.Limits.Burst = 10, burst })
	use(w)
	_, err := w.client.BatchPrepareRedeem(t.Context(), batchOf(api.MaxBatchItems))
	wantReason(t, err, api.RateLimited)
	delay := retryDelay(t, err)
	if delay < 39*time.Second || delay > 41*time.Second {
		t.Errorf("399 tokens at 10 a second are to be there after %s", delay)
	}
	w.setNow(w.clock().Add(delay))
	w.proven()
	if _, err := w.client.BatchPrepareRedeem(t.Context(), batchOf(api.MaxBatchItems)); err != nil {
		t.Errorf("a batch after the time that it was told: %v", err)
	}

	// A caller in a hurry is refused rather than left to its deadline.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	began = time.Now()
	_, err = w.client.BatchPrepareRedeem(ctx, batchOf(40))
	wantReason(t, err, api.RateLimited)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("refused after %s", took)
	}
}

func retryDelay(t *testing.T, err error) time.Duration {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	t.Fatalf("no RetryInfo: %v", err)
	return 0
}
