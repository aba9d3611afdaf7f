package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/disclosured/disclosured/internal/wormhole"
	"github.com/disclosured/disclosured/replayguard"
)

// LocalGuardOptions are how a guard within this process works. Zero values are the defaults given.
type LocalGuardOptions struct {
	GuardOptions
	// Store remembers the reservations; nil is a replayguard.Memory of this guard's own, without quotas. A store that is shared,
	// replayguard/postgres's say, makes this a guard of several processes; one that fails is treated as a guard that can't be had.
	Store replayguard.Store
	// Client is whose quota in the store counts.
	Client string
	// MaxEntries is the own memory's capacity; 0 is replayguard.DefaultMaxEntries. A Store has its own.
	MaxEntries int
	// MaxTTL is how far ahead expiries may lie; 0 is replayguard.DefaultMaxTTL. A Store has its own besides.
	MaxTTL time.Duration
	// Clock is the clock; nil is time.Now.
	Clock func() time.Time
	// Authenticate is asked before a reservation, if it is set; an error refuses the submission. Relayer verifies before it asks, and needs
	// none.
	Authenticate func(ctx context.Context, s Submission) error
}

// localGuard is a guard over a replayguard.Config.
type localGuard struct {
	options    LocalGuardOptions
	config     replayguard.Config
	connection replayguard.Connection
}

// NewLocalGuard makes a guard within this process: a replayguard.Config, shared by all who use the guard. It refuses options that
// would make one that refuses everything.
//
// Its memory ends with the process, and nobody else knows of it. Where several processes relay the same messages, share a store, or use
// NewRemoteGuard.
func NewLocalGuard(options LocalGuardOptions) (Guard, error) {
	if err := options.setDefaults(); err != nil {
		return nil, fmt.Errorf("local guard: %w", err)
	}
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.MaxTTL == 0 {
		options.MaxTTL = replayguard.DefaultMaxTTL
	}
	switch {
	case options.TTL > options.MaxTTL:
		return nil, fmt.Errorf("local guard: the time to live is %v, the greatest one %v", options.TTL, options.MaxTTL)
	case options.Store == nil:
		limits, err := replayguard.Limits{
			MaxEntries: options.MaxEntries, MaxTTL: options.MaxTTL,
			Quota: replayguard.Quota{MaxLive: replayguard.NoLimit, PerMinute: replayguard.NoLimit}, AllowRelease: options.Release,
		}.WithDefaults()
		if err != nil {
			return nil, fmt.Errorf("local guard: %w", err)
		}
		options.Store = replayguard.NewMemory(limits, options.Clock)
	case options.MaxEntries != 0:
		return nil, errors.New("local guard: MaxEntries is set beside a Store, which has its own")
	}
	g := &localGuard{options: options}
	g.config = replayguard.NewConfig(
		replayguard.WithSubmitMessageFunc(submitJob),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(g.authenticate)),
		replayguard.WithTTLValidator(replayguard.NewTTLValidator(options.MaxTTL)),
		replayguard.WithStore(options.Store),
		replayguard.WithClock(options.Clock),
	)
	if err := g.config.Validate(); err != nil {
		return nil, fmt.Errorf("local guard: %w", err)
	}
	g.connection = g.config.Connection(options.Client)
	return g, nil
}

// guardJob is the payload of a message: the one call of Admit that it belongs to.
type guardJob struct {
	g         *localGuard
	s         *Submission
	begun     time.Time
	run       func(context.Context, Admission) Ending
	admission Admission
}

// Admit is Guard's.
func (g *localGuard) Admit(ctx context.Context, s Submission, run func(context.Context, Admission) Ending) (Admission, error) {
	g.options.complete(&s, g.options.Clock())
	job := &guardJob{g: g, s: &s, begun: time.Now(), run: run}
	ran, err := g.connection.Submit(ctx, replayguard.Message{ID: s.Subject.ID(), ExpiresAt: s.ExpiresAt.Unix(), Payload: job})
	if ran {
		return job.admission, err
	}
	refusal := (*replayguard.Refusal)(nil)
	if !errors.As(err, &refusal) {
		if ctx.Err() != nil {
			a, err := refuse(reasonCancelled, 0, context.Cause(ctx))
			return g.options.decided(&s, job.begun, a, err)
		}
		return g.options.unguarded(ctx, &s, job.begun, fmt.Errorf("the guard's store failed: %w", err), run)
	}
	if refusal.Reason == replayguard.AlreadyReceived {
		return g.options.decided(&s, job.begun, Admission{Decision: AlreadyReceived, ExpiresAt: time.Unix(refusal.ExpiresAt, 0)}, nil)
	}
	a, err := refuse(reasonOfRefusal(refusal), refusal.RetryAfter, refusal)
	return g.options.decided(&s, job.begun, a, err)
}

// reasonOfRefusal names a refusal as the service does.
func reasonOfRefusal(r *replayguard.Refusal) string {
	switch r.Reason {
	case replayguard.NotAuthenticated:
		return "NOT_AUTHENTIC"
	case replayguard.Expired:
		return "EXPIRED"
	case replayguard.Invalid:
		if r.Cause == replayguard.CauseExpiry {
			return "EXPIRY_INVALID"
		}
		return "INVALID_FIELD"
	}
	switch r.Cause {
	case replayguard.CauseCapacity:
		return reasonCapacity
	case replayguard.CauseQuotaLive, replayguard.CauseQuotaRate:
		return reasonQuota
	case replayguard.CauseClockBack:
		return reasonClock
	default:
		return reasonConfiguration
	}
}

// authenticate checks that the VAA is the digest's, so that a mistake of the caller's reserves nobody else's id, and asks who verifies.
func (g *localGuard) authenticate(ctx context.Context, m replayguard.Message) error {
	s := m.Payload.(*guardJob).s
	if len(s.VAA) > 0 {
		vaa, err := wormhole.ParseVAA(s.VAA)
		if err != nil {
			return err
		}
		if vaa.Digest() != wormhole.Digest(s.Subject.Digest) {
			return fmt.Errorf("the VAA's digest is %s, not %x", vaa.Digest(), s.Subject.Digest[:])
		}
	}
	if g.options.Authenticate == nil {
		return nil
	}
	return g.options.Authenticate(ctx, *s)
}

// submitJob is the Config's submit function.
func submitJob(ctx context.Context, m replayguard.Message, r replayguard.Reservation) error {
	job := m.Payload.(*guardJob)
	g := job.g
	h := &localHolding{store: g.options.Store, timeout: g.options.CallTimeout, claim: replayguard.Claim{Client: m.Client, ID: r.ID, Token: r.Token}}
	admission := Admission{Decision: Admitted, ExpiresAt: time.Unix(r.ExpiresAt, 0), Token: int64(r.Token)}
	var err error
	job.admission, err = g.options.hold(ctx, job.s, job.begun, h, admission, job.run)
	return err
}

// localHolding is a reservation in a store.
type localHolding struct {
	store   replayguard.Store
	timeout time.Duration
	claim   replayguard.Claim
}

func (h *localHolding) extend(ctx context.Context, until time.Time) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	r, err := h.store.Extend(ctx, h.claim, until.Unix())
	if errors.Is(err, replayguard.ErrNoReservation) || errors.As(err, new(*replayguard.Refusal)) {
		err = fmt.Errorf("%w: %w", errNotExtendable, err)
	}
	return time.Unix(r.ExpiresAt, 0), err
}

func (h *localHolding) settle(ctx context.Context, committed bool) error {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	outcome := replayguard.Consumed
	if committed {
		outcome = replayguard.Committed
	}
	_, err := h.store.Settle(ctx, h.claim, outcome)
	return err
}

func (h *localHolding) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	err := h.store.Release(ctx, h.claim)
	refusal := (*replayguard.Refusal)(nil)
	if errors.As(err, &refusal) && refusal.Cause == replayguard.CauseConfiguration {
		return nil
	}
	return err
}
