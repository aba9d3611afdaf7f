package replayguard

import "time"

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
