package index

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// ApplyStats counts what a batch brought that is worth a metric.
type ApplyStats struct {
	// Updates and Events are all that came.
	Updates, Events int
	Created         int
	Archived        int
	Assigned        int
	Unassigned      int
	// Imports and Purges are assignments and unassignments whose source is their target.
	Imports, Purges int
	// UnknownArchives and UnknownUnassigns are those of contracts that the view did not hold. They change nothing.
	UnknownArchives, UnknownUnassigns int
	// Unknown is the first of these, nil for none.
	Unknown *UnknownEnd
	// AssignedFirst are assignments, other than imports, for which nothing was in flight: they came before their unassignment,
	// or that was not seen.
	AssignedFirst int
	// Stale are activations older than what their synchronizer had already shown. They change nothing.
	Stale int
	// Blobs counts the activations by the result of their blob's check.
	Blobs map[ledger.BlobCheck]int
	// Classes counts the activations by class.
	Classes map[Class]int
}

// UnknownEnd is an archive or unassignment of a contract that the view did not hold.
type UnknownEnd struct {
	ContractID string
	Offset     int64
}

// unknown keeps the first.
func (s *ApplyStats) unknown(contractID string, offset int64) {
	if s.Unknown == nil {
		s.Unknown = &UnknownEnd{contractID, offset}
	}
}

// change is a batch being applied: the view so far, and what of it is new.
type change struct {
	*edit
	delta Delta
	// touched are the keys that some update changed: the delta's Put and Remove are the net of them.
	touched map[Key]bool
	// missing is, by scope and digest, whether the digest was missing before the batch.
	missing map[ScopedDigest]bool
}

// Apply gives the view after the batch and the delta that leads there. The receiver is not changed. The error wraps
// ledger.ErrNotNext where the batch is another participant's or does not continue from the view's offset; any other means
// that the batch breaks its own rules (ledger.Batch), and nothing was applied.
func (v *View) Apply(b ledger.Batch) (*View, Delta, error) {
	if err := v.check(b); err != nil {
		return nil, Delta{}, err
	}
	c := &change{edit: v.edit(), touched: map[Key]bool{}, missing: map[ScopedDigest]bool{}}
	c.delta.Stats = ApplyStats{Blobs: map[ledger.BlobCheck]int{}, Classes: map[Class]int{}}
	to := v.pos
	to.Offset = b.Through
	for i := range b.Updates {
		u := &b.Updates[i]
		c.apply(u)
		to.UpdateOffset, to.UpdateID, to.RecordTime = u.Offset, u.UpdateID, u.RecordTime
	}
	next := c.view(to)
	c.net(next)
	c.delta.From, c.delta.To = v.pos, to
	return next, c.delta, nil
}

// check refuses a batch that is not the view's next one.
func (v *View) check(b ledger.Batch) error {
	if b.ParticipantID != v.pos.ParticipantID {
		return fmt.Errorf("applying a batch of participant %q to an index of participant %q: %w", b.ParticipantID, v.pos.ParticipantID, ledger.ErrNotNext)
	}
	if b.After != v.pos.Offset {
		return fmt.Errorf("applying a batch after offset %d to an index at offset %d: %w", b.After, v.pos.Offset, ledger.ErrNotNext)
	}
	last := b.After
	for _, u := range b.Updates {
		if u.Offset <= last || u.Offset > b.Through {
			return fmt.Errorf("applying a batch (%d, %d]: the update at offset %d is out of order", b.After, b.Through, u.Offset)
		}
		last = u.Offset
		for _, ev := range u.Events {
			activates := ev.Kind == ledger.Created || ev.Kind == ledger.Assigned
			switch {
			case activates && ev.Contract == nil:
				return fmt.Errorf("applying the update at offset %d: %s %s without its contract", u.Offset, ev.Kind, ev.ContractID)
			case activates && ev.Contract.ContractID != ev.ContractID:
				return fmt.Errorf("applying the update at offset %d: %s %s with the contract %s", u.Offset, ev.Kind, ev.ContractID, ev.Contract.ContractID)
			case !activates && ev.Kind != ledger.Archived && ev.Kind != ledger.Unassigned:
				return fmt.Errorf("applying the update at offset %d: event of kind %d", u.Offset, ev.Kind)
			}
		}
	}
	if b.Through < b.After {
		return fmt.Errorf("applying a batch (%d, %d]: it ends before it begins", b.After, b.Through)
	}
	return nil
}

// step is one update being applied: what was there before, by contract id, for each contract that the update touches.
type step struct {
	*ledger.Update
	before map[string]slot
	// ended is how a contract came to its end in this update, for those that had one.
	ended map[string]How
	// created are the contracts that the update created: in its order, and as a set. An import can bring many thousand in one update.
	created   []string
	isCreated map[string]bool
}

// apply applies one update. Its events take effect together: what it did to the tries is judged by what was there before all of
// them and after all of them.
func (c *change) apply(u *ledger.Update) {
	st := &step{Update: u, before: map[string]slot{}, ended: map[string]How{}, isCreated: map[string]bool{}}
	for _, ev := range u.Events {
		if _, seen := st.before[ev.ContractID]; !seen {
			st.before[ev.ContractID] = c.slot(ev.ContractID)
		}
	}
	parents := st.archivedNodes()
	before := c.tries(st, parents)
	for i := range u.Events {
		c.event(st, &u.Events[i], parents)
	}
	c.judge(st, before)
	c.end(st)
	c.delta.Updates = append(c.delta.Updates, UpdateRef{u.Offset, u.UpdateID, u.RecordTime})
	c.delta.Stats.Updates++
}

// archivedNodes are the nodes that the update archives, of any class, by scope.
func (st *step) archivedNodes() map[Scope][]*Entry {
	var nodes map[Scope][]*Entry
	for _, ev := range st.Events {
		e := st.before[ev.ContractID].first
		if ev.Kind != ledger.Archived || e == nil {
			continue
		}
		if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
			if nodes == nil {
				nodes = map[Scope][]*Entry{}
			}
			scope := ScopeOf(e.PackageName, node)
			nodes[scope] = append(nodes[scope], e)
		}
	}
	return nodes
}

// tries are the tries, before the update, of all scopes whose nodes it touches; nil for a scope that comes to exist by it.
func (c *change) tries(st *step, archived map[Scope][]*Entry) map[Scope]*scopeTrie {
	tries := map[Scope]*scopeTrie{}
	add := func(packageName string, p wormhole.Payload) {
		if node, ok := p.(*wormhole.ReplayNode); ok {
			scope := ScopeOf(packageName, node)
			if _, ok := tries[scope]; !ok {
				tries[scope] = c.trie(scope)
			}
		}
	}
	for _, ev := range st.Events {
		if e := st.before[ev.ContractID].first; e != nil {
			add(e.PackageName, e.Payload)
		}
		if ev.Contract != nil {
			add(ev.Contract.PackageName, ev.Contract.Payload)
		}
	}
	return tries
}

// event applies one event to the contract's slot.
func (c *change) event(st *step, ev *ledger.Event, archived map[Scope][]*Entry) {
	stats := &c.delta.Stats
	stats.Events++
	now := c.slot(ev.ContractID)
	var after slot
	switch ev.Kind {
	case ledger.Created, ledger.Assigned:
		e := c.entry(st, ev, now)
		stats.Blobs[e.BlobCheck]++
		stats.Classes[e.Class]++
		var arrived, stale bool
		after, arrived, stale = now.activated(e)
		switch {
		case stale:
			stats.Stale++
		case ev.Kind == ledger.Created:
			e.ParentID = parent(e, archived)
			if !st.isCreated[ev.ContractID] {
				st.created, st.isCreated[ev.ContractID] = append(st.created, ev.ContractID), true
			}
		case ev.Source == ev.Target:
			stats.Imports++
		case !arrived:
			stats.AssignedFirst++
		}
		if ev.Kind == ledger.Created {
			stats.Created++
		} else {
			stats.Assigned++
		}
	case ledger.Archived:
		stats.Archived++
		if now.first == nil {
			stats.UnknownArchives++
			stats.unknown(ev.ContractID, st.Offset)
		}
		st.ended[ev.ContractID] = ArchivedOnly
	case ledger.Unassigned:
		stats.Unassigned++
		if ev.Source == ev.Target {
			stats.Purges++
			st.ended[ev.ContractID] = Purged
		}
		var known bool
		if after, known = now.unassigned(ev.Source, ev.Target, ev.ReassignmentCounter); !known {
			stats.UnknownUnassigns++
			stats.unknown(ev.ContractID, st.Offset)
		}
	}
	for e := range now.all() {
		c.touched[e.Key()] = true
	}
	for e := range after.all() {
		c.touched[e.Key()] = true
	}
	c.setSlot(ev.ContractID, after)
}

// entry is the new entry of an activation. Where and when it was activated is the update's to say.
func (c *change) entry(st *step, ev *ledger.Event, now slot) *Entry {
	e := c.base.texts.entry(ev.Contract, c.base.policy)
	e.Offset, e.UpdateID, e.RecordTime = st.Offset, st.UpdateID, st.RecordTime
	if ev.Kind == ledger.Assigned {
		e.ReassignmentCounter = ev.ReassignmentCounter
		if now.first != nil {
			e.ParentID = now.first.ParentID
		}
	}
	return e
}

// parent is the node, among those archived, that covers the entry's prefix: the deepest, then the one with the smallest contract id.
func parent(e *Entry, archived map[Scope][]*Entry) string {
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok {
		return ""
	}
	var best *Entry
	for _, other := range archived[ScopeOf(e.PackageName, node)] {
		prefix := nodeOf(other).Prefix
		if !prefix.CoversPrefix(node.Prefix) || other.ContractID == e.ContractID {
			continue
		}
		if best == nil || cmp.Or(nodeOf(best).Prefix.Len()-prefix.Len(), strings.Compare(other.ContractID, best.ContractID)) < 0 {
			best = other
		}
	}
	if best == nil {
		return ""
	}
	return best.ContractID
}

// nodesOf are, of one scope, the nodes that an update took out of the trie, those that it archived, those that it put in, and those
// that it created. All are authentic.
type nodesOf struct{ left, archived, entered, created []*Entry }

// judge says what the update did to the tries that it touched: which digests were consumed and which are missing.
func (c *change) judge(st *step, before map[Scope]*scopeTrie) {
	nodes := map[Scope]*nodesOf{}
	in := func(e *Entry) *nodesOf {
		if e == nil || e.Class != Authentic {
			return nil
		}
		node, ok := e.Payload.(*wormhole.ReplayNode)
		if !ok {
			return nil
		}
		scope := ScopeOf(e.PackageName, node)
		if nodes[scope] == nil {
			nodes[scope] = &nodesOf{}
		}
		return nodes[scope]
	}
	for _, id := range slices.Sorted(maps.Keys(st.before)) {
		was, is := st.before[id].first, c.slot(id).first
		if sameNode(was, is) {
			continue
		}
		if n := in(was); n != nil {
			n.left = append(n.left, was)
			if is == nil && st.ended[id] == ArchivedOnly {
				n.archived = append(n.archived, was)
			}
		}
		if n := in(is); n != nil {
			n.entered = append(n.entered, is)
			if was == nil && st.isCreated[id] {
				n.created = append(n.created, is)
			}
		}
	}
	for _, scope := range slices.SortedFunc(maps.Keys(before), CompareScopes) {
		trie := before[scope]
		if trie == nil {
			if c.trie(scope) != nil {
				c.delta.Scopes = append(c.delta.Scopes, scope)
			}
			trie = &scopeTrie{scope: scope}
		}
		if n := nodes[scope]; n != nil {
			c.consumes(st, trie, n)
			c.losses(trie, n)
		}
	}
}

// sameNode reports whether two entries of one contract are the same to a trie: a reassignment changes only where the node is. (Content
// or class differ where two activations of a contract were not alike, which a participant that keeps its word never shows.)
func sameNode(a, b *Entry) bool {
	if a == nil || b == nil || a.Class != b.Class || a.PackageName != b.PackageName {
		return false
	}
	na, ok := a.Payload.(*wormhole.ReplayNode)
	if !ok {
		return false
	}
	nb, ok := b.Payload.(*wormhole.ReplayNode)
	return ok && ScopeOf("", na) == ScopeOf("", nb) && na.Prefix == nb.Prefix && slices.Equal(na.Consumed.Packed(), nb.Consumed.Packed())
}

// consumes finds the digests that the update put into the trie.
func (c *change) consumes(st *step, before *scopeTrie, n *nodesOf) {
	if len(n.archived) == 0 {
		return
	}
	var fresh []wormhole.Digest
	for _, e := range n.created {
		// What one of the archived nodes held is not new; most often that is all but one digest, and one pass tells.
		rest := nodeOf(e).Consumed
		for _, old := range n.archived {
			if related(old, e) {
				rest = minus(rest, nodeOf(old).Consumed)
			}
		}
		for d := range rest.All() {
			covered := slices.ContainsFunc(n.archived, func(old *Entry) bool { return nodeOf(old).Prefix.Covers(d) })
			if covered && !before.nodes.holds(d) && !before.missing.contains(d) {
				fresh = append(fresh, d)
			}
		}
	}
	for d := range wormhole.NewSuffixSet(fresh...).All() {
		c.delta.Consumes = append(c.delta.Consumes, Consume{before.scope, d, st.Offset, st.UpdateID, st.RecordTime})
	}
}

// related reports whether the prefix of one covers the other's.
func related(a, b *Entry) bool {
	pa, pb := nodeOf(a).Prefix, nodeOf(b).Prefix
	return pa.CoversPrefix(pb) || pb.CoversPrefix(pa)
}

// minus is the set a without the digests of b.
func minus(a, b wormhole.SuffixSet) wormhole.SuffixSet {
	var rest []wormhole.Digest
	subtract(a, b, func(d wormhole.Digest) { rest = append(rest, d) })
	return wormhole.NewSuffixSet(rest...)
}

// losses brings the trie's missing digests up to date: what the nodes that left held and nobody holds now is missing, what the
// nodes that entered hold no longer is.
func (c *change) losses(before *scopeTrie, n *nodesOf) {
	now := c.trie(before.scope)
	var lost, found []wormhole.Digest
	for _, old := range n.left {
		rest := nodeOf(old).Consumed
		for _, e := range n.entered {
			if related(old, e) {
				rest = minus(rest, nodeOf(e).Consumed)
			}
		}
		for d := range rest.All() {
			if !now.nodes.holds(d) {
				lost = append(lost, d)
			}
		}
	}
	for _, e := range n.entered {
		found = append(found, now.found(nodeOf(e))...)
	}
	c.noteMissing(before, lost)
	c.noteMissing(before, found)
	c.addMissing(before.scope, lost)
	c.removeMissing(before.scope, found)
}

// found are the missing digests that the node holds.
func (s *scopeTrie) found(node *wormhole.ReplayNode) []wormhole.Digest {
	var found []wormhole.Digest
	count := s.missing.countUnder(node.Prefix)
	switch {
	case count == 0:
	case count < node.Consumed.Len():
		for d := range s.missing.under(node.Prefix) {
			if node.Consumed.Contains(d) {
				found = append(found, d)
			}
		}
	default:
		for d := range node.Consumed.All() {
			if s.missing.contains(d) {
				found = append(found, d)
			}
		}
	}
	return found
}

// noteMissing remembers whether the digests were missing before the batch.
func (c *change) noteMissing(now *scopeTrie, digests []wormhole.Digest) {
	for _, d := range digests {
		key := ScopedDigest{now.scope, d}
		if _, ok := c.missing[key]; !ok {
			c.missing[key] = now.missing.contains(d)
		}
	}
}

// end records the ends of the contracts that the update ended.
func (c *change) end(st *step) {
	var created []*Entry
	for _, id := range st.created {
		if e := c.slot(id).first; e != nil {
			created = append(created, e)
		}
	}
	seen := map[string]bool{}
	for _, ev := range st.Events {
		was := st.before[ev.ContractID].first
		if was == nil || seen[ev.ContractID] || c.slot(ev.ContractID).first != nil {
			continue
		}
		seen[ev.ContractID] = true
		end := endOf(was)
		end.How = st.ended[ev.ContractID]
		end.AfterOffset, end.Offset = st.Offset-1, st.Offset
		end.UpdateID, end.RecordTime = st.UpdateID, st.RecordTime
		if end.How == ArchivedOnly {
			if successors := successorsOf(was, created); successors != nil {
				end.How, end.Successors = Superseded, successors
				if len(successors) > 1 {
					end.How = Split
				}
			}
		}
		c.delta.Ended = append(c.delta.Ended, end)
	}
}

// endOf is an end of the contract, still without how and when.
func endOf(e *Entry) Ended {
	end := Ended{ContractID: e.ContractID, Since: e.RecordTime}
	if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
		scope := ScopeOf(e.PackageName, node)
		end.Scope, end.Prefix = &scope, node.Prefix
	}
	return end
}

// successorsOf are the contract ids, among the created, that came in the place of the archived one: for a node those that
// partition its prefix, in order; for another contract the only one of the same description. Nil where there are none.
func successorsOf(was *Entry, created []*Entry) []string {
	var same []*Entry
	node, isNode := was.Payload.(*wormhole.ReplayNode)
	for _, e := range created {
		if replaces(e, was) {
			same = append(same, e)
		}
	}
	if !isNode {
		if len(same) != 1 {
			return nil
		}
		return contractIDs(same)
	}
	slices.SortFunc(same, func(a, b *Entry) int { return strings.Compare(nodeOf(a).Prefix.String(), nodeOf(b).Prefix.String()) })
	if !partitions(same, node.Prefix) {
		return nil
	}
	return contractIDs(same)
}

// replaces reports whether a created contract is of the description of the archived one: a node of the same scope at or
// below its prefix, a CoreState of the same parties, a registry of the same operator, the same emitter.
func replaces(e, was *Entry) bool {
	switch old := was.Payload.(type) {
	case *wormhole.ReplayNode:
		node, ok := e.Payload.(*wormhole.ReplayNode)
		return ok && ScopeOf(e.PackageName, node) == ScopeOf(was.PackageName, old) && old.Prefix.CoversPrefix(node.Prefix)
	case *wormhole.CoreState:
		core, ok := e.Payload.(*wormhole.CoreState)
		return ok && core.Operator == old.Operator && core.GuardianGovernance == old.GuardianGovernance
	case *wormhole.ReplayRootRegistry:
		registry, ok := e.Payload.(*wormhole.ReplayRootRegistry)
		return ok && registry.Operator == old.Operator
	case *wormhole.EmitterRegistry:
		registry, ok := e.Payload.(*wormhole.EmitterRegistry)
		return ok && registry.Operator == old.Operator
	case *wormhole.Emitter:
		emitter, ok := e.Payload.(*wormhole.Emitter)
		return ok && e.PackageName == was.PackageName &&
			emitter.Operator == old.Operator && emitter.Owner == old.Owner && emitter.EmitterID == old.EmitterID
	default:
		return false
	}
}

// partitions reports whether the nodes, sorted by prefix and all at or below the given one, cover each digest under it once.
func partitions(nodes []*Entry, prefix wormhole.Prefix) bool {
	if len(nodes) == 0 {
		return false
	}
	if nodeOf(nodes[0]).Prefix == prefix {
		return len(nodes) == 1
	}
	for nibble := range byte(16) {
		child := prefix.Child(nibble)
		n := 0
		for n < len(nodes) && child.CoversPrefix(nodeOf(nodes[n]).Prefix) {
			n++
		}
		if !partitions(nodes[:n], child) {
			return false
		}
		nodes = nodes[n:]
	}
	return true
}

// net computes what the whole batch changed, from what its updates touched.
func (c *change) net(next *View) {
	for _, key := range sortedKeys(c.touched) {
		was := c.base.contracts.get(key.ContractID).on(key.SynchronizerID)
		is := next.contracts.get(key.ContractID).on(key.SynchronizerID)
		switch {
		case is == nil && was != nil:
			c.delta.Remove = append(c.delta.Remove, key)
		case is != nil && is != was:
			c.delta.Put = append(c.delta.Put, is)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.missing), compareScopedDigests) {
		switch was, is := c.missing[key], next.Missing(key.Scope, key.Digest); {
		case is && !was:
			c.delta.MissingAdd = append(c.delta.MissingAdd, key)
		case was && !is:
			c.delta.MissingRemove = append(c.delta.MissingRemove, key)
		}
	}
}

func compareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(a.ContractID, b.ContractID), strings.Compare(a.SynchronizerID, b.SynchronizerID))
}

func compareScopedDigests(a, b ScopedDigest) int {
	return cmp.Or(CompareScopes(a.Scope, b.Scope), slices.Compare(a.Digest[:], b.Digest[:]))
}
