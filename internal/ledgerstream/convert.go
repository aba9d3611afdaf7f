package ledgerstream

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

// DecodeError is something that the participant sent and that can't be understood. It halts the follower: what is not
// understood may have changed which contracts are active.
type DecodeError struct {
	// Offset is that of the update, or of the snapshot; 0 where the message did not even tell it.
	Offset int64
	// ContractID and Template name the contract, where the message is about one.
	ContractID string
	Template   damlvalue.TypeName
	// Field is the field at fault, as a path.
	Field string
	Err   error
}

func (e *DecodeError) Error() string {
	s := fmt.Sprintf("decoding what the participant sent at offset %d", e.Offset)
	if e.ContractID != "" {
		s += ": contract " + e.ContractID
	}
	if !e.Template.IsZero() {
		s += " of " + e.Template.String()
	}
	if e.Field != "" {
		s += ": " + e.Field
	}
	return s + ": " + e.Err.Error()
}

func (e *DecodeError) Unwrap() error { return e.Err }

// ErrUnknownKind is wrapped by a DecodeError about an update or event of a kind that this version does not know.
var ErrUnknownKind = errors.New("of a kind that this version doesn't know: upgrade")

var errMissing = errors.New("is missing")

// converter turns the participant's messages into domain types, keeping what was asked for. It is safe for concurrent use.
type converter struct {
	// kept are the templates asked for: a participant can send others (those of one reassignment's whole batch).
	kept          map[packageTemplate]bool
	anyParty      bool
	participantID string
	metrics       *Metrics
}

func newConverter(f filter, participantID string, metrics *Metrics) *converter {
	c := &converter{
		kept: make(map[packageTemplate]bool), anyParty: len(f.parties) == 0, participantID: participantID, metrics: metrics,
	}
	for _, t := range f.templates {
		c.kept[t] = true
	}
	return c
}

// keeps reports whether the template was asked for. Filters name packages, events carry ids: only the name and the qualified
// name decide.
func (c *converter) keeps(packageName string, template damlvalue.TypeName) bool {
	template.PackageID = ""
	if c.kept[packageTemplate{packageName: packageName, template: template}] {
		return true
	}
	c.metrics.ignored(IgnoredTemplate)
	return false
}

// message is one message of an update stream.
type message struct {
	kind messageKind
	// offset is that of the update or checkpoint; 0 for nothing.
	offset int64
	// update is set for changes; its Events may be empty.
	update ledger.Update
	// hosting says in words which event makes a new snapshot necessary.
	hosting string
	// size is the message's size in bytes.
	size int
}

type messageKind uint8

const (
	// nothing is an empty message.
	nothing messageKind = iota
	// changes is a transaction or reassignment, or a topology transaction that changes nothing for us.
	changes
	// checkpoint says that everything up to its offset was delivered.
	checkpoint
	// rehosting is a topology transaction after which contracts may have appeared or vanished without an event.
	rehosting
)

// response converts one response of GetUpdates. An error is a *DecodeError.
func (c *converter) response(r *ledgerapi.GetUpdatesResponse) (message, error) {
	var (
		m   message
		err error
	)
	switch u := r.GetUpdate().(type) {
	case *ledgerapi.GetUpdatesResponse_Transaction:
		c.metrics.update("transaction")
		m, err = c.transaction(u.Transaction)
	case *ledgerapi.GetUpdatesResponse_Reassignment:
		c.metrics.update("reassignment")
		m, err = c.reassignment(u.Reassignment)
	case *ledgerapi.GetUpdatesResponse_TopologyTransaction:
		c.metrics.update("topology")
		m, err = c.topology(u.TopologyTransaction)
	case *ledgerapi.GetUpdatesResponse_OffsetCheckpoint:
		c.metrics.update("checkpoint")
		m = message{kind: checkpoint, offset: u.OffsetCheckpoint.GetOffset()}
		if m.offset < 0 {
			err = &DecodeError{Offset: m.offset, Field: "offset_checkpoint", Err: errors.New("the offset is negative")}
		}
	default:
		err = c.unknown(r, 0, "update")
	}
	if err != nil {
		return message{}, err
	}
	m.size = proto.Size(r)
	return m, nil
}

// unknown judges a message whose oneof holds nothing that we know: with unknown fields it is a newer kind, which may matter;
// without any it says nothing at all (as malformed events of repair commands do) and is counted.
func (c *converter) unknown(m proto.Message, offset int64, what string) error {
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		c.metrics.ignored(IgnoredEmpty)
		return nil
	}
	number, _, _ := protowire.ConsumeTag(unknown)
	return &DecodeError{Offset: offset, Field: what, Err: fmt.Errorf("field %d is %w", number, ErrUnknownKind)}
}

// frame checks what every kind of update carries, and makes the update without its events.
func frame(offset int64, updateID, synchronizerID string, recordTime *timestamppb.Timestamp) (ledger.Update, error) {
	fail := func(field string, err error) (ledger.Update, error) {
		return ledger.Update{}, &DecodeError{Offset: offset, Field: field, Err: err}
	}
	if offset <= 0 {
		return fail("offset", fmt.Errorf("is not positive: %d", offset))
	}
	if updateID == "" {
		return fail("update_id", errMissing)
	}
	u := ledger.Update{Offset: offset, UpdateID: updateID, SynchronizerID: synchronizerID}
	if recordTime != nil {
		if err := recordTime.CheckValid(); err != nil {
			return fail("record_time", err)
		}
		u.RecordTime = recordTime.AsTime()
	}
	return u, nil
}

func (c *converter) transaction(tx *ledgerapi.Transaction) (message, error) {
	u, err := frame(tx.GetOffset(), tx.GetUpdateId(), tx.GetSynchronizerId(), tx.GetRecordTime())
	if err != nil {
		return message{}, err
	}
	for _, ev := range tx.GetEvents() {
		switch e := ev.GetEvent().(type) {
		case *ledgerapi.Event_Created:
			if !c.keeps(e.Created.GetPackageName(), apivalue.TypeName(e.Created.GetTemplateId())) {
				continue
			}
			if !e.Created.GetAcsDelta() {
				c.metrics.ignored(IgnoredNotDelta)
				continue
			}
			contract, err := c.created(e.Created, activation{
				offset: u.Offset, updateID: u.UpdateID, recordTime: u.RecordTime, synchronizerID: u.SynchronizerID,
			})
			if err != nil {
				return message{}, err
			}
			u.Events = append(u.Events, ledger.Event{
				Kind: ledger.Created, ContractID: contract.ContractID, TemplateID: contract.TemplateID, Contract: contract,
			})
		case *ledgerapi.Event_Archived:
			a := e.Archived
			err = c.archived(&u, a.GetContractId(), a.GetPackageName(), apivalue.TypeName(a.GetTemplateId()))
		case *ledgerapi.Event_Exercised:
			// Not asked for; only what it says of activeness counts, its argument and result may be absent.
			x := e.Exercised
			if !x.GetConsuming() || !x.GetAcsDelta() {
				c.metrics.ignored(IgnoredExercise)
				continue
			}
			err = c.archived(&u, x.GetContractId(), x.GetPackageName(), apivalue.TypeName(x.GetTemplateId()))
		default:
			err = c.unknown(ev, u.Offset, "event")
		}
		if err != nil {
			return message{}, err
		}
	}
	return message{kind: changes, offset: u.Offset, update: u}, nil
}

func (c *converter) archived(u *ledger.Update, contractID, packageName string, template damlvalue.TypeName) error {
	if !c.keeps(packageName, template) {
		return nil
	}
	if err := checkContractID(contractID); err != nil {
		return &DecodeError{Offset: u.Offset, ContractID: contractID, Template: template, Field: "contract_id", Err: err}
	}
	u.Events = append(u.Events, ledger.Event{Kind: ledger.Archived, ContractID: contractID, TemplateID: template})
	return nil
}

func (c *converter) reassignment(r *ledgerapi.Reassignment) (message, error) {
	u, err := frame(r.GetOffset(), r.GetUpdateId(), r.GetSynchronizerId(), r.GetRecordTime())
	if err != nil {
		return message{}, err
	}
	for _, ev := range r.GetEvents() {
		switch e := ev.GetEvent().(type) {
		case *ledgerapi.ReassignmentEvent_Unassigned:
			err = c.unassigned(&u, e.Unassigned)
		case *ledgerapi.ReassignmentEvent_Assigned:
			err = c.assigned(&u, e.Assigned)
		default:
			err = c.unknown(ev, u.Offset, "reassignment event")
		}
		if err != nil {
			return message{}, err
		}
	}
	return message{kind: changes, offset: u.Offset, update: u}, nil
}

func (c *converter) unassigned(u *ledger.Update, e *ledgerapi.UnassignedEvent) error {
	template := apivalue.TypeName(e.GetTemplateId())
	if !c.keeps(e.GetPackageName(), template) {
		return nil
	}
	fail := func(field string, err error) error {
		return &DecodeError{Offset: u.Offset, ContractID: e.GetContractId(), Template: template, Field: field, Err: err}
	}
	if err := checkContractID(e.GetContractId()); err != nil {
		return fail("contract_id", err)
	}
	if e.GetSource() == "" || e.GetTarget() == "" {
		return fail("source and target", errMissing)
	}
	u.Events = append(u.Events, ledger.Event{
		Kind: ledger.Unassigned, ContractID: e.GetContractId(), TemplateID: template,
		Source: e.GetSource(), Target: e.GetTarget(), ReassignmentCounter: e.GetReassignmentCounter(),
	})
	return nil
}

func (c *converter) assigned(u *ledger.Update, e *ledgerapi.AssignedEvent) error {
	created := e.GetCreatedEvent()
	if !c.keeps(created.GetPackageName(), apivalue.TypeName(created.GetTemplateId())) {
		return nil
	}
	if e.GetSource() == "" || e.GetTarget() == "" {
		return &DecodeError{
			Offset: u.Offset, ContractID: created.GetContractId(), Template: apivalue.TypeName(created.GetTemplateId()),
			Field: "source and target", Err: errMissing,
		}
	}
	contract, err := c.created(created, activation{
		offset: u.Offset, updateID: u.UpdateID, recordTime: u.RecordTime,
		synchronizerID: e.GetTarget(), reassignmentCounter: e.GetReassignmentCounter(),
	})
	if err != nil {
		return err
	}
	u.Events = append(u.Events, ledger.Event{
		Kind: ledger.Assigned, ContractID: contract.ContractID, TemplateID: contract.TemplateID, Contract: contract,
		Source: e.GetSource(), Target: e.GetTarget(), ReassignmentCounter: e.GetReassignmentCounter(),
	})
	return nil
}

// activation is what an update or a snapshot says about a contract besides its created event.
type activation struct {
	offset              int64
	updateID            string
	recordTime          time.Time
	synchronizerID      string
	reassignmentCounter uint64
}

// created converts a created event. A contract whose blob is missing or wrong is converted all the same and says so.
func (c *converter) created(e *ledgerapi.CreatedEvent, at activation) (*ledger.Contract, error) {
	template := apivalue.TypeName(e.GetTemplateId())
	fail := func(field string, err error) (*ledger.Contract, error) {
		return nil, &DecodeError{Offset: at.offset, ContractID: e.GetContractId(), Template: template, Field: field, Err: err}
	}
	if err := checkContractID(e.GetContractId()); err != nil {
		return fail("contract_id", err)
	}
	if template.PackageID == "" {
		return fail("template_id", errMissing)
	}
	if at.synchronizerID == "" {
		return fail("synchronizer_id", errMissing)
	}
	if e.GetCreatedAt() == nil {
		return fail("created_at", errMissing)
	}
	if err := e.GetCreatedAt().CheckValid(); err != nil {
		return fail("created_at", err)
	}
	if e.GetCreateArguments() == nil {
		return fail("create_arguments", errMissing)
	}
	arguments, err := apivalue.RecordFromProto(e.GetCreateArguments())
	if err != nil {
		return fail("create_arguments", err)
	}
	payload, err := decodePayload(template, arguments)
	if err != nil {
		return fail("create_arguments", err)
	}
	contract := &ledger.Contract{
		ContractID:          e.GetContractId(),
		TemplateID:          template,
		PackageName:         e.GetPackageName(),
		SynchronizerID:      at.synchronizerID,
		ReassignmentCounter: at.reassignmentCounter,
		Blob:                e.GetCreatedEventBlob(),
		Signatories:         sortedSet(e.GetSignatories()),
		Observers:           sortedSet(e.GetObservers()),
		CreatedAt:           e.GetCreatedAt().AsTime().Truncate(time.Microsecond),
		Offset:              at.offset,
		UpdateID:            at.updateID,
		RecordTime:          at.recordTime,
		Payload:             payload,
	}
	checkBlob(contract, arguments)
	c.metrics.blob(contract.BlobCheck)
	return contract, nil
}

// checkContractID accepts lower-case hex: ids are compared as text, so there must be one spelling.
func checkContractID(id string) error {
	if id == "" {
		return errMissing
	}
	raw, err := hex.DecodeString(id)
	if err != nil {
		return fmt.Errorf("%q is not hex: %w", id, err)
	}
	if hex.EncodeToString(raw) != id {
		return fmt.Errorf("%q is not in lower case", id)
	}
	return nil
}

// entry converts one response of a snapshot taken at an offset: an active contract, a contract in flight, or neither.
func (c *converter) entry(r *ledgerapi.GetActiveContractsResponse, snapshot int64) (*ledger.Contract, *ledger.InFlight, error) {
	switch e := r.GetContractEntry().(type) {
	case *ledgerapi.GetActiveContractsResponse_ActiveContract:
		created := e.ActiveContract.GetCreatedEvent()
		if !c.keeps(created.GetPackageName(), apivalue.TypeName(created.GetTemplateId())) {
			return nil, nil, nil
		}
		contract, err := c.created(created, activation{
			offset: created.GetOffset(), synchronizerID: e.ActiveContract.GetSynchronizerId(),
			reassignmentCounter: e.ActiveContract.GetReassignmentCounter(),
		})
		return contract, nil, err
	case *ledgerapi.GetActiveContractsResponse_IncompleteUnassigned:
		created, un := e.IncompleteUnassigned.GetCreatedEvent(), e.IncompleteUnassigned.GetUnassignedEvent()
		if !c.keeps(created.GetPackageName(), apivalue.TypeName(created.GetTemplateId())) {
			return nil, nil, nil
		}
		// The counter before an unassignment is one less than its own.
		before := un.GetReassignmentCounter()
		if before > 0 {
			before--
		}
		contract, err := c.created(created, activation{
			offset: created.GetOffset(), synchronizerID: un.GetSource(), reassignmentCounter: before,
		})
		if err != nil {
			return nil, nil, err
		}
		return nil, &ledger.InFlight{
			Contract: *contract, Source: un.GetSource(), Target: un.GetTarget(), ReassignmentCounter: un.GetReassignmentCounter(),
		}, nil
	case *ledgerapi.GetActiveContractsResponse_IncompleteAssigned:
		c.metrics.ignored(IgnoredIncompleteAssigned)
		return nil, nil, nil
	default:
		// A field that is not of the oneof may be unknown on an otherwise empty response: 3.5's continuation token (5).
		if onlyField(r.ProtoReflect().GetUnknown(), 5) {
			c.metrics.ignored(IgnoredEmpty)
			return nil, nil, nil
		}
		return nil, nil, c.unknown(r, snapshot, "contract_entry")
	}
}

// onlyField reports whether all unknown fields have the number; true for none.
func onlyField(unknown []byte, number protowire.Number) bool {
	for len(unknown) > 0 {
		n, _, size := protowire.ConsumeField(unknown)
		if size < 0 || n != number {
			return false
		}
		unknown = unknown[size:]
	}
	return true
}
