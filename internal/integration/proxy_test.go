package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands before the simulated participant, whose ledger is in its memory: to its clients, cutting all connections and refusing new ones
// for a while is a participant that restarts.
type proxy struct {
	target, address string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]struct{}
	running  sync.WaitGroup
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{target: target, open: map[net.Conn]struct{}{}}
	if err := p.up("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.down()
		p.running.Wait()
	})
	return p
}

// restart is down and up again.
func (p *proxy) restart() error {
	p.down()
	return p.up(p.address)
}

func (p *proxy) up(address string) error {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	p.mu.Lock()
	p.listener, p.address = listener, listener.Addr().String()
	p.mu.Unlock()
	p.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(conn) })
		}
	})
	return nil
}

// down cuts everything.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
	for conn := range p.open {
		_ = conn.Close()
	}
}

func (p *proxy) serve(near net.Conn) {
	var dialer net.Dialer
	far, err := dialer.Dial("tcp", p.target)
	if err != nil {
		_ = near.Close()
		return
	}
	p.mu.Lock()
	p.open[near], p.open[far] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // whichever way ends first ends both
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.open, near)
	delete(p.open, far)
	p.mu.Unlock()
}
