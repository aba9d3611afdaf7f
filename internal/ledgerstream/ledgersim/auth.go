package ledgersim

import (
	"context"

	"google.golang.org/grpc"
)

// AuthOptions turn on authorization.
type AuthOptions struct {
	// Secret signs tokens (HMAC-SHA256).
	Secret []byte
}

// user is a user of the participant.
type user struct {
	id string
}

func (s *Sim) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Sim) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := s.admit(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

// admit is what every call passes before it is looked at.
func (s *Sim) admit(ctx context.Context, method string) error {
	if err := s.waitIfHung(ctx, method); err != nil {
		return err
	}
	if err := s.waitDelay(ctx); err != nil {
		return err
	}
	return s.nextFailure(method)
}
