package ledgerstream

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
)

// deafAtFirst accepts its first connection and never answers on it, as what is behind a half-open one does not.
type deafAtFirst struct {
	net.Listener
	first net.Conn
}

func (l *deafAtFirst) Accept() (net.Conn, error) {
	if l.first == nil {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.first = conn
	}
	return l.Listener.Accept()
}

// TestSilenceMakesANewConnection (A23): where nothing comes on a connection, the next session has another one, long before
// gRPC's keepalive would find out.
func TestSilenceMakesANewConnection(t *testing.T) {
	var config net.ListenConfig
	inner, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := &deafAtFirst{Listener: inner}
	sim := ledgersim.New(ledgersim.Options{})
	served := make(chan error, 1)
	go func() { served <- sim.Serve(listener) }()
	t.Cleanup(func() {
		sim.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if listener.first != nil {
			listener.first.Close()
		}
	})
	conn, err := DialRenewable(ConnConfig{Target: inner.Addr().String(), Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	f := New(Config{
		AnyParty: true, PollInterval: 10 * time.Millisecond, CallTimeout: 100 * time.Millisecond, BackoffInitial: time.Millisecond, BackoffMax: 10 * time.Millisecond,
	}, conn, &memorySink{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	bound := time.NewTimer(20 * time.Second)
	defer bound.Stop()
	for {
		changed := f.Changed()
		st := f.Status()
		if st.State == StateLive {
			if st.Reconnects == 0 {
				t.Error("the first connection answered")
			}
			break
		}
		select {
		case <-changed:
		case <-bound.C:
			t.Fatalf("never live: %+v", st)
		}
	}
}
