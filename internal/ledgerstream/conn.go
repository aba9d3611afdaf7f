package ledgerstream

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// Conn is a connection to a participant that can be made anew. gRPC keeps a connection whose other end is silently gone until its
// keepalive finds out, which takes half a minute while calls are open and much longer between them; whoever knows better can give it
// up at once. It is a grpc.ClientConnInterface; its methods are safe for concurrent use.
type Conn struct {
	dial func() (*grpc.ClientConn, error)

	mu      sync.Mutex
	current *grpc.ClientConn
	closed  bool
}

// DialRenewable is Dial for a connection that can be made anew.
func DialRenewable(cfg ConnConfig) (*Conn, error) {
	c := &Conn{dial: func() (*grpc.ClientConn, error) { return dial(cfg) }}
	var err error
	c.current, err = c.dial()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Conn) get() *grpc.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.get().Invoke(ctx, method, args, reply, opts...) //nolint:wrapcheck // the caller looks at gRPC's status
}

// NewStream implements grpc.ClientConnInterface.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.get().NewStream(ctx, desc, method, opts...) //nolint:wrapcheck // as above
}

// GetState is the state of the present connection.
func (c *Conn) GetState() connectivity.State { return c.get().GetState() }

// WaitForStateChange waits until the present connection's state is another one, as *grpc.ClientConn does.
func (c *Conn) WaitForStateChange(ctx context.Context, source connectivity.State) bool {
	return c.get().WaitForStateChange(ctx, source)
}

// Renew gives the present connection up, with all that runs on it; the next call makes a new one. Where none can be prepared
// (a certificate file is gone, say) the present one stays.
func (c *Conn) Renew() error {
	fresh, err := c.dial()
	if err != nil {
		return err
	}
	c.mu.Lock()
	old := c.current
	if c.closed {
		old = fresh
	} else {
		c.current = fresh
	}
	c.mu.Unlock()
	return old.Close() //nolint:wrapcheck // it has no other error than that it is closed already
}

// Close closes the connection for good.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	current := c.current
	c.mu.Unlock()
	return current.Close() //nolint:wrapcheck // as above
}
