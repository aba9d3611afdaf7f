package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Request is what to redeem.
type Request struct {
	// Consumer is the app's party whose replay trie it is. Required.
	Consumer string
	// PackageName is the name of the bridge's package, Anchors.PackageName where unset: contracts of other packages do not verify.
	PackageName string
	// Operator and Namespace choose among several tries of the consumer; unset matches any, and more than one match ends the redeem.
	// WithoutNamespace matches only tries of package versions that have none.
	Operator         string
	Namespace        *string
	WithoutNamespace bool
	// CoreStateContractID chooses among several CoreStates.
	CoreStateContractID string
	// VAA is the VAA's bytes. Or, where the caller's function consumes a bare digest, Digest: 64 hex digits. One of the two is required.
	VAA    []byte
	Digest string
}

// Prepared is all that a submission needs: valid now, and not for long.
type Prepared struct {
	// CommandID is what to submit under: the participant deduplicates by it. Leave the deduplication period at its default.
	CommandID string
	// Submission counts, from 1. Probe is set where a submission that got no answer is repeated unchanged, to learn whether it had
	// committed: the digest is consumed, so it can't do anything.
	Submission int
	Probe      bool

	// Digest is 64 hex digits.
	Digest string
	// The choice's arguments: those of CoreState's VerifyAndConsumeVAA, and of a redeem choice built on it. EncodedVAA is lowercase hex.
	// EncodedVAA and PubKeys are empty for a bare digest.
	EncodedVAA                                string
	PubKeys                                   []PubKey
	Consumer                                  string
	CoreStateContractID, ReplayNodeContractID string
	// Disclosures are CoreState and replay node. The app's own contract comes in addition where the submitter is no stakeholder of it.
	Disclosures []Disclosure
	// SynchronizerID is that of all disclosures.
	SynchronizerID string
	// Node and CoreState are what the blobs say.
	Node      Node
	CoreState CoreStateFacts
	// GuardianSetExpiresAt is when the VAA's guardian set stops to verify; zero is never, or not known.
	GuardianSetExpiresAt time.Time
	// Endpoint answered, as of At.
	Endpoint string
	At       Position

	// nodeUpdateID is the update that made the node, for reads that must not be older. packageName is the node's.
	nodeUpdateID, packageName string
}

// sameContracts reports whether two bundles disclose the same.
func (p *Prepared) sameContracts(other *Prepared) bool {
	return slices.EqualFunc(p.Disclosures, other.Disclosures, func(a, b Disclosure) bool {
		return a.ContractID == b.ContractID && a.TemplateID == b.TemplateID && a.SynchronizerID == b.SynchronizerID && bytes.Equal(a.Blob, b.Blob)
	})
}

// PubKey is a signing guardian's public key: 65 bytes, uncompressed, in lowercase hex ("04…").
type PubKey struct {
	GuardianIndex int64
	Key           string
}

// Disclosure is a contract to disclose.
type Disclosure struct {
	TemplateID TemplateID
	ContractID string
	// Blob is the created event blob.
	Blob           []byte
	SynchronizerID string
}

// TemplateID names a template of one package.
type TemplateID struct{ PackageID, ModuleName, EntityName string }

// String is "package id:Module:Entity", as the JSON Ledger API names templates.
func (t TemplateID) String() string { return t.PackageID + ":" + t.ModuleName + ":" + t.EntityName }

// Position is a place on a participant's ledger.
type Position struct {
	ParticipantID string
	Offset        int64
	UpdateID      string
	RecordTime    time.Time
}

// Submitted is a commit.
type Submitted struct {
	// UpdateID is the update that it made. Without one (a submission that nobody waited for) the outcome counts as unknown, and is read.
	UpdateID string
	// Offset is the completion's offset at the submitter's participant.
	Offset int64
}

// SubmitFunc submits and waits for the commit. It is called from one goroutine at a time, and must return soon after its context
// ended. Within one redeem it must submit to the same participant, as the same user and parties, under Prepared.CommandID. Its error is
// classified by the gRPC status or the *LedgerError in its chain; one that wraps ErrNotSubmitted ends the redeem.
type SubmitFunc func(ctx context.Context, prepared Prepared) (Submitted, error)

// CommandID is the command id of every submission for a digest in a trie: the same for the same trie and digest, whoever submits. The trie
// is named by all that makes its scope.
func CommandID(packageName, consumer, operator string, namespace *string, digest string) string {
	h := sha256.New()
	part := func(s string) { fmt.Fprintf(h, "%d:%s,", len(s), s) } // a hash never fails
	part("disclosed redeem 2")
	part(packageName)
	part(consumer)
	part(operator)
	if namespace != nil {
		part(*namespace)
	}
	part(digest)
	return "redeem-" + hex.EncodeToString(h.Sum(nil))
}

// Redeem redeems: it resolves, has submitted, and tries again until the digest is consumed or it is known why it can't be. The error is
// nil for Committed, Consumed and Invalid; it wraps ErrGaveUp or ErrUnknown, and what stood in the way, for the others. A request that is
// wrong gives an error and no state. See the package comment for the protocol.
func (c *Client) Redeem(ctx context.Context, request Request, submit SubmitFunc) (Outcome, error) {
	r, err := c.newRedeem(request, submit)
	if err != nil {
		return Outcome{}, fmt.Errorf("redeem: %w", err)
	}
	if r.rule != nil {
		return r.end(Outcome{State: Invalid, Reason: string(r.rule.Code), Message: r.rule.Message, Basis: BasisVAA}, nil)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, c.options.MaxTime, errBudget)
	defer cancel()
	outcome, err := r.run(bounded, nil)
	return r.end(outcome, err)
}

var errBudget = errors.New("the time for the redeem is over (Options.MaxTime)")

// redeem is one Redeem.
type redeem struct {
	c       *Client
	request Request
	submit  SubmitFunc
	begun   time.Time

	vaa     *wormhole.VAA
	digest  wormhole.Digest
	encoded string
	// rule is what is wrong with the VAA's encoding itself.
	rule *wormhole.Rule

	commandID string
	// next is a bundle to submit next, where reading anew is not wanted.
	next *Prepared
	// not are the contracts that just failed; after is the update that made the last node used.
	not   []string
	after string
	// inactive are the contracts, by where they were disclosed to be, that the ledger called inactive there: for good, unless they are
	// reassigned.
	inactive map[placed]bool
	// row is how many submissions did not commit, distrusted how many for what was disclosed, opinions how many were made with another
	// endpoint's bundle after one was refused for good, lacking how many in a row for contracts that the submission lacked.
	row, distrusted, opinions, lacking int
	// tired is the endpoint of the last bundles that went stale, tries how many these were in a row.
	tired string
	tries int
	// unanswered is how many rounds of questions in a row ended without an answer that counts; newSet is when the VAA's guardian set was first
	// found to be newer than CoreState.
	unanswered int
	newSet     time.Time
	// consumed: the ledger's model said that the digest is consumed. consumedBy is the update that did, while it is not known whose it is.
	consumed   *LedgerError
	consumedBy string
	// open are the submissions whose outcome is unknown: they may have committed, or may yet. One for each node, the latest. buried are those of
	// which services said that they are dead, and nobody else.
	open   []Prepared
	buried []burial
	// duplicate: the participant said that a submission under the command id has committed.
	duplicate *LedgerError
	// last is the last error of a submission or of the service.
	last error
	// judged are the verdicts on the VAA's signatures, by the guardian set that they were judged by.
	judged map[string]signedBy

	submissions, probes, answers int
	retries                      map[string]int
}

// placed is a contract on a synchronizer.
type placed struct{ contractID, synchronizerID string }

func (c *Client) newRedeem(request Request, submit SubmitFunc) (*redeem, error) {
	r := &redeem{c: c, request: request, submit: submit, begun: time.Now(), judged: map[string]signedBy{}, inactive: map[placed]bool{}, retries: map[string]int{}}
	if request.PackageName == "" {
		r.request.PackageName = c.options.Anchors.PackageName
	}
	switch {
	case submit == nil:
		return nil, errors.New("no function to submit")
	case request.Consumer == "":
		return nil, errors.New("Request.Consumer is empty")
	case request.Namespace != nil && request.WithoutNamespace:
		return nil, errors.New("Request.Namespace and Request.WithoutNamespace exclude each other")
	case (len(request.VAA) > 0) == (request.Digest != ""):
		return nil, errors.New("one of Request.VAA and Request.Digest is required")
	}
	if request.Digest != "" {
		var err error
		if r.digest, err = wormhole.ParseDigest(request.Digest); err != nil {
			return nil, fmt.Errorf("Request.Digest: %w", err)
		}
		return r, nil
	}
	vaa, err := wormhole.ParseVAA(request.VAA)
	if rule := wormhole.RuleOf(err); rule != nil {
		r.rule = rule
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("Request.VAA: %w", err)
	}
	// A sequence that the ledger has no number for fails while the VAA is read, before any state is looked at.
	anyState := (&wormhole.CoreState{}).VerifyWith(vaa, time.Time{}, wormhole.ActiveBefore, func(*wormhole.GuardianSet) error { return nil })
	if rule := wormhole.RuleOf(anyState); rule != nil && rule.Code == wormhole.RuleNumberTooLarge {
		r.rule = rule
		return r, nil
	}
	r.vaa, r.digest, r.encoded = vaa, vaa.Digest(), hex.EncodeToString(request.VAA)
	return r, nil
}

// run is the protocol's loop. It begins with the bundle first, unless that is nil.
func (r *redeem) run(ctx context.Context, first *Prepared) (Outcome, error) {
	for {
		var prepared Prepared
		if first == nil {
			first, r.next = r.next, nil
		}
		if first != nil && ctx.Err() == nil {
			prepared, first = *first, nil
		} else {
			var end *Outcome
			var err error
			if prepared, end, err = r.resolve(ctx); end != nil || err != nil {
				return r.ended(ctx, end, err)
			}
		}
		if r.submissions >= r.c.options.MaxSubmissions {
			return r.stopped(ctx, "BUDGET", fmt.Errorf("%d submissions did not commit (Options.MaxSubmissions)", r.submissions))
		}
		outcome, done, err := r.try(ctx, prepared)
		if done {
			return outcome, err
		}
	}
}

// ended is the end that reading came to, with an outcome or with an error: a *stopError, or why the context ended.
func (r *redeem) ended(ctx context.Context, end *Outcome, err error) (Outcome, error) {
	if end != nil {
		return *end, nil
	}
	var stop *stopError
	switch {
	case errors.As(err, &stop):
		return r.stopped(ctx, stop.reason, stop.err)
	case errors.Is(err, errBudget):
		return r.stopped(ctx, "BUDGET", err)
	default:
		return r.stopped(ctx, "CANCELLED", err)
	}
}

// stopError ends a redeem without a verdict.
type stopError struct {
	reason string
	err    error
}

func (e *stopError) Error() string { return e.reason + ": " + e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// stopped is GaveUp where nothing is open, else Unknown.
func (r *redeem) stopped(ctx context.Context, reason string, err error) (Outcome, error) {
	if r.last != nil && !errors.Is(err, r.last) {
		err = fmt.Errorf("%w; the last error was: %w", err, r.last)
	}
	o := Outcome{State: GaveUp, Reason: reason, Message: err.Error()}
	if r.submissions > 0 {
		o.Basis = BasisLedger
	}
	if r.duplicate == nil {
		r.exhume(ctx, &o)
	}
	if len(r.open) > 0 || r.duplicate != nil {
		return Outcome{State: Unknown, Reason: reason, Message: o.Message, Check: r.whatToCheck()}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if r.consumed != nil {
		// The ledger said so, and the service did not come to show by which update.
		o.State, o.Reason, o.Message = Consumed, alreadyConsumed, r.consumed.ModelMessage()
		return o, nil
	}
	return o, fmt.Errorf("%w: %w", ErrGaveUp, err)
}

const alreadyConsumed = "ALREADY_CONSUMED"

// whatToCheck says how the end of the open submissions is learned.
func (r *redeem) whatToCheck() string {
	if r.duplicate != nil {
		return fmt.Sprintf("the participant said that command %s has committed (completion offset %s), and the service did not show it yet: ask it again whether digest %s is consumed",
			r.commandID, r.duplicate.Metadata["completion_offset"], r.digest)
	}
	if r.consumedBy != "" {
		return fmt.Sprintf("whether update %s, which consumed digest %s, is ours: it is if its command id, which your participant shows to the submitting parties, is %s",
			r.consumedBy, r.digest, r.commandID)
	}
	node := r.open[len(r.open)-1].ReplayNodeContractID
	return fmt.Sprintf("whether digest %s is consumed, until it is or until replay node %s is archived without it (then the submission is dead); or the completion of command %s at your participant. Submitting again under that command id is safe",
		r.digest, node, r.commandID)
}

// try has one submission made and takes its outcome; done says whether that ends the redeem.
func (r *redeem) try(ctx context.Context, prepared Prepared) (outcome Outcome, done bool, err error) {
	r.submissions++
	prepared.Submission = r.submissions
	r.commandID = prepared.CommandID
	submitted, class, said, err := r.submitOnce(ctx, prepared, EventSubmitted)
	if err == nil && submitted.UpdateID != "" {
		return Outcome{State: Committed, UpdateID: submitted.UpdateID, Basis: BasisLedger}, true, nil
	}
	r.last = err
	r.row++
	r.retries[class.String()]++
	r.after, r.not = prepared.nodeUpdateID, nil
	pause := r.c.options.backoff(r.row)
	switch class {
	case ClassGiveUp:
		if aboutTheBundle(said) && !errors.Is(err, ErrNotSubmitted) && r.otherBundle(ctx, &prepared) {
			break
		}
		reason := "NOT_SUBMITTED"
		if said != nil {
			reason = reasonOf(said)
		}
		outcome, err = r.stopped(ctx, reason, fmt.Errorf("submitting: %w", err))
		return outcome, true, err
	case ClassRefused:
		if r.otherBundle(ctx, &prepared) {
			break
		}
		outcome, err = r.refused(ctx, said)
		return outcome, true, err
	case ClassDistrust:
		r.c.leave(prepared.Endpoint)
		if r.distrusted++; r.distrusted > len(r.c.endpoints) {
			outcome, err = r.stopped(ctx, reasonOf(said), fmt.Errorf("submitting, with bundles of every endpoint: %w", err))
			return outcome, true, err
		}
	case ClassRefresh:
		if r.refresh(said, &prepared); r.lacking >= maxLacking {
			outcome, err = r.stopped(ctx, reasonOf(said), fmt.Errorf("submitting, %d times in a row for want of contracts, the last time %q: %w", r.lacking, said.ContractIDs, err))
			return outcome, true, err
		}
	case ClassBackoff:
		// The hint is followed where it is about time. Where it is about a contract the successor counts.
		pause = max(pause, min(said.RetryAfter, r.c.options.BackoffMax))
	default:
		// Unknown, in flight, duplicate, consumed: the digest decides.
		switch class {
		case ClassDuplicate:
			r.duplicate = said
		case ClassConsumed:
			r.consumed = said
		}
		if class == ClassUnknown || class == ClassInFlight {
			r.leaveOpen(prepared)
		}
		end, err := r.settle(ctx, class == ClassDuplicate || class == ClassConsumed)
		if end != nil || err != nil {
			outcome, err = r.ended(ctx, end, err)
			return outcome, true, err
		}
	}
	if err := r.wait(ctx, pause); err != nil {
		outcome, err = r.ended(ctx, nil, err)
		return outcome, true, err
	}
	return outcome, false, nil
}

// refresh notes what a submission failed for that only a fresh bundle helps against.
func (r *redeem) refresh(said *LedgerError, prepared *Prepared) {
	failed, ofBundle := failedOf(said, prepared)
	r.not = failed
	if ofBundle && said.Reason != "CONTRACT_NOT_FOUND" {
		r.lacking = 0
	} else {
		r.lacking++
	}
	switch {
	case !ofBundle:
		return
	case said.Reason == inactive:
		for _, id := range failed {
			r.inactive[placed{id, prepared.SynchronizerID}] = true
		}
		// A submission needs its contracts active: those that name these can't commit any more.
		r.open = slices.DeleteFunc(r.open, func(p Prepared) bool { return r.stale(&p) })
		r.buried = slices.DeleteFunc(r.buried, func(b burial) bool { return r.stale(&b.Prepared) })
	case misplaced[said.Reason]:
		for _, d := range prepared.Disclosures {
			r.inactive[placed{d.ContractID, prepared.SynchronizerID}] = true
		}
	}
	if r.tries++; r.tired != prepared.Endpoint {
		r.tired, r.tries = prepared.Endpoint, 1
	}
}

// inactive is the ledger's word that a contract is archived, or not on this synchronizer, or was never there. misplaced are its words that the
// contracts are not where the disclosures say.
const inactive = "LOCAL_VERDICT_INACTIVE_CONTRACTS"

var misplaced = map[string]bool{
	"DISCLOSED_CONTRACTS_SYNCHRONIZER_ID_MISMATCH": true, "PRESCRIBED_SYNCHRONIZER_ID_MISMATCH": true, "INVALID_PRESCRIBED_SYNCHRONIZER_ID": true,
	"NO_SYNCHRONIZER_FOR_SUBMISSION": true, "SUBMITTER_ALWAYS_STAKEHOLDER": true,
}

// stale reports whether the ledger has called a contract of the bundle inactive where it is said to be.
func (r *redeem) stale(p *Prepared) bool {
	return r.inactive[placed{p.ReplayNodeContractID, p.SynchronizerID}] || r.inactive[placed{p.CoreStateContractID, p.SynchronizerID}]
}

// leaveOpen notes a submission whose outcome is unknown. All of a node share their fate and their command id.
func (r *redeem) leaveOpen(p Prepared) {
	r.open = append(slices.DeleteFunc(r.open, func(o Prepared) bool { return o.ReplayNodeContractID == p.ReplayNodeContractID }), p)
}

// aboutTheBundle reports whether a refusal may be due to what was disclosed. A blob's package id is covered by no hash, say.
func aboutTheBundle(said *LedgerError) bool {
	return said != nil && (said.Code == codes.InvalidArgument || said.Code == codes.FailedPrecondition || said.Code == codes.NotFound)
}

// submitOnce calls the caller's function, within its time.
func (r *redeem) submitOnce(ctx context.Context, prepared Prepared, kind EventKind) (Submitted, Class, *LedgerError, error) {
	bounded, cancel := context.WithTimeout(ctx, r.c.options.SubmitTimeout)
	defer cancel()
	begun := time.Now()
	submitted, err := r.submit(bounded, prepared)
	event := Event{Kind: kind, Endpoint: prepared.Endpoint, Took: time.Since(begun), Err: err}
	var class Class
	var said *LedgerError
	if err != nil || submitted.UpdateID == "" {
		class, said = ClassUnknown, nil
		if err != nil {
			class, said = Classify(err)
		}
		event.Class = class.String()
		if said != nil {
			event.Reason = reasonOf(said)
		}
	}
	r.observe(event)
	return submitted, class, said, err
}

// refused is the end where the model says no to the VAA or to the caller.
func (r *redeem) refused(ctx context.Context, said *LedgerError) (Outcome, error) {
	o := Outcome{State: Invalid, Reason: said.Reason, Message: said.ModelMessage(), Basis: BasisLedger}
	if r.exhume(ctx, &o); len(r.open) > 0 {
		return r.stopped(ctx, said.Reason, fmt.Errorf("submitting: %w", said))
	}
	return o, nil
}

// reasonOf is the error's id, or its code where it has none.
func reasonOf(e *LedgerError) string {
	if e.Reason != "" {
		return e.Reason
	}
	return e.Code.String()
}

// failedOf are the contracts of the bundle that the error names; where it names none of them, the node, which changes most. All of the
// bundle is read anew in any case: these are the ones whose successors are worth a wait. ofBundle is unset where the error is about
// contracts that are not of the bundle.
func failedOf(said *LedgerError, prepared *Prepared) (failed []string, ofBundle bool) {
	for _, id := range said.ContractIDs {
		if id == prepared.ReplayNodeContractID || id == prepared.CoreStateContractID {
			failed = append(failed, id)
		}
	}
	if len(failed) > 0 {
		return failed, true
	}
	return []string{prepared.ReplayNodeContractID}, len(said.ContractIDs) == 0
}

// maxLacking is how often in a row a submission may fail for contracts that it does not disclose, or that are not of the bundle: those the
// caller's function has to bring.
const maxLacking = 5

// wait waits, or returns why the context ended.
func (r *redeem) wait(ctx context.Context, d time.Duration) error {
	r.observe(Event{Kind: EventBackoff, Took: d})
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *redeem) observe(e Event) {
	if r.c.options.Observe == nil {
		return
	}
	e.Digest, e.Submission = r.digest.String(), r.submissions
	r.c.options.Observe(e)
}

// end completes the outcome.
func (r *redeem) end(o Outcome, err error) (Outcome, error) {
	o.Digest, o.CommandID = "", r.commandID
	if r.rule == nil {
		o.Digest = r.digest.String()
	}
	o.Submissions, o.Probes, o.Answers, o.Retries, o.Took = r.submissions, r.probes, r.answers, r.retries, time.Since(r.begun)
	r.observe(Event{Kind: EventEnd, Reason: o.State.String(), Took: o.Took, Err: err})
	if o.State == Unknown {
		r.c.options.Log.Warn("a redeem's outcome is unknown", "digest", o.Digest, "command_id", o.CommandID, "reason", o.Reason, "check", o.Check)
	}
	if err != nil {
		err = fmt.Errorf("redeem of digest %s: %w", o.Digest, err)
	}
	return o, err
}

// selector is the request's choice of a trie.
func (q *Request) selector() *disclosurev1.ScopeSelector {
	s := &disclosurev1.ScopeSelector{Consumer: q.Consumer, Operator: q.Operator, PackageName: q.PackageName}
	switch {
	case q.Namespace != nil:
		s.NamespaceChoice = &disclosurev1.ScopeSelector_Namespace{Namespace: *q.Namespace}
	case q.WithoutNamespace:
		s.NamespaceChoice = &disclosurev1.ScopeSelector_WithoutNamespace{WithoutNamespace: true}
	}
	return s
}
