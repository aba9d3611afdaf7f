package replay

import (
	"context"
	"fmt"
	"net"
	"sync"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledgerstream/rawgrpc"
)

// Script is what a Server plays: a participant whose ledger end stands at Start until a client has its snapshot, and at End from then
// on.
type Script struct {
	ParticipantID string
	// Version is "3.5.10-SNAPSHOT" if empty.
	Version       string
	Synchronizers []string
	// Start is the ledger end that a client first sees. At 0 there is no snapshot to take, and it moves once a client asks for updates.
	Start int64
	// Snapshot are the encoded responses to GetActiveContracts at Start.
	Snapshot [][]byte
	// Updates are the stream's elements after Start, in order; checkpoints are given to tails only.
	Updates []Update
	// End is the ledger end that follows; the last update's offset if smaller.
	End int64
	// Ends are the statuses with which the first tails end once they have delivered everything, one each; later ones stay open. An
	// error of code OK ends a tail cleanly.
	Ends []Status
}

// PlaySnapshot is a script of a recorded snapshot alone.
func PlaySnapshot(s Snapshot) Script {
	return Script{
		ParticipantID: s.Recording.ParticipantID(), Synchronizers: s.Recording.Synchronizers(),
		Start: s.Offset, Snapshot: s.Entries, End: s.Offset,
	}
}

// PlayStream is a script of a recorded stream, on top of the entries of a snapshot at its begin, if there are any.
func PlayStream(s Stream, snapshot [][]byte) Script {
	return Script{
		ParticipantID: s.Recording.ParticipantID(), Synchronizers: s.Recording.Synchronizers(),
		Start: s.Begin, Snapshot: snapshot, Updates: s.Updates, End: max(s.End, s.Last()),
	}
}

// Server plays a script over gRPC. What a client asks to be filtered is not looked at: it gets what was recorded.
type Server struct {
	v2.UnimplementedStateServiceServer
	v2.UnimplementedUpdateServiceServer
	v2.UnimplementedVersionServiceServer
	admin.UnimplementedPartyManagementServiceServer

	script Script
	grpc   *grpc.Server
	work   sync.WaitGroup

	mu sync.Mutex
	// end is the ledger end that is told.
	end   int64
	tails int
	// moved is closed once the ledger end has moved to the script's.
	moved chan struct{}
}

// NewServer makes a server that plays the script to every client alike.
func NewServer(script Script) *Server {
	if script.Version == "" {
		script.Version = "3.5.10-SNAPSHOT"
	}
	for _, u := range script.Updates {
		script.End = max(script.End, u.Offset)
	}
	script.End = max(script.End, script.Start)
	s := &Server{script: script, end: script.Start, moved: make(chan struct{})}
	s.grpc = grpc.NewServer(grpc.ForceServerCodecV2(rawgrpc.Codec()))
	v2.RegisterStateServiceServer(s.grpc, s)
	v2.RegisterUpdateServiceServer(s.grpc, s)
	v2.RegisterVersionServiceServer(s.grpc, s)
	admin.RegisterPartyManagementServiceServer(s.grpc, s)
	return s
}

// End is the ledger end that a client has reached when it has everything.
func (s *Server) End() int64 { return s.script.End }

// Start serves on a free port of the loopback interface and returns its address.
func (s *Server) Start() (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("replay: listen: %w", err)
	}
	s.Serve(listener)
	return listener.Addr().String(), nil
}

// Serve serves on a listener, which it takes over, until Stop.
func (s *Server) Serve(listener net.Listener) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		// A listener that fails shows in every call; there is nobody else to tell.
		_ = s.grpc.Serve(listener)
	}()
}

// Stop ends all calls and waits for the server.
func (s *Server) Stop() {
	s.grpc.Stop()
	s.work.Wait()
}

func (s *Server) move() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end = s.script.End; s.moved != nil {
		select {
		case <-s.moved:
		default:
			close(s.moved)
		}
	}
}

// GetLedgerApiVersion tells the recorded version.
func (s *Server) GetLedgerApiVersion(context.Context, *v2.GetLedgerApiVersionRequest) (*v2.GetLedgerApiVersionResponse, error) {
	return &v2.GetLedgerApiVersionResponse{Version: s.script.Version}, nil
}

// GetParticipantId tells the recorded participant's id.
func (s *Server) GetParticipantId(context.Context, *admin.GetParticipantIdRequest) (*admin.GetParticipantIdResponse, error) {
	return &admin.GetParticipantIdResponse{ParticipantId: s.script.ParticipantID}, nil
}

// GetLedgerEnd tells where the script stands.
func (s *Server) GetLedgerEnd(context.Context, *v2.GetLedgerEndRequest) (*v2.GetLedgerEndResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &v2.GetLedgerEndResponse{Offset: s.end}, nil
}

// GetLatestPrunedOffsets tells that nothing was pruned.
func (s *Server) GetLatestPrunedOffsets(context.Context, *v2.GetLatestPrunedOffsetsRequest) (*v2.GetLatestPrunedOffsetsResponse, error) {
	return &v2.GetLatestPrunedOffsetsResponse{}, nil
}

// GetConnectedSynchronizers tells the recorded synchronizers.
func (s *Server) GetConnectedSynchronizers(context.Context, *v2.GetConnectedSynchronizersRequest) (*v2.GetConnectedSynchronizersResponse, error) {
	out := &v2.GetConnectedSynchronizersResponse{}
	for _, id := range s.script.Synchronizers {
		out.ConnectedSynchronizers = append(out.ConnectedSynchronizers, &v2.GetConnectedSynchronizersResponse_ConnectedSynchronizer{SynchronizerId: id})
	}
	return out, nil
}

// GetActiveContracts gives the recorded snapshot at its offset, and then lets the ledger end move.
func (s *Server) GetActiveContracts(req *v2.GetActiveContractsRequest, stream grpc.ServerStreamingServer[v2.GetActiveContractsResponse]) error {
	if at := req.GetActiveAtOffset(); at != s.script.Start {
		return status.Errorf(codes.OutOfRange, "no snapshot was recorded at offset %d, only at %d", at, s.script.Start)
	}
	for _, raw := range s.script.Snapshot {
		if err := stream.SendMsg(&rawgrpc.Message{Bytes: raw}); err != nil {
			return fmt.Errorf("replay snapshot: %w", err)
		}
	}
	s.move()
	return nil
}

// GetUpdates gives the recorded elements after the begin: up to the end that is asked for, or all of them and then nothing more.
func (s *Server) GetUpdates(req *v2.GetUpdatesRequest, stream grpc.ServerStreamingServer[v2.GetUpdatesResponse]) error {
	tailing := req.EndInclusive == nil
	if s.script.Start == 0 {
		s.move()
	}
	if tailing {
		select {
		case <-s.moved:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
	for _, u := range s.script.Updates {
		outside := u.Offset <= req.GetBeginExclusive() || !tailing && u.Offset > req.GetEndInclusive()
		if outside && !(u.Checkpoint && tailing && u.Offset == req.GetBeginExclusive()) || u.Checkpoint && !tailing {
			continue
		}
		if err := stream.SendMsg(&rawgrpc.Message{Bytes: u.Raw}); err != nil {
			return fmt.Errorf("replay update at offset %d: %w", u.Offset, err)
		}
	}
	if !tailing {
		return nil
	}
	if ended, ok := s.nextEnd(); ok {
		return ended.Err()
	}
	<-stream.Context().Done()
	return status.FromContextError(stream.Context().Err()).Err()
}

// GetUpdateByOffset gives the recorded update at an offset.
func (s *Server) GetUpdateByOffset(_ context.Context, req *v2.GetUpdateByOffsetRequest) (*v2.GetUpdateResponse, error) {
	for _, u := range s.script.Updates {
		if u.Offset != req.GetOffset() || u.Checkpoint {
			continue
		}
		// The two responses agree in the fields of the kinds of updates that both can hold, but for their numbers.
		var m v2.GetUpdatesResponse
		if err := (Response{Raw: u.Raw}).Into(&m); err != nil {
			return nil, status.Errorf(codes.Internal, "replay: %v", err)
		}
		switch kind := m.GetUpdate().(type) {
		case *v2.GetUpdatesResponse_Transaction:
			return &v2.GetUpdateResponse{Update: &v2.GetUpdateResponse_Transaction{Transaction: kind.Transaction}}, nil
		case *v2.GetUpdatesResponse_Reassignment:
			return &v2.GetUpdateResponse{Update: &v2.GetUpdateResponse_Reassignment{Reassignment: kind.Reassignment}}, nil
		case *v2.GetUpdatesResponse_TopologyTransaction:
			return &v2.GetUpdateResponse{Update: &v2.GetUpdateResponse_TopologyTransaction{TopologyTransaction: kind.TopologyTransaction}}, nil
		}
	}
	st, err := status.New(codes.NotFound, "UPDATE_NOT_FOUND(11,0): Update not found, or not visible.").
		WithDetails(&errdetails.ErrorInfo{Reason: "UPDATE_NOT_FOUND", Metadata: map[string]string{"category": "11", "definite_answer": "false"}})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return nil, st.Err()
}

func (s *Server) nextEnd() (Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tails >= len(s.script.Ends) {
		return Status{}, false
	}
	s.tails++
	return s.script.Ends[s.tails-1], true
}
