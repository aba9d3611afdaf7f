package ledgersim

import (
	"context"
	"fmt"
	"slices"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

type stateService struct {
	v2.UnimplementedStateServiceServer
	sim *Sim
}

func (s stateService) GetLedgerEnd(context.Context, *v2.GetLedgerEndRequest) (*v2.GetLedgerEndResponse, error) {
	out := &v2.GetLedgerEndResponse{}
	s.sim.read(func(l *state) { out.Offset = l.end })
	return out, nil
}

func (s stateService) GetLatestPrunedOffsets(context.Context, *v2.GetLatestPrunedOffsetsRequest) (*v2.GetLatestPrunedOffsetsResponse, error) {
	out := &v2.GetLatestPrunedOffsetsResponse{}
	s.sim.read(func(l *state) {
		out.ParticipantPrunedUpToInclusive, out.AllDivulgedContractsPrunedUpToInclusive = l.pruned, l.pruned
	})
	return out, nil
}

func (s stateService) GetConnectedSynchronizers(_ context.Context, req *v2.GetConnectedSynchronizersRequest) (*v2.GetConnectedSynchronizersResponse, error) {
	out := &v2.GetConnectedSynchronizersResponse{}
	s.sim.read(func(l *state) {
		permission := v2.ParticipantPermission_PARTICIPANT_PERMISSION_UNSPECIFIED
		if req.GetParty() != "" {
			if l.parties[req.GetParty()] == 0 {
				return
			}
			permission = v2.ParticipantPermission_PARTICIPANT_PERMISSION_SUBMISSION
		}
		for _, sync := range l.synchronizers {
			out.ConnectedSynchronizers = append(out.ConnectedSynchronizers, &v2.GetConnectedSynchronizersResponse_ConnectedSynchronizer{
				SynchronizerAlias: sync.alias, SynchronizerId: sync.id, Permission: permission,
			})
		}
	})
	return out, nil
}

// snapshot is what GetActiveContracts reads in one step under the lock.
type snapshot struct {
	active   []*activation
	inFlight []*reassignment
}

func (s stateService) GetActiveContracts(req *v2.GetActiveContractsRequest, stream grpc.ServerStreamingServer[v2.GetActiveContractsResponse]) error {
	snap, format, r := s.snapshot(callerOf(stream.Context()), req)
	if r != nil {
		return s.sim.asStatus(r, nil)
	}
	end := s.sim.streamEnd()
	for i, a := range snap.active {
		c := a.contract
		witnesses, blob := format.match(c.pkgName, c.template.QualifiedName(), c.stakeholders())
		if len(witnesses) == 0 {
			continue
		}
		entry := &v2.GetActiveContractsResponse{ContractEntry: &v2.GetActiveContractsResponse_ActiveContract{ActiveContract: &v2.ActiveContract{
			CreatedEvent:   format.created(c, a.from, a.nodeID, witnesses, blob),
			SynchronizerId: a.synchronizer, ReassignmentCounter: a.counter,
		}}}
		if err := s.send(stream, entry, i, end, req.GetActiveAtOffset()); err != nil {
			return err
		}
	}
	for i, m := range snap.inFlight {
		c := m.activation.contract
		witnesses, blob := format.match(c.pkgName, c.template.QualifiedName(), c.stakeholders())
		if len(witnesses) == 0 {
			continue
		}
		entry := &v2.GetActiveContractsResponse{ContractEntry: &v2.GetActiveContractsResponse_IncompleteUnassigned{IncompleteUnassigned: &v2.IncompleteUnassigned{
			CreatedEvent:    format.created(c, m.activation.from, m.activation.nodeID, witnesses, blob),
			UnassignedEvent: unassignedEvent(m.unassigned, m.nodeID, m, witnesses),
		}}}
		if err := s.send(stream, entry, len(snap.active)+i, end, req.GetActiveAtOffset()); err != nil {
			return err
		}
	}
	return nil
}

// snapshot validates the request in a participant's order and takes the active contracts at its offset.
func (s stateService) snapshot(from *caller, req *v2.GetActiveContractsRequest) (snap snapshot, format *eventFormat, r *rejection) {
	if req.GetEventFormat() == nil {
		return snap, nil, missingField("event_format")
	}
	if at := req.GetActiveAtOffset(); at < 0 {
		return snap, nil, negativeOffset("active_at_offset", at)
	}
	format, r = parseEventFormat(req.GetEventFormat())
	if r != nil {
		return snap, nil, r
	}
	if r = from.mayRead(format); r != nil {
		return snap, nil, r
	}
	s.sim.read(func(l *state) { snap, r = l.snapshot(req.GetActiveAtOffset(), format) })
	if r != nil {
		r.with("filters", format.describe())
	}
	return snap, format, r
}

func (l *state) snapshot(at int64, format *eventFormat) (snapshot, *rejection) {
	if at > l.end {
		return snapshot{}, afterLedgerEnd("active_at_offset offset", at, l.end)
	}
	if r := format.check(l.packages); r != nil {
		return snapshot{}, r
	}
	if at == 0 {
		return snapshot{}, nil
	}
	if at < l.pruned {
		return snapshot{}, prunedData(l.pruned, "Active contracts request at offset %d precedes pruned offset %d", at, l.pruned)
	}
	var snap snapshot
	for _, a := range l.activations {
		if a.activeAt(at) {
			snap.active = append(snap.active, a)
		}
	}
	snap.inFlight = l.inFlightAt(at)
	return snap, nil
}

// continuationField is the field of GetActiveContractsResponse for stream_continuation_token (Ledger API 3.5), which the stubs
// do not know. The token here continues nothing; it is there because a client has to live with it.
const continuationField = 5

func (s stateService) send(stream grpc.ServerStreamingServer[v2.GetActiveContractsResponse], entry *v2.GetActiveContractsResponse, i int, end *streamEnd, at int64) error {
	token := protowire.AppendTag(nil, continuationField, protowire.BytesType)
	entry.ProtoReflect().SetUnknown(protowire.AppendString(token, fmt.Sprintf("%d/%d", at, i)))
	if err := s.sim.passElement(stream.Context(), v2.StateService_GetActiveContracts_FullMethodName, end); err != nil {
		return err
	}
	// The check for pruning is made again and again while a snapshot is read.
	if i%1000 == 999 {
		var pruned int64
		s.sim.read(func(l *state) { pruned = l.pruned })
		if at < pruned {
			return s.sim.asStatus(prunedData(pruned, "Active contracts request at offset %d precedes pruned offset %d", at, pruned), nil)
		}
	}
	return stream.Send(entry)
}

// eventQueryService answers what happened to one contract.
type eventQueryService struct {
	v2.UnimplementedEventQueryServiceServer
	sim *Sim
}

func (s eventQueryService) GetEventsByContractId(ctx context.Context, req *v2.GetEventsByContractIdRequest) (*v2.GetEventsByContractIdResponse, error) {
	out, r := s.events(callerOf(ctx), req)
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return out, nil
}

func (s eventQueryService) events(c *caller, req *v2.GetEventsByContractIdRequest) (*v2.GetEventsByContractIdResponse, *rejection) {
	if err := checkContractID(req.GetContractId()); err != nil {
		return nil, invalidField("contract_id", err)
	}
	format, r := parseEventFormat(req.GetEventFormat())
	if r != nil {
		return nil, r
	}
	if r := c.mayRead(format); r != nil {
		return nil, r
	}
	var f fate
	s.sim.read(func(l *state) {
		if r = format.check(l.packages); r != nil {
			return
		}
		if known := l.contracts[req.GetContractId()]; known != nil {
			f = *known
		}
	})
	if r != nil {
		return nil, r
	}
	notFound := reject(notFound, "CONTRACT_EVENTS_NOT_FOUND", "Contract events not found, or not visible.").about("CONTRACT_ID", req.GetContractId())
	if f.contract == nil {
		return nil, notFound
	}
	of := f.contract
	witnesses, blob := format.match(of.pkgName, of.template.QualifiedName(), of.stakeholders())
	if len(witnesses) == 0 {
		return nil, notFound
	}
	// The first activation is shown, wherever the contract is by now: seen on a participant.
	out := &v2.GetEventsByContractIdResponse{Created: &v2.Created{
		CreatedEvent:   format.created(of, f.created.from, f.created.nodeID, witnesses, blob),
		SynchronizerId: f.created.synchronizer,
	}}
	if f.archivedAt != nil {
		out.Archived = &v2.Archived{ArchivedEvent: archivedEvent(f.archivedAt, f.archivedBy, slices.Clone(witnesses)), SynchronizerId: f.archivedAt.synchronizer}
	}
	return out, nil
}
