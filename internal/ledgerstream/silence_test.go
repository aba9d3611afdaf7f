package ledgerstream

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
)

// A23: a connection whose other end is silently gone looks like a quiet ledger. The proof gets old, the connection is given up, and a
// new one is tried.
func TestSilentlyGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		var mu sync.Mutex
		gone := false
		p.onEnd = func(ctx context.Context, _ int) error {
			mu.Lock()
			silent := gone
			mu.Unlock()
			if silent {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(12))
		mu.Lock()
		gone = true
		mu.Unlock()
		before := r.Status().ProvenAt
		st := r.await(t, "given up", func(st Status) bool { return st.State == StateReconnecting })
		if age := time.Since(st.ProvenAt); age < 30*time.Second || age > 40*time.Second {
			t.Errorf("given up when the proof was %s old, want three timeouts of 10 s", age)
		}
		if st.ProvenAt.Sub(before) > 2*time.Second {
			t.Errorf("a proof from %s after the participant was gone", st.ProvenAt.Sub(before))
		}
		mu.Lock()
		gone = false
		mu.Unlock()
		r.await(t, "back", func(st Status) bool { return st.State == StateLive && time.Since(st.ProvenAt) < 2*time.Second })
	})
}

// A quiet ledger stays live, with proofs, for as long as it is quiet; also where its end moves without visible updates.
func TestQuietLedgerStaysFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(12))
		for range 60 {
			<-time.After(10 * time.Second)
			st := r.Status()
			if age := time.Since(st.ProvenAt); st.State != StateLive || age > 3*time.Second {
				t.Fatalf("state %s, proof %s old, at %d", st.State, age, st.ProvenOffset)
			}
			p.change(func() { p.end += 3 })
		}
		r.await(t, "the invisible end", proven(12+180))
		if got := r.sink.offset(); got != 192 {
			t.Errorf("index at %d, want 192", got)
		}
		if st := r.Status(); st.Reconnects != 0 {
			t.Errorf("%d reconnects", st.Reconnects)
		}
	})
}

// A live stream that is dead while everything else works: the proofs keep the index right, and the stream is replaced.
func TestDeadTailIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		p.noTail = true
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(12))
		p.add(tx(13, create(cid(2))))
		r.await(t, "the proof brings it", proven(15))
		wantContracts(t, r.sink, cid(1), cid(2))
		st := r.await(t, "replaced", func(st Status) bool { return st.Reconnects == 1 })
		if !strings.Contains(st.Detail, "live stream") {
			t.Errorf("detail %q", st.Detail)
		}
	})
}

// A proof that stalls is no proof, and ends the session.
func TestStalledProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		p.onRange = func(n int, _ *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
			if n > 1 {
				return errDefault
			}
			<-s.Context().Done()
			return s.Context().Err()
		}
		r := start(t, testConfig(), p, &memorySink{})
		first := r.await(t, "live", proven(12))
		p.change(func() { p.end = 20 })
		st := r.await(t, "stalled", func(st Status) bool { return st.Reconnects == 1 })
		if st.ProvenOffset != 12 || st.ProvenAt.Sub(first.ProvenAt) > 2*time.Second {
			t.Errorf("proven at %d while the proof hung", st.ProvenOffset)
		}
		r.await(t, "proven", proven(20))
	})
}
