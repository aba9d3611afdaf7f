package ledgersim

import (
	"time"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The truth: what a test or the demo compares answers with. All of it is told at an offset, and holds for every offset from the last
// pruning on.

// LedgerEnd is the present ledger end.
func (s *Sim) LedgerEnd() (end int64) {
	s.read(func(l *state) { end = l.end })
	return end
}

// ParticipantID is the present participant's id.
func (s *Sim) ParticipantID() (id string) {
	s.read(func(l *state) { id = l.participant })
	return id
}

// Synchronizers are the ids of the synchronizers, in the order of their aliases.
func (s *Sim) Synchronizers() (ids []string) {
	s.read(func(l *state) {
		for _, sync := range l.synchronizers {
			ids = append(ids, sync.id)
		}
	})
	return ids
}

// Active are the contracts of the served templates that are active at the offset, one entry per synchronizer, in the order of their
// activation.
func (s *Sim) Active(at int64) []ledger.Contract {
	var active []*activation
	s.read(func(l *state) {
		for _, a := range l.activations {
			if a.activeAt(at) && a.contract.payload != nil {
				active = append(active, a)
			}
		}
	})
	return contracts(active)
}

// InFlight are the contracts of the served templates that are between two synchronizers at the offset.
func (s *Sim) InFlight(at int64) []ledger.InFlight {
	var moving []*reassignment
	s.read(func(l *state) { moving = l.inFlightAt(at) })
	var out []ledger.InFlight
	for _, r := range moving {
		if r.activation.contract.payload != nil {
			out = append(out, ledger.InFlight{
				Contract: r.activation.asContract(), Source: r.source, Target: r.target, ReassignmentCounter: r.counter,
			})
		}
	}
	return out
}

// ActiveAt are the activations of one contract that hold at the offset: none, or one per synchronizer.
func (s *Sim) ActiveAt(contractID string, at int64) []ledger.Contract {
	var active []*activation
	s.read(func(l *state) {
		for _, a := range l.byContract[contractID] {
			if a.activeAt(at) {
				active = append(active, a)
			}
		}
	})
	return contracts(active)
}

// Scope names a trie.
type Scope struct {
	Consumer, Operator string
	Namespace          wormhole.Namespace
}

// Covering are the replay nodes of the trie that cover the digest and are active at the offset: one in a sound trie.
func (s *Sim) Covering(scope Scope, digest wormhole.Digest, at int64) []ledger.Contract {
	var active []*activation
	s.read(func(l *state) {
		for _, a := range l.byScope[scope] {
			if node, ok := a.contract.payload.(*wormhole.ReplayNode); ok && a.activeAt(at) && node.Prefix.Covers(digest) {
				active = append(active, a)
			}
		}
	})
	return contracts(active)
}

// Consumption is a consume that was committed.
type Consumption struct {
	Offset   int64
	UpdateID string
}

// Consumed are the consumes of the digest in the trie up to the offset, in order; more than one where a trie lost a digest or has a
// fork. Digests that were in generated or created nodes from the start are not among them.
func (s *Sim) Consumed(scope Scope, digest wormhole.Digest, at int64) []Consumption {
	var out []Consumption
	s.read(func(l *state) {
		for _, c := range l.consumed[consumeKey{scope, digest}] {
			if c.Offset <= at {
				out = append(out, c)
			}
		}
	})
	return out
}

// Changes are the updates with offsets in (after, through] as a reader of all parties gets them, reduced to the events of served
// templates; updates without any are left out.
func (s *Sim) Changes(after, through int64) []ledger.Update {
	var updates []*update
	s.read(func(l *state) { updates = l.updatesAfter(after, through) })
	var out []ledger.Update
	for _, u := range updates {
		if changed := u.asUpdate(); len(changed.Events) > 0 {
			out = append(out, changed)
		}
	}
	return out
}

func contracts(active []*activation) []ledger.Contract {
	out := make([]ledger.Contract, 0, len(active))
	for _, a := range active {
		out = append(out, a.asContract())
	}
	return out
}

// asContract is the contract as its activation shows it.
func (a *activation) asContract() ledger.Contract {
	c := a.contract
	return ledger.Contract{
		ContractID: c.id, TemplateID: c.template, PackageName: c.pkgName, SynchronizerID: a.synchronizer, ReassignmentCounter: a.counter,
		Blob: c.eventBlob(), BlobCheck: ledger.BlobVerified, Signatories: c.signatories, Observers: c.observers, CreatedAt: c.createdAt,
		Offset: a.from, UpdateID: a.update.id, RecordTime: a.update.recordTime, Payload: c.payload,
	}
}

func (u *update) asUpdate() ledger.Update {
	out := ledger.Update{Offset: u.offset, UpdateID: u.id, RecordTime: u.recordTime, SynchronizerID: u.synchronizer}
	for _, n := range u.nodes {
		switch {
		case n.transient || n.contract.payload == nil:
		case n.kind == createNode:
			a := &activation{contract: n.contract, synchronizer: u.synchronizer, from: u.offset, update: u}
			c := a.asContract()
			out.Events = append(out.Events, ledger.Event{Kind: ledger.Created, ContractID: c.ContractID, TemplateID: c.TemplateID, Contract: &c})
		case n.kind == exerciseNode && n.consuming:
			out.Events = append(out.Events, ledger.Event{Kind: ledger.Archived, ContractID: n.contract.id, TemplateID: n.template})
		}
	}
	for _, m := range u.moves {
		r := m.reassignment
		if r.activation.contract.payload == nil {
			continue
		}
		e := ledger.Event{
			Kind: ledger.Unassigned, ContractID: r.activation.contract.id, TemplateID: r.activation.contract.template,
			Source: r.source, Target: r.target, ReassignmentCounter: r.counter,
		}
		if m.assigned != nil {
			c := m.assigned.asContract()
			e.Kind, e.Contract = ledger.Assigned, &c
		}
		out.Events = append(out.Events, e)
	}
	return out
}

// consumeKey is what consumes are kept by.
type consumeKey struct {
	scope  Scope
	digest wormhole.Digest
}

// scope is the trie of a replay node.
func (c *contract) scope() (Scope, bool) {
	n, ok := c.payload.(*wormhole.ReplayNode)
	if !ok {
		return Scope{}, false
	}
	return Scope{Consumer: n.Consumer, Operator: n.Operator, Namespace: n.Namespace}, true
}

// AllocateParty makes a party as the admin call does, and returns its id; a party of that name that exists already is returned.
func (s *Sim) AllocateParty(hint string) (id string) {
	s.change(func(l *state, now time.Time) {
		if id = l.partyCalled(hint); id == "" {
			for _, sync := range l.synchronizers {
				id, _ = l.allocateParty(hint, sync.id, now)
			}
		}
	})
	return id
}
