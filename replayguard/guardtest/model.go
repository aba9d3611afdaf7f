package guardtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/replayguard"
)

// The model's limits are so small that every one of them is met all the time.
const (
	modelEntries  = 5
	modelTTL      = 60
	modelLifetime = 100
	modelMaxLive  = 3
	modelRate     = 20
	modelBurst    = 4
	modelLapse    = 1
)

// TestModel compares a store with the model under random calls, time going forward. A random clock has a property of its
// own.
func TestModel(t *testing.T, newGuard Maker) {
	t.Run("same answers", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) { runModel(t, rt, newGuard, false) })
	})
	t.Run("random clock: no id twice in its time", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) { randomClock(t, rt, newGuard) })
	})
}

// TestModelWithClockBack is the comparison with a clock that also goes back, for a store that forgets, as the model does, at
// each call. One that forgets later answers otherwise in such times, and just as safely.
func TestModelWithClockBack(t *testing.T, newGuard Maker) {
	rapid.Check(t, func(rt *rapid.T) { runModel(t, rt, newGuard, true) })
}

func runModel(t *testing.T, rt *rapid.T, newGuard Maker, clockBack bool) {
	g := newGuard(t, replayguard.Limits{
		MaxEntries:   modelEntries,
		MaxTTL:       modelTTL * time.Second,
		MaxLifetime:  modelLifetime * time.Second,
		Quota:        replayguard.Quota{MaxLive: modelMaxLive, PerMinute: modelRate, Burst: modelBurst, LapseCost: modelLapse},
		AllowRelease: true,
	})
	m := &model{now: Start, horizon: Start - 1e6, clients: map[string]*modelClient{}}
	tokens := map[replayguard.Token]int{} // the store's token to the model's
	claims := []modelClaim{{"alice", ID(0), 1, 0}}
	clients := rapid.SampledFrom([]string{"alice", "bob", "carol"})
	ids := rapid.Map(rapid.IntRange(0, 7), ID)
	same := func(what string, got, want answer) {
		rt.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("%s at %d (-model +store):\n%s", what, m.now-Start, diff)
		}
	}
	claim := func() modelClaim {
		c := rapid.SampledFrom(claims).Draw(rt, "claim")
		if rapid.IntRange(0, 9).Draw(rt, "wrong") == 0 {
			c.client = clients.Draw(rt, "client")
		}
		return c
	}
	actions := map[string]func(*rapid.T){
		"reserve": func(rt *rapid.T) {
			r := replayguard.Request{
				Client:    clients.Draw(rt, "client"),
				ID:        ids.Draw(rt, "id"),
				ExpiresAt: m.now + rapid.Int64Range(-2, modelTTL+2).Draw(rt, "seconds"),
				Key:       replayguard.NewKey(rapid.SampledFrom([]string{"", "1", "2"}).Draw(rt, "key")),
			}
			got, err := g.Store.Reserve(t.Context(), r)
			want := m.reserve(r)
			if err == nil && !got.Again {
				tokens[got.Token] = m.lastToken
				claims = append(claims, modelClaim{r.Client, r.ID, got.Token, m.lastToken})
			}
			same("reserve", answerOf(got, err, tokens), want)
		},
		"settle": func(rt *rapid.T) {
			c := claim()
			outcome := rapid.SampledFrom([]replayguard.Outcome{replayguard.Committed, replayguard.Consumed}).Draw(rt, "outcome")
			got, err := g.Store.Settle(t.Context(), c.claim(), outcome)
			same("settle", answerOf(got, err, tokens), m.settle(c, outcome))
		},
		"extend": func(rt *rapid.T) {
			c := claim()
			expiresAt := m.now + rapid.Int64Range(-2, modelTTL+2).Draw(rt, "seconds")
			got, err := g.Store.Extend(t.Context(), c.claim(), expiresAt)
			same("extend", answerOf(got, err, tokens), m.extend(c, expiresAt))
		},
		"release": func(rt *rapid.T) {
			c := claim()
			err := g.Store.Release(t.Context(), c.claim())
			same("release", answerOf(replayguard.Reservation{}, err, tokens), m.release(c))
		},
		"time passes": func(rt *rapid.T) {
			m.now += rapid.Int64Range(0, 45).Draw(rt, "seconds")
			g.Clock.Set(m.now)
		},
		"sweep": func(rt *rapid.T) {
			m.forget()
			g.Forget(t)
		},
		"": func(rt *rapid.T) {
			stats, err := g.Store.Stats(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			m.forget()
			if stats.Live != m.liveCount() {
				rt.Fatalf("%d live at %d, the model has %d", stats.Live, m.now-Start, m.liveCount())
			}
		},
	}
	if clockBack {
		actions["time goes back"] = func(rt *rapid.T) {
			m.now -= rapid.Int64Range(1, 90).Draw(rt, "seconds")
			g.Clock.Set(m.now)
		}
	}
	rt.Repeat(actions)
	g.Check(t)
}

// answer is what a call says, in the model's tokens.
type answer struct {
	Reason     replayguard.Reason
	Cause      replayguard.Cause
	Until      int64
	RetryAfter time.Duration
	Gone       bool
	Err        string

	Token                 int
	ReservedAt, ExpiresAt int64
	Outcome               replayguard.Outcome
	Again                 bool
}

func answerOf(r replayguard.Reservation, err error, tokens map[replayguard.Token]int) answer {
	var refusal *replayguard.Refusal
	switch {
	case errors.As(err, &refusal):
		return answer{Reason: refusal.Reason, Cause: refusal.Cause, Until: refusal.ExpiresAt, RetryAfter: refusal.RetryAfter}
	case errors.Is(err, replayguard.ErrNoReservation):
		return answer{Gone: true}
	case err != nil:
		return answer{Err: err.Error()}
	}
	return answer{Token: tokens[r.Token], ReservedAt: r.ReservedAt, ExpiresAt: r.ExpiresAt, Outcome: r.Outcome, Again: r.Again}
}

// model is the contract in its plainest form: a list of all reservations ever, scanned for each question.
type model struct {
	now       int64
	horizon   int64
	all       []*modelEntry
	clients   map[string]*modelClient
	lastToken int
}

type modelEntry struct {
	request    replayguard.Request
	token      int
	reservedAt int64
	outcome    replayguard.Outcome
	forgotten  bool
}

type modelClient struct {
	units, at int64 // sixtieths of a reservation
	lapses    int64
}

type modelClaim struct {
	client     string
	id         replayguard.ID
	token      replayguard.Token
	modelToken int
}

func (c modelClaim) claim() replayguard.Claim {
	return replayguard.Claim{Client: c.client, ID: c.id, Token: c.token}
}

func (m *model) client(name string) *modelClient {
	if m.clients[name] == nil {
		m.clients[name] = &modelClient{units: modelBurst * 60, at: m.now}
	}
	return m.clients[name]
}

// forget marks what has expired, and charges for it.
func (m *model) forget() {
	for _, e := range m.all {
		if !e.forgotten && e.request.ExpiresAt < m.now {
			e.forgotten = true
			m.horizon = max(m.horizon, e.request.ExpiresAt+1)
			if e.outcome == replayguard.Open {
				m.client(e.request.Client).lapses++
			}
		}
	}
}

func (m *model) live(id replayguard.ID) *modelEntry {
	for _, e := range m.all {
		if !e.forgotten && e.request.ID == id {
			return e
		}
	}
	return nil
}

func (m *model) liveCount() (n int) {
	for _, e := range m.all {
		if !e.forgotten {
			n++
		}
	}
	return n
}

func badExpiry(expiresAt, now int64) (answer, bool) {
	switch {
	case expiresAt < now:
		return answer{Reason: replayguard.Expired, Cause: replayguard.CauseExpiry}, true
	case expiresAt > now+modelTTL:
		return answer{Reason: replayguard.Invalid, Cause: replayguard.CauseExpiry}, true
	}
	return answer{}, false
}

func (m *model) reserve(r replayguard.Request) answer {
	if bad, ok := badExpiry(r.ExpiresAt, m.now); ok {
		return bad
	}
	m.forget()
	if e := m.live(r.ID); e != nil {
		if r.Key != (replayguard.Key{}) && r.Key == e.request.Key && r.Client == e.request.Client {
			a := e.answer()
			a.Again = true
			return a
		}
		return answer{Reason: replayguard.AlreadyReceived, Cause: replayguard.CauseDuplicate, Until: e.request.ExpiresAt}
	}
	other := answer{Reason: replayguard.Other}
	c := m.client(r.Client)
	for ; c.at < m.now; c.at++ {
		c.units = min(c.units+modelRate, modelBurst*60)
	}
	c.at = m.now
	c.units = max(c.units-c.lapses*modelLapse*60, -modelBurst*60)
	c.lapses = 0
	if c.units < 60 {
		other.Cause = replayguard.CauseQuotaRate
		for units := c.units; units < 60; units += modelRate {
			other.RetryAfter += time.Second
		}
		return other
	}
	mine, first := 0, int64(0)
	for _, e := range m.all {
		if e.forgotten {
			continue
		}
		if e.request.Client == r.Client {
			mine++
		}
		if first == 0 || e.request.ExpiresAt < first {
			first = e.request.ExpiresAt
		}
	}
	switch {
	case mine >= modelMaxLive:
		other.Cause = replayguard.CauseQuotaLive
		return other
	case m.now < m.horizon:
		other.Cause = replayguard.CauseClockBack
		other.RetryAfter = time.Duration(m.horizon-m.now) * time.Second
		return other
	case m.liveCount() >= modelEntries:
		other.Cause = replayguard.CauseCapacity
		other.RetryAfter = time.Duration(first+1-m.now) * time.Second
		return other
	}
	c.units -= 60
	m.lastToken++
	e := &modelEntry{request: r, token: m.lastToken, reservedAt: m.now}
	m.all = append(m.all, e)
	return e.answer()
}

func (e *modelEntry) answer() answer {
	return answer{Token: e.token, ReservedAt: e.reservedAt, ExpiresAt: e.request.ExpiresAt, Outcome: e.outcome}
}

func (m *model) claimed(c modelClaim) *modelEntry {
	m.forget()
	e := m.live(c.id)
	if e == nil || e.token != c.modelToken || e.request.Client != c.client {
		return nil
	}
	return e
}

func (m *model) settle(c modelClaim, outcome replayguard.Outcome) answer {
	e := m.claimed(c)
	if e == nil {
		return answer{Gone: true}
	}
	if e.outcome == replayguard.Open {
		e.outcome = outcome
	}
	return e.answer()
}

func (m *model) extend(c modelClaim, expiresAt int64) answer {
	e := m.claimed(c)
	if e == nil || e.outcome != replayguard.Open {
		return answer{Gone: true}
	}
	if bad, ok := badExpiry(expiresAt, m.now); ok {
		return bad
	}
	if expiresAt < e.request.ExpiresAt || expiresAt-e.reservedAt > modelLifetime {
		return answer{Reason: replayguard.Invalid, Cause: replayguard.CauseExpiry}
	}
	e.request.ExpiresAt = expiresAt
	return e.answer()
}

func (m *model) release(c modelClaim) answer {
	e := m.claimed(c)
	if e == nil || e.outcome != replayguard.Open {
		return answer{Gone: true}
	}
	e.forgotten = true
	return answer{}
}

// randomClock reserves under a clock that jumps as it likes, and wants that an id is never admitted while a reservation of
// it has not expired by the clock of that moment.
func randomClock(t *testing.T, rt *rapid.T, newGuard Maker) {
	g := newGuard(t, unlimited(4))
	type admission struct {
		at, until int64
		token     replayguard.Token
	}
	last := map[replayguard.ID]admission{}
	now := int64(Start)
	for range rapid.IntRange(1, 60).Draw(rt, "calls") {
		switch rapid.IntRange(0, 4).Draw(rt, "what") {
		case 0:
			now += rapid.Int64Range(-3700, 3700).Draw(rt, "jump")
			g.Clock.Set(now)
		case 1:
			g.Forget(t)
		default:
			id := ID(rapid.IntRange(0, 5).Draw(rt, "id"))
			expiresAt := now + rapid.Int64Range(0, 1800).Draw(rt, "seconds")
			r, err := g.Store.Reserve(t.Context(), replayguard.Request{ID: id, ExpiresAt: expiresAt})
			if err != nil {
				continue
			}
			before, ok := last[id]
			if ok && now <= before.until {
				rt.Fatalf("id admitted at %s, while it is reserved until %s", second(now), second(before.until))
			}
			if ok && r.Token <= before.token {
				rt.Fatalf("token %d after %d", r.Token, before.token)
			}
			last[id] = admission{now, expiresAt, r.Token}
		}
	}
	g.Check(t)
}

func second(at int64) string { return fmt.Sprintf("%+d s", at-Start) }
