package ledgersim

import (
	"context"
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func (s *Sim) register(server *grpc.Server) {
	v2.RegisterStateServiceServer(server, stateService{sim: s})
	v2.RegisterUpdateServiceServer(server, updateService{sim: s})
	v2.RegisterEventQueryServiceServer(server, eventQueryService{sim: s})
	v2.RegisterCommandServiceServer(server, commandService{sim: s})
	v2.RegisterVersionServiceServer(server, versionService{sim: s})
	v2.RegisterPackageServiceServer(server, packageService{sim: s})
	admin.RegisterPartyManagementServiceServer(server, partyService{sim: s})
	admin.RegisterPackageManagementServiceServer(server, packageManagementService{sim: s})
	admin.RegisterUserManagementServiceServer(server, userService{sim: s})
	admin.RegisterParticipantPruningServiceServer(server, pruningService{sim: s})
	healthpb.RegisterHealthServer(server, healthService{sim: s})
}

type versionService struct {
	v2.UnimplementedVersionServiceServer
	sim *Sim
}

// Version is the version that the simulated participant claims: that of the recorded one.
const Version = "3.5.10-SNAPSHOT"

func (s versionService) GetLedgerApiVersion(context.Context, *v2.GetLedgerApiVersionRequest) (*v2.GetLedgerApiVersionResponse, error) {
	return &v2.GetLedgerApiVersionResponse{Version: Version, Features: &v2.FeaturesDescriptor{
		Experimental:     &v2.ExperimentalFeatures{StaticTime: &v2.ExperimentalStaticTime{}, CommandInspectionService: &v2.ExperimentalCommandInspectionService{Supported: true}},
		UserManagement:   &v2.UserManagementFeature{Supported: true, MaxRightsPerUser: 1000, MaxUsersPageSize: 1000},
		PartyManagement:  &v2.PartyManagementFeature{MaxPartiesPageSize: 10000},
		OffsetCheckpoint: &v2.OffsetCheckpointFeature{MaxOffsetCheckpointEmissionDelay: durationpb.New(s.sim.options.IdleCheckpoint + s.sim.options.CheckpointAge)},
		PackageFeature:   &v2.PackageFeature{MaxVettedPackagesPageSize: 100},
	}}, nil
}

type partyService struct {
	admin.UnimplementedPartyManagementServiceServer
	sim *Sim
}

func (s partyService) GetParticipantId(context.Context, *admin.GetParticipantIdRequest) (*admin.GetParticipantIdResponse, error) {
	out := &admin.GetParticipantIdResponse{}
	s.sim.read(func(l *state) { out.ParticipantId = l.participant })
	return out, nil
}

func (s partyService) AllocateParty(ctx context.Context, req *admin.AllocatePartyRequest) (*admin.AllocatePartyResponse, error) {
	if r := callerOf(ctx).mayAdminister(); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	hint := req.GetPartyIdHint()
	if hint == "" {
		s.sim.ids.Lock()
		hint = "party-" + s.sim.ids.random.uuid()
		s.sim.ids.Unlock()
	}
	if err := checkParty(hint); err != nil {
		return nil, s.sim.asStatus(invalidField("party_id_hint", err), nil)
	}
	var id string
	var known int
	var r *rejection
	s.sim.change(func(l *state, now time.Time) {
		if sync := req.GetSynchronizerId(); sync != "" && !l.knowsSynchronizer(sync) {
			r = invalidArguments("Could not allocate party %s: not connected to synchronizer %s", hint, sync)
			return
		}
		id, r = l.allocateParty(hint, req.GetSynchronizerId(), now)
		known = l.parties[id]
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.AllocatePartyResponse{PartyDetails: partyDetails(id, known)}, nil
}

func (l *state) partyCalled(hint string) string {
	for p := range l.parties {
		if name, _, _ := cutParty(p); name == hint {
			return p
		}
	}
	return ""
}

// partyDetails describes a party that is known on so many synchronizers.
func partyDetails(id string, known int) *admin.PartyDetails {
	return &admin.PartyDetails{Party: id, IsLocal: true, LocalMetadata: &admin.ObjectMeta{ResourceVersion: strconv.Itoa(max(known-1, 0))}}
}

func (s partyService) GetParties(_ context.Context, req *admin.GetPartiesRequest) (*admin.GetPartiesResponse, error) {
	out := &admin.GetPartiesResponse{}
	s.sim.read(func(l *state) {
		for _, p := range req.GetParties() {
			if l.parties[p] > 0 {
				out.PartyDetails = append(out.PartyDetails, partyDetails(p, l.parties[p]))
			}
		}
	})
	return out, nil
}

func (s partyService) ListKnownParties(_ context.Context, req *admin.ListKnownPartiesRequest) (*admin.ListKnownPartiesResponse, error) {
	after, err := base64.StdEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, s.sim.asStatus(invalidField("page_token", err), nil)
	}
	size := int(req.GetPageSize())
	if size <= 0 {
		size = 10000
	}
	out := &admin.ListKnownPartiesResponse{}
	s.sim.read(func(l *state) {
		for _, p := range slices.Sorted(maps.Keys(l.parties)) {
			if p <= string(after) {
				continue
			}
			if len(out.GetPartyDetails()) == size {
				last := out.GetPartyDetails()[size-1].GetParty()
				out.NextPageToken = base64.StdEncoding.EncodeToString([]byte(last))
				return
			}
			out.PartyDetails = append(out.PartyDetails, partyDetails(p, l.parties[p]))
		}
	})
	return out, nil
}

type pruningService struct {
	admin.UnimplementedParticipantPruningServiceServer
	sim *Sim
}

func (s pruningService) Prune(ctx context.Context, req *admin.PruneRequest) (*admin.PruneResponse, error) {
	if r := callerOf(ctx).mayAdminister(); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	upTo := req.GetPruneUpTo()
	if upTo <= 0 {
		return nil, s.sim.asStatus(invalidArguments("prune_up_to not specified or zero"), nil)
	}
	var r *rejection
	s.sim.change(func(l *state, _ time.Time) {
		if upTo >= l.end {
			r = reject(invalidState, "OFFSET_OUT_OF_RANGE", "prune_up_to needs to be before ledger end Some(Offset(%d))", l.end)
			return
		}
		if upTo > l.pruned {
			l.prune(upTo)
		}
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.PruneResponse{}, nil
}

// healthService answers for the participant as a whole and for its index; other components are unknown.
type healthService struct {
	healthpb.UnimplementedHealthServer
	sim *Sim
}

func (s healthService) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if service := req.GetService(); service != "" && service != "index" {
		return nil, status.Errorf(codes.NotFound, "Component %s does not exist.", service)
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (s healthService) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	ended := s.sim.streamEnd()
	answer, err := s.Check(stream.Context(), req)
	if err != nil {
		return err
	}
	if err := stream.Send(answer); err != nil {
		return err //nolint:wrapcheck // a status already
	}
	select {
	case <-ended.done:
		return ended.err
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
}
