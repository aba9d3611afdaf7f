package api

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// conns is a listener that bounds its connections and what they may hold.
//
// A connection that is one too many, in all or of its caller, is closed at once: a client that hears so tries again, later or elsewhere,
// which one that waits in a backlog can't.
//
// A connection is closed, with everything that waits in it, where its client does not take what is sent to it: a write that does not end
// within the send timeout, or an answer that is still here then (a client can take bytes and not open its window). While a write is stuck
// nothing more is read from the client, so that refusals, which count for no place, can't pile up.
type conns struct {
	net.Listener
	cfg     Limits
	timeout time.Duration
	log     *slog.Logger
	metrics Metrics

	mu      sync.Mutex
	open    int
	callers map[netip.Addr]int
	told    time.Time
}

func newConns(l net.Listener, cfg Config, log *slog.Logger, metrics Metrics) *conns {
	return &conns{Listener: l, cfg: cfg.Limits, timeout: cfg.SendTimeout, log: log, metrics: metrics, callers: map[netip.Addr]int{}}
}

// tellPause is how often a full listener is logged at most.
const tellPause = time.Minute

// Accept implements net.Listener.
func (l *conns) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := callerAddr(raw.RemoteAddr())
		if l.take(from) {
			return newConn(raw, l, from), nil
		}
		raw.Close()
	}
}

func (l *conns) take(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limitOf := ""
	switch {
	case l.open >= l.cfg.MaxConnections:
		limitOf = "server"
	case l.callers[from] >= l.cfg.MaxConnectionsPerCaller:
		limitOf = "caller"
	default:
		l.open++
		l.callers[from]++
		l.metrics.Connected(true)
		return true
	}
	l.metrics.ConnectionRefused(limitOf)
	if now := time.Now(); now.Sub(l.told) >= tellPause {
		l.told = now
		l.log.Warn("a connection is refused: there are too many", "connections", l.open, "limit", l.cfg.MaxConnections,
			"peer", from.String(), "of_peer", l.callers[from], "limit_per_peer", l.cfg.MaxConnectionsPerCaller)
	}
	return false
}

func (l *conns) give(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.metrics.Connected(false)
	if l.callers[from]--; l.callers[from] == 0 {
		delete(l.callers, from)
	}
}

// conn is one client's connection. It knows the answers that wait in it.
type conn struct {
	net.Conn
	owner *conns
	from  netip.Addr
	// writing holds a token while a write runs.
	writing chan struct{}

	mu      sync.Mutex
	closed  bool
	answers map[*answer]struct{}
}

func newConn(raw net.Conn, owner *conns, from netip.Addr) *conn {
	return &conn{Conn: raw, owner: owner, from: from, writing: make(chan struct{}, 1), answers: map[*answer]struct{}{}}
}

// Read implements net.Conn. What it read is given only when no write is stuck.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.owner.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn. What the connection held is given back.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	left := c.answers
	c.answers = nil
	c.mu.Unlock()
	for a := range left {
		a.sent()
	}
	if first {
		c.owner.give(c.from)
	}
	return err
}

// RemoteAddr implements net.Conn: the other end's address, by which the connection is found again.
func (c *conn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

// connAddr is the address of a connection's other end.
type connAddr struct {
	net.Addr
	conn *conn
}

// hold adds an answer until forget or the connection's end; false where that was already.
func (c *conn) hold(a *answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.answers[a] = struct{}{}
	return true
}

func (c *conn) forget(a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.answers, a)
}

// late closes the connection because an answer was not taken in time.
func (c *conn) late() {
	c.owner.log.Info("a connection is closed: its client does not take an answer", "peer", c.Conn.RemoteAddr().String(), "timeout", c.owner.timeout)
	c.Close()
}
