package api

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/index"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
	"github.com/disclosured/disclosured/replayguard"
)

// submissions implements SubmissionService over a guard's store. It is safe for concurrent use.
//
// The order is the guard's contract, and each step that fails leaves nothing reserved: who asks; the request's form; the expiry; is the
// VAA genuine; is its digest consumed; would the redeem be prepared (where that is asked for); the expiry again, because what came
// before may have waited; the reservation. Nothing is done after the reservation that could fail.
//
// What is reserved is an id of the scope that the index knows and of the digest computed from the VAA. No text of the request is part
// of it, so that no spelling makes a second id and nobody fills the guard with scopes that do not exist.
type submissions struct {
	disclosurev1.UnimplementedSubmissionServiceServer
	*Service
	guard   replayguard.Store
	metrics GuardMetrics
	log     *slog.Logger
}

// GuardMetrics is what the submission service reports. Methods are called concurrently.
type GuardMetrics interface {
	// Reserved reports the end of a Reserve: reserved, again, already_received, consumed, a cause of package replayguard, or an error's
	// reason in lowercase. It is a fixed set.
	Reserved(outcome string)
	// TookOver counts reservations of an id whose earlier one lapsed unsettled, where that was still known.
	TookOver()
	// Settled reports a Settle and how old the reservation was. One that is settled again is reported again.
	Settled(outcome string, age time.Duration)
}

type noGuardMetrics struct{}

func (noGuardMetrics) Reserved(string)               {}
func (noGuardMetrics) TookOver()                     {}
func (noGuardMetrics) Settled(string, time.Duration) {}

func newSubmissions(service *Service, deps Deps) *submissions {
	s := &submissions{Service: service, guard: deps.Guard, metrics: deps.GuardMetrics, log: deps.Log}
	if s.metrics == nil {
		s.metrics = noGuardMetrics{}
	}
	return s
}

// Reserve implements SubmissionService.
func (s *submissions) Reserve(ctx context.Context, req *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
	answer, outcome, err := s.reserve(ctx, req)
	if err != nil {
		outcome = strings.ToLower(string(asError(err).Reason))
	}
	s.metrics.Reserved(outcome)
	return answer, err
}

// reserve also gives the outcome for the metrics, where there is no error.
func (s *submissions) reserve(ctx context.Context, req *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, string, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, "", err
	}
	var c checks
	asked := c.reserve(req)
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, "", err
	}
	if asked.bare() && !s.cfg.Guard.AllowDigest {
		return nil, "", failure(VAARequired, "a bare digest can't be reserved here")
	}
	if err := s.checkExpiry(asked.expiresAt); err != nil {
		return nil, "", err
	}
	found, err := answerWith(ctx, s.Service, opts, s.prepareCandidates(asked.prepareQuery), func(ctx context.Context, r *reading) (judged, error) {
		return s.judge(ctx, r, asked)
	})
	if err != nil {
		return nil, "", err
	}
	answer := &disclosurev1.ReserveResponse{Answer: found.answer, Digest: asked.digest.String(), Scope: scopeMessage(found.scope)}
	if found.consumption != nil {
		answer.Outcome = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_CONSUMED
		answer.Consumption = found.consumption
		return answer, "consumed", nil
	}
	if err := s.checkExpiry(asked.expiresAt); err != nil {
		return nil, "", err
	}
	reservation, err := s.guard.Reserve(ctx, replayguard.Request{
		Client: client, ID: subjectOf(found.scope, asked).ID(), ExpiresAt: asked.expiresAt, Key: asked.key,
	})
	if err != nil {
		outcome, err := s.refused(ctx, answer, err)
		if err != nil {
			return nil, "", err
		}
		return answer, outcome, nil
	}
	answer.Outcome = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_RESERVED
	answer.Token = token{reservation.ID, reservation.Token}.String()
	answer.FencingToken = int64(reservation.Token)
	answer.ExpiresAt = &timestamppb.Timestamp{Seconds: reservation.ExpiresAt}
	answer.Again = reservation.Again
	answer.SettledAs = settledAs(reservation.Outcome)
	answer.Prepared = found.prepared
	if reservation.TookOver {
		s.metrics.TookOver()
	}
	if reservation.Again {
		return answer, "again", nil
	}
	return answer, "reserved", nil
}

// judged is what a view says about a request.
type judged struct {
	answer      *disclosurev1.Answer
	scope       index.Scope
	consumption *disclosurev1.Consumption
	prepared    *disclosurev1.PrepareRedeemResponse
}

// judge looks whether the VAA is genuine and its digest not consumed, as the ledger would, and prepares the redeem. A VAA that can't be
// judged for want of a CoreState is not genuine: that error is given.
func (s *submissions) judge(ctx context.Context, r *reading, asked reservationQuery) (judged, error) {
	scope, err := r.view.Scope(asked.selector)
	if err != nil {
		return judged{}, err
	}
	if !asked.bare() {
		core, err := asked.coreState(r.view, scope)
		if err != nil {
			return judged{}, err
		}
		state := coreStateOf(core)
		if state == nil {
			return judged{}, failure(CoreStateMissing, "the CoreState's content is not known")
		}
		if rule := s.verify(&asked.subject, state, r.ledgerNow()).rule; rule != nil {
			return judged{}, failure(NotAuthentic, "the VAA does not verify").with("failed_rule", string(rule.Code))
		}
	}
	node, err := r.view.Covering(scope, asked.digest)
	if err != nil {
		return judged{}, err
	}
	found := judged{answer: s.answer(r), scope: scope}
	found.consumption, err = s.consumption(ctx, r, scope, node, asked.digest)
	if err == nil && found.consumption == nil && asked.prepare {
		found.prepared, err = s.prepare(ctx, r, asked.prepareQuery)
	}
	return found, err
}

// subjectOf is the identity of the redemption.
func subjectOf(scope index.Scope, asked reservationQuery) replayguard.Subject {
	subject := replayguard.Subject{Operator: scope.Operator, Consumer: scope.Consumer, Digest: asked.digest}
	if scope.Namespace.Present {
		subject.Namespace = &scope.Namespace.Value
	}
	return subject
}

// checkExpiry is the guard's first and third step, by this server's clock.
func (s *submissions) checkExpiry(expiresAt int64) error {
	err := replayguard.CheckExpiry(expiresAt, s.now().Unix(), s.cfg.Guard.MaxTTL)
	refusal := (*replayguard.Refusal)(nil)
	if errors.As(err, &refusal) {
		return s.expiryRefused(refusal)
	}
	return err
}

func (s *submissions) expiryRefused(refusal *replayguard.Refusal) *Error {
	if refusal.Reason == replayguard.Expired {
		return failure(Expired, "expires_at is past")
	}
	return failure(ExpiryInvalid, "expires_at is not acceptable").with("max_ttl", s.cfg.Guard.MaxTTL.String())
}

// refused puts a store's refusal into the answer and gives its outcome for the metrics, or makes an error of what is no outcome of Reserve.
func (s *submissions) refused(ctx context.Context, answer *disclosurev1.ReserveResponse, err error) (string, error) {
	refusal := (*replayguard.Refusal)(nil)
	if !errors.As(err, &refusal) {
		// Also where the call's time is over: the store was asked, so the id may be reserved.
		return "", s.guardUnavailable(ctx, "reserving", err)
	}
	switch refusal.Reason {
	case replayguard.AlreadyReceived:
		answer.Outcome = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_ALREADY_RECEIVED
		answer.ExpiresAt = &timestamppb.Timestamp{Seconds: refusal.ExpiresAt}
		return "already_received", nil
	case replayguard.Other:
		answer.Outcome = disclosurev1.ReserveOutcome_RESERVE_OUTCOME_OTHER
		answer.OtherReason = otherReason(refusal.Cause)
		if refusal.Cause == replayguard.CauseConfiguration {
			s.log.Error("the replay guard refuses everything: its limits make no sense", slog.Any("err", refusal.Err))
		}
		if refusal.RetryAfter > 0 {
			answer.RetryAfter = durationpb.New(refusal.RetryAfter)
		}
		return string(refusal.Cause), nil
	}
	return "", s.claimRefused(ctx, "reserving", err)
}

func otherReason(cause replayguard.Cause) disclosurev1.OtherReason {
	switch cause {
	case replayguard.CauseCapacity:
		return disclosurev1.OtherReason_OTHER_REASON_CAPACITY
	case replayguard.CauseQuotaLive, replayguard.CauseQuotaRate:
		return disclosurev1.OtherReason_OTHER_REASON_QUOTA
	case replayguard.CauseClockBack:
		return disclosurev1.OtherReason_OTHER_REASON_CLOCK
	}
	return disclosurev1.OtherReason_OTHER_REASON_CONFIGURATION
}

// Settle implements SubmissionService.
func (s *submissions) Settle(ctx context.Context, req *disclosurev1.SettleRequest) (*disclosurev1.SettleResponse, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	var c checks
	held := c.token("token", req.GetToken())
	outcome := c.outcome("outcome", req.GetOutcome())
	if err := c.err(); err != nil {
		return nil, err
	}
	settled, err := s.guard.Settle(ctx, held.claim(client), outcome)
	if err != nil {
		return nil, s.claimRefused(ctx, "settling", err)
	}
	s.metrics.Settled(settled.Outcome.String(), time.Duration(settled.Age)*time.Second)
	return &disclosurev1.SettleResponse{ExpiresAt: &timestamppb.Timestamp{Seconds: settled.ExpiresAt}, Outcome: settledAs(settled.Outcome)}, nil
}

// Extend implements SubmissionService.
func (s *submissions) Extend(ctx context.Context, req *disclosurev1.ExtendRequest) (*disclosurev1.ExtendResponse, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	var c checks
	held := c.token("token", req.GetToken())
	expiresAt := c.expiry("expires_at", req.GetExpiresAt())
	if err := c.err(); err != nil {
		return nil, err
	}
	if err := s.checkExpiry(expiresAt); err != nil {
		return nil, err
	}
	extended, err := s.guard.Extend(ctx, held.claim(client), expiresAt)
	if err != nil {
		return nil, s.claimRefused(ctx, "extending", err)
	}
	return &disclosurev1.ExtendResponse{ExpiresAt: &timestamppb.Timestamp{Seconds: extended.ExpiresAt}}, nil
}

// Release implements SubmissionService.
func (s *submissions) Release(ctx context.Context, req *disclosurev1.ReleaseRequest) (*disclosurev1.ReleaseResponse, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	var c checks
	held := c.token("token", req.GetToken())
	if err := c.err(); err != nil {
		return nil, err
	}
	err = s.guard.Release(ctx, held.claim(client))
	refusal := (*replayguard.Refusal)(nil)
	if errors.As(err, &refusal) && refusal.Cause == replayguard.CauseConfiguration {
		return nil, failure(ReleaseOff, "reservations can't be released here")
	}
	if err != nil {
		return nil, s.claimRefused(ctx, "releasing", err)
	}
	return &disclosurev1.ReleaseResponse{}, nil
}

// claimRefused is the error of a store that refused a claim or failed.
func (s *submissions) claimRefused(ctx context.Context, doing string, err error) *Error {
	refusal := (*replayguard.Refusal)(nil)
	switch {
	case errors.Is(err, replayguard.ErrNoReservation):
		return failure(NoReservation, "the token names no live reservation of this client")
	case !errors.As(err, &refusal):
		return s.guardFailed(ctx, doing, err)
	case refusal.Cause == replayguard.CauseExpiry:
		return s.expiryRefused(refusal)
	}
	return asError(err) // what the request's own checks let through: a fault of this service
}

// guardFailed is the error of a store that failed. The cause is for the log only: it may name the database.
func (s *submissions) guardFailed(ctx context.Context, doing string, err error) *Error {
	if ctx.Err() != nil {
		return asError(ctx.Err())
	}
	return s.guardUnavailable(ctx, doing, err)
}

func (s *submissions) guardUnavailable(ctx context.Context, doing string, err error) *Error {
	s.log.Warn("the replay guard's store failed", slog.String("doing", doing), slog.Any("err", err), slog.String("request_id", callOf(ctx).requestID))
	e := failure(GuardUnavailable, "the guard's store failed")
	e.cause = err
	return e
}
