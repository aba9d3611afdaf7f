package ledgerstream

import (
	"fmt"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/ledger"
)

// onboardingField is the number of TopologyEvent's participant_authorization_onboarding (protocol version 35), which the stubs
// don't know yet.
const onboardingField protowire.Number = 4

// hostingChange is one topology event, free of the stubs' types.
type hostingChange struct {
	what                 string // added, onboarding, revoked, changed, unknown
	party, participantID string
}

// topology judges whether a topology transaction makes a new snapshot necessary.
//
// When a party comes to be hosted here, a contract that was active here already (for another of its stakeholders) gets no new
// event; when a party goes, its contracts get no archive. So, where we read as named parties, their coming and going calls
// for a snapshot. Where we read as any party, a contract that is active here was visible before a party came; only a
// party's going can take contracts away. An event of an unknown kind calls for one in both cases. A change of permission,
// and events about other participants, call for none.
func (c *converter) topology(t *ledgerapi.TopologyTransaction) (message, error) {
	u, err := frame(t.GetOffset(), t.GetUpdateId(), t.GetSynchronizerId(), t.GetRecordTime())
	if err != nil {
		return message{}, err
	}
	for _, ev := range t.GetEvents() {
		change := hostingOf(ev)
		if !c.affects(change) {
			c.metrics.ignored(IgnoredHosting)
			continue
		}
		return message{
			kind: rehosting, offset: u.Offset,
			hosting: fmt.Sprintf("party %s: hosting %s at offset %d", change.party, change.what, u.Offset),
		}, nil
	}
	return message{kind: changes, offset: u.Offset, update: ledger.Update{
		Offset: u.Offset, UpdateID: u.UpdateID, RecordTime: u.RecordTime, SynchronizerID: u.SynchronizerID,
	}}, nil
}

func hostingOf(ev *ledgerapi.TopologyEvent) hostingChange {
	switch e := ev.GetEvent().(type) {
	case *ledgerapi.TopologyEvent_ParticipantAuthorizationAdded:
		a := e.ParticipantAuthorizationAdded
		return hostingChange{"added", a.GetPartyId(), a.GetParticipantId()}
	case *ledgerapi.TopologyEvent_ParticipantAuthorizationRevoked:
		r := e.ParticipantAuthorizationRevoked
		return hostingChange{"revoked", r.GetPartyId(), r.GetParticipantId()}
	case *ledgerapi.TopologyEvent_ParticipantAuthorizationChanged:
		ch := e.ParticipantAuthorizationChanged
		return hostingChange{"changed", ch.GetPartyId(), ch.GetParticipantId()}
	}
	number, wireType, size := protowire.ConsumeTag(ev.ProtoReflect().GetUnknown())
	if size < 0 || number != onboardingField || wireType != protowire.BytesType {
		return hostingChange{what: "unknown"}
	}
	raw, size := protowire.ConsumeBytes(ev.ProtoReflect().GetUnknown()[size:])
	if size < 0 {
		return hostingChange{what: "unknown"}
	}
	// Onboarding has the fields of Added.
	var onboarding ledgerapi.ParticipantAuthorizationAdded
	if err := proto.Unmarshal(raw, &onboarding); err != nil {
		return hostingChange{what: "unknown"}
	}
	return hostingChange{"onboarding", onboarding.GetPartyId(), onboarding.GetParticipantId()}
}

func (c *converter) affects(change hostingChange) bool {
	if change.participantID != "" && change.participantID != c.participantID {
		return false
	}
	switch change.what {
	case "changed":
		return false
	case "added", "onboarding":
		return !c.anyParty
	default:
		return true
	}
}
