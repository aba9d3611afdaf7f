package replayguard

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// DefaultMaxTTL is how far ahead an expiry may lie where nothing else is set: 30 minutes, as in CIP-0137.
const DefaultMaxTTL = 30 * time.Minute

// ErrExpired is wrapped by a validator's error for a message whose expiry is past; the Refusal's reason is then Expired,
// else Invalid.
var ErrExpired = errors.New("the message has expired")

// TTLValidator decides whether a message's expiry is acceptable at a time. It is asked twice per submission, and by many
// goroutines at once.
type TTLValidator interface {
	ValidateTTL(m Message, now time.Time) error
}

// MaxTTL is the usual validator: an expiry is acceptable from now to a greatest distance ahead.
type MaxTTL struct {
	seconds int64
	fault   error
}

// NewTTLValidator makes a validator with a greatest distance ahead. It is cut to whole seconds; 0 is DefaultMaxTTL. Less
// than a second, or less than nothing, can't have been meant: a Config with such a validator refuses everything, and
// [Config.Validate] says so.
func NewTTLValidator(greatest time.Duration) *MaxTTL {
	seconds, err := wholeSeconds("the greatest time to live", greatest, DefaultMaxTTL)
	return &MaxTTL{seconds, err}
}

// ValidateTTL is nil where the message's expiry lies between now and the greatest distance ahead, both included.
func (v *MaxTTL) ValidateTTL(m Message, now time.Time) error {
	if v.fault != nil {
		return v.fault
	}
	if refusal := checkExpiry(m.ExpiresAt, now.Unix(), v.seconds); refusal != nil {
		return refusal.Err
	}
	return nil
}

// CheckExpiry decides about an expiry at a time, both in seconds since 1970: nil where it lies between now and maxTTL ahead,
// else a *Refusal that is Invalid or Expired. Stores decide by it, each at its own clock's time.
func CheckExpiry(expiresAt, now int64, maxTTL time.Duration) error {
	if refusal := checkExpiry(expiresAt, now, int64(maxTTL/time.Second)); refusal != nil {
		return refusal
	}
	return nil
}

// checkExpiry decides about an expiry at a time, all in seconds: nil, or Invalid or Expired.
func checkExpiry(expiresAt, now, maxTTL int64) *Refusal {
	switch {
	case expiresAt <= 0:
		return &Refusal{Reason: Invalid, Cause: CauseExpiry, Err: fmt.Errorf("the expiry is %d; want a time after 1970", expiresAt)}
	case expiresAt < now:
		return &Refusal{Reason: Expired, Cause: CauseExpiry, Err: fmt.Errorf("%w: at %d, now %d", ErrExpired, expiresAt, now)}
	case distance(now, expiresAt) > maxTTL:
		return &Refusal{Reason: Invalid, Cause: CauseExpiry, Err: fmt.Errorf("the expiry %d is too far ahead: at most %d s after now, %d", expiresAt, maxTTL, now)}
	}
	return nil
}

// distance is to - from for from ≤ to, or the greatest int64 where it is greater than that.
func distance(from, to int64) int64 {
	if d := to - from; d >= 0 {
		return d
	}
	return math.MaxInt64
}

// seconds is a number of seconds as a duration, or the greatest duration where there are more.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second
}

// wholeSeconds is a setting in seconds, or its default where it is 0.
func wholeSeconds(name string, d, byDefault time.Duration) (int64, error) {
	switch {
	case d == 0:
		return int64(byDefault / time.Second), nil
	case d < time.Second:
		return 0, fmt.Errorf("%s is %v; want at least 1s, or 0 for %v", name, d, byDefault)
	}
	return int64(d / time.Second), nil
}
