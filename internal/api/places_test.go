package api_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/api"
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

// Connections are bounded; one too many is closed at once and told in the log.
func TestConnectionLimits(t *testing.T) {
	for limitOf, set := range map[string]func(*api.Limits){
		"caller": func(l *api.Limits) { l.MaxConnectionsPerCaller = 2 },
		"server": func(l *api.Limits) { l.MaxConnections = 2 },
	} {
		name := "of the " + limitOf
		w := basic(t, func(c *api.Config, _ *api.Deps) { set(&c.Limits) })
		if !w.answers() {
			t.Fatalf("%s: the first connection does not serve", name)
		}
		second, third := w.rawConn(), w.rawConn()
		if n, err := third.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: the third connection: %d bytes, %v; want its end", name, n, err)
		}
		if !strings.Contains(w.logs.String(), "a connection is refused") {
			t.Errorf("%s: nothing in the log", name)
		}
		if open, refused := w.metric("disclosured_api_connections"), w.metric("disclosured_api_connections_refused_total", limitOf); open != 2 || refused != 1 {
			t.Errorf("%s: the metrics show %v connections and %v refused, want 2 and 1", name, open, refused)
		}
		second.Close()
		w.eventually("free connection", func() bool {
			// The server sends its settings first.
			_, err := w.rawConn().Read(make([]byte, 1))
			return err == nil
		})
	}
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

func (w *world) rawConn() net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}
