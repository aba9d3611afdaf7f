package indextest

import (
	"slices"
	"sort"
	"strings"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Naive is what an index must be, in plain slices.
type Naive struct {
	policy index.Policy
	seeded bool
	pos    ledger.Position

	// entries are all activations and flights, at most one per contract and synchronizer.
	entries []*index.Entry
	// scopes are those of which an authentic node was seen.
	scopes  []index.Scope
	missing []index.ScopedDigest
	ghosts  []*index.Entry

	consumes []index.Consume
	ended    []index.Ended
	updates  []index.UpdateRef
	since    int64

	words words
}

// NewNaive is a naive index that was never seeded.
func NewNaive(policy index.Policy) *Naive { return &Naive{policy: policy, words: words{}} }

// Classify is the class of a contract.
func (n *Naive) Classify(c *ledger.Contract) index.Class {
	named := ""        // operator
	var must []string  // parties that must have signed
	governance := true // whether a CoreState is of the policy's governance
	malformed := false
	switch p := c.Payload.(type) {
	case *wormhole.ReplayNode:
		named, must = p.Operator, []string{p.Operator, p.Consumer}
	case *wormhole.CoreState:
		named, must = p.Operator, []string{p.Operator, p.GuardianGovernance}
		governance = p.GuardianGovernance == n.policy.GuardianGovernance && n.policy.GuardianGovernance != ""
	case *wormhole.ReplayRootRegistry:
		named, must = p.Operator, []string{p.Operator}
	case *wormhole.EmitterRegistry:
		named, must = p.Operator, []string{p.Operator}
	case *wormhole.Emitter:
		named, must = p.Operator, []string{p.Operator, p.Owner}
	case *wormhole.Malformed:
		malformed = true
		named = p.Operator
		for _, party := range []string{p.Operator, p.Consumer} {
			if party != "" {
				must = append(must, party)
			}
		}
	}
	pins, pinned := n.policy.PackageIDs[c.PackageName]
	if pinned && !has(pins, c.TemplateID.PackageID) {
		return index.Unpinned
	}
	if !governance {
		return index.Puppet
	}
	if len(n.policy.Operators) > 0 {
		accepted := has(n.policy.Operators, named)
		if named == "" {
			for _, s := range c.Signatories {
				accepted = accepted || has(n.policy.Operators, s)
			}
		}
		if !accepted {
			return index.Shadow
		}
	}
	for _, party := range must {
		if !has(c.Signatories, party) {
			return index.Puppet
		}
	}
	if malformed {
		return index.Malformed
	}
	if len(c.Blob) == 0 || c.BlobCheck != ledger.BlobVerified && c.BlobCheck != ledger.BlobUnverifiable {
		return index.Refused
	}
	return index.Authentic
}

func has(list []string, s string) bool { return slices.Contains(list, s) }

// Apply applies a batch that continues from the position.
func (n *Naive) Apply(b ledger.Batch) {
	for _, u := range b.Updates {
		n.update(u)
		n.pos.UpdateOffset, n.pos.UpdateID, n.pos.RecordTime = u.Offset, u.UpdateID, u.RecordTime
	}
	n.pos.Offset = b.Through
}

// update applies one update: its events in order, then what they mean together.
func (n *Naive) update(u ledger.Update) {
	before := slices.Clone(n.entries)
	missingBefore := slices.Clone(n.missing)
	var createdIDs []string
	var archivedIDs []string
	purged := map[string]bool{}
	for _, ev := range u.Events {
		if ev.Kind == ledger.Archived {
			archivedIDs = append(archivedIDs, ev.ContractID)
		}
	}
	archivedBefore := countingOf(before, archivedIDs)
	for _, ev := range u.Events {
		switch ev.Kind {
		case ledger.Created, ledger.Assigned:
			e := &index.Entry{Contract: *ev.Contract, Class: n.Classify(ev.Contract)}
			e.Offset, e.UpdateID, e.RecordTime = u.Offset, u.UpdateID, u.RecordTime
			if ev.Kind == ledger.Assigned {
				e.ReassignmentCounter = ev.ReassignmentCounter
				if known := counting(n.entries, ev.ContractID); known != nil {
					e.ParentID = known.ParentID
				}
			} else {
				e.ParentID = naiveParent(e, archivedBefore)
			}
			if n.activate(e) && ev.Kind == ledger.Created {
				createdIDs = append(createdIDs, ev.ContractID)
			}
		case ledger.Archived:
			n.entries = remove(n.entries, func(e *index.Entry) bool { return e.ContractID == ev.ContractID })
			delete(purged, ev.ContractID)
		case ledger.Unassigned:
			n.unassign(ev)
			if ev.Source == ev.Target {
				purged[ev.ContractID] = true
			}
		}
	}
	n.knowScopes()
	for _, ev := range u.Events {
		// Even a node that its own update archives was seen.
		if ev.Contract != nil {
			n.know(&index.Entry{Contract: *ev.Contract, Class: n.Classify(ev.Contract)})
		}
	}

	var created, archived []*index.Entry
	for _, e := range countingOf(n.entries, createdIDs) {
		if counting(before, e.ContractID) == nil {
			created = append(created, e)
		}
	}
	for _, e := range archivedBefore {
		if counting(n.entries, e.ContractID) == nil && !purged[e.ContractID] {
			archived = append(archived, e)
		}
	}
	for _, scope := range n.scopes {
		n.consume(u, scope, before, missingBefore, created, archived)
		n.miss(scope, held(before, scope))
	}

	seen := map[string]bool{}
	for _, ev := range u.Events {
		was := counting(before, ev.ContractID)
		if was == nil || seen[ev.ContractID] || counting(n.entries, ev.ContractID) != nil {
			continue
		}
		seen[ev.ContractID] = true
		end := naiveEnd(was)
		end.How, end.AfterOffset, end.Offset, end.UpdateID, end.RecordTime = index.ArchivedOnly, u.Offset-1, u.Offset, u.UpdateID, u.RecordTime
		if purged[ev.ContractID] {
			end.How = index.Purged
		} else if ids := naiveSuccessors(was, countingOf(n.entries, createdIDs)); len(ids) == 1 {
			end.How, end.Successors = index.Superseded, ids
		} else if len(ids) > 1 {
			end.How, end.Successors = index.Split, ids
		}
		n.ended = append(n.ended, end)
	}
	n.updates = append(n.updates, index.UpdateRef{Offset: u.Offset, UpdateID: u.UpdateID, RecordTime: u.RecordTime})
}

// activate adds an entry, unless it is older than what its synchronizer already showed. What was in flight with at most its
// counter has arrived.
func (n *Naive) activate(e *index.Entry) bool {
	for _, other := range n.entries {
		if other.ContractID == e.ContractID && other.SynchronizerID == e.SynchronizerID && other.ReassignmentCounter > e.ReassignmentCounter {
			return false
		}
	}
	n.entries = remove(n.entries, func(other *index.Entry) bool {
		return other.ContractID == e.ContractID &&
			(other.SynchronizerID == e.SynchronizerID || other.InFlight && other.ReassignmentCounter <= e.ReassignmentCounter)
	})
	n.entries = append(n.entries, e)
	return true
}

// unassign takes a contract off its source; it flies unless something of it has the flight's counter already, or it is a purge.
func (n *Naive) unassign(ev ledger.Event) {
	at := slices.IndexFunc(n.entries, func(e *index.Entry) bool {
		return e.ContractID == ev.ContractID && e.SynchronizerID == ev.Source
	})
	if at < 0 {
		return
	}
	e := *n.entries[at]
	n.entries = slices.Delete(slices.Clone(n.entries), at, at+1)
	if ev.Source == ev.Target {
		return
	}
	for _, other := range n.entries {
		if other.ContractID == ev.ContractID && other.ReassignmentCounter >= ev.ReassignmentCounter {
			return
		}
	}
	e.InFlight, e.Target, e.ReassignmentCounter = true, ev.Target, ev.ReassignmentCounter
	n.entries = append(n.entries, &e)
}

// beats reports whether an entry counts before another of its contract: greater counter, active before in flight, smaller
// synchronizer.
func beats(e, other *index.Entry) bool {
	if e.ReassignmentCounter != other.ReassignmentCounter {
		return e.ReassignmentCounter > other.ReassignmentCounter
	}
	if e.InFlight != other.InFlight {
		return other.InFlight
	}
	return e.SynchronizerID < other.SynchronizerID
}

// counting is the entry of a contract that counts, nil where there is none.
func counting(entries []*index.Entry, id string) *index.Entry {
	var best *index.Entry
	for _, e := range entries {
		if e.ContractID == id && (best == nil || beats(e, best)) {
			best = e
		}
	}
	return best
}

// countingOf are the counting entries of the ids, once each.
func countingOf(entries []*index.Entry, ids []string) []*index.Entry {
	var found []*index.Entry
	for i, id := range ids {
		if e := counting(entries, id); e != nil && !has(ids[:i], id) {
			found = append(found, e)
		}
	}
	return found
}

// allCounting is one entry per contract, by contract id.
func allCounting(entries []*index.Entry) []*index.Entry {
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b *index.Entry) int {
		if a.ContractID != b.ContractID {
			return strings.Compare(a.ContractID, b.ContractID)
		}
		if beats(a, b) {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(sorted, func(a, b *index.Entry) bool { return a.ContractID == b.ContractID })
}

func remove(entries []*index.Entry, drop func(*index.Entry) bool) []*index.Entry {
	var kept []*index.Entry
	for _, e := range entries {
		if !drop(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// nodeIn is the payload of an entry that is a node of the scope.
func nodeIn(e *index.Entry, scope index.Scope) *wormhole.ReplayNode {
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok || scopeOf(e) != scope {
		return nil
	}
	return node
}

func scopeOf(e *index.Entry) index.Scope {
	node := e.Payload.(*wormhole.ReplayNode)
	return index.Scope{PackageName: e.PackageName, Operator: node.Operator, Consumer: node.Consumer, Namespace: node.Namespace}
}

// nodes are the authentic counting nodes of the scope, by contract id. (A contract's entries are alike but for where it is, so that
// which of them counts may be asked last.)
func nodes(entries []*index.Entry, scope index.Scope) []*index.Entry {
	var found []*index.Entry
	for _, e := range entries {
		if e.Class == index.Authentic && nodeIn(e, scope) != nil {
			found = append(found, e)
		}
	}
	return allCounting(found)
}

func (n *Naive) know(e *index.Entry) {
	if _, ok := e.Payload.(*wormhole.ReplayNode); ok && e.Class == index.Authentic && !slices.Contains(n.scopes, scopeOf(e)) {
		n.scopes = append(n.scopes, scopeOf(e))
	}
}

func (n *Naive) knowScopes() {
	for _, e := range n.entries {
		n.know(e)
	}
}

// held are the digests that the scope's nodes hold.
func held(entries []*index.Entry, scope index.Scope) map[wormhole.Digest]bool {
	digests := map[wormhole.Digest]bool{}
	for _, e := range nodes(entries, scope) {
		for d := range nodeIn(e, scope).Consumed.All() {
			digests[d] = true
		}
	}
	return digests
}

// consume records the digests that came into the trie by a consume.
func (n *Naive) consume(u ledger.Update, scope index.Scope, before []*index.Entry, missing []index.ScopedDigest, created, archived []*index.Entry) {
	heldBefore := held(before, scope)
	var fresh []wormhole.Digest
	for d := range held(created, scope) {
		if heldBefore[d] || slices.Contains(missing, index.ScopedDigest{Scope: scope, Digest: d}) {
			continue
		}
		for _, e := range nodes(archived, scope) {
			if nodeIn(e, scope).Prefix.Covers(d) {
				fresh = append(fresh, d)
				break
			}
		}
	}
	sortDigests(fresh)
	for _, d := range fresh {
		n.consumes = append(n.consumes, index.Consume{Scope: scope, Digest: d, Offset: u.Offset, UpdateID: u.UpdateID, RecordTime: u.RecordTime})
	}
}

func sortDigests(ds []wormhole.Digest) {
	sort.Slice(ds, func(i, j int) bool { return ds[i].String() < ds[j].String() })
}

// miss brings the scope's missing digests up to date: once held or missing, and not held now.
func (n *Naive) miss(scope index.Scope, once map[wormhole.Digest]bool) {
	var rest []index.ScopedDigest
	for _, sd := range n.missing {
		if sd.Scope == scope {
			once[sd.Digest] = true
		} else {
			rest = append(rest, sd)
		}
	}
	now := held(n.entries, scope)
	for d := range once {
		if !now[d] {
			rest = append(rest, index.ScopedDigest{Scope: scope, Digest: d})
		}
	}
	n.missing = rest
}

func naiveParent(e *index.Entry, archived []*index.Entry) string {
	if _, ok := e.Payload.(*wormhole.ReplayNode); !ok {
		return ""
	}
	best, depth := "", -1
	for _, old := range archived {
		p := nodeIn(old, scopeOf(e))
		if p == nil || old.ContractID == e.ContractID || !strings.HasPrefix(nodeIn(e, scopeOf(e)).Prefix.String(), p.Prefix.String()) {
			continue
		}
		if p.Prefix.Len() > depth || p.Prefix.Len() == depth && old.ContractID < best {
			best, depth = old.ContractID, p.Prefix.Len()
		}
	}
	return best
}

func naiveEnd(e *index.Entry) index.Ended {
	end := index.Ended{ContractID: e.ContractID, Since: e.RecordTime}
	if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
		scope := scopeOf(e)
		end.Scope, end.Prefix = &scope, node.Prefix
	}
	return end
}

// naiveSuccessors are the contract ids in the place of one that was archived.
func naiveSuccessors(was *index.Entry, created []*index.Entry) []string {
	node, isNode := was.Payload.(*wormhole.ReplayNode)
	var ids, prefixes []string
	for _, e := range created {
		if isNode {
			if c := nodeIn(e, scopeOf(was)); c != nil && strings.HasPrefix(c.Prefix.String(), node.Prefix.String()) {
				ids, prefixes = append(ids, e.ContractID), append(prefixes, c.Prefix.String())
			}
		} else if description(e) != "" && description(e) == description(was) {
			ids = append(ids, e.ContractID)
		}
	}
	if !isNode {
		if len(ids) != 1 {
			return nil
		}
		return ids
	}
	// They partition the prefix if none covers another and their shares of the digest space add up to all of it. A share is
	// counted in the smallest there is here.
	deepest := 0
	for _, p := range prefixes {
		deepest = max(deepest, len(p)-node.Prefix.Len())
	}
	if deepest > 12 {
		panic("indextest: a split of more levels than the naive model counts")
	}
	total := 0
	for i, p := range prefixes {
		for j, q := range prefixes {
			if i != j && strings.HasPrefix(q, p) {
				return nil
			}
		}
		total += 1 << (4 * (deepest - (len(p) - node.Prefix.Len())))
	}
	if len(ids) == 0 || total != 1<<(4*deepest) {
		return nil
	}
	sort.Slice(ids, func(i, j int) bool {
		return nodePrefix(created, ids[i]) < nodePrefix(created, ids[j])
	})
	return ids
}

func nodePrefix(entries []*index.Entry, id string) string {
	return counting(entries, id).Payload.(*wormhole.ReplayNode).Prefix.String()
}

// description is what identifies a contract that is not a node to those who look for it; "" for a malformed one.
func description(e *index.Entry) string {
	switch p := e.Payload.(type) {
	case *wormhole.CoreState:
		return "core|" + p.Operator + "|" + p.GuardianGovernance
	case *wormhole.ReplayRootRegistry:
		return "roots|" + p.Operator
	case *wormhole.EmitterRegistry:
		return "emitters|" + p.Operator
	case *wormhole.Emitter:
		return "emitter|" + e.PackageName + "|" + p.Operator + "|" + p.Owner + "|" + string(rune('a'+p.EmitterID))
	default:
		return ""
	}
}

// Seed puts a snapshot in the place of what was.
func (n *Naive) Seed(start ledger.SeedStart, contracts []ledger.Contract, flying []ledger.InFlight) {
	old := *n
	same := old.seeded && start.Reason.SameHistory()
	*n = Naive{policy: old.policy, words: old.words, seeded: true, since: start.Offset,
		pos: ledger.Position{ParticipantID: start.ParticipantID, Offset: start.Offset, Filter: start.Filter}}
	if same {
		n.scopes, n.missing = old.scopes, old.missing
		n.consumes, n.ended, n.updates = old.consumes, old.ended, old.updates
	}
	haunted := func(e *index.Entry) bool {
		if !same || counting(old.entries, e.ContractID) != nil {
			return false
		}
		end, known := old.EndOf(e.ContractID, old.pos.Offset)
		if !known || end.How == index.Gone || end.How == index.Purged {
			return false
		}
		n.ghosts = append(n.ghosts, e)
		return true
	}
	for _, c := range contracts {
		if e := (&index.Entry{Contract: c, Class: n.Classify(&c)}); !haunted(e) {
			n.activate(e)
		}
	}
	sort.SliceStable(flying, func(i, j int) bool { return flying[i].ReassignmentCounter > flying[j].ReassignmentCounter })
	for _, f := range flying {
		e := &index.Entry{Contract: f.Contract, Class: n.Classify(&f.Contract), InFlight: true, Target: f.Target}
		e.SynchronizerID, e.ReassignmentCounter = f.Source, f.ReassignmentCounter
		if haunted(e) {
			continue
		}
		if other := counting(n.entries, e.ContractID); other != nil && other.ReassignmentCounter >= e.ReassignmentCounter {
			continue
		}
		n.entries = remove(n.entries, func(o *index.Entry) bool { return o.ContractID == e.ContractID && o.SynchronizerID == e.SynchronizerID })
		n.entries = append(n.entries, e)
	}
	n.ghosts = allCounting(n.ghosts)
	n.knowScopes()
	if !same {
		return
	}
	for _, scope := range n.scopes {
		n.miss(scope, held(old.entries, scope))
	}
	for _, e := range allCounting(old.entries) {
		if counting(n.entries, e.ContractID) == nil {
			end := naiveEnd(e)
			end.How, end.AfterOffset, end.Offset = index.Gone, old.pos.Offset, start.Offset
			n.ended = append(n.ended, end)
		}
	}
}
