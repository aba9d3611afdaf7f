package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// historyUnavailable: which update it was may be known when asked again. guardianSetIndex is the current one of the CoreState by which
	// the VAA is invalid.
	historyUnavailable bool
	guardianSetIndex   int64
	// node is the covering node's contract id, empty where an invalid VAA has none; offset is the answer's.
	node   string
	offset int64
	// provenAt and now are by the service's clock: since when the index was complete, and when it answered. Zero where not said. recordTime is
	// the ledger's, at the answer's offset.
	provenAt, now, recordTime time.Time
}

// reason is a stable name of what an answer without a bundle says.
func (a *answer) reason() string {
	if a.invalid != nil {
		return string(a.invalid.Code)
	}
	return alreadyConsumed
}

// withoutUpdate says why the update that consumed is not known, "" where it is.
func (a *answer) withoutUpdate() string {
	switch {
	case a.updateID != "":
		return ""
	case a.historyUnavailable:
		return "which update consumed the digest the service's history did not say in time; it may when asked again"
	default:
		return "which update consumed the digest the service's history does not know"
	}
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
		var end *Outcome
		var other *answer
		switch {
		case a.consumed:
			if end, err = r.attribute(ctx, a); end == nil && err == nil {
				end, other = r.consumedByAnother(ctx, a)
			}
		case a.invalid != nil && len(r.open) == 0:
			end, other = r.invalidBy(ctx, a)
		case a.invalid != nil:
			_, other = r.corroborate(ctx, a)
		default:
			return *a.prepared, nil, nil
		}
		switch {
		case other != nil:
			return *other.prepared, nil, nil
		case err != nil || a.consumed:
			return Prepared{}, end, err
		case r.awaitsSet(a):
			if err := r.wait(ctx, r.c.options.backoff(n)); err != nil {
				return Prepared{}, nil, err
			}
			continue
		}
		if end != nil {
			r.exhume(ctx, end)
		}
		if len(r.open) > 0 {
			return Prepared{}, nil, &stopError{string(a.invalid.Code), a.invalid}
		}
		return Prepared{}, end, nil
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

// order is the endpoints as this redeem asks them: the one whose bundles went stale again and again last.
func (r *redeem) order() []*endpoint {
	endpoints := r.c.order(time.Now())
	if r.tries >= maxTries {
		slices.SortStableFunc(endpoints, func(a, b *endpoint) int {
			switch {
			case a.name == r.tired:
				return 1
			case b.name == r.tired:
				return -1
			default:
				return 0
			}
		})
	}
	return endpoints
}

// maxTries is how many bundles in a row of one endpoint may go stale before another is asked first. In contention that is nobody's fault, and
// does no harm.
const maxTries = 3

// ask asks the endpoints in turn for a verified answer. Its error is a *stopError where asking again is no use.
func (r *redeem) ask(ctx context.Context, read *disclosurev1.ReadOptions) (*answer, error) {
	var errs []error
	var stop, unverified *stopError
	var stale *answer
	passes, down := false, false
	for _, e := range r.order() {
		a, err := r.question(ctx, e, read)
		if err == nil && a.prepared != nil && r.stale(a.prepared) {
			r.c.options.Log.Warn("an endpoint hands out again what the ledger called inactive", "endpoint", e.name, "node", a.node)
			r.observe(Event{Kind: EventNoAnswer, Endpoint: e.name, Reason: staleBundle})
			r.c.failed(e, time.Now())
			if stale == nil {
				stale = a
			}
			continue
		}
		if err == nil {
			r.c.answered(e)
			r.answers++
			r.unanswered = 0
			return a, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		reason, step := serviceStep(err)
		err = fmt.Errorf("asking %s: %w", e.name, err)
		errs = append(errs, err)
		switch {
		case errors.Is(err, errNotVerified):
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
		}
	}
	// Nobody has an answer that counts. What one endpoint says, and nobody can check, does not outweigh one that is down for a moment.
	r.unanswered++
	patient := (down || passes) && r.unanswered < maxUnanswered
	switch {
	case stale != nil && !patient:
		// The ledger may have brought a contract back to where it was, and asking it is all that is left.
		r.answers++
		return stale, nil
	case stale != nil:
		errs = append(errs, fmt.Errorf("%s hands out again what the ledger called inactive: %s", stale.from.name, stale.node))
	case passes:
	case stop != nil && !patient:
		return nil, stop
	case unverified != nil && !down && r.unanswered >= maxUnverified:
		return nil, unverified
	}
	return nil, errors.Join(errs...)
}

// maxUnverified is how many rounds in a row may end without an answer that verifies: an answer is made of several calls, and a contract
// may change in between. maxUnanswered is for how many rounds in a row endpoints that are down are waited for where another has said no, or has
// nothing but what is stale; some seconds, by the default backoff.
const (
	maxUnverified = 3
	maxUnanswered = 8
)

// question asks one endpoint, and lets it rest where it has no answer, or none that verifies.
func (r *redeem) question(ctx context.Context, e *endpoint, read *disclosurev1.ReadOptions) (*answer, error) {
	begun := time.Now()
	a, err := r.askOne(ctx, e, read)
	event := Event{Kind: EventAnswer, Endpoint: e.name, Took: time.Since(begun), Err: err}
	if err == nil {
		r.observe(event)
		return a, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	var step Step
	event.Kind = EventNoAnswer
	event.Reason, step = serviceStep(err)
	r.observe(event)
	if errors.Is(err, errNotVerified) {
		r.c.options.Log.Warn("an endpoint's answer does not verify", "endpoint", e.name, "error", err)
	}
	if step == StepElsewhere {
		r.c.failed(e, time.Now())
	}
	return nil, err
}

const (
	notVerified = "NOT_VERIFIED"
	staleBundle = "STALE_BUNDLE"
)

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
	if at := got.GetAnswer().GetPosition().GetRecordTime(); at != nil {
		a.recordTime = at.AsTime()
	}
	if f := got.GetAnswer().GetFreshness(); f.GetProvenAt() != nil {
		a.provenAt = f.GetProvenAt().AsTime()
		a.now = a.provenAt.Add(f.GetAge().AsDuration())
	}
	switch {
	case got.GetVerdict() == disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || got.GetConsumption() != nil:
		a.consumed, a.updateID, a.historyUnavailable = true, got.GetConsumption().GetUpdateId(), got.GetConsumption().GetHistoryUnavailable()
		return a, r.checkConsumed(ctx, e, got)
	case got.GetVerdict() == disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID:
		return a, r.checkInvalid(ctx, a, got)
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

// verifyClaimed verifies a disclosed contract, whose id must be claimed.
func verifyClaimed(d *disclosurev1.DisclosedContract, expected Expected) (*Report, error) {
	if d.GetContractId() == "" {
		return nil, errors.New("a disclosed contract has no contract id")
	}
	return Verify(d.GetCreatedEventBlob(), expected)
}

func commandIDOf(node *Report, digest string) string {
	return CommandID(node.PackageName, node.Node.Consumer, node.Node.Operator, node.Node.Namespace, digest)
}

// checkConsumed checks that a node that verifies holds the digest. The answer has no blob, so it is asked for.
func (r *redeem) checkConsumed(ctx context.Context, e *endpoint, got *disclosurev1.PrepareRedeemResponse) error {
	scope := r.request.selector()
	if s := got.GetReplayNode().GetScope(); s != nil {
		scope = selectorOf(s)
	}
	covering, err := e.api.GetCoveringNode(ctx, &disclosurev1.GetCoveringNodeRequest{Scope: scope, Digest: r.digest.String()})
	if err != nil {
		return changed(err)
	}
	d := covering.GetDisclosedContract()
	report, err := verifyClaimed(d, r.expectNode(d.GetContractId(), HeldPresent))
	if err != nil {
		return fmt.Errorf("%w: the digest is said to be consumed: %w", errNotVerified, err)
	}
	r.commandID = commandIDOf(report, r.digest.String())
	return nil
}

// changed is the error of the second call of two that make an answer. A no to what the first one named is no no to the request: the contract was
// archived in between, say.
func changed(err error) error {
	if _, step := serviceStep(err); step == StepStop {
		return fmt.Errorf("%w: what it named is not there any more: %w", errNotVerified, err)
	}
	return err
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

// checkInvalid checks that the VAA fails by a CoreState that verifies, and takes the rule from there.
func (r *redeem) checkInvalid(ctx context.Context, a *answer, got *disclosurev1.PrepareRedeemResponse) error {
	claimed := fmt.Sprintf("%s (%s)", got.GetFailedRule().GetCode(), got.GetFailedRule().GetMessage())
	if r.vaa == nil {
		return fmt.Errorf("%w: a bare digest is called invalid: %s", errNotVerified, claimed)
	}
	operator := r.request.Operator
	if operator == "" {
		operator = got.GetCoreState().GetOperator()
	}
	id := r.request.CoreStateContractID
	if id == "" {
		id = got.GetCoreState().GetContract().GetContractId()
	}
	core, err := a.from.api.GetCoreState(ctx, &disclosurev1.GetCoreStateRequest{Operator: operator, ContractId: id})
	if err != nil {
		return changed(err)
	}
	d := core.GetDisclosedContract()
	report, err := verifyClaimed(d, r.expectCoreState(d.GetContractId()))
	if err != nil {
		return fmt.Errorf("%w: the VAA is called invalid: %w", errNotVerified, err)
	}
	a.guardianSetIndex = report.core.GuardianSetIndex
	// Our clock may go slow; the service's, and the ledger's time that it saw, may be ahead.
	now := time.Now().Add(clockSlack)
	for _, seen := range []time.Time{a.now, a.recordTime} {
		if seen.After(now) {
			now = seen
		}
	}
	if _, a.invalid = r.verifyVAA(report.core, now); a.invalid != nil {
		return nil
	}
	return fmt.Errorf("%w: the VAA is called invalid, %s, and verifies by CoreState %s", errNotVerified, claimed, report.ContractID)
}

// clockSlack is how far the service's clock may be ahead of ours where a guardian set expires.
const clockSlack = 2 * time.Minute

// signedBy is the verdict on the VAA's signatures by one guardian set: the guardians' keys, or the rule that fails.
type signedBy struct {
	keys []wormhole.PubKey
	rule *wormhole.Rule
}

// verifyVAA is the ledger's verdict by a CoreState, given the guardians' own keys, and these keys.
func (r *redeem) verifyVAA(core *wormhole.CoreState, now time.Time) ([]wormhole.PubKey, *wormhole.Rule) {
	var signed signedBy
	err := core.VerifyWith(r.vaa, now, wormhole.ActiveBefore, func(set *wormhole.GuardianSet) error {
		// It costs milliseconds and is the same for the same keys.
		id := strings.Join(set.Keys, ",")
		known, ok := r.judged[id]
		if !ok {
			keys, err := set.RecoverSignatures(r.vaa)
			known = signedBy{keys, wormhole.RuleOf(err)}
			r.judged[id] = known
		}
		if signed = known; signed.rule != nil {
			return signed.rule
		}
		return nil
	})
	return signed.keys, wormhole.RuleOf(err)
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
			node, err = verifyClaimed(d, r.expectNode(nodeID, HeldAbsent))
		case coreID:
			core, err = verifyClaimed(d, r.expectCoreState(coreID))
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
	p.CommandID = commandIDOf(node, p.Digest)
	r.commandID = p.CommandID
	a.prepared = p
	if r.vaa == nil {
		return nil
	}
	// Whether the named set has expired is judged by the ledger's time, not by our clock, which may go fast; past that the ledger refuses.
	keys, rule := r.verifyVAA(core.core, a.recordTime)
	if rule != nil {
		a.prepared, a.invalid, a.guardianSetIndex = nil, rule, core.core.GuardianSetIndex
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
