package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// RemoteGuardOptions are how a guard over the network works. Zero values are the defaults given.
type RemoteGuardOptions struct {
	GuardOptions
	// Dial are options of the connections: transport credentials (grpc.WithTransportCredentials) are required. Who the guard takes the
	// caller for follows from them alone: the subject of the client certificate that they show.
	Dial []grpc.DialOption
	// ReserveTimeout bounds all questions for one decision; 5 s by default. After that the submission goes ahead unguarded.
	ReserveTimeout time.Duration
	// Rounds is how often each endpoint is asked, with the same idempotency key, before the submission goes ahead unguarded; 2 by default.
	Rounds int
}

// RemoteGuard is a guard over the service's reservations (SubmissionService). It has to be closed.
type RemoteGuard struct {
	options   RemoteGuardOptions
	endpoints []*guardEndpoint

	mu sync.Mutex
	// preferred is the endpoint that decided last. A reservation is with it, where endpoints share no store.
	preferred int
}

type guardEndpoint struct {
	name string
	api  disclosurev1.SubmissionServiceClient
	conn *grpc.ClientConn
}

// NewRemoteGuard makes a guard of the services at the addresses. Several should be replicas with one store (a database): then whichever
// answers knows what the others have admitted. Replicas without one admit once each, which is no worse than dear. It does not connect yet.
//
// Asked are the endpoints in turn, beginning with the one that decided last, until one decides. An error falls into one of two kinds:
//
//   - The guard can't be had: UNAVAILABLE (no connection; a service that is not ready or stale, or whose store failed), DEADLINE_EXCEEDED,
//     and faults within it (INTERNAL, UNKNOWN, ABORTED, DATA_LOSS, CANCELED not by the caller). Where all endpoints end so in each round,
//     the submission goes ahead Unguarded.
//   - The guard, or the way to it, is not set up for this caller, or the submission is not admissible: UNIMPLEMENTED (SUBMISSIONS_OFF, or an
//     address that has no such service), UNAUTHENTICATED, PERMISSION_DENIED, INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, and also
//     RESOURCE_EXHAUSTED, with when to try again. Where an endpoint says so and none decides, the submission is Refused: somebody has
//     something to correct, who would not hear of it if everything went on as if guarded.
//
// A TLS handshake that fails is UNAVAILABLE to gRPC and so is of the first kind: alarm at EventUnguarded.
func NewRemoteGuard(addresses []string, options RemoteGuardOptions) (*RemoteGuard, error) {
	if err := options.setDefaults(); err != nil {
		return nil, fmt.Errorf("remote guard: %w", err)
	}
	if len(addresses) == 0 {
		return nil, errors.New("remote guard: no address")
	}
	if options.ReserveTimeout <= 0 {
		options.ReserveTimeout = 5 * time.Second
	}
	if options.Rounds <= 0 {
		options.Rounds = 2
	}
	// gRPC's own waits between attempts to connect grow to two minutes, for which a guard that is back would not be asked.
	quick := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
		MinConnectTimeout: options.ReserveTimeout,
	})
	g := &RemoteGuard{options: options}
	for _, address := range addresses {
		conn, err := grpc.NewClient(address, append([]grpc.DialOption{quick}, options.Dial...)...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("remote guard: address %q: %w", address, err), g.Close())
		}
		g.endpoints = append(g.endpoints, &guardEndpoint{name: address, conn: conn, api: disclosurev1.NewSubmissionServiceClient(conn)})
	}
	return g, nil
}

// Close closes the connections.
func (g *RemoteGuard) Close() error {
	var errs []error
	for _, e := range g.endpoints {
		if err := e.conn.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing the connection to %s: %w", e.name, err))
		}
	}
	return errors.Join(errs...)
}

// Admit is Guard's.
func (g *RemoteGuard) Admit(ctx context.Context, s Submission, run func(context.Context, Admission) Ending) (Admission, error) {
	begun := time.Now()
	g.options.complete(&s, begun)
	got, from, err := g.reserve(ctx, &s)
	noDecision := (*noDecisionError)(nil)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		a, err := refuse(reasonCancelled, 0, context.Cause(ctx))
		return g.options.decided(&s, begun, a, err)
	case errors.As(err, &noDecision) && noDecision.refusal == nil:
		return g.options.unguarded(ctx, &s, begun, err, run)
	default:
		reason, retryAfter := reasonOfStatus(noDecision.refusal)
		a, err := refuse(reason, retryAfter, err)
		return g.options.decided(&s, begun, a, err)
	}
	a := Admission{Endpoint: from.name, Token: got.GetFencingToken(), Again: got.GetAgain(), RetryAfter: got.GetRetryAfter().AsDuration()}
	if got.GetExpiresAt() != nil {
		a.ExpiresAt = got.GetExpiresAt().AsTime()
	}
	switch got.GetOutcome() {
	case disclosurev1.ReserveOutcome_RESERVE_OUTCOME_RESERVED:
		if got.GetSettledAs() != disclosurev1.SettleOutcome_SETTLE_OUTCOME_UNSPECIFIED {
			// Of an earlier call with the caller's own key, which had ended.
			return g.options.decided(&s, begun, Admission{Decision: AlreadyReceived, ExpiresAt: a.ExpiresAt, Again: true, Endpoint: from.name}, nil)
		}
		a.Decision = Admitted
		return g.options.hold(ctx, &s, begun, &remoteHolding{g: g, from: from, token: got.GetToken()}, a, run)
	case disclosurev1.ReserveOutcome_RESERVE_OUTCOME_ALREADY_RECEIVED:
		a.Decision = AlreadyReceived
		return g.options.decided(&s, begun, a, nil)
	case disclosurev1.ReserveOutcome_RESERVE_OUTCOME_CONSUMED:
		a.Decision, a.UpdateID = AlreadyConsumed, got.GetConsumption().GetUpdateId()
		return g.options.decided(&s, begun, a, nil)
	default:
		refused, err := refuse(otherReason(got), a.RetryAfter, nil)
		refused.Endpoint = from.name
		return g.options.decided(&s, begun, refused, err)
	}
}

// otherReason names why the guard refused. An outcome or a reason of a newer service is named by its number.
func otherReason(got *disclosurev1.ReserveResponse) string {
	switch got.GetOtherReason() {
	case disclosurev1.OtherReason_OTHER_REASON_CAPACITY:
		return reasonCapacity
	case disclosurev1.OtherReason_OTHER_REASON_QUOTA:
		return reasonQuota
	case disclosurev1.OtherReason_OTHER_REASON_CONFIGURATION:
		return reasonConfiguration
	case disclosurev1.OtherReason_OTHER_REASON_CLOCK:
		return reasonClock
	default:
		return fmt.Sprintf("OUTCOME_%d_REASON_%d", got.GetOutcome(), got.GetOtherReason())
	}
}

// noDecisionError says that no endpoint decided.
type noDecisionError struct {
	// refusal is the first error by which an endpoint refused, nil where none could be had at all.
	refusal error
	errs    []error
}

func (e *noDecisionError) Error() string   { return errors.Join(e.errs...).Error() }
func (e *noDecisionError) Unwrap() []error { return e.errs }

// reserve asks the endpoints until one decides. Its error is a *noDecisionError.
func (g *RemoteGuard) reserve(ctx context.Context, s *Submission) (*disclosurev1.ReserveResponse, *guardEndpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, g.options.ReserveTimeout)
	defer cancel()
	request := reserveRequest(s)
	failed := &noDecisionError{}
	for round := 1; ; round++ {
		failed.errs = failed.errs[:0] // what the last round says is enough
		for _, e := range g.order() {
			begun := time.Now()
			call, cancel := context.WithTimeout(ctx, g.options.CallTimeout)
			got, err := e.api.Reserve(call, request)
			cancel()
			if err == nil {
				g.decidedBy(e)
				return got, e, nil
			}
			reason, _ := reasonOfStatus(err)
			g.options.observe(s, Event{Kind: EventNoDecision, Endpoint: e.name, Reason: reason, Took: time.Since(begun), Err: err})
			failed.errs = append(failed.errs, fmt.Errorf("reserving at %s: %w", e.name, err))
			if failed.refusal == nil && !absent(err) {
				failed.refusal = err
			}
		}
		if failed.refusal != nil || round >= g.options.Rounds || !pause(ctx, roundPause) {
			return nil, nil, failed
		}
	}
}

// roundPause lies between two rounds of questions: a restarted connection needs some time.
const roundPause = 150 * time.Millisecond

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reserveRequest is the question. It is the same in each repetition, its key included.
func reserveRequest(s *Submission) *disclosurev1.ReserveRequest {
	scope := &disclosurev1.ScopeSelector{Consumer: s.Subject.Consumer, Operator: s.Subject.Operator, PackageName: s.PackageName}
	if s.Subject.Namespace != nil {
		scope.NamespaceChoice = &disclosurev1.ScopeSelector_Namespace{Namespace: *s.Subject.Namespace}
	} else {
		scope.NamespaceChoice = &disclosurev1.ScopeSelector_WithoutNamespace{WithoutNamespace: true}
	}
	request := &disclosurev1.ReserveRequest{Scope: scope, ExpiresAt: &timestamppb.Timestamp{Seconds: s.ExpiresAt.Unix()}, IdempotencyKey: s.Key}
	if s.Key == "" {
		request.IdempotencyKey = rand.Text()
	}
	if len(s.VAA) > 0 {
		request.Subject = &disclosurev1.ReserveRequest_VaaBytes{VaaBytes: s.VAA}
	} else {
		request.Subject = &disclosurev1.ReserveRequest_Digest{Digest: hex.EncodeToString(s.Subject.Digest[:])}
	}
	return request
}

// absent reports whether an error says that the guard can't be had, and not that it refuses.
func absent(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown, codes.Aborted, codes.DataLoss, codes.Canceled:
		return true
	default:
		return false
	}
}

// reasonOfStatus is a service's reason, or the code's name in capitals where there is none, and when to try again.
func reasonOfStatus(err error) (reason string, retryAfter time.Duration) {
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			retryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	if reason == "" {
		reason = strings.ToUpper(st.Code().String())
	}
	return reason, retryAfter
}

// order is the endpoints as they are asked.
func (g *RemoteGuard) order() []*guardEndpoint {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append(append([]*guardEndpoint(nil), g.endpoints[g.preferred:]...), g.endpoints[:g.preferred]...)
}

func (g *RemoteGuard) decidedBy(e *guardEndpoint) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.endpoints {
		if other == e {
			g.preferred = i
		}
	}
}

// remoteHolding is a reservation at a service.
type remoteHolding struct {
	g     *RemoteGuard
	from  *guardEndpoint
	token string
}

// each asks the endpoint that has the reservation, and the others where it can't be had: they are its replicas, or don't know the token,
// which does no harm. It is final where the holder's endpoint itself says no.
func (h *remoteHolding) each(ctx context.Context, ask func(context.Context, disclosurev1.SubmissionServiceClient) error) (final bool, err error) {
	endpoints := []*guardEndpoint{h.from}
	for _, e := range h.g.endpoints {
		if e != h.from {
			endpoints = append(endpoints, e)
		}
	}
	var errs []error
	for _, e := range endpoints {
		call, cancel := context.WithTimeout(ctx, h.g.options.CallTimeout)
		err := ask(call, e.api)
		cancel()
		if err == nil {
			return false, nil
		}
		errs = append(errs, fmt.Errorf("at %s: %w", e.name, err))
		if e == h.from && !absent(err) {
			return status.Code(err) != codes.ResourceExhausted, err
		}
	}
	return false, errors.Join(errs...)
}

func (h *remoteHolding) extend(ctx context.Context, until time.Time) (extended time.Time, err error) {
	final, err := h.each(ctx, func(ctx context.Context, api disclosurev1.SubmissionServiceClient) error {
		got, err := api.Extend(ctx, &disclosurev1.ExtendRequest{Token: h.token, ExpiresAt: &timestamppb.Timestamp{Seconds: until.Unix()}})
		extended = got.GetExpiresAt().AsTime()
		return err
	})
	if final {
		err = fmt.Errorf("%w: %w", errNotExtendable, err)
	}
	return extended, err
}

func (h *remoteHolding) settle(ctx context.Context, committed bool) error {
	outcome := disclosurev1.SettleOutcome_SETTLE_OUTCOME_CONSUMED
	if committed {
		outcome = disclosurev1.SettleOutcome_SETTLE_OUTCOME_COMMITTED
	}
	_, err := h.each(ctx, func(ctx context.Context, api disclosurev1.SubmissionServiceClient) error {
		_, err := api.Settle(ctx, &disclosurev1.SettleRequest{Token: h.token, Outcome: outcome})
		return err
	})
	return err
}

func (h *remoteHolding) release(ctx context.Context) error {
	_, err := h.each(ctx, func(ctx context.Context, api disclosurev1.SubmissionServiceClient) error {
		_, err := api.Release(ctx, &disclosurev1.ReleaseRequest{Token: h.token})
		if reason, _ := reasonOfStatus(err); err != nil && reason == "RELEASE_OFF" {
			return nil
		}
		return err
	})
	return err
}
