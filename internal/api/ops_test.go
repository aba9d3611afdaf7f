package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/telemetry"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// servedOn starts a server of an empty index on these listeners, and stops it, and waits for it, when the test ends.
func servedOn(t *testing.T, log io.Writer, listener, ops net.Listener) {
	t.Helper()
	x, err := index.Open(t.Context(), index.Policy{}, nil, index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	metrics := telemetry.New("test")
	server, err := api.New(api.DefaultConfig(), api.Deps{
		Index: x, Status: func() api.Status { return api.Status{} }, Metrics: metrics.API, MetricsHandler: metrics.Handler(),
		Log: slog.New(slog.NewJSONHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.ServeOn(ctx, listener, ops) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// tight is a listener whose connections have little room for what is sent, and that counts the writes that are under way.
type tight struct {
	net.Listener
	writing atomic.Int32
}

func (l *tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := c.(*net.TCPConn).SetWriteBuffer(2048); err != nil {
		return nil, err
	}
	return &tightConn{c, l}, nil
}

type tightConn struct {
	net.Conn
	owner *tight
}

func (c *tightConn) Write(b []byte) (int, error) {
	c.owner.writing.Add(1)
	defer c.owner.writing.Add(-1)
	return c.Conn.Write(b)
}

// Who asks for the metrics again and again and reads nothing takes them from nobody, nor any other endpoint.
func TestMetricsOfOthersDontWait(t *testing.T) {
	ops := &tight{Listener: listen(t)}
	servedOn(t, io.Discard, listen(t), ops)
	const stuck = 20
	requests := bytes.Repeat([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), 2000)
	var asking sync.WaitGroup
	var silent []net.Conn
	for range stuck {
		conn := tightDial(t, "127.0.0.2", ops.Addr().String())
		silent = append(silent, conn)
		asking.Go(func() { _, _ = conn.Write(requests) }) // ends with the connection, at the latest
	}
	defer asking.Wait()
	defer func() {
		for _, conn := range silent {
			conn.Close()
		}
	}()
	(&world{t: t}).eventually("twenty stuck writes", func() bool { return ops.writing.Load() == stuck })
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.1")}}).DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	for i := range 40 {
		for path, want := range map[string]int{"/metrics": 200, "/livez": 200, "/readyz": 503, "/healthz": 503} {
			resp, err := client.Get("http://" + ops.Addr().String() + path)
			if err != nil {
				t.Fatalf("round %d: %s: %v", i, path, err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != want || path == "/metrics" && !strings.Contains(string(body), "disclosured_build_info") {
				t.Fatalf("round %d: %s: %d %.80q, %v", i, path, resp.StatusCode, body, err)
			}
		}
	}
	(&world{t: t}).eventually("twenty writes, stuck still", func() bool { return ops.writing.Load() == stuck })
}

// tightDial connects from an address, with little room for what is received.
func tightDial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2048) })
		if err == nil {
			err = failed
		}
		return err
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// exhausted is a listener of a process that has no descriptor left, for its first calls.
type exhausted struct {
	net.Listener
	left atomic.Int32
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Source: l.Addr(), Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// Where the process has no descriptor left for a connection, both listeners try again, and say so.
func TestOpsAndCallsSurviveExhaustedDescriptors(t *testing.T) {
	listener, ops := &exhausted{Listener: listen(t)}, &exhausted{Listener: listen(t)}
	listener.left.Store(5)
	ops.left.Store(5)
	logs := &syncBuffer{}
	servedOn(t, logs, listener, ops)
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := disclosurev1.NewDisclosureServiceClient(conn).GetServerInfo(ctx, &disclosurev1.GetServerInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("a call: %v", err)
	}
	resp, err := http.Get(fmt.Sprintf("http://%s/livez", ops.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for _, of := range []string{"gRPC", "ops"} {
		if n := strings.Count(logs.String(), fmt.Sprintf(`"msg":"a connection can't be accepted; it is tried again","listener":"%s"`, of)); n != 1 {
			t.Errorf("the log says of %s %d times that connections can't be accepted, want once:\n%s", of, n, logs)
		}
	}
}
