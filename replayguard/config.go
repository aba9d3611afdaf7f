package replayguard

import (
	"context"
	"errors"
	"reflect"
	"time"
)

// Message is what is submitted.
type Message struct {
	// ID is the identity of what is submitted, computed by the receiver and never taken from the sender's word.
	ID ID
	// ExpiresAt is until when the message is valid and its id stays reserved, in seconds since 1970.
	ExpiresAt int64
	// Client is who submits. The connection sets it; what a sender wrote there is lost.
	Client string
	// Payload is for the authenticator and the submit function. The guard does not look at it.
	Payload any
}

// SubmitMessageFunc submits a message whose id was reserved. It is called once per reservation, from the goroutine that
// called Submit, with that call's context, and by many goroutines at once.
type SubmitMessageFunc func(ctx context.Context, m Message, r Reservation) error

// Authenticator decides whether a message is what it claims to be: that its sender may send it, that its payload is genuine,
// and that its ID is the payload's. An error refuses it. It is asked by many goroutines at once.
type Authenticator interface {
	Authenticate(ctx context.Context, m Message) error
}

// AuthenticatorFunc is a function as an Authenticator.
type AuthenticatorFunc func(ctx context.Context, m Message) error

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(ctx context.Context, m Message) error { return f(ctx, m) }

// Config is a guarded submit function. Copies share one memory of ids; Configs made separately share none, unless they were
// given one store. It is safe for concurrent use. The zero Config refuses everything.
type Config struct{ guard *guard }

type guard struct {
	submit        SubmitMessageFunc
	authenticator Authenticator
	validator     TTLValidator
	maxEntries    int
	maxEntriesSet bool
	store         Store
	storeSet      bool
	clock         func() time.Time
	fault         error
}

// Option is a part of a Config.
type Option func(*guard)

// WithSubmitMessageFunc sets what is guarded. It is required.
func WithSubmitMessageFunc(submit SubmitMessageFunc) Option {
	return func(g *guard) { g.submit = submit }
}

// WithAuthenticator sets who decides what is genuine. It is required: a guard that reserves what nobody has authenticated
// lets a forged copy block the genuine message.
func WithAuthenticator(a Authenticator) Option {
	return func(g *guard) { g.authenticator = a }
}

// WithTTLValidator sets who decides about expiries, instead of NewTTLValidator(0). A validator without an upper bound makes
// entries that stay as long.
func WithTTLValidator(v TTLValidator) Option {
	return func(g *guard) { g.validator = v }
}

// WithMaxReplayEntries sets how many ids are retained at most; 0 is DefaultMaxEntries. A negative number refuses every
// message once it is authenticated. It bounds retained ids, not submissions under way.
func WithMaxReplayEntries(n int) Option {
	return func(g *guard) { g.maxEntries, g.maxEntriesSet = n, true }
}

// WithStore sets where ids are remembered, instead of in this process. The store has its own limits, so WithMaxReplayEntries
// beside it is a fault.
func WithStore(s Store) Option {
	return func(g *guard) { g.store, g.storeSet = s, true }
}

// WithClock sets the clock of the validation and of the Config's own memory, instead of time.Now.
func WithClock(now func() time.Time) Option {
	return func(g *guard) { g.clock = now }
}

// NewConfig makes a Config with a memory of its own. A part that is missing or nil makes one that refuses everything; see
// Validate.
func NewConfig(options ...Option) Config {
	g := &guard{validator: NewTTLValidator(0), clock: time.Now}
	for _, option := range options {
		option(g)
	}
	g.fault = g.check()
	if !g.storeSet && g.fault == nil {
		// The validator decides about expiries, and without clients there are no quotas: capacity is the one limit left.
		g.store = NewMemory(Limits{
			MaxEntries: g.maxEntries,
			MaxTTL:     unlimitedTTL,
			Quota:      Quota{MaxLive: NoLimit, PerMinute: NoLimit},
		}, g.clock)
	}
	return Config{g}
}

// check says what the parts lack. A negative capacity is not among it: that is refused by the store, after the
// authentication.
func (g *guard) check() error {
	switch {
	case g.submit == nil:
		return errors.New("there is no submit function")
	case isNil(g.authenticator):
		return errors.New("there is no authenticator")
	case isNil(g.validator):
		return errors.New("there is no validator of times to live")
	case g.clock == nil:
		return errors.New("there is no clock")
	case g.storeSet && isNil(g.store):
		return errors.New("there is no store")
	case g.storeSet && g.maxEntriesSet:
		return errors.New("a greatest number of entries is set beside a store, which has its own")
	}
	if v, ok := g.validator.(*MaxTTL); ok {
		return v.fault
	}
	return nil
}

// isNil finds a nil pointer or function behind an interface too, which would panic when it is used.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return r.IsNil()
	}
	return false
}

// Validate says why the Config refuses everything, or nil. A program asks it at its start.
func (c Config) Validate() error {
	if c.guard == nil {
		return configurationFault(errors.New("the Config was not made by NewConfig"))
	}
	if c.guard.fault != nil {
		return configurationFault(c.guard.fault)
	}
	if m, ok := c.guard.store.(*Memory); ok && m.fault != nil {
		return configurationFault(m.fault)
	}
	return nil
}

func configurationFault(err error) *Refusal {
	return &Refusal{Reason: Other, Cause: CauseConfiguration, Err: err}
}

// Connection submits for one client. Any number of connections share a Config.
type Connection struct {
	guard  *guard
	client string
}

// Connection is a connection whose peer was authenticated as client; it may be "" where nobody tells clients apart.
func (c Config) Connection(client string) Connection { return Connection{c.guard, client} }

// Submit submits a message if its id is admitted. ran tells whether the submit function was called: with true, err is its
// result unchanged; with false, err is a *Refusal, or an error of the store or the context, after which it is not known
// whether the id is reserved. See the package comment for the steps.
func (c Connection) Submit(ctx context.Context, m Message) (ran bool, err error) {
	if err := (Config{c.guard}).ready(); err != nil {
		return false, err
	}
	m.Client = c.client
	if err := c.guard.validateTTL(m); err != nil {
		return false, err
	}
	if err := c.guard.authenticator.Authenticate(ctx, m); err != nil {
		return false, &Refusal{Reason: NotAuthenticated, Cause: CauseAuthentication, Err: err}
	}
	if err := c.guard.validateTTL(m); err != nil {
		return false, err
	}
	reservation, err := c.guard.store.Reserve(ctx, Request{Client: m.Client, ID: m.ID, ExpiresAt: m.ExpiresAt})
	if err != nil {
		return false, err
	}
	return true, c.guard.submit(ctx, m, reservation)
}

// ready is Validate without the store's limits, which are the store's to refuse, at its step.
func (c Config) ready() error {
	if c.guard == nil || c.guard.fault != nil {
		return c.Validate()
	}
	return nil
}

func (g *guard) validateTTL(m Message) error {
	err := g.validator.ValidateTTL(m, g.clock())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrExpired):
		return &Refusal{Reason: Expired, Cause: CauseExpiry, Err: err}
	default:
		return &Refusal{Reason: Invalid, Cause: CauseExpiry, Err: err}
	}
}
