package record

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/ledgerstream/rawgrpc"
)

// DialOptions are the interceptors as options of a connection.
func (r *Recorder) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.Unary), grpc.WithChainStreamInterceptor(r.Stream)}
}

// Unary records unary calls: a grpc.UnaryClientInterceptor.
func (r *Recorder) Unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	c := r.start(ctx, method, kindUnary)
	r.requested(c, request)
	var trailer metadata.MD
	var raw rawgrpc.Message
	err := invoke(ctx, method, request, &raw, conn, append(options, grpc.ForceCodecV2(rawgrpc.Codec()), grpc.Trailer(&trailer))...)
	if err == nil {
		err = decode(raw.Bytes, reply)
		r.received(c, raw.Bytes, reply)
	}
	r.end(ctx, c, err, trailer)
	return err
}

// Stream records streams: a grpc.StreamClientInterceptor.
func (r *Recorder) Stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	kind := kindServerStream
	switch {
	case desc.ClientStreams && desc.ServerStreams:
		kind = kindBidiStream
	case desc.ClientStreams:
		kind = kindClientStream
	}
	c := r.start(ctx, method, kind)
	stream, err := open(ctx, desc, conn, method, append(options, grpc.ForceCodecV2(rawgrpc.Codec()))...)
	if err != nil {
		r.end(ctx, c, err, nil)
		return nil, err
	}
	return &recordedStream{ClientStream: stream, recorder: r, call: c, caller: ctx, single: !desc.ServerStreams}, nil
}

// recordedStream records what goes over a stream. As with any stream, one goroutine sends and one receives.
type recordedStream struct {
	grpc.ClientStream
	recorder *Recorder
	call     *call
	// caller is the context that the caller gave. The stream's own is cancelled by every end, the participant's too.
	caller context.Context
	// single: the server answers once, and grpc reports the end with that answer.
	single bool
}

func (s *recordedStream) SendMsg(m any) error {
	s.recorder.requested(s.call, m)
	return s.ClientStream.SendMsg(m) //nolint:wrapcheck // io.EOF and statuses have a meaning here
}

func (s *recordedStream) RecvMsg(m any) error {
	var raw rawgrpc.Message
	err := s.ClientStream.RecvMsg(&raw)
	if err == nil {
		err = decode(raw.Bytes, m)
		s.recorder.received(s.call, raw.Bytes, m)
	}
	switch {
	case errors.Is(err, io.EOF):
		s.recorder.end(s.caller, s.call, nil, s.Trailer())
	case err != nil:
		s.recorder.end(s.caller, s.call, err, s.Trailer())
	case s.single:
		s.recorder.end(s.caller, s.call, nil, nil)
	}
	return err
}

func decode(raw []byte, into any) error {
	m, ok := into.(proto.Message)
	if !ok {
		return fmt.Errorf("record: %T is no message", into)
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("record: decode %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil
}
