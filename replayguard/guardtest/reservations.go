package guardtest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

// TestReservations has what a holder does with its reservation.
func TestReservations(t *testing.T, newGuard Maker) {
	for _, row := range []struct {
		name string
		test func(*testing.T, Maker)
	}{
		{"the holder's key gives its reservation back", keys},
		{"tokens of an id grow", tokens},
		{"a settled reservation stays, and does not lapse", settle},
		{"a claim must be its client's, its id's and its token's", claims},
		{"extending is bounded", extend},
		{"releasing is off by default", releaseOff},
		{"a released id may be reserved anew", release},
		{"an over-long client name is refused", longName},
		{"a lapsed reservation that is taken over is told", tookOver},
	} {
		t.Run(row.name, func(t *testing.T) { row.test(t, newGuard) })
	}
}

func keys(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, unlimited(1))
	request := replayguard.Request{Client: "alice", ID: ID(1), ExpiresAt: Start + 60, Key: replayguard.NewKey("alice's")}
	first, err := g.Store.Reserve(ctx(t), request)
	if err != nil || first.Again {
		t.Fatalf("got %+v, %v", first, err)
	}
	g.Clock.Advance(30)
	request.ExpiresAt = Start + 90 // asking again does not extend
	again, err := g.Store.Reserve(ctx(t), request)
	want := first
	want.Again = true
	if err != nil || again != want {
		t.Fatalf("got %+v, %v, want %+v", again, err, want)
	}
	if want := (replayguard.Reservation{ID: ID(1), Token: first.Token, ReservedAt: Start, ExpiresAt: Start + 60}); first != want {
		t.Errorf("got %+v, want %+v", first, want)
	}
	for _, other := range []replayguard.Request{
		{Client: "alice", ID: ID(1), ExpiresAt: Start + 60, Key: replayguard.NewKey("another")},
		{Client: "alice", ID: ID(1), ExpiresAt: Start + 60},
		{Client: "bob", ID: ID(1), ExpiresAt: Start + 60, Key: request.Key},
	} {
		_, err := g.Store.Reserve(ctx(t), other)
		WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	}
	// No key is not a key that matches no key.
	g.Clock.Set(Start + 61)
	g.reserve(t, "alice", 1, 60)
	_, err = g.tryReserve(t, "alice", 1, 60)
	WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
}

func tokens(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, unlimited(10))
	var last replayguard.Token
	for range 5 {
		r := g.reserve(t, "alice", 1, 5)
		if r.Token <= last {
			t.Fatalf("token %d after %d", r.Token, last)
		}
		last = r.Token
		g.Clock.Advance(6)
	}
}

func settle(t *testing.T, newGuard Maker) {
	limits := unlimited(10)
	limits.Quota = replayguard.Quota{MaxLive: 10, PerMinute: 60, Burst: 10, LapseCost: 10}
	g := made(t, newGuard, limits)
	for i, outcome := range []replayguard.Outcome{replayguard.Committed, replayguard.Consumed} {
		r := g.reserve(t, "alice", i, 5)
		claim := replayguard.Claim{Client: "alice", ID: r.ID, Token: r.Token}
		for _, again := range []replayguard.Outcome{outcome, replayguard.Committed, replayguard.Consumed} {
			g.Clock.Advance(1)
			settled, err := g.Store.Settle(ctx(t), claim, again)
			if want := g.Clock.Now().Unix() - r.ReservedAt; err == nil && settled.Age != want {
				t.Errorf("settled at the age of %d s, want %d", settled.Age, want)
			}
			if want := r; err != nil || settled.Outcome != outcome || settled.Token != want.Token || settled.ExpiresAt != want.ExpiresAt {
				t.Fatalf("settling as %v after %v: %+v, %v", again, outcome, settled, err)
			}
		}
		_, err := g.tryReserve(t, "bob", i, 5)
		WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		for _, nonsense := range []replayguard.Outcome{replayguard.Open, 3, 255} {
			_, err := g.Store.Settle(ctx(t), claim, nonsense)
			WantRefusal(t, err, replayguard.Invalid, replayguard.CauseRequest)
		}
		if _, err := g.Store.Extend(ctx(t), claim, Start+10); !errors.Is(err, replayguard.ErrNoReservation) {
			t.Errorf("extending a settled reservation: %v", err)
		}
	}
	g.Clock.Advance(6)
	if _, err := g.Store.Settle(ctx(t), replayguard.Claim{Client: "alice", ID: ID(0)}, replayguard.Committed); !errors.Is(err, replayguard.ErrNoReservation) {
		t.Errorf("settling after the expiry: %v", err)
	}
	g.reserve(t, "alice", 3, 5) // a lapse would have taken alice's whole standing
	g.Forget(t)
	if stats, err := g.Store.Stats(ctx(t)); err != nil || stats.Lapsed != 0 {
		t.Errorf("%d lapsed, %v; want none", stats.Lapsed, err)
	}
}

func claims(t *testing.T, newGuard Maker) {
	limits := unlimited(10)
	limits.AllowRelease = true
	g := made(t, newGuard, limits)
	old := g.reserve(t, "alice", 1, 5)
	g.Clock.Advance(6)
	r := g.reserve(t, "alice", 1, 60)
	for name, claim := range map[string]replayguard.Claim{
		"another client":    {Client: "bob", ID: r.ID, Token: r.Token},
		"another id":        {Client: "alice", ID: ID(2), Token: r.Token},
		"an earlier token":  {Client: "alice", ID: r.ID, Token: old.Token},
		"a later token":     {Client: "alice", ID: r.ID, Token: r.Token + 1},
		"no token":          {Client: "alice", ID: r.ID},
		"a negative token":  {Client: "alice", ID: r.ID, Token: -r.Token},
		"no client":         {ID: r.ID, Token: r.Token},
		"a similar client":  {Client: "Alice", ID: r.ID, Token: r.Token},
		"a client and more": {Client: "alice ", ID: r.ID, Token: r.Token},
	} {
		if _, err := g.Store.Settle(ctx(t), claim, replayguard.Committed); !errors.Is(err, replayguard.ErrNoReservation) {
			t.Errorf("%s settles: %v", name, err)
		}
		if _, err := g.Store.Extend(ctx(t), claim, Start+90); !errors.Is(err, replayguard.ErrNoReservation) {
			t.Errorf("%s extends: %v", name, err)
		}
		if err := g.Store.Release(ctx(t), claim); !errors.Is(err, replayguard.ErrNoReservation) {
			t.Errorf("%s releases: %v", name, err)
		}
	}
	g.wantLive(t, 1)
}

func extend(t *testing.T, newGuard Maker) {
	limits := unlimited(10)
	limits.MaxTTL, limits.MaxLifetime = time.Minute, 100*time.Second
	g := made(t, newGuard, limits)
	r := g.reserve(t, "alice", 1, 60)
	claim := replayguard.Claim{Client: "alice", ID: r.ID, Token: r.Token}
	for _, expiresAt := range []int64{0, -1, Start + 59, Start + 61, Start - 1} {
		_, err := g.Store.Extend(ctx(t), claim, expiresAt)
		var refusal *replayguard.Refusal
		if !errors.As(err, &refusal) || refusal.Cause != replayguard.CauseExpiry {
			t.Fatalf("extending to %d: %v", expiresAt-Start, err)
		}
	}
	g.Clock.Set(Start + 60)
	if _, err := g.Store.Extend(ctx(t), claim, Start+60); err != nil {
		t.Fatalf("extending to the same second: %v", err)
	}
	extended, err := g.Store.Extend(ctx(t), claim, Start+100)
	want := r
	want.ExpiresAt = Start + 100
	if err != nil || extended != want {
		t.Fatalf("got %+v, %v, want %+v", extended, err, want)
	}
	_, err = g.Store.Extend(ctx(t), claim, Start+101)
	WantRefusal(t, err, replayguard.Invalid, replayguard.CauseExpiry) // longer than it may live in all
	g.Clock.Set(Start + 100)
	_, err = g.tryReserve(t, "bob", 1, 60)
	if refusal := WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate); refusal.ExpiresAt != Start+100 {
		t.Errorf("reserved until %d, want %d", refusal.ExpiresAt-Start, 100)
	}
	g.Clock.Set(Start + 101)
	if _, err := g.Store.Extend(ctx(t), claim, Start+101); !errors.Is(err, replayguard.ErrNoReservation) {
		t.Errorf("extending after the expiry: %v", err)
	}
	g.reserve(t, "bob", 1, 60)
}

func releaseOff(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, unlimited(10))
	r := g.reserve(t, "alice", 1, 60)
	err := g.Store.Release(ctx(t), replayguard.Claim{Client: "alice", ID: r.ID, Token: r.Token})
	WantRefusal(t, err, replayguard.Other, replayguard.CauseConfiguration)
	g.wantLive(t, 1)
}

func release(t *testing.T, newGuard Maker) {
	limits := unlimited(1)
	limits.AllowRelease = true
	g := made(t, newGuard, limits)
	r := g.reserve(t, "alice", 1, 60)
	claim := replayguard.Claim{Client: "alice", ID: r.ID, Token: r.Token}
	if err := g.Store.Release(ctx(t), claim); err != nil {
		t.Fatal(err)
	}
	if err := g.Store.Release(ctx(t), claim); !errors.Is(err, replayguard.ErrNoReservation) {
		t.Errorf("releasing twice: %v", err)
	}
	g.wantLive(t, 0)
	next := g.reserve(t, "bob", 1, 60)
	if next.Token <= r.Token || next.TookOver {
		t.Errorf("after the release of %+v: %+v", r, next)
	}
	claim = replayguard.Claim{Client: "bob", ID: next.ID, Token: next.Token}
	if _, err := g.Store.Settle(ctx(t), claim, replayguard.Committed); err != nil {
		t.Fatal(err)
	}
	if err := g.Store.Release(ctx(t), claim); !errors.Is(err, replayguard.ErrNoReservation) {
		t.Errorf("releasing a settled reservation: %v", err)
	}
}

func longName(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, unlimited(10))
	_, err := g.tryReserve(t, strings.Repeat("x", replayguard.MaxClientBytes+1), 1, 60)
	WantRefusal(t, err, replayguard.Invalid, replayguard.CauseRequest)
	g.reserve(t, strings.Repeat("x", replayguard.MaxClientBytes), 1, 60)
}

func tookOver(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, unlimited(10))
	settled := g.reserve(t, "alice", 1, 5)
	g.reserve(t, "alice", 2, 5)
	if _, err := g.Store.Settle(ctx(t), replayguard.Claim{Client: "alice", ID: settled.ID, Token: settled.Token}, replayguard.Consumed); err != nil {
		t.Fatal(err)
	}
	g.Clock.Advance(6)
	if r := g.reserve(t, "bob", 2, 5); !r.TookOver {
		t.Error("the reservation of a lapsed id does not tell so")
	}
	if r := g.reserve(t, "bob", 1, 5); r.TookOver {
		t.Error("the reservation of an id whose earlier one was settled tells that it had lapsed")
	}
}

// TestQuotas has what bounds one client.
func TestQuotas(t *testing.T, newGuard Maker) {
	for _, row := range []struct {
		name string
		test func(*testing.T, Maker)
	}{
		{"G03 one client's flood leaves room for another's first message", flood},
		{"live reservations", quotaLive},
		{"rate", quotaRate},
		{"lapsed reservations cost standing, once, and not for ever", standing},
		{"a duplicate costs nothing", duplicateIsFree},
		{"a refusal costs nothing", refusalIsFree},
		{"a client's own quota", ownQuota},
		{"the clock going back brings nothing", quotaClockBack},
		{"quotas at the same time", quotaRace},
		{"a quota that makes no sense refuses", quotaFault},
		{"how far quotas are used is told, and by nobody's name", quotaUse},
	} {
		t.Run(row.name, func(t *testing.T) { row.test(t, newGuard) })
	}
}

func quotaLimits(q replayguard.Quota) replayguard.Limits {
	return replayguard.Limits{MaxEntries: 100, Quota: q}
}

func flood(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, replayguard.Limits{MaxEntries: 40}) // the default quotas
	admitted := 0
	for i := range 400 {
		if _, err := g.tryReserve(t, "alice", i, 600); err == nil {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("alice has %d of 40 entries, want a quarter", admitted)
	}
	g.reserve(t, "bob", 1000, 600)
}

func quotaLive(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, quotaLimits(replayguard.Quota{MaxLive: 2, PerMinute: replayguard.NoLimit}))
	g.reserve(t, "alice", 1, 10)
	g.reserve(t, "alice", 2, 20)
	_, err := g.tryReserve(t, "alice", 3, 10)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaLive)
	g.reserve(t, "bob", 3, 10)
	g.Clock.Advance(10)
	_, err = g.tryReserve(t, "alice", 4, 10)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaLive)
	g.Clock.Advance(1)
	g.reserve(t, "alice", 4, 10)
	_, err = g.tryReserve(t, "alice", 5, 10)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaLive)
}

func quotaRate(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, quotaLimits(replayguard.Quota{MaxLive: 100, PerMinute: 7, Burst: 3}))
	for i := range 3 {
		g.reserve(t, "alice", i, 1800)
	}
	_, err := g.tryReserve(t, "alice", 3, 1800)
	if r := WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate); r.RetryAfter != 9*time.Second {
		t.Errorf("retry after %v, want 9s: 60 s / 7, in whole seconds", r.RetryAfter)
	}
	g.Clock.Advance(8)
	_, err = g.tryReserve(t, "alice", 3, 1800)
	if r := WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate); r.RetryAfter != time.Second {
		t.Errorf("retry after %v, want 1s", r.RetryAfter)
	}
	g.Clock.Advance(1)
	g.reserve(t, "alice", 3, 1800)
	_, err = g.tryReserve(t, "alice", 4, 1800)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate)
	g.Clock.Advance(1000) // no more than a burst is saved up
	for i := range 3 {
		g.reserve(t, "alice", 10+i, 1800)
	}
	_, err = g.tryReserve(t, "alice", 13, 1800)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate)
}

func standing(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, quotaLimits(replayguard.Quota{MaxLive: 100, PerMinute: 60, Burst: 10, LapseCost: 4}))
	for i := range 4 {
		g.reserve(t, "alice", i, 5)
	}
	g.Clock.Advance(20)
	g.Forget(t)
	// Full again, minus 4 lapses of 4: 6 s of debt.
	_, err := g.tryReserve(t, "alice", 10, 5)
	if r := WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate); r.RetryAfter != 7*time.Second {
		t.Errorf("retry after %v, want 7s", r.RetryAfter)
	}
	g.reserve(t, "bob", 10, 5) // the debt is alice's alone
	g.Clock.Advance(7)
	g.reserve(t, "alice", 11, 5)
	_, err = g.tryReserve(t, "alice", 12, 5)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate)

	// Debt ends somewhere: whatever lapsed, a client is back in time.
	g.Clock.Advance(100)
	for i := range 6 {
		g.reserve(t, "alice", 20+i, 5)
	}
	g.Clock.Advance(100)
	_, err = g.tryReserve(t, "alice", 30, 5)
	if r := WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate); r.RetryAfter != 11*time.Second {
		t.Errorf("retry after %v, want 11s: a burst's debt, and one", r.RetryAfter)
	}
	g.Clock.Advance(11)
	g.reserve(t, "alice", 30, 5)
	stats, err := g.Store.Stats(ctx(t))
	if err != nil || stats.Lapsed < 11 {
		t.Errorf("%d lapsed, %v; want all 11 of alice's", stats.Lapsed, err)
	}
}

func duplicateIsFree(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, quotaLimits(replayguard.Quota{MaxLive: 100, PerMinute: 1, Burst: 2}))
	g.reserve(t, "alice", 1, 600)
	for range 10 {
		_, err := g.tryReserve(t, "alice", 1, 600)
		WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
		_, err = g.tryReserve(t, "bob", 1, 600)
		WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	}
	g.reserve(t, "alice", 2, 600)
	// A duplicate is one also for a client that has nothing left.
	_, err := g.tryReserve(t, "alice", 1, 600)
	WantRefusal(t, err, replayguard.AlreadyReceived, replayguard.CauseDuplicate)
	_, err = g.tryReserve(t, "alice", 3, 600)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate)
}

func refusalIsFree(t *testing.T, newGuard Maker) {
	for _, test := range []struct {
		entries, live int
		want          replayguard.Cause
	}{{100, 1, replayguard.CauseQuotaLive}, {1, 100, replayguard.CauseCapacity}} {
		g := made(t, newGuard, replayguard.Limits{MaxEntries: test.entries, Quota: replayguard.Quota{MaxLive: test.live, PerMinute: 1, Burst: 2}})
		g.reserve(t, "alice", 1, 10)
		for i := range 10 { // one more could still be afforded
			_, err := g.tryReserve(t, "alice", 2+i, 10)
			WantRefusal(t, err, replayguard.Other, test.want)
		}
	}
}

func ownQuota(t *testing.T, newGuard Maker) {
	limits := quotaLimits(replayguard.Quota{MaxLive: 1})
	limits.QuotaFor = func(client string) replayguard.Quota {
		if client == "alice" {
			return replayguard.Quota{MaxLive: 3}
		}
		return limits.Quota
	}
	g := made(t, newGuard, limits)
	for i := range 3 {
		g.reserve(t, "alice", i, 60)
	}
	_, err := g.tryReserve(t, "alice", 3, 60)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaLive)
	g.reserve(t, "bob", 4, 60)
	_, err = g.tryReserve(t, "bob", 5, 60)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaLive)
}

func quotaClockBack(t *testing.T, newGuard Maker) {
	g := made(t, newGuard, quotaLimits(replayguard.Quota{MaxLive: 100, PerMinute: 60, Burst: 2}))
	g.reserve(t, "alice", 1, 600)
	g.reserve(t, "alice", 2, 600)
	g.Clock.Advance(-300)
	_, err := g.tryReserve(t, "alice", 3, 600)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate)
	g.Clock.Advance(1) // and it is not locked out until the clock is where it was
	g.reserve(t, "alice", 3, 600)
}

func quotaRace(t *testing.T, newGuard Maker) {
	const maxLive = 7
	g := made(t, newGuard, quotaLimits(replayguard.Quota{MaxLive: maxLive, PerMinute: replayguard.NoLimit}))
	admitted := make(chan struct{}, 100)
	inParallel(100, func(i int) {
		if _, err := g.tryReserve(t, "alice", i, 60); err == nil {
			admitted <- struct{}{}
		}
	})
	if len(admitted) != maxLive {
		t.Errorf("%d admitted at once, want %d", len(admitted), maxLive)
	}
}

func quotaUse(t *testing.T, newGuard Maker) {
	limits := quotaLimits(replayguard.Quota{MaxLive: 4, PerMinute: 60, Burst: 5, LapseCost: 4})
	limits.QuotaFor = func(client string) replayguard.Quota {
		if client == "unlimited" {
			return replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}
		}
		return limits.Quota
	}
	g := made(t, newGuard, limits)
	want := func(share float64, atLimit int) {
		t.Helper()
		stats, err := g.Store.Stats(ctx(t))
		if want := (replayguard.QuotaUse{HighestShare: share, AtLimit: atLimit}); err != nil || stats.Quotas != want {
			t.Errorf("got %+v, %v; want %+v", stats.Quotas, err, want)
		}
	}
	want(0, 0)
	for i := range 10 {
		g.reserve(t, "unlimited", i, 60)
	}
	want(0, 0)
	g.reserve(t, "alice", 20, 10)
	g.reserve(t, "bob", 21, 60)
	g.reserve(t, "bob", 22, 60)
	want(0.5, 0)
	for i := range 3 {
		g.reserve(t, "alice", 23+i, 10)
	}
	want(1, 1) // alice has all that she may
	g.Clock.Advance(11)
	want(0.5, 1) // they lapsed: she has none, and owes for four
	g.Clock.Advance(60)
	want(0, 2) // what lapsed is charged when its client asks
	for _, client := range []string{"alice", "bob"} {
		_, err := g.tryReserve(t, client, 30, 10)
		WantRefusal(t, err, replayguard.Other, replayguard.CauseQuotaRate)
	}
	g.Clock.Advance(10)
	want(0, 0)
}

func quotaFault(t *testing.T, newGuard Maker) {
	limits := quotaLimits(replayguard.Quota{})
	limits.QuotaFor = func(string) replayguard.Quota { return replayguard.Quota{PerMinute: -1} }
	g := made(t, newGuard, limits)
	_, err := g.tryReserve(t, "alice", 1, 60)
	WantRefusal(t, err, replayguard.Other, replayguard.CauseConfiguration)
}
