package ledgersim

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// state is one participant's whole state. It is free of gRPC and of time but for what it is given, and not safe for
// concurrent use: Sim guards it. What it hands out (updates, activations, contracts) is never changed afterwards but for an
// activation's end, which readers compare with an offset of their own.
type state struct {
	// participant is the participant's id, "name::fingerprint".
	participant   string
	synchronizers []synchronizer
	packages      *packageStore
	// parties are the hosted parties, with the number of synchronizers on which they are known.
	parties map[string]int
	users   map[string]*user

	// end is the ledger end and pruned the greatest pruned offset, 0 for none.
	end, pruned int64
	// updates are all that were not pruned, ascending by offset.
	updates []*update
	// activations are all activations that were not pruned away, ascending by offset.
	activations []*activation
	// active are the activations in force, by contract id: one per synchronizer.
	active map[string][]*activation
	// contracts are all contracts ever seen here, with what happened to them.
	contracts map[string]*fate
	// byContract and byScope find activations, of the second kind only those of replay nodes; consumed are the consumes of digests.
	byContract map[string][]*activation
	byScope    map[Scope][]*activation
	consumed   map[consumeKey][]Consumption
	// reassignments are all unassignments by their id.
	reassignments map[string]*reassignment

	// accepted are the change ids of committed commands; inFlight those of commands that are being processed.
	accepted map[string]acceptance
	inFlight map[string]bool
	// locked are the contracts that a submission in flight will archive.
	locked map[string]bool

	// recorded is the last record time by synchronizer.
	recorded map[string]time.Time
	random   *random
	// broken ends what is in flight when the ledger is replaced or cut back under it.
	broken chan struct{}
}

type synchronizer struct{ alias, id string }

// fate is what happened to a contract on this participant.
type fate struct {
	contract *contract
	// created is its first activation here and archived the update and node that archived it, if any.
	created    *activation
	archivedAt *update
	archivedBy *node
}

// activation is a contract's being active on one synchronizer, from a create or an assignment on.
type activation struct {
	contract     *contract
	synchronizer string
	counter      uint64
	// from is the offset of the activating update, until that of the one that ended it; 0 while it lasts.
	from, until int64
	nodeID      int32
	update      *update
	// next is the unassignment that ended it, nil if an archival did or nothing.
	next *reassignment
}

// activeAt reports whether the activation is in force at the offset.
func (a *activation) activeAt(offset int64) bool {
	return a.from <= offset && (a.until == 0 || a.until > offset)
}

// reassignment is a contract's way from one synchronizer to another.
type reassignment struct {
	id             string
	activation     *activation // the one that it ended
	source, target string
	counter        uint64
	submitter      string
	exclusivity    time.Time
	// unassigned and assigned are the offsets of the two updates, nodeID is the unassignment's place in the first.
	unassigned int64
	nodeID     int32
	assigned   int64 // 0 while in flight
}

type acceptance struct {
	submissionID string
	offset       int64
}

// updateKind is the kind of an update.
type updateKind uint8

const (
	transactionUpdate updateKind = iota
	reassignmentUpdate
	topologyUpdate
	// injectedUpdate is one that a fault put into the stream; see inject.go.
	injectedUpdate
)

// update is one update of the ledger.
type update struct {
	offset       int64
	id           string
	kind         updateKind
	synchronizer string
	recordTime   time.Time
	effectiveAt  time.Time
	commandID    string
	workflowID   string
	trace        string
	// submitters see commandID.
	submitters []string

	nodes    []*node
	moves    []move
	topology []topologyEvent
	injected *injection
}

// move is one event of a reassignment update: an unassignment, or an assignment with the activation that it made.
type move struct {
	reassignment *reassignment
	assigned     *activation
}

// topologyEvent says what a party's hosting on this participant has become.
type topologyEvent struct {
	kind  TopologyKind
	party string
}

func newLedger(participant string, synchronizers []synchronizer, seed uint64, firstEnd int64) *state {
	return &state{
		participant:   participant,
		synchronizers: synchronizers,
		packages:      newPackageStore(),
		parties:       map[string]int{},
		users:         map[string]*user{},
		end:           firstEnd,
		active:        map[string][]*activation{},
		contracts:     map[string]*fate{},
		byContract:    map[string][]*activation{},
		byScope:       map[Scope][]*activation{},
		consumed:      map[consumeKey][]Consumption{},
		reassignments: map[string]*reassignment{},
		accepted:      map[string]acceptance{},
		inFlight:      map[string]bool{},
		locked:        map[string]bool{},
		recorded:      map[string]time.Time{},
		random:        newRandom(seed),
		broken:        make(chan struct{}),
	}
}

// random makes ids. It is seeded, so that a simulation can be repeated.
type random struct{ source *rand.ChaCha8 }

func newRandom(seed uint64) *random {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return &random{rand.NewChaCha8(key)}
}

func (r *random) fill(b []byte) { _, _ = r.source.Read(b) }

// multihash is a fresh id in the form of a SHA-256 multihash: "1220" and 64 hex digits.
func (r *random) multihash() string {
	var b [32]byte
	r.fill(b[:])
	return "1220" + hex.EncodeToString(b[:])
}

func (r *random) uuid() string {
	var b [16]byte
	r.fill(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func (r *random) traceparent() string {
	var b [24]byte
	r.fill(b[:])
	return fmt.Sprintf("00-%x-%x-01", b[:16], b[16:])
}

// visible is a contract that is active here, or between two synchronizers, and of which one of the parties is a stakeholder.
func (l *state) visible(cid string, readers []string) *contract {
	f := l.contracts[cid]
	if f == nil || f.archivedAt != nil || !slices.ContainsFunc(readers, f.contract.stakeholder) {
		return nil
	}
	return f.contract
}

// activeOn is the contract's activation on the synchronizer, nil if there is none.
func (l *state) activeOn(cid, synchronizer string) *activation {
	for _, a := range l.active[cid] {
		if a.synchronizer == synchronizer {
			return a
		}
	}
	return nil
}

// resolveTemplate finds what a command's template id stands for: "#name" the package that the submitter prefers or the highest
// vetted version, a package id that package.
func (l *state) resolveTemplate(name damlvalue.TypeName, sub *submission) (*template, error) {
	var p *pkg
	if pkgName, ok := strings.CutPrefix(name.PackageID, "#"); ok {
		p = l.packages.preferred(pkgName, sub.packagePreference)
	} else if p = l.packages.byID[name.PackageID]; p != nil && !p.vetted {
		p = nil
	}
	if p == nil {
		var all []string
		for _, s := range l.synchronizers {
			all = append(all, fmt.Sprintf("\n\t%s::35-0: Failed to select package-id for package-name '%s' appearing in a command root node due to: "+
				"No package with package-name '%s' is consistently vetted by all hosting participants of party %s.",
				short(s.id), strings.TrimPrefix(name.PackageID, "#"), strings.TrimPrefix(name.PackageID, "#"), short(sub.actAs[0])))
		}
		return nil, reject(invalidState, "PACKAGE_SELECTION_FAILED",
			"No synchronizers satisfy the topology requirements for the submitted command: Discarded synchronizers: %s", strings.Join(all, ""))
	}
	t := p.templates[name.QualifiedName()]
	if t == nil {
		known := slices.ContainsFunc(slices.Collect(maps.Keys(p.templates)), func(q string) bool { return strings.HasPrefix(q, name.Module+":") })
		what := "module " + p.ID + ":" + name.Module
		if known {
			what = "template " + p.ID + ":" + name.QualifiedName()
		}
		return nil, fmt.Errorf("unknown %s while looking for template %s:%s", what, p.ID, name.QualifiedName())
	}
	return t, nil
}

// The places that updates take: a transaction's or a reassignment's update is the next offset and ledger end two beyond it, a
// rejection by the confirmers takes one, a party's allocation three with its update in the middle.
const (
	updateSpan    = 3
	rejectionSpan = 1
)

// advance moves ledger end by n offsets in which nothing is visible.
func (l *state) advance(n int64) { l.end += n }

// append puts an update at the next offset.
func (l *state) append(u *update) {
	u.offset = l.end + 1
	if u.kind == topologyUpdate {
		u.offset++
	}
	u.id = l.random.multihash()
	u.trace = l.random.traceparent()
	l.end += updateSpan
	l.updates = append(l.updates, u)
}

// recordTime is the synchronizer's time for an update made now: strictly growing.
func (l *state) recordTime(synchronizer string, now time.Time) time.Time {
	now = now.UTC().Truncate(time.Microsecond)
	if last := l.recorded[synchronizer]; !now.After(last) {
		now = last.Add(time.Microsecond)
	}
	l.recorded[synchronizer] = now
	return now
}

// activate makes a contract active on a synchronizer.
func (l *state) activate(c *contract, u *update, synchronizer string, counter uint64, nodeID int32) *activation {
	a := &activation{contract: c, synchronizer: synchronizer, counter: counter, from: u.offset, nodeID: nodeID, update: u}
	l.activations = append(l.activations, a)
	l.active[c.id] = append(l.active[c.id], a)
	l.byContract[c.id] = append(l.byContract[c.id], a)
	if scope, ok := c.scope(); ok {
		l.byScope[scope] = append(l.byScope[scope], a)
	}
	if l.contracts[c.id] == nil {
		l.contracts[c.id] = &fate{contract: c, created: a}
	}
	return a
}

// deactivate ends one activation.
func (l *state) deactivate(a *activation, u *update) {
	a.until = u.offset
	rest := slices.DeleteFunc(l.active[a.contract.id], func(b *activation) bool { return a == b })
	if len(rest) == 0 {
		delete(l.active, a.contract.id)
		return
	}
	l.active[a.contract.id] = rest
}

// archive ends a contract wherever it is active.
func (l *state) archive(u *update, n *node) {
	f := l.contracts[n.contract.id]
	if f == nil {
		return
	}
	for _, a := range slices.Clone(l.active[n.contract.id]) {
		l.deactivate(a, u)
	}
	f.archivedAt, f.archivedBy = u, n
	l.noteConsume(u, n)
}

// noteConsume keeps what a ConsumeDigest consumed.
func (l *state) noteConsume(u *update, n *node) {
	arg, isRecord := n.arg.(damlvalue.Record)
	scope, isNode := n.contract.scope()
	if n.choice != "ConsumeDigest" || !isRecord || !isNode {
		return
	}
	digest, err := wormhole.ParseDigest(text(arg, "digest"))
	if err != nil {
		return
	}
	key := consumeKey{scope, digest}
	l.consumed[key] = append(l.consumed[key], Consumption{Offset: u.offset, UpdateID: u.id})
}

// updatesAfter are the updates with offsets in (begin, end].
func (l *state) updatesAfter(begin, end int64) []*update {
	lo := sort.Search(len(l.updates), func(i int) bool { return l.updates[i].offset > begin })
	hi := sort.Search(len(l.updates), func(i int) bool { return l.updates[i].offset > end })
	return l.updates[lo:max(lo, hi)]
}

func (l *state) updateAt(offset int64) *update {
	if found := l.updatesAfter(offset-1, offset); len(found) == 1 {
		return found[0]
	}
	return nil
}

func (l *state) updateByID(id string) *update {
	for _, u := range l.updates {
		if u.id == id {
			return u
		}
	}
	return nil
}

// inFlightAt are the reassignments that were on their way at the offset, by offset.
func (l *state) inFlightAt(offset int64) []*reassignment {
	var out []*reassignment
	for _, r := range l.reassignments {
		if r.unassigned <= offset && (r.assigned == 0 || r.assigned > offset) && r.source != r.target {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *reassignment) int {
		return cmp.Or(cmp.Compare(a.unassigned, b.unassigned), cmp.Compare(a.nodeID, b.nodeID))
	})
	return out
}

// allocateParty hosts a new party, or a known one on one synchronizer more, in an update of its own.
func (l *state) allocateParty(hint, synchronizer string, now time.Time) (string, *rejection) {
	_, fingerprint, _ := strings.Cut(l.participant, "::")
	id := hint + "::" + fingerprint
	if synchronizer == "" {
		synchronizer = l.synchronizers[0].id
	}
	if known := l.parties[id]; known > 0 && (known >= len(l.synchronizers) || synchronizer == l.synchronizers[0].id) {
		return "", invalidArguments("Party already exists: party %s is already allocated on this node", short(id)).
			with("parties", "['"+hint+"']").with("submissionId", "'"+l.random.multihash()+"'")
	}
	l.parties[id]++
	l.addTopology(topologyEvent{TopologyAdded, id}, synchronizer, now)
	return id, nil
}

func (l *state) addTopology(e topologyEvent, synchronizer string, now time.Time) *update {
	u := &update{kind: topologyUpdate, synchronizer: synchronizer, recordTime: l.recordTime(synchronizer, now), topology: []topologyEvent{e}}
	l.append(u)
	return u
}

// prune forgets updates up to the offset, and contracts that were archived by then.
func (l *state) prune(upTo int64) {
	l.pruned = max(l.pruned, upTo)
	l.updates = slices.Clone(l.updatesAfter(upTo, l.end))
	over := func(a *activation) bool { return a.until != 0 && a.until <= upTo }
	l.activations = slices.DeleteFunc(slices.Clone(l.activations), over)
	for id, list := range l.byContract {
		if l.byContract[id] = slices.DeleteFunc(list, over); len(l.byContract[id]) == 0 {
			delete(l.byContract, id)
		}
	}
	for scope, list := range l.byScope {
		l.byScope[scope] = slices.DeleteFunc(list, over)
	}
	for id, f := range l.contracts {
		if f.archivedAt != nil && f.archivedAt.offset <= upTo {
			delete(l.contracts, id)
		}
	}
}

// checkpoint is the stream's place with the record time of each synchronizer that has one.
type checkpoint struct {
	offset int64
	times  []synchronizerTime
}

type synchronizerTime struct {
	id string
	at time.Time
}

func (l *state) checkpoint() checkpoint {
	c := checkpoint{offset: l.end}
	for _, s := range l.synchronizers {
		if at, ok := l.recorded[s.id]; ok {
			c.times = append(c.times, synchronizerTime{s.id, at})
		}
	}
	return c
}
