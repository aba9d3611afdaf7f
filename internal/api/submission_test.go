package api_test

import (
	"context"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
	"github.com/disclosured/disclosured/replayguard"
	guardpostgres "github.com/disclosured/disclosured/replayguard/postgres"
)

// The outcomes, for the tests' tables.
const (
	outcomeReserved = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_RESERVED
	outcomeReceived = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_ALREADY_RECEIVED
	outcomeConsumed = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_CONSUMED
	outcomeOther    = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_OTHER
)

// guardStore makes an empty store with the limits, and gives how it is told of the tests' time; its clock is the world's or the database's.
type guardStore struct {
	name string
	make func(t *testing.T, limits replayguard.Limits, now func() time.Time) (replayguard.Store, func(time.Time))
}

var guardStores = []guardStore{
	{"memory", func(_ *testing.T, limits replayguard.Limits, now func() time.Time) (replayguard.Store, func(time.Time)) {
		return replayguard.NewMemory(limits, now), func(time.Time) {}
	}},
	{"Postgres", func(t *testing.T, limits replayguard.Limits, now func() time.Time) (replayguard.Store, func(time.Time)) {
		pool, err := pgxpool.New(context.Background(), pgtest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		store := openGuard(t, pool, limits)
		run := func(statement string, args ...any) {
			if _, err := pool.Exec(context.Background(), statement, args...); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		run(`CREATE TABLE public.stopped_clock (now bigint NOT NULL)`)
		run(`INSERT INTO public.stopped_clock VALUES ($1)`, now().Unix())
		run(`CREATE OR REPLACE FUNCTION replayguard.now_seconds() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT now FROM public.stopped_clock'`)
		return store, func(at time.Time) { run(`UPDATE public.stopped_clock SET now = $1`, at.Unix()) }
	}},
}

func openGuard(t *testing.T, pool *pgxpool.Pool, limits replayguard.Limits) *guardpostgres.Store {
	t.Helper()
	store, err := guardpostgres.Open(t.Context(), pool, guardpostgres.Config{
		Limits: limits, Migrate: true, SweepEvery: -1, Timeout: time.Minute, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// guarded is a world with a submission service, and one client of it.
type guarded struct {
	*world
	store   replayguard.Store
	tell    func(time.Time)
	relayer disclosurev1.SubmissionServiceClient
}

// newGuarded is a basic world whose guard has the limits, for one anonymous client.
func newGuarded(t *testing.T, kind guardStore, limits replayguard.Limits, options ...option) *guarded {
	t.Helper()
	g := &guarded{}
	g.world = basic(t, append([]option{func(c *api.Config, d *api.Deps) {
		g.store, g.tell = kind.make(t, limits, d.Now)
		withGuard(g.store)(c, d)
	}}, options...)...)
	g.relayer = disclosurev1.NewSubmissionServiceClient(g.conn)
	return g
}

// withGuard gives a server a guard. Time is the tests' to move, so the index is fresh for ever.
func withGuard(store replayguard.Store) option {
	return func(c *api.Config, d *api.Deps) {
		d.Guard = store
		c.Guard.AllowAnonymous = true
		c.FreshnessBound = 1e6 * time.Hour
	}
}

// advance moves the clocks by seconds.
func (g *guarded) advance(seconds int64) { g.set(g.clock().Unix() + seconds) }

func (g *guarded) set(second int64) {
	at := time.Unix(second, 900_000_000) // whole seconds count
	g.setNow(at)
	g.tell(at)
}

// request asks for the reservation of the sequence's VAA for seconds from now.
func (g *guarded) request(sequence uint64, seconds int64) *disclosurev1.ReserveRequest {
	return reserveRequest(vaa(sequence), g.clock().Unix()+seconds)
}

func reserveRequest(v *wormhole.VAA, expiresAt int64) *disclosurev1.ReserveRequest {
	return &disclosurev1.ReserveRequest{
		Scope: selector(), Subject: &disclosurev1.ReserveRequest_Vaa{Vaa: v.EncodedHex()}, ExpiresAt: &timestamppb.Timestamp{Seconds: expiresAt},
	}
}

// want asks, and fails the test unless the outcome is the one wanted.
func (g *guarded) want(t *testing.T, outcome disclosurev1.ReserveOutcome, req *disclosurev1.ReserveRequest) *disclosurev1.ReserveResponse {
	t.Helper()
	return wantOutcome(t, g.relayer, outcome, req)
}

func wantOutcome(t *testing.T, relayer disclosurev1.SubmissionServiceClient, outcome disclosurev1.ReserveOutcome, req *disclosurev1.ReserveRequest) *disclosurev1.ReserveResponse {
	t.Helper()
	answer, err := relayer.Reserve(t.Context(), req)
	if err != nil {
		t.Fatalf("Reserve: %v, want %v", err, outcome)
	}
	if answer.GetOutcome() != outcome {
		t.Fatalf("Reserve: %v, want %v", answer, outcome)
	}
	if (outcome == outcomeReserved) != (answer.GetToken() != "" && answer.GetFencingToken() > 0) || (outcome == outcomeReserved || outcome == outcomeReceived) != (answer.GetExpiresAt() != nil) ||
		(outcome == outcomeConsumed) != (answer.GetConsumption() != nil) || (outcome == outcomeOther) != (answer.GetOtherReason() != 0) || answer.GetAnswer().GetPosition().GetOffset() == 0 {
		t.Fatalf("the answer's fields don't fit its outcome: %v", answer)
	}
	return answer
}

func (g *guarded) wantError(t *testing.T, reason api.Reason, req *disclosurev1.ReserveRequest) {
	t.Helper()
	_, err := g.relayer.Reserve(t.Context(), req)
	wantReason(t, err, reason)
	checkRow(t, err)
}

func (g *guarded) wantOther(t *testing.T, reason disclosurev1.OtherReason, req *disclosurev1.ReserveRequest) *disclosurev1.ReserveResponse {
	t.Helper()
	answer := g.want(t, outcomeOther, req)
	if answer.GetOtherReason() != reason {
		t.Fatalf("refused for %v, want %v", answer.GetOtherReason(), reason)
	}
	return answer
}

func (g *guarded) wantLive(t *testing.T, want int) {
	t.Helper()
	stats, err := g.store.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if stats.Live != want {
		t.Fatalf("%d live reservations, want %d", stats.Live, want)
	}
}

// forged has the VAA's digest, and signatures of nobody's guardians.
func forged(sequence uint64) *wormhole.VAA {
	return wormhole.SignVAA(vaa(sequence).VAABody, 0, map[uint8]wormhole.GuardianKey{0: wormhole.TestGuardian("x"), 1: wormhole.TestGuardian("y")})
}

// roomy are limits that leave only the capacity.
func roomy(maxEntries int) replayguard.Limits {
	return replayguard.Limits{MaxEntries: maxEntries, MaxTTL: time.Hour, Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}}
}

// TestGuardOutcomes has each row of the replay guard's contract, over gRPC and over both stores.
func TestGuardOutcomes(t *testing.T) {
	for _, kind := range guardStores {
		for _, row := range []struct {
			name string
			test func(*testing.T, guardStore)
		}{
			{"valid, authenticated, unexpired, room left: reserved", guardValid},
			{"id reserved: already received, on the same connection, another, and by any spelling", guardDuplicate},
			{"at the same time on 64 connections, 1,024 calls: one is reserved", guardSimultaneous},
			{"at capacity, new id: other, until an entry expires", guardFull},
			{"at capacity, id already reserved: already received", guardFullDuplicate},
			{"negative capacity: other, after time to live and authentication", guardNegativeCapacity},
			{"time to live invalid at first: its error, nothing reserved", guardInvalidAtFirst},
			{"time to live invalid at submission: its error, nothing reserved", guardInvalidAtSubmission},
			{"authentication fails: its error, nothing reserved; the genuine one passes", guardForged},
			{"submission rejected or its caller gone: reserved until its expiry", guardCallerGone},
			{"expired, then again: reserved anew", guardAgain},
			{"expired entries fill the guard, new id: pruned in that reservation", guardPruned},
			{"servers with one store share", guardShared},
			{"consumed: its update, and no entry", guardConsumed},
			{"clock forward and back: nothing that was forgotten is readmitted", guardClock},
			{"one client's flood meets its quota, another's first is admitted", guardFlood},
			{"settle, extend, release", guardClaims},
			{"the holder's key gives its reservation back", guardKey},
		} {
			t.Run(kind.name+"/"+row.name, func(t *testing.T) { row.test(t, kind) })
		}
	}
}

func guardValid(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	req := g.request(1, 60)
	req.Prepare = true
	answer := g.want(t, outcomeReserved, req)
	if answer.GetDigest() != vaa(1).Digest().String() || answer.GetExpiresAt().GetSeconds() != req.GetExpiresAt().GetSeconds() || answer.GetScope().GetConsumer() != consumer || answer.GetAgain() {
		t.Errorf("got %v", answer)
	}
	if got := answer.GetPrepared(); got.GetVerdict() != disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE || len(got.GetDisclosedContracts()) != 2 || got.GetArguments().GetEncodedVaa() != vaa(1).EncodedHex() {
		t.Errorf("prepared: %v", got)
	}
	if answer := g.want(t, outcomeReserved, g.request(2, 60)); answer.GetPrepared() != nil {
		t.Error("prepared without having been asked to")
	}
	g.wantLive(t, 2)
}

func guardDuplicate(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10), func(c *api.Config, _ *api.Deps) { c.Guard.AllowDigest = true })
	req := g.request(1, 60)
	g.want(t, outcomeReserved, req)
	conn := g.dial(insecure.NewCredentials())
	defer conn.Close()
	text := vaa(1).EncodedHex()
	bytes := req.GetExpiresAt()
	for _, again := range []*disclosurev1.ReserveRequest{
		req,
		{Scope: selector(), Subject: &disclosurev1.ReserveRequest_Vaa{Vaa: "0x" + strings.ToUpper(text)}, ExpiresAt: bytes},
		{Scope: selector(), Subject: &disclosurev1.ReserveRequest_VaaBytes{VaaBytes: vaa(1).Encode()}, ExpiresAt: bytes},
		{Scope: selector(), Subject: &disclosurev1.ReserveRequest_Digest{Digest: "0X" + strings.ToUpper(vaa(1).Digest().String())}, ExpiresAt: bytes},
		{Scope: &disclosurev1.ScopeSelector{Consumer: consumer, Operator: operator, PackageName: packageName}, Subject: req.GetSubject(), ExpiresAt: bytes},
		{Scope: selector(), Subject: req.GetSubject(), ExpiresAt: &timestamppb.Timestamp{Seconds: bytes.GetSeconds() + 600}}, // does not extend it
	} {
		for _, relayer := range []disclosurev1.SubmissionServiceClient{g.relayer, disclosurev1.NewSubmissionServiceClient(conn)} {
			if answer := wantOutcome(t, relayer, outcomeReceived, again); answer.GetExpiresAt().GetSeconds() != bytes.GetSeconds() {
				t.Errorf("reserved until %v, want %v", answer.GetExpiresAt(), bytes)
			}
		}
	}
	g.advance(60) // exactly at the expiry
	g.want(t, outcomeReceived, g.request(1, 60))
	g.wantLive(t, 1)
	g.advance(1)
	g.want(t, outcomeReserved, g.request(1, 60))
}

// raceFor has every client ask for one id at once, and wants one reservation in all.
func raceFor(t *testing.T, relayers []disclosurev1.SubmissionServiceClient, each int, req *disclosurev1.ReserveRequest) {
	t.Helper()
	var mu sync.Mutex
	outcomes := map[disclosurev1.ReserveOutcome]int{}
	start := make(chan struct{})
	var all sync.WaitGroup
	for _, relayer := range relayers {
		for range each {
			all.Go(func() {
				<-start
				answer, err := relayer.Reserve(context.Background(), req)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				outcomes[answer.GetOutcome()]++
			})
		}
	}
	close(start)
	all.Wait()
	if outcomes[outcomeReserved] != 1 || outcomes[outcomeReceived] != len(relayers)*each-1 {
		t.Errorf("outcomes %v, want one reservation and else ALREADY_RECEIVED", outcomes)
	}
}

// connections are n connections of their own.
func (g *guarded) connections(n int) (relayers []disclosurev1.SubmissionServiceClient) {
	for range n {
		conn := g.dial(insecure.NewCredentials())
		g.t.Cleanup(func() { conn.Close() })
		relayers = append(relayers, disclosurev1.NewSubmissionServiceClient(conn))
	}
	return relayers
}

func guardSimultaneous(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10), func(c *api.Config, _ *api.Deps) { c.Limits.MaxCalls, c.Limits.MaxCallsPerCaller = 10_000, 10_000 })
	raceFor(t, g.connections(64), 16, g.request(1, 60))
	g.wantLive(t, 1)
}

func guardFull(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(3))
	for i := range uint64(3) {
		g.want(t, outcomeReserved, g.request(i, 60+int64(i)))
	}
	if answer := g.wantOther(t, disclosurev1.OtherReason_OTHER_REASON_CAPACITY, g.request(9, 60)); answer.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("retry after %v, want when the first expires", answer.GetRetryAfter())
	}
	g.advance(60)
	g.wantOther(t, disclosurev1.OtherReason_OTHER_REASON_CAPACITY, g.request(9, 60))
	g.advance(1)
	g.want(t, outcomeReserved, g.request(9, 60))
	g.wantLive(t, 3)
}

func guardFullDuplicate(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(1))
	g.want(t, outcomeReserved, g.request(1, 60))
	g.want(t, outcomeReceived, g.request(1, 60))
}

func guardNegativeCapacity(t *testing.T, _ guardStore) {
	// Limits that make no sense reach no database, so there is no store but this one to make here.
	g := newGuarded(t, guardStores[0], replayguard.Limits{MaxEntries: -1})
	g.wantError(t, api.Expired, g.request(1, -1))
	g.wantError(t, api.NotAuthentic, reserveRequest(forged(1), g.clock().Unix()+60))
	g.wantOther(t, disclosurev1.OtherReason_OTHER_REASON_CONFIGURATION, g.request(1, 60))
	g.wantLive(t, 0)
}

func guardInvalidAtFirst(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	now := g.clock().Unix()
	for _, c := range []struct {
		expiresAt int64
		want      api.Reason
	}{
		{0, api.ExpiryInvalid}, {-1, api.ExpiryInvalid}, {math.MinInt64, api.ExpiryInvalid}, {math.MaxInt64, api.ExpiryInvalid}, {now + 1801, api.ExpiryInvalid},
		{math.MaxUint32, api.ExpiryInvalid}, {1, api.Expired}, {now - 1, api.Expired},
	} {
		g.wantError(t, c.want, reserveRequest(vaa(1), c.expiresAt))
		// It is the first step: a VAA that is no good is not looked at.
		g.wantError(t, c.want, reserveRequest(forged(1), c.expiresAt))
	}
	g.wantLive(t, 0)
	g.want(t, outcomeReserved, reserveRequest(vaa(1), now))
	g.want(t, outcomeReserved, reserveRequest(vaa(2), now+1800))
}

// slowIndex is an index whose views take their time.
type slowIndex struct {
	*index.Index
	onView func()
}

func (s slowIndex) View() *index.View {
	s.onView()
	return s.Index.View()
}

func guardInvalidAtSubmission(t *testing.T, kind guardStore) {
	var mu sync.Mutex
	takes := func() {}
	g := newGuarded(t, kind, roomy(10), func(_ *api.Config, d *api.Deps) {
		d.Index = slowIndex{d.Index.(*index.Index), func() {
			mu.Lock()
			defer mu.Unlock()
			takes()
		}}
	})
	req := g.request(1, 5)
	mu.Lock()
	takes = func() {
		takes = func() {}
		g.advance(6) // between the first validation and the second
	}
	mu.Unlock()
	g.wantError(t, api.Expired, req)
	g.wantLive(t, 0)
	g.want(t, outcomeReserved, g.request(1, 5))
}

func guardForged(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	if forged(1).Digest() != vaa(1).Digest() {
		t.Fatal("the forged copy has another digest")
	}
	lone := wormhole.SignVAA(vaa(1).VAABody, 0, map[uint8]wormhole.GuardianKey{0: guardians[0]})
	unknown := wormhole.SignVAA(vaa(1).VAABody, 9, guardians)
	for rule, v := range map[string]*wormhole.VAA{"SIGNATURE_INVALID": forged(1), "NO_QUORUM": lone, "GUARDIAN_SET_UNKNOWN": unknown} {
		_, err := g.relayer.Reserve(t.Context(), reserveRequest(v, g.clock().Unix()+60))
		if info := wantReason(t, err, api.NotAuthentic); info.GetMetadata()["failed_rule"] != rule {
			t.Errorf("failed rule %v, want %s", info.GetMetadata(), rule)
		}
	}
	short := g.request(1, 60)
	short.Subject = &disclosurev1.ReserveRequest_VaaBytes{VaaBytes: []byte{1, 0, 0}}
	g.wantError(t, api.NotAuthentic, short)
	digest := g.request(1, 60)
	digest.Subject = &disclosurev1.ReserveRequest_Digest{Digest: vaa(1).Digest().String()}
	g.wantError(t, api.VAARequired, digest)
	g.wantLive(t, 0)
	g.want(t, outcomeReserved, g.request(1, 60))
	// Without a CoreState nothing can be told from a forged copy.
	g.apply(archived("core"))
	g.wantError(t, api.CoreStateMissing, g.request(2, 60))
	g.wantLive(t, 1)
}

func guardCallerGone(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	conn := g.dial(insecure.NewCredentials())
	wantOutcome(t, disclosurev1.NewSubmissionServiceClient(conn), outcomeReserved, g.request(1, 60))
	conn.Close() // and its submission is rejected, or not, or never known
	g.want(t, outcomeReceived, g.request(1, 60))
	g.advance(60)
	g.want(t, outcomeReceived, g.request(1, 60))
	// A caller that is gone before the reservation has none.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if answer, err := g.relayer.Reserve(gone, g.request(2, 60)); err == nil {
		t.Errorf("a call that was given up before it began: %v", answer)
	}
	g.wantLive(t, 1)
}

func guardAgain(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	req := g.request(1, 60)
	first := g.want(t, outcomeReserved, req)
	g.advance(61)
	g.wantError(t, api.Expired, req)
	again := g.want(t, outcomeReserved, g.request(1, 60))
	if again.GetFencingToken() <= first.GetFencingToken() || again.GetAgain() {
		t.Errorf("fencing token %d after %d, again %v", again.GetFencingToken(), first.GetFencingToken(), again.GetAgain())
	}
	g.wantLive(t, 1)
}

func guardPruned(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(5))
	for i := range uint64(5) {
		g.want(t, outcomeReserved, g.request(i, 60))
	}
	g.advance(61)
	g.want(t, outcomeReserved, g.request(9, 60))
	g.wantLive(t, 1)
}

func guardShared(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	second := &guarded{world: basic(t, withGuard(g.store)), store: g.store}
	second.relayer = disclosurev1.NewSubmissionServiceClient(second.conn)
	g.want(t, outcomeReserved, g.request(1, 60))
	second.want(t, outcomeReceived, second.request(1, 60))
	raceFor(t, append(g.connections(8), second.connections(8)...), 4, g.request(2, 60))
	g.wantLive(t, 2)
}

func guardConsumed(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	g.want(t, outcomeReserved, g.request(1, 60))
	update := g.apply(archived("root"), created(contract("root2", node(t, "", vaa(1).Digest(), vaa(2).Digest()))))
	for _, sequence := range []uint64{1, 2} {
		req := g.request(sequence, 60)
		req.Prepare = true
		if answer := g.want(t, outcomeConsumed, req); answer.GetConsumption().GetUpdateId() != update || answer.GetPrepared() != nil {
			t.Errorf("consumed: %v, want by %s", answer, update)
		}
	}
	g.wantLive(t, 1)
	// What can't be redeemed can't be reserved.
	g.apply(archived("root2"))
	g.wantError(t, api.Gap, g.request(3, 60))
	unknown := g.request(3, 60)
	unknown.Scope.Consumer = "nobody::1"
	g.wantError(t, api.UnknownScope, unknown)
	g.wantLive(t, 1)
}

func guardClock(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(2))
	g.want(t, outcomeReserved, g.request(1, 60))
	g.want(t, outcomeReserved, g.request(2, 1800))
	g.advance(3600)
	g.want(t, outcomeReserved, g.request(3, 60)) // forgets both
	g.advance(-3600)
	if answer := g.wantOther(t, disclosurev1.OtherReason_OTHER_REASON_CLOCK, g.request(1, 60)); answer.GetRetryAfter().AsDuration() <= 0 {
		t.Error("no time to try again at")
	}
	g.set(math.MaxUint32 - 30) // after 2106 nothing is special
	g.want(t, outcomeReserved, g.request(1, 60))
	g.want(t, outcomeReceived, g.request(1, 60))
	g.set(-100) // nor before 1970, but that an expiry must lie after it
	g.wantError(t, api.ExpiryInvalid, g.request(5, 60))
}

func guardFlood(t *testing.T, kind guardStore) {
	limits := replayguard.Limits{MaxEntries: 100, Quota: replayguard.Quota{MaxLive: 3, PerMinute: 60, Burst: 5}}
	g := newGuarded(t, kind, limits)
	for i := range uint64(3) {
		g.want(t, outcomeReserved, g.request(i, 5))
	}
	for i := range uint64(20) {
		g.wantOther(t, disclosurev1.OtherReason_OTHER_REASON_QUOTA, g.request(100+i, 5))
	}
	// Over gRPC all connections without a certificate are one client. Another's id comes to the same store.
	if _, err := g.store.Reserve(t.Context(), replayguard.Request{Client: "CN=another", ID: replayguard.ID{1}, ExpiresAt: g.clock().Unix() + 5}); err != nil {
		t.Errorf("another client's first: %v", err)
	}
	// Three lapsed ones cost the flooder its standing, and not for ever.
	g.advance(6)
	if answer := g.wantOther(t, disclosurev1.OtherReason_OTHER_REASON_QUOTA, g.request(50, 5)); answer.GetRetryAfter().AsDuration() <= 0 {
		t.Error("no time to try again at")
	}
	g.advance(60)
	g.want(t, outcomeReserved, g.request(50, 5))
}

func guardClaims(t *testing.T, kind guardStore) {
	limits := roomy(10)
	limits.MaxLifetime = time.Hour
	g := newGuarded(t, kind, limits)
	answer := g.want(t, outcomeReserved, g.request(1, 60))
	start := g.clock().Unix()
	ctx := t.Context()

	g.advance(30)
	extended, err := g.relayer.Extend(ctx, &disclosurev1.ExtendRequest{Token: answer.GetToken(), ExpiresAt: &timestamppb.Timestamp{Seconds: start + 120}})
	if err != nil || extended.GetExpiresAt().GetSeconds() != start+120 {
		t.Fatalf("extending: %v, %v", extended, err)
	}
	for _, c := range []struct {
		expiresAt int64
		want      api.Reason
	}{{start + 60, api.ExpiryInvalid}, {start + 1831, api.ExpiryInvalid}, {start, api.Expired}, {math.MaxInt64, api.ExpiryInvalid}} {
		_, err := g.relayer.Extend(ctx, &disclosurev1.ExtendRequest{Token: answer.GetToken(), ExpiresAt: &timestamppb.Timestamp{Seconds: c.expiresAt}})
		wantReason(t, err, c.want)
	}
	_, err = g.relayer.Release(ctx, &disclosurev1.ReleaseRequest{Token: answer.GetToken()})
	wantReason(t, err, api.ReleaseOff)
	checkRow(t, err)

	for _, outcome := range []disclosurev1.SettleOutcome{disclosurev1.SettleOutcome_SETTLE_OUTCOME_COMMITTED, disclosurev1.SettleOutcome_SETTLE_OUTCOME_CONSUMED} {
		settled, err := g.relayer.Settle(ctx, &disclosurev1.SettleRequest{Token: answer.GetToken(), Outcome: outcome})
		if err != nil || settled.GetOutcome() != disclosurev1.SettleOutcome_SETTLE_OUTCOME_COMMITTED || settled.GetExpiresAt().GetSeconds() != start+120 {
			t.Errorf("settling: %v, %v; want it committed, by the first call", settled, err)
		}
	}
	g.want(t, outcomeReceived, g.request(1, 60)) // it stays until its expiry
	_, err = g.relayer.Extend(ctx, &disclosurev1.ExtendRequest{Token: answer.GetToken(), ExpiresAt: &timestamppb.Timestamp{Seconds: start + 180}})
	wantReason(t, err, api.NoReservation)
	checkRow(t, err)
	g.advance(91)
	_, err = g.relayer.Settle(ctx, &disclosurev1.SettleRequest{Token: answer.GetToken(), Outcome: 1})
	wantReason(t, err, api.NoReservation)

	for _, bad := range []string{"", "x", answer.GetToken() + " ", strings.ToUpper(answer.GetToken()), strings.Repeat("0", 64), strings.Repeat("0", 64) + ".0", strings.Repeat("0", 64) + ".+1", strings.Repeat("0", 64) + ".-1"} {
		if bad == answer.GetToken() {
			continue
		}
		_, err := g.relayer.Settle(ctx, &disclosurev1.SettleRequest{Token: bad, Outcome: 1})
		wantReason(t, err, api.InvalidField)
	}
	for _, outcome := range []disclosurev1.SettleOutcome{0, 3, -1} {
		_, err := g.relayer.Settle(ctx, &disclosurev1.SettleRequest{Token: answer.GetToken(), Outcome: outcome})
		wantReason(t, err, api.InvalidField)
	}

	limits.AllowRelease = true
	g = newGuarded(t, kind, limits)
	first := g.want(t, outcomeReserved, g.request(1, 60))
	if _, err := g.relayer.Release(ctx, &disclosurev1.ReleaseRequest{Token: first.GetToken()}); err != nil {
		t.Fatal(err)
	}
	second := g.want(t, outcomeReserved, g.request(1, 60))
	_, err = g.relayer.Release(ctx, &disclosurev1.ReleaseRequest{Token: first.GetToken()}) // fenced
	wantReason(t, err, api.NoReservation)
	if second.GetFencingToken() <= first.GetFencingToken() {
		t.Errorf("fencing token %d after %d", second.GetFencingToken(), first.GetFencingToken())
	}
}

func guardKey(t *testing.T, kind guardStore) {
	g := newGuarded(t, kind, roomy(10))
	req := g.request(1, 60)
	req.IdempotencyKey = "relayer 1, attempt 1"
	first := g.want(t, outcomeReserved, req)
	again := g.want(t, outcomeReserved, req)
	if !again.GetAgain() || again.GetToken() != first.GetToken() || again.GetSettledAs() != 0 {
		t.Errorf("got %v, want the reservation %v again", again, first)
	}
	for _, key := range []string{"", "another"} {
		req.IdempotencyKey = key
		g.want(t, outcomeReceived, req)
	}
	if _, err := g.relayer.Settle(t.Context(), &disclosurev1.SettleRequest{Token: first.GetToken(), Outcome: 2}); err != nil {
		t.Fatal(err)
	}
	req.IdempotencyKey = "relayer 1, attempt 1"
	if again := g.want(t, outcomeReserved, req); again.GetSettledAs() != disclosurev1.SettleOutcome_SETTLE_OUTCOME_CONSUMED {
		t.Errorf("settled as %v, want consumed", again.GetSettledAs())
	}
	req.IdempotencyKey = strings.Repeat("k", 257)
	g.wantError(t, api.InvalidField, req)
	g.wantLive(t, 1)
}

// Two servers, each with a memory of its own, share nothing.
func TestGuardsMadeSeparatelyDoNotShare(t *testing.T) {
	for range 2 {
		g := newGuarded(t, guardStores[0], roomy(10))
		g.want(t, outcomeReserved, g.request(1, 60))
	}
}

// Tries with the same parties and digest are told apart by their namespaces, and an absent one is none of them.
func TestGuardTellsNamespacesApart(t *testing.T) {
	g := newGuarded(t, guardStores[0], roomy(10))
	for _, name := range []string{"", "a"} {
		g.apply(created(contract("root of "+name, nodeIn(t, func(n *wormhole.ReplayNode) { n.Namespace = wormhole.Namespace{Present: true, Value: name} }))))
	}
	g.wantError(t, api.AmbiguousScope, g.request(1, 60))
	for _, scope := range []*disclosurev1.ScopeSelector{
		{Consumer: consumer, NamespaceChoice: &disclosurev1.ScopeSelector_WithoutNamespace{WithoutNamespace: true}},
		{Consumer: consumer, NamespaceChoice: &disclosurev1.ScopeSelector_Namespace{Namespace: ""}},
		{Consumer: consumer, NamespaceChoice: &disclosurev1.ScopeSelector_Namespace{Namespace: "a"}},
	} {
		req := g.request(1, 60)
		req.Scope = scope
		g.want(t, outcomeReserved, req)
		g.want(t, outcomeReceived, req)
	}
	g.wantLive(t, 3)
}

// lateStore reserves, and its answer does not come within the call's time.
type lateStore struct{ replayguard.Store }

func (s lateStore) Reserve(ctx context.Context, r replayguard.Request) (replayguard.Reservation, error) {
	if _, err := s.Store.Reserve(ctx, r); err != nil {
		return replayguard.Reservation{}, err
	}
	<-ctx.Done()
	return replayguard.Reservation{}, ctx.Err()
}

// Bug: a call whose time was over when the store had been asked said DEADLINE_EXCEEDED, which promises that nothing was reserved.
func TestReserveThatIsCutMayHaveReserved(t *testing.T) {
	g := newGuarded(t, guardStores[0], roomy(10), func(c *api.Config, d *api.Deps) {
		d.Guard = lateStore{d.Guard}
		c.DefaultDeadline = 300 * time.Millisecond
	})
	_, err := g.relayer.Reserve(context.Background(), g.request(1, 60))
	wantReason(t, err, api.GuardUnavailable)
	g.wantLive(t, 1)
}
