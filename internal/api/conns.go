package api

import (
	"container/list"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// room is how many connections a listener holds at once.
type room struct {
	// of names the listener in the log.
	of             string
	max, perCaller int
	// cuts lets a connection with calls make room too, where its caller holds more than the newcomer would. Without it calls are never cut, so
	// max should exceed what calls can keep busy.
	cuts bool
	// timeout is how long a client may take to receive what is sent to it; 0 leaves that to the server.
	timeout time.Duration
}

// connMetrics is what of Metrics is about connections.
type connMetrics interface {
	Connected(open bool)
	ConnectionRefused(limitOf string)
}

// conns is a listener that bounds its connections and what they may hold.
//
// Who may have a place where all are taken is decided so that a few addresses can't lock everyone else out, whatever they do with theirs:
// open them and say nothing, speak HTTP/2 and answer pings, make a call now and then.
//
//   - Of a caller that has all its places, the connection that is longest without calls makes room.
//   - Where the listener is full, the caller with the most connections gives one up, likewise, if it has more than the newcomer's. So each can have
//     its equal share, and who keeps to it loses nothing to those who take more.
//   - Connections with calls are not closed. Where there are only such, the new one is closed at once: a client that hears so tries again,
//     later or elsewhere, which one that waits in a backlog can't.
//
// The longest without calls goes, and not those first that have never had one: a newcomer has none yet either, and would be the first to go
// while others arrive. A connection that is closed without calls costs its client a new one at its next call. A caller is an address, so a proxy's clients,
// hostile ones and others, are one caller: they share its places by the first rule.
//
// A connection is closed, with everything that waits in it, where its client does not take what is sent to it: a write that does not end
// within the send timeout, or an answer that is still here then (a client can take bytes and not open its window). While a write is stuck
// nothing more is read from the client, so that refusals, which count for no place, can't pile up.
type conns struct {
	net.Listener
	room    room
	log     *slog.Logger
	metrics connMetrics

	mu      sync.Mutex
	open    int
	callers map[netip.Addr]*holder
	told    time.Time

	failed time.Time // Accept's own
}

// holder is a caller's connections, those that wait and those with calls, each in the order in which they came to that.
type holder struct {
	open       int
	idle, busy list.List
}

func newConns(l net.Listener, room room, log *slog.Logger, metrics connMetrics) *conns {
	return &conns{Listener: l, room: room, log: log, metrics: metrics, callers: map[netip.Addr]*holder{}}
}

// tellPause is how often a full listener is logged at most.
const tellPause = time.Minute

// Accept implements net.Listener.
func (l *conns) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			l.tellFailed(err)
			return nil, err
		}
		c := newConn(raw, l, callerAddr(raw.RemoteAddr()))
		displaced, ok := l.take(c)
		if displaced != nil {
			displaced.Close()
		}
		if ok {
			return c, nil
		}
		raw.Close()
	}
}

// tellFailed logs what keeps connections out but does not end the listener, as that the process or the system has no descriptor left. Both
// servers try again, after five milliseconds at first and after a second at most; what grpc says of it nobody sees.
func (l *conns) tellFailed(err error) {
	var failed interface{ Temporary() bool } // what both go by
	if !errors.As(err, &failed) || !failed.Temporary() || time.Since(l.failed) < tellPause {
		return
	}
	l.failed = time.Now()
	l.log.Warn("a connection can't be accepted; it is tried again", "listener", l.room.of, "error", err)
}

// take gives the connection a place, which may be another one's.
func (l *conns) take(c *conn) (displaced *conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := l.callers[c.from]
	if mine == nil {
		mine = &holder{}
	}
	limitOf := ""
	switch {
	case mine.open >= l.room.perCaller:
		limitOf, displaced = "caller", longest(&mine.idle)
	case l.open >= l.room.max:
		limitOf, displaced = "server", l.giving(mine)
	}
	if limitOf != "" {
		l.metrics.ConnectionRefused(limitOf)
		l.tell(c, mine.open, displaced)
		if displaced == nil {
			return nil, false
		}
		l.remove(displaced)
	}
	l.open++
	mine.open++
	l.callers[c.from] = mine // again: it may have been removed with its last connection
	c.holder, c.since = mine, time.Now()
	c.place = mine.idle.PushBack(c)
	l.metrics.Connected(true)
	return displaced, true
}

// giving is the connection that makes room for one more of the holder's; nil where none has to.
func (l *conns) giving(mine *holder) *conn {
	if c := l.heaviest(func(h *holder) *conn {
		if h == mine || h.open > mine.open {
			return longest(&h.idle)
		}
		return nil
	}); c != nil || !l.room.cuts {
		return c
	}
	return l.heaviest(func(h *holder) *conn {
		if h.open > mine.open+1 {
			return longest(&h.busy)
		}
		return nil
	})
}

// heaviest is what is given of the caller with the most connections; of equal ones, what has been as it is for longest.
func (l *conns) heaviest(gives func(*holder) *conn) (found *conn) {
	for _, h := range l.callers {
		if found != nil && h.open < found.holder.open {
			continue
		}
		if c := gives(h); c != nil && (found == nil || h.open > found.holder.open || c.since.Before(found.since)) {
			found = c
		}
	}
	return found
}

func longest(of *list.List) *conn {
	if first := of.Front(); first != nil {
		return first.Value.(*conn)
	}
	return nil
}

func (l *conns) tell(c *conn, ofPeer int, displaced *conn) {
	now := time.Now()
	if now.Sub(l.told) < tellPause {
		return
	}
	l.told = now
	log := l.log.With("listener", l.room.of, "connections", l.open, "limit", l.room.max,
		"peer", c.from.String(), "of_peer", ofPeer, "limit_per_peer", l.room.perCaller)
	if displaced == nil {
		log.Warn("a connection is refused: there are too many")
		return
	}
	log.Warn("a connection makes room for a new one: there are too many", "of", displaced.from.String(), "of_that", displaced.holder.open)
}

// remove takes a connection's place away, if it has it still.
func (l *conns) remove(c *conn) {
	if c.place == nil {
		return
	}
	c.list().Remove(c.place)
	c.place = nil
	l.open--
	l.metrics.Connected(false)
	if c.holder.open--; c.holder.open == 0 {
		delete(l.callers, c.from)
	}
}

// conn is one client's connection. It knows the answers that wait in it.
type conn struct {
	net.Conn
	owner *conns
	from  netip.Addr
	// writing holds a token while a write runs.
	writing chan struct{}

	// Under the owner's lock: its caller's connections, its place among them (nil: none), how many calls it has, and since when it has any or none.
	holder *holder
	place  *list.Element
	calls  int
	since  time.Time

	mu      sync.Mutex
	closed  bool
	answers map[*answer]struct{}
}

func newConn(raw net.Conn, owner *conns, from netip.Addr) *conn {
	return &conn{Conn: raw, owner: owner, from: from, writing: make(chan struct{}, 1), answers: map[*answer]struct{}{}}
}

// list is where the connection's place is.
func (c *conn) list() *list.List {
	if c.calls > 0 {
		return &c.holder.busy
	}
	return &c.holder.idle
}

// begin counts a call, which keeps the connection from making room, until end.
func (c *conn) begin() { c.count(1) }
func (c *conn) end()   { c.count(-1) }

func (c *conn) count(more int) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	if c.place == nil {
		c.calls += more
		return
	}
	before := c.list()
	c.calls += more
	if now := c.list(); now != before {
		before.Remove(c.place)
		c.place, c.since = now.PushBack(c), time.Now()
	}
}

// Read implements net.Conn. What it read is given only when no write is stuck.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.owner.room.timeout == 0 {
		return n, err
	}
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if c.owner.room.timeout == 0 {
		return c.Conn.Write(b)
	}
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.owner.room.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn. What the connection held is given back.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	c.closed = true
	left := c.answers
	c.answers = nil
	c.mu.Unlock()
	for a := range left {
		a.sent()
	}
	c.owner.mu.Lock()
	c.owner.remove(c)
	c.owner.mu.Unlock()
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
	c.owner.log.Info("a connection is closed: its client does not take an answer", "peer", c.Conn.RemoteAddr().String(), "timeout", c.owner.room.timeout)
	c.Close()
}
