package ledgersim

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Faults: what a test makes the participant do. Each takes effect at once and lasts until it is undone, unless it says otherwise.

// faults is the state of the faults that calls look at. Those that change the ledger do so and leave nothing here.
type faults struct {
	mu sync.Mutex
	// hung is open (not closed) while calls hang; hungMethods restricts that, empty is all.
	hung        chan struct{}
	hungMethods []string
	delay       time.Duration
	silent      bool
	onlyMarks   bool
	// lost is how many more answers to submissions get lost after their commit.
	lost int
	// failing are errors that the next calls of a method get.
	failing map[string][]error
	// end is what open streams watch; it is replaced when they were ended.
	end *streamEnd
	// held is open while commits are held back.
	held chan struct{}
	// marks is closed and replaced to make all tailing streams give a checkpoint now.
	marks chan struct{}
}

func (f *faults) init() {
	f.failing = map[string][]error{}
	f.end = &streamEnd{done: make(chan struct{})}
	f.marks = make(chan struct{})
	f.hung = closed()
	f.held = closed()
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// release lets go of everything that hangs or is held.
func (f *faults) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unhang()
	f.unhold()
}

func (f *faults) unhang() {
	select {
	case <-f.hung:
	default:
		close(f.hung)
	}
}

func (f *faults) unhold() {
	select {
	case <-f.held:
	default:
		close(f.held)
	}
}

// DropConnections cuts all connections without a word. New ones are accepted.
func (s *Sim) DropConnections() { s.conns.cut() }

// Hang makes calls be accepted and never answered, open streams of these methods included; methods are full names, as
// "/com.daml.ledger.api.v2.StateService/GetLedgerEnd", none means all. The function it returns ends it: what hung goes on.
func (s *Sim) Hang(methods ...string) (release func()) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.unhang()
	s.faults.hung = make(chan struct{})
	s.faults.hungMethods = slices.Clone(methods)
	return func() {
		s.faults.mu.Lock()
		defer s.faults.mu.Unlock()
		s.faults.unhang()
	}
}

// waitIfHung blocks while calls of the method hang. It returns the context's error if that ends first.
func (s *Sim) waitIfHung(ctx context.Context, method string) error {
	s.faults.mu.Lock()
	hung := s.faults.hung
	if len(s.faults.hungMethods) > 0 && !slices.Contains(s.faults.hungMethods, method) {
		hung = closed()
	}
	s.faults.mu.Unlock()
	select {
	case <-hung:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Delay makes every call and every element of a stream wait so long; 0 ends it.
func (s *Sim) Delay(d time.Duration) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.delay = d
}

func (s *Sim) waitDelay(ctx context.Context) error {
	s.faults.mu.Lock()
	delay := s.faults.delay
	s.faults.mu.Unlock()
	if delay <= 0 {
		return nil
	}
	select {
	case <-s.options.Clock.After(delay):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Silence makes tailing streams deliver nothing, neither updates nor checkpoints; calls are answered, ledger end included. Undone
// by Silence(false): what was held back is delivered.
func (s *Sim) Silence(on bool) {
	s.faults.mu.Lock()
	s.faults.silent = on
	s.faults.mu.Unlock()
	s.change(func(*state, time.Time) {})
}

// CheckpointsOnly makes tailing streams deliver checkpoints and no updates, as with a filter that nothing matches. What is passed
// over meanwhile is lost to those streams.
func (s *Sim) CheckpointsOnly(on bool) {
	s.faults.mu.Lock()
	s.faults.onlyMarks = on
	s.faults.mu.Unlock()
}

// EmitCheckpoint makes every tailing stream give a checkpoint of the present ledger end now.
func (s *Sim) EmitCheckpoint() {
	s.mu.Lock()
	s.cached = cachedCheckpoint{checkpoint: s.ledger.checkpoint(), at: s.options.Clock.Now()}
	s.mu.Unlock()
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	close(s.faults.marks)
	s.faults.marks = make(chan struct{})
}

// LoseAnswers makes the next n submissions commit and be answered with UNAVAILABLE, as when the connection breaks in between.
func (s *Sim) LoseAnswers(n int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.lost = n
}

func (s *Sim) losesAnswer() bool {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.lost == 0 {
		return false
	}
	s.faults.lost--
	return true
}

// FailNext makes the next calls of a method fail with these errors, one each; the method is a full name.
func (s *Sim) FailNext(method string, errs ...error) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.failing[method] = append(s.faults.failing[method], errs...)
}

func (s *Sim) nextFailure(method string) error {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	queue := s.faults.failing[method]
	if len(queue) == 0 {
		return nil
	}
	s.faults.failing[method] = queue[1:]
	return queue[0]
}

// Terminate ends all open streams as a participant that gets SIGTERM does: the client sees Canceled, without details, though it
// did not cancel anything.
func (s *Sim) Terminate() {
	s.endStreams(status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL"))
}

// EndStreams ends all open streams with an error of the caller's choice; nil ends them with OK.
func (s *Sim) EndStreams(err error) { s.endStreams(err) }

func (s *Sim) endStreams(err error) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.end.err = err
	close(s.faults.end.done)
	s.faults.end = &streamEnd{done: make(chan struct{})}
}

// streamEnd ends streams: err may be read once done is closed.
type streamEnd struct {
	done chan struct{}
	err  error
}

func (s *Sim) streamEnd() *streamEnd {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.end
}

// HoldCommits keeps submissions between the locking of their inputs and their commit until the function it returns is called:
// contention on demand.
func (s *Sim) HoldCommits() (release func()) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.unhold()
	s.faults.held = make(chan struct{})
	return func() {
		s.faults.mu.Lock()
		defer s.faults.mu.Unlock()
		s.faults.unhold()
	}
}

func (s *Sim) commitGate() <-chan struct{} {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.held
}

// PruneTo prunes the ledger up to the offset, whatever a participant's own safety checks would say. Streams that are behind are cut off.
func (s *Sim) PruneTo(offset int64) {
	s.change(func(l *state, _ time.Time) { l.prune(min(offset, l.end)) })
}

// AdvanceLedgerEnd moves ledger end by n offsets in which there is nothing that anyone could see.
func (s *Sim) AdvanceLedgerEnd(n int64) {
	s.change(func(l *state, _ time.Time) { l.advance(n) })
}
