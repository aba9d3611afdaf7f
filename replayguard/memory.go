package replayguard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// Memory is a Store in this process. The package comment tells how it works.
type Memory struct {
	limits              Limits
	maxTTL, maxLifetime int64
	fault               error
	clock               func() time.Time

	mu       sync.Mutex
	entries  map[ID]slot
	expiries expiries
	clients  map[string]*client
	// clientsAfterSweep is how many clients were left when idle ones were last looked for.
	clientsAfterSweep int
	// horizon is the second after the greatest expiry that was forgotten. Before it, an id that is not found may be a live
	// one.
	horizon   int64
	lastToken Token
	lapsed    int64
}

// client is what is remembered of one client that has reserved something.
type client struct {
	name   string
	live   int
	lapses int64 // that are not charged yet
	bucket bucket
}

var _ Store = (*Memory)(nil)

// NewMemory makes an empty store; clock is time.Now where nil. Limits that make no sense make a store that refuses every
// reservation; ask Limits.WithDefaults first to know.
//
// Tokens begin at the clock's nanoseconds and not at 1. A process makes fewer reservations than nanoseconds pass, so a token of an earlier
// process is smaller than all of a later one's, however soon that begins; unless the clock goes back between the two.
func NewMemory(limits Limits, clock func() time.Time) *Memory {
	if clock == nil {
		clock = time.Now
	}
	full, err := limits.WithDefaults()
	first := int64(math.MaxInt64 / 2) // in the year 2116 and later, and never less than before
	if begun := clock(); begun.Before(time.Unix(0, first)) {
		first = max(0, begun.Unix())*int64(time.Second) + int64(begun.Nanosecond())
	}
	return &Memory{
		limits:      full,
		maxTTL:      int64(full.MaxTTL / time.Second),
		maxLifetime: int64(full.MaxLifetime / time.Second),
		fault:       err,
		clock:       clock,
		entries:     map[ID]slot{},
		expiries:    expiries{at: map[int64]*second{}},
		clients:     map[string]*client{},
		horizon:     math.MinInt64,
		lastToken:   Token(first),
	}
}

// Reserve is Store.Reserve.
func (m *Memory) Reserve(ctx context.Context, r Request) (Reservation, error) {
	if err := ctx.Err(); err != nil {
		return Reservation{}, fmt.Errorf("replayguard: reserving: %w", err)
	}
	if m.fault != nil {
		return Reservation{}, configurationFault(m.fault)
	}
	if err := r.Check(); err != nil {
		return Reservation{}, err
	}
	quota, err := m.limits.ClientQuota(r.Client)
	if err != nil {
		return Reservation{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// The clock is read under the lock: a call that waited must not decide by the time before.
	now := m.clock().Unix()
	if refusal := checkExpiry(r.ExpiresAt, now, m.maxTTL); refusal != nil {
		return Reservation{}, refusal
	}
	found, ok := m.entries[r.ID]
	m.prune(now)
	if ok && found.expiresAt >= now { // it was not pruned
		return found.asked(r)
	}
	tookOver := ok && found.outcome == Open

	holder, err := m.admit(r, quota, now)
	if err != nil {
		return Reservation{}, err
	}
	m.lastToken++
	e := &entry{id: r.ID, key: r.Key, holder: holder, token: m.lastToken, reservedAt: now}
	holder.live++
	m.entries[r.ID] = slot{e, r.ExpiresAt}
	m.expiries.add(e, r.ExpiresAt)
	reservation := e.reservation()
	reservation.TookOver = tookOver
	return reservation, nil
}

// asked answers a request for an id that is reserved: its holder gets its reservation, everybody else, and a holder that
// does not say its key, does not.
func (s slot) asked(r Request) (Reservation, error) {
	if r.Key != (Key{}) && r.Key == s.key && r.Client == s.holder.name {
		reservation := s.reservation()
		reservation.Again = true
		return reservation, nil
	}
	return Reservation{}, &Refusal{Reason: AlreadyReceived, Cause: CauseDuplicate, ExpiresAt: s.expiresAt}
}

// admit decides whether a client may reserve a new id: its quota, the horizon, the capacity. Where it may, the client has
// paid, and is remembered. A refused client pays nothing, and one that never reserved is not remembered.
func (m *Memory) admit(r Request, quota Quota, now int64) (*client, error) {
	holder, known := m.clients[r.Client]
	if !known {
		holder = &client{name: r.Client, bucket: fullBucket(quota, now)}
	}
	after := holder.bucket
	if quota.PerMinute == NoLimit {
		after.filledAt = now
	} else {
		after.fill(quota, now)
		after.charge(quota, holder.lapses)
		holder.bucket, holder.lapses = after, 0
		if retryAfter, ok := after.take(quota); !ok {
			return nil, &Refusal{Reason: Other, Cause: CauseQuotaRate, RetryAfter: retryAfter}
		}
	}
	if quota.MaxLive != NoLimit && holder.live >= quota.MaxLive {
		return nil, &Refusal{Reason: Other, Cause: CauseQuotaLive}
	}
	if now < m.horizon {
		return nil, &Refusal{Reason: Other, Cause: CauseClockBack, RetryAfter: seconds(distance(now, m.horizon))}
	}
	if len(m.entries) >= m.limits.MaxEntries {
		return nil, &Refusal{Reason: Other, Cause: CauseCapacity, RetryAfter: seconds(distance(now, m.expiries.next().second.at) + 1)}
	}
	holder.bucket = after
	if !known {
		m.forgetIdleClients(now)
		m.clients[r.Client] = holder
	}
	return holder, nil
}

// prune forgets what has expired.
func (m *Memory) prune(now int64) {
	for e := m.expiries.next(); e != nil && e.second.at < now; e = m.expiries.next() {
		m.horizon = e.second.at + 1
		if e.outcome == Open {
			e.holder.lapses++
			m.lapsed++
		}
		m.forget(e)
	}
}

func (m *Memory) forget(e *entry) {
	e.holder.live--
	m.expiries.remove(e)
	delete(m.entries, e.id)
}

// forgetIdleClients looks for clients that may be forgotten, whenever the number of clients has doubled, so that the looking
// costs each new client a constant.
func (m *Memory) forgetIdleClients(now int64) {
	const few = 64
	if len(m.clients) < max(few, 2*m.clientsAfterSweep) {
		return
	}
	idle := int64(m.limits.ClientIdle() / time.Second)
	for name, c := range m.clients {
		if c.live == 0 && now > c.bucket.filledAt && distance(c.bucket.filledAt, now) > idle {
			delete(m.clients, name)
		}
	}
	m.clientsAfterSweep = len(m.clients)
}

// Prune forgets what has expired, as each reservation does too, and gives the number of live reservations.
func (m *Memory) Prune() (live int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune(m.clock().Unix())
	return len(m.entries)
}

// Settle is Store.Settle.
func (m *Memory) Settle(ctx context.Context, c Claim, outcome Outcome) (Reservation, error) {
	if err := outcome.Check(); err != nil {
		return Reservation{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock().Unix()
	e, err := m.claimed(ctx, c, now)
	if err != nil {
		return Reservation{}, err
	}
	if e.outcome == Open {
		e.outcome = outcome
	}
	settled := e.reservation()
	settled.Age = max(0, now-e.reservedAt)
	return settled, nil
}

// Extend is Store.Extend.
func (m *Memory) Extend(ctx context.Context, c Claim, expiresAt int64) (Reservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock().Unix()
	e, err := m.claimed(ctx, c, now)
	if err != nil {
		return Reservation{}, err
	}
	if e.outcome != Open {
		return Reservation{}, ErrNoReservation
	}
	if refusal := checkExpiry(expiresAt, now, m.maxTTL); refusal != nil {
		return Reservation{}, refusal
	}
	if expiresAt < e.second.at {
		return Reservation{}, &Refusal{Reason: Invalid, Cause: CauseExpiry, Err: errShortened}
	}
	if distance(e.reservedAt, expiresAt) > m.maxLifetime {
		return Reservation{}, &Refusal{Reason: Invalid, Cause: CauseExpiry, Err: errLifetime}
	}
	if expiresAt != e.second.at {
		m.expiries.remove(e)
		m.expiries.add(e, expiresAt)
		m.entries[e.id] = slot{e, expiresAt}
	}
	return e.reservation(), nil
}

var (
	errShortened  = errors.New("the expiry lies before the reservation's own; extending never shortens")
	errLifetime   = errors.New("the reservation would live longer than it may in all")
	errReleaseOff = errors.New("releasing is off")
)

// Release is Store.Release.
func (m *Memory) Release(ctx context.Context, c Claim) error {
	if !m.limits.AllowRelease {
		return configurationFault(errReleaseOff)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.claimed(ctx, c, m.clock().Unix())
	if err != nil {
		return err
	}
	if e.outcome != Open {
		return ErrNoReservation
	}
	m.forget(e)
	return nil
}

// claimed is the live entry that a claim names.
func (m *Memory) claimed(ctx context.Context, c Claim, now int64) (*entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("replayguard: finding a reservation: %w", err)
	}
	m.prune(now)
	e := m.entries[c.ID].entry
	if e == nil || e.token != c.Token || e.holder.name != c.Client {
		return nil, ErrNoReservation
	}
	return e, nil
}

func (e *entry) reservation() Reservation {
	return Reservation{ID: e.id, Token: e.token, ReservedAt: e.reservedAt, ExpiresAt: e.second.at, Outcome: e.outcome}
}

// Stats is Store.Stats.
func (m *Memory) Stats(ctx context.Context) (Stats, error) {
	if err := ctx.Err(); err != nil {
		return Stats{}, fmt.Errorf("replayguard: counting: %w", err)
	}
	if m.fault != nil {
		return Stats{}, nil
	}
	stats, standings, now := m.count()
	// Limits.QuotaFor is not ours, and may take its time: it is not called under the lock.
	var err error
	stats.Quotas, err = m.limits.QuotaUse(standings, now)
	return stats, err
}

// count counts, and gives the standing of each client.
func (m *Memory) count() (stats Stats, standings []Standing, now int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now = m.clock().Unix()
	m.prune(now)
	standings = make([]Standing, 0, len(m.clients))
	for _, c := range m.clients {
		standings = append(standings, Standing{Client: c.name, Live: int64(c.live), Lapses: c.lapses, Units: c.bucket.units, FilledAt: c.bucket.filledAt})
	}
	return Stats{Live: len(m.entries), Clients: len(m.clients), Lapsed: m.lapsed}, standings, now
}
