package api

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
)

// limiter bounds what each caller, and all of them together, may have going at once and per second. A caller is the address of
// the socket's other end; an IPv6 caller is its /64, because a host has that many addresses to spare.
//
// The table of callers is bounded. An entry without calls in progress whose bucket is full again says nothing any more and is
// dropped; where none is left to drop, new callers share one bucket, so that a flood of addresses limits itself and not those
// already known.
type limiter struct {
	cfg Limits
	now func() time.Time

	mu             sync.Mutex
	callers        map[netip.Addr]*caller
	others         *caller
	calls, streams int
	held           int // bytes of answers
	swept          time.Time
}

type caller struct {
	bucket         *rate.Limiter // nil: no limit
	calls, streams int
	held           int
}

func newLimiter(cfg Limits, now func() time.Time) *limiter {
	l := &limiter{cfg: cfg, now: now, callers: map[netip.Addr]*caller{}}
	l.others = l.newCaller()
	return l
}

func (l *limiter) newCaller() *caller {
	c := &caller{}
	if l.cfg.RatePerSecond > 0 {
		c.bucket = rate.NewLimiter(rate.Limit(l.cfg.RatePerSecond), l.cfg.Burst)
	}
	return c
}

// kind tells unary calls from streams.
type kind bool

const (
	unary     kind = false
	streaming kind = true
)

func (k kind) String() string {
	if k == streaming {
		return "stream"
	}
	return "unary"
}

// admit takes a place and cost tokens for a call, or says why not. The caller calls release once when the call is over.
func (l *limiter) admit(from netip.Addr, k kind, cost int) (release func(), refused *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callerOf(from)
	if refused := l.payFrom(c, cost); refused != nil {
		return nil, refused
	}
	all, mine := &l.calls, &c.calls
	most, mostEach, reason := l.cfg.MaxCalls, l.cfg.MaxCallsPerCaller, TooManyCalls
	if k == streaming {
		all, mine = &l.streams, &c.streams
		most, mostEach, reason = l.cfg.MaxStreams, l.cfg.MaxStreamsPerCaller, TooManyStreams
	}
	switch {
	case *mine >= mostEach:
		return nil, failure(reason, "too many at once from this address").with("limit_of", "caller")
	case *all >= most || !fair(*mine, *mine+1, *all, most, mostEach):
		return nil, failure(reason, "too many at once").with("limit_of", "server")
	}
	*all++
	*mine++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*all--
		*mine--
	}), nil
}

// fair reports whether a caller that has mine of what there is may have then, where all callers together have all of most: a caller has no more
// than what it leaves free. So a single one gets half at most, something is left for whoever comes with nothing, and as calls end the shares of
// those who want more than theirs become equal; bounds of each alone would let a handful of addresses take everything. The first that a caller
// asks for is always fair. Where one caller may have everything (a proxy in front, and no other caller), nothing is kept for others.
func fair(mine, then, all, most, mostEach int) bool {
	return mine == 0 || mostEach >= most || then <= most-all
}

// pay takes tokens for what comes in a stream that is admitted already, or refuses.
func (l *limiter) pay(from netip.Addr, cost int) *Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.payFrom(l.callerOf(from), cost)
}

func (l *limiter) payFrom(c *caller, cost int) *Error {
	if c.bucket == nil {
		return nil
	}
	now := l.now()
	taken := c.bucket.ReserveN(now, max(1, min(cost, l.cfg.Burst)))
	if delay := taken.DelayFrom(now); delay > 0 {
		taken.CancelAt(now)
		return rateLimited(delay)
	}
	return nil
}

// maxSpendWait is how long a batch waits for its tokens.
const maxSpendWait = 5 * time.Second

// spend takes tokens for a call that is admitted already, and with its first token, and turns out to cost more. Where there are not enough it
// takes those that come next, and waits for them: were it refused, it would never pass beside calls that take them one by one. Half of the
// call's time, and maxSpendWait, bound the wait; what would take longer is refused.
func (l *limiter) spend(ctx context.Context, from netip.Addr, cost int) error {
	most := maxSpendWait
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)/2)
	}
	delay, refused := l.reserve(from, cost, most)
	if refused != nil {
		return refused
	}
	if delay <= 0 {
		return nil
	}
	defer callOf(ctx).waitedSince(time.Now())
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reserve takes tokens that are there after the delay, or refuses where that is longer than most.
func (l *limiter) reserve(from netip.Addr, cost int, most time.Duration) (delay time.Duration, refused *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callerOf(from)
	cost = min(cost, l.cfg.Burst-1)
	if cost <= 0 || c.bucket == nil {
		return 0, nil
	}
	now := l.now()
	taken := c.bucket.ReserveN(now, cost)
	if delay = taken.DelayFrom(now); delay > most {
		taken.CancelAt(now)
		return 0, rateLimited(delay)
	}
	return delay, nil
}

// rateLimited says when it can pass, if the caller leaves it at that.
func rateLimited(after time.Duration) *Error {
	e := failure(RateLimited, "too many calls from this address")
	e.retryAfter = after
	return e
}

// holdBytes takes room for an answer's bytes until back is called, or says that too many bytes wait to be taken. The caller calls back once.
func (l *limiter) holdBytes(from netip.Addr, size int) (back func(), refused *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callerOf(from)
	switch {
	case c.held+size > l.cfg.AnswerBytesPerCaller:
		return nil, failure(TooManyCalls, "too many bytes of answers wait to be taken by this address").with("limit_of", "caller")
	case l.held+size > l.cfg.AnswerBytes || !fair(c.held, c.held+size, l.held, l.cfg.AnswerBytes, l.cfg.AnswerBytesPerCaller):
		return nil, failure(TooManyCalls, "too many bytes of answers wait to be taken").with("limit_of", "server")
	}
	l.held += size
	c.held += size
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held -= size
		c.held -= size
	}, nil
}

func (l *limiter) callerOf(from netip.Addr) *caller {
	if c, ok := l.callers[from]; ok {
		return c
	}
	if len(l.callers) >= l.cfg.MaxCallers {
		l.sweep()
	}
	if len(l.callers) >= l.cfg.MaxCallers {
		return l.others
	}
	c := l.newCaller()
	l.callers[from] = c
	return c
}

// sweep drops entries that say nothing, at most once a second: a flood must not make every call walk the table.
func (l *limiter) sweep() {
	now := l.now()
	if !l.swept.IsZero() && now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	for from, c := range l.callers {
		if c.calls == 0 && c.streams == 0 && c.held == 0 && (c.bucket == nil || c.bucket.TokensAt(now) >= float64(l.cfg.Burst)) {
			delete(l.callers, from)
		}
	}
}

// callerAddr is the caller that a connection's other end counts as. Connections without an IP address (in one process, over a
// unix socket) are all one caller.
func callerAddr(addr net.Addr) netip.Addr {
	if at, ok := addr.(connAddr); ok {
		addr = at.Addr
	}
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		if prefix, err := ip.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return ip
}

func callerOfContext(ctx context.Context) netip.Addr {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return callerAddr(p.Addr)
	}
	return netip.Addr{}
}
