package indextest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Harness is how the suite gets at the index that it exercises.
type Harness struct {
	// Open gives an index that was never seeded. It is called for one history at a time; the one before may be dropped.
	Open func(ctx context.Context, policy index.Policy) (*index.Index, error)
	// Reopen, if not nil, gives the index that another process would open on what the last one has stored.
	Reopen func(ctx context.Context, policy index.Policy) (*index.Index, error)
	// Covering, if not nil, is a store's own answer: the contract ids of all authentic nodes, in flight or not, that cover the digest, in
	// any order.
	Covering func(ctx context.Context, scope index.Scope, digest wormhole.Digest) ([]string, error)
	// Break, if not nil, makes the next commit fail with the fault (not LeaseLost).
	Break func(Fault)
	// Histories is the number of random histories; 0 is 500, or 10,000 where the environment has DISCLOSURED_SOAK=1, and a tenth
	// of that under the race detector.
	Histories int
	// Share and Shares split the histories between runs of the suite: this one takes each Shares-th from number Share on. The first also has the
	// histories that rapid makes. 0 Shares is one.
	Share, Shares int
}

// Exercise runs the suite.
func Exercise(t *testing.T, h Harness) {
	t.Run("histories", func(t *testing.T) {
		histories := h.Histories
		if histories == 0 {
			histories = 500
			if os.Getenv("DISCLOSURED_SOAK") == "1" {
				histories = 10_000
			}
			if raced {
				histories /= 10
			}
		}
		for n := h.Share; n < histories; n += max(1, h.Shares) {
			src := rand.New(rand.NewPCG(uint64(n), 7))
			if err := (&run{h: h, w: NewWorld(src)}).history(t.Context(), lengthOf(n)); err != nil {
				t.Fatalf("history %d: %v", n, err)
			}
		}
	})
	if h.Share > 0 {
		return
	}
	t.Run("rapid", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			if err := (&run{h: h, w: NewWorld(drawn{rt})}).history(rt.Context(), 8); err != nil {
				rt.Fatal(err)
			}
		})
	})
}

// lengthOf is how many batches the n-th history has: most are short, so that there can be many; some go deep.
func lengthOf(n int) int {
	if n%25 == 24 {
		return 60
	}
	return 4 + n%12
}

// drawn is a Source whose choices rapid makes, and shrinks.
type drawn struct{ t *rapid.T }

func (d drawn) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

// run is one history being exercised.
type run struct {
	h     Harness
	w     *World
	x     *index.Index
	naive *Naive
	words words
	story []string // what happened, for the error
}

// history runs one history and returns the first difference.
func (r *run) history(ctx context.Context, batches int) error {
	x, err := r.h.Open(ctx, r.w.Policy())
	if err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	r.x, r.naive, r.words = x, NewNaive(r.w.Policy()), words{}
	if err := r.reseed(ctx, ledger.SeedFirst); err != nil {
		return r.told(err)
	}
	for range batches {
		if err := r.batch(ctx); err != nil {
			return r.told(err)
		}
		if r.w.chance(8) {
			reason := one(r.w, ledger.SeedPruned, ledger.SeedPruned, ledger.SeedRequested, ledger.SeedRightsChanged, ledger.SeedConfigChanged,
				ledger.SeedAnotherParticipant, ledger.SeedRewound, ledger.SeedDiverged)
			if err := r.reseed(ctx, reason); err != nil {
				return r.told(err)
			}
		}
		if r.h.Reopen != nil && r.w.chance(8) {
			if r.x, err = r.h.Reopen(ctx, r.w.Policy()); err != nil {
				return r.told(fmt.Errorf("reopening: %w", err))
			}
			r.story = append(r.story, "reopened")
			if err := r.compare(ctx); err != nil {
				return r.told(fmt.Errorf("after reopening: %w", err))
			}
		}
	}
	return nil
}

// told adds the story to an error.
func (r *run) told(err error) error {
	return fmt.Errorf("%w\nafter:\n  %s", err, strings.Join(r.story, "\n  "))
}

// batch lets some updates happen, tells them as one batch, and compares.
func (r *run) batch(ctx context.Context) error {
	b := ledger.Batch{ParticipantID: r.w.Participant(), After: r.x.View().Position().Offset}
	for range r.w.pick(5) {
		u := r.w.Update()
		b.Updates = append(b.Updates, u)
		r.story = append(r.story, tell(u))
	}
	b.Through = max(b.After, r.w.Offset()) + int64(r.w.pick(3))
	r.w.offset = b.Through
	r.story = append(r.story, fmt.Sprintf("batch (%d, %d]", b.After, b.Through))
	if err := r.checkDelta(b); err != nil {
		return err
	}
	broken := b.Through > b.After && r.breakCommit()
	err := r.x.Apply(ctx, b)
	if broken && err != nil {
		// What the follower does: ask where the index stands, go on from there.
		pos, ok, askErr := r.x.Position(ctx)
		if askErr != nil || !ok {
			return fmt.Errorf("asking for the position after a broken commit: %v, %v", ok, askErr)
		}
		err = nil
		if pos.Offset == b.After {
			err = r.x.Apply(ctx, b)
		}
	}
	if err != nil {
		return fmt.Errorf("applying: %w", err)
	}
	r.naive.Apply(b)
	return r.compare(ctx)
}

// breakCommit makes the next commit fail, sometimes.
func (r *run) breakCommit() bool {
	if r.h.Break == nil || !r.w.chance(20) {
		return false
	}
	r.h.Break(one(r.w, NotWritten, WrittenUnheard))
	r.story = append(r.story, "the next commit breaks")
	return true
}

// tell puts an update in a line.
func tell(u ledger.Update) string {
	line := fmt.Sprintf("%d:", u.Offset)
	for _, ev := range u.Events {
		line += fmt.Sprintf(" %s %s", ev.Kind, ev.ContractID)
		if ev.Contract != nil {
			if node, ok := ev.Contract.Payload.(*wormhole.ReplayNode); ok {
				line += fmt.Sprintf(" (%q, %d held)", node.Prefix, node.Consumed.Len())
			}
		}
		if ev.Source != "" {
			line += fmt.Sprintf(" %s to %s %d", ev.Source, ev.Target, ev.ReassignmentCounter)
		}
		line += ";"
	}
	return line
}

// checkDelta holds a delta to its own promises: no key twice, and that it leads to the same view as the batch did.
func (r *run) checkDelta(b ledger.Batch) error {
	v := r.x.View()
	next, delta, err := v.Apply(b)
	if err != nil {
		return fmt.Errorf("applying to the view: %w", err)
	}
	seen := map[index.Key]bool{}
	for _, e := range delta.Put {
		if seen[e.Key()] {
			return fmt.Errorf("the delta puts %v twice", e.Key())
		}
		seen[e.Key()] = true
	}
	for _, key := range delta.Remove {
		if seen[key] {
			return fmt.Errorf("the delta has %v twice", key)
		}
		seen[key] = true
	}
	digests := map[index.ScopedDigest]bool{}
	for _, sd := range slices.Concat(delta.MissingAdd, delta.MissingRemove) {
		if digests[sd] {
			return fmt.Errorf("the delta has the missing %v twice", sd)
		}
		digests[sd] = true
	}
	followed, err := v.Follow(delta)
	if err != nil {
		return fmt.Errorf("following: %w", err)
	}
	return differ("a view that followed the delta", picture(followed), picture(next))
}

// picture is a view in lines. Entries are told apart by identity: views that follow each other share them.
func picture(v *index.View) []string {
	var lines []string
	for e := range v.Each {
		lines = append(lines, fmt.Sprintf("%s on %s %p", e.ContractID, e.SynchronizerID, e))
	}
	for sd := range v.MissingDigests {
		lines = append(lines, fmt.Sprintf("missing %s in %s", sd.Digest, sd.Scope))
	}
	for _, scope := range v.Scopes() {
		stats, err := v.ScopeStats(scope)
		lines = append(lines, fmt.Sprintf("%+v %v", stats, err))
	}
	for _, f := range v.Findings() {
		lines = append(lines, findingLine(f)+f.Detail)
	}
	lines = append(lines, fmt.Sprintf("%+v %+v %v", v.Position(), v.Stats(), v.FindingCounts()))
	// Contracts with several entries list those that don't count in no order.
	sort.Strings(lines)
	return lines
}

func differ(what string, got, want []string) error {
	if slices.Equal(got, want) {
		return nil
	}
	var lines []string
	for _, line := range got {
		if !slices.Contains(want, line) {
			lines = append(lines, "+ "+line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			lines = append(lines, "- "+line)
		}
	}
	return fmt.Errorf("%s differs (+ got, - want), %d lines for %d:\n%s", what, len(got), len(want), strings.Join(lines, "\n"))
}

// reseed puts a snapshot in the place of the present generation, in pieces, and compares.
func (r *run) reseed(ctx context.Context, reason ledger.SeedReason) error {
	start, active, flying := r.w.Reseed(reason)
	r.story = append(r.story, fmt.Sprintf("seed %s at %d of %s: %d active, %d in flight", reason, start.Offset, start.ParticipantID, len(active), len(flying)))
	if r.w.chance(10) {
		// One that comes to nothing.
		seed, err := r.x.BeginSeed(ctx, start)
		if err != nil {
			return fmt.Errorf("beginning a seed: %w", err)
		}
		if err := seed.Add(ctx, active[:len(active)/2]); err != nil {
			return fmt.Errorf("adding to a seed: %w", err)
		}
		if err := seed.Abort(ctx); err != nil {
			return fmt.Errorf("aborting a seed: %w", err)
		}
	}
	if err := r.seed(ctx, start, active, flying); err != nil {
		return err
	}
	r.naive.Seed(start, slices.Clone(active), slices.Clone(flying))
	return r.compare(ctx)
}

// seed seeds the index, in pieces. Where the commit breaks, whether or not it took effect, it seeds again:
// the place alone does not tell a new generation from the old one.
func (r *run) seed(ctx context.Context, start ledger.SeedStart, active []ledger.Contract, flying []ledger.InFlight) error {
	for {
		seed, err := r.x.BeginSeed(ctx, start)
		if err != nil {
			return fmt.Errorf("beginning a seed: %w", err)
		}
		if err := seed.AddInFlight(ctx, flying); err != nil {
			return fmt.Errorf("adding to a seed: %w", err)
		}
		for rest := active; len(rest) > 0; {
			n := 1 + r.w.pick(len(rest))
			if err := seed.Add(ctx, rest[:n]); err != nil {
				return fmt.Errorf("adding to a seed: %w", err)
			}
			rest = rest[n:]
		}
		broken := r.breakCommit()
		err = seed.Commit(ctx)
		if err == nil {
			return nil
		}
		if !broken {
			return fmt.Errorf("committing a seed: %w", err)
		}
		if _, _, err := r.x.Position(ctx); err != nil {
			return fmt.Errorf("asking for the position after a broken commit: %w", err)
		}
	}
}
