package ledgersim

import (
	"slices"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

// From the ledger's updates to the messages that a reader gets.

// update projects an update to what the format asks for; nil where that is nothing.
func (f *updateFormat) update(u *update, participant string) any {
	switch u.kind {
	case transactionUpdate:
		if t := f.transaction(u); t != nil {
			return &v2.GetUpdatesResponse{Update: &v2.GetUpdatesResponse_Transaction{Transaction: t}}
		}
	case reassignmentUpdate:
		if r := f.reassignment(u); r != nil {
			return &v2.GetUpdatesResponse{Update: &v2.GetUpdatesResponse_Reassignment{Reassignment: r}}
		}
	case topologyUpdate:
		if t := f.topologyTransaction(u, participant); t != nil {
			return &v2.GetUpdatesResponse{Update: &v2.GetUpdatesResponse_TopologyTransaction{TopologyTransaction: t}}
		}
	case injectedUpdate:
		return f.injected(u)
	}
	return nil
}

// updateResponse is the same for the calls that give one update.
func (f *updateFormat) updateResponse(u *update, participant string) *v2.GetUpdateResponse {
	switch u.kind {
	case transactionUpdate:
		if t := f.transaction(u); t != nil {
			return &v2.GetUpdateResponse{Update: &v2.GetUpdateResponse_Transaction{Transaction: t}}
		}
	case reassignmentUpdate:
		if r := f.reassignment(u); r != nil {
			return &v2.GetUpdateResponse{Update: &v2.GetUpdateResponse_Reassignment{Reassignment: r}}
		}
	case topologyUpdate:
		if t := f.topologyTransaction(u, participant); t != nil {
			return &v2.GetUpdateResponse{Update: &v2.GetUpdateResponse_TopologyTransaction{TopologyTransaction: t}}
		}
	}
	return nil
}

func (f *updateFormat) transaction(u *update) *v2.Transaction {
	if f.transactions == nil {
		return nil
	}
	t := transactionHead(u)
	for _, n := range u.nodes {
		if e := f.transactions.event(u, n, f.effects); e != nil {
			t.Events = append(t.Events, e)
		}
	}
	if len(t.GetEvents()) == 0 {
		return nil
	}
	if f.transactions.sees(u.submitters) {
		t.CommandId = u.commandID
		withTrafficCost(t, 11)
	}
	return t
}

func transactionHead(u *update) *v2.Transaction {
	return &v2.Transaction{
		UpdateId: u.id, WorkflowId: u.workflowID, EffectiveAt: timestamppb.New(u.effectiveAt), Offset: u.offset, SynchronizerId: u.synchronizer,
		TraceContext: &v2.TraceContext{Traceparent: &u.trace}, RecordTime: timestamppb.New(u.recordTime),
	}
}

// withTrafficCost sets paid_traffic_cost, which a participant tells the submitter and the stubs here do not know: clients
// must live with fields of newer protocols.
func withTrafficCost(m proto.Message, field protowire.Number) {
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), 0))
}

// event projects one node, nil if it is not asked for. The shape ACS_DELTA shows to stakeholders what changed activeness;
// LEDGER_EFFECTS shows to witnesses whatever happened.
func (f *eventFormat) event(u *update, n *node, effects bool) *v2.Event {
	if n.kind == fetchNode {
		return nil
	}
	candidates := n.contract.stakeholders()
	delta := !n.transient && (n.kind == createNode || n.consuming)
	if effects {
		candidates = n.witnesses
		delta = delta && f.sees(n.contract.stakeholders())
	} else if !delta {
		return nil
	}
	witnesses, blob := f.match(n.pkgName, n.template.QualifiedName(), candidates)
	if len(witnesses) == 0 {
		return nil
	}
	switch {
	case n.kind == createNode:
		created := f.created(n.contract, u.offset, n.id, witnesses, blob)
		created.AcsDelta = delta
		return &v2.Event{Event: &v2.Event_Created{Created: created}}
	case !effects:
		return &v2.Event{Event: &v2.Event_Archived{Archived: archivedEvent(u, n, witnesses)}}
	default:
		return &v2.Event{Event: &v2.Event_Exercised{Exercised: &v2.ExercisedEvent{
			Offset: u.offset, NodeId: n.id, ContractId: n.contract.id, TemplateId: apivalue.Identifier(n.template), Choice: n.choice,
			ChoiceArgument: apivalue.ToProto(n.arg, f.verbose), ActingParties: n.acting, Consuming: n.consuming, WitnessParties: witnesses,
			LastDescendantNodeId: n.last, ExerciseResult: apivalue.ToProto(n.result, f.verbose), PackageName: n.pkgName, AcsDelta: delta,
		}}}
	}
}

func archivedEvent(u *update, n *node, witnesses []string) *v2.ArchivedEvent {
	return &v2.ArchivedEvent{
		Offset: u.offset, NodeId: n.id, ContractId: n.contract.id, TemplateId: apivalue.Identifier(n.template),
		WitnessParties: witnesses, PackageName: n.pkgName,
	}
}

// created is a contract as an activation shows it; acs_delta is the caller's to correct.
func (f *eventFormat) created(c *contract, offset int64, nodeID int32, witnesses []string, blob bool) *v2.CreatedEvent {
	argument := c.argument()
	e := &v2.CreatedEvent{
		Offset: offset, NodeId: nodeID, ContractId: c.id, TemplateId: apivalue.Identifier(c.template),
		CreateArguments: apivalue.RecordToProto(argument, f.verbose), WitnessParties: witnesses,
		Signatories: c.signatories, Observers: c.observers, CreatedAt: timestamppb.New(c.createdAt), PackageName: c.pkgName,
		AcsDelta: true, RepresentativePackageId: c.template.PackageID,
	}
	if blob {
		e.CreatedEventBlob = c.blobOf(func() damlvalue.Record { return argument })
	}
	return e
}

func (f *updateFormat) reassignment(u *update) *v2.Reassignment {
	if f.reassignments == nil {
		return nil
	}
	r := &v2.Reassignment{
		UpdateId: u.id, WorkflowId: u.workflowID, Offset: u.offset, TraceContext: &v2.TraceContext{Traceparent: &u.trace},
		RecordTime: timestamppb.New(u.recordTime), SynchronizerId: u.synchronizer,
	}
	for i, m := range u.moves {
		if e := f.reassignments.moveEvent(u, m, int32(i)); e != nil {
			r.Events = append(r.Events, e)
		}
	}
	if len(r.GetEvents()) == 0 {
		return nil
	}
	if f.reassignments.sees(u.submitters) {
		r.CommandId = u.commandID
		withTrafficCost(r, 9)
	}
	return r
}

func (f *eventFormat) moveEvent(u *update, m move, nodeID int32) *v2.ReassignmentEvent {
	c := m.reassignment.activation.contract
	witnesses, blob := f.match(c.pkgName, c.template.QualifiedName(), c.stakeholders())
	if len(witnesses) == 0 {
		return nil
	}
	if m.assigned == nil {
		return &v2.ReassignmentEvent{Event: &v2.ReassignmentEvent_Unassigned{Unassigned: unassignedEvent(u.offset, nodeID, m.reassignment, witnesses)}}
	}
	return &v2.ReassignmentEvent{Event: &v2.ReassignmentEvent_Assigned{Assigned: &v2.AssignedEvent{
		Source: m.reassignment.source, Target: m.reassignment.target, ReassignmentId: m.reassignment.id, Submitter: m.reassignment.submitter,
		ReassignmentCounter: m.reassignment.counter, CreatedEvent: f.created(c, u.offset, nodeID, witnesses, blob),
	}}}
}

func unassignedEvent(offset int64, nodeID int32, r *reassignment, witnesses []string) *v2.UnassignedEvent {
	c := r.activation.contract
	e := &v2.UnassignedEvent{
		ReassignmentId: r.id, ContractId: c.id, TemplateId: apivalue.Identifier(c.template), Source: r.source, Target: r.target,
		Submitter: r.submitter, ReassignmentCounter: r.counter, WitnessParties: witnesses, PackageName: c.pkgName, Offset: offset, NodeId: nodeID,
	}
	if !r.exclusivity.IsZero() {
		e.AssignmentExclusivity = timestamppb.New(r.exclusivity)
	}
	return e
}

func (f *updateFormat) topologyTransaction(u *update, participant string) *v2.TopologyTransaction {
	if !f.topology {
		return nil
	}
	t := &v2.TopologyTransaction{
		UpdateId: u.id, Offset: u.offset, SynchronizerId: u.synchronizer, RecordTime: timestamppb.New(u.recordTime),
		TraceContext: &v2.TraceContext{Traceparent: &u.trace},
	}
	for _, e := range u.topology {
		if len(f.topologyParties) == 0 || slices.Contains(f.topologyParties, e.party) {
			t.Events = append(t.Events, e.message(participant))
		}
	}
	if len(t.GetEvents()) == 0 {
		return nil
	}
	return t
}

// TopologyKind is what a topology event says of a party's hosting.
type TopologyKind uint8

const (
	// TopologyAdded: the party is hosted here.
	TopologyAdded TopologyKind = iota
	// TopologyChanged: its permission changed.
	TopologyChanged
	// TopologyRevoked: it is hosted here no more.
	TopologyRevoked
	// TopologyOnboarding: it is becoming hosted here. The stubs do not know this event: it arrives without a kind.
	TopologyOnboarding
)

// onboardingField is the field of TopologyEvent for participant_authorization_onboarding (Ledger API 3.5, protocol version 35).
const onboardingField = 4

func (e topologyEvent) message(participant string) *v2.TopologyEvent {
	const permission = v2.ParticipantPermission_PARTICIPANT_PERMISSION_SUBMISSION
	switch e.kind {
	case TopologyChanged:
		return &v2.TopologyEvent{Event: &v2.TopologyEvent_ParticipantAuthorizationChanged{ParticipantAuthorizationChanged: &v2.ParticipantAuthorizationChanged{
			PartyId: e.party, ParticipantId: participant, ParticipantPermission: permission}}}
	case TopologyRevoked:
		return &v2.TopologyEvent{Event: &v2.TopologyEvent_ParticipantAuthorizationRevoked{ParticipantAuthorizationRevoked: &v2.ParticipantAuthorizationRevoked{
			PartyId: e.party, ParticipantId: participant}}}
	case TopologyOnboarding:
		body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), e.party)
		body = protowire.AppendString(protowire.AppendTag(body, 2, protowire.BytesType), participant)
		m := &v2.TopologyEvent{}
		m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, onboardingField, protowire.BytesType), body))
		return m
	default:
		return &v2.TopologyEvent{Event: &v2.TopologyEvent_ParticipantAuthorizationAdded{ParticipantAuthorizationAdded: &v2.ParticipantAuthorizationAdded{
			PartyId: e.party, ParticipantId: participant, ParticipantPermission: permission}}}
	}
}

func (c checkpoint) message() *v2.GetUpdatesResponse {
	m := &v2.OffsetCheckpoint{Offset: c.offset}
	for _, t := range c.times {
		m.SynchronizerTimes = append(m.SynchronizerTimes, &v2.SynchronizerTime{SynchronizerId: t.id, RecordTime: timestamppb.New(t.at.Truncate(time.Microsecond))})
	}
	return &v2.GetUpdatesResponse{Update: &v2.GetUpdatesResponse_OffsetCheckpoint{OffsetCheckpoint: m}}
}
