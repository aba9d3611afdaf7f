package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	adminapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// participant is a scripted Ledger API v2 server: it keeps a list of updates, serves snapshots, ranges and tails of it as a
// participant does, and does whatever a test's hooks say instead.
type participant struct {
	ledgerapi.UnimplementedVersionServiceServer
	ledgerapi.UnimplementedStateServiceServer
	ledgerapi.UnimplementedUpdateServiceServer
	adminapi.UnimplementedPartyManagementServiceServer

	// The hooks are called before the default answer; where they return errDefault (the others: nil) that is given. n counts their calls
	// from 1. A tail has no end, a check is an empty range, any other range is a range.
	onTail     func(n int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error
	onCheck    func(n int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error
	onRange    func(n int, r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error
	onSnapshot func(n int, r *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer) error
	onEnd      func(ctx context.Context, n int) error
	onID       func(ctx context.Context, n int) error

	mu      sync.Mutex
	id      string
	pruned  int64
	end     int64
	log     []*ledgerapi.GetUpdatesResponse
	more    chan struct{} // closed and replaced at each change
	counts  map[string]int
	lacking []string // qualified names of templates that the package lacks
	noTail  bool     // tails are silent
	begins  []int64  // begin offsets of the tails

	unreachable bool
	conns       []net.Conn
}

// errDefault asks for the default answer.
var errDefault = status.Error(codes.Code(100), "default")

func newParticipant() *participant {
	return &participant{id: "participant::1220aa", more: make(chan struct{}), counts: make(map[string]int)}
}

// serve starts the participant and returns a connection to it; both end with the test.
func (p *participant) serve(t testing.TB, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), p.inMemory(t)}, options...)
	conn, err := grpc.NewClient("passthrough:///participant", options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// inMemory starts the participant and returns how to dial it.
func (p *participant) inMemory(t testing.TB, options ...grpc.ServerOption) grpc.DialOption {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(options...)
	ledgerapi.RegisterVersionServiceServer(server, p)
	ledgerapi.RegisterStateServiceServer(server, p)
	ledgerapi.RegisterUpdateServiceServer(server, p)
	adminapi.RegisterPartyManagementServiceServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		p.mu.Lock()
		unreachable := p.unreachable
		p.mu.Unlock()
		if unreachable {
			return nil, errors.New("connection refused")
		}
		conn, err := listener.DialContext(ctx)
		if err == nil {
			p.mu.Lock()
			p.conns = append(p.conns, conn)
			p.mu.Unlock()
		}
		return conn, err
	})
}

// vanish cuts all connections and refuses new ones.
func (p *participant) vanish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreachable = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *participant) count(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what]++
	return p.counts[what]
}

// counted is how often something was asked.
func (p *participant) counted(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[what]
}

// get reads a hook, which a test may change (by change) while the participant serves.
func get[T any](p *participant, hook *T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *hook
}

// change changes the participant's state and wakes its tails.
func (p *participant) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.more)
	p.more = make(chan struct{})
}

// add appends updates; ledger end moves two past the last, as a participant's does.
func (p *participant) add(updates ...*ledgerapi.GetUpdatesResponse) {
	p.change(func() {
		for _, u := range updates {
			p.log = append(p.log, u)
			p.end = max(p.end, offsetOf(u)+2)
		}
	})
}

func offsetOf(r *ledgerapi.GetUpdatesResponse) int64 {
	switch u := r.GetUpdate().(type) {
	case *ledgerapi.GetUpdatesResponse_Transaction:
		return u.Transaction.GetOffset()
	case *ledgerapi.GetUpdatesResponse_Reassignment:
		return u.Reassignment.GetOffset()
	case *ledgerapi.GetUpdatesResponse_TopologyTransaction:
		return u.TopologyTransaction.GetOffset()
	case *ledgerapi.GetUpdatesResponse_OffsetCheckpoint:
		return u.OffsetCheckpoint.GetOffset()
	}
	return 0
}

func (p *participant) GetLedgerApiVersion(
	context.Context, *ledgerapi.GetLedgerApiVersionRequest,
) (*ledgerapi.GetLedgerApiVersionResponse, error) {
	return &ledgerapi.GetLedgerApiVersionResponse{Version: "3.5.10"}, nil
}

func (p *participant) GetParticipantId(ctx context.Context, _ *adminapi.GetParticipantIdRequest) (*adminapi.GetParticipantIdResponse, error) {
	n := p.count("id")
	if hook := get(p, &p.onID); hook != nil {
		if err := hook(ctx, n); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &adminapi.GetParticipantIdResponse{ParticipantId: p.id}, nil
}

func (p *participant) GetLedgerEnd(ctx context.Context, _ *ledgerapi.GetLedgerEndRequest) (*ledgerapi.GetLedgerEndResponse, error) {
	n := p.count("end")
	if hook := get(p, &p.onEnd); hook != nil {
		if err := hook(ctx, n); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &ledgerapi.GetLedgerEndResponse{Offset: p.end}, nil
}

func (p *participant) GetLatestPrunedOffsets(
	context.Context, *ledgerapi.GetLatestPrunedOffsetsRequest,
) (*ledgerapi.GetLatestPrunedOffsetsResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &ledgerapi.GetLatestPrunedOffsetsResponse{ParticipantPrunedUpToInclusive: p.pruned}, nil
}

func (p *participant) GetConnectedSynchronizers(
	context.Context, *ledgerapi.GetConnectedSynchronizersRequest,
) (*ledgerapi.GetConnectedSynchronizersResponse, error) {
	return &ledgerapi.GetConnectedSynchronizersResponse{
		ConnectedSynchronizers: []*ledgerapi.GetConnectedSynchronizersResponse_ConnectedSynchronizer{{SynchronizerId: synchronizer}},
	}, nil
}

func (p *participant) GetUpdateByOffset(_ context.Context, r *ledgerapi.GetUpdateByOffsetRequest) (*ledgerapi.GetUpdateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.log {
		if tx := u.GetTransaction(); tx.GetOffset() == r.Offset && tx.GetOffset() > p.pruned {
			return &ledgerapi.GetUpdateResponse{Update: &ledgerapi.GetUpdateResponse_Transaction{Transaction: tx}}, nil
		}
	}
	return nil, apiError(codes.NotFound, "UPDATE_NOT_FOUND", -1)
}

func (p *participant) checkFilter(f *ledgerapi.EventFormat) error {
	all := []*ledgerapi.Filters{f.GetFiltersForAnyParty()}
	for _, filters := range f.GetFiltersByParty() {
		all = append(all, filters)
	}
	for _, filters := range all {
		for _, c := range filters.GetCumulative() {
			id := c.GetTemplateFilter().GetTemplateId()
			if id.GetPackageId() != "#wormhole-core" {
				return apiError(codes.NotFound, "PACKAGE_NAMES_NOT_FOUND", -1)
			}
			if slices.Contains(p.lacking, id.GetModuleName()+":"+id.GetEntityName()) {
				return apiError(codes.NotFound, "NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME", -1)
			}
		}
	}
	return nil
}

func (p *participant) GetActiveContracts(
	r *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer,
) error {
	n := p.count("snapshot")
	if hook := get(p, &p.onSnapshot); hook != nil {
		if err := hook(n, r, s); status.Code(err) != status.Code(errDefault) {
			return err
		}
	}
	p.mu.Lock()
	err := p.checkFilter(r.EventFormat)
	if r.ActiveAtOffset > p.end {
		err = apiError(codes.OutOfRange, "OFFSET_AFTER_LEDGER_END", time.Second)
	}
	active := p.activeAt(r.ActiveAtOffset)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	for _, c := range active {
		if err := s.Send(&ledgerapi.GetActiveContractsResponse{
			ContractEntry: &ledgerapi.GetActiveContractsResponse_ActiveContract{ActiveContract: &ledgerapi.ActiveContract{
				CreatedEvent: c, SynchronizerId: synchronizer,
			}},
		}); err != nil {
			return err
		}
	}
	return nil
}

// activeAt replays the transactions up to an offset.
func (p *participant) activeAt(at int64) []*ledgerapi.CreatedEvent {
	var active []*ledgerapi.CreatedEvent
	for _, u := range p.log {
		if offsetOf(u) > at {
			break
		}
		for _, e := range u.GetTransaction().GetEvents() {
			if c := e.GetCreated(); c.GetAcsDelta() {
				active = append(active, c)
			}
			if a := e.GetArchived(); a != nil {
				active = slices.DeleteFunc(active, func(c *ledgerapi.CreatedEvent) bool { return c.ContractId == a.ContractId })
			}
		}
	}
	return active
}

func (p *participant) GetUpdates(r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
	kind, hook := "tail", get(p, &p.onTail)
	switch {
	case r.EndInclusive != nil && r.GetEndInclusive() == r.BeginExclusive:
		kind, hook = "check", get(p, &p.onCheck)
	case r.EndInclusive != nil:
		kind, hook = "range", get(p, &p.onRange)
	}
	n := p.count(kind)
	if kind == "tail" {
		p.mu.Lock()
		p.begins = append(p.begins, r.BeginExclusive)
		p.mu.Unlock()
	}
	if hook != nil {
		if err := hook(n, r, s); status.Code(err) != status.Code(errDefault) {
			return err
		}
	}
	p.mu.Lock()
	err := p.checkFilter(r.GetUpdateFormat().GetIncludeReassignments())
	switch {
	case r.BeginExclusive > p.end || r.GetEndInclusive() > p.end:
		err = apiError(codes.OutOfRange, "OFFSET_AFTER_LEDGER_END", time.Second)
	case r.BeginExclusive < p.pruned:
		err = apiError(codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED", -1)
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return p.stream(r, s)
}

// stream sends the updates of the range, or from its beginning on for ever.
func (p *participant) stream(r *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
	last := r.BeginExclusive
	for {
		p.mu.Lock()
		log, more, silent := p.log, p.more, p.noTail && r.EndInclusive == nil
		p.mu.Unlock()
		for _, u := range log {
			at := offsetOf(u)
			if at <= last || silent || (r.EndInclusive != nil && (at > r.GetEndInclusive() || u.GetOffsetCheckpoint() != nil)) {
				continue
			}
			if err := s.Send(u); err != nil {
				return err
			}
			last = at
		}
		if r.EndInclusive != nil {
			return nil
		}
		select {
		case <-more:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// apiError is an error as a participant gives it; a negative retry means no RetryInfo.
func apiError(code codes.Code, id string, retry time.Duration) error {
	details := []protoadapt.MessageV1{}
	if id != "" {
		details = append(details, protoadapt.MessageV1Of(&errdetails.ErrorInfo{Reason: id, Metadata: map[string]string{"participant": "'sandbox'"}}))
	}
	if retry >= 0 {
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)}))
	}
	st, err := status.New(code, id+": a text that nobody may rely on").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

const (
	synchronizer = "synchronizer-1::1220bb"
	operator     = "operator::1220aa"
	consumer     = "consumer::1220aa"
	packageID    = "17149afb5a99ea8476da0bde5e308f1518b47ee1accfd54a8de2f0434938df7a"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func tx(offset int64, events ...*ledgerapi.Event) *ledgerapi.GetUpdatesResponse {
	return &ledgerapi.GetUpdatesResponse{Update: &ledgerapi.GetUpdatesResponse_Transaction{Transaction: &ledgerapi.Transaction{
		Offset: offset, UpdateId: fmt.Sprintf("1220%08x", offset), SynchronizerId: synchronizer,
		RecordTime: timestamppb.New(epoch.Add(time.Duration(offset) * time.Second)), Events: events,
	}}}
}

func checkpointAt(offset int64) *ledgerapi.GetUpdatesResponse {
	return &ledgerapi.GetUpdatesResponse{Update: &ledgerapi.GetUpdatesResponse_OffsetCheckpoint{
		OffsetCheckpoint: &ledgerapi.OffsetCheckpoint{Offset: offset},
	}}
}

func topologyAt(offset int64, events ...*ledgerapi.TopologyEvent) *ledgerapi.GetUpdatesResponse {
	return &ledgerapi.GetUpdatesResponse{Update: &ledgerapi.GetUpdatesResponse_TopologyTransaction{
		TopologyTransaction: &ledgerapi.TopologyTransaction{
			Offset: offset, UpdateId: fmt.Sprintf("1220%08x", offset), SynchronizerId: synchronizer, Events: events,
		},
	}}
}

func text(s string) *ledgerapi.Value {
	return &ledgerapi.Value{Sum: &ledgerapi.Value_Text{Text: s}}
}

func partyValue(s string) *ledgerapi.Value {
	return &ledgerapi.Value{Sum: &ledgerapi.Value_Party{Party: s}}
}

// nodeEvent is a created event of a replay node; its blob is no real one.
func nodeEvent(cid, prefix string) *ledgerapi.CreatedEvent {
	field := func(label string, v *ledgerapi.Value) *ledgerapi.RecordField {
		return &ledgerapi.RecordField{Label: label, Value: v}
	}
	return &ledgerapi.CreatedEvent{
		ContractId: cid, PackageName: "wormhole-core", AcsDelta: true, CreatedEventBlob: []byte("no real blob"), Offset: 1,
		TemplateId:  &ledgerapi.Identifier{PackageId: packageID, ModuleName: "Wormhole.Core.Replay", EntityName: "ReplayNode"},
		Signatories: []string{consumer, operator}, CreatedAt: timestamppb.New(epoch),
		CreateArguments: &ledgerapi.Record{Fields: []*ledgerapi.RecordField{
			field("consumer", partyValue(consumer)),
			field("operator", partyValue(operator)),
			field("prefix", text(prefix)),
			field("splitThreshold", &ledgerapi.Value{Sum: &ledgerapi.Value_Int64{Int64: 128}}),
			field("consumed", &ledgerapi.Value{Sum: &ledgerapi.Value_Record{Record: &ledgerapi.Record{Fields: []*ledgerapi.RecordField{
				field("map", &ledgerapi.Value{Sum: &ledgerapi.Value_GenMap{GenMap: &ledgerapi.GenMap{}}}),
			}}}}),
		}},
	}
}

func create(cid string) *ledgerapi.Event {
	return &ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: nodeEvent(cid, "")}}
}

func archive(cid string) *ledgerapi.Event {
	return &ledgerapi.Event{Event: &ledgerapi.Event_Archived{Archived: &ledgerapi.ArchivedEvent{
		ContractId: cid, PackageName: "wormhole-core",
		TemplateId: &ledgerapi.Identifier{PackageId: packageID, ModuleName: "Wormhole.Core.Replay", EntityName: "ReplayNode"},
	}}}
}

// cid is the nth contract id.
func cid(n int) string { return fmt.Sprintf("00%08x", n) }
