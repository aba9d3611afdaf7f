package ledgerstream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// running is a follower at work against a scripted participant, in a bubble of its own time.
type running struct {
	*Follower
	p    *participant
	sink *memorySink
	stop func() error
	// limit bounds await; an hour if 0, which in a bubble passes at once.
	limit time.Duration
}

func testConfig() Config { return Config{Parties: []string{operator}} }

// start begins to follow; the follower ends with the test.
func start(t *testing.T, cfg Config, p *participant, sink *memorySink, options ...Option) *running {
	t.Helper()
	f := New(cfg, p.serve(t), sink, options...)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		result <- f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &running{Follower: f, p: p, sink: sink, stop: func() error {
		cancel()
		return <-result
	}}
}

// await waits until the condition holds.
func (r *running) await(t *testing.T, what string, condition func(Status) bool) Status {
	t.Helper()
	limit := r.limit
	if limit == 0 {
		limit = time.Hour
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		changed := r.Changed()
		st := r.Status()
		if condition(st) {
			return st
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("never: %s; status %+v, index at %d with %v", what, r.Status(), r.sink.offset(), r.sink.contracts())
		}
	}
}

func proven(offset int64) func(Status) bool {
	return func(st Status) bool { return st.State == StateLive && st.ProvenOffset >= offset }
}

func wantContracts(t *testing.T, sink *memorySink, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, sink.contracts()); diff != "" {
		t.Errorf("active contracts (-want +got):\n%s", diff)
	}
}

func TestFollowsFromSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))), tx(13, create(cid(2))))
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "seeded", proven(15))
		p.add(tx(16, archive(cid(1)), create(cid(3))))
		r.await(t, "followed", proven(18))
		wantContracts(t, r.sink, cid(2), cid(3))
		if err := r.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want its context's error", err)
		}
		if st := r.Status(); st.State != StateStopped {
			t.Errorf("state %s after Run, want %s", st.State, StateStopped)
		}
	})
}
