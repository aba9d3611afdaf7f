// Package submit is a thin command client of a participant: it allocates parties, uploads packages, creates contracts and exercises the
// choices of the model, for the demo and for tests. The service itself only reads a ledger and never submits.
//
// Its API speaks the domain's types; the Ledger API's stubs stay inside. Every call is one unary RPC (or a few), bounded by the caller's
// context, and nothing is retried: an error that is not a *Rejection, and a rejection by Unavailable, leaves the outcome of a submission
// unknown, and it is the caller who knows whether to look it up or to submit again under the same command id.
package submit

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Client submits to one participant as one user. It is safe for concurrent use, and the connection stays the caller's.
type Client struct {
	userID   string
	conn     grpc.ClientConnInterface
	commands v2.CommandServiceClient
	state    v2.StateServiceClient
	parties  admin.PartyManagementServiceClient
	packages admin.PackageManagementServiceClient
	users    admin.UserManagementServiceClient
}

// New makes a client that submits as the user. Where the participant's authorization is on, the user must be the token's.
func New(conn grpc.ClientConnInterface, userID string) *Client {
	return &Client{
		userID:   userID,
		conn:     conn,
		commands: v2.NewCommandServiceClient(conn),
		state:    v2.NewStateServiceClient(conn),
		parties:  admin.NewPartyManagementServiceClient(conn),
		packages: admin.NewPackageManagementServiceClient(conn),
		users:    admin.NewUserManagementServiceClient(conn),
	}
}

// ParticipantID asks for the participant's id.
func (c *Client) ParticipantID(ctx context.Context) (string, error) {
	answer, err := c.parties.GetParticipantId(ctx, &admin.GetParticipantIdRequest{})
	if err != nil {
		return "", fmt.Errorf("get participant id: %w", rejected(err))
	}
	return answer.GetParticipantId(), nil
}

// LedgerEnd asks for the ledger end.
func (c *Client) LedgerEnd(ctx context.Context) (int64, error) {
	answer, err := c.state.GetLedgerEnd(ctx, &v2.GetLedgerEndRequest{})
	if err != nil {
		return 0, fmt.Errorf("get ledger end: %w", rejected(err))
	}
	return answer.GetOffset(), nil
}

// Synchronizers asks for the ids of the synchronizers to which the participant is connected.
func (c *Client) Synchronizers(ctx context.Context) ([]string, error) {
	answer, err := c.state.GetConnectedSynchronizers(ctx, &v2.GetConnectedSynchronizersRequest{})
	if err != nil {
		return nil, fmt.Errorf("get connected synchronizers: %w", rejected(err))
	}
	var ids []string
	for _, s := range answer.GetConnectedSynchronizers() {
		ids = append(ids, s.GetSynchronizerId())
	}
	return ids, nil
}

// AllocateParty makes a new party on every synchronizer to which the participant is connected, and returns its id.
func (c *Client) AllocateParty(ctx context.Context, hint string) (string, error) {
	synchronizers, err := c.Synchronizers(ctx)
	if err != nil {
		return "", fmt.Errorf("allocate party %q: %w", hint, err)
	}
	var id string
	for _, s := range synchronizers {
		request := &admin.AllocatePartyRequest{PartyIdHint: hint}
		if len(synchronizers) > 1 {
			request.SynchronizerId = s
		}
		answer, err := c.parties.AllocateParty(ctx, request)
		if err != nil {
			return "", fmt.Errorf("allocate party %q: %w", hint, rejected(err))
		}
		id = answer.GetPartyDetails().GetParty()
	}
	return id, nil
}

// UploadDAR uploads a package archive and vets what is in it, on every synchronizer.
func (c *Client) UploadDAR(ctx context.Context, dar []byte) error {
	synchronizers, err := c.Synchronizers(ctx)
	if err != nil {
		return fmt.Errorf("upload DAR: %w", err)
	}
	for _, s := range synchronizers {
		request := &admin.UploadDarFileRequest{DarFile: dar}
		if len(synchronizers) > 1 {
			request.SynchronizerId = s
		}
		if _, err := c.packages.UploadDarFile(ctx, request); err != nil {
			return fmt.Errorf("upload DAR: %w", rejected(err))
		}
	}
	return nil
}

// CreateReader makes a user that may read as the parties and do nothing else.
func (c *Client) CreateReader(ctx context.Context, userID string, readAs ...string) error {
	request := &admin.CreateUserRequest{User: &admin.User{Id: userID}, Rights: readRights(readAs)}
	if _, err := c.users.CreateUser(ctx, request); err != nil {
		return fmt.Errorf("create user %q: %w", userID, rejected(err))
	}
	return nil
}

// Command is one command of a submission: Create, CreateRecord or Exercise makes it.
type Command struct{ message *v2.Command }

// byName is the template in whatever version of its package the participant prefers.
func byName(template damlvalue.TypeName, pkgName string) *v2.Identifier {
	if template.PackageID == "" {
		template.PackageID = "#" + pkgName
	}
	return apivalue.Identifier(template)
}

// Create makes a contract of the model.
func Create(p wormhole.Payload) Command {
	record := wormhole.Encode(p)
	return CreateRecord(record.ID, wormhole.PackageName, record)
}

// CreateRecord makes a contract of any template. The template's package id may be empty: then the package is chosen by name.
func CreateRecord(template damlvalue.TypeName, pkgName string, argument damlvalue.Record) Command {
	return Command{&v2.Command{Command: &v2.Command_Create{Create: &v2.CreateCommand{
		TemplateId: byName(template, pkgName), CreateArguments: labelsOnly(argument),
	}}}}
}

// Exercise exercises a choice; the template's package id may be empty as for CreateRecord.
func Exercise(template damlvalue.TypeName, pkgName, contractID, choice string, argument damlvalue.Record) Command {
	return Command{&v2.Command{Command: &v2.Command_Exercise{Exercise: &v2.ExerciseCommand{
		TemplateId: byName(template, pkgName), ContractId: contractID, Choice: choice,
		ChoiceArgument: &v2.Value{Sum: &v2.Value_Record{Record: labelsOnly(argument)}},
	}}}}
}

// labelsOnly writes a record with its labels and without the names of types: package ids inside a value would tie the command to
// one package version.
func labelsOnly(r damlvalue.Record) *v2.Record {
	message := apivalue.RecordToProto(r, true)
	dropNames(&v2.Value{Sum: &v2.Value_Record{Record: message}})
	return message
}

func dropNames(v *v2.Value) {
	switch sum := v.GetSum().(type) {
	case *v2.Value_Record:
		sum.Record.RecordId = nil
		for _, f := range sum.Record.GetFields() {
			dropNames(f.GetValue())
		}
	case *v2.Value_List:
		for _, e := range sum.List.GetElements() {
			dropNames(e)
		}
	case *v2.Value_Optional:
		dropNames(sum.Optional.GetValue())
	case *v2.Value_GenMap:
		for _, e := range sum.GenMap.GetEntries() {
			dropNames(e.GetKey())
			dropNames(e.GetValue())
		}
	case *v2.Value_TextMap:
		for _, e := range sum.TextMap.GetEntries() {
			dropNames(e.GetValue())
		}
	}
}

// Disclosure is a contract that a submitter brings along because her participant does not know it.
type Disclosure struct {
	// Blob is the created event blob; the rest may be empty, and is compared with it if it is not.
	Blob       []byte
	ContractID string
	TemplateID damlvalue.TypeName
	// SynchronizerID ties the submission to one synchronizer.
	SynchronizerID string
}

// Disclose is the disclosure of a contract that one knows.
func Disclose(c ledger.Contract) Disclosure {
	return Disclosure{Blob: c.Blob, ContractID: c.ContractID, TemplateID: c.TemplateID, SynchronizerID: c.SynchronizerID}
}

// Submission is a list of commands that take effect together.
type Submission struct {
	// CommandID is what duplicates are recognised by; a random one is used if it is empty.
	CommandID     string
	ActAs, ReadAs []string
	Commands      []Command
	Disclosed     []Disclosure
	// SynchronizerID prescribes a synchronizer if it is not empty.
	SynchronizerID string
	// PackagePreference are package ids to prefer where a package is named by its name.
	PackagePreference []string
}

// Result is a committed transaction.
type Result struct {
	Offset         int64
	UpdateID       string
	SynchronizerID string
	// EffectiveAt is the ledger time, RecordTime the synchronizer's.
	EffectiveAt, RecordTime time.Time
	// Created are the contracts that the transaction made and left active, as far as a submitting party sees them (witnessed
	// contracts included), in order.
	Created []Created
	// Archived are the ids of the contracts that it archived, in order.
	Archived []string
}

// Created is a created contract. Payload is nil for templates that package wormhole does not decode.
type Created struct {
	ledger.Contract
	Argument damlvalue.Record
}

// First is the first created contract of the template, whatever its package version.
func (r *Result) First(template damlvalue.TypeName) (Created, bool) {
	for _, c := range r.Created {
		if c.TemplateID.QualifiedName() == template.QualifiedName() {
			return c, true
		}
	}
	return Created{}, false
}

// Submit submits and waits for the commit. A refusal by the participant is a *Rejection in the error's chain.
func (c *Client) Submit(ctx context.Context, s Submission) (*Result, error) {
	commands := &v2.Commands{
		UserId: c.userID, CommandId: s.CommandID, ActAs: s.ActAs, ReadAs: s.ReadAs, SynchronizerId: s.SynchronizerID,
		PackageIdSelectionPreference: s.PackagePreference,
	}
	if commands.GetCommandId() == "" {
		commands.CommandId = rand.Text()
	}
	for _, command := range s.Commands {
		commands.Commands = append(commands.Commands, command.message)
	}
	for _, d := range s.Disclosed {
		commands.DisclosedContracts = append(commands.DisclosedContracts, &v2.DisclosedContract{
			TemplateId: apivalue.Identifier(d.TemplateID), ContractId: d.ContractID, CreatedEventBlob: d.Blob, SynchronizerId: d.SynchronizerID,
		})
	}
	filters := map[string]*v2.Filters{}
	for _, p := range s.ActAs {
		filters[p] = &v2.Filters{Cumulative: []*v2.CumulativeFilter{{
			IdentifierFilter: &v2.CumulativeFilter_WildcardFilter{WildcardFilter: &v2.WildcardFilter{IncludeCreatedEventBlob: true}},
		}}}
	}
	answer, err := c.commands.SubmitAndWaitForTransaction(ctx, &v2.SubmitAndWaitForTransactionRequest{
		Commands: commands,
		TransactionFormat: &v2.TransactionFormat{
			EventFormat:      &v2.EventFormat{FiltersByParty: filters, Verbose: true},
			TransactionShape: v2.TransactionShape_TRANSACTION_SHAPE_LEDGER_EFFECTS,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("submit %s: %w", commands.GetCommandId(), rejected(err))
	}
	return resultOf(answer.GetTransaction())
}

func resultOf(t *v2.Transaction) (*Result, error) {
	r := &Result{
		Offset: t.GetOffset(), UpdateID: t.GetUpdateId(), SynchronizerID: t.GetSynchronizerId(),
		EffectiveAt: t.GetEffectiveAt().AsTime(), RecordTime: t.GetRecordTime().AsTime(),
	}
	over := map[string]bool{}
	for _, e := range t.GetEvents() {
		if x := e.GetExercised(); x.GetConsuming() {
			over[x.GetContractId()] = true
			r.Archived = append(r.Archived, x.GetContractId())
		}
	}
	for _, e := range t.GetEvents() {
		event := e.GetCreated()
		if event == nil || over[event.GetContractId()] {
			continue
		}
		created, err := createdOf(event, r)
		if err != nil {
			return nil, fmt.Errorf("read transaction at offset %d: %w", r.Offset, err)
		}
		r.Created = append(r.Created, created)
	}
	return r, nil
}

func createdOf(e *v2.CreatedEvent, r *Result) (Created, error) {
	argument, err := apivalue.RecordFromProto(e.GetCreateArguments())
	if err != nil {
		return Created{}, fmt.Errorf("contract %s: %w", e.GetContractId(), err)
	}
	c := ledger.Contract{
		ContractID: e.GetContractId(), TemplateID: apivalue.TypeName(e.GetTemplateId()), PackageName: e.GetPackageName(),
		SynchronizerID: r.SynchronizerID, Blob: e.GetCreatedEventBlob(), Signatories: e.GetSignatories(), Observers: e.GetObservers(),
		CreatedAt: e.GetCreatedAt().AsTime(), Offset: e.GetOffset(), UpdateID: r.UpdateID, RecordTime: r.RecordTime,
	}
	if payload, err := wormhole.Decode(c.TemplateID, argument); err == nil {
		c.Payload = payload
	}
	check, err := contractblob.Check(c.Blob, contractblob.Facts{
		ContractID: c.ContractID, TemplateID: c.TemplateID, PackageName: c.PackageName, Signatories: c.Signatories, Observers: c.Observers,
		CreatedAt: c.CreatedAt, Argument: argument,
	}, nil)
	if err != nil {
		c.BlobFault = err.Error()
	}
	c.BlobCheck = map[contractblob.Result]ledger.BlobCheck{
		contractblob.Verified: ledger.BlobVerified, contractblob.Unverifiable: ledger.BlobUnverifiable, contractblob.Mismatch: ledger.BlobMismatch,
	}[check]
	return Created{Contract: c, Argument: argument}, nil
}

// Reassignment is a committed unassignment or assignment.
type Reassignment struct {
	Offset   int64
	UpdateID string
	// ID names what is in flight; Assign takes it.
	ID             string
	Source, Target string
}

// Unassign takes a contract off its synchronizer, on its way to another. The submitter must be a stakeholder.
func (c *Client) Unassign(ctx context.Context, submitter, contractID, source, target string) (*Reassignment, error) {
	r, err := c.reassign(ctx, submitter, &v2.ReassignmentCommand{Command: &v2.ReassignmentCommand_UnassignCommand{
		UnassignCommand: &v2.UnassignCommand{ContractId: contractID, Source: source, Target: target}}})
	if err != nil {
		return nil, fmt.Errorf("unassign %s: %w", contractID, err)
	}
	return r, nil
}

// Assign ends the way of what is in flight.
func (c *Client) Assign(ctx context.Context, submitter string, of *Reassignment) (*Reassignment, error) {
	r, err := c.reassign(ctx, submitter, &v2.ReassignmentCommand{Command: &v2.ReassignmentCommand_AssignCommand{
		AssignCommand: &v2.AssignCommand{ReassignmentId: of.ID, Source: of.Source, Target: of.Target}}})
	if err != nil {
		return nil, fmt.Errorf("assign %s: %w", of.ID, err)
	}
	return r, nil
}

func (c *Client) reassign(ctx context.Context, submitter string, command *v2.ReassignmentCommand) (*Reassignment, error) {
	answer, err := c.commands.SubmitAndWaitForReassignment(ctx, &v2.SubmitAndWaitForReassignmentRequest{
		ReassignmentCommands: &v2.ReassignmentCommands{
			UserId: c.userID, CommandId: rand.Text(), Submitter: submitter, Commands: []*v2.ReassignmentCommand{command},
		},
		EventFormat: &v2.EventFormat{FiltersByParty: map[string]*v2.Filters{submitter: {}}},
	})
	if err != nil {
		return nil, rejected(err)
	}
	r := &Reassignment{Offset: answer.GetReassignment().GetOffset(), UpdateID: answer.GetReassignment().GetUpdateId()}
	for _, e := range answer.GetReassignment().GetEvents() {
		if u := e.GetUnassigned(); u != nil {
			r.ID, r.Source, r.Target = u.GetReassignmentId(), u.GetSource(), u.GetTarget()
		}
		if a := e.GetAssigned(); a != nil {
			r.ID, r.Source, r.Target = a.GetReassignmentId(), a.GetSource(), a.GetTarget()
		}
	}
	return r, nil
}
