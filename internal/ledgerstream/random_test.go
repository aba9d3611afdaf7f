package ledgerstream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
)

// Random histories under random faults of participant and sink: after every batch and every snapshot the index is exactly the ledger at
// its offset, each proof is true, and in the end everything is there.
func TestRandomFaults(t *testing.T) {
	runs := 8
	for seed := range runs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRun(t, uint64(seed)) })
		})
	}
}

func randomRun(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := newParticipant()
	ids, offset := 0, int64(0)
	var alive []string
	grow := func() {
		var events []*ledgerapi.Event
		for range 1 + rng.IntN(3) {
			if len(alive) > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(len(alive))
				events = append(events, archive(alive[i]))
				alive = slices.Delete(alive, i, i+1)
				continue
			}
			ids++
			alive = append(alive, cid(ids))
			events = append(events, create(cid(ids)))
		}
		offset += 1 + int64(rng.IntN(4))
		p.add(tx(offset, events...))
		offset = max(offset, p.end)
		switch rng.IntN(4) {
		case 0: // invisible: the ledger end moves alone
			p.change(func() { p.end += int64(rng.IntN(5)); offset = p.end })
		case 1:
			p.change(func() { p.log = append(p.log, checkpointAt(offset)) })
		}
	}
	for range rng.IntN(20) {
		grow()
	}

	// Faults until the clock says it is enough; the hooks' random numbers come from the participant's goroutines.
	faulty := true
	dice := rand.New(rand.NewPCG(seed, 2))
	roll := func(n int) int {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !faulty {
			return n
		}
		return dice.IntN(n)
	}
	errs := []error{
		nil, status.Error(codes.Canceled, ""), status.Error(codes.Unavailable, ""), status.Error(codes.Internal, ""),
		apiError(codes.Aborted, "ACCESS_TOKEN_EXPIRED", time.Second), apiError(codes.Aborted, "STALE_STREAM_AUTHORIZATION", 0),
		status.Error(codes.PermissionDenied, ""),
	}
	p.onTail = func(_ int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
		n := roll(2 * len(errs))
		if n >= len(errs) {
			return errDefault
		}
		// A while of the real thing, then an end.
		p.mu.Lock()
		log := p.log
		p.mu.Unlock()
		cut := roll(10)
		for _, u := range log {
			if offsetOf(u) <= r.BeginExclusive {
				continue
			}
			if cut--; cut < 0 {
				break
			}
			if err := s.Send(u); err != nil {
				return err
			}
		}
		return errs[n]
	}
	p.onRange = func(int, *ledgerapi.GetUpdatesRequest, ledgerapi.UpdateService_GetUpdatesServer) error {
		if n := roll(3 * len(errs)); n > 0 && n < len(errs) { // an early OK would be a lie
			return errs[n]
		}
		return errDefault
	}
	p.onSnapshot = func(_ int, r *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer) error {
		if n := roll(2 * len(errs)); n > 0 && n < len(errs) {
			return errs[n]
		}
		return errDefault
	}

	sink := &memorySink{}
	sink.onApply = func(ledger.Batch) error {
		switch roll(8) {
		case 0:
			return status.Error(codes.Unavailable, "the sink")
		case 1:
			<-time.After(time.Second)
		}
		return nil
	}
	cfg := testConfig()
	cfg.BatchUpdates = 1 + rng.IntN(5)
	r := start(t, cfg, p, sink)
	for range 120 {
		<-time.After(time.Duration(rng.IntN(2000)) * time.Millisecond)
		grow()
		if rng.IntN(20) == 0 {
			r.RequestReseed(ledger.SeedRequested)
		}
		st := r.Status()
		sink.mu.Lock()
		at, got := sink.pos.Offset, make([]string, 0, len(sink.active))
		for _, c := range sink.active {
			got = append(got, c.ContractID)
		}
		seeded := sink.seeded
		sink.mu.Unlock()
		slices.Sort(got)
		if seeded && !slices.Equal(got, activeIDs(p, at)) {
			t.Fatalf("at %d the index has %v, the ledger %v", at, got, activeIDs(p, at))
		}
		if st.ProvenOffset > at {
			t.Fatalf("proven through %d with the index at %d", st.ProvenOffset, at)
		}
	}
	p.change(func() { faulty = false })
	r.await(t, "everything", proven(p.end))
	wantContracts(t, sink, activeIDs(p, p.end)...)
	if sink.unknown != 0 {
		t.Errorf("%d archives of what was not there", sink.unknown)
	}
}

func activeIDs(p *participant, at int64) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := []string{}
	for _, c := range p.activeAt(at) {
		ids = append(ids, c.ContractId)
	}
	slices.Sort(ids)
	return ids
}
