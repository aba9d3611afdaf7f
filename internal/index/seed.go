package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
)

// seed is a generation being built beside the published view. It implements ledger.Seed. It is used by one goroutine.
type seed struct {
	index *Index
	start ledger.SeedStart
	gen   *generation
	store StoreSeed // nil without a store
	done  bool
}

var errSeedDone = errors.New("the seed has already ended")

// BeginSeed starts a new generation beside the present one. Readers see nothing of it before its Commit.
func (x *Index) BeginSeed(ctx context.Context, start ledger.SeedStart) (ledger.Seed, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(ctx); err != nil {
		return nil, err
	}
	s := &seed{index: x, start: start, gen: newGeneration(x.policy, start, x.standing())}
	if x.store != nil {
		var err error
		if s.store, err = x.store.BeginSeed(ctx, start); err != nil {
			return nil, fmt.Errorf("beginning a generation (%s) at offset %d: %w", start.Reason, start.Offset, err)
		}
	}
	return s, nil
}

// Add implements ledger.Seed.
func (s *seed) Add(ctx context.Context, contracts []ledger.Contract) error {
	if s.done {
		return errSeedDone
	}
	ids := make([]string, len(contracts))
	for i := range contracts {
		ids[i] = contracts[i].ContractID
	}
	ended, err := s.ended(ctx, ids)
	if err != nil {
		return err
	}
	return s.keep(ctx, s.gen.add(contracts, ended))
}

// AddInFlight implements ledger.Seed.
func (s *seed) AddInFlight(_ context.Context, inFlight []ledger.InFlight) error {
	if s.done {
		return errSeedDone
	}
	s.gen.addInFlight(inFlight)
	return nil
}

// Anchor implements ledger.Seed: the generation stands at that update until another one is applied.
func (s *seed) Anchor(offset int64, updateID string, recordTime time.Time) {
	s.gen.anchor = UpdateRef{Offset: offset, UpdateID: updateID, RecordTime: recordTime}
}

// ended is what history knows of those of the contracts that may be ghosts.
func (s *seed) ended(ctx context.Context, ids []string) (map[string]Ended, error) {
	suspects := s.gen.suspects(ids)
	if len(suspects) == 0 {
		return nil, nil
	}
	if s.store == nil {
		return s.index.memory.endedAmong(suspects), nil
	}
	ended, err := s.store.Ended(ctx, suspects)
	if err != nil {
		return nil, fmt.Errorf("asking history which of %d contracts of a snapshot had ended: %w", len(suspects), err)
	}
	return ended, nil
}

// keep stores entries of the generation.
func (s *seed) keep(ctx context.Context, entries []*Entry) error {
	if s.store == nil || len(entries) == 0 {
		return nil
	}
	if err := s.store.Add(ctx, entries); err != nil {
		return fmt.Errorf("storing %d contracts of a snapshot at offset %d: %w", len(entries), s.start.Offset, err)
	}
	return nil
}

// Commit implements ledger.Seed.
func (s *seed) Commit(ctx context.Context) error {
	if s.done {
		return errSeedDone
	}
	var ids []string
	for _, f := range s.gen.flying {
		ids = append(ids, f.Contract.ContractID)
	}
	slices.Sort(ids)
	ended, err := s.ended(ctx, slices.Compact(ids))
	if err != nil {
		return err
	}
	if err := s.keep(ctx, s.gen.land(ended)); err != nil {
		return err
	}
	x := s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	s.done = true
	view, end := s.gen.finish()
	if s.store == nil {
		x.memory.seed(s.start, end.Ended)
	} else if err := s.store.Commit(ctx, end); err != nil {
		if !errors.Is(err, ledger.ErrLostLease) {
			x.unsure = &attempt{}
		}
		return fmt.Errorf("storing a generation (%s) at offset %d: %w", s.start.Reason, s.start.Offset, err)
	}
	x.unsure, x.suspect = nil, nil
	x.publish(Publication{View: view, Seed: s.start.Reason}, nil)
	return nil
}

// Abort implements ledger.Seed. After Commit it does nothing.
func (s *seed) Abort(ctx context.Context) error {
	if s.done {
		return nil
	}
	s.done = true
	if s.store == nil {
		return nil
	}
	if err := s.store.Abort(ctx); err != nil {
		return fmt.Errorf("dropping an unfinished generation: %w", err)
	}
	return nil
}
