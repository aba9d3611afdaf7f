package ledgerstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What the participant asks for as RetryInfo is a minimum.
func TestRetryInfoIsAMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.onTail = func(n int, _ *ledgerapi.GetUpdatesRequest, _ ledgerapi.UpdateService_GetUpdatesServer) error {
			if n > 1 {
				return errDefault
			}
			return apiError(codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN", 10*time.Second)
		}
		r := start(t, testConfig(), p, &memorySink{})
		began := time.Now()
		r.await(t, "ended", func(st Status) bool { return st.Reconnects == 1 })
		r.await(t, "live again", func(st Status) bool { return st.State == StateLive })
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("tried again after %s, want at least the 10 s that were asked for", took)
		}
	})
}

// A16: a stream that always fails at the same update is tried again at bounded intervals, says where it is stuck, is not live,
// and never passes the update by.
func TestStuckAtTheSameOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(70, create(cid(1))))
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(72))
		broken := true
		fail := func(_ int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if broken && r.BeginExclusive < 77 && (r.EndInclusive == nil || r.GetEndInclusive() >= 77) {
				return status.Error(codes.Internal, "redacted")
			}
			return errDefault
		}
		// The first live stream is to bring nothing of it.
		p.change(func() { p.onTail, p.onRange, p.noTail = fail, fail, true })
		p.add(tx(77, create(cid(2))), tx(80, create(cid(3))))
		st := r.await(t, "stuck", func(st Status) bool { return st.StuckAt != 0 })
		if st.StuckAt < 72 || st.StuckAt > 76 || st.State != StateReconnecting {
			t.Errorf("stuck at %d in state %s, want after 72 and before 77, reconnecting", st.StuckAt, st.State)
		}
		calls := p.counted("tail")
		<-time.After(time.Hour)
		if more := p.counted("tail") - calls; more < 60 || more > 400 {
			t.Errorf("%d tries in an hour, want between one a minute and one in ten seconds", more)
		}
		wantContracts(t, r.sink, cid(1))
		p.change(func() { broken, p.noTail = false, false })
		st = r.await(t, "mended", proven(82))
		if st.StuckAt != 0 {
			t.Errorf("still stuck at %d", st.StuckAt)
		}
		wantContracts(t, r.sink, cid(1), cid(2), cid(3))
	})
}

// A participant that is down is tried every few seconds, however long it is down, and followed again within seconds of its return; the
// wait that it asks for is kept all the same.
func TestAnAbsentParticipantIsTriedOften(t *testing.T) {
	for name, c := range map[string]struct {
		err         error
		least, most int // tries in an hour
	}{
		"unavailable":           {status.Error(codes.Unavailable, "connection refused"), 3600 / 7, 3600 / 3},
		"shutting down":         {apiError(codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN", 10*time.Second), 3600 / 13, 3600/10 + 3},
		"overloaded":            {apiError(codes.Aborted, "SERVER_OVERLOADED", time.Second), 3600 / 50, 3600 / 15},
		"answers with nonsense": {status.Error(codes.Internal, "redacted"), 3600 / 50, 3600 / 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(70, create(cid(1))))
				r := start(t, testConfig(), p, &memorySink{})
				r.await(t, "live", proven(72))
				down, tries := true, 0
				absent := func(context.Context, int) error {
					p.mu.Lock()
					defer p.mu.Unlock()
					if !down {
						return nil
					}
					tries++
					return c.err
				}
				p.change(func() { p.onID, p.onEnd = absent, absent })
				<-time.After(time.Hour)
				p.mu.Lock()
				got := tries
				down = false
				p.mu.Unlock()
				if got < c.least || got > c.most {
					t.Errorf("%d tries in an hour, want %d to %d", got, c.least, c.most)
				}
				p.add(tx(77, create(cid(2))))
				r.await(t, "back", proven(79))
				wantContracts(t, r.sink, cid(1), cid(2))
			})
		})
	}
}
