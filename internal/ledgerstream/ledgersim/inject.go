package ledgersim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/rawgrpc"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Updates that a test puts into the ledger without a command: such as no participant should send, such as a newer one might, and those
// that an operator's repairs make.

// Injection is a kind of update that no command makes.
type Injection uint8

const (
	// BrokenBytes is a message that is no protobuf.
	BrokenBytes Injection = iota + 1
	// UnknownUpdate is an update of a kind that the stubs do not know.
	UnknownUpdate
	// UnknownEvent is a transaction with one event of a kind that the stubs do not know.
	UnknownEvent
	// EmptyTransaction is a transaction without events.
	EmptyTransaction
	// WrongShape is a transaction that creates a ReplayNode whose arguments are of no known version.
	WrongShape
	// WrongBlob is a transaction that creates a ReplayNode whose blob has another content.
	WrongBlob
	// MissingBlob is a transaction that creates a ReplayNode without the blob that was asked for.
	MissingBlob
	// MissingArguments is a transaction that creates a ReplayNode without arguments.
	MissingArguments
)

// injection is what is sent in the place of an update; build makes it for those who ask for transactions.
type injection struct {
	build func(u *update) any
}

func (f *updateFormat) injected(u *update) any {
	if f.transactions == nil {
		return nil
	}
	return u.injected.build(u)
}

// unknownField is the number of a field that no version of the API has.
const unknownField = 1000

func unknownBytes() []byte {
	return protowire.AppendString(protowire.AppendTag(nil, unknownField, protowire.BytesType), "from the future")
}

// Inject puts an update into the ledger that no command makes, and returns its offset. All who read transactions get it, whatever they
// filter by. The contracts in it do not exist.
func (s *Sim) Inject(kind Injection) int64 {
	return s.inject(func(u *update) any {
		switch kind {
		case BrokenBytes:
			return &rawgrpc.Message{Bytes: []byte{0x0a, 0xff, 0x01}}
		case UnknownUpdate:
			m := &v2.GetUpdatesResponse{}
			m.ProtoReflect().SetUnknown(unknownBytes())
			return m
		}
		t := transactionHead(u)
		switch kind {
		case UnknownEvent:
			e := &v2.Event{}
			e.ProtoReflect().SetUnknown(unknownBytes())
			t.Events = []*v2.Event{e}
		case WrongShape, WrongBlob, MissingBlob, MissingArguments:
			t.Events = []*v2.Event{{Event: &v2.Event_Created{Created: s.damaged(kind, u)}}}
		}
		return &v2.GetUpdatesResponse{Update: &v2.GetUpdatesResponse_Transaction{Transaction: t}}
	})
}

// InjectOversized puts a transaction without events into the ledger whose message is at least so many bytes long.
func (s *Sim) InjectOversized(bytes int) int64 {
	return s.inject(func(u *update) any {
		t := transactionHead(u)
		t.WorkflowId = strings.Repeat("x", bytes)
		return &v2.GetUpdatesResponse{Update: &v2.GetUpdatesResponse_Transaction{Transaction: t}}
	})
}

// Mend makes a harmless update, which nobody sees, of what was injected at the offset.
func (s *Sim) Mend(offset int64) {
	s.change(func(l *state, _ time.Time) {
		at := slices.IndexFunc(l.updates, func(u *update) bool { return u.offset == offset && u.kind == injectedUpdate })
		if at < 0 {
			return
		}
		// Readers hold the old list; it must not change under them.
		l.updates = slices.Clone(l.updates)
		mended := *l.updates[at]
		mended.injected = &injection{build: func(*update) any { return nil }}
		l.updates[at] = &mended
	})
}

func (s *Sim) inject(build func(u *update) any) (offset int64) {
	s.change(func(l *state, now time.Time) {
		sync := l.synchronizers[0].id
		u := &update{
			kind: injectedUpdate, synchronizer: sync, recordTime: l.recordTime(sync, now), effectiveAt: now.UTC().Truncate(time.Microsecond),
			injected: &injection{build: build},
		}
		l.append(u)
		offset = u.offset
	})
	return offset
}

// damaged is a created event of a ReplayNode that is wrong in one way. It is made anew for every reader, from the update's id.
func (s *Sim) damaged(kind Injection, u *update) *v2.CreatedEvent {
	scratch := newLedger("scratch::1220", nil, 1, 0)
	scratch.packages.add(WormholeCore010, true)
	t := scratch.packages.byID[WormholeCore010.ID].templates[wormhole.ReplayNodeTemplate.QualifiedName()]
	_, fingerprint, _ := strings.Cut(s.ParticipantID(), "::")
	node := &wormhole.ReplayNode{Consumer: "damaged::" + fingerprint, Operator: "damaged::" + fingerprint, SplitThreshold: 128}
	c, err := scratch.newModelContract(t, node, u.effectiveAt)
	if err != nil {
		return nil
	}
	f := &eventFormat{verbose: true}
	e := f.created(c, u.offset, 0, c.signatories, true)
	switch kind {
	case WrongShape:
		e.CreateArguments.Fields = e.GetCreateArguments().GetFields()[:1]
	case MissingArguments:
		e.CreateArguments = nil
	case MissingBlob:
		e.CreatedEventBlob = nil
	case WrongBlob:
		node.SplitThreshold = 64
		if other, err := scratch.newModelContract(t, node, u.effectiveAt); err == nil {
			e.CreatedEventBlob = other.blob
		}
	}
	return e
}

// newModelContract makes a contract of a payload.
func (l *state) newModelContract(t *template, p wormhole.Payload, createdAt time.Time) (*contract, error) {
	arg, err := conform(wormhole.Encode(p), t.typ)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", t.name.QualifiedName(), err)
	}
	signatories, observers := t.stakeholders(arg.(damlvalue.Record))
	return l.newContract(t, arg.(damlvalue.Record), signatories, observers, createdAt)
}

// ImportMode is how a participant shows contracts that an operator imported.
type ImportMode uint8

const (
	// ImportAsTransaction shows them as created, with the ledger time of their real creation: the ledger time goes back.
	ImportAsTransaction ImportMode = iota
	// ImportAsAssignment shows them as assigned from the synchronizer to itself, with no unassignment before.
	ImportAsAssignment
)

// Import adds contracts that exist on the ledger since createdAt and were not known here, as when a party is replicated to the
// participant. It returns the update's offset and the contracts' ids.
func (s *Sim) Import(mode ImportMode, createdAt time.Time, payloads ...wormhole.Payload) (offset int64, ids []string, err error) {
	s.change(func(l *state, now time.Time) {
		var made []*contract
		for _, p := range payloads {
			core := l.packages.preferred(wormholeCore, nil)
			if core == nil {
				err = fmt.Errorf("import: no package %s", wormholeCore)
				return
			}
			c, failed := l.newModelContract(core.templates[wormhole.Encode(p).ID.QualifiedName()], p, createdAt)
			if failed != nil {
				err = fmt.Errorf("import: %w", failed)
				return
			}
			made = append(made, c)
			ids = append(ids, c.id)
		}
		offset = l.bring(mode, made, createdAt, now)
	})
	return offset, ids, err
}

func (l *state) bring(mode ImportMode, made []*contract, createdAt, now time.Time) int64 {
	sync := l.synchronizers[0].id
	u := &update{
		kind: transactionUpdate, synchronizer: sync, recordTime: l.recordTime(sync, now), effectiveAt: createdAt.UTC().Truncate(time.Microsecond),
		workflowID: "import-1",
	}
	if mode == ImportAsAssignment {
		u.kind = reassignmentUpdate
	}
	l.append(u)
	for i, c := range made {
		const counter = 1
		if mode == ImportAsTransaction {
			u.nodes = append(u.nodes, &node{id: int32(i), kind: createNode, contract: c, template: c.template, pkgName: c.pkgName, last: int32(i), witnesses: c.stakeholders()})
			l.activate(c, u, sync, 0, int32(i))
			continue
		}
		a := l.activate(c, u, sync, counter, int32(i))
		u.moves = append(u.moves, move{
			reassignment: &reassignment{id: "00" + l.random.multihash(), activation: a, source: sync, target: sync, counter: counter}, assigned: a,
		})
	}
	return u.offset
}

// Purge removes contracts as an operator's repair does, shown as unassigned from the synchronizer to itself; no assignment follows.
func (s *Sim) Purge(contractIDs ...string) (offset int64, err error) {
	s.change(func(l *state, now time.Time) {
		var leaving []*activation
		for _, id := range contractIDs {
			active := l.active[id]
			if len(active) == 0 || l.locked[id] || len(leaving) > 0 && active[0].synchronizer != leaving[0].synchronizer {
				err = fmt.Errorf("purge %s: not active, about to be archived, or on another synchronizer than the others", id)
				return
			}
			leaving = append(leaving, active[0])
		}
		if len(leaving) > 0 {
			offset = l.leave(leaving, leaving[0].synchronizer, "", "", "repair", now).offset
		}
	})
	return offset, err
}

// Unassign takes contracts, all on one synchronizer, on their way to another, in one update. It returns its offset and the id that Assign
// takes.
func (s *Sim) Unassign(target string, contractIDs ...string) (offset int64, id string, err error) {
	s.change(func(l *state, now time.Time) {
		var leaving []*activation
		for _, cid := range contractIDs {
			active := l.active[cid]
			if len(active) == 0 || l.locked[cid] || len(leaving) > 0 && active[0].synchronizer != leaving[0].synchronizer {
				err = fmt.Errorf("unassign %s: not active, about to be archived, or on another synchronizer than the others", cid)
				return
			}
			leaving = append(leaving, active[0])
		}
		if len(leaving) == 0 || !l.knowsSynchronizer(target) || leaving[0].synchronizer == target {
			err = fmt.Errorf("unassign: nothing to move, or %q is no other synchronizer", target)
			return
		}
		u := l.leave(leaving, target, leaving[0].contract.signatories[0], "", "", now)
		offset, id = u.offset, u.moves[0].reassignment.id
	})
	return offset, id, err
}

// Assign ends the way of what was unassigned under the id.
func (s *Sim) Assign(id string) (offset int64, err error) {
	s.change(func(l *state, now time.Time) {
		batch := l.batch(id)
		if len(batch) == 0 || batch[0].assigned != 0 {
			err = fmt.Errorf("assign: nothing is in flight under %q", id)
			return
		}
		offset = l.arrive(batch, batch[0].submitter, "", "", now).offset
	})
	return offset, err
}
