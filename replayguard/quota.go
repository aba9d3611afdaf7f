package replayguard

import (
	"fmt"
	"time"
)

// QuotaUse is how far the clients of a store use their quotas up, without telling who they are.
type QuotaUse struct {
	// HighestShare is the greatest share of its quota of live reservations that any client has: from 0 for none to 1 for all of them, and more
	// where the quota was lowered. A client without such a limit counts as 0.
	HighestShare float64
	// AtLimit is how many clients can't reserve another id now: they have as many as they may, or their rate or their standing has no room.
	AtLimit int
}

// Standing is what a Store remembers of one client.
type Standing struct {
	Client string
	// Live is the number of its live reservations, Lapses of those that lapsed and were not charged yet.
	Live, Lapses int64
	// Units is what it might reserve at once at FilledAt, in sixtieths of a reservation, and negative for debt; FilledAt is in seconds since 1970.
	Units, FilledAt int64
}

// QuotaUse is for the Stats of stores: the use that follows from the clients' standings at a time. Clients that hold nothing and owe nothing
// may be left out. The limits have their defaults.
func (l Limits) QuotaUse(standings []Standing, now int64) (QuotaUse, error) {
	var use QuotaUse
	for _, s := range standings {
		q, err := l.ClientQuota(s.Client)
		if err != nil {
			return QuotaUse{}, fmt.Errorf("replayguard: counting: %w", err)
		}
		full := false
		if q.MaxLive != NoLimit {
			use.HighestShare = max(use.HighestShare, float64(s.Live)/float64(q.MaxLive))
			full = s.Live >= int64(q.MaxLive)
		}
		if q.PerMinute != NoLimit {
			b := bucket{s.Units, s.FilledAt}
			b.fill(q, now)
			b.charge(q, s.Lapses)
			full = full || b.units < reservationUnits
		}
		if full {
			use.AtLimit++
		}
	}
	return use, nil
}

// A bucket counts in sixtieths of a reservation, so that a rate per minute adds whole units in each second.
const reservationUnits = 60

// bucket is what a client may still reserve at once. It fills with the quota's rate up to its burst. Debt makes it negative,
// to minus one burst at most, so that a client's standing always comes back within a known time.
type bucket struct {
	units    int64
	filledAt int64
}

func fullBucket(q Quota, now int64) bucket {
	return bucket{int64(q.Burst) * reservationUnits, now}
}

// fill adds what the time since the last filling brings. A clock that went back brings nothing, and counts anew from there.
func (b *bucket) fill(q Quota, now int64) {
	full, rate := int64(q.Burst)*reservationUnits, int64(q.PerMinute)
	if now > b.filledAt {
		if elapsed := distance(b.filledAt, now); elapsed > (full-b.units)/rate {
			b.units = full
		} else {
			b.units += elapsed * rate
		}
	}
	b.units, b.filledAt = min(b.units, full), now
}

// charge takes for lapsed reservations.
func (b *bucket) charge(q Quota, lapses int64) {
	floor := -int64(q.Burst) * reservationUnits
	lapses = min(lapses, 2*int64(q.Burst)) // more can't matter, and the product stays small
	b.units = max(floor, b.units-lapses*int64(q.LapseCost)*reservationUnits)
}

// take takes one reservation, or tells when there will be one.
func (b *bucket) take(q Quota) (retryAfter time.Duration, ok bool) {
	if b.units < reservationUnits {
		rate := int64(q.PerMinute)
		return time.Duration((reservationUnits-b.units+rate-1)/rate) * time.Second, false
	}
	b.units -= reservationUnits
	return 0, true
}
