package postgres

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/pgserver"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// commitRoots commits so many replacements of the root and returns the last root and place.
func commitRoots(t testing.TB, s *Store, at ledger.Position, root *index.Entry, n int) (ledger.Position, *index.Entry) {
	t.Helper()
	for range n {
		d, next := replaceRoot(at, root)
		if err := s.Commit(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		at, root = d.To, next
	}
	return at, root
}

// Pruning deletes what is older than asked, and the history says from where on it is complete.
func TestPrune(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	ctx := t.Context()
	root := node(scope1, "root", "", 10)
	seedWith(t, s, first(10), index.SeedEnd{}, root)
	end, last := commitRoots(t, s, ledger.Position{ParticipantID: participant, Offset: 10}, root, 20)

	if err := s.Prune(ctx, at(11)); err != nil { // the first update is at 11: nothing is older
		t.Fatal(err)
	}
	if since, err := s.HistorySince(ctx); err != nil || since != 10 {
		t.Errorf("history since %d, %v; want 10", since, err)
	}
	if err := s.Prune(ctx, at(20).Add(-time.Microsecond)); err != nil {
		t.Fatal(err)
	}
	if since, err := s.HistorySince(ctx); err != nil || since != 19 {
		t.Errorf("history since %d, %v; want 19", since, err)
	}
	for offset := int64(11); offset <= end.Offset; offset++ {
		_, consumed, err1 := s.Consumed(ctx, scope1, digest(int(offset)), end.Offset)
		_, applied, err2 := s.UpdateByID(ctx, position(offset).UpdateID)
		if want := offset > 19; consumed != want || applied != want || err1 != nil || err2 != nil {
			t.Errorf("offset %d: consume known %v, update known %v, want %v (%v, %v)", offset, consumed, applied, want, err1, err2)
		}
	}
	entries, loaded := load(t, s)
	if len(entries) != 1 || entries[last.Key()] == nil || loaded.Position != end || loaded.HistorySince != 19 {
		t.Errorf("pruning history changed the present: %d entries, %+v", len(entries), loaded)
	}
	if n := countRows(t, s, "removal"); n != 11 {
		t.Errorf("%d removals are left, want 11", n)
	}
	if err := s.Prune(ctx, at(1000)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"consume", "ended", "applied_update", "removal"} {
		if n := countRows(t, s, name); n != 0 {
			t.Errorf("%d rows of %s are left", n, name)
		}
	}
	commitRoots(t, s, end, last, 1)
	if since, err := s.HistorySince(ctx); err != nil || since != end.Offset {
		t.Errorf("history since %d, %v; want %d", since, err, end.Offset)
	}
}

// Rows of generations and histories that no longer count go in the background: those replaced, those given up, those that a killed
// process left half-written; what counts stays.
func TestSweep(t *testing.T) {
	url := pgtest.Database(t)
	s := openWith(t, Config{URL: url, noSweeper: true})
	ctx := t.Context()
	lease(t, s, "writer")
	root := node(scope1, "root", "", 10)
	seedWith(t, s, first(10), index.SeedEnd{Missing: []index.ScopedDigest{{Scope: scope1, Digest: digest(1)}}, KnownScopes: []index.Scope{scope1}, Ghosts: samples()[:2]}, root)
	end, _ := commitRoots(t, s, ledger.Position{ParticipantID: participant, Offset: 10}, root, 3)
	seedWith(t, s, ledger.SeedStart{ParticipantID: participant, Offset: end.Offset, Reason: ledger.SeedRequested}, index.SeedEnd{}, samples()...)
	half, err := s.BeginSeed(ctx, first(99))
	if err != nil {
		t.Fatal(err)
	}
	if err := half.Add(ctx, samples()); err != nil {
		t.Fatal(err)
	}
	s.Close() // as if killed

	s = openWith(t, Config{URL: url, noSweeper: true})
	lease(t, s, "writer")
	building, err := s.BeginSeed(ctx, first(99))
	if err != nil {
		t.Fatal(err)
	}
	if err := building.Add(ctx, samples()); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	counts := func() string {
		var b strings.Builder
		for _, name := range []string{"generation", "contract", "ghost", "removal", "known_scope", "missing_digest", "consume", "ended", "applied_update"} {
			fmt.Fprintf(&b, "%s %d ", name, countRows(t, s, name))
		}
		return b.String()
	}
	n := len(samples())
	if got, want := counts(), fmt.Sprintf("generation 2 contract %d ghost 0 removal 0 known_scope 0 missing_digest 0 consume 3 ended 3 applied_update 3 ", 2*n); got != want {
		t.Errorf("the present, the one being built, and history:\n got %s\nwant %s", got, want)
	}
	if err := building.Commit(ctx, index.SeedEnd{Position: position(99)}); err != nil { // another history
		t.Fatal(err)
	}
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := counts(), fmt.Sprintf("generation 1 contract %d ghost 0 removal 0 known_scope 0 missing_digest 0 consume 0 ended 0 applied_update 0 ", n); got != want {
		t.Errorf("after a seed of another history:\n got %s\nwant %s", got, want)
	}
}

// The background sweeper does it by itself, and Close waits for it.
func TestSweeperRuns(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	for i := range 3 {
		seedWith(t, s, first(int64(10+i)), index.SeedEnd{}, samples()...)
	}
	deadline := time.After(30 * time.Second)
	for countRows(t, s, "generation") > 1 || countRows(t, s, "contract") > len(samples()) {
		select {
		case <-deadline:
			t.Fatal("former generations are still there")
		default:
		}
	}
}

// A seed that was begun before and not ended is dropped by the next; ending twice, or late, does nothing.
func TestSeedEndings(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	ctx := t.Context()
	old, err := s.BeginSeed(ctx, first(10))
	if err != nil {
		t.Fatal(err)
	}
	seedWith(t, s, first(11), index.SeedEnd{}, samples()...)
	if err := old.Add(ctx, samples()); err == nil {
		t.Error("a dropped seed takes entries")
	}
	if err := old.Commit(ctx, index.SeedEnd{Position: position(10)}); err == nil {
		t.Error("a dropped seed was committed")
	}
	if err := old.Abort(ctx); err != nil {
		t.Errorf("aborting a dropped seed: %v", err)
	}
	again, err := s.BeginSeed(ctx, first(12))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Commit(ctx, index.SeedEnd{Position: position(12)}); err != nil {
		t.Fatal(err)
	}
	if err := again.Abort(ctx); err != nil {
		t.Errorf("aborting a committed seed: %v", err)
	}
	if err := again.Commit(ctx, index.SeedEnd{Position: position(12)}); err == nil {
		t.Error("a seed was committed twice")
	}
	entries, loaded := load(t, s)
	if len(entries) != 0 || loaded.Position != position(12) {
		t.Errorf("%d entries at %+v", len(entries), loaded.Position)
	}
}

// What a seed asks of history holds for histories that go on only, and tells the last end of each contract.
func TestSeedAsksHistory(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	ctx := t.Context()
	root := node(scope1, "root", "", 10)
	seedWith(t, s, first(10), index.SeedEnd{}, root)
	end, last := commitRoots(t, s, ledger.Position{ParticipantID: participant, Offset: 10}, root, 2)
	for reason, want := range map[ledger.SeedReason]int{ledger.SeedPruned: 1, ledger.SeedRequested: 1, ledger.SeedRewound: 0, ledger.SeedAnotherParticipant: 0} {
		seed, err := s.BeginSeed(ctx, ledger.SeedStart{ParticipantID: participant, Offset: end.Offset, Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		ended, err := seed.Ended(ctx, []string{root.ContractID, last.ContractID, "unknown"})
		if err != nil || len(ended) != want {
			t.Errorf("%s: %+v, %v; want %d", reason, ended, err, want)
		}
		if e, ok := ended[root.ContractID]; ok && (e.How != index.Superseded || e.Offset != 11 || *e.Scope != scope1) {
			t.Errorf("%s: %+v", reason, e)
		}
	}
}

// A rebuild at a lower offset goes on from there: nothing of the place before it is left, and a delta computed from the old generation is
// refused even where it fits the offset (A27, D11).
func TestRebuildAtLowerOffset(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	root := node(scope1, "root", "", 1000)
	seedWith(t, s, first(1000), index.SeedEnd{}, root)
	old, oldRoot := commitRoots(t, s, ledger.Position{ParticipantID: participant, Offset: 1000}, root, 5)

	rewound := node(scope1, "root", "", 50)
	seedWith(t, s, ledger.SeedStart{ParticipantID: participant, Offset: 50, Reason: ledger.SeedRewound}, index.SeedEnd{}, rewound)
	stale, _ := replaceRoot(old, oldRoot)
	if err := s.Commit(t.Context(), stale); !errors.Is(err, ledger.ErrNotNext) {
		t.Errorf("a delta from before the rebuild: %v", err)
	}
	at, last := commitRoots(t, s, ledger.Position{ParticipantID: participant, Offset: 50}, rewound, 10)
	entries, loaded := load(t, s)
	if at.Offset != 60 || loaded.Position != at || len(entries) != 1 || entries[last.Key()] == nil {
		t.Errorf("after updates 51 to 60: %d entries at %+v", len(entries), loaded.Position)
	}

	// Another process puts a new generation at the very same place: what this one computes is of the old one.
	other := open(t, withParam(s.pool.Config().ConnString(), "application_name=other"))
	lease(t, other, "writer")
	seedWith(t, other, ledger.SeedStart{ParticipantID: participant, Offset: 60, Reason: ledger.SeedRequested}, index.SeedEnd{Position: at}, rewound)
	lease(t, s, "writer")
	d, _ := replaceRoot(at, last)
	if err := s.Commit(t.Context(), d); !errors.Is(err, ledger.ErrNotNext) {
		t.Errorf("a delta of another generation, from the right offset: %v", err)
	}
}

// A batch that failed half-way, for whatever reason, left nothing, and the same offset is committed when it is mended (A26).
func TestFailedCommitLeavesNothing(t *testing.T) {
	s := writer(t, pgtest.Database(t))
	root := node(scope1, "root", "", 10)
	seedWith(t, s, first(10), index.SeedEnd{}, root)
	at := ledger.Position{ParticipantID: participant, Offset: 10}
	d, _ := replaceRoot(at, root)
	for i := range 16 {
		d.Put = append(d.Put, node(scope1, fmt.Sprint("child ", i), fmt.Sprintf("%x", i), 11))
	}
	poison := *d.Put[16]
	poison.SynchronizerID = "not\x00text" // what no text column takes, in the last row
	bad := d
	bad.Put = append(slices.Clone(d.Put[:16]), &poison)
	if err := s.Commit(t.Context(), bad); err == nil {
		t.Fatal("the poisoned batch was committed")
	}
	entries, loaded := load(t, s)
	if len(entries) != 1 || loaded.Position != at || countRows(t, s, "consume") != 0 {
		t.Fatalf("after a failed batch: %d entries at %+v", len(entries), loaded.Position)
	}
	if err := s.Commit(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if entries, _ := load(t, s); len(entries) != 17 {
		t.Errorf("%d entries, want 17", len(entries))
	}
}

// bigTrie seeds a complete trie of about so many nodes, at two neighbouring depths, each with some digests and a blob of the size that goes
// with them. It returns the number of nodes and the lesser depth.
func bigTrie(t testing.TB, s *Store, about, digestsPerNode int) (nodes, depth int) {
	t.Helper()
	complete := 1
	for complete*16 <= about {
		complete, depth = complete*16, depth+1
	}
	var prefixes []string
	for i := range complete {
		p := fmt.Sprintf("%0*x", depth, i)
		if i >= (about-complete)/15 {
			prefixes = append(prefixes, p)
			continue
		}
		for nibble := range 16 {
			prefixes = append(prefixes, fmt.Sprintf("%s%x", p, nibble))
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	random := func(n int) []byte {
		b := make([]byte, 0, n+8)
		for len(b) < n {
			b = binary.BigEndian.AppendUint64(b, r.Uint64())
		}
		return b[:n]
	}
	seed, err := s.BeginSeed(t.Context(), first(10))
	if err != nil {
		t.Fatal(err)
	}
	for chunk := range slices.Chunk(prefixes, chunkRows) {
		var batch []*index.Entry
		for _, p := range chunk {
			consumed := make([]wormhole.Digest, digestsPerNode)
			for j := range consumed {
				d := random(32)
				head, _ := hex.DecodeString(p + "0"[:len(p)%2])
				if len(p)%2 == 1 {
					head[len(head)-1] |= d[len(head)-1] & 0x0f
				}
				copy(d, head)
				consumed[j] = wormhole.Digest(d)
			}
			e := node(scope1, "node "+p, p, 10, consumed...)
			e.Blob = random(74*digestsPerNode + 500)
			batch = append(batch, e)
		}
		if err := seed.Add(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	end := index.SeedEnd{Position: ledger.Position{ParticipantID: participant, Offset: 10}, KnownScopes: []index.Scope{scope1}}
	if err := seed.Commit(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	return len(prefixes), depth
}

// manyNodes is 10 million digests' worth of nodes where the environment has DISCLOSURED_SOAK=1, else so many that a scan would be seen.
func manyNodes() int {
	if os.Getenv("DISCLOSURED_SOAK") == "1" {
		return 150_000
	}
	return 5_000
}

// The covering lookup uses its index in a database that sorts text as people of a language do, before and after statistics are
// gathered, and answers as a scan does; what looks like a pattern is not one (C05).
func TestCoveringUsesItsIndex(t *testing.T) {
	url := pgtest.DatabaseWith(t, pgserver.DatabaseOptions{ICULocale: "en-US"})
	s := openWith(t, Config{URL: url, noSweeper: true})
	ctx := t.Context()
	lease(t, s, "writer")
	nodes, depth := bigTrie(t, s, manyNodes(), 2)
	extra := node(scope1, "a root beside them", "", 11)
	d := index.Delta{From: ledger.Position{ParticipantID: participant, Offset: 10}, To: position(11), Put: []*index.Entry{extra}}
	if _, _ = load(t, s); s.Commit(ctx, d) != nil {
		t.Fatal("commit")
	}
	var generation int64
	if err := s.pool.QueryRow(ctx, `SELECT generation FROM disclosured.cursor`).Scan(&generation); err != nil {
		t.Fatal(err)
	}
	explain := func(when, what, index, query string, args ...any) {
		t.Helper()
		rows, err := s.pool.Query(ctx, `EXPLAIN `+query, args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if !regexp.MustCompile(index).MatchString(plan) || strings.Contains(plan, "Seq Scan on contract") {
			t.Errorf("%s, %s with %d nodes, the index is not used:\n%s", when, what, nodes, plan)
		}
		t.Logf("%s, %s with %d nodes:\n%s", when, what, nodes, plan)
	}
	explainAll := func(when string) {
		explain(when, "covering nodes", `contract_covering on contract n .*\n *Index Cond: .*generation = .*scope_id = .*prefix = `, coveringQuery, scopeKey(scope1), digest(1).String())
		explain(when, "deleting", `contract_pkey on contract n .*\n *Index Cond: .*generation = .*contract_id = .*synchronizer_id = `, deleteContracts, generation, []string{"a", "b"}, []string{"c", "d"})
	}
	explainAll("without statistics")
	if _, err := s.pool.Exec(ctx, `ANALYZE`); err != nil {
		t.Fatal(err)
	}
	explainAll("with statistics")
	if _, err := s.pool.Exec(ctx, `UPDATE disclosured.contract SET generation = generation + 1000000`); err != nil {
		t.Fatal(err)
	}
	explainAll("with statistics of another generation")
	if _, err := s.pool.Exec(ctx, `UPDATE disclosured.contract SET generation = generation - 1000000`); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		found, err := s.Covering(ctx, scope1, digest(i))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != 2 || found[0].ContractID != extra.ContractID {
			t.Fatalf("digest %d: %d nodes cover it, want the root and another", i, len(found))
		}
		if p := found[1].Payload.(*wormhole.ReplayNode).Prefix; p.Len() < depth || p.Len() > depth+1 || !p.Covers(digest(i)) {
			t.Errorf("digest %d: %q does not cover it", i, p)
		}
	}
	for _, odd := range []string{"%", "_", `\`, "'", "näm%"} {
		if found, err := s.Covering(ctx, inNamespace(odd), digest(1)); err != nil || len(found) != 0 {
			t.Errorf("namespace %q: %d nodes, %v", odd, len(found), err)
		}
	}
}

func BenchmarkCommitConsume(b *testing.B) {
	s := writer(b, pgtest.Database(b))
	root := node(scope1, "root", "", 10)
	seedWith(b, s, first(10), index.SeedEnd{}, root)
	at := ledger.Position{ParticipantID: participant, Offset: 10}
	for b.Loop() {
		at, root = commitRoots(b, s, at, root, 1)
	}
}

func BenchmarkCommitSplit(b *testing.B) {
	s := writer(b, pgtest.Database(b))
	seedWith(b, s, first(10), index.SeedEnd{}, node(scope1, "root", "", 10))
	at := ledger.Position{ParticipantID: participant, Offset: 10}
	var remove []index.Key
	for b.Loop() {
		d := index.Delta{From: at, To: position(at.Offset + 1), Remove: remove}
		for i := range 16 {
			e := node(scope1, fmt.Sprintf("child %d at %d", i, at.Offset), fmt.Sprintf("%x", i), d.To.Offset, digest(i))
			e.Blob = make([]byte, 1000)
			d.Put = append(d.Put, e)
		}
		d.Updates = []index.UpdateRef{{Offset: d.To.Offset, UpdateID: d.To.UpdateID, RecordTime: d.To.RecordTime}}
		if err := s.Commit(b.Context(), d); err != nil {
			b.Fatal(err)
		}
		at, remove = d.To, nil
		for _, e := range d.Put {
			remove = append(remove, e.Key())
		}
	}
}

// BenchmarkLoad reads a trie of 67 digests a node: 5,000 nodes, or 150,000 where the environment has DISCLOSURED_SOAK=1. How long the seed
// took is in the log.
func BenchmarkLoad(b *testing.B) {
	s := writer(b, pgtest.Database(b))
	began := time.Now()
	nodes, _ := bigTrie(b, s, manyNodes(), 67)
	b.Logf("seeded %d nodes in %s", nodes, time.Since(began).Round(time.Millisecond))
	for b.Loop() {
		n := 0
		if _, err := s.Load(context.Background(), func(*index.Entry) error { n++; return nil }); err != nil || n != nodes {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(nodes), "nodes")
}

func BenchmarkCovering(b *testing.B) {
	s := writer(b, pgtest.Database(b))
	nodes, _ := bigTrie(b, s, manyNodes(), 67)
	i := 0
	for b.Loop() {
		i++
		if found, err := s.Covering(context.Background(), scope1, digest(i)); err != nil || len(found) != 1 {
			b.Fatal(len(found), err)
		}
	}
	b.ReportMetric(float64(nodes), "nodes")
}
