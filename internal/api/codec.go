package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// deterministicCodec is protobuf with maps encoded in the order of their keys, so that replicas at one offset answer byte for
// byte the same. Reading is left to grpc's own codec.
type deterministicCodec struct{ encoding.CodecV2 }

func newDeterministicCodec() encoding.CodecV2 {
	return deterministicCodec{encoding.GetCodecV2(protocodec.Name)}
}

// Marshal encodes a message.
func (deterministicCodec) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode an answer: %T is not a protobuf message", v)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
}

// serviceDesc is the service's description with one change: a request that is no valid message is INVALID_FIELD like every other
// bad input, and goes through the interceptors. grpc-go itself would answer INTERNAL, unlogged and uncounted.
func serviceDesc() *grpc.ServiceDesc {
	desc := disclosurev1.DisclosureService_ServiceDesc
	desc.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, method := range disclosurev1.DisclosureService_ServiceDesc.Methods {
		handle := method.Handler
		desc.Methods[i] = grpc.MethodDesc{MethodName: method.MethodName, Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			var undecodable error
			tolerant := func(into any) error {
				undecodable = decode(into)
				return nil
			}
			checking := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if undecodable != nil {
					next = func(context.Context, any) (any, error) {
						return nil, invalid(Violation{"request", "must be a protobuf message of this method, with texts in valid UTF-8"})
					}
				}
				return intercept(ctx, req, info, next)
			}
			return handle(srv, ctx, tolerant, checking)
		}}
	}
	return &desc
}
