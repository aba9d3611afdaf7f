package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// mirror is what a store must hold, kept in plain maps and slices.
type mirror struct {
	seeded   bool
	pos      ledger.Position
	entries  map[index.Key]*index.Entry
	missing  map[index.ScopedDigest]bool
	known    map[index.Scope]bool
	ghosts   map[index.Key]*index.Entry
	since    int64
	consumes []index.Consume
	ended    []index.Ended
	updates  []index.UpdateRef
	names    int
}

func (m *mirror) commit(d index.Delta) {
	m.pos = d.To
	for _, k := range d.Remove {
		delete(m.entries, k)
	}
	for _, e := range d.Put {
		m.entries[e.Key()] = e
	}
	for _, x := range d.MissingRemove {
		delete(m.missing, x)
	}
	for _, x := range d.MissingAdd {
		m.missing[x] = true
	}
	for _, s := range d.Scopes {
		m.known[s] = true
	}
	m.consumes, m.ended, m.updates = append(m.consumes, d.Consumes...), append(m.ended, d.Ended...), append(m.updates, d.Updates...)
}

func (m *mirror) reseed(reason ledger.SeedReason, entries []*index.Entry, end index.SeedEnd) {
	if !reason.SameHistory() {
		m.consumes, m.ended, m.updates = nil, nil, nil
	}
	m.seeded, m.pos, m.since = true, end.Position, end.Position.Offset
	m.entries, m.ghosts = byKey(entries...), byKey(end.Ghosts...)
	m.missing, m.known = map[index.ScopedDigest]bool{}, map[index.Scope]bool{}
	for _, x := range end.Missing {
		m.missing[x] = true
	}
	for _, s := range end.KnownScopes {
		m.known[s] = true
	}
	m.ended = append(m.ended, end.Ended...)
}

var drawnScopes = []index.Scope{scope1, inNamespace(""), inNamespace("ntt"), {PackageName: "wormhole-core", Operator: "accomplice::1220ee", Consumer: consumer}}

func drawScope(t *rapid.T) index.Scope { return rapid.SampledFrom(drawnScopes).Draw(t, "scope") }
func drawDigest(t *rapid.T) wormhole.Digest {
	return digest(rapid.IntRange(0, 7).Draw(t, "digest"))
}

// drawNode draws a node that covers one of the few digests.
func (m *mirror) drawNode(t *rapid.T, offset int64) *index.Entry {
	m.names++
	d := drawDigest(t)
	e := node(drawScope(t), fmt.Sprint("node ", m.names), d.String()[:rapid.SampledFrom([]int{0, 1, 2, 5, 63}).Draw(t, "depth")], offset, d)
	e.InFlight = rapid.IntRange(0, 9).Draw(t, "in flight") == 0
	return e
}

func drawKeys(t *rapid.T, entries map[index.Key]*index.Entry, label string) []index.Key {
	keys := slices.SortedFunc(maps.Keys(entries), func(a, b index.Key) int { return cmp.Compare(a.ContractID, b.ContractID) })
	return slices.DeleteFunc(keys, func(index.Key) bool { return rapid.IntRange(0, 3).Draw(t, label) != 0 })
}

// drawDelta draws a delta that continues from the mirror: it need not make sense as a ledger, only as a delta.
func (m *mirror) drawDelta(t *rapid.T) index.Delta {
	d := index.Delta{From: m.pos, To: m.pos}
	d.To.Offset += int64(rapid.IntRange(0, 2).Draw(t, "silence"))
	for range rapid.IntRange(0, 3).Draw(t, "updates") {
		d.To.Offset += int64(rapid.IntRange(1, 3).Draw(t, "gap"))
		o := d.To.Offset
		filter := d.To.Filter
		d.To = position(o)
		d.To.Filter = filter
		d.Updates = append(d.Updates, index.UpdateRef{Offset: o, UpdateID: d.To.UpdateID, RecordTime: at(o)})
		for range rapid.IntRange(0, 2).Draw(t, "consumes") {
			d.Consumes = append(d.Consumes, index.Consume{Scope: drawScope(t), Digest: drawDigest(t), Offset: o, UpdateID: d.To.UpdateID, RecordTime: at(o)})
		}
	}
	d.Remove = drawKeys(t, m.entries, "remove")
	for _, k := range d.Remove {
		old := m.entries[k]
		e := index.Ended{ContractID: k.ContractID, How: index.How(rapid.IntRange(1, 4).Draw(t, "how")), AfterOffset: d.To.Offset - 1, Offset: d.To.Offset, UpdateID: "u", RecordTime: at(d.To.Offset), Since: old.RecordTime}
		if n, ok := old.Payload.(*wormhole.ReplayNode); ok {
			scope := index.ScopeOf(old.PackageName, n)
			e.Scope, e.Prefix, e.Successors = &scope, n.Prefix, []string{id("successor"), id("another")}[:rapid.IntRange(0, 2).Draw(t, "successors")]
		}
		d.Ended = append(d.Ended, e)
	}
	for _, k := range drawKeys(t, m.entries, "change") {
		if !slices.Contains(d.Remove, k) {
			changed := *m.entries[k]
			changed.InFlight, changed.Target = !changed.InFlight, sync2
			d.Put = append(d.Put, &changed)
		}
	}
	for range rapid.SampledFrom([]int{0, 1, 1, 2, 17}).Draw(t, "creates") {
		e := m.drawNode(t, d.To.Offset)
		d.Put = append(d.Put, e)
		d.Scopes = append(d.Scopes, index.ScopeOf(e.PackageName, e.Payload.(*wormhole.ReplayNode)))
	}
	for range rapid.IntRange(0, 3).Draw(t, "missing") {
		x := index.ScopedDigest{Scope: drawScope(t), Digest: drawDigest(t)}
		switch {
		case slices.Contains(d.MissingAdd, x) || slices.Contains(d.MissingRemove, x):
		case m.missing[x]:
			d.MissingRemove = append(d.MissingRemove, x)
		default:
			d.MissingAdd = append(d.MissingAdd, x)
		}
	}
	return d
}

// check compares everything that the store says with the mirror.
func (m *mirror) check(t *rapid.T, s *Store) {
	ctx := context.Background()
	got := map[index.Key]*index.Entry{}
	loaded, err := s.Load(ctx, func(e *index.Entry) error { got[e.Key()] = e; return nil })
	if !m.seeded {
		if !errors.Is(err, ErrEmpty) {
			t.Fatalf("load: %v, want ErrEmpty", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(m.entries, got, compare); diff != "" {
		t.Fatalf("entries (-want +got):\n%s", diff)
	}
	if loaded.Position != m.pos || loaded.HistorySince != m.since {
		t.Fatalf("place %+v, history since %d; want %+v, %d", loaded.Position, loaded.HistorySince, m.pos, m.since)
	}
	sets := cmpopts.SortSlices(func(a, b index.ScopedDigest) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
	if diff := gocmp.Diff(slices.Collect(maps.Keys(m.missing)), loaded.Missing, sets, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("missing (-want +got):\n%s", diff)
	}
	scopes := cmpopts.SortSlices(func(a, b index.Scope) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
	if diff := gocmp.Diff(slices.Collect(maps.Keys(m.known)), loaded.KnownScopes, scopes, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("known scopes (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(m.ghosts, byKey(loaded.Ghosts...), compare); diff != "" {
		t.Fatalf("ghosts (-want +got):\n%s", diff)
	}
	m.checkQueries(ctx, t, s)
}

// sample draws up to two of a list.
func sample[T any](t *rapid.T, list []T) []T {
	if len(list) <= 2 {
		return list
	}
	return []T{list[rapid.IntRange(0, len(list)-1).Draw(t, "sample")], list[len(list)-1]}
}

// checkQueries asks a few questions and answers them by scanning.
func (m *mirror) checkQueries(ctx context.Context, t *rapid.T, s *Store) {
	scope, d := drawScope(t), drawDigest(t)
	limit := rapid.Int64Range(0, m.pos.Offset+1).Draw(t, "at or before")

	var covering []*index.Entry
	for _, e := range m.entries {
		if n, ok := e.Payload.(*wormhole.ReplayNode); ok && index.ScopeOf(e.PackageName, n) == scope && n.Prefix.Covers(d) {
			covering = append(covering, e)
		}
	}
	found, err := s.Covering(ctx, scope, d)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(byKey(covering...), byKey(found...), compare); diff != "" || len(found) != len(covering) {
		t.Fatalf("covering (-want +got):\n%s", diff)
	}

	var consume index.Consume
	for _, c := range m.consumes {
		if c.Scope == scope && c.Digest == d && c.Offset <= limit && consume.Offset == 0 {
			consume = c
		}
	}
	if got, ok, err := s.Consumed(ctx, scope, d, limit); err != nil || got != consume || ok != (consume.Offset != 0) {
		t.Fatalf("consumed: %+v, %v, %v; want %+v", got, ok, err, consume)
	}

	for _, asked := range sample(t, m.ended) {
		var want index.Ended
		ok := false
		for _, e := range m.ended {
			if e.ContractID == asked.ContractID && e.Offset <= limit {
				want, ok = e, true
			}
		}
		got, gotOK, err := s.EndOf(ctx, asked.ContractID, limit)
		if err != nil || ok != gotOK || !gocmp.Equal(want, got, compare) {
			t.Fatalf("end of %s: %+v, %v, %v; want %+v, %v", asked.ContractID, got, gotOK, err, want, ok)
		}
	}
	for _, u := range sample(t, m.updates) {
		if got, ok, err := s.UpdateByID(ctx, u.UpdateID); err != nil || !ok || got != u {
			t.Fatalf("update %s: %+v, %v, %v; want %+v", u.UpdateID, got, ok, err, u)
		}
	}

	below := d.Prefix(rapid.IntRange(0, 2).Draw(t, "below"))
	var lives []index.NodeLife
	for _, e := range m.ended {
		if e.Scope != nil && *e.Scope == scope && e.Offset <= limit && strings.HasPrefix(e.Prefix.String(), below.String()) {
			lives = append(lives, index.NodeLife{ContractID: e.ContractID, Prefix: e.Prefix, Created: e.Since, Ended: e.RecordTime})
		}
	}
	slices.SortFunc(lives, func(a, b index.NodeLife) int {
		return cmp.Or(b.Ended.Compare(a.Ended), cmp.Compare(a.ContractID, b.ContractID))
	})
	if got, err := s.NodeLives(ctx, scope, below, limit, 3); err != nil || !gocmp.Equal(lives[:min(3, len(lives))], got, compare, cmpopts.EquateEmpty()) {
		t.Fatalf("lives below %q: %+v, %v; want %+v", below, got, err, lives)
	}
}

// Whatever happens, in whatever order - commits, refused commits, broken ones, seeds of each reason, given up seeds, changes of
// writer - the store holds what a plain model of it holds (A10, D11).
func TestAgainstModel(t *testing.T) {
	w := newWire(t, pgtest.Database(t))
	t.Cleanup(func() { w.setFault(nil) })
	ctx := context.Background()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		mode := rapid.SampledFrom([]string{"simple_protocol", "cache_describe"}).Draw(rt, "mode")
		s, err := Open(ctx, Config{URL: withParam(w.url, "default_query_exec_mode="+mode), Migrate: true, Logger: quiet, noSweeper: true})
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { w.setFault(nil); s.Close() }()
		takeOver := func() {
			if _, err := s.AcquireLease(ctx, LeaseOptions{Holder: "writer"}); err != nil {
				rt.Fatal(err)
			}
		}
		takeOver()
		m := &mirror{}
		seed := func(reason ledger.SeedReason, abort bool) {
			start := ledger.SeedStart{ParticipantID: participant, Reason: reason, Offset: m.pos.Offset + int64(rapid.IntRange(0, 5).Draw(rt, "seed offset"))}
			if !reason.SameHistory() {
				start.Offset = int64(rapid.IntRange(0, 5).Draw(rt, "seed offset"))
			}
			var entries []*index.Entry
			for range rapid.IntRange(0, 12).Draw(rt, "entries") {
				entries = append(entries, m.drawNode(rt, start.Offset))
			}
			entries = append(entries, entries[:min(2, len(entries))]...) // one that is added again replaces itself
			start.Filter = rapid.SampledFrom([]string{"", "one", "another"}).Draw(rt, "filter")
			end := index.SeedEnd{Position: ledger.Position{ParticipantID: participant, Offset: start.Offset, Filter: start.Filter}}
			if rapid.Bool().Draw(rt, "ghost") {
				end.Ghosts = []*index.Entry{m.drawNode(rt, start.Offset)}
				end.Missing = []index.ScopedDigest{{Scope: drawScope(rt), Digest: drawDigest(rt)}}
				end.KnownScopes = []index.Scope{drawScope(rt)}
				m.names++
				end.Ended = []index.Ended{{ContractID: id(fmt.Sprint("gone ", m.names)), How: index.Gone, AfterOffset: m.pos.Offset, Offset: start.Offset}}
			}
			g, err := s.BeginSeed(ctx, start)
			if err != nil {
				rt.Fatal(err)
			}
			if err := g.Add(ctx, entries); err != nil {
				rt.Fatal(err)
			}
			if abort {
				if err := g.Abort(ctx); err != nil {
					rt.Fatal(err)
				}
				return
			}
			if err := g.Commit(ctx, end); err != nil {
				rt.Fatal(err)
			}
			m.reseed(reason, entries, end)
		}
		seed(ledger.SeedFirst, false) // what earlier runs left is of another history
		// A commit whose connection is cut before COMMIT is sent is mended by trying again; after that the outcome is unknown, and
		// Position tells it.
		commit := func(begin string, what fault) {
			d := m.drawDelta(rt)
			w.once(begin, what)
			err := s.Commit(ctx, d)
			w.setFault(nil)
			unknown := begin == "commit" && what != pass
			if err != nil && !unknown || unknown && !errors.Is(err, errOutcomeUnknown) {
				rt.Fatalf("commit, cut at %q: %v", begin, err)
			}
			if !unknown || what == cutAfter {
				m.commit(d)
			}
			if pos, ok, err := s.Position(ctx); err != nil || !ok || pos != m.pos {
				rt.Fatalf("position %+v, %v, %v; want %+v", pos, ok, err, m.pos)
			}
		}
		actions := map[string]func(*rapid.T){
			"commit":                func(*rapid.T) { commit("", pass) },
			"another commit":        func(*rapid.T) { commit("", pass) },
			"commit, not delivered": func(*rapid.T) { commit("commit", cutBefore) },
			"commit, not answered":  func(*rapid.T) { commit("commit", cutAfter) },
			"commit, cut early": func(rt *rapid.T) {
				// Statements after the first are seen on the wire in the simple protocol only; in the other mode this is a plain commit.
				commit(rapid.SampledFrom([]string{"begin", "UPDATE disclosured.cursor", "INSERT", "DELETE"}).Draw(rt, "at"), rapid.SampledFrom([]fault{cutBefore, cutAfter}).Draw(rt, "cut"))
			},
			"refused": func(*rapid.T) {
				d := m.drawDelta(rt)
				d.From.Offset += int64(rapid.SampledFrom([]int{-1, 1}).Draw(rt, "off by"))
				d.To.Offset = max(d.To.Offset, d.From.Offset)
				if err := s.Commit(ctx, d); !errors.Is(err, ledger.ErrNotNext) {
					rt.Fatalf("commit from the wrong offset: %v", err)
				}
			},
			"seed": func(*rapid.T) {
				seed(rapid.SampledFrom([]ledger.SeedReason{ledger.SeedPruned, ledger.SeedRequested, ledger.SeedRewound, ledger.SeedAnotherParticipant}).Draw(rt, "reason"), false)
			},
			"given up seed": func(*rapid.T) { seed(ledger.SeedPruned, true) },
			"half a seed": func(*rapid.T) {
				g, err := s.BeginSeed(ctx, first(1))
				if err != nil {
					rt.Fatal(err)
				}
				if err := g.Add(ctx, []*index.Entry{m.drawNode(rt, 1)}); err != nil {
					rt.Fatal(err)
				}
			},
			"new writer": func(*rapid.T) { takeOver(); m.check(rt, s) },
			"sweep": func(*rapid.T) {
				if err := s.Sweep(ctx); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(*rapid.T) { m.check(rt, s) },
		}
		rt.Repeat(actions)
	})
	t.Logf("%d runs", runs)
}
