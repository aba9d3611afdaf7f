package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
	"github.com/disclosured/disclosured/replayguard"
)

// Deps are what the server works with.
type Deps struct {
	Index Index
	// Status is asked at every call.
	Status func() Status
	// FindUpdate asks the participant that is followed where an update is, for updates of which history knows nothing; nil asks nobody. It is
	// called by several goroutines at once, and ends with its context.
	FindUpdate func(ctx context.Context, updateID string) (participantID string, offset int64, found bool)
	// Now is the clock that freshness and rates go by; nil is time.Now.
	Now func() time.Time
	// Log gets the access log (info, or error for INTERNAL); nil discards.
	Log     *slog.Logger
	Metrics Metrics
	// MetricsHandler serves /metrics; nil serves none.
	MetricsHandler http.Handler
	// Guard remembers reservations; nil turns the submission service off. GuardMetrics is told what it decides; nil tells nobody.
	Guard        replayguard.Store
	GuardMetrics GuardMetrics
}

// Server serves the disclosure service over gRPC and the operator's endpoints over HTTP. It is used once: New, then Serve.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics Metrics
	service *Service
	health  *healthServer
	grpc    *grpc.Server
	ops     *http.Server
	// stop ends waits and readiness, endStreams the streams.
	stop, endStreams context.CancelFunc
}

// New makes a server. Its error lists what is wrong with the configuration, or names the TLS file that can't be used.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Index == nil || deps.Status == nil || deps.Metrics == nil {
		return nil, errors.New("api: a server needs an index, a status and metrics")
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	tlsConfig, err := cfg.TLS.load()
	if err != nil {
		return nil, err
	}
	stopping, stop := context.WithCancel(context.Background())
	streamsEnd, endStreams := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, log: deps.Log, metrics: deps.Metrics, service: newService(cfg, deps, stopping), stop: stop, endStreams: endStreams}
	ready := func() bool { return s.service.ready() == nil }
	s.health = newHealthServer(ready)
	deps.Metrics.WatchReady(ready)

	calls := &calls{cfg: cfg, log: deps.Log, metrics: deps.Metrics, limits: newLimiter(cfg.Limits, deps.Now), streamsEnd: streamsEnd}
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(calls.unary()...),
		grpc.ChainStreamInterceptor(calls.stream()...),
		grpc.InTapHandle(calls.admit),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(cfg.MaxRequestBytes),
		// Ours refuses first, with a reason; the transport's limit only has to be no smaller.
		grpc.MaxSendMsgSize(cfg.MaxAnswerBytes + 1<<20),
		grpc.MaxConcurrentStreams(cfg.Limits.MaxStreamsPerConnection),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(handshakeTimeout),
		// Clients behind balancers keep idle connections alive by pings, without calls (GOAWAY "too_many_pings" otherwise).
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: cfg.KeepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: cfg.MaxConnectionAge, MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace,
			Time: time.Minute, Timeout: 20 * time.Second,
		}),
	}
	if tlsConfig != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig)))
	}
	s.grpc = grpc.NewServer(options...)
	disclosurev1.RegisterDisclosureServiceServer(s.grpc, s.service)
	disclosurev1.RegisterSubmissionServiceServer(s.grpc, newSubmissions(s.service, deps))
	healthv1.RegisterHealthServer(s.grpc, s.health)
	if cfg.Reflection {
		reflection.Register(s.grpc)
	}
	calls.methods = map[string]kind{}
	for service, info := range s.grpc.GetServiceInfo() {
		for _, method := range info.Methods {
			calls.methods["/"+service+"/"+method.Name] = kind(method.IsClientStream || method.IsServerStream)
		}
	}
	s.ops = &http.Server{
		Handler:     countCalls(s.opsHandler(deps.MetricsHandler)),
		ConnContext: withConn,
		// The time for the headers is that for the first byte too.
		ReadHeaderTimeout: handshakeTimeout, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(deps.Log.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// handshakeTimeout is how long a client has to say that it speaks TLS and HTTP/2, from the first byte to its settings: some round trips. Sockets
// that say nothing are gone after it.
const handshakeTimeout = 5 * time.Second

// Serve listens as configured and serves until the context ends; then it stops in order and returns nil. An error is a listener
// that could not be had or that failed.
func (s *Server) Serve(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("api: listen for gRPC: %w", err)
	}
	var ops net.Listener
	if s.cfg.OpsListen != "" {
		if ops, err = config.Listen(ctx, "tcp", s.cfg.OpsListen); err != nil {
			listener.Close()
			return fmt.Errorf("api: listen for the operator's endpoints: %w", err)
		}
	}
	return s.ServeOn(ctx, listener, ops)
}

// ServeOn is Serve on listeners that are there already; it closes them. ops may be nil.
func (s *Server) ServeOn(ctx context.Context, listener, ops net.Listener) error {
	s.log.Info("serving", "grpc", listener.Addr().String(), "ops", addrOf(ops), "tls", s.cfg.TLS.CertFile != "")
	ctx, cancel := context.WithCancel(ctx) // a listener that fails ends the other
	defer cancel()
	failed := make(chan error, 2)
	var serving, watching sync.WaitGroup
	serving.Go(func() {
		if err := s.grpc.Serve(newConns(listener, s.room(), s.log, s.metrics)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			failed <- fmt.Errorf("api: serve gRPC: %w", err)
			cancel()
		}
	})
	if ops != nil {
		serving.Go(func() {
			room := room{of: "ops", max: s.cfg.Limits.MaxOpsConnections, perCaller: s.cfg.Limits.MaxOpsConnectionsPerCaller, cuts: true}
			if err := s.ops.Serve(newConns(ops, room, s.log, uncounted{})); err != nil && !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("api: serve the operator's endpoints: %w", err)
				cancel()
			}
		})
	}
	healthCtx, endHealth := context.WithCancel(context.Background())
	watching.Go(func() { s.health.run(healthCtx) })

	<-ctx.Done()
	s.log.Info("stopping: no new calls, running ones have time to end", "drain", s.cfg.DrainTime)
	s.stop() // not ready from now on; waits end
	endHealth()
	watching.Wait()
	s.health.pushed.Shutdown() // watchers learn it before the connections go
	s.drain()
	if ops != nil {
		s.ops.Close() // what is scraped in this moment is scraped again elsewhere
	}
	serving.Wait()
	close(failed)
	var faults []error
	for err := range failed {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func (s *Server) room() room {
	return room{of: "gRPC", max: s.cfg.Limits.MaxConnections, perCaller: s.cfg.Limits.MaxConnectionsPerCaller, timeout: s.cfg.SendTimeout}
}

// watchGrace is how long health watchers have to receive NOT_SERVING before their streams end.
const watchGrace = 200 * time.Millisecond

// drain lets running calls end, and cuts what is left when the drain time is over. Streams (health watches, reflection) never end by
// themselves: they are ended first.
func (s *Server) drain() {
	drained := make(chan struct{})
	var draining sync.WaitGroup
	draining.Go(func() {
		s.grpc.GracefulStop()
		close(drained)
	})
	grace, cut := time.NewTimer(min(watchGrace, s.cfg.DrainTime)), time.NewTimer(s.cfg.DrainTime)
	defer grace.Stop()
	defer cut.Stop()
	for waiting := true; waiting; {
		select {
		case <-drained:
			waiting = false
		case <-grace.C:
			s.endStreams()
		case <-cut.C:
			s.log.Warn("calls still running after the drain time are cut", "drain", s.cfg.DrainTime)
			s.grpc.Stop()
			waiting = false
		}
	}
	s.endStreams()
	draining.Wait()
}

func addrOf(listener net.Listener) string {
	if listener == nil {
		return ""
	}
	return listener.Addr().String()
}
