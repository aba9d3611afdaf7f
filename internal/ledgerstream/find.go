package ledgerstream

import (
	"context"
	"fmt"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	adminapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
)

// FoundUpdate is where an update is on a participant's ledger.
type FoundUpdate struct {
	ParticipantID string
	Offset        int64
}

// follows notes the filter of the present session.
func (f *Follower) follows(now filter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.filter = &now
}

// FindUpdate asks the participant where an update is: for updates that the index contains by way of a snapshot, of which it knows no ids.
// It is found only where something in it matches the follower's filter. False, without an error, says that it is not there or not
// visible, or that no session has come as far as to know what is asked for. It makes two calls within Config.CallTimeout each, beside what
// the follower does; it may be called from any goroutine.
func (f *Follower) FindUpdate(ctx context.Context, updateID string) (FoundUpdate, bool, error) {
	f.mu.Lock()
	asked := f.filter
	f.mu.Unlock()
	if asked == nil {
		return FoundUpdate{}, false, nil
	}
	s := &session{f: f}
	response, err := call(ctx, s, func(ctx context.Context) (*ledgerapi.GetUpdateResponse, error) {
		return f.updates.GetUpdateById(ctx, &ledgerapi.GetUpdateByIdRequest{UpdateId: updateID, UpdateFormat: asked.updateFormat(false, false)})
	})
	if errorID(err) == "UPDATE_NOT_FOUND" {
		return FoundUpdate{}, false, nil
	}
	if err != nil {
		return FoundUpdate{}, false, fmt.Errorf("asking the participant for update %s: %w", updateID, err)
	}
	found := FoundUpdate{}
	switch u := response.GetUpdate().(type) {
	case *ledgerapi.GetUpdateResponse_Transaction:
		found.Offset = u.Transaction.GetOffset()
	case *ledgerapi.GetUpdateResponse_Reassignment:
		found.Offset = u.Reassignment.GetOffset()
	case *ledgerapi.GetUpdateResponse_TopologyTransaction:
		found.Offset = u.TopologyTransaction.GetOffset()
	}
	if found.Offset <= 0 {
		return FoundUpdate{}, false, nil // of a kind that we don't know
	}
	// Who it was, asked after it: an offset is only one participant's.
	id, err := call(ctx, s, func(ctx context.Context) (*adminapi.GetParticipantIdResponse, error) {
		return f.parties.GetParticipantId(ctx, &adminapi.GetParticipantIdRequest{})
	})
	if err != nil {
		return FoundUpdate{}, false, fmt.Errorf("asking the participant for its id: %w", err)
	}
	found.ParticipantID = id.GetParticipantId()
	return found, true, nil
}
