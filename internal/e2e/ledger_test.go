package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// quickReconnect keeps a test's clients from waiting long for a process that comes back.
var quickReconnect = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: 2 * time.Second,
})

// world is a simulated participant with a devnet on it, and a client who acts for all its parties.
type world struct {
	*devnet.World
	t       testing.TB
	sim     *ledgersim.Sim
	address string
	client  *submit.Client
}

// newWorld makes a world with an app for each threshold.
func newWorld(t testing.TB, options ledgersim.Options, thresholds ...int64) *world {
	t.Helper()
	w := newParticipant(t, options)
	var err error
	if w.World, err = devnet.Make(t.Context(), w.client, devnet.Options{Thresholds: thresholds}); err != nil {
		t.Fatal(err)
	}
	return w
}

// newParticipant makes a world without a devnet.
func newParticipant(t testing.TB, options ledgersim.Options) *world {
	t.Helper()
	w := &world{t: t, sim: ledgersim.New(options)}
	var err error
	if w.address, err = w.sim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.sim.Stop)
	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(insecure.NewCredentials()), quickReconnect,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.client = submit.New(conn, "e2e")
	return w
}

// follow are the settings of a service that follows the world, without a database. Its intervals are short, so that tests see the
// service's reactions and not its patience.
func (w *world) follow() settings {
	return settings{
		"participant.address":         w.address,
		"participant.plaintext":       "true",
		"participant.read_as":         fmt.Sprintf("[%q]", w.Operator),
		"participant.poll_interval":   "100ms",
		"participant.call_timeout":    callTimeout().String(),
		"anchors.operators":           fmt.Sprintf("[%q]", w.Operator),
		"anchors.guardian_governance": fmt.Sprintf("%q", w.GuardianGovernance),
		"api.freshness_bound":         freshnessBound.String(),
		"api.rate_per_caller":         "0",
	}
}

// callTimeout is participant.call_timeout of the tests: as short as the machine allows.
func callTimeout() time.Duration {
	if proctest.Race {
		return 5 * time.Second
	}
	return time.Second
}

// freshnessBound is api.freshness_bound of the tests.
const freshnessBound = 2 * time.Second

// withDatabase adds an empty database of its own.
func withDatabase(t testing.TB, s settings) (settings, string) {
	t.Helper()
	url := pgtest.Database(t)
	return atDatabase(t, s, url), url
}

// atDatabase adds the database at the URL.
func atDatabase(t testing.TB, s settings, url string) settings {
	t.Helper()
	return s.with(settings{"database.url_file": fmt.Sprintf("%q", proctest.File(t, "database-url", url)), "database.lease_ttl": "3s"})
}

// proxied puts a proxy before the database at the URL, and returns the URL that leads through it.
func proxied(t testing.TB, database string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, u.Host)
	u.Host = p.address
	return p, u.String()
}

// policy is what counts in the world.
func (w *world) policy() index.Policy {
	return index.Policy{Operators: []string{w.Operator}, GuardianGovernance: w.GuardianGovernance}
}

// scope is an app's trie.
func (w *world) scope(app *devnet.App) ledgersim.Scope {
	return ledgersim.Scope{Consumer: app.Consumer, Operator: w.Operator}
}

// truth is the hash of the ledger's active contracts at an offset, made as the index makes its own: from a view that was built from
// the contracts and from nothing else.
func (w *world) truth(at int64) (hash string, activations int, err error) {
	ctx := context.Background()
	x, err := index.Open(ctx, w.policy(), nil, index.Options{})
	if err != nil {
		return "", 0, err
	}
	seed, err := x.BeginSeed(ctx, ledger.SeedStart{ParticipantID: w.sim.ParticipantID(), Offset: at, Reason: ledger.SeedFirst})
	if err != nil {
		return "", 0, err
	}
	if err := seed.Add(ctx, w.sim.Active(at)); err != nil {
		return "", 0, err
	}
	if err := seed.AddInFlight(ctx, w.sim.InFlight(at)); err != nil {
		return "", 0, err
	}
	if err := seed.Commit(ctx); err != nil {
		return "", 0, err
	}
	sum, activations := x.View().StateHash()
	return hex.EncodeToString(sum[:]), activations, nil
}

// load are consumers who consume on their own nodes directly, whatever the service does: the ledger moves.
type load struct {
	w      *world
	judge  *judge
	cancel context.CancelFunc
	done   sync.WaitGroup

	consumes, lost atomic.Int64
}

// startLoad begins load on all apps with so many consumers each, until stop or the test's end. Each waits pause between two consumes,
// 0 for not at all.
func startLoad(w *world, j *judge, consumers int, pause time.Duration) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{w: w, judge: j, cancel: cancel}
	for _, app := range w.Apps {
		for range consumers {
			l.done.Go(func() {
				for ctx.Err() == nil {
					if err := l.consume(ctx, app); err != nil && ctx.Err() == nil {
						j.wrong("the load failed: %v", err)
						return
					}
					if pause > 0 {
						select {
						case <-time.After(pause):
						case <-ctx.Done():
						}
					}
				}
			})
		}
	}
	w.t.Cleanup(l.stop)
	return l
}

// stop ends the load and waits for it.
func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// consume consumes one new digest; contention is tried again.
func (l *load) consume(ctx context.Context, app *devnet.App) error {
	_, err := consumeDigest(ctx, l.w, l.judge, app, newDigest())
	var rejection *submit.Rejection
	switch {
	case err == nil:
		l.consumes.Add(1)
		return nil
	case errors.Is(err, errNoNode):
		return nil // the trie is on its way to another synchronizer, or the ledger is being replaced
	case errors.As(err, &rejection) && slices.Contains([]string{submit.ReasonInactive, submit.ReasonLocked, submit.ReasonNotFound}, rejection.Reason),
		errors.As(err, &rejection) && rejection.Reason == "" && (rejection.Code == codes.Unavailable || rejection.Code == codes.Unauthenticated):
		l.lost.Add(1)
		return nil
	default:
		return err
	}
}

var errNoNode = errors.New("not one node covers the digest")

// consumeDigest consumes a digest at its covering node and tells the judge.
func consumeDigest(ctx context.Context, w *world, j *judge, app *devnet.App, digest wormhole.Digest) (*submit.Result, error) {
	nodes := w.sim.Covering(w.scope(app), digest, w.sim.LedgerEnd())
	if len(nodes) != 1 {
		return nil, fmt.Errorf("%d nodes of %s cover %s: %w", len(nodes), app.Consumer, digest, errNoNode)
	}
	result, err := w.client.Do(ctx, []string{app.Consumer}, nil, submit.ConsumeDigest(nodes[0].ContractID, digest.String()))
	if err != nil {
		return nil, err
	}
	if j != nil {
		j.committed(app, digest, nodes[0].ContractID, result)
	}
	return result, nil
}

// nodes are the ids of an app's active nodes.
func (w *world) nodes(app *devnet.App) (ids []string) {
	for _, c := range w.sim.Active(w.sim.LedgerEnd()) {
		if node, ok := c.Payload.(*wormhole.ReplayNode); ok && node.Consumer == app.Consumer {
			ids = append(ids, c.ContractID)
		}
	}
	return ids
}

// digestBytes is about what a digest takes of an update: in the node's record and in its blob.
const digestBytes = 150

// makeBig makes one update of about so many bytes: a trie of 16 full nodes, of a consumer of its own. It returns the ledger end before.
func (w *world) makeBig(size int) (before int64) {
	w.t.Helper()
	consumer, err := w.client.AllocateParty(w.t.Context(), fmt.Sprintf("big-%d", size))
	if err != nil {
		w.t.Fatal(err)
	}
	all := make([]wormhole.Digest, size/digestBytes)
	for i := range all {
		all[i] = newDigest()
	}
	consumed := wormhole.NewSuffixSet(all...)
	var commands []submit.Command
	for nibble := range byte(16) {
		prefix := wormhole.Prefix{}.Child(nibble)
		commands = append(commands, submit.Create(&wormhole.ReplayNode{
			Consumer: consumer, Operator: w.Operator, Prefix: prefix, SplitThreshold: 4096, Consumed: consumed.Under(prefix),
		}))
	}
	before = w.sim.LedgerEnd()
	if _, err := w.client.Do(w.t.Context(), []string{w.Operator, consumer}, nil, commands...); err != nil {
		w.t.Fatal(err)
	}
	return before
}

// checkMentions checks that a text that people read has all that it should.
func checkMentions(t testing.TB, what, text string, mentions ...string) {
	t.Helper()
	for _, m := range mentions {
		if !strings.Contains(text, m) {
			t.Errorf("%s does not mention %q: %s", what, m, text)
		}
	}
}

var digests atomic.Uint64

// newDigest is a digest that was not there before, anywhere in the space.
func newDigest() wormhole.Digest {
	var number [16]byte
	binary.BigEndian.PutUint64(number[:], digests.Add(1))
	binary.BigEndian.PutUint64(number[8:], rand.Uint64())
	return wormhole.Digest(sha256.Sum256(number[:]))
}
