package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
)

// memorySink is a Sink that keeps what it is given, and refuses what its contract refuses.
type memorySink struct {
	mu      sync.Mutex
	pos     ledger.Position
	seeded  bool
	active  map[string]ledger.Contract // by contract id and synchronizer
	batches []ledger.Batch
	seeds   []ledger.SeedStart
	aborts  int
	// unknown are archives of contracts that were not there.
	unknown int
	// onApply and onCommit are called before; an error of theirs is the method's, without effect.
	onApply  func(ledger.Batch) error
	onCommit func() error
}

func (m *memorySink) Position(context.Context) (ledger.Position, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pos, m.seeded, nil
}

func (m *memorySink) BeginSeed(_ context.Context, start ledger.SeedStart) (ledger.Seed, error) {
	return &memorySeed{sink: m, start: start, active: make(map[string]ledger.Contract)}, nil
}

func (m *memorySink) Apply(_ context.Context, b ledger.Batch) error {
	m.mu.Lock()
	hook := m.onApply
	m.mu.Unlock()
	if hook != nil {
		if err := hook(b); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.seeded || b.ParticipantID != m.pos.ParticipantID || b.After != m.pos.Offset {
		return fmt.Errorf("%w: %d of %s at %d of %s", ledger.ErrNotNext, b.After, b.ParticipantID, m.pos.Offset, m.pos.ParticipantID)
	}
	last := b.After
	for _, u := range b.Updates {
		if u.Offset <= last || u.Offset > b.Through {
			return fmt.Errorf("an update at %d after %d in a batch through %d", u.Offset, last, b.Through)
		}
		last = u.Offset
		for _, e := range u.Events {
			switch e.Kind {
			case ledger.Created, ledger.Assigned:
				m.active[e.ContractID+"@"+e.Contract.SynchronizerID] = *e.Contract
			case ledger.Unassigned:
				delete(m.active, e.ContractID+"@"+e.Source)
			case ledger.Archived:
				before := len(m.active)
				maps.DeleteFunc(m.active, func(_ string, c ledger.Contract) bool { return c.ContractID == e.ContractID })
				if len(m.active) == before {
					m.unknown++
				}
			}
		}
		m.pos.UpdateOffset, m.pos.UpdateID, m.pos.RecordTime = u.Offset, u.UpdateID, u.RecordTime
	}
	m.pos.Offset = b.Through
	m.batches = append(m.batches, b)
	return nil
}

// contracts are the ids of what is active, sorted.
func (m *memorySink) contracts() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for _, c := range m.active {
		ids = append(ids, c.ContractID)
	}
	slices.Sort(ids)
	return ids
}

func (m *memorySink) offset() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pos.Offset
}

// reasons are those of the generations that were committed.
func (m *memorySink) reasons() []ledger.SeedReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ledger.SeedReason
	for _, s := range m.seeds {
		out = append(out, s.Reason)
	}
	return out
}

type memorySeed struct {
	sink   *memorySink
	start  ledger.SeedStart
	active map[string]ledger.Contract
	done   bool
	anchor ledger.Position
}

func (s *memorySeed) Anchor(offset int64, updateID string, recordTime time.Time) {
	s.anchor.UpdateOffset, s.anchor.UpdateID, s.anchor.RecordTime = offset, updateID, recordTime
}

func (s *memorySeed) Add(_ context.Context, contracts []ledger.Contract) error {
	for _, c := range contracts {
		s.active[c.ContractID+"@"+c.SynchronizerID] = c
	}
	return nil
}

func (s *memorySeed) AddInFlight(context.Context, []ledger.InFlight) error { return nil }

func (s *memorySeed) Commit(context.Context) error {
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	if s.done {
		return errors.New("the seed is over")
	}
	if s.sink.onCommit != nil {
		if err := s.sink.onCommit(); err != nil {
			return err
		}
	}
	s.done = true
	s.sink.pos = s.anchor
	s.sink.pos.ParticipantID, s.sink.pos.Offset, s.sink.pos.Filter = s.start.ParticipantID, s.start.Offset, s.start.Filter
	s.sink.seeded, s.sink.active = true, s.active
	s.sink.seeds = append(s.sink.seeds, s.start)
	return nil
}

func (s *memorySeed) Abort(context.Context) error {
	if !s.done {
		s.done = true
		s.sink.mu.Lock()
		s.sink.aborts++
		s.sink.mu.Unlock()
	}
	return nil
}
