package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// goodbye is how long a connection has to end in good order. The driver would give a server that does not answer 15 s, for which the
// connection's place in the pool is taken, and for which a daemon that is to stop would have to wait.
const goodbye = 2 * time.Second

// dialer makes a store's network connections: those of the pool, and those that the driver makes for itself to cancel a
// statement. It bounds what the driver leaves open-ended, and can end all connections.
type dialer struct {
	net net.Dialer

	mu    sync.Mutex
	open  map[*dialled]bool
	ended bool
}

// newDialer makes a dialer whose connections have the time given to become usable.
func newDialer(timeout time.Duration) *dialer {
	return &dialer{
		net:  net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}},
		open: map[*dialled]bool{},
	}
}

// dial is a pgconn.DialFunc. The connection ends at the timeout, unless it is used for a session and greet is called by then.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	deadline := time.Now().Add(d.net.Timeout)
	conn, err := d.net.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
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

// greet lifts the deadline from a connection on which a session has begun: from now on each call has its own.
func greet(_ context.Context, conn *pgx.Conn) error {
	return conn.PgConn().Conn().SetDeadline(time.Time{})
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

// dialled is a connection that its dialer made.
type dialled struct {
	net.Conn
	from *dialer
}

// SetDeadline sets the deadline, but not far ahead: the driver cancels calls with deadlines in the past, and sets one in the future
// only for its goodbye.
func (c *dialled) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(goodbye); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}

func (c *dialled) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}
