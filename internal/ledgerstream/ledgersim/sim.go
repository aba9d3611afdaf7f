package ledgersim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledgerstream/rawgrpc"
)

// Clock tells time and waits. Its methods are called from several goroutines.
type Clock interface {
	Now() time.Time
	// After delivers once, at least d later.
	After(d time.Duration) <-chan time.Time
}

type realClock struct{}

func (realClock) Now() time.Time                         { return time.Now() }
func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Options say what participant to simulate. The zero value is a participant called "sandbox" on one synchronizer, with the two
// packages of the model uploaded, commits without latency, and checkpoints at a real participant's intervals.
type Options struct {
	// Name is the participant's name: its id is Name::fingerprint.
	Name string
	// ParticipantID is the whole id, name::fingerprint, of a participant to stand in for, instead of Name and a fingerprint that follows
	// from Seed: parties that are allocated from the same hints then have the same ids.
	ParticipantID string
	// Synchronizers is how many synchronizers it is connected to, 1 if not positive.
	Synchronizers int
	// SynchronizerIDs are their ids, name::fingerprint, instead of made-up ones; their number then goes before Synchronizers.
	SynchronizerIDs []string
	// Packages are uploaded and vetted from the start: WormholeCore010 and Integrator010 if nil, none if empty.
	Packages []Package
	// Clock is the real one if nil.
	Clock Clock
	// Seed makes ids; the same seed and the same calls give the same ids.
	Seed uint64
	// CommitLatency is how long a submission takes from the locking of its inputs to its commit: the window of contention.
	CommitLatency time.Duration
	// FirstCheckpoint is how long after its start a tailing stream first looks for a checkpoint (500 ms if 0), IdleCheckpoint
	// after how long without any element it looks again (60 s), and CheckpointAge how old the cached checkpoint may become before
	// an update renews it (15 s).
	FirstCheckpoint, IdleCheckpoint, CheckpointAge time.Duration
	// Auth turns on authorization by tokens; nil is off: everyone may do everything.
	Auth *AuthOptions
}

func (o *Options) setDefaults() {
	if name, _, ok := strings.Cut(o.ParticipantID, "::"); ok {
		o.Name = name
	}
	if o.Name == "" {
		o.Name = "sandbox"
	}
	o.Synchronizers = max(o.Synchronizers, 1)
	if len(o.SynchronizerIDs) > 0 {
		o.Synchronizers = len(o.SynchronizerIDs)
	}
	if o.Packages == nil {
		o.Packages = []Package{WormholeCore010, Integrator010}
	}
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	if o.FirstCheckpoint == 0 {
		o.FirstCheckpoint = 500 * time.Millisecond
	}
	if o.IdleCheckpoint == 0 {
		o.IdleCheckpoint = time.Minute
	}
	if o.CheckpointAge == 0 {
		o.CheckpointAge = 15 * time.Second
	}
}

// Sim is a simulated participant. Its methods are safe for concurrent use.
type Sim struct {
	options Options

	mu sync.RWMutex
	// ledger is replaced as a whole by faults; what is in flight notices by its broken channel.
	ledger *state
	// changed is closed and replaced whenever ledger end moves or the ledger is replaced.
	changed chan struct{}
	cached  cachedCheckpoint
	// tails is how many streams of updates are open.
	tails int
	// expired is the moment up to which all issued tokens count as expired.
	expired time.Time

	// ids makes request ids, apart from the ledger's so that reads don't disturb them.
	ids struct {
		sync.Mutex
		random *random
	}

	faults faults

	server  *grpc.Server
	work    sync.WaitGroup
	serving sync.WaitGroup
	conns   connections
}

// cachedCheckpoint is what streams give as checkpoints: it lags behind, as on a participant.
type cachedCheckpoint struct {
	checkpoint
	at time.Time
}

// New makes a participant with an empty ledger. It serves once Start or Serve is called; the ledger can be used before.
func New(options Options) *Sim {
	options.setDefaults()
	s := &Sim{options: options, changed: make(chan struct{})}
	s.ids.random = newRandom(^options.Seed)
	s.faults.init()
	s.ledger = s.freshLedger(options.Seed)
	s.cached = cachedCheckpoint{checkpoint: s.ledger.checkpoint(), at: options.Clock.Now()}
	s.server = s.newServer()
	return s
}

// freshLedger is an empty ledger of a participant whose identity follows from the seed. Ledger end is past the offsets that a
// participant's own start takes.
func (s *Sim) freshLedger(seed uint64) *state {
	ids := newRandom(seed ^ 0x6964656e74697479)
	participant := s.options.Name + "::" + ids.multihash()
	if s.options.ParticipantID != "" && seed == s.options.Seed {
		participant = s.options.ParticipantID
	}
	var synchronizers []synchronizer
	for i := range s.options.Synchronizers {
		alias := fmt.Sprintf("synchronizer-%d", i+1)
		if len(s.options.SynchronizerIDs) > 0 {
			id := s.options.SynchronizerIDs[i]
			alias, _, _ = strings.Cut(id, "::")
			synchronizers = append(synchronizers, synchronizer{alias, id})
			continue
		}
		synchronizers = append(synchronizers, synchronizer{alias, alias + "::" + newRandom(uint64(i+1)).multihash()})
	}
	const firstEnd = 8
	l := newLedger(participant, synchronizers, seed, firstEnd)
	for _, p := range s.options.Packages {
		l.packages.add(p, true)
	}
	l.users[AdminUser] = (&user{id: AdminUser}).with([]right{{participantAdmin, ""}})
	return l
}

// The limits of a participant's server.
const (
	maxRequestBytes = 10 << 20
	maxHeaderBytes  = 8 << 10
	maxStreams      = 100000
)

func (s *Sim) newServer() *grpc.Server {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(rawgrpc.Codec()),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Minute, Timeout: 20 * time.Second}),
		grpc.ChainUnaryInterceptor(s.interceptUnary),
		grpc.ChainStreamInterceptor(s.interceptStream),
	)
	s.register(server)
	// Version 1 only, as on a participant.
	reflection.RegisterV1(server)
	return server
}

// Serve serves on the listener until Stop. It takes the listener over.
func (s *Sim) Serve(listener net.Listener) error {
	s.serving.Add(1)
	defer s.serving.Done()
	if err := s.server.Serve(s.conns.watch(listener)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Start serves on a free port of the loopback interface and returns its address.
func (s *Sim) Start() (string, error) { return s.StartOn("127.0.0.1:0") }

// StartOn serves on a TCP address and returns the address with its port.
func (s *Sim) StartOn(address string) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", address, err)
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		// A listener that fails is seen by every client at once; there is nobody else to tell.
		_ = s.Serve(listener)
	}()
	return listener.Addr().String(), nil
}

// Stop ends all calls and streams at once and waits for everything that runs. It can't be started again.
func (s *Sim) Stop() {
	s.faults.release()
	s.endStreams(status.Error(codes.Unavailable, "the participant is stopping"))
	s.mu.Lock()
	s.ledger.breakOff()
	s.mu.Unlock()
	s.server.Stop()
	s.work.Wait()
	s.serving.Wait()
}

// notify wakes whoever waits for the ledger to move. The lock must be held.
func (s *Sim) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// renewCheckpoint caches the present end if the cached one is old enough. The lock must be held, and what is about to be
// appended must not have been.
func (s *Sim) renewCheckpoint() {
	// The cache is renewed at a steady beat. Whatever is appended after a beat comes here first, so the present end is still the
	// one at the last beat.
	beats := s.options.Clock.Now().Sub(s.cached.at) / s.options.CheckpointAge
	if beats < 1 {
		return
	}
	s.cached = cachedCheckpoint{checkpoint: s.ledger.checkpoint(), at: s.cached.at.Add(beats * s.options.CheckpointAge)}
}

// cachedNow is the checkpoint that streams are given now.
func (s *Sim) cachedNow() cachedCheckpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewCheckpoint()
	return s.cached
}

// change runs a change of the ledger under the lock and wakes the streams.
func (s *Sim) change(f func(l *state, now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewCheckpoint()
	f(s.ledger, s.options.Clock.Now())
	s.notify()
}

// read runs a reader under the lock. What it takes out of the ledger must be values, or such as never change.
func (s *Sim) read(f func(l *state)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(s.ledger)
}

// breakOff ends what is in flight on a ledger that is being replaced.
func (l *state) breakOff() {
	select {
	case <-l.broken:
	default:
		close(l.broken)
	}
}

// connections are the server's open ones, so that they can be cut.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func (c *connections) watch(l net.Listener) net.Listener { return watchedListener{l, c} }

// cut closes all connections without a word, as a network that fails does.
func (c *connections) cut() {
	c.mu.Lock()
	open := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
}

type watchedListener struct {
	net.Listener
	connections *connections
}

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // grpc looks at the error's own kind
	}
	watched := &watchedConn{Conn: conn, connections: l.connections}
	l.connections.mu.Lock()
	defer l.connections.mu.Unlock()
	if l.connections.open == nil {
		l.connections.open = map[net.Conn]struct{}{}
	}
	l.connections.open[watched] = struct{}{}
	return watched, nil
}

type watchedConn struct {
	net.Conn
	connections *connections
}

func (c *watchedConn) Close() error {
	c.connections.forget(c)
	return c.Conn.Close() //nolint:wrapcheck // as above
}

func (c *connections) forget(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
}

// sorted is a sorted copy.
func sorted(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return out
}
