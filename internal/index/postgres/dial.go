package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// closePatience is how long connections have to say goodbye when a store is closed. The driver would wait 15 s for a server that does
// not answer, which is longer than a daemon has to stop.
const closePatience = 2 * time.Second

// dialer makes a store's network connections and can end them all: those of the pool, and those that the driver makes for itself
// to cancel a statement.
type dialer struct {
	net net.Dialer

	mu    sync.Mutex
	open  map[*dialled]bool
	ended bool
}

func newDialer(timeout time.Duration) *dialer {
	return &dialer{
		net:  net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}},
		open: map[*dialled]bool{},
	}
}

// dial is a pgconn.DialFunc.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := d.net.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &dialled{Conn: conn, from: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		conn.Close()
		return nil, errors.New("the store is closed")
	}
	d.open[c] = true
	return c, nil
}

// end closes all connections and makes no more.
func (d *dialer) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for c := range d.open {
		c.Conn.Close()
	}
}

// dialled is a connection that its dialer can end.
type dialled struct {
	net.Conn
	from *dialer
}

func (c *dialled) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}
