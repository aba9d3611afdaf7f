package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
)

// Options are an Index's settings. The zero value is usable.
type Options struct {
	// Clock tells the time; nil is time.Now.
	Clock func() time.Time
	// HistoryAge and HistoryLimit bound the history of an Index without a store: the age of its oldest update by record time, and
	// the number of consumes, of ends and of updates. An age of zero is no bound, a limit of zero is 1,000,000.
	HistoryAge   time.Duration
	HistoryLimit int
	// Logger gets what an operator should know; nil is slog.Default.
	Logger *slog.Logger
	// Published is called after each publication, by the goroutine that wrote. It must not call the Index's writing methods.
	Published func(Publication)
	// CheckLoaded, where set, says what is wrong with an entry as the store gave it: that it is not what was once written from the
	// ledger. One error is enough for nothing of what was loaded to be published: see Position. It is called by several goroutines
	// at once, and must not keep the entry.
	CheckLoaded func(*Entry) error
}

// Publication tells that readers now see another view, and how it came about.
type Publication struct {
	View *View
	// Stats and the times are those of a batch; Stats is nil for a seed or a load.
	Stats *ApplyStats
	// Apply is the time to compute the view, Commit the time to store the delta.
	Apply, Commit time.Duration
	// Seed is the reason of a seed, "" for a batch or a load.
	Seed ledger.SeedReason
}

const defaultHistoryLimit = 1_000_000

// Index is the present View, its store and its history. Its reading methods are safe for concurrent use. Its writing methods
// (Position, Apply, BeginSeed and the seed's) are one writer's: the follower's.
type Index struct {
	policy Policy
	store  Store          // nil without one
	memory *memoryHistory // nil with a store
	opts   Options

	// mu is held while the view is moved on.
	mu sync.Mutex
	// unsure is set while the outcome of a commit is not known.
	unsure *attempt
	// suspect is what was loaded from a store that holds what was never written, without the entries that are known to be wrong. It is
	// not published; the next generation is built from what of it can be believed.
	suspect *View
	// warned is when warnUnknown last logged, and unsaid how many ends of unknown contracts came since.
	warned time.Time
	unsaid int

	now     atomic.Pointer[published]
	waiters updateWaiters
}

// attempt is a commit whose outcome is not known.
type attempt struct {
	// next is the view that a batch would have led to; nil for a seed, whose place may be equal to the old one.
	next *View
	from ledger.Position
}

// published is what readers see. next is closed when it is no longer the present one.
type published struct {
	view *View
	next chan struct{}
}

// Open makes an index and loads what the store holds, if anything. Store may be nil: then the index lives in memory alone and
// its history begins with each seed.
func Open(ctx context.Context, policy Policy, store Store, opts Options) (*Index, error) {
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	x := &Index{policy: policy, store: store, opts: opts}
	x.now.Store(&published{next: make(chan struct{})})
	if store == nil {
		x.memory = newMemoryHistory(opts.HistoryAge, cmp.Or(opts.HistoryLimit, defaultHistoryLimit), opts.Clock)
		return x, nil
	}
	_, seeded, err := store.Position(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the store's position: %w", err)
	}
	if seeded {
		if err := x.load(ctx); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// View is the present view, nil before the first seed.
func (x *Index) View() *View { return x.now.Load().view }

// History is the history that belongs to the views.
func (x *Index) History() History {
	if x.store != nil {
		return x.store
	}
	return x.memory
}

// Fate is the fate of the contract as of the view.
func (x *Index) Fate(ctx context.Context, v *View, contractID string) (Fate, error) {
	return FateOf(ctx, v, x.History(), contractID)
}

// publish shows readers the view.
func (x *Index) publish(p Publication, updates []UpdateRef) {
	old := x.now.Swap(&published{view: p.View, next: make(chan struct{})})
	close(old.next)
	if p.Stats == nil {
		x.waiters.wakeAll()
	} else {
		x.waiters.wake(updates)
	}
	if x.opts.Published != nil {
		x.opts.Published(p)
	}
}

// newScopes are the view's scopes that are not among the known.
func newScopes(v *View, known []Scope) []Scope {
	old := make(map[Scope]bool, len(known))
	for _, scope := range known {
		old[scope] = true
	}
	var fresh []Scope
	for _, scope := range v.Scopes() {
		if !old[scope] {
			fresh = append(fresh, scope)
		}
	}
	return fresh
}

// Position is where the index stands; ok is false before the first seed. After a commit of unknown outcome it asks the
// store, and publishes what it finds there. Where what it finds is not what was written (Options.CheckLoaded), nothing of it is
// published, and the position says that a new generation is needed.
func (x *Index) Position(ctx context.Context) (pos ledger.Position, ok bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(ctx); err != nil {
		return ledger.Position{}, false, err
	}
	v := x.standing()
	if v == nil || x.unsure != nil {
		return ledger.Position{}, false, nil
	}
	pos = v.pos
	if x.suspect != nil {
		pos.Reseed = ledger.SeedDamaged
	}
	return pos, true, nil
}

// standing is the view at which the store stands: the published one, but for a suspect one.
func (x *Index) standing() *View {
	if x.suspect != nil {
		return x.suspect
	}
	return x.View()
}

// settle finds out how the last commit ended, if that is not known. It leaves the index unsure where the store holds nothing.
func (x *Index) settle(ctx context.Context) error {
	if x.unsure == nil {
		return nil
	}
	pos, seeded, err := x.store.Position(ctx)
	if err != nil {
		return fmt.Errorf("asking the store how the last commit ended: %w", err)
	}
	switch next := x.unsure.next; {
	case !seeded && x.View() == nil:
		x.unsure = nil
	case !seeded:
	case next != nil && samePlace(pos, x.unsure.from):
		x.unsure = nil
	case next != nil && samePlace(pos, next.pos):
		x.unsure = nil
		x.publish(Publication{View: next}, nil)
	default:
		return x.load(ctx)
	}
	return nil
}

// samePlace compares positions by what names a place. Times are left out: a store may keep them less exactly.
func samePlace(a, b ledger.Position) bool {
	return a.ParticipantID == b.ParticipantID && a.Offset == b.Offset && a.UpdateOffset == b.UpdateOffset && a.UpdateID == b.UpdateID
}

func notNext(doing string, from, at ledger.Position) error {
	return fmt.Errorf("%s from offset %d of participant %q at offset %d of participant %q: %w",
		doing, from.Offset, from.ParticipantID, at.Offset, at.ParticipantID, ledger.ErrNotNext)
}

// Apply appends a batch: computes the next view, stores the delta, publishes. The error wraps ledger.ErrNotNext where the batch does
// not continue from the index's position, and ledger.ErrLostLease where another process writes now. After any other error
// Position tells whether the batch took effect.
func (x *Index) Apply(ctx context.Context, b ledger.Batch) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(ctx); err != nil {
		return err
	}
	v := x.View()
	if v == nil || x.unsure != nil || x.suspect != nil {
		return fmt.Errorf("applying a batch to an index without a seed: %w", ledger.ErrNotNext)
	}
	began := x.opts.Clock()
	next, delta, err := v.Apply(b)
	if err != nil {
		return err
	}
	if delta.From == delta.To {
		return nil
	}
	computed := x.opts.Clock()
	if x.store == nil {
		x.memory.append(delta)
	} else if err := x.store.Commit(ctx, delta); err != nil {
		if !errors.Is(err, ledger.ErrLostLease) {
			x.unsure = &attempt{next: next, from: v.pos}
		}
		return fmt.Errorf("storing the batch (%d, %d]: %w", b.After, b.Through, err)
	}
	x.warnUnknown(&delta.Stats)
	x.publish(Publication{View: next, Stats: &delta.Stats, Apply: computed.Sub(began), Commit: x.opts.Clock().Sub(computed)}, delta.Updates)
	return nil
}

// unknownInterval is how often ends of unknown contracts are logged at most.
const unknownInterval = time.Minute

// warnUnknown says that contracts ended which the index did not hold. That changes nothing, and imports, repairs and participants that
// forget an event bring it about; but it is also how an index shows itself that lacks what it should hold. An audit against the
// ledger tells the two apart.
func (x *Index) warnUnknown(stats *ApplyStats) {
	if stats.Unknown == nil {
		return
	}
	x.unsaid += stats.UnknownArchives + stats.UnknownUnassigns
	now := x.opts.Clock()
	if !x.warned.IsZero() && now.Sub(x.warned) < unknownInterval {
		return
	}
	x.opts.Logger.Warn("contracts were archived or unassigned that the index does not hold: if nothing was imported or repaired on the participant, audit the index against the ledger",
		"contract", stats.Unknown.ContractID, "offset", stats.Unknown.Offset, "count", x.unsaid)
	x.warned, x.unsaid = now, 0
}
