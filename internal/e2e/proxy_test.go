package e2e

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards TCP to a target and fails on demand. What it swallows is held back and not lost, as when a network drops packets
// and TCP sends them again: no end of a connection tells either side.
type proxy struct {
	address string

	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	target string
	// open is closed while traffic flows.
	open  chan struct{}
	links map[*link]struct{}
	ended bool
}

// link is one connection through the proxy.
type link struct {
	near, far net.Conn // far is nil until dialled
	// gone is closed when the link is cut. lost links stay swallowed for ever.
	gone chan struct{}
	lost bool
}

// newProxy starts a proxy to the target on a free port, until the test ends.
func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: listener.Addr().String(), listener: listener, target: target, open: make(chan struct{}), links: map[*link]struct{}{}}
	close(p.open)
	p.done.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		listener.Close()
		p.cut()
		p.done.Wait()
	})
	return p
}

// cut closes all connections; new ones are accepted.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.drop(l)
	}
}

// drop closes a link. The lock must be held.
func (p *proxy) drop(l *link) {
	if _, ok := p.links[l]; !ok {
		return
	}
	delete(p.links, l)
	close(l.gone)
	l.near.Close()
	if l.far != nil {
		l.far.Close()
	}
}

// swallow lets nothing pass any more, without a word to anybody.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

// heal lets traffic pass again. Where the connections are lost, those that were there before stay swallowed, as behind a device that has
// forgotten them: only new ones work.
func (p *proxy) heal(lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lost {
		for l := range p.links {
			l.lost = true
		}
	}
	close(p.open)
}

// retarget cuts all connections and sends new ones to another target: the same name, another server.
func (p *proxy) retarget(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{near: conn, gone: make(chan struct{})}
		p.mu.Lock()
		if p.ended {
			p.mu.Unlock()
			conn.Close()
			return
		}
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.done.Go(func() { p.forward(l) })
	}
}

// passes waits until traffic flows on the link; false where the link was cut first.
func (p *proxy) passes(l *link) bool {
	for {
		p.mu.Lock()
		open, lost := p.open, l.lost
		p.mu.Unlock()
		if lost {
			<-l.gone
			return false
		}
		select {
		case <-open:
			p.mu.Lock()
			same := p.open == open && !l.lost
			p.mu.Unlock()
			if same {
				return true
			}
		case <-l.gone:
			return false
		}
	}
}

func (p *proxy) forward(l *link) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drop(l)
	}()
	if !p.passes(l) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var dialer net.Dialer
	far, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	p.mu.Lock()
	if _, ok := p.links[l]; !ok {
		p.mu.Unlock()
		far.Close()
		return
	}
	l.far = far
	p.mu.Unlock()
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, far, l.near) })
	pumps.Go(func() { p.pump(l, l.near, far) })
	pumps.Wait()
}

// pump copies one direction until its source ends or the link is cut.
func (p *proxy) pump(l *link, to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !p.passes(l) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !p.passes(l) {
				return
			}
			break
		}
	}
	if !p.passes(l) { // an end is swallowed too
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(l)
}
