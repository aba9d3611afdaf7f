package replayguard

import (
	"fmt"
	"time"
)

// Reason is why a message was refused. The zero Reason is none of them.
type Reason uint8

// The reasons. All but NotAuthenticated have a code in CIP-0137's local message submission protocol, see WireCode.
const (
	// Invalid says that the message breaks a rule, whenever it is sent.
	Invalid Reason = iota + 1
	// AlreadyReceived says that the id is reserved and unexpired.
	AlreadyReceived
	// Expired says that the message's expiry is past.
	Expired
	// Other says that the guard can't take the message now: capacity, quota, a clock that went back, or a guard that is not
	// configured. See Cause.
	Other
	// NotAuthenticated says that the authenticator did not accept the message.
	NotAuthenticated
)

func (r Reason) String() string {
	switch r {
	case Invalid:
		return "invalid"
	case AlreadyReceived:
		return "already received"
	case Expired:
		return "expired"
	case Other:
		return "other"
	case NotAuthenticated:
		return "not authenticated"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// WireCode is the reason's code in CIP-0137: 0 invalid, 1 already received, 2 expired, 3 other. A message that is not
// authenticated is invalid there. A value that is no Reason is told as other, the one that promises nothing.
func (r Reason) WireCode() uint8 {
	switch r {
	case Invalid, NotAuthenticated:
		return 0
	case AlreadyReceived:
		return 1
	case Expired:
		return 2
	}
	return 3
}

// ReasonOfWire is the reason with a code of CIP-0137. A code beyond 3 is an error: a peer that speaks of what we don't know
// is not to be taken for one that said "other".
func ReasonOfWire(code uint8) (Reason, error) {
	reasons := [...]Reason{Invalid, AlreadyReceived, Expired, Other}
	if int(code) >= len(reasons) {
		return 0, fmt.Errorf("replayguard: unknown reject reason %d", code)
	}
	return reasons[code], nil
}

// Cause says more closely what a refusal is for. The values are stable: they may be labels of metrics and codes of answers.
type Cause string

// The causes.
const (
	CauseRequest        Cause = "request"        // Invalid: the client's name is too long
	CauseExpiry         Cause = "expiry"         // Invalid or Expired: the expiry itself
	CauseDuplicate      Cause = "duplicate"      // AlreadyReceived
	CauseAuthentication Cause = "authentication" // NotAuthenticated
	CauseCapacity       Cause = "capacity"       // Other: the store is full
	CauseQuotaLive      Cause = "quota_live"     // Other: the client has as many live reservations as it may
	CauseQuotaRate      Cause = "quota_rate"     // Other: the client asks faster than it may, or its standing is low
	CauseClockBack      Cause = "clock_back"     // Other: the clock went back, and the id may be one that was forgotten
	CauseConfiguration  Cause = "configuration"  // Other: the guard lacks a part, or its limits make no sense
)

// Refusal is the error for a message that was not admitted. The submit function has not run, and nothing was reserved.
type Refusal struct {
	Reason Reason
	Cause  Cause
	// ExpiresAt is until when the id is reserved, in seconds since 1970; set for AlreadyReceived alone.
	ExpiresAt int64
	// RetryAfter is when the same may be admitted, at the earliest. 0 where the guard does not know.
	RetryAfter time.Duration
	// Err is what the authenticator, the validator or the check of the configuration said, or nil.
	Err error
}

func (r *Refusal) Error() string {
	text := "replayguard: " + r.Reason.String()
	switch r.Cause {
	case CauseDuplicate:
		text += fmt.Sprintf(": reserved until second %d", r.ExpiresAt)
	case CauseClockBack:
		text += ": the clock went back, and the id may be one that was forgotten"
	case CauseCapacity:
		text += ": the guard is full"
	case CauseQuotaLive:
		text += ": the client has as many live reservations as it may have"
	case CauseQuotaRate:
		text += ": the client asks faster than it may"
	}
	if r.Err != nil {
		text += ": " + r.Err.Error()
	}
	return text
}

// Unwrap is Err.
func (r *Refusal) Unwrap() error { return r.Err }
