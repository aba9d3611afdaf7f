package postgres

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// pooler is a pooler in transaction mode, as PgBouncer is: each transaction of a client gets another one of a few server
// connections, so that nothing that a client leaves in a session is there in its next transaction.
type pooler struct {
	url     string
	ln      net.Listener
	servers chan *pgconn.HijackedConn
	done    sync.WaitGroup

	mu      sync.Mutex
	clients map[net.Conn]bool
	closed  bool
}

// newPooler puts a pooler with so many server connections in front of the database.
func newPooler(t testing.TB, serverURL string, size int) *pooler {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{servers: make(chan *pgconn.HijackedConn, size), clients: map[net.Conn]bool{}}
	var all []*pgconn.HijackedConn
	for range size {
		conn, err := pgconn.Connect(context.Background(), serverURL)
		if err != nil {
			t.Fatal(err)
		}
		server, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		p.servers <- server
		all = append(all, server)
	}
	if p.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = p.ln.Addr().String()
	p.url = u.String()
	p.done.Go(p.accept)
	t.Cleanup(func() {
		p.ln.Close()
		p.mu.Lock()
		p.closed = true
		for client := range p.clients {
			client.Close()
		}
		p.mu.Unlock()
		for _, server := range all {
			server.Conn.Close()
		}
		p.done.Wait()
	})
	return p
}

func (p *pooler) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.closed {
			client.Close()
		}
		p.clients[client] = true
		p.mu.Unlock()
		p.done.Go(func() {
			p.serve(client)
			client.Close()
			p.mu.Lock()
			delete(p.clients, client)
			p.mu.Unlock()
		})
	}
}

// greet does the server's part of the start of a connection.
func (p *pooler) greet(client net.Conn) bool {
	backend := pgproto3.NewBackend(client, client)
	message, err := backend.ReceiveStartupMessage()
	if err != nil {
		return false
	}
	if _, ok := message.(*pgproto3.StartupMessage); !ok {
		return false // a cancel request, say: nothing to cancel here
	}
	server := <-p.servers
	parameters := server.ParameterStatuses
	p.servers <- server
	backend.Send(&pgproto3.AuthenticationOk{})
	for name, value := range parameters {
		backend.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return backend.Flush() == nil
}

// serve carries one client: its messages go to the server of the transaction, and after each that asks for answers they are
// brought until the server is ready.
func (p *pooler) serve(client net.Conn) {
	if !p.greet(client) {
		return
	}
	var server *pgconn.HijackedConn
	defer func() {
		if server != nil { // the client left in mid-transaction: a real pooler would close it
			server.Conn.Close()
		}
	}()
	for {
		message, err := readMessage(client, true)
		if err != nil || message[0] == 'X' {
			return
		}
		if server == nil {
			server = <-p.servers
		}
		if _, err := server.Conn.Write(message); err != nil {
			return
		}
		switch message[0] {
		case 'Q', 'S', 'c', 'f': // query, sync, copy done, copy fail
		default:
			continue
		}
		idle, err := answer(client, server.Conn)
		if err != nil {
			return
		}
		if idle {
			p.servers <- server
			server = nil
		}
	}
}

// answer brings answers until the server waits for the client; idle tells that no transaction is open.
func answer(client, server net.Conn) (idle bool, err error) {
	for {
		message, err := readMessage(server, true)
		if err != nil {
			return false, err
		}
		if _, err := client.Write(message); err != nil {
			return false, err
		}
		switch message[0] {
		case 'Z':
			return message[5] == 'I', nil
		case 'G': // the client may copy
			return false, nil
		}
	}
}
