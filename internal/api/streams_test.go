package api_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/api"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// reflecting is a stream of reflection, and a function that asks in it.
func reflecting(t *testing.T, conn *grpc.ClientConn) func() error {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		// Where sending fails, receiving says why.
		_ = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: serviceName}})
		_, err := stream.Recv()
		return err
	}
}

// What is asked of reflection counts as a caller's calls, however many streams and connections it comes by.
func TestReflectionIsLimited(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.RatePerSecond, c.Limits.Burst = 1, 20 })
	asked := 0
	var err error
	for err == nil && asked < 100 {
		conn := w.dial(insecure.NewCredentials())
		defer conn.Close()
		ask := reflecting(t, conn)
		for range 7 {
			if err = ask(); err != nil {
				break
			}
			asked++
		}
	}
	wantReason(t, err, api.RateLimited)
	checkRow(t, err)
	if asked != 20 {
		t.Errorf("%d questions were answered, want 20 at a burst of 20 and a clock that stands", asked)
	}
	_, err = w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
	wantReason(t, err, api.RateLimited)
	w.setNow(epoch.Add(2 * time.Second))
	if err := reflecting(t, w.conn)(); err != nil {
		t.Errorf("once there are tokens again: %v", err)
	}

	// The older version's messages are the same.
	alpha, err := w.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
	for asked = 0; err == nil && asked < 100; asked++ {
		_ = alpha.SendMsg(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		err = alpha.RecvMsg(&reflectionv1.ServerReflectionResponse{})
	}
	wantReason(t, err, api.RateLimited)
}

// Streams of reflection are a caller's streams, on whatever connection.
func TestReflectionStreamsAreLimited(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.Limits.MaxStreamsPerCaller = 2 })
	for i := range 3 {
		conn := w.dial(insecure.NewCredentials())
		defer conn.Close()
		if err := reflecting(t, conn)(); i == 2 {
			wantReason(t, err, api.TooManyStreams)
		} else if err != nil {
			t.Error(err)
		}
	}
}

// What is no request is INVALID_ARGUMENT of gRPC's own services too, where grpc-go says INTERNAL.
func TestUndecodableRequestsOfGRPCsServices(t *testing.T) {
	w := basic(t)
	health := healthv1.NewHealthClient(w.conn)
	for name, raw := range map[string]rawBytes{
		"a text that is not UTF-8": {0x0a, 2, 0xff, 0xfe}, "cut short": {0x0a, 9, 'a'}, "no message": {0xff, 0xff, 0xff},
	} {
		_, check := health.Check(t.Context(), &healthv1.HealthCheckRequest{}, raw.option())
		_, list := health.List(t.Context(), &healthv1.HealthListRequest{}, rawBytes{0xff, 0xff, 0xff}.option())
		watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{}, raw.option())
		if err != nil {
			t.Fatal(err)
		}
		_, watched := watch.Recv()
		stream, err := reflectionv1.NewServerReflectionClient(w.conn).ServerReflectionInfo(t.Context(), raw.option())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{}); err != nil {
			t.Fatal(err)
		}
		_, reflected := stream.Recv()
		for method, err := range map[string]error{"Check": check, "List": list, "Watch": watched, "ServerReflectionInfo": reflected} {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s of %s: %v", name, method, err)
			}
			wantReason(t, err, api.InvalidField)
		}
	}
	if answer, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: serviceName}); err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("a good one: %v, %v", answer, err)
	}
}

// One full audit runs at once, and four others; who is one too many is told to come again, and one that waits for what its caller asked for
// keeps nobody out.
func TestAuditsAtOnce(t *testing.T) {
	waits := make(chan struct{}, 10)
	w := basic(t, noticed(waits))
	full, others := w.server.AuditPlaces()
	audit := func(full bool) error {
		_, err := w.client.Audit(t.Context(), &disclosurev1.AuditRequest{Full: full})
		return err
	}
	for range 3 { // places come back
		for of, places := range map[bool]chan struct{}{true: full, false: others} {
			for range cap(places) {
				if err := audit(of); err != nil {
					t.Errorf("full %v: refused although there is a place: %v", of, err)
				}
				places <- struct{}{}
			}
			err := audit(of)
			if info := wantReason(t, err, api.TooManyCalls); info.GetMetadata()["limit_of"] != "server" {
				t.Errorf("limit_of %q", info.GetMetadata()["limit_of"])
			}
			checkRow(t, err)
			if err := audit(!of); err != nil {
				t.Errorf("full %v: %v while only the other kind's places are taken", !of, err)
			}
			for range cap(places) {
				<-places
			}
			if err := audit(of); err != nil {
				t.Errorf("full %v: refused although there are places again: %v", of, err)
			}
		}
	}
	if cap(full) != 1 || cap(others) != 4 {
		t.Errorf("%d full audits at once and %d others, want 1 and 4", cap(full), cap(others))
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.client.Audit(ctx, &disclosurev1.AuditRequest{Full: true, Read: &disclosurev1.ReadOptions{AfterUpdateId: "1220ab"}})
		ended <- err
	}()
	<-waits
	if err := audit(true); err != nil {
		t.Errorf("a full audit while another one waits: %v", err)
	}
	cancel()
	<-ended
}
