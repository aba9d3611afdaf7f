package ledgersim_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
)

// story drives one recording's calls against a simulated participant, in their order and at their times.
type story struct {
	t         *testing.T
	recording *replay.Recording
	clock     *clock
	sim       *ledgersim.Sim
	address   string
	conn      *grpc.ClientConn
	compare   *comparer
	known     *contents
	results   []result
	tails     map[int]*tailCall
	// beyond: the request that is being rewritten names offsets past the ledger end.
	beyond bool
	ctx    context.Context
}

// result is what came of one call.
type result struct {
	recording  string
	call       *replay.Call
	outOfScope string
	diffs      []string
}

// method is how a recorded method is called.
type method struct {
	request, response func() proto.Message
	streams           bool
}

func of[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](streams bool) method {
	return method{
		request:  func() proto.Message { return PReq(new(Req)) },
		response: func() proto.Message { return PResp(new(Resp)) },
		streams:  streams,
	}
}

// methods are those in scope: what the daemon, the demo and the tests call.
var methods = map[string]method{
	v2.VersionService_GetLedgerApiVersion_FullMethodName:               of[v2.GetLedgerApiVersionRequest, v2.GetLedgerApiVersionResponse](false),
	v2.StateService_GetLedgerEnd_FullMethodName:                        of[v2.GetLedgerEndRequest, v2.GetLedgerEndResponse](false),
	v2.StateService_GetLatestPrunedOffsets_FullMethodName:              of[v2.GetLatestPrunedOffsetsRequest, v2.GetLatestPrunedOffsetsResponse](false),
	v2.StateService_GetConnectedSynchronizers_FullMethodName:           of[v2.GetConnectedSynchronizersRequest, v2.GetConnectedSynchronizersResponse](false),
	v2.StateService_GetActiveContracts_FullMethodName:                  of[v2.GetActiveContractsRequest, v2.GetActiveContractsResponse](true),
	v2.UpdateService_GetUpdates_FullMethodName:                         of[v2.GetUpdatesRequest, v2.GetUpdatesResponse](true),
	v2.UpdateService_GetUpdateByOffset_FullMethodName:                  of[v2.GetUpdateByOffsetRequest, v2.GetUpdateResponse](false),
	v2.UpdateService_GetUpdateById_FullMethodName:                      of[v2.GetUpdateByIdRequest, v2.GetUpdateResponse](false),
	v2.EventQueryService_GetEventsByContractId_FullMethodName:          of[v2.GetEventsByContractIdRequest, v2.GetEventsByContractIdResponse](false),
	v2.CommandService_SubmitAndWait_FullMethodName:                     of[v2.SubmitAndWaitRequest, v2.SubmitAndWaitResponse](false),
	v2.CommandService_SubmitAndWaitForTransaction_FullMethodName:       of[v2.SubmitAndWaitForTransactionRequest, v2.SubmitAndWaitForTransactionResponse](false),
	v2.CommandService_SubmitAndWaitForReassignment_FullMethodName:      of[v2.SubmitAndWaitForReassignmentRequest, v2.SubmitAndWaitForReassignmentResponse](false),
	admin.PartyManagementService_GetParticipantId_FullMethodName:       of[admin.GetParticipantIdRequest, admin.GetParticipantIdResponse](false),
	admin.PartyManagementService_GetParties_FullMethodName:             of[admin.GetPartiesRequest, admin.GetPartiesResponse](false),
	admin.PartyManagementService_ListKnownParties_FullMethodName:       of[admin.ListKnownPartiesRequest, admin.ListKnownPartiesResponse](false),
	admin.PartyManagementService_AllocateParty_FullMethodName:          of[admin.AllocatePartyRequest, admin.AllocatePartyResponse](false),
	admin.UserManagementService_CreateUser_FullMethodName:              of[admin.CreateUserRequest, admin.CreateUserResponse](false),
	admin.UserManagementService_GetUser_FullMethodName:                 of[admin.GetUserRequest, admin.GetUserResponse](false),
	admin.UserManagementService_ListUserRights_FullMethodName:          of[admin.ListUserRightsRequest, admin.ListUserRightsResponse](false),
	admin.UserManagementService_GrantUserRights_FullMethodName:         of[admin.GrantUserRightsRequest, admin.GrantUserRightsResponse](false),
	admin.UserManagementService_RevokeUserRights_FullMethodName:        of[admin.RevokeUserRightsRequest, admin.RevokeUserRightsResponse](false),
	admin.UserManagementService_DeleteUser_FullMethodName:              of[admin.DeleteUserRequest, admin.DeleteUserResponse](false),
	admin.PackageManagementService_UploadDarFile_FullMethodName:        of[admin.UploadDarFileRequest, admin.UploadDarFileResponse](false),
	admin.PackageManagementService_ValidateDarFile_FullMethodName:      of[admin.ValidateDarFileRequest, admin.ValidateDarFileResponse](false),
	healthpb.Health_Check_FullMethodName:                               of[healthpb.HealthCheckRequest, healthpb.HealthCheckResponse](false),
	healthpb.Health_Watch_FullMethodName:                               of[healthpb.HealthCheckRequest, healthpb.HealthCheckResponse](true),
	admin.ParticipantPruningService_Prune_FullMethodName:               of[admin.PruneRequest, admin.PruneResponse](false),
	admin.PackageManagementService_UpdateVettedPackages_FullMethodName: of[admin.UpdateVettedPackagesRequest, admin.UpdateVettedPackagesResponse](false),
}

// effectOnly are driven for what they do to the ledger; their answers are not compared.
var effectOnly = map[string]string{
	admin.ParticipantPruningService_Prune_FullMethodName:               "the participant's own safety checks are not simulated",
	admin.PackageManagementService_UpdateVettedPackages_FullMethodName: "the answer lists packages of the participant",
}

const patience = 20 * time.Second

func (s *story) start(options ledgersim.Options) {
	options.Clock = s.clock
	s.sim = ledgersim.New(options)
	address, err := s.sim.StartOn(cmp.Or(s.address, "127.0.0.1:0"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = address
}

func (s *story) connect() {
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.conn = conn
}

// moment is something that happens in a story at a time.
type moment struct {
	at time.Time
	// order breaks ties: elements before ends before starts.
	order int
	do    func()
}

// run drives all calls.
func (s *story) run() {
	var moments []moment
	for _, group := range s.groups() {
		call := group[0]
		if len(group) > 1 {
			moments = append(moments, moment{call.StartedAt, 2, func() { s.race(group) }})
			continue
		}
		if !s.tailing(call) {
			moments = append(moments, moment{call.StartedAt, 2, func() { s.call(call) }})
			continue
		}
		moments = append(moments, moment{call.StartedAt, 2, func() { s.open(call) }})
		for i, response := range call.Responses {
			moments = append(moments, moment{call.StartedAt.Add(milliseconds(response.AtMS)), 0, func() { s.element(call, i) }})
		}
		moments = append(moments, moment{call.StartedAt.Add(milliseconds(call.ElapsedMS)), 1, func() { s.end(call) }})
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.order, b.order)) })
	for _, m := range moments {
		s.clock.moveTo(m.at)
		m.do()
	}
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// groups puts submissions that ran at the same time together where one of them lost to another.
func (s *story) groups() [][]*replay.Call {
	var out [][]*replay.Call
	var until time.Time
	for _, c := range s.recording.Calls {
		ends := c.StartedAt.Add(milliseconds(c.ElapsedMS))
		submits := strings.Contains(c.Method, "CommandService/Submit")
		if n := len(out); submits && n > 0 && c.StartedAt.Before(until) && strings.Contains(out[n-1][0].Method, "CommandService/Submit") {
			out[n-1] = append(out[n-1], c)
		} else {
			out = append(out, []*replay.Call{c})
			until = time.Time{}
		}
		if submits && ends.After(until) {
			until = ends
		}
	}
	return out
}

// tailing reports whether a call is a stream that goes on while other calls are made.
func (s *story) tailing(c *replay.Call) bool {
	switch c.Method {
	case healthpb.Health_Watch_FullMethodName:
		return true
	case v2.UpdateService_GetUpdates_FullMethodName:
		var r v2.GetUpdatesRequest
		return c.Request(&r) == nil && r.EndInclusive == nil
	default:
		return false
	}
}

// scope says why a call is not compared, "" if it is.
func (s *story) scope(c *replay.Call) string {
	if _, ok := methods[c.Method]; !ok {
		return "method"
	}
	if why, ok := effectOnly[c.Method]; ok {
		return why
	}
	json := string(c.RequestJSON)
	switch {
	case strings.Contains(json, `"streamContinuationToken"`), strings.Contains(json, `"descendingOrder"`):
		return "a field of the request that the stubs do not know"
	case c.Status.EndedByClient != "" && !s.tailing(c):
		return "the recorder ended the call by itself"
	case strings.Contains(c.Note, "9 KB of metadata"), strings.Contains(c.Note, "a deadline of 1 ms"):
		return "the client's own limit"
	}
	return outOfScope[fmt.Sprintf("%s %d", s.recording.Name, c.N)]
}

// call makes a call that ends before anything else is done.
func (s *story) call(c *replay.Call) {
	why := s.scope(c)
	if why == "method" {
		s.results = append(s.results, result{recording: s.recording.Name, call: c, outOfScope: "method"})
		return
	}
	if why != "" && effectOnly[c.Method] == "" {
		s.results = append(s.results, result{recording: s.recording.Name, call: c, outOfScope: why})
		return
	}
	if effectOnly[c.Method] != "" && c.Status.Code != codes.OK {
		s.results = append(s.results, result{recording: s.recording.Name, call: c, outOfScope: why})
		return
	}
	s.before(c)
	responses, err := s.invoke(c)
	s.judge(c, responses, err, why)
}

// judge compares what a call gave.
func (s *story) judge(c *replay.Call, responses []proto.Message, err error, why string) {
	m := methods[c.Method]
	path := strings.TrimPrefix(c.Method[strings.LastIndexByte(c.Method, '.')+1:], "/")
	if why == "" {
		s.compare.statusOf(path, c.Status.Err(), err)
		switch {
		case c.Capped != "":
			// Only the first responses were kept.
			responses = responses[:min(len(responses), len(c.Responses))]
		case len(c.Responses) != len(responses):
			s.compare.differ(path, "recorded %d responses, simulated %d", len(c.Responses), len(responses))
		}
		for i, simulated := range responses[:min(len(responses), len(c.Responses))] {
			recorded := m.response()
			if err := c.Responses[i].Into(recorded); err != nil {
				s.t.Fatal(err)
			}
			s.compare.message(fmt.Sprintf("%s[%d]", path, i), recorded.ProtoReflect(), simulated.ProtoReflect())
		}
	}
	s.results = append(s.results, result{recording: s.recording.Name, call: c, outOfScope: why, diffs: s.compare.take()})
}

// invoke makes the call with the recorded request in the simulation's terms.
func (s *story) invoke(c *replay.Call) ([]proto.Message, error) {
	request := s.request(c)
	ctx, cancel := context.WithTimeout(s.outgoing(c), patience)
	defer cancel()
	m := methods[c.Method]
	if !m.streams {
		response := m.response()
		if err := s.conn.Invoke(ctx, c.Method, request, response); err != nil {
			return nil, err
		}
		return []proto.Message{response}, nil
	}
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.Method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var out []proto.Message
	for {
		response := m.response()
		if err := stream.RecvMsg(response); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return out, err
		}
		out = append(out, response)
	}
}

// outgoing is the context with the token that the recorded call had.
func (s *story) outgoing(c *replay.Call) context.Context {
	token := s.token(c)
	if token == "" {
		return s.ctx
	}
	return metadata.AppendToOutgoingContext(s.ctx, "authorization", token)
}

// request is the recorded request in the simulation's terms.
func (s *story) request(c *replay.Call) proto.Message {
	s.beyond = c.Status.Code == codes.OutOfRange || c.Method == v2.UpdateService_GetUpdateByOffset_FullMethodName
	m := methods[c.Method].request()
	if err := c.Request(m); err != nil {
		s.t.Fatal(err)
	}
	s.rewrite(m.ProtoReflect())
	s.adjust(c, m)
	return m
}

// offset is the simulated offset that stands where the recorded one does. What was not past the recorded ledger end is not past the
// simulated one either, though rejections take up other numbers of offsets: how many depends on their timing.
func (s *story) offset(recorded int64) int64 {
	simulated := s.compare.translateOffset(recorded)
	if s.beyond {
		return simulated
	}
	return min(simulated, s.sim.LedgerEnd())
}

// requestOffsets are the fields of requests that hold offsets.
var requestOffsets = map[string]bool{"active_at_offset": true, "begin_exclusive": true, "end_inclusive": true, "offset": true, "prune_up_to": true}

// rewrite puts simulated ids, blobs and offsets in the place of recorded ones.
func (s *story) rewrite(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			s.rewriteMap(m, fd, v.Map())
		case fd.IsList():
			list := v.List()
			for i := range list.Len() {
				switch fd.Kind() {
				case protoreflect.MessageKind:
					s.rewrite(list.Get(i).Message())
				case protoreflect.StringKind:
					list.Set(i, protoreflect.ValueOfString(s.compare.translate(list.Get(i).String())))
				}
			}
		case fd.Kind() == protoreflect.MessageKind:
			s.rewrite(v.Message())
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString(s.compare.translate(v.String())))
		case fd.Name() == "created_event_blob":
			if blob, ok := s.compare.blobs[string(v.Bytes())]; ok {
				m.Set(fd, protoreflect.ValueOfBytes(blob))
			}
		case requestOffsets[string(fd.Name())]:
			m.Set(fd, protoreflect.ValueOfInt64(s.offset(v.Int())))
		}
		return true
	})
}

func (s *story) rewriteMap(m protoreflect.Message, fd protoreflect.FieldDescriptor, old protoreflect.Map) {
	entries := map[string]protoreflect.Value{}
	old.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		s.rewrite(v.Message())
		entries[s.compare.translate(k.String())] = v
		return true
	})
	m.Clear(fd)
	renamed := m.Mutable(fd).Map()
	for k, v := range entries {
		renamed.Set(protoreflect.ValueOfString(k).MapKey(), v)
	}
}

// race runs submissions that ran at the same time, some of which lost to others. Those that were recorded to win are made in the order of
// their ends; who lost for a contract that the winner used goes with that winner.
func (s *story) race(group []*replay.Call) {
	lost := func(c *replay.Call) bool { return c.Status.Code == codes.Aborted || c.Status.Code == codes.NotFound }
	if !slices.ContainsFunc(group, lost) {
		for _, c := range group {
			s.call(c)
		}
		return
	}
	var winners []*replay.Call
	rest := slices.Clone(group)
	for _, c := range group {
		if c.Status.Code == codes.OK {
			winners = append(winners, c)
		}
	}
	slices.SortStableFunc(winners, func(a, b *replay.Call) int {
		return a.StartedAt.Add(milliseconds(a.ElapsedMS)).Compare(b.StartedAt.Add(milliseconds(b.ElapsedMS)))
	})
	for _, winner := range winners {
		var locked, late []*replay.Call
		rest = slices.DeleteFunc(rest, func(c *replay.Call) bool {
			switch {
			case c == winner:
				return true
			case !lost(c) || !lostTo(c, winner):
				return false
			case c.Status.Code == codes.Aborted:
				locked = append(locked, c)
			default:
				late = append(late, c)
			}
			return true
		})
		s.duel(winner, locked)
		for _, c := range late {
			s.call(c)
		}
	}
	for _, c := range rest {
		s.call(c)
	}
}

// lostTo tells whether a refusal is about a contract that another submission names, or about a command id that is the other's.
func lostTo(c, other *replay.Call) bool {
	for _, d := range status.Convert(c.Status.Err()).Details() {
		if r, ok := d.(*errdetails.ResourceInfo); ok && r.GetResourceType() == "CONTRACT_ID" && strings.Contains(string(other.RequestJSON), r.GetResourceName()) {
			return true
		}
	}
	id := commandID(c)
	return id != "" && id == commandID(other)
}

func commandID(c *replay.Call) string {
	var r v2.SubmitAndWaitForTransactionRequest // of which SubmitAndWaitRequest is a part
	if c.Request(&r) != nil {
		return ""
	}
	return r.GetCommands().GetCommandId()
}

// duel makes a submission and those that lost to it: it locks its inputs and is held there until the others have had their answers.
func (s *story) duel(winner *replay.Call, losers []*replay.Call) {
	if len(losers) == 0 {
		s.call(winner)
		return
	}
	group := append([]*replay.Call{winner}, losers...)
	for _, c := range group {
		s.before(c)
	}
	release := s.sim.HoldCommits()
	type answer struct {
		responses []proto.Message
		err       error
	}
	won := make(chan answer, 1)
	go func() {
		responses, err := s.invoke(winner)
		won <- answer{responses, err}
	}()
	if err := s.sim.AwaitPending(s.ctx, 1); err != nil {
		s.t.Fatal(err)
	}
	answers := map[*replay.Call]answer{}
	for _, c := range losers {
		responses, err := s.invoke(c)
		answers[c] = answer{responses, err}
	}
	release()
	answers[winner] = <-won
	for _, c := range group {
		s.judge(c, answers[c].responses, answers[c].err, s.scope(c))
	}
}

// tailCall is an open stream.
type tailCall struct {
	cancel   context.CancelFunc
	received chan proto.Message
	ended    chan error
	diffs    []string
}

func (s *story) open(c *replay.Call) {
	if why := s.scope(c); why != "" {
		return
	}
	request := s.request(c)
	ctx, cancel := context.WithCancel(s.outgoing(c))
	t := &tailCall{cancel: cancel, received: make(chan proto.Message, 1000), ended: make(chan error, 1)}
	s.tails[c.N] = t
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.Method)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		for {
			response := methods[c.Method].response()
			if err := stream.RecvMsg(response); err != nil {
				t.ended <- err
				return
			}
			t.received <- response
		}
	}()
	// The participant must have the stream before time goes on, or it would set its timers too late.
	t.diffs = append(t.diffs, s.settle()...)
}

// settle waits until the participant has exactly the streams that are open here.
func (s *story) settle() []string {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	if err := s.sim.AwaitTails(ctx, s.openTails()); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// openTails is how many of the open streams are streams of updates that were not refused at once.
func (s *story) openTails() int {
	n := 0
	for number := range s.tails {
		if c := s.recording.Call(number); c.Method == v2.UpdateService_GetUpdates_FullMethodName && c.ElapsedMS > 1000 {
			n++
		}
	}
	return n
}

// element takes one element of an open stream: it is due now.
func (s *story) element(c *replay.Call, i int) {
	t := s.tails[c.N]
	if t == nil {
		return
	}
	s.unrecorded(c, i)
	recorded := methods[c.Method].response()
	if err := c.Responses[i].Into(recorded); err != nil {
		s.t.Fatal(err)
	}
	path := fmt.Sprintf("stream[%d]", i)
	defer func() { t.diffs = append(t.diffs, s.compare.take()...) }()
	select {
	case simulated := <-t.received:
		s.compare.message(path, recorded.ProtoReflect(), simulated.ProtoReflect())
	case err := <-t.ended:
		s.compare.differ(path, "the stream has ended: %v", err)
		t.ended <- err
	case <-time.After(patience):
		s.compare.differ(path, "nothing came, recorded was %s", clipped(fmt.Sprint(recorded)))
	}
}

// end ends an open stream, or sees it end.
func (s *story) end(c *replay.Call) {
	t := s.tails[c.N]
	if t == nil {
		s.results = append(s.results, result{recording: s.recording.Name, call: c, outOfScope: s.scope(c)})
		return
	}
	s.ending(c)
	byClient := c.Status.EndedByClient != "" || c.Status.Code == codes.DeadlineExceeded
	if byClient {
		t.cancel()
	}
	select {
	case err := <-t.ended:
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if !byClient {
			s.compare.statusOf("stream", c.Status.Err(), err)
		}
	case <-time.After(patience):
		s.compare.differ("stream", "is still open, recorded was %v", c.Status.Err())
	}
	t.cancel()
	close(t.received)
	for extra := range t.received {
		s.compare.differ("stream", "more than was recorded: %s", clipped(fmt.Sprint(extra)))
	}
	delete(s.tails, c.N)
	if c.Method == v2.UpdateService_GetUpdates_FullMethodName {
		s.compare.diffs = append(s.compare.diffs, s.settle()...)
	}
	s.results = append(s.results, result{recording: s.recording.Name, call: c, diffs: append(t.diffs, s.compare.take()...)})
}
