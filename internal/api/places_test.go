package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/telemetry"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// opened opens a call of a batch whose request it does not send and whose answer it does not take.
func opened(t *testing.T, ctx context.Context, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, disclosurev1.DisclosureService_BatchPrepareRedeem_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// untaken asks for an answer that exceeds the client's window, and does not take it.
func untaken(t *testing.T, ctx context.Context, w *world, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	stream := opened(t, ctx, conn)
	if err := stream.SendMsg(batchOf(1000)); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	done := strings.Count(w.logs.String(), `"method":"BatchPrepareRedeem"`)
	w.eventually("call that is done", func() bool { return strings.Count(w.logs.String(), `"method":"BatchPrepareRedeem"`) > done })
	return stream
}

// narrow is a connection whose client has small windows and keeps them.
func (w *world) narrow() *grpc.ClientConn {
	conn := w.dial(insecure.NewCredentials(), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

func (w *world) answers() bool {
	_, err := w.client.GetServerInfo(w.t.Context(), &disclosurev1.GetServerInfoRequest{})
	return err == nil
}

// An answer that its client does not take keeps its call's place, until the client gives the call up.
func TestUntakenAnswersKeepTheirPlaces(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.MaxCallsPerCaller = 2 })
	conn := w.narrow()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		untaken(t, ctx, w, conn)
	}
	_, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
	if info := wantReason(t, err, api.TooManyCalls); info.GetMetadata()["limit_of"] != "caller" {
		t.Errorf("limit_of %q", info.GetMetadata()["limit_of"])
	}
	cancel()
	w.eventually("free place", w.answers)
}

// The bytes of answers that wait are bounded too, and come back once the answer is taken.
func TestUntakenAnswersAreBoundedInBytes(t *testing.T) {
	for of, set := range map[string]func(*api.Limits){
		"caller": func(l *api.Limits) { l.AnswerBytesPerCaller = 2 << 20 },
		"server": func(l *api.Limits) { l.AnswerBytes = 2 << 20 },
	} {
		w := basic(t, func(c *api.Config, _ *api.Deps) {
			c.MaxAnswerBytes = 2 << 20
			set(&c.Limits)
		})
		waiting := untaken(t, t.Context(), w, w.narrow())
		_, err := w.client.BatchPrepareRedeem(t.Context(), batchOf(1000))
		if info := wantReason(t, err, api.TooManyCalls); info.GetMetadata()["limit_of"] != of {
			t.Errorf("limit_of %q, want %q", info.GetMetadata()["limit_of"], of)
		}
		answer := &disclosurev1.BatchPrepareRedeemResponse{}
		if err := waiting.RecvMsg(answer); err != nil || len(answer.GetItems()) != 1000 {
			t.Errorf("the answer that waited: %d items, %v", len(answer.GetItems()), err)
		}
		w.eventually("room", func() bool {
			_, err := w.client.BatchPrepareRedeem(t.Context(), batchOf(1000))
			return err == nil
		})
	}
}

// A client that does not take its answer within the send timeout loses its connection, and the answer's place and bytes are free.
func TestUntakenAnswersCostTheConnection(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) {
		c.SendTimeout = 100 * time.Millisecond
		c.Limits.MaxCallsPerCaller = 1
	})
	waiting := untaken(t, t.Context(), w, w.narrow())
	if err := waiting.RecvMsg(&disclosurev1.BatchPrepareRedeemResponse{}); status.Code(err) != codes.Unavailable {
		// It was read before the timeout at the latest now: then it is whole.
		w.eventually("closed connection", func() bool { return strings.Contains(w.logs.String(), "does not take an answer") || err == nil })
	}
	w.eventually("free place", w.answers)
}

// A call has its place before its request is there, and a request has to arrive within the greatest deadline.
func TestRequestsThatDontArrive(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) {
		c.MaxDeadline, c.DefaultDeadline = 300*time.Millisecond, 300*time.Millisecond
		c.Limits.MaxCallsPerCaller = 1
	})
	stream := opened(t, t.Context(), w.conn)
	refused := false
	w.eventually("refusal", func() bool {
		_, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
		reason, _, _ := reasonOf(err)
		refused = refused || reason == string(api.TooManyCalls)
		return refused
	})
	if err := stream.RecvMsg(&disclosurev1.BatchPrepareRedeemResponse{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call whose request does not come: %v", err)
	}
	w.eventually("free place", w.answers)
}

// Connections are bounded; where all have calls one too many is closed at once, and told in the log.
func TestConnectionLimits(t *testing.T) {
	for limitOf, set := range map[string]func(*api.Limits){
		"caller": func(l *api.Limits) { l.MaxConnectionsPerCaller = 2 },
		"server": func(l *api.Limits) { l.MaxConnections = 2 },
	} {
		name := "of the " + limitOf
		w := basic(t, func(c *api.Config, _ *api.Deps) { set(&c.Limits) })
		ctx, cancel := context.WithCancel(t.Context())
		w.watched(ctx, w.conn)
		other := w.dial(insecure.NewCredentials())
		w.watched(ctx, other)
		third := w.rawConn("")
		if n, err := third.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: the third connection: %d bytes, %v; want its end", name, n, err)
		}
		if !strings.Contains(w.logs.String(), "a connection is refused") {
			t.Errorf("%s: nothing in the log", name)
		}
		if open, refused := w.metric("disclosured_api_connections"), w.metric("disclosured_api_connections_refused_total", limitOf); open != 2 || refused != 1 {
			t.Errorf("%s: the metrics show %v connections and %v refused, want 2 and 1", name, open, refused)
		}
		other.Close()
		w.eventually("free connection", func() bool {
			// The server sends its settings first.
			_, err := w.rawConn("").Read(make([]byte, 1))
			return err == nil
		})
		cancel()
	}
}

// watched opens a health watch on the connection, which keeps it busy until the context ends.
func (w *world) watched(ctx context.Context, conn *grpc.ClientConn) {
	w.t.Helper()
	watch, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
}

// preface is how a client's connection begins, with empty settings: it owes no more.
var preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")

// A few addresses that take every connection, be it with silence or with HTTP/2 and pings, keep nobody out: whoever has less gets in at once, and
// nobody else loses a connection, with or without calls.
func TestFewAddressesDontLockOut(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.MaxConnections, c.Limits.MaxConnectionsPerCaller = 40, 20 })
	if !w.answers() {
		t.Fatal("no answer")
	}
	before := w.rawConn("127.0.0.9")
	if _, err := before.Write(preface); err != nil {
		t.Fatal(err)
	}
	if _, err := before.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		for j := range 30 {
			hostile := w.rawConn(fmt.Sprintf("127.0.0.%d", 2+i))
			if j%2 == 0 {
				_, _ = hostile.Write(preface) // may be closed already
			}
		}
	}
	w.eventually("full listener", func() bool { return w.metric("disclosured_api_connections") == 40 })
	for i := range 8 {
		conn := w.dial(insecure.NewCredentials(), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return w.dialFrom(fmt.Sprintf("127.0.1.%d", 1+i))
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := disclosurev1.NewDisclosureServiceClient(conn).GetServerInfo(ctx, &disclosurev1.GetServerInfoRequest{}); err != nil {
			t.Errorf("newcomer %d: %v", i, err)
		}
		cancel()
		conn.Close()
	}
	if state := w.conn.GetState(); state != connectivity.Ready || !w.answers() {
		t.Errorf("the connection of who was there before is %v", state)
	}
	if err := before.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, before); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the idle connection of who was there before: %v, want it open", err)
	}
	if !strings.Contains(w.logs.String(), "a connection makes room for a new one") {
		t.Error("nothing in the log")
	}
}

// Behind a proxy all are one address: whoever comes takes the place that is longest without calls, and who has a call keeps its own.
func TestOneAddressIsShared(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.MaxConnectionsPerCaller = 8 })
	w.watched(t.Context(), w.conn)
	for range 50 {
		w.rawConn("")
	}
	conn := w.dial(insecure.NewCredentials())
	defer conn.Close()
	if _, err := disclosurev1.NewDisclosureServiceClient(conn).GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{}); err != nil {
		t.Errorf("a newcomer of the same address: %v", err)
	}
	if open := w.metric("disclosured_api_connections"); open != 8 {
		t.Errorf("%v connections, want 8", open)
	}
	if state := w.conn.GetState(); state != connectivity.Ready {
		t.Errorf("the connection with a call is %v", state)
	}
}

// The operator's endpoints have the same room: who fills it, with silence or with half a request, keeps no probe out.
func TestOperatorsConnections(t *testing.T) {
	w := basic(t)
	at := strings.TrimPrefix(w.opsURL, "http://")
	dial := func(from string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	first := dial("127.0.0.2")
	for i := range 5 {
		for j := range 70 {
			conn := dial(fmt.Sprintf("127.0.0.%d", 2+i))
			if j%2 == 0 {
				_, _ = conn.Write([]byte("GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow")) // may be closed already
			}
		}
	}
	if code, _ := w.get("/livez"); code != 200 {
		t.Errorf("/livez is %d", code)
	}
	if err := first.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil { // before its own time is over
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first of 70 connections of one address: %v, want its end", err)
	}
}

// A socket that does not say within seconds that it speaks HTTP/2 is closed, however slowly it says something. Time is simulated.
func TestSilentSocketsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, err := index.Open(t.Context(), index.Policy{}, nil, index.Options{})
		if err != nil {
			t.Fatal(err)
		}
		server, err := api.New(api.DefaultConfig(), api.Deps{Index: x, Status: func() api.Status { return api.Status{} }, Metrics: telemetry.New("test").API})
		if err != nil {
			t.Fatal(err)
		}
		listener := bufconn.Listen(1 << 20)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- server.ServeOn(ctx, listener, nil) }()
		began := time.Now()
		var closing sync.WaitGroup
		for _, says := range []string{"", "PRI * HTTP/2.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
			conn, err := listener.DialContext(ctx)
			if err != nil {
				t.Fatal(err)
			}
			closing.Go(func() {
				for _, b := range []byte(says) {
					if _, err := conn.Write([]byte{b}); err != nil {
						break
					}
					<-time.After(100 * time.Millisecond)
				}
				_, _ = io.Copy(io.Discard, conn) // ends with the connection, in one way or another
				if took := time.Since(began); took != 5*time.Second {
					t.Errorf("closed after %s", took)
				}
				conn.Close()
			})
		}
		closing.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// metric is the value of a counter or level, of the series with these labels; 0 where there is none.
func (w *world) metric(name string, labels ...string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gatherer().Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var own []string
			for _, l := range m.GetLabel() {
				own = append(own, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(own, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// dialFrom connects from an address of this host; "" is any.
func (w *world) dialFrom(from string) (net.Conn, error) {
	dialer := &net.Dialer{}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return dialer.DialContext(w.t.Context(), "tcp", w.addr)
}

func (w *world) rawConn(from string) net.Conn {
	w.t.Helper()
	conn, err := w.dialFrom(from)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}
