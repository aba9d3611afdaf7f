package replay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc/codes"
)

// Format is what a recorded request asked for.
type Format struct {
	// Parties read by name, sorted; AnyParty if the request read as any party.
	Parties  []string
	AnyParty bool
	// Templates are the qualified names of the templates asked for, sorted; empty is all of them.
	Templates []string
	// Blobs: created event blobs were asked for by all filters.
	Blobs   bool
	Verbose bool
	// Effects: the shape was LEDGER_EFFECTS. Transactions, Reassignments and Topology: these kinds were asked for.
	Effects, Transactions, Reassignments, Topology bool
}

// Snapshot is a recorded GetActiveContracts that ended with OK and kept all its responses.
type Snapshot struct {
	Recording *Recording
	Call      *Call
	Format    Format
	// Offset is active_at_offset.
	Offset int64
	// Entries are the responses as they came.
	Entries [][]byte
}

// Stream is a recorded GetUpdates that delivered something or ended with OK, and kept all its responses.
type Stream struct {
	Recording *Recording
	Call      *Call
	Format    Format
	// Begin is begin_exclusive, End end_inclusive, 0 for a tail.
	Begin, End int64
	Updates    []Update
}

// Update is one recorded element of a stream.
type Update struct {
	Offset int64
	// Checkpoint: it is an OffsetCheckpoint and no update.
	Checkpoint bool
	// Raw is the response as it came.
	Raw []byte
}

// Last is the offset of the last element, or Begin if there is none.
func (s *Stream) Last() int64 {
	last := s.Begin
	for _, u := range s.Updates {
		last = max(last, u.Offset)
	}
	return last
}

// Snapshots are all of the recording's, in order. Requests that go on from a continuation token are parts and not among them.
func (r *Recording) Snapshots() ([]Snapshot, error) {
	var out []Snapshot
	for _, c := range r.Calls {
		if c.Method != v2.StateService_GetActiveContracts_FullMethodName || c.Status.Code != codes.OK || c.Capped != "" || c.continued() {
			continue
		}
		var request v2.GetActiveContractsRequest
		if err := c.Request(&request); err != nil {
			return nil, fmt.Errorf("recording %s: %w", r.Name, err)
		}
		s := Snapshot{Recording: r, Call: c, Format: formatOf(request.GetEventFormat()), Offset: request.GetActiveAtOffset()}
		for _, response := range c.Responses {
			s.Entries = append(s.Entries, response.Raw)
		}
		out = append(out, s)
	}
	return out, nil
}

// continued reports whether the request carries a field of 3.5 that changes what it asks for and that the stubs do not know.
func (c *Call) continued() bool {
	return strings.Contains(string(c.RequestJSON), `"streamContinuationToken"`) || strings.Contains(string(c.RequestJSON), `"descendingOrder"`)
}

// Streams are all of the recording's, in order. Requests in descending order are not among them.
func (r *Recording) Streams() ([]Stream, error) {
	var out []Stream
	for _, c := range r.Calls {
		if c.Method != v2.UpdateService_GetUpdates_FullMethodName || c.Capped != "" || c.continued() || c.Status.Code != codes.OK && len(c.Responses) == 0 {
			continue
		}
		var request v2.GetUpdatesRequest
		if err := c.Request(&request); err != nil {
			return nil, fmt.Errorf("recording %s: %w", r.Name, err)
		}
		format := request.GetUpdateFormat()
		s := Stream{Recording: r, Call: c, Begin: request.GetBeginExclusive(), End: request.GetEndInclusive()}
		if t := format.GetIncludeTransactions(); t != nil {
			s.Format = formatOf(t.GetEventFormat())
			s.Format.Transactions = true
			s.Format.Effects = t.GetTransactionShape() == v2.TransactionShape_TRANSACTION_SHAPE_LEDGER_EFFECTS
		} else if e := format.GetIncludeReassignments(); e != nil {
			s.Format = formatOf(e)
		}
		s.Format.Reassignments = format.GetIncludeReassignments() != nil
		s.Format.Topology = format.GetIncludeTopologyEvents() != nil
		for i, response := range c.Responses {
			u, err := updateOf(response)
			if err != nil {
				return nil, fmt.Errorf("recording %s, call %d, response %d: %w", r.Name, c.N, i, err)
			}
			s.Updates = append(s.Updates, u)
		}
		out = append(out, s)
	}
	return out, nil
}

func updateOf(response Response) (Update, error) {
	var m v2.GetUpdatesResponse
	if err := response.Into(&m); err != nil {
		return Update{}, err
	}
	u := Update{Raw: response.Raw}
	switch kind := m.GetUpdate().(type) {
	case *v2.GetUpdatesResponse_Transaction:
		u.Offset = kind.Transaction.GetOffset()
	case *v2.GetUpdatesResponse_Reassignment:
		u.Offset = kind.Reassignment.GetOffset()
	case *v2.GetUpdatesResponse_TopologyTransaction:
		u.Offset = kind.TopologyTransaction.GetOffset()
	case *v2.GetUpdatesResponse_OffsetCheckpoint:
		u.Offset, u.Checkpoint = kind.OffsetCheckpoint.GetOffset(), true
	}
	return u, nil
}

func formatOf(f *v2.EventFormat) Format {
	out := Format{Verbose: f.GetVerbose(), AnyParty: f.GetFiltersForAnyParty() != nil, Blobs: true}
	out.Parties = slices.Sorted(maps.Keys(f.GetFiltersByParty()))
	lists := slices.Collect(maps.Values(f.GetFiltersByParty()))
	if out.AnyParty {
		lists = append(lists, f.GetFiltersForAnyParty())
	}
	all := false
	for _, list := range lists {
		all = all || len(list.GetCumulative()) == 0
		out.Blobs = out.Blobs && len(list.GetCumulative()) > 0
		for _, c := range list.GetCumulative() {
			if t := c.GetTemplateFilter(); t != nil {
				out.Templates = append(out.Templates, t.GetTemplateId().GetModuleName()+":"+t.GetTemplateId().GetEntityName())
				out.Blobs = out.Blobs && t.GetIncludeCreatedEventBlob()
				continue
			}
			all = true
			out.Blobs = out.Blobs && c.GetWildcardFilter().GetIncludeCreatedEventBlob()
		}
	}
	slices.Sort(out.Templates)
	out.Templates = slices.Compact(out.Templates)
	if all {
		out.Templates = nil
	}
	return out
}

// ParticipantID is the recorded participant's id: as it told it itself, or as the fingerprint of its parties implies it.
func (r *Recording) ParticipantID() string {
	for _, c := range r.Calls {
		if c.Method != admin.PartyManagementService_GetParticipantId_FullMethodName || len(c.Responses) == 0 {
			continue
		}
		var answer admin.GetParticipantIdResponse
		if c.Responses[0].Into(&answer) == nil && answer.GetParticipantId() != "" {
			return answer.GetParticipantId()
		}
	}
	for _, c := range r.Calls {
		if c.Method != admin.PartyManagementService_AllocateParty_FullMethodName || len(c.Responses) == 0 {
			continue
		}
		var answer admin.AllocatePartyResponse
		if c.Responses[0].Into(&answer) == nil {
			if _, fingerprint, ok := strings.Cut(answer.GetPartyDetails().GetParty(), "::"); ok {
				return "sandbox::" + fingerprint
			}
		}
	}
	return "sandbox::1220" + strings.Repeat("00", 32)
}

// Parties are the parties that the recording's calls allocated, by the first part of their hints, as "operator".
func (r *Recording) Parties() map[string]string {
	out := map[string]string{}
	for _, c := range r.Calls {
		if c.Method != admin.PartyManagementService_AllocateParty_FullMethodName || len(c.Responses) == 0 {
			continue
		}
		var answer admin.AllocatePartyResponse
		if c.Responses[0].Into(&answer) == nil {
			party := answer.GetPartyDetails().GetParty()
			role, _, _ := strings.Cut(party, "-")
			out[role] = party
		}
	}
	return out
}

// Synchronizers are the ids of the synchronizers that the recording names, sorted.
func (r *Recording) Synchronizers() []string {
	var out []string
	for _, c := range r.Calls {
		if c.Method != v2.StateService_GetConnectedSynchronizers_FullMethodName {
			continue
		}
		for _, response := range c.Responses {
			var answer v2.GetConnectedSynchronizersResponse
			if response.Into(&answer) != nil {
				continue
			}
			for _, s := range answer.GetConnectedSynchronizers() {
				out = append(out, s.GetSynchronizerId())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
