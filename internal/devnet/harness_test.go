package devnet

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// failAfter lets so many calls of the method through and refuses the rest, as a participant that has gone.
func failAfter(method string, through int) grpc.UnaryClientInterceptor {
	var calls atomic.Int64
	return func(ctx context.Context, called string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if called == method && calls.Add(1) > int64(through) {
			return status.Error(codes.Unavailable, "gone")
		}
		return invoke(ctx, called, req, reply, conn, opts...)
	}
}

// token is an access token, sent without TLS.
type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (token) RequireTransportSecurity() bool { return false }
