package ledgerstream

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// tokenFunc is a TokenSource.
type tokenFunc func() string

func (f tokenFunc) Token(context.Context) (string, error) { return f(), nil }

// authorization is the header that a call came with.
func authorization(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("authorization"); len(got) == 1 {
		return got[0]
	}
	return ""
}
