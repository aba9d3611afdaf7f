package client

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Anchors are the parties that make contracts genuine. They have to be known from elsewhere than from a service: they are all that is
// believed.
type Anchors struct {
	// Operators are the bridge's operators that are accepted; at least one.
	Operators []string
	// GuardianGovernance is the party that has signed the genuine CoreState.
	GuardianGovernance string
	// PackageName is the name of the bridge's package; "wormhole-core" by default.
	PackageName string
	// PackageIDs are the ids of the bridge's package that are accepted; empty accepts any, as no hash covers them (see
	// Report.Uncovered).
	PackageIDs []string
}

// Options are how a client works. Zero values are the defaults given.
type Options struct {
	// Anchors are required.
	Anchors Anchors
	// AcceptUnverifiable accepts contracts whose id can't be recomputed, because their package version is newer than this client.
	AcceptUnverifiable bool
	// Dial are options of the connections: transport credentials (grpc.WithTransportCredentials) are required.
	Dial []grpc.DialOption

	// MaxSubmissions bounds how often the caller's function is called within one redeem; 100 by default.
	MaxSubmissions int
	// MaxTime bounds one redeem, but for SettleTime; 5 minutes by default.
	MaxTime time.Duration
	// CallTimeout bounds one call of the service beside what it is asked to wait; 10 s by default.
	CallTimeout time.Duration
	// SubmitTimeout bounds one call of the caller's function; 2 minutes by default. What runs out has an unknown outcome.
	SubmitTimeout time.Duration
	// SuccessorWait is how long the service is asked to wait for a successor of a contract that just failed; 2 s by default.
	SuccessorWait time.Duration
	// SettleTime is how long after the caller's context ended, or MaxTime, the outcome of a submission that got no answer is still
	// looked for; 3 s by default.
	SettleTime time.Duration
	// GuardianSetWait is how long a guardian set is waited for that a VAA names and that is newer than CoreState's own: CoreState follows an
	// upgrade of the guardians, and the service CoreState. 20 s by default, negative is not at all.
	GuardianSetWait time.Duration
	// BackoffInitial and BackoffMax bound the waits between submissions, which double and are jittered over their whole length;
	// 50 ms and 5 s by default.
	BackoffInitial, BackoffMax time.Duration
	// EndpointRest is how long an endpoint that failed is asked only after the others; 5 s by default.
	EndpointRest time.Duration

	// Observe is called with everything that happens, from the goroutine of the redeem and so not for long; nil is nobody.
	Observe func(Event)
	// Log gets what an operator should know: warnings of endpoints that are left, and of redeems that end unknown. Nil is nobody.
	Log *slog.Logger
}

func (o *Options) setDefaults() {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.MaxTime, 5*time.Minute)
	def(&o.CallTimeout, 10*time.Second)
	def(&o.SubmitTimeout, 2*time.Minute)
	def(&o.SuccessorWait, 2*time.Second)
	def(&o.SettleTime, 3*time.Second)
	if o.GuardianSetWait == 0 {
		o.GuardianSetWait = 20 * time.Second
	}
	if o.Anchors.PackageName == "" {
		o.Anchors.PackageName = wormhole.PackageName
	}
	def(&o.BackoffInitial, 50*time.Millisecond)
	def(&o.BackoffMax, 5*time.Second)
	def(&o.EndpointRest, 5*time.Second)
	if o.MaxSubmissions <= 0 {
		o.MaxSubmissions = 100
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// EventKind is what happened.
type EventKind string

// What happens in a redeem.
const (
	// EventAnswer: an endpoint answered, and the answer verifies.
	EventAnswer EventKind = "answer"
	// EventNoAnswer: an endpoint gave an error (Reason), or an answer that does not verify (Reason NOT_VERIFIED), or, after an answer, a bundle
	// of which the ledger has called a contract inactive (Reason STALE_BUNDLE).
	EventNoAnswer EventKind = "no-answer"
	// EventDisputed: the endpoint said that there is nothing to submit (Reason), and another has a bundle. The ledger is asked.
	EventDisputed EventKind = "disputed"
	// EventSubmitted: the caller's function returned; Class says how it was taken, "" for a commit.
	EventSubmitted EventKind = "submitted"
	// EventProbed: it returned from the repetition of a submission that got no answer.
	EventProbed EventKind = "probed"
	// EventBackoff: the redeem waits for Took.
	EventBackoff EventKind = "backoff"
	// EventEnd: the redeem ended; Reason is its state.
	EventEnd EventKind = "end"
)

// What happens at a guard.
const (
	// EventGuard: a guard decided; Reason is the decision, or why it refused.
	EventGuard EventKind = "guard"
	// EventUnguarded: no guard could decide, for Err, and the submission goes ahead.
	EventUnguarded EventKind = "unguarded"
	// EventNoDecision: an endpoint of a remote guard gave no decision, for Reason.
	EventNoDecision EventKind = "no-decision"
	// EventExtended, EventSettled, EventReleased: a reservation was, or with Err could not be.
	EventExtended EventKind = "extended"
	EventSettled  EventKind = "settled"
	EventReleased EventKind = "released"
)

// Event is something that happened in a redeem: for metrics and logs. Reasons are of bounded number, but for those that participants and
// services of newer versions make up.
type Event struct {
	Kind EventKind
	// Digest is the redeem's, Endpoint the one asked, Submission the number of submissions made so far.
	Digest, Endpoint string
	Submission       int
	// Reason is the error id, or the state at the end.
	Reason string
	// Class is how a submission's error was taken.
	Class string
	Took  time.Duration
	Err   error
}

// Client redeems. It is safe for concurrent use.
type Client struct {
	options   Options
	endpoints []*endpoint

	mu sync.Mutex
	// preferred is the endpoint that answered last.
	preferred int
}

// endpoint is one address of the service.
type endpoint struct {
	name string
	api  disclosurev1.DisclosureServiceClient
	conn *grpc.ClientConn
	// restsUntil is when an endpoint that failed is trusted again to be asked first.
	restsUntil time.Time
}

// New makes a client of the services at the addresses: replicas of one, or services on different participants. The first is preferred. It
// does not connect yet.
func New(addresses []string, options Options) (*Client, error) {
	options.setDefaults()
	switch {
	case len(addresses) == 0:
		return nil, errors.New("disclosure client: no address")
	case options.Anchors.GuardianGovernance == "" || len(options.Anchors.Operators) == 0:
		return nil, errors.New("disclosure client: Anchors.GuardianGovernance and Anchors.Operators are required: without them nothing can be verified")
	}
	c := &Client{options: options}
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, options.Dial...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("disclosure client: address %q: %w", address, err), c.Close())
		}
		c.endpoints = append(c.endpoints, &endpoint{name: address, conn: conn, api: disclosurev1.NewDisclosureServiceClient(conn)})
	}
	return c, nil
}

// Close closes the connections. Redeems that run end with errors of theirs.
func (c *Client) Close() error {
	var errs []error
	for _, e := range c.endpoints {
		if err := e.conn.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing the connection to %s: %w", e.name, err))
		}
	}
	return errors.Join(errs...)
}

// order is the endpoints as they are asked: the preferred one first, those that rest last.
func (c *Client) order(now time.Time) []*endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	var fit, resting []*endpoint
	for i := range c.endpoints {
		e := c.endpoints[(c.preferred+i)%len(c.endpoints)]
		if now.Before(e.restsUntil) {
			resting = append(resting, e)
		} else {
			fit = append(fit, e)
		}
	}
	return append(fit, resting...)
}

// answered prefers the endpoint from now on; failed lets it rest.
func (c *Client) answered(e *endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.restsUntil = time.Time{}
	for i, other := range c.endpoints {
		if other == e {
			c.preferred = i
		}
	}
}

func (c *Client) failed(e *endpoint, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.restsUntil = now.Add(c.options.EndpointRest)
}

// leave lets the endpoint of that name rest.
func (c *Client) leave(name string) {
	for _, e := range c.endpoints {
		if e.name == name {
			c.failed(e, time.Now())
		}
	}
}

// backoff is how long to wait after n failures in a row, n from 1: anything up to the initial wait doubled n−1 times. Those who lost one
// race must not meet in the next.
func (o *Options) backoff(n int) time.Duration {
	most := o.BackoffInitial
	for range n - 1 {
		if most *= 2; most >= o.BackoffMax {
			most = o.BackoffMax
			break
		}
	}
	return rand.N(most + 1)
}
