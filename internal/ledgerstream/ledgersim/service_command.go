package ledgersim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

type commandService struct {
	v2.UnimplementedCommandServiceServer
	sim *Sim
}

func (s commandService) SubmitAndWait(ctx context.Context, req *v2.SubmitAndWaitRequest) (*v2.SubmitAndWaitResponse, error) {
	u, err := s.submit(ctx, req.GetCommands())
	if err != nil {
		return nil, err
	}
	return &v2.SubmitAndWaitResponse{UpdateId: u.id, CompletionOffset: u.offset}, nil
}

func (s commandService) SubmitAndWaitForTransaction(ctx context.Context, req *v2.SubmitAndWaitForTransactionRequest) (*v2.SubmitAndWaitForTransactionResponse, error) {
	format, r := commandFormat(req)
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	s.sim.read(func(l *state) { r = format.check(l.packages) })
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	u, err := s.submit(ctx, req.GetCommands())
	if err != nil {
		return nil, err
	}
	t := format.transaction(u)
	if t == nil {
		// A transaction none of whose events is asked for is given without events.
		t = transactionHead(u)
		t.CommandId = u.commandID
	}
	return &v2.SubmitAndWaitForTransactionResponse{Transaction: t}, nil
}

// commandFormat is the format in which a submission's transaction is asked for: by default the stakeholders' view of the submitters,
// verbose and without blobs.
func commandFormat(req *v2.SubmitAndWaitForTransactionRequest) (*updateFormat, *rejection) {
	if req.GetTransactionFormat() != nil {
		f, effects, r := parseTransactionFormat(req.GetTransactionFormat())
		return &updateFormat{transactions: f, effects: effects}, r
	}
	f := &eventFormat{verbose: true, byParty: map[string]*filters{}}
	for _, p := range slices.Concat(req.GetCommands().GetActAs(), req.GetCommands().GetReadAs()) {
		f.byParty[p] = &filters{all: true}
	}
	return &updateFormat{transactions: f}, nil
}

func (s commandService) SubmitAndWaitForReassignment(ctx context.Context, req *v2.SubmitAndWaitForReassignmentRequest) (*v2.SubmitAndWaitForReassignmentResponse, error) {
	sub, format, r := parseReassignment(req)
	if r == nil {
		r = callerOf(ctx).mayAct(sub.userID, []string{sub.submitter}, nil)
	}
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	var u *update
	s.sim.change(func(l *state, now time.Time) { u, r = l.reassign(sub, now) })
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	if s.sim.losesAnswer() {
		return nil, errLostAnswer
	}
	return &v2.SubmitAndWaitForReassignmentResponse{Reassignment: (&updateFormat{reassignments: format}).reassignment(u)}, nil
}

func parseReassignment(req *v2.SubmitAndWaitForReassignmentRequest) (*reassignSubmission, *eventFormat, *rejection) {
	c := req.GetReassignmentCommands()
	sub := &reassignSubmission{userID: c.GetUserId(), commandID: c.GetCommandId(), workflowID: c.GetWorkflowId(), submitter: c.GetSubmitter()}
	switch {
	case c == nil:
		return nil, nil, missingField("reassignment_commands")
	case sub.userID == "":
		return nil, nil, missingUser(noUser)
	case sub.commandID == "":
		return nil, nil, missingField("command_id")
	case sub.submitter == "":
		return nil, nil, missingField("submitter")
	case len(c.GetCommands()) == 0:
		return nil, nil, missingField("commands")
	}
	for _, one := range c.GetCommands() {
		switch kind := one.GetCommand().(type) {
		case *v2.ReassignmentCommand_UnassignCommand:
			sub.commands = append(sub.commands, reassignCommand{unassign: true, contractID: kind.UnassignCommand.GetContractId(),
				source: kind.UnassignCommand.GetSource(), target: kind.UnassignCommand.GetTarget()})
		case *v2.ReassignmentCommand_AssignCommand:
			sub.commands = append(sub.commands, reassignCommand{reassignmentID: kind.AssignCommand.GetReassignmentId(),
				source: kind.AssignCommand.GetSource(), target: kind.AssignCommand.GetTarget()})
		default:
			return nil, nil, missingField("command")
		}
	}
	if req.GetEventFormat() == nil {
		return sub, &eventFormat{byParty: map[string]*filters{sub.submitter: {all: true}}}, nil
	}
	format, r := parseEventFormat(req.GetEventFormat())
	return sub, format, r
}

// errLostAnswer is what a client sees whose connection broke after its command was taken: the outcome is unknown to it.
var errLostAnswer = status.Error(codes.Unavailable, "error reading from server: EOF")

// submit runs a submission to its commit. Once its inputs are locked it commits, even if the client is gone.
func (s commandService) submit(ctx context.Context, c *v2.Commands) (*update, error) {
	sub, r := parseCommands(callerOf(ctx), c, s.sim)
	if r != nil {
		return nil, s.sim.asStatus(r, sub)
	}
	var p *pending
	var on *state
	s.sim.change(func(l *state, now time.Time) {
		on = l
		p, r = l.begin(sub, now)
	})
	if r != nil {
		return nil, s.sim.asStatus(r, sub)
	}
	done := make(chan *update, 1)
	s.sim.work.Add(1)
	go func() {
		defer s.sim.work.Done()
		done <- s.sim.commit(on, p)
	}()
	select {
	case u := <-done:
		switch {
		case u == nil:
			return nil, s.sim.asStatus(reject(transient, "ABORTED_DUE_TO_SHUTDOWN", "request aborted due to shutdown"), sub)
		case s.sim.losesAnswer():
			return nil, errLostAnswer
		default:
			return u, nil
		}
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// commit waits for the commit latency and commits; nil if the ledger was replaced meanwhile.
func (s *Sim) commit(on *state, p *pending) *update {
	var latency <-chan time.Time = closedTimer
	if s.options.CommitLatency > 0 {
		latency = s.options.Clock.After(s.options.CommitLatency)
	}
	select {
	case <-latency:
	case <-on.broken:
		return nil
	}
	select {
	case <-s.commitGate():
	case <-on.broken:
		return nil
	}
	var u *update
	s.change(func(l *state, now time.Time) {
		if l == on && !l.isBroken() {
			u = l.finish(p, now)
		}
	})
	return u
}

// closedTimer fires at once.
var closedTimer = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

func (l *state) isBroken() bool {
	select {
	case <-l.broken:
		return true
	default:
		return false
	}
}

const noUser = "Cannot default user_id field because claims do not specify an user-id. Is authentication turned on?"

// parseCommands validates a submission in a participant's order. The submission is returned even with a rejection: errors name it.
func parseCommands(from *caller, c *v2.Commands, s *Sim) (*submission, *rejection) {
	sub := &submission{
		userID: c.GetUserId(), commandID: c.GetCommandId(), workflowID: c.GetWorkflowId(), submissionID: c.GetSubmissionId(),
		actAs: sorted(c.GetActAs()), readAs: sorted(c.GetReadAs()), synchronizer: c.GetSynchronizerId(),
		packagePreference: c.GetPackageIdSelectionPreference(), submittedAt: s.options.Clock.Now(),
	}
	if sub.submissionID == "" {
		s.ids.Lock()
		sub.submissionID = s.ids.random.uuid()
		s.ids.Unlock()
	}
	if sub.userID == "" && from != nil {
		sub.userID = from.userID
	}
	if r := from.mayAct(sub.userID, sub.actAs, sub.readAs); r != nil {
		return sub, r
	}
	switch {
	case c == nil:
		return sub, missingField("commands")
	case sub.userID == "":
		return nil, missingUser(noUser)
	case sub.commandID == "":
		return sub, missingField("command_id")
	case len(sub.actAs) == 0:
		return sub, missingField("party or act_as")
	case len(c.GetCommands()) == 0:
		return sub, missingField("commands")
	}
	for _, p := range slices.Concat(sub.actAs, sub.readAs) {
		if err := checkParty(p); err != nil {
			return sub, invalidField("act_as", err)
		}
	}
	if sub.synchronizer != "" {
		if err := checkSynchronizer(sub.synchronizer); err != nil {
			return sub, invalidField("synchronizer_id", err)
		}
	}
	for _, one := range c.GetCommands() {
		parsed, r := parseCommand(one)
		if r != nil {
			return sub, r
		}
		sub.commands = append(sub.commands, parsed)
	}
	disclosed, r := parseDisclosures(c.GetDisclosedContracts())
	sub.disclosed = disclosed
	return sub, r
}

func parseCommand(c *v2.Command) (command, *rejection) {
	switch kind := c.GetCommand().(type) {
	case *v2.Command_Create:
		out := command{create: true}
		return out, fillCommand(&out, kind.Create.GetTemplateId(), kind.Create.GetCreateArguments(), "", "", nil)
	case *v2.Command_Exercise:
		out := command{exercise: true}
		e := kind.Exercise
		r := fillCommand(&out, e.GetTemplateId(), nil, e.GetContractId(), e.GetChoice(), e.GetChoiceArgument())
		return out, r
	case *v2.Command_CreateAndExercise:
		out := command{create: true, exercise: true}
		e := kind.CreateAndExercise
		r := fillCommand(&out, e.GetTemplateId(), e.GetCreateArguments(), "", e.GetChoice(), e.GetChoiceArgument())
		return out, r
	default:
		return command{}, missingField("command")
	}
}

func fillCommand(out *command, id *v2.Identifier, arguments *v2.Record, contractID, choice string, choiceArgument *v2.Value) *rejection {
	if id == nil {
		return missingField("template_id")
	}
	out.template = apivalue.TypeName(id)
	if out.create {
		if arguments == nil {
			return missingField("create_arguments")
		}
		rec, err := apivalue.RecordFromProto(arguments)
		if err != nil {
			return valueFault(err)
		}
		out.argument = rec
	}
	if !out.exercise {
		return nil
	}
	if !out.create {
		if contractID == "" {
			return missingField("contract_id")
		}
		if err := checkContractID(contractID); err != nil {
			return invalidField("contract_id", err)
		}
		out.contractID = contractID
	}
	if choice == "" {
		return missingField("choice")
	}
	if choiceArgument == nil {
		return missingField("value")
	}
	v, err := apivalue.FromProto(choiceArgument)
	if err != nil {
		return valueFault(err)
	}
	out.choice, out.choiceArg = choice, v
	return nil
}

// valueFault is an error in a value's own form. A value nested too deep passes this far on a participant and fails by its type.
func valueFault(err error) *rejection {
	if errors.Is(err, apivalue.ErrMissing) {
		return missingField("value")
	}
	return preprocessingFailed(err)
}

// parseDisclosures decodes every disclosed contract; whether one is any good shows only if it is used.
func parseDisclosures(list []*v2.DisclosedContract) ([]disclosure, *rejection) {
	var out []disclosure
	blobs := map[string]string{}
	for _, d := range list {
		parsed, r := parseDisclosure(d)
		if r != nil {
			return nil, r
		}
		id := parsed.contract.ContractID.String()
		if blob, ok := blobs[id]; ok && blob != string(d.GetCreatedEventBlob()) {
			return nil, reject(securityAlert, "DISCLOSED_CONTRACTS_CONFLICTING_PAYLOADS", "two payloads for one contract id")
		}
		blobs[id] = string(d.GetCreatedEventBlob())
		out = append(out, parsed)
	}
	return out, nil
}

func parseDisclosure(d *v2.DisclosedContract) (disclosure, *rejection) {
	if len(d.GetCreatedEventBlob()) == 0 {
		return disclosure{}, missingField("DisclosedContract.createdEventBlob")
	}
	if id := d.GetContractId(); id != "" {
		if err := checkContractID(id); err != nil {
			return disclosure{}, invalidField("DisclosedContract.contract_id", err)
		}
	}
	if id := d.GetTemplateId(); id != nil && strings.HasPrefix(id.GetPackageId(), "#") {
		return disclosure{}, invalidField("package_id", fmt.Errorf("non expected character 0x23 in Daml-LF Package ID %q", id.GetPackageId()))
	}
	if sync := d.GetSynchronizerId(); sync != "" {
		if err := checkSynchronizer(sync); err != nil {
			return disclosure{}, invalidField("DisclosedContract.synchronizer_id", err)
		}
	}
	contract, unauthentic, err := decodeBlob(d.GetCreatedEventBlob())
	if err != nil {
		return disclosure{}, invalidArguments("Unable to decode disclosed contract event payload: DecodeError(%s)", err)
	}
	if id := d.GetContractId(); id != "" && id != contract.ContractID.String() {
		return disclosure{}, mismatchedDisclosure("contract_id", id, contract.ContractID.String())
	}
	if d.GetTemplateId() != nil {
		if given := apivalue.TypeName(d.GetTemplateId()); given != contract.TemplateID {
			return disclosure{}, mismatchedDisclosure("template_id", given.String(), contract.TemplateID.String())
		}
	}
	contract.Argument = trimNones(contract.Argument)
	return disclosure{contract: contract, synchronizer: d.GetSynchronizerId(), unauthentic: unauthentic}, nil
}

// knownAuthentication is the version of a blob's authentication data, the last byte of every blob.
const knownAuthentication = 30

// decodeBlob decodes a blob as a participant does: it does not look at the version of the authentication data until the contract is used,
// and then fails on an unknown one.
func decodeBlob(blob []byte) (c *contractblob.Contract, unauthentic bool, err error) {
	c, err = contractblob.Decode(blob)
	last := len(blob) - 1
	if !errors.Is(err, contractblob.ErrUnsupported) || blob[last] == knownAuthentication {
		return c, false, err //nolint:wrapcheck // the caller says of what
	}
	known := slices.Clone(blob)
	known[last] = knownAuthentication
	if c, err := contractblob.Decode(known); err == nil {
		return c, true, nil
	}
	return nil, false, err //nolint:wrapcheck // as above
}

func mismatchedDisclosure(field, given, inside string) *rejection {
	return invalidArguments("Mismatch between DisclosedContract.%s (%s) and %s from decoded DisclosedContract.created_event_blob (%s)", field, given, field, inside)
}

// checkSynchronizer says what is wrong with a synchronizer's id, in the participant's words. The physical id, with a serial and a
// protocol version behind it, is not one.
func checkSynchronizer(id string) error {
	name, fingerprint, ok := strings.Cut(id, "::")
	switch {
	case !ok || name == "" || fingerprint == "":
		return fmt.Errorf("Invalid unique identifier `%s` with missing namespace.", id)
	case strings.Contains(fingerprint, "::"):
		return fmt.Errorf("Invalid unique identifier `%s`", id)
	default:
		return nil
	}
}
