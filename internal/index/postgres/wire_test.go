package postgres

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// fault is what a wire does about one query of the simple protocol, such as COMMIT.
type fault int

const (
	pass fault = iota
	// cutBefore cuts the connection instead of delivering the query: it never happens.
	cutBefore
	// cutAfter delivers the query, waits for the answer, and cuts the connection instead of delivering that.
	cutAfter
)

// wire is a line to a PostgreSQL server that can be cut and frozen, and that sees the queries of the simple protocol.
type wire struct {
	url    string // of the server through the wire
	target string
	ln     net.Listener

	mu     sync.Mutex
	frozen chan struct{}       // not nil while frozen
	lost   chan struct{}       // closed by lose: what is open then swallows everything for ever
	over   chan struct{}       // closed at the test's end
	fault  func(string) fault  // asked for each query; nil passes all
	ends   map[net.Conn]string // open connections
	done   sync.WaitGroup
}

// newWire gives a wire to the server of a URL.
func newWire(t testing.TB, serverURL string) *wire {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{target: u.Host, ln: ln, ends: map[net.Conn]string{}, lost: make(chan struct{}), over: make(chan struct{})}
	u.Host = ln.Addr().String()
	w.url = u.String()
	w.done.Go(w.accept)
	t.Cleanup(func() {
		ln.Close()
		close(w.over)
		w.heal()
		w.cutAll()
		w.done.Wait()
	})
	return w
}

func (w *wire) accept() {
	for {
		client, err := w.ln.Accept()
		if err != nil {
			return
		}
		w.track(client, "client")
		w.done.Go(func() { w.serve(client) })
	}
}

func (w *wire) track(conn net.Conn, end string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends[conn] = end
}

func (w *wire) close(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
		delete(w.ends, conn)
	}
}

// cutAll closes every open connection.
func (w *wire) cutAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.ends {
		conn.Close()
	}
}

// setFault says what to do about queries from now on.
func (w *wire) setFault(f func(query string) fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// once gives a fault to the next query that begins so, and passes all others.
func (w *wire) once(begin string, what fault) {
	var spent sync.Once
	w.setFault(func(query string) fault {
		verdict := pass
		if strings.HasPrefix(query, begin) {
			spent.Do(func() { verdict = what })
		}
		return verdict
	})
}

// freeze makes the wire a black hole: nothing is delivered, nothing is closed. Connections that were open stay dead after heal.
func (w *wire) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = make(chan struct{})
}

// heal lets new connections through again.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.frozen != nil {
		close(w.frozen)
		w.frozen = nil
	}
}

// lose makes the connections that are open swallow everything for ever, as when a firewall has forgotten them. New ones work.
func (w *wire) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.lost)
	w.lost = make(chan struct{})
}

// lostMark is the channel that is closed once the connections that are open now are lost.
func (w *wire) lostMark() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// hole is the channel that is closed when the wire heals; nil where it is not frozen.
func (w *wire) hole() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.frozen
}

func (w *wire) verdict(query string) fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		return pass
	}
	return w.fault(query)
}

// serve carries one connection.
func (w *wire) serve(client net.Conn) {
	if hole := w.hole(); hole != nil { // a connection made in the dark stays dead
		<-hole
		w.close(client)
		return
	}
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		w.close(client)
		return
	}
	w.track(server, "server")
	defer w.close(client, server)

	lost := w.lostMark()
	var mu sync.Mutex
	dropAnswers := false
	answered := make(chan struct{})
	w.done.Go(func() { // server to client
		defer w.close(client, server)
		defer close(answered)
		for {
			message, err := readMessage(server, true)
			if err != nil {
				return
			}
			mu.Lock()
			drop := dropAnswers
			mu.Unlock()
			if drop {
				if message[0] == 'Z' {
					return
				}
				continue
			}
			if !w.deliver(client, message, lost) {
				return
			}
		}
	})
	for typed := false; ; typed = true { // client to server; the first message has no type
		message, err := readMessage(client, typed)
		if err != nil {
			return
		}
		if typed && message[0] == 'Q' {
			switch w.verdict(string(message[5 : len(message)-1])) {
			case cutBefore:
				return
			case cutAfter:
				mu.Lock()
				dropAnswers = true
				mu.Unlock()
				w.deliver(server, message, lost)
				<-answered
				return
			}
		}
		if !w.deliver(server, message, lost) {
			return
		}
	}
}

// deliver writes a message, unless the wire is a black hole: then it is lost, and so is all that follows on this connection.
func (w *wire) deliver(to net.Conn, message []byte, lost chan struct{}) bool {
	select {
	case <-lost:
		<-w.over
		return false
	default:
	}
	if hole := w.hole(); hole != nil {
		<-hole
		return false
	}
	_, err := to.Write(message)
	return err == nil
}

// readMessage reads one message of PostgreSQL's protocol, with its head.
func readMessage(from io.Reader, typed bool) ([]byte, error) {
	head := make([]byte, 4, 5)
	if typed {
		head = head[:5]
	}
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(head[len(head)-4:]))
	message := make([]byte, len(head)-4+length)
	copy(message, head)
	_, err := io.ReadFull(from, message[len(head):])
	return message, err
}
