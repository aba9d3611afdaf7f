package indextest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
)

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

// compareSome compares the first findings, of all and of each scope, with all of them.
func compareSome(v *index.View, found []index.Finding) error {
	scopes := []*index.Scope{nil, {Consumer: "nobody"}}
	for _, scope := range v.Scopes() {
		scopes = append(scopes, &scope)
	}
	for _, scope := range scopes {
		var of []index.Finding
		counts := map[index.FindingKind]int{}
		for _, f := range found {
			if scope == nil || f.Scope != nil && *f.Scope == *scope {
				of = append(of, f)
				counts[f.Kind]++
			}
		}
		for _, limit := range []int{0, 1, len(of) / 2, len(of) + 1} {
			some, n := v.SomeFindings(scope, limit)
			if want := of[:min(limit, len(of))]; len(some) != len(want) || len(some) > 0 && !reflect.DeepEqual(some, want) || !reflect.DeepEqual(n, counts) {
				return fmt.Errorf("%d findings of %v: %+v (%v), want %+v (%v)", limit, scope, some, n, want, counts)
			}
		}
	}
	return nil
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
	if err := compareSome(v, found); err != nil {
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
			digests := r.sample()
			asked := make([]index.ScopedDigest, len(digests))
			for i, d := range digests {
				asked[i] = index.ScopedDigest{Scope: scope, Digest: d}
			}
			among, err := h.ConsumedAmong(ctx, asked, at)
			if err != nil {
				return fmt.Errorf("consumes of %d digests: %w", len(asked), err)
			}
			for i, d := range digests {
				c, known, err := h.Consumed(ctx, scope, d, at)
				if err != nil {
					return fmt.Errorf("consume of %s: %w", d, err)
				}
				if other, also := among[asked[i]]; also != known || describeConsume(other, also) != describeConsume(c, known) {
					return fmt.Errorf("consume of %s in %s as of %d: %s alone, %s among others", d, scope, at, describeConsume(c, known), describeConsume(other, also))
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
