package index

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// generation is a View being built from a snapshot, beside the old one.
//
// Where the new generation is of the old one's history (ledger.SeedReason.SameHistory), facts go on: what history knows to have
// ended is not active again but a ghost; contracts of the old view that the snapshot lacks are Gone; digests that the old tries held
// or missed and the new ones lack are missing; scopes stay known. Otherwise memory starts empty.
type generation struct {
	*edit
	start ledger.SeedStart
	// old is the view before, nil where there was none or its history does not go on.
	old *View
	// twin is the view before whatever its history: equal contracts share its memory.
	twin   *View
	flying []ledger.InFlight
	ghosts map[string]*Entry
	// anchor is the last update that the snapshot contains, where that is known.
	anchor UpdateRef
}

func newGeneration(policy Policy, start ledger.SeedStart, before *View) *generation {
	pos := ledger.Position{ParticipantID: start.ParticipantID, Offset: start.Offset, Filter: start.Filter}
	g := &generation{edit: emptyView(policy, pos).edit(), start: start, twin: before, ghosts: map[string]*Entry{}}
	if before != nil && start.Reason.SameHistory() {
		g.old = before
		g.base.line = before.line
	}
	return g
}

// suspects are those of the contract ids that may be ghosts: the old view does not hold them, so history is to be asked.
func (g *generation) suspects(ids []string) []string {
	if g.old == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return g.old.contracts.get(id).first != nil
	})
}

// isGhost reports whether a contract that ended so can't be active in a snapshot of the same history. A purged one can have been
// imported again, a gone one was only not visible.
func isGhost(end Ended) bool { return end.How != Gone && end.How != Purged }

// add adds active contracts. ended is what history knows of the suspects among them. It returns the entries added: the others are
// ghosts, or older than what the snapshot already showed.
func (g *generation) add(contracts []ledger.Contract, ended map[string]Ended) []*Entry {
	added := make([]*Entry, 0, len(contracts))
	for i := range contracts {
		e := g.entry(&contracts[i])
		if g.haunted(e, ended) {
			continue
		}
		after, _, stale := g.slot(e.ContractID).activated(e)
		if stale {
			continue
		}
		g.setSlot(e.ContractID, after)
		added = append(added, e)
	}
	return added
}

// addInFlight keeps contracts in flight until all active ones are known.
func (g *generation) addInFlight(flying []ledger.InFlight) { g.flying = append(g.flying, flying...) }

// land settles which contracts are in flight: those of which nothing with the flight's reassignment counter or a greater one is
// there. It returns the entries added.
func (g *generation) land(ended map[string]Ended) []*Entry {
	slices.SortStableFunc(g.flying, func(a, b ledger.InFlight) int {
		return cmp.Or(
			strings.Compare(a.Contract.ContractID, b.Contract.ContractID),
			cmp.Compare(b.ReassignmentCounter, a.ReassignmentCounter),
			strings.Compare(a.Source, b.Source),
		)
	})
	var added []*Entry
	for i := range g.flying {
		f := &g.flying[i]
		e := g.entry(&f.Contract)
		e.InFlight, e.Target, e.ReassignmentCounter = true, f.Target, f.ReassignmentCounter
		e.SynchronizerID = f.Source
		if g.haunted(e, ended) {
			continue
		}
		now := g.slot(e.ContractID)
		if now.first != nil && now.first.ReassignmentCounter >= e.ReassignmentCounter {
			continue
		}
		g.setSlot(e.ContractID, now.with(e))
		added = append(added, e)
	}
	return added
}

// haunted keeps the entry as a ghost if history knows that it ended.
func (g *generation) haunted(e *Entry, ended map[string]Ended) bool {
	end, known := ended[e.ContractID]
	if !known || !isGhost(end) {
		return false
	}
	if other := g.ghosts[e.ContractID]; other == nil || counts(e, other) {
		g.ghosts[e.ContractID] = e
	}
	return true
}

// entry is the entry of a contract in the snapshot.
func (g *generation) entry(c *ledger.Contract) *Entry {
	e := g.base.texts.entry(c, g.base.policy)
	if g.twin == nil {
		return e
	}
	// A contract never changes: where the old view has the same blob, blob and payload are shared, so that two generations
	// together need little more memory than one.
	if twin := g.twin.contracts.get(c.ContractID).first; twin != nil && twin.BlobCheck == ledger.BlobVerified && e.BlobCheck == ledger.BlobVerified && bytes.Equal(twin.Blob, e.Blob) {
		e.Blob, e.Payload = twin.Blob, twin.Payload
	}
	return e
}

// finish gives the new view and what the change of generation adds to the store.
func (g *generation) finish() (*View, SeedEnd) {
	var end SeedEnd
	if g.old != nil {
		end.Ended = g.gone()
		g.remember()
	}
	pos := g.base.pos
	pos.UpdateOffset, pos.UpdateID, pos.RecordTime = g.anchor.Offset, g.anchor.UpdateID, g.anchor.RecordTime
	next := g.view(pos)
	for _, e := range g.ghosts {
		next.ghosts = append(next.ghosts, e)
	}
	slices.SortFunc(next.ghosts, func(a, b *Entry) int { return strings.Compare(a.ContractID, b.ContractID) })
	end.Position, end.Ghosts, end.KnownScopes = pos, next.ghosts, next.Scopes()
	for sd := range next.MissingDigests {
		end.Missing = append(end.Missing, sd)
	}
	slices.SortFunc(end.Missing, compareScopedDigests)
	return next, end
}

// gone are the ends of the old view's contracts that the snapshot lacks, by contract id.
func (g *generation) gone() []Ended {
	var gone []Ended
	g.old.contracts.each(func(s slot) bool {
		if g.slot(s.first.ContractID).first == nil {
			end := endOf(s.first)
			end.How, end.AfterOffset, end.Offset = Gone, g.old.pos.Offset, g.start.Offset
			gone = append(gone, end)
		}
		return true
	})
	return gone
}

// remember carries the old tries' scopes over, and what they held or missed.
func (g *generation) remember() {
	g.old.scopes.Root().Walk(func(_ []byte, old *scopeTrie) bool {
		g.know(old.scope)
		now := g.trie(old.scope)
		var lost []wormhole.Digest
		old.missing.each(func(d wormhole.Digest) bool {
			if !now.nodes.holds(d) {
				lost = append(lost, d)
			}
			return true
		})
		old.nodes.each(func(e *Entry) bool {
			node := nodeOf(e)
			if same := now.nodes.get(node.Prefix.String(), e.ContractID); same != nil {
				return true
			}
			for d := range node.Consumed.All() {
				if !now.nodes.holds(d) {
					lost = append(lost, d)
				}
			}
			return true
		})
		g.addMissing(old.scope, lost)
		return false
	})
}

// Rebuild makes a view from what a store holds. The policy may have changed since: classes are decided anew. Scopes of
// operators that are no longer accepted are forgotten.
type Rebuild struct {
	ed      *edit
	changed []*Entry
}

// NewRebuild begins a rebuild.
func NewRebuild(policy Policy) *Rebuild {
	return &Rebuild{ed: emptyView(policy, ledger.Position{}).edit()}
}

// Add adds an entry. The rebuild keeps it: the caller must not change it any more.
func (r *Rebuild) Add(e *Entry) {
	if class := r.ed.base.policy.Classify(&e.Contract); class != e.Class {
		e.Class = class
		r.changed = append(r.changed, e)
	}
	r.ed.base.texts.intern(e)
	r.ed.setSlot(e.ContractID, r.ed.slot(e.ContractID).with(e))
}

// View is the view, given what was loaded besides the entries. Changed are the entries whose class is now another than
// was stored.
func (r *Rebuild) View(loaded Loaded) (v *View, changed []*Entry) {
	accepted := func(s Scope) bool {
		operators := r.ed.base.policy.Operators
		return len(operators) == 0 || slices.Contains(operators, s.Operator)
	}
	for _, scope := range loaded.KnownScopes {
		if accepted(scope) {
			r.ed.know(scope)
		}
	}
	byScope := map[Scope][]wormhole.Digest{}
	for _, sd := range loaded.Missing {
		if accepted(sd.Scope) {
			byScope[sd.Scope] = append(byScope[sd.Scope], sd.Digest)
		}
	}
	for scope, digests := range byScope {
		r.ed.addMissing(scope, digests)
	}
	v = r.ed.view(loaded.Position)
	v.ghosts = slices.SortedFunc(slices.Values(loaded.Ghosts), func(a, b *Entry) int { return strings.Compare(a.ContractID, b.ContractID) })
	return v, r.changed
}

// Follow gives the view after a delta that another process computed and stored. The error wraps ledger.ErrNotNext where the delta
// does not continue from the view.
func (v *View) Follow(d Delta) (*View, error) {
	if !samePlace(d.From, v.pos) {
		return nil, notNext("following a delta", d.From, v.pos)
	}
	ed := v.edit()
	for _, key := range d.Remove {
		ed.setSlot(key.ContractID, ed.slot(key.ContractID).filter(func(e *Entry) bool { return e.SynchronizerID != key.SynchronizerID }))
	}
	for _, e := range d.Put {
		ed.setSlot(e.ContractID, ed.slot(e.ContractID).with(e))
	}
	for _, scope := range d.Scopes {
		ed.know(scope)
	}
	for _, sd := range d.MissingAdd {
		ed.addMissing(sd.Scope, []wormhole.Digest{sd.Digest})
	}
	for _, sd := range d.MissingRemove {
		ed.removeMissing(sd.Scope, []wormhole.Digest{sd.Digest})
	}
	return ed.view(d.To), nil
}
