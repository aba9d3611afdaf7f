package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"golang.org/x/sync/errgroup"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// seed builds a new generation from a snapshot at the ledger end that the session began with.
func (s *session) seed(ctx context.Context, p peer, reason ledger.SeedReason) *ending {
	s.f.update(func(st *Status) {
		if st.State != StateHalted && st.State != StateWaiting { // until it is clear that what was amiss is mended
			s.f.setState(st, StateSnapshot)
			st.Detail = ""
		}
	})
	started := time.Now()
	s.f.metrics.reseed(reason)
	s.f.log.Info("reading a snapshot", "reason", string(reason), "participant", p.participantID, "offset", p.ledgerEnd)
	g, err := s.f.sink.BeginSeed(ctx, ledger.SeedStart{
		ParticipantID: p.participantID, Offset: p.ledgerEnd, Reason: reason, Filter: s.filter.identity(),
	})
	if err != nil {
		return ended("sink", "beginning a new generation of the index: %w", err)
	}
	s.origins = &origins{pruned: p.pruned, left: maxOrigins, known: map[int64]concerned{}}
	filled, end := s.fill(ctx, g, p.ledgerEnd)
	if end == nil {
		end = s.anchor(ctx, g, p, filled.last)
	}
	if end == nil {
		if err := s.verify(ctx); err != nil {
			end = classify(callParticipantID, err)
		}
	}
	if end == nil {
		if err := g.Commit(ctx); err != nil {
			end = ended("sink", "putting the new generation in place: %w", err)
		}
	}
	if end != nil {
		// Also when our own time is over: the half-built generation is to go.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.f.cfg.CallTimeout)
		defer cancel()
		if err := g.Abort(cleanup); err != nil {
			s.f.log.Warn("dropping a half-built generation failed", "error", err)
		}
		return end
	}
	s.progressed = true
	took := time.Since(started)
	s.f.metrics.seeded(reason, filled.contracts, took)
	s.f.log.Info("the index was built from a snapshot", "reason", string(reason), "offset", p.ledgerEnd, "contracts", filled.contracts, "took", took)
	s.f.reseeded(s.reseeds)
	if end := s.place(ctx); end != nil {
		return end
	}
	if !s.seeded || s.pos.ParticipantID != p.participantID || s.pos.Offset != p.ledgerEnd {
		return ended("sink", "the index stands at %d of %q after a seed at %d of %q", s.pos.Offset, s.pos.ParticipantID, p.ledgerEnd, p.participantID)
	}
	s.proven(p.ledgerEnd, p.ledgerEndAt)
	return nil
}

// filled is what a snapshot contained.
type filled struct {
	contracts int
	// last is the offset of the last activation among the active contracts, 0 for none.
	last int64
}

// anchor finds the last update of ours at or before the snapshot, for the generation to be recognised by, and so that it is known that
// there is none between it and the snapshot: see missed. last is the offset of the snapshot's last activation. What came after that
// only ended contracts, or made ones that ended too; so the range is read, once, and is short as a rule.
//
// A pruned participant shows contracts whose updates it has forgotten: then the offset is known and not the update.
func (s *session) anchor(ctx context.Context, g ledger.Seed, p peer, last int64) *ending {
	found := concerned{offset: last}
	if begin := max(last, p.pruned); begin < p.ledgerEnd {
		err := s.concerningIn(ctx, begin, p.ledgerEnd, func(u concerned) error {
			found = u
			return nil
		})
		switch {
		case isEOF(err):
		case errorID(err) == "PARTICIPANT_PRUNED_DATA_ACCESSED": // since we asked: what was before the snapshot is not told any more
			found = concerned{offset: p.ledgerEnd}
		default:
			return classify(callAnchor, err)
		}
	}
	if found.id == "" && found.offset > p.pruned {
		response, err := s.updateAt(ctx, s.filter, found.offset)
		if err != nil && errorID(err) != "UPDATE_NOT_FOUND" {
			return classify(callUpdateByOffset, err)
		}
		found.id, found.recordTime = updateIDOf(response)
	}
	if found.offset > 0 {
		g.Anchor(found.offset, found.id, found.recordTime)
	}
	return nil
}

// fill reads the active contracts at the offset into the generation, and returns what there was. An empty ledger has no
// snapshot to ask for; at any other offset the participant's OK, and nothing else, says that it was complete.
//
// One goroutine receives, several convert (decoding a contract and recomputing its id takes longer than receiving it), and this one
// fills the sink, so that a slow sink slows the participant down. A snapshot has no order to keep.
func (s *session) fill(ctx context.Context, g ledger.Seed, offset int64) (filled, *ending) {
	if offset == 0 {
		return filled{}, nil
	}
	work, workCtx := errgroup.WithContext(ctx)
	responses := make(chan *ledgerapi.GetActiveContractsResponse, snapshotAhead)
	entries := make(chan entry, snapshotAhead)
	work.Go(func() error {
		defer close(responses)
		return s.receiveSnapshot(workCtx, offset, responses)
	})
	var converting sync.WaitGroup
	for range max(1, runtime.GOMAXPROCS(0)) {
		converting.Add(1)
		work.Go(func() error {
			defer converting.Done()
			return s.convertSnapshot(workCtx, offset, responses, entries)
		})
	}
	work.Go(func() error {
		converting.Wait()
		close(entries)
		return nil
	})
	filling := filler{seed: g, maxContracts: s.f.cfg.BatchUpdates, maxBytes: s.f.cfg.BatchBytes}
	var failed error
	for e := range entries {
		// After a failure what is on its way is only taken, so that nobody waits for us.
		if failed == nil {
			s.f.sawPackage(e.contract().PackageName, e.contract().TemplateID.PackageID)
			s.originate(ctx, e.contract())
			if failed = filling.add(ctx, e); failed != nil {
				work.Go(func() error { return failed }) // ends the others
			}
		}
	}
	// The first failure is the cause of the rest.
	err := work.Wait()
	if err == nil {
		err = filling.flush(ctx)
	}
	var sink *sinkError
	switch {
	case err == nil:
		return filling.filled, nil
	case errors.As(err, &sink):
		return filling.filled, ended("sink", "%w", err)
	default:
		return filling.filled, classify(callSnapshot, err)
	}
}

// maxOrigins is how many updates a snapshot asks for to tell which activated a contract.
const maxOrigins = 32

// origins are the updates that activated contracts of a snapshot, which does not tell them.
type origins struct {
	pruned int64
	left   int // lookups that may still be made
	known  map[int64]concerned
}

// originate completes the update id and record time of a CoreState or a registry: there are few, they live long, and callers ask whence
// they are. Of all others it would take a call each. Anyone can make look-alikes, so the calls are bounded; a contract goes
// without where there are no more of them, or the update is pruned, or the participant doesn't answer.
func (s *session) originate(ctx context.Context, c *ledger.Contract) {
	switch c.Payload.(type) {
	case *wormhole.CoreState, *wormhole.ReplayRootRegistry, *wormhole.EmitterRegistry:
	default:
		return
	}
	o := s.origins
	if o == nil || c.Offset <= o.pruned {
		return
	}
	u, asked := o.known[c.Offset]
	if !asked && o.left > 0 {
		o.left--
		response, err := s.updateAt(ctx, s.filter, c.Offset)
		if err != nil && errorID(err) != "UPDATE_NOT_FOUND" {
			o.left = 0
			s.f.log.Debug("the participant does not tell which update made a contract", "contract", c.ContractID, "offset", c.Offset, "error", err)
		}
		u.id, u.recordTime = updateIDOf(response)
		o.known[c.Offset] = u
	}
	c.UpdateID, c.RecordTime = u.id, u.recordTime
}

// snapshotAhead is how many contracts are held between two steps of a snapshot.
const snapshotAhead = 32

// receiveSnapshot receives the snapshot; nil says that it was complete.
func (s *session) receiveSnapshot(ctx context.Context, offset int64, responses chan<- *ledgerapi.GetActiveContractsResponse) error {
	err := receive(ctx, s.f.cfg.StallTimeout, func(ctx context.Context) (func() (*ledgerapi.GetActiveContractsResponse, error), error) {
		stream, err := s.f.states.GetActiveContracts(ctx, &ledgerapi.GetActiveContractsRequest{
			ActiveAtOffset: offset, EventFormat: s.filter.eventFormat(true, true),
		})
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}, func(response *ledgerapi.GetActiveContractsResponse) error {
		s.f.heard()
		select {
		case responses <- response:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if isEOF(err) {
		return nil
	}
	return err
}

// entry is one contract of a snapshot: active, or in flight.
type entry struct {
	active   *ledger.Contract
	inFlight *ledger.InFlight
}

func (e entry) contract() *ledger.Contract {
	if e.inFlight != nil {
		return &e.inFlight.Contract
	}
	return e.active
}

func (s *session) convertSnapshot(
	ctx context.Context, offset int64, responses <-chan *ledgerapi.GetActiveContractsResponse, entries chan<- entry,
) error {
	for response := range responses {
		active, inFlight, err := s.convert.entry(response, offset)
		if err != nil {
			return err
		}
		if active == nil && inFlight == nil {
			continue
		}
		select {
		case entries <- entry{active: active, inFlight: inFlight}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// filler passes contracts to a generation, in chunks.
type filler struct {
	seed                   ledger.Seed
	maxContracts, maxBytes int

	active   []ledger.Contract
	inFlight []ledger.InFlight
	bytes    int
	filled   filled
}

func (f *filler) add(ctx context.Context, e entry) error {
	if e.active != nil {
		f.active = append(f.active, *e.active)
		f.filled.last = max(f.filled.last, e.active.Offset)
	} else {
		f.inFlight = append(f.inFlight, *e.inFlight)
	}
	f.filled.contracts++
	f.bytes += len(e.contract().Blob)
	if len(f.active)+len(f.inFlight) < f.maxContracts && f.bytes < f.maxBytes {
		return nil
	}
	return f.flush(ctx)
}

// flush passes on what is there. The sink may keep what it was given.
func (f *filler) flush(ctx context.Context) error {
	if len(f.active) > 0 {
		if err := f.seed.Add(ctx, f.active); err != nil {
			return &sinkError{fmt.Errorf("adding %d contracts to a new generation: %w", len(f.active), err)}
		}
	}
	if len(f.inFlight) > 0 {
		if err := f.seed.AddInFlight(ctx, f.inFlight); err != nil {
			return &sinkError{fmt.Errorf("adding %d contracts in flight to a new generation: %w", len(f.inFlight), err)}
		}
	}
	f.active, f.inFlight, f.bytes = nil, nil, 0
	return nil
}

// sinkError marks an error of the sink among those of the participant.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }
