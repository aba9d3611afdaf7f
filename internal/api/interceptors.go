package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// requestIDHeader carries a call's id in both directions.
const requestIDHeader = "x-request-id"

// Metrics is what the package reports about itself. Methods are called concurrently. The values of method and outcome are from
// fixed sets: the service's methods, and "OK" or a Reason.
type Metrics interface {
	// (For gRPC's own services, health and reflection, the outcome of an error is "GRPC_" and its code.)
	//
	// CallStarted is followed by one CallDone of the same method.
	CallStarted(method string)
	// What it took is without waits for what the caller asked for (an update, an offset, a successor, its rate).
	CallDone(method, outcome string, took time.Duration)
	// Panicked counts panics in calls.
	Panicked()
	// WatchReady gives the function that tells whether the service is ready, at any time and concurrently.
	WatchReady(ready func() bool)
	// Connected is told of each connection that opens or, where open is false, closes.
	Connected(open bool)
	// ConnectionRefused is told of each connection that was one too many, "server", in all, or "caller", of its caller: it was closed, or another
	// one without calls was.
	ConnectionRefused(limitOf string)
}

// call is what the interceptors know about one call; inner ones and the service fill it in for the access log.
type call struct {
	requestID string
	offset    string
	// waited is how long the call waited because its caller asked it to, or had to.
	waited time.Duration
}

func (c *call) waitedSince(began time.Time) { c.waited += time.Since(began) }

type callKey struct{}

// callOf is the call of the context, never nil.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// calls is the interceptors' shared state.
type calls struct {
	cfg     Config
	log     *slog.Logger
	metrics Metrics
	limits  *limiter
	// methods are the methods served, by their full names; set before the first call.
	methods map[string]kind
	// streamsEnd ends when streams have to: those of gRPC's own services go on for ever otherwise.
	streamsEnd context.Context
}

// unary are the unary interceptors, outermost first: the request id, then log and metrics of everything below, then the rest of the limits
// (admit did the most) and the deadline, then recovery next to the handler, so that a panic is logged and counted as the call's outcome.
func (c *calls) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{c.observeUnary, c.limitUnary, c.deadlineUnary, recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(c.recovered))}
}

// stream are the same for streams, which here are health watches and reflection: they have no deadline of ours.
func (c *calls) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{c.observeStream, c.limitStream, recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(c.recovered))}
}

func (c *calls) observeUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, own := c.begin(ctx)
	// The header goes out with the answer. Failing to set it means that the stream is gone, which the answer will notice.
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDHeader, own.requestID))
	done := c.observe(ctx, own, path.Base(info.FullMethod), "unary")
	made, err := next(ctx, req)
	var leaving *answer
	if err == nil {
		if answered, ok := made.(interface{ GetAnswer() *disclosurev1.Answer }); ok {
			own.offset = strconv.FormatInt(answered.GetAnswer().GetPosition().GetOffset(), 10)
		}
		err = tooLarge(made, c.cfg.MaxAnswerBytes)
	}
	if message, ok := made.(proto.Message); ok && err == nil {
		leaving, err = c.answering(ctx, message)
	}
	if err = done(err); err != nil {
		return nil, err
	}
	return leaving, nil
}

func (c *calls) observeStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(c.streamsEnd, cancel)()
	ctx, own := c.begin(ctx)
	_ = stream.SetHeader(metadata.Pairs(requestIDHeader, own.requestID))
	done := c.observe(ctx, own, path.Base(info.FullMethod), "stream")
	return done(next(srv, &streamWithContext{stream, ctx}))
}

// begin gives the call its id: the caller's, if it is short and plain enough to be put into a log, else one of our own.
func (c *calls) begin(ctx context.Context) (context.Context, *call) {
	own := &call{}
	if ids := metadata.ValueFromIncomingContext(ctx, requestIDHeader); len(ids) > 0 && plainID(ids[0]) {
		own.requestID = ids[0]
	} else {
		var id [8]byte
		rand.Read(id[:]) // does not fail
		own.requestID = hex.EncodeToString(id[:])
	}
	return context.WithValue(ctx, callKey{}, own), own
}

func plainID(id string) bool {
	return len(id) >= 1 && len(id) <= 64 &&
		outside(id, func(b byte) bool { return isPartyChar(b) && b != ' ' || b == '.' || b == '/' || b == '=' || b == '+' }) < 0
}

// observe starts a call's metrics; the function it returns ends them, writes the access log's line and makes the error one that
// may leave the service. The log has no party, contract id or digest.
func (c *calls) observe(ctx context.Context, own *call, method, kind string) func(error) error {
	started := time.Now()
	c.metrics.CallStarted(method)
	return func(err error) error {
		took := time.Since(started)
		outcome, level := "OK", slog.LevelInfo
		attrs := []slog.Attr{slog.String("method", method), slog.String("kind", kind)}
		if foreign, ok := grpcOwn(err); ok {
			// Health's NOT_FOUND, reflection's errors: their protocols say what they are.
			outcome = "GRPC_" + foreign.String()
			attrs = append(attrs, slog.String("code", foreign.String()))
		} else if err != nil {
			e := asError(err)
			if e.Reason == Internal {
				e.with("request_id", own.requestID)
				level = slog.LevelError
				attrs = append(attrs, slog.Any("err", e.cause))
			}
			outcome = string(e.Reason)
			own.offset = e.Metadata["offset"]
			attrs = append(attrs, slog.String("code", rowOf[e.Reason].Code.String()), slog.String("reason", outcome))
			err = e
		} else {
			attrs = append(attrs, slog.String("code", "OK"))
		}
		c.metrics.CallDone(method, outcome, took-own.waited)
		attrs = append(attrs, slog.Duration("took", took), slog.String("offset", own.offset),
			slog.String("peer", peerOf(ctx)), slog.String("request_id", own.requestID))
		c.log.LogAttrs(ctx, level, "call", attrs...)
		return err
	}
}

// grpcOwn is the code of an error that is a status made by gRPC's own services, and not one of ours.
func grpcOwn(err error) (codes.Code, bool) {
	var ours *Error
	if err == nil || errors.As(err, &ours) {
		return codes.OK, false
	}
	foreign, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return codes.OK, false
	}
	return foreign.GRPCStatus().Code(), true
}

// recovered makes a panic the call's INTERNAL error. The stack is for the log only.
func (c *calls) recovered(ctx context.Context, p any) error {
	c.metrics.Panicked()
	c.log.LogAttrs(ctx, slog.LevelError, "panic in a call",
		slog.String("request_id", callOf(ctx).requestID), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	e := failure(Internal, "internal error")
	e.cause = fmt.Errorf("panic: %v", p)
	return e
}

func (c *calls) limitUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if p := placeOf(ctx); p != nil {
		if !p.use() {
			return nil, context.Canceled
		}
		defer p.drop()
	}
	if err := undecodable(req); err != nil {
		return nil, err
	}
	if batch, ok := req.(*disclosurev1.BatchPrepareRedeemRequest); ok {
		if refused := c.limits.spend(ctx, callerOfContext(ctx), len(batch.GetItems())-1); refused != nil {
			return nil, refused
		}
	}
	return next(ctx, req)
}

func (c *calls) limitStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if p := placeOf(stream.Context()); p != nil {
		if !p.use() {
			return context.Canceled
		}
		defer p.drop()
	}
	return next(srv, &limitedStream{ServerStream: stream, limits: c.limits, from: callerOfContext(stream.Context())})
}

// limitedStream is a stream whose requests cost what calls do: reflection answers any number of them in one stream. The first one is paid for
// with the stream.
type limitedStream struct {
	grpc.ServerStream
	limits   *limiter
	from     netip.Addr
	received bool
}

// RecvMsg implements grpc.ServerStream. Whom it refuses, or who sends what is no request, loses the stream.
func (s *limitedStream) RecvMsg(req any) error {
	if err := s.ServerStream.RecvMsg(req); err != nil {
		return err
	}
	if s.received {
		if refused := s.limits.pay(s.from, 1); refused != nil {
			return refused
		}
	}
	s.received = true
	return undecodable(req)
}

// deadlineUnary gives every call a deadline: the caller's within our maximum, else the default.
func (c *calls) deadlineUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	limit := c.cfg.MaxDeadline
	if p := placeOf(ctx); p == nil || !p.hasDeadline {
		limit = c.cfg.DefaultDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, limit) // keeps an earlier deadline
	defer cancel()
	return next(ctx, req)
}

// tooLarge refuses an answer that the transport would refuse with an error of its own, which no caller could tell apart.
func tooLarge(answer any, most int) error {
	message, ok := answer.(proto.Message)
	if !ok || proto.Size(message) <= most {
		return nil
	}
	return failure(AnswerTooLarge, fmt.Sprintf("the answer exceeds %d bytes", most)).with("limit_bytes", strconv.Itoa(most))
}

// streamWithContext is a stream with the context that carries its call.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}
