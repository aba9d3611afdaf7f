package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// errNotVerified is wrapped by errors about answers that don't verify.
var errNotVerified = errors.New("the answer does not verify")

// answer is a verified answer about the digest.
type answer struct {
	from *endpoint
	// Exactly one is so: consumed (by updateID, empty where not known), invalid, or prepared is set.
	consumed bool
	updateID string
	invalid  *wormhole.Rule
	prepared *Prepared
	// node is the covering node's contract id, empty where an invalid VAA has none; offset is the answer's.
	node   string
	offset int64
	// provenAt and now are by the service's clock: since when the index was complete, and when it answered. Zero where not said.
	provenAt, now time.Time
}

// resolve reads until there is a bundle to submit with, or an end.
func (r *redeem) resolve(ctx context.Context) (Prepared, *Outcome, error) {
	for n := 1; ; n++ {
		read := &disclosurev1.ReadOptions{AfterUpdateId: r.after, NotContractIds: r.not}
		if r.after != "" || len(r.not) > 0 {
			read.Wait = durationpb.New(r.c.options.SuccessorWait)
		}
		a, err := r.ask(ctx, read)
		if err != nil {
			if err := r.again(ctx, n, err); err != nil {
				return Prepared{}, nil, err
			}
			continue
		}
		if len(r.open) > 0 && !a.consumed {
			r.bury(ctx, a)
		}
		switch {
		case a.consumed:
			end, err := r.attribute(ctx, a)
			return Prepared{}, end, err
		case a.invalid != nil && len(r.open) > 0:
			return Prepared{}, nil, &stopError{string(a.invalid.Code), a.invalid}
		case a.invalid != nil:
			return Prepared{}, &Outcome{State: Invalid, Reason: string(a.invalid.Code), Message: a.invalid.Message}, nil
		default:
			return *a.prepared, nil, nil
		}
	}
}

// again waits before the n-th repetition of a question whose error may pass; it returns the error that ends the redeem otherwise.
func (r *redeem) again(ctx context.Context, n int, err error) error {
	var stop *stopError
	if errors.As(err, &stop) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.last = err
	return r.wait(ctx, r.c.options.backoff(n))
}

// ask asks the endpoints in turn for a verified answer. Its error is a *stopError where asking again is no use.
func (r *redeem) ask(ctx context.Context, read *disclosurev1.ReadOptions) (*answer, error) {
	var errs []error
	var stop, unverified *stopError
	passes, down := false, false
	for _, e := range r.c.order(time.Now()) {
		begun := time.Now()
		a, err := r.askOne(ctx, e, read)
		event := Event{Kind: EventAnswer, Endpoint: e.name, Took: time.Since(begun), Err: err}
		if err == nil {
			r.c.answered(e)
			r.answers++
			r.unverified = 0
			r.observe(event)
			return a, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		reason, step := serviceStep(err)
		event.Kind, event.Reason = EventNoAnswer, reason
		r.observe(event)
		err = fmt.Errorf("asking %s: %w", e.name, err)
		errs = append(errs, err)
		switch {
		case errors.Is(err, errNotVerified):
			r.c.options.Log.Warn("an endpoint's answer does not verify", "endpoint", e.name, "error", err)
			r.c.failed(e, time.Now())
			unverified = &stopError{notVerified, err}
		case step == StepStop:
			if stop == nil {
				stop = &stopError{reason, err}
			}
		case step == StepAgain:
			passes = true
			if reason == "UPDATE_NOT_SEEN" {
				r.after, read.AfterUpdateId = "", ""
			}
		default:
			down = true
			r.c.failed(e, time.Now())
		}
	}
	if unverified != nil {
		r.unverified++
	}
	switch {
	case passes:
	case stop != nil:
		return nil, stop
	case unverified != nil && !down && r.unverified >= maxUnverified:
		return nil, unverified
	}
	return nil, errors.Join(errs...)
}

// maxUnverified is how many rounds in a row may end without an answer that verifies: an answer is made of several calls, and a contract
// may change in between.
const maxUnverified = 3

const notVerified = "NOT_VERIFIED"

// serviceStep is an error's reason and what to do.
func serviceStep(err error) (string, Step) {
	var stop *stopError
	switch {
	case errors.Is(err, errNotVerified):
		return notVerified, StepElsewhere
	case errors.As(err, &stop):
		return stop.reason, StepStop
	}
	st, ok := status.FromError(err)
	if !ok {
		return "ERROR", StepElsewhere
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if step, ok := serviceSteps[info.GetReason()]; ok {
				return info.GetReason(), step
			}
			return info.GetReason(), stepOfCode(st.Code())
		}
	}
	return st.Code().String(), stepOfCode(st.Code())
}

// stepOfCode is for reasons that are not in the table.
func stepOfCode(code codes.Code) Step {
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented:
		return StepStop
	default:
		return StepElsewhere
	}
}

// askOne asks one endpoint, and verifies what it says.
func (r *redeem) askOne(ctx context.Context, e *endpoint, read *disclosurev1.ReadOptions) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.options.CallTimeout+read.GetWait().AsDuration())
	defer cancel()
	request := &disclosurev1.PrepareRedeemRequest{Scope: r.request.selector(), CoreStateContractId: r.request.CoreStateContractID, Read: read}
	if r.vaa != nil {
		request.Subject = &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: r.request.VAA}
	} else {
		request.Subject = &disclosurev1.PrepareRedeemRequest_Digest{Digest: r.digest.String()}
	}
	got, err := e.api.PrepareRedeem(ctx, request)
	if err != nil {
		return nil, err
	}
	a := &answer{from: e, node: got.GetReplayNode().GetContract().GetContractId(), offset: got.GetAnswer().GetPosition().GetOffset()}
	if f := got.GetAnswer().GetFreshness(); f.GetProvenAt() != nil {
		a.provenAt = f.GetProvenAt().AsTime()
		a.now = a.provenAt.Add(f.GetAge().AsDuration())
	}
	switch {
	case got.GetVerdict() == disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || got.GetConsumption() != nil:
		a.consumed, a.updateID = true, got.GetConsumption().GetUpdateId()
		return a, r.checkConsumed(ctx, e, got)
	case got.GetVerdict() == disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID:
		a.invalid, err = r.checkInvalid(ctx, e, got)
		return a, err
	case redeemable(got.GetVerdict()):
		return a, r.checkRedeemable(a, got)
	default:
		// Of a newer service: nothing is submitted on what is not understood.
		return nil, &stopError{"UNKNOWN_VERDICT", fmt.Errorf("verdict %s is not known to this client", got.GetVerdict())}
	}
}

// redeemable reports whether a verdict comes with something to submit.
func redeemable(v disclosurev1.RedeemVerdict) bool {
	return v == disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE || v == disclosurev1.RedeemVerdict_REDEEM_VERDICT_EXPIRES_SOON ||
		v == disclosurev1.RedeemVerdict_REDEEM_VERDICT_NOT_CONSUMED
}

// expectNode is what the covering node must be.
func (r *redeem) expectNode(contractID string, held Held) Expected {
	anchors := &r.c.options.Anchors
	expected := Expected{
		ContractID: contractID, Template: ReplayNode, PackageName: r.request.PackageName, PackageIDs: anchors.PackageIDs, Operators: anchors.Operators,
		Consumer: r.request.Consumer, Namespace: r.request.Namespace, WithoutNamespace: r.request.WithoutNamespace,
		Digest: r.digest.String(), Held: held, AcceptUnverifiable: r.c.options.AcceptUnverifiable,
	}
	if r.request.Operator != "" {
		expected.Operators = []string{r.request.Operator}
	}
	return expected
}

// expectCoreState is what the CoreState must be.
func (r *redeem) expectCoreState(contractID string) Expected {
	anchors := &r.c.options.Anchors
	expected := Expected{
		ContractID: contractID, Template: CoreState, PackageName: r.request.PackageName, PackageIDs: anchors.PackageIDs, Operators: anchors.Operators,
		GuardianGovernance: anchors.GuardianGovernance, AcceptUnverifiable: r.c.options.AcceptUnverifiable,
	}
	if r.request.Operator != "" {
		expected.Operators = []string{r.request.Operator}
	}
	return expected
}

// checkConsumed checks that a genuine node holds the digest. The answer has no blob, so it is asked for.
func (r *redeem) checkConsumed(ctx context.Context, e *endpoint, got *disclosurev1.PrepareRedeemResponse) error {
	scope := r.request.selector()
	if s := got.GetReplayNode().GetScope(); s != nil {
		scope = selectorOf(s)
	}
	covering, err := e.api.GetCoveringNode(ctx, &disclosurev1.GetCoveringNodeRequest{Scope: scope, Digest: r.digest.String()})
	if err != nil {
		return err
	}
	d := covering.GetDisclosedContract()
	report, err := Verify(d.GetCreatedEventBlob(), r.expectNode(d.GetContractId(), HeldPresent))
	if err != nil {
		return fmt.Errorf("%w: the digest is said to be consumed: %w", errNotVerified, err)
	}
	r.commandID = CommandID(report.Node.Consumer, report.Node.Operator, report.Node.Namespace, r.digest.String())
	return nil
}

func selectorOf(s *disclosurev1.Scope) *disclosurev1.ScopeSelector {
	out := &disclosurev1.ScopeSelector{Consumer: s.GetConsumer(), Operator: s.GetOperator(), PackageName: s.GetPackageName()}
	if s.Namespace != nil {
		out.NamespaceChoice = &disclosurev1.ScopeSelector_Namespace{Namespace: s.GetNamespace()}
	} else {
		out.NamespaceChoice = &disclosurev1.ScopeSelector_WithoutNamespace{WithoutNamespace: true}
	}
	return out
}

// checkInvalid checks that the VAA fails by a genuine CoreState, and gives the rule.
func (r *redeem) checkInvalid(ctx context.Context, e *endpoint, got *disclosurev1.PrepareRedeemResponse) (*wormhole.Rule, error) {
	claimed := fmt.Sprintf("%s (%s)", got.GetFailedRule().GetCode(), got.GetFailedRule().GetMessage())
	if r.vaa == nil {
		return nil, fmt.Errorf("%w: a bare digest is called invalid: %s", errNotVerified, claimed)
	}
	operator := r.request.Operator
	if operator == "" {
		operator = got.GetCoreState().GetOperator()
	}
	id := r.request.CoreStateContractID
	if id == "" {
		id = got.GetCoreState().GetContract().GetContractId()
	}
	core, err := e.api.GetCoreState(ctx, &disclosurev1.GetCoreStateRequest{Operator: operator, ContractId: id})
	if err != nil {
		return nil, err
	}
	d := core.GetDisclosedContract()
	report, err := Verify(d.GetCreatedEventBlob(), r.expectCoreState(d.GetContractId()))
	if err != nil {
		return nil, fmt.Errorf("%w: the VAA is called invalid: %w", errNotVerified, err)
	}
	if _, rule := r.verifyVAA(report.core, time.Now().Add(clockSlack)); rule != nil {
		return rule, nil
	}
	return nil, fmt.Errorf("%w: the VAA is called invalid, %s, and verifies by CoreState %s", errNotVerified, claimed, report.ContractID)
}

// clockSlack is how far the service's clock may be ahead of ours where a guardian set expires.
const clockSlack = 2 * time.Minute

// verifyVAA is the ledger's verdict by a CoreState, and the keys that the submission brings.
func (r *redeem) verifyVAA(core *wormhole.CoreState, now time.Time) ([]wormhole.PubKey, *wormhole.Rule) {
	set, ok := core.GuardianSets[int64(r.vaa.GuardianSetIndex)]
	if !ok {
		return nil, wormhole.RuleOf(core.Verify(r.vaa, nil, now))
	}
	// Recovery and verification are the same for the same keys, and cost milliseconds; the expiry is looked at each time.
	id := strings.Join(set.Keys, ",")
	if keys, ok := r.keys[id]; ok {
		if !set.Active(now, wormhole.ActiveBefore) {
			return nil, wormhole.RuleOf(core.Verify(r.vaa, keys, now))
		}
		return keys, nil
	}
	keys, _ := r.vaa.RecoverKeys(&set) // what is wrong with a signature, Verify says in the ledger's words
	if rule := wormhole.RuleOf(core.Verify(r.vaa, keys, now)); rule != nil {
		return nil, rule
	}
	r.keys[id] = keys
	return keys, nil
}

// checkRedeemable verifies the bundle and makes of it what a submission needs.
func (r *redeem) checkRedeemable(a *answer, got *disclosurev1.PrepareRedeemResponse) error {
	nodeID, coreID := got.GetReplayNode().GetContract().GetContractId(), got.GetCoreState().GetContract().GetContractId()
	p := &Prepared{
		Digest: r.digest.String(), EncodedVAA: r.encoded, Consumer: r.request.Consumer, CoreStateContractID: coreID, ReplayNodeContractID: nodeID,
		Endpoint: a.from.name, At: positionOf(got.GetAnswer().GetPosition()), nodeUpdateID: got.GetReplayNode().GetContract().GetUpdateId(),
	}
	var node, core *Report
	for _, d := range got.GetDisclosedContracts() {
		var err error
		switch d.GetContractId() {
		case nodeID:
			node, err = Verify(d.GetCreatedEventBlob(), r.expectNode(nodeID, HeldAbsent))
		case coreID:
			core, err = Verify(d.GetCreatedEventBlob(), r.expectCoreState(coreID))
		default:
			continue // not of a redeem
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errNotVerified, err)
		}
		if p.SynchronizerID != "" && p.SynchronizerID != d.GetSynchronizerId() {
			return fmt.Errorf("%w: disclosures of two synchronizers, %s and %s", errNotVerified, p.SynchronizerID, d.GetSynchronizerId())
		}
		p.SynchronizerID = d.GetSynchronizerId()
		id := d.GetTemplateId()
		p.Disclosures = append(p.Disclosures, Disclosure{
			TemplateID: TemplateID{id.GetPackageId(), id.GetModuleName(), id.GetEntityName()}, ContractID: d.GetContractId(),
			Blob: d.GetCreatedEventBlob(), SynchronizerID: d.GetSynchronizerId(),
		})
		if at := &p.Disclosures[len(p.Disclosures)-1]; at.TemplateID.String() != reportOf(node, core, nodeID == d.GetContractId()).TemplateID {
			return fmt.Errorf("%w: the template id of %s is not that of its blob", errNotVerified, at.ContractID)
		}
	}
	switch {
	case node == nil || core == nil || len(p.Disclosures) != 2:
		return fmt.Errorf("%w: not CoreState and replay node, once each, are disclosed", errNotVerified)
	case node.Node == nil || core.core == nil:
		return fmt.Errorf("%w: the payload of a disclosure can't be read", errNotVerified)
	case node.Node.Operator != core.core.Operator:
		return fmt.Errorf("%w: CoreState and replay node are of two operators", errNotVerified)
	}
	p.Node, p.CoreState, p.packageName = *node.Node, *core.CoreState, node.PackageName
	p.CommandID = CommandID(p.Node.Consumer, p.Node.Operator, p.Node.Namespace, p.Digest)
	r.commandID = p.CommandID
	a.prepared = p
	if r.vaa == nil {
		return nil
	}
	// A set that has just expired by our clock is left for the ledger to refuse.
	keys, rule := r.verifyVAA(core.core, time.Now().Add(-clockSlack))
	if rule != nil {
		a.prepared, a.invalid = nil, rule
		return nil
	}
	for _, k := range keys {
		p.PubKeys = append(p.PubKeys, PubKey{GuardianIndex: k.Index, Key: k.Key})
	}
	if set := core.core.GuardianSets[int64(r.vaa.GuardianSetIndex)]; set.Expiration != nil {
		p.GuardianSetExpiresAt = *set.Expiration
	}
	return nil
}

func reportOf(node, core *Report, ofNode bool) *Report {
	if ofNode {
		return node
	}
	return core
}

func positionOf(p *disclosurev1.Position) Position {
	out := Position{ParticipantID: p.GetParticipantId(), Offset: p.GetOffset(), UpdateID: p.GetUpdateId()}
	if p.GetRecordTime() != nil {
		out.RecordTime = p.GetRecordTime().AsTime()
	}
	return out
}
