package indextest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
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
		for n := range histories {
			src := rand.New(rand.NewPCG(uint64(n), 7))
			if err := (&run{h: h, w: NewWorld(src)}).history(t.Context(), lengthOf(n)); err != nil {
				t.Fatalf("history %d: %v", n, err)
			}
		}
	})
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

// compare holds everything that the index answers to what the naive index answers.
func (r *run) compare(ctx context.Context) error {
	for _, check := range []func(context.Context) error{r.comparePlace, r.compareScopes, r.compareContracts, r.compareNamed, r.compareFindings, r.compareHistory} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) comparePlace(ctx context.Context) error {
	pos, ok, err := r.x.Position(ctx)
	if err != nil || !ok {
		return fmt.Errorf("position: %v, %v", ok, err)
	}
	want := r.naive.pos
	if pos.ParticipantID != want.ParticipantID || pos.Offset != want.Offset || pos.UpdateOffset != want.UpdateOffset ||
		pos.UpdateID != want.UpdateID || pos.Filter != want.Filter || micros(pos.RecordTime) != micros(want.RecordTime) {
		return fmt.Errorf("position %+v, want %+v", pos, want)
	}
	if view := r.x.View().Position(); view.Offset != pos.Offset {
		return fmt.Errorf("the view is at %d, the position %d", view.Offset, pos.Offset)
	}
	return nil
}

// compareScopes compares what is in the tries: covering nodes, missing digests, sizes.
func (r *run) compareScopes(ctx context.Context) error {
	v := r.x.View()
	scopes := r.naive.Scopes()
	if got := v.Scopes(); !slices.Equal(got, scopes) {
		return fmt.Errorf("scopes %v, want %v", got, scopes)
	}
	digests := r.sample()
	for _, scope := range slices.Concat(scopes, []index.Scope{{PackageName: PackageName, Operator: "nobody"}}) {
		for _, d := range digests {
			want := r.naive.Covering(scope, d)
			if got := r.words.answer(v.Covering(scope, d)); got != want {
				return fmt.Errorf("covering %s in %s: %s, want %s", d, scope, got, want)
			}
			if err := r.compareStored(ctx, scope, d); err != nil {
				return err
			}
		}
	}
	for _, scope := range scopes {
		missing := r.naive.Missing(scope)
		for _, d := range r.w.digests {
			if got, want := v.Missing(scope, d), slices.Contains(missing, d); got != want {
				return fmt.Errorf("missing %s in %s: %v, want %v", d, scope, got, want)
			}
		}
		stats, err := v.ScopeStats(scope)
		if err != nil {
			return err
		}
		want := index.ScopeStats{Scope: scope, Missing: len(missing), Gaps: stats.Gaps, Forks: stats.Forks, Losses: stats.Losses}
		for _, e := range nodes(r.naive.entries, scope) {
			want.Nodes++
			want.Digests += nodeIn(e, scope).Consumed.Len()
			want.Deepest = max(want.Deepest, nodeIn(e, scope).Prefix.Len())
		}
		if stats != want {
			return fmt.Errorf("sizes of %s: %+v, want %+v", scope, stats, want)
		}
	}
	return nil
}

func (r *run) compareStored(ctx context.Context, scope index.Scope, d wormhole.Digest) error {
	if r.h.Covering == nil {
		return nil
	}
	got, err := r.h.Covering(ctx, scope, d)
	if err != nil {
		return fmt.Errorf("covering %s in %s, in the store: %w", d, scope, err)
	}
	var want []string
	for _, e := range nodes(r.naive.entries, scope) {
		if nodeIn(e, scope).Prefix.Covers(d) {
			want = append(want, e.ContractID)
		}
	}
	sort.Strings(got)
	sort.Strings(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("covering %s in %s, in the store: %v, want %v", d, scope, got, want)
	}
	return nil
}

// sample are some of the digests that were used, and some that were not.
func (r *run) sample() []wormhole.Digest {
	digests := []wormhole.Digest{{}, {0xff}}
	for range 6 {
		if len(r.w.digests) > 0 {
			digests = append(digests, one(r.w, r.w.digests...))
		}
	}
	return digests
}

// compareContracts compares every contract that is there, and the fates of some that are not.
func (r *run) compareContracts(ctx context.Context) error {
	v := r.x.View()
	var ids, got []string
	for e := range v.Each {
		if len(ids) == 0 || ids[len(ids)-1] != e.ContractID {
			ids = append(ids, e.ContractID)
		}
	}
	want := []string{}
	for _, e := range allCounting(r.naive.entries) {
		want = append(want, e.ContractID)
	}
	if !slices.Equal(ids, want) {
		return differ("the contracts", ids, want)
	}
	got, want = nil, nil
	for _, id := range ids {
		got, want = append(got, r.describeAll(v.Contract(id))), append(want, r.naive.Contract(id))
	}
	if err := differ("the contracts", got, want); err != nil {
		return err
	}
	ids = []string{"00"}
	for range 6 {
		if len(r.w.buried) > 0 {
			ids = append(ids, one(r.w, r.w.buried...).ContractID)
		}
	}
	for _, id := range ids {
		fate, err := r.x.Fate(ctx, v, id)
		if err != nil {
			return fmt.Errorf("fate of %s: %w", id, err)
		}
		want := "no end"
		if e := counting(r.naive.entries, id); e != nil {
			want = r.words.describe(e)
		} else if end, known := r.naive.EndOf(id, r.naive.pos.Offset); known {
			want = describeEnd(end, true)
		}
		got := "no end"
		if fate.Entry != nil {
			got = r.words.describe(fate.Entry)
		} else if fate.Ended != nil {
			got = describeEnd(*fate.Ended, true)
		}
		if got != want {
			return fmt.Errorf("fate of %s: %s, want %s", id, got, want)
		}
	}
	return r.compareStats()
}

func (r *run) describeAll(entries []*index.Entry) string {
	var words []string
	for _, e := range entries {
		words = append(words, r.words.describe(e))
	}
	if len(words) > 1 {
		sort.Strings(words[1:])
	}
	return strings.Join(words, "; ")
}

func (r *run) compareStats() error {
	want := map[index.Class]int{}
	total := 0
	for _, e := range allCounting(r.naive.entries) {
		want[e.Class]++
		total++
	}
	got := map[index.Class]int{}
	stats := r.x.View().Stats()
	for key, n := range stats.Classes {
		got[key.Class] += n
	}
	if !reflect.DeepEqual(got, want) || stats.Contracts != total {
		return fmt.Errorf("contracts by class %v (%d), want %v (%d)", got, stats.Contracts, want, total)
	}
	return nil
}

// compareNamed compares CoreStates, registries and emitters by several selectors each.
func (r *run) compareNamed(context.Context) error {
	v := r.x.View()
	for _, s := range []index.CoreStateSelector{{}, {Operator: Operator}, {Operator: OtherOperator, PackageName: PackageName}, {PackageName: OtherPackage}, {ContractID: r.someCore()}} {
		if got, want := r.words.answer(v.CoreState(s)), r.naive.CoreState(s); got != want {
			return fmt.Errorf("CoreState %+v: %s, want %s", s, got, want)
		}
	}
	for _, s := range []index.RegistrySelector{{}, {Operator: Operator}, {Operator: OtherOperator, PackageName: PackageName}} {
		fits := func(packageName, operator string) bool {
			return (s.PackageName == "" || s.PackageName == packageName) && (s.Operator == "" || s.Operator == operator)
		}
		want := r.naive.Named(func(name string, p wormhole.Payload) bool {
			registry, ok := p.(*wormhole.ReplayRootRegistry)
			return ok && fits(name, registry.Operator)
		})
		if got := r.words.answer(v.ReplayRootRegistry(s)); got != want {
			return fmt.Errorf("ReplayRootRegistry %+v: %s, want %s", s, got, want)
		}
		want = r.naive.Named(func(name string, p wormhole.Payload) bool {
			registry, ok := p.(*wormhole.EmitterRegistry)
			return ok && fits(name, registry.Operator)
		})
		if got := r.words.answer(v.EmitterRegistry(s)); got != want {
			return fmt.Errorf("EmitterRegistry %+v: %s, want %s", s, got, want)
		}
		for _, owner := range consumers {
			for id := range int64(2) {
				want := r.naive.Named(func(name string, p wormhole.Payload) bool {
					emitter, ok := p.(*wormhole.Emitter)
					return ok && fits(name, emitter.Operator) && emitter.Owner == owner && emitter.EmitterID == id
				})
				if got := r.words.answer(v.Emitter(index.EmitterSelector{PackageName: s.PackageName, Operator: s.Operator, Owner: owner, EmitterID: id})); got != want {
					return fmt.Errorf("emitter %+v of %s, %d: %s, want %s", s, owner, id, got, want)
				}
			}
		}
	}
	return nil
}

// someCore is the contract id of a CoreState, "" where there is none.
func (r *run) someCore() string {
	for _, e := range r.naive.entries {
		if _, ok := e.Payload.(*wormhole.CoreState); ok {
			return e.ContractID
		}
	}
	return ""
}

// compareFindings compares what is kept in step, what is computed in full, what is counted, and what is attached to answers.
func (r *run) compareFindings(context.Context) error {
	v := r.x.View()
	found := v.Findings()
	want := r.naive.Findings()
	var got []string
	counts := map[index.FindingKind]int{}
	for _, f := range found {
		got = append(got, findingLine(f))
		counts[f.Kind]++
	}
	sort.Strings(got)
	if err := differ("the findings", got, want); err != nil {
		return err
	}
	full := v.Audit()
	if len(found) != len(full) {
		return fmt.Errorf("%d findings, %d in full", len(found), len(full))
	}
	for i := range full {
		if !reflect.DeepEqual(found[i], full[i]) {
			return fmt.Errorf("finding %d: %+v, in full %+v", i, found[i], full[i])
		}
	}
	for kind, n := range v.FindingCounts() {
		if counts[kind] != n {
			return fmt.Errorf("%d findings %s are counted, %d are there", n, kind, counts[kind])
		}
	}
	for _, scope := range r.naive.scopes {
		for _, d := range r.sample() {
			var want []string
			for _, f := range full {
				concerns := f.Kind == index.FindingGap || f.Kind == index.FindingFork || f.Kind == index.FindingLoss || f.Kind == index.FindingGhost
				if concerns && f.Scope != nil && *f.Scope == scope && f.Prefix.Covers(d) {
					want = append(want, findingLine(f))
				}
			}
			var got []string
			for _, f := range v.FindingsFor(scope, d) {
				got = append(got, findingLine(f))
			}
			if !slices.Equal(got, want) {
				return differ("the findings for "+d.String(), got, want)
			}
		}
	}
	return nil
}

// compareHistory compares what is known of the past, as of now and as of some time before.
func (r *run) compareHistory(ctx context.Context) error {
	h := r.x.History()
	now := r.naive.pos.Offset
	since, err := h.HistorySince(ctx)
	if err != nil || since != r.naive.since {
		return fmt.Errorf("history since %d, want %d (%v)", since, r.naive.since, err)
	}
	for _, at := range []int64{now, now - int64(r.w.pick(10))} {
		for _, scope := range r.naive.scopes {
			for _, d := range r.sample() {
				c, known, err := h.Consumed(ctx, scope, d, at)
				if err != nil {
					return fmt.Errorf("consume of %s: %w", d, err)
				}
				if got, want := describeConsume(c, known), describeConsume(r.naive.Consumed(scope, d, at)); got != want {
					return fmt.Errorf("consume of %s in %s as of %d: %s, want %s", d, scope, at, got, want)
				}
			}
			prefix := one(r.w, r.sample()...).Prefix(r.w.pick(3))
			limit := 1 + r.w.pick(5)
			lives, err := h.NodeLives(ctx, scope, prefix, at, limit)
			if err != nil {
				return fmt.Errorf("lives under %q: %w", prefix, err)
			}
			if got, want := describeLives(lives), describeLives(r.naive.NodeLives(scope, prefix, at, limit)); got != want {
				return fmt.Errorf("%d lives under %q in %s as of %d: %s, want %s", limit, prefix, scope, at, got, want)
			}
		}
		for range min(3, len(r.w.buried)) {
			id := one(r.w, r.w.buried...).ContractID
			end, known, err := h.EndOf(ctx, id, at)
			if err != nil {
				return fmt.Errorf("end of %s: %w", id, err)
			}
			if got, want := describeEnd(end, known), describeEnd(r.naive.EndOf(id, at)); got != want {
				return fmt.Errorf("end of %s as of %d: %s, want %s", id, at, got, want)
			}
		}
	}
	for range min(2, len(r.naive.updates)) {
		want := one(r.w, r.naive.updates...)
		ref, known, err := h.UpdateByID(ctx, want.UpdateID)
		if err != nil || !known || ref.Offset != want.Offset || micros(ref.RecordTime) != micros(want.RecordTime) {
			return fmt.Errorf("update %s: %+v, %v, %v; want %+v", want.UpdateID, ref, known, err, want)
		}
	}
	return nil
}
