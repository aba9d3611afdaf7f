package api

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// healthServices are the names that grpc.health answers for: the server as a whole, and the service.
var healthServices = []string{"", disclosurev1.DisclosureService_ServiceDesc.ServiceName}

// healthServer is grpc.health.v1. Check and List work out readiness when they are asked, so they can't lag behind a call or
// /readyz. Watch is pushed by the server's watching goroutine, on the index's and the clock's pace.
type healthServer struct {
	healthv1.UnimplementedHealthServer
	pushed *health.Server
	ready  func() bool
}

func newHealthServer(ready func() bool) *healthServer {
	h := &healthServer{pushed: health.NewServer(), ready: ready}
	for _, service := range healthServices {
		h.pushed.SetServingStatus(service, healthv1.HealthCheckResponse_NOT_SERVING)
	}
	return h
}

// push brings watchers up to date; it does nothing where the status is the same.
func (h *healthServer) push() {
	for _, service := range healthServices {
		h.pushed.SetServingStatus(service, h.status())
	}
}

func (h *healthServer) status() healthv1.HealthCheckResponse_ServingStatus {
	if h.ready() {
		return healthv1.HealthCheckResponse_SERVING
	}
	return healthv1.HealthCheckResponse_NOT_SERVING
}

// Check implements grpc.health.v1.Health.
func (h *healthServer) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if _, err := h.pushed.Check(ctx, req); err != nil { // an unknown service: NOT_FOUND, as the protocol wants it
		return nil, err
	}
	return &healthv1.HealthCheckResponse{Status: h.status()}, nil
}

// List implements grpc.health.v1.Health.
func (h *healthServer) List(context.Context, *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	list := &healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{}}
	for _, service := range healthServices {
		list.Statuses[service] = &healthv1.HealthCheckResponse{Status: h.status()}
	}
	return list, nil
}

// Watch implements grpc.health.v1.Health.
func (h *healthServer) Watch(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	return h.pushed.Watch(req, stream)
}

// healthPace is how often watchers learn of readiness. Freshness runs out with time and not with an event, so there is a pace.
const healthPace = 250 * time.Millisecond

// run pushes until the context ends.
func (h *healthServer) run(ctx context.Context) {
	tick := time.NewTicker(healthPace)
	defer tick.Stop()
	for {
		h.push()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
