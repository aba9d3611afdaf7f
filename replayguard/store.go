package replayguard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Store remembers reservations. Its methods are safe for concurrent use.
//
// An error that is not one of those named is a failure of the store itself: whether the call had its effect is then unknown.
// A holder with a Key asks again and learns it.
type Store interface {
	// Reserve reserves an id for a client until the expiry. A *Refusal says why not.
	Reserve(ctx context.Context, r Request) (Reservation, error)
	// Settle records the outcome, so that the reservation no longer lapses. The id stays reserved until its expiry. Settling
	// again changes nothing. ErrNoReservation: it lapsed, or was never this client's under this token.
	Settle(ctx context.Context, c Claim, outcome Outcome) (Reservation, error)
	// Extend moves the expiry ahead, within Limits.MaxTTL from now and Limits.MaxLifetime from the beginning; beyond them,
	// or back, a *Refusal. ErrNoReservation as for Settle, and also for one that is settled.
	Extend(ctx context.Context, c Claim, expiresAt int64) (Reservation, error)
	// Release forgets a reservation before its expiry, so that the id may be reserved anew. It is for the one case in which
	// the request provably never left, and goes beyond the contract: without Limits.AllowRelease it is a *Refusal.
	// ErrNoReservation as for Extend.
	Release(ctx context.Context, c Claim) error
	// Stats counts. For metrics.
	Stats(ctx context.Context) (Stats, error)
}

// ErrNoReservation says that a claim names no live reservation of its client. Whether another holds one is not told.
var ErrNoReservation = errors.New("replayguard: no such reservation: it has lapsed or was released, or never was this client's under this token")

// MaxClientBytes is how long a client's name may be.
const MaxClientBytes = 512

// Request asks for a reservation.
type Request struct {
	// Client is who asks, at most MaxClientBytes. It is what quotas count by, so it must come from an authentication.
	Client string
	ID     ID
	// ExpiresAt is until when, in seconds since 1970, included.
	ExpiresAt int64
	// Key is the holder's idempotency key, or the zero Key. Another client's key never opens a reservation.
	Key Key
}

// Check refuses a request that breaks a rule of form.
func (r Request) Check() error {
	if len(r.Client) > MaxClientBytes {
		return &Refusal{Reason: Invalid, Cause: CauseRequest, Err: fmt.Errorf("the client's name has %d bytes; at most %d", len(r.Client), MaxClientBytes)}
	}
	return nil
}

// Token is a fencing token: the later of two reservations of an id has the greater one. It is positive.
type Token int64

// Outcome is how a reservation ended.
type Outcome uint8

// The outcomes.
const (
	Open      Outcome = iota // not settled
	Committed                // the holder's submission was committed
	Consumed                 // the digest was seen consumed on the ledger, by whomever
)

func (o Outcome) String() string {
	switch o {
	case Open:
		return "open"
	case Committed:
		return "committed"
	case Consumed:
		return "consumed"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Check refuses what a reservation can't be settled with.
func (o Outcome) Check() error {
	if o != Committed && o != Consumed {
		return &Refusal{Reason: Invalid, Cause: CauseRequest, Err: fmt.Errorf("a reservation is settled as committed or consumed, not as %v", o)}
	}
	return nil
}

// Reservation is an id's reservation. Times are in seconds since 1970.
type Reservation struct {
	ID         ID
	Token      Token
	ReservedAt int64
	ExpiresAt  int64
	Outcome    Outcome
	// Again says that this is the holder's earlier reservation, given back for its key.
	Again bool
	// TookOver says that the id had a reservation that lapsed unsettled. It is told only where the lapsed one had not been
	// forgotten yet: a hint for metrics.
	TookOver bool
	// Age is for how many seconds it was reserved by the store's clock when it was settled. Settle tells it, nothing else.
	Age int64
}

// Claim names a reservation, as its holder does.
type Claim struct {
	Client string
	ID     ID
	Token  Token
}

// Stats are counts of a store.
type Stats struct {
	// Live is the number of live reservations.
	Live int
	// Clients is the number of clients that are remembered.
	Clients int
	// Lapsed is how many reservations were forgotten unsettled since the store began. A store may forget later than at the
	// expiry.
	Lapsed int64
	// Quotas is how far the clients use their quotas up.
	Quotas QuotaUse
}

// NoLimit as a Quota's MaxLive or PerMinute sets none.
const NoLimit = math.MaxInt32

// DefaultMaxEntries is the capacity where none is set.
const DefaultMaxEntries = 10_000

// unlimitedTTL is the greatest duration: about 292 years.
const unlimitedTTL time.Duration = math.MaxInt64

// Limits bound a store. A field that is 0 has its default; a negative one is a fault.
type Limits struct {
	// MaxEntries is how many reservations are retained at most; by default DefaultMaxEntries.
	MaxEntries int
	// MaxTTL is how far ahead an expiry may lie, at least a second; by default DefaultMaxTTL. Where a Config validates by
	// another machine's clock, the store's MaxTTL should be greater than the validator's by what the two clocks may differ.
	MaxTTL time.Duration
	// MaxLifetime is how far from its beginning a reservation may be extended; by default four times MaxTTL.
	MaxLifetime time.Duration
	// Quota is each client's, unless QuotaFor says otherwise.
	Quota Quota
	// QuotaFor, if set, gives a client's own quota. It is asked at each reservation, by many goroutines at once.
	QuotaFor func(client string) Quota
	// AllowRelease turns Release on.
	AllowRelease bool
}

// Quota bounds one client. A field that is 0 has its default; a negative one is a fault.
type Quota struct {
	// MaxLive is how many live reservations the client may have; by default a quarter of Limits.MaxEntries.
	MaxLive int
	// PerMinute is how many it may make per minute; by default 600.
	PerMinute int
	// Burst is how many it may make at once after a pause; by default a minute's worth.
	Burst int
	// LapseCost is how many reservations a lapsed, unsettled one counts as, beside itself; by default 2. It is charged when
	// the client next asks. The debt is at most one Burst.
	LapseCost int
}

// WithDefaults fills in the defaults, or says which field is a fault.
func (l Limits) WithDefaults() (Limits, error) {
	if l.MaxEntries < 0 {
		return l, fmt.Errorf("the greatest number of entries is %d", l.MaxEntries)
	}
	if l.MaxEntries == 0 {
		l.MaxEntries = DefaultMaxEntries
	}
	maxTTL, err := wholeSeconds("the greatest time to live", l.MaxTTL, DefaultMaxTTL)
	if err != nil {
		return l, err
	}
	l.MaxTTL = time.Duration(maxTTL) * time.Second
	fourfold := unlimitedTTL
	if l.MaxTTL <= unlimitedTTL/4 {
		fourfold = 4 * l.MaxTTL
	}
	lifetime, err := wholeSeconds("the greatest lifetime", l.MaxLifetime, fourfold)
	if err != nil {
		return l, err
	}
	l.MaxLifetime = time.Duration(lifetime) * time.Second
	l.Quota, err = l.Quota.withDefaults(l.MaxEntries)
	return l, err
}

// ClientQuota is a client's quota with its defaults filled in, in limits that have theirs. A quota that is a fault is a
// *Refusal.
func (l Limits) ClientQuota(client string) (Quota, error) {
	if l.QuotaFor == nil {
		return l.Quota, nil
	}
	q, err := l.QuotaFor(client).withDefaults(l.MaxEntries)
	if err != nil {
		return q, configurationFault(fmt.Errorf("the quota of client %q: %w", client, err))
	}
	return q, nil
}

// ClientIdle is for how long a client without live reservations must have asked for nothing before it may be forgotten: an
// hour, or the time in which the usual quota pays back the greatest debt.
func (l Limits) ClientIdle() time.Duration {
	recovery := 2 * int64(l.Quota.Burst) * 60 / int64(l.Quota.PerMinute) // seconds, less than 2^39
	return max(time.Hour, time.Duration(min(recovery, int64(unlimitedTTL/time.Second)))*time.Second)
}

func (q Quota) withDefaults(maxEntries int) (Quota, error) {
	for _, field := range []struct {
		name      string
		value     *int
		byDefault func() int
	}{
		{"MaxLive", &q.MaxLive, func() int { return max(1, maxEntries/4) }},
		{"PerMinute", &q.PerMinute, func() int { return 600 }},
		{"Burst", &q.Burst, func() int { return q.PerMinute }},
		{"LapseCost", &q.LapseCost, func() int { return 2 }},
	} {
		switch v := *field.value; {
		case v < 0 || v > NoLimit:
			return q, fmt.Errorf("%s is %d; want 0 for the default, or 1 to %d", field.name, v, NoLimit)
		case v == 0:
			*field.value = min(field.byDefault(), NoLimit)
		}
	}
	return q, nil
}
