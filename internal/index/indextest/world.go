package indextest

import (
	"fmt"
	"slices"
	"time"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Source makes the choices of a history: IntN gives a number in 0..n-1.
type Source interface{ IntN(n int) int }

// Epoch is the record time at offset 0 of every generated history; each offset is a second later. An index's clock should
// stand within its history's bounds of it.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// The parties, packages and synchronizers of every World.
const (
	Operator      = "operator::1220aa"
	OtherOperator = "operator-two::1220ab"
	Accomplice    = "accomplice::1220ac"
	Governance    = "governance::1220ad"
	PackageName   = "wormhole-core"
	OtherPackage  = "wormhole-core-next"
)

var (
	consumers     = []string{"consumer-a::1220ba", "consumer-b::1220bb"}
	synchronizers = []string{"global::1220ca", "private::1220cb", "third::1220cc"}
	namespaces    = []wormhole.Namespace{{}, {Present: true}, {Present: true, Value: "ntt"}}
	policies      = []index.Policy{
		{Operators: []string{Operator}, GuardianGovernance: Governance},
		{Operators: []string{Operator, OtherOperator}, GuardianGovernance: Governance, PackageIDs: map[string][]string{PackageName: {"p1", "p2"}}},
		{GuardianGovernance: Governance, PackageIDs: map[string][]string{PackageName: {"p1"}, OtherPackage: {"p1", "p2"}}},
		{Operators: []string{Operator, OtherOperator}},
	}
)

// World is a small ledger, as one participant sees it, that makes up its own history.
type World struct {
	src    Source
	policy index.Policy
	// truth is what is active, whether or not it was told.
	truth  *Naive
	scopes []index.Scope
	// digests are all that were ever used.
	digests []wormhole.Digest
	// buried are contracts that ended, for re-creations and ghosts.
	buried []*index.Entry
	// owed are unassignments whose assignments were told first.
	owed        []ledger.Event
	participant int
	offset      int64
	made        uint64
	// busy are the contracts that the update in the making has touched.
	busy map[string]bool
}

// NewWorld makes an empty world.
func NewWorld(src Source) *World {
	w := &World{src: src, busy: map[string]bool{}}
	w.policy = policies[w.pick(len(policies))]
	w.truth = NewNaive(w.policy)
	for range 1 + w.pick(3) {
		w.scopes = append(w.scopes, index.Scope{
			PackageName: one(w, PackageName, PackageName, PackageName, OtherPackage),
			Operator:    one(w, Operator, Operator, OtherOperator),
			Consumer:    one(w, consumers...),
			Namespace:   one(w, namespaces...),
		})
	}
	return w
}

// Policy is the policy that the world's index should have.
func (w *World) Policy() index.Policy { return w.policy }

func (w *World) pick(n int) int          { return w.src.IntN(n) }
func (w *World) chance(percent int) bool { return w.pick(100) < percent }

func one[T any](w *World, choices ...T) T { return choices[w.pick(len(choices))] }

// Participant is the participant that tells the history now.
func (w *World) Participant() string { return fmt.Sprintf("participant-%d", w.participant) }

// Offset is that of the last update.
func (w *World) Offset() int64 { return w.offset }

// Update makes the next update happen.
func (w *World) Update() ledger.Update {
	w.offset += int64(1 + w.pick(4))
	clear(w.busy)
	u := ledger.Update{
		Offset:         w.offset,
		UpdateID:       fmt.Sprintf("update-%d-%d", w.participant, w.next()),
		RecordTime:     Epoch.Add(time.Duration(w.offset) * time.Second),
		SynchronizerID: one(w, synchronizers...),
	}
	actions := 1
	if w.chance(15) {
		actions = 2 + w.pick(2)
	}
	for range actions {
		u.Events = append(u.Events, w.act()...)
	}
	if w.chance(20) {
		// The events of one update take effect together, whatever their order.
		slices.SortStableFunc(u.Events, func(a, b ledger.Event) int { return int(b.Kind) - int(a.Kind) })
	}
	before := w.truth.entries
	w.truth.update(u)
	for _, e := range allCounting(before) {
		if counting(w.truth.entries, e.ContractID) == nil {
			w.buried = append(w.buried, e)
		}
	}
	return u
}

func (w *World) next() uint64 { w.made++; return w.made }

// act is something that happens, as its events; none where it can't happen now.
func (w *World) act() []ledger.Event {
	switch n := w.pick(100); {
	case n < 45:
		return w.consume()
	case n < 52:
		return w.root()
	case n < 56:
		return w.archive()
	case n < 59:
		return w.twin()
	case n < 63:
		return w.recreate()
	case n < 68:
		return w.odd()
	case n < 80:
		return w.reassign()
	case n < 84:
		return w.importOrPurge()
	case n < 94:
		return w.other()
	case n < 97:
		return w.unknown()
	case n < 98:
		return w.transient()
	default:
		return nil
	}
}

// contract is a new contract of the payload, as its operator and whoever else must have signed it.
func (w *World) contract(packageName string, p wormhole.Payload) *ledger.Contract {
	id := fmt.Sprintf("00%016x", w.next()*0x9e3779b97f4a7c15)
	entity := map[string]string{"*wormhole.ReplayNode": "ReplayNode", "*wormhole.CoreState": "CoreState", "*wormhole.Emitter": "Emitter"}[fmt.Sprintf("%T", p)]
	c := &ledger.Contract{
		ContractID:     id,
		TemplateID:     damlvalue.TypeName{PackageID: one(w, "p1", "p1", "p1", "p2"), Module: "Wormhole.Core", Entity: entity},
		PackageName:    packageName,
		SynchronizerID: synchronizers[0],
		Blob:           []byte("blob of " + id),
		BlobCheck:      ledger.BlobVerified,
		Signatories:    wormhole.RequiredSignatories(p),
		Observers:      wormhole.Observers(p),
		CreatedAt:      Epoch.Add(time.Duration(w.offset) * time.Second),
		Offset:         w.offset,
		Payload:        p,
	}
	if w.chance(3) {
		c.BlobCheck, c.BlobFault = ledger.BlobUnverifiable, "unknown package version"
	}
	return c
}

func create(c *ledger.Contract) ledger.Event {
	return ledger.Event{Kind: ledger.Created, ContractID: c.ContractID, TemplateID: c.TemplateID, Contract: c}
}

func archive(e *index.Entry) ledger.Event {
	return ledger.Event{Kind: ledger.Archived, ContractID: e.ContractID, TemplateID: e.TemplateID}
}

// choose is an entry, not yet touched by this update, that fits; nil where there is none.
func (w *World) choose(fits func(*index.Entry) bool) *index.Entry {
	var found []*index.Entry
	for i := range w.truth.entries {
		if e := w.truth.entries[i]; !w.busy[e.ContractID] && fits(e) {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil
	}
	e := found[w.pick(len(found))]
	w.busy[e.ContractID] = true
	return e
}

func isNode(e *index.Entry) bool {
	_, ok := e.Payload.(*wormhole.ReplayNode)
	return ok
}

func isActive(e *index.Entry) bool { return !e.InFlight }

func isActiveNode(e *index.Entry) bool { return isNode(e) && isActive(e) }

// digest is one under the prefix. They crowd, so that nodes split deep and digests meet again.
func (w *World) digest(under wormhole.Prefix) wormhole.Digest {
	text := under.String()
	for len(text) < min(wormhole.DigestNibbles-1, under.Len()+3) {
		text += one(w, "0", "0", "1", "a", "f")
	}
	for len(text) < wormhole.DigestNibbles-1 {
		text += "7"
	}
	for len(text) < wormhole.DigestNibbles {
		text += one(w, "0", "1", "2", "3")
	}
	d, err := wormhole.ParseDigest(text)
	if err != nil {
		panic("indextest: " + err.Error())
	}
	if !slices.Contains(w.digests, d) {
		w.digests = append(w.digests, d)
	}
	return d
}

// consume consumes one or more digests of a node, in one transaction: what came and went within it is not told.
func (w *World) consume() []ledger.Event {
	e := w.choose(isActiveNode)
	if e == nil {
		return nil
	}
	leaves := []*wormhole.ReplayNode{e.Payload.(*wormhole.ReplayNode)}
	consumed := false
	for range 1 + w.pick(10)/8 {
		at := w.pick(len(leaves))
		result, err := leaves[at].Consume(w.digest(leaves[at].Prefix).String())
		if err != nil {
			continue // already consumed
		}
		consumed = true
		leaves = append(slices.Delete(leaves, at, at+1), result.Nodes...)
	}
	if !consumed {
		return nil
	}
	events := []ledger.Event{archive(e)}
	for _, leaf := range leaves {
		c := w.contract(e.PackageName, leaf)
		c.TemplateID.PackageID, c.Signatories, c.SynchronizerID = e.TemplateID.PackageID, e.Signatories, e.SynchronizerID
		if w.chance(1) {
			c.BlobCheck, c.BlobFault = ledger.BlobMismatch, "another argument"
		}
		events = append(events, create(c))
	}
	return events
}

// root creates a root: the first of a scope, or a fork.
func (w *World) root() []ledger.Event {
	scope := one(w, w.scopes...)
	exists := len(nodes(w.truth.entries, scope)) > 0
	if exists && !w.chance(20) {
		return w.consume()
	}
	return []ledger.Event{create(w.contract(scope.PackageName, w.node(scope, wormhole.Prefix{})))}
}

func (w *World) node(scope index.Scope, at wormhole.Prefix) *wormhole.ReplayNode {
	node := &wormhole.ReplayNode{Consumer: scope.Consumer, Operator: scope.Operator, Namespace: scope.Namespace, Prefix: at, SplitThreshold: int64(1 + w.pick(6))}
	for w.chance(30) {
		node.Consumed = node.Consumed.With(w.digest(at))
	}
	return node
}

// archive archives a node or another contract by its signatories.
func (w *World) archive() []ledger.Event {
	if e := w.choose(func(e *index.Entry) bool { return isActive(e) || w.chance(30) }); e != nil {
		return []ledger.Event{archive(e)}
	}
	return nil
}

// twin creates a node beside, above or below an active one.
func (w *World) twin() []ledger.Event {
	e := w.choose(isActiveNode)
	if e == nil {
		return nil
	}
	at := e.Payload.(*wormhole.ReplayNode).Prefix
	switch {
	case w.chance(20) && at.Len() < 10:
		at = at.Child(byte(w.pick(16)))
	case w.chance(20) && at.Len() > 0:
		at = prefixOf(at.String()[:w.pick(at.Len())])
	}
	return []ledger.Event{create(w.contract(e.PackageName, w.node(scopeOf(e), at)))}
}

// recreate creates a node where one ended, with all, some or none of what it held; sometimes it ends one by the same update.
func (w *World) recreate() []ledger.Event {
	if len(w.buried) == 0 {
		return nil
	}
	old := one(w, w.buried...)
	node, ok := old.Payload.(*wormhole.ReplayNode)
	if !ok {
		return nil
	}
	again := *node
	again.Consumed = wormhole.SuffixSet{}
	keep := one(w, 0, 50, 100)
	for d := range node.Consumed.All() {
		if w.chance(keep) {
			again.Consumed = again.Consumed.With(d)
		}
	}
	events := []ledger.Event{create(w.contract(old.PackageName, &again))}
	if w.chance(30) {
		events = append(events, w.archive()...)
	}
	return events
}

// odd creates what does not count.
func (w *World) odd() []ledger.Event {
	scope := one(w, w.scopes...)
	node := w.node(scope, wormhole.Prefix{})
	switch w.pick(8) {
	case 0: // a shadow trie
		node.Operator = Accomplice
		return []ledger.Event{create(w.contract(scope.PackageName, node))}
	case 1: // a node that its operator has not signed
		c := w.contract(scope.PackageName, node)
		c.Signatories = []string{scope.Consumer}
		return []ledger.Event{create(c)}
	case 2: // a puppet CoreState
		return []ledger.Event{create(w.contract(PackageName, &wormhole.CoreState{Operator: one(w, Operator, Accomplice), GuardianGovernance: one(w, Accomplice, Governance)}))}
	case 3, 4:
		c := w.contract(scope.PackageName, &wormhole.Malformed{
			Template: "Wormhole.Core.Replay:ReplayNode",
			Operator: one(w, Operator, Accomplice, ""),
			Consumer: one(w, scope.Consumer, ""),
			Fault:    "the prefix is not hex",
		})
		c.Signatories = one(w, []string{scope.Consumer, Operator}, []string{scope.Consumer}, []string{Accomplice})
		return []ledger.Event{create(c)}
	case 5: // an unpinned package
		c := w.contract(scope.PackageName, node)
		c.TemplateID.PackageID = "elsewhere"
		return []ledger.Event{create(c)}
	case 6:
		c := w.contract(scope.PackageName, node)
		c.Blob, c.BlobCheck = nil, ledger.BlobMissing
		return []ledger.Event{create(c)}
	default:
		c := w.contract(scope.PackageName, node)
		c.BlobCheck, c.BlobFault = one(w, ledger.BlobMismatch, ledger.BlobUnchecked), "another signatory"
		return []ledger.Event{create(c)}
	}
}

// reassign begins, ends or does a reassignment, in any order.
func (w *World) reassign() []ledger.Event {
	if len(w.owed) > 0 && w.chance(40) {
		ev := w.owed[0]
		w.owed = w.owed[1:]
		w.busy[ev.ContractID] = true
		return []ledger.Event{ev}
	}
	if w.chance(40) {
		if e := w.choose(func(e *index.Entry) bool { return e.InFlight }); e != nil {
			return []ledger.Event{assign(e, e.SynchronizerID, e.Target, e.ReassignmentCounter)}
		}
	}
	e := w.choose(isActive)
	if e == nil {
		return nil
	}
	target := one(w, synchronizers...)
	if target == e.SynchronizerID {
		return nil
	}
	counter := counting(w.truth.entries, e.ContractID).ReassignmentCounter + 1
	leaves := ledger.Event{Kind: ledger.Unassigned, ContractID: e.ContractID, TemplateID: e.TemplateID, Source: e.SynchronizerID, Target: target, ReassignmentCounter: counter}
	arrives := assign(e, e.SynchronizerID, target, counter)
	switch w.pick(5) {
	case 0:
		w.owed = append(w.owed, leaves)
		return []ledger.Event{arrives}
	case 1:
		return []ledger.Event{leaves, arrives}
	default:
		return []ledger.Event{leaves}
	}
}

func assign(e *index.Entry, source, target string, counter uint64) ledger.Event {
	c := e.Contract
	c.SynchronizerID, c.ReassignmentCounter = target, counter
	return ledger.Event{Kind: ledger.Assigned, ContractID: e.ContractID, TemplateID: e.TemplateID, Contract: &c, Source: source, Target: target, ReassignmentCounter: counter}
}

// importOrPurge is what a participant's operator does: imports and purges have the same source and target.
func (w *World) importOrPurge() []ledger.Event {
	if w.chance(40) {
		e := w.choose(func(*index.Entry) bool { return true })
		if e == nil {
			return nil
		}
		events := []ledger.Event{{Kind: ledger.Unassigned, ContractID: e.ContractID, TemplateID: e.TemplateID, Source: e.SynchronizerID, Target: e.SynchronizerID, ReassignmentCounter: e.ReassignmentCounter + 1}}
		if node, ok := e.Payload.(*wormhole.ReplayNode); ok && w.chance(20) {
			// A new node in the purged one's place is not its successor, and what it holds was not consumed just now.
			next := *node
			next.Consumed = next.Consumed.With(w.digest(node.Prefix))
			events = append(events, create(w.contract(e.PackageName, &next)))
		}
		return events
	}
	if w.chance(30) {
		// Again what is there, perhaps as it was before.
		e := w.choose(isActive)
		if e == nil {
			return nil
		}
		counter := e.ReassignmentCounter
		if counter > 0 && w.chance(50) {
			counter--
		}
		return []ledger.Event{assign(e, e.SynchronizerID, e.SynchronizerID, counter)}
	}
	if len(w.buried) > 0 && w.chance(30) {
		// What was purged comes back; what was archived can't, but a participant that was restored may say so.
		e := one(w, w.buried...)
		if counting(w.truth.entries, e.ContractID) != nil || w.busy[e.ContractID] {
			return nil
		}
		w.busy[e.ContractID] = true
		return []ledger.Event{assign(e, e.SynchronizerID, e.SynchronizerID, e.ReassignmentCounter)}
	}
	scope := one(w, w.scopes...)
	at := wormhole.Prefix{}
	if len(w.digests) > 0 {
		at = one(w, w.digests...).Prefix(w.pick(4))
	}
	e := index.Entry{Contract: *w.contract(scope.PackageName, w.node(scope, at))}
	return []ledger.Event{assign(&e, synchronizers[0], synchronizers[0], uint64(w.pick(3)))}
}

// other creates, replaces or doubles a CoreState, a registry or an emitter.
func (w *World) other() []ledger.Event {
	if w.chance(60) {
		e := w.choose(func(e *index.Entry) bool {
			_, malformed := e.Payload.(*wormhole.Malformed)
			return isActive(e) && !isNode(e) && !malformed
		})
		if e != nil {
			events := []ledger.Event{archive(e), create(w.contract(e.PackageName, changed(e.Payload)))}
			if w.chance(10) {
				events = append(events, create(w.contract(e.PackageName, changed(e.Payload))))
			}
			return events
		}
	}
	operator := one(w, Operator, Operator, OtherOperator)
	return []ledger.Event{create(w.contract(one(w, PackageName, PackageName, OtherPackage), one[wormhole.Payload](w,
		&wormhole.CoreState{Operator: operator, GuardianGovernance: Governance, ChainID: 72, GuardianSets: map[int64]wormhole.GuardianSet{0: {Keys: []string{"aa"}}}},
		&wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{consumers[0]}},
		&wormhole.EmitterRegistry{Operator: operator, NextID: 1},
		&wormhole.Emitter{Operator: operator, Owner: one(w, consumers...), EmitterID: int64(w.pick(2))},
	)))}
}

// changed is what an exercise makes of the payload.
func changed(p wormhole.Payload) wormhole.Payload {
	switch p := p.(type) {
	case *wormhole.CoreState:
		next := *p
		next.MessageFee++
		return &next
	case *wormhole.EmitterRegistry:
		next := *p
		next.NextID++
		return &next
	case *wormhole.Emitter:
		next := *p
		next.Sequence++
		return &next
	default:
		return p
	}
}

// unknown tells of a contract that was never seen.
func (w *World) unknown() []ledger.Event {
	e := index.Entry{Contract: *w.contract(PackageName, w.node(one(w, w.scopes...), wormhole.Prefix{}))}
	switch w.pick(3) {
	case 0:
		return []ledger.Event{archive(&e)}
	case 1:
		return []ledger.Event{{Kind: ledger.Unassigned, ContractID: e.ContractID, Source: synchronizers[0], Target: synchronizers[1], ReassignmentCounter: 1}}
	default:
		return []ledger.Event{assign(&e, synchronizers[0], synchronizers[1], 1)}
	}
}

// transient creates and archives a contract in one update, which a participant should not tell.
func (w *World) transient() []ledger.Event {
	c := w.contract(PackageName, w.node(one(w, w.scopes...), wormhole.Prefix{}))
	return []ledger.Event{create(c), {Kind: ledger.Archived, ContractID: c.ContractID, TemplateID: c.TemplateID}}
}

// Reseed makes the participant's story begin anew for the reason: what a snapshot now shows. Some updates happen that are never
// told.
func (w *World) Reseed(reason ledger.SeedReason) (start ledger.SeedStart, active []ledger.Contract, flying []ledger.InFlight) {
	for range w.pick(4) {
		w.Update()
	}
	switch reason {
	case ledger.SeedAnotherParticipant, ledger.SeedFirst:
		w.participant++
		w.lose(30)
	case ledger.SeedRewound:
		w.offset -= int64(w.pick(int(w.offset) + 1))
		w.lose(30)
	case ledger.SeedDiverged:
		w.lose(30)
	case ledger.SeedRightsChanged:
		w.lose(10)
	}
	w.offset++
	start = ledger.SeedStart{ParticipantID: w.Participant(), Offset: w.offset, Reason: reason, Filter: "filter"}
	for _, e := range w.truth.entries {
		c := e.Contract
		c.UpdateID, c.RecordTime = "", time.Time{}
		if e.InFlight {
			flying = append(flying, ledger.InFlight{Contract: c, Source: e.SynchronizerID, Target: e.Target, ReassignmentCounter: e.ReassignmentCounter})
			continue
		}
		active = append(active, c)
		if e.ReassignmentCounter > 0 && w.chance(20) {
			// A participant may show a flight that has already landed.
			flying = append(flying, ledger.InFlight{Contract: c, Source: "elsewhere::1220cd", Target: e.SynchronizerID, ReassignmentCounter: e.ReassignmentCounter})
		}
	}
	for _, e := range w.buried {
		// A participant whose store is damaged shows what has long ended.
		if w.chance(5) && !slices.ContainsFunc(active, func(c ledger.Contract) bool { return c.ContractID == e.ContractID }) {
			c := e.Contract
			c.UpdateID, c.RecordTime = "", time.Time{}
			active = append(active, c)
		}
	}
	// What a snapshot shows is what goes on from there.
	w.truth = NewNaive(w.policy)
	w.truth.Seed(start, slices.Clone(active), slices.Clone(flying))
	w.owed = nil
	return start, active, flying
}

// lose takes contracts out of the ledger unseen.
func (w *World) lose(percent int) {
	w.truth.entries = remove(w.truth.entries, func(*index.Entry) bool { return w.chance(percent) })
}
