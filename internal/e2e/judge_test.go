package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// judge compares the service's answers with the ledger. Its methods are safe for concurrent use.
type judge struct {
	t testing.TB
	w *world
	// history says that the service knows how each contract ended and who consumed each digest from the offset since on.
	history bool
	since   int64

	// ledger is held while an answer is judged, and while the ledger is made another.
	ledger sync.RWMutex

	mu sync.Mutex
	// changed is when the ledger last became another one: what was proven before is not judged by what is there now, until the service knows
	// of it, which is learned: from then on nothing of the former ledger may be served. Both are zero while nothing of it has happened.
	changed, learned time.Time
	// foreign says that no contract of the ledger counts for the service.
	foreign bool
	// floor is the offset below which the ledger was pruned: the truth is not told there any more.
	floor int64
	// expected are the reasons that an error may have.
	expected map[string]bool
	// answers and errors count by call, and by reason.
	answers, errors map[string]int
	wrongs          []string
	wrongN          int
	// attributed answers say by which update a digest was consumed, unattributed ones that history did not answer in time.
	attributed, unattributed int
	// marks are commits in the order in which they were known, with the greatest offset so far: what was known before a moment has to
	// be in an index that was proven complete at that moment.
	marks []mark
	// consumed are digests that were consumed, by app; ends are nodes that were consumed on.
	consumed []consumption
	ends     map[string]end
	endIDs   []string
}

type mark struct {
	known  time.Time
	offset int64
}

type consumption struct {
	app    *devnet.App
	digest wormhole.Digest
}

// end is what became of a node.
type end struct {
	offset     int64
	updateID   string
	successors []string
}

// unavailable is the reason of a call that reached no service: one that is dead, starting or gone.
const unavailable = "(no service)"

// newJudge makes a judge for whom no answer is not a wrong one: not seeded, not proven, stale, stopping, not there.
func newJudge(t testing.TB, w *world) *judge {
	j := &judge{t: t, w: w, answers: map[string]int{}, errors: map[string]int{}, ends: map[string]end{}, expected: map[string]bool{}}
	j.expect("NOT_SEEDED", "NOT_READY", "STALE", "SHUTTING_DOWN", unavailable)
	t.Cleanup(j.verdict)
	return j
}

// expect lets errors have these reasons too.
func (j *judge) expect(reasons ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range reasons {
		j.expected[r] = true
	}
}

// remembers says that the service's history reaches back to the offset and survives restarts.
func (j *judge) remembers(since int64) { j.history, j.since = true, since }

// wrong notes a wrong answer.
func (j *judge) wrong(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wrongN++
	if len(j.wrongs) < 10 {
		j.wrongs = append(j.wrongs, fmt.Sprintf(format, args...))
	}
}

// verdict fails the test where an answer was wrong.
func (j *judge) verdict() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.wrongN > 0 {
		j.t.Errorf("%d wrong answers, of them:\n%s", j.wrongN, strings.Join(j.wrongs, "\n"))
	}
	// A history that is said to be away is no wrong answer, but one that always is were no history.
	if n := j.attributed + j.unattributed; j.history && j.unattributed > unattributedFew && j.unattributed*unattributedPart > n {
		j.t.Errorf("of %d answers about consumed digests, %d say that history is not available", n, j.unattributed)
	}
}

// Of a service with a history that nobody takes away, no more answers than a tenth may be without it, but for a few.
const (
	unattributedFew  = 10
	unattributedPart = 10
)

// total is how many answers were judged, and a summary of them.
func (j *judge) total() (n int, summary string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, count := range j.answers {
		n += count
	}
	return n, fmt.Sprintf("answers %s; consumed by a named update %d, history unavailable %d; errors %s; wrong %d",
		counts(j.answers), j.attributed, j.unattributed, counts(j.errors), j.wrongN)
}

// knewByWhom fails the test where no answer at all said by which update a digest was consumed; how many did not, verdict looks at.
func (j *judge) knewByWhom() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.attributed == 0 {
		j.t.Error("no answer said by which update a digest was consumed")
	}
}

func counts(m map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s=%d", key, m[key]))
	}
	return strings.Join(parts, " ")
}

// committed notes a consume that the ledger has confirmed.
func (j *judge) committed(app *devnet.App, digest wormhole.Digest, node string, result *submit.Result) {
	e := end{offset: result.Offset, updateID: result.UpdateID}
	for _, c := range result.Created {
		e.successors = append(e.successors, c.ContractID)
	}
	slices.Sort(e.successors)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.consumed = append(j.consumed, consumption{app, digest})
	j.ends[node] = e
	j.endIDs = append(j.endIDs, node)
	latest := result.Offset
	if n := len(j.marks); n > 0 {
		latest = max(latest, j.marks[n-1].offset)
	}
	j.marks = append(j.marks, mark{time.Now(), latest})
}

// knownBefore is the greatest offset that was known to be committed before the moment.
func (j *judge) knownBefore(moment time.Time) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, _ := slices.BinarySearchFunc(j.marks, moment, func(m mark, at time.Time) int { return m.known.Compare(at) })
	if n == 0 {
		return 0
	}
	return j.marks[n-1].offset
}

// become changes the ledger under the service: what was known of it is dropped, and answers that were proven complete before are not
// judged any more. w is the world that is there then, and authentic says that its contracts are of the anchors that the service has:
// else none is served.
func (j *judge) become(w *world, authentic bool, change func()) {
	j.ledger.Lock()
	defer j.ledger.Unlock()
	change()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.w, j.changed, j.learned, j.foreign = w, time.Now(), time.Time{}, !authentic
	j.marks, j.consumed, j.ends, j.endIDs = nil, nil, map[string]end{}, nil
}

// learn notes that the service was seen to know that the ledger has become another.
func (j *judge) learn() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.changed.IsZero() && j.learned.IsZero() {
		j.learned = time.Now()
	}
}

// prune prunes the ledger up to its end: below, the truth is not told any more.
func (j *judge) prune() {
	j.ledger.Lock()
	defer j.ledger.Unlock()
	end := j.world().sim.LedgerEnd()
	j.world().sim.PruneTo(end)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.floor = end
}

func (j *judge) isForeign() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.foreign
}

// world is the ledger that answers are judged by.
func (j *judge) world() *world {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.w
}

// former tells whether an answer is not to be judged, because it is of a ledger that is pruned by now, or from before the ledger became
// another. One to a call that was begun when the service knew of that is wrong.
func (j *judge) former(call string, begun time.Time, answer *disclosurev1.Answer) bool {
	j.mu.Lock()
	pruned := answer.GetPosition().GetOffset() < j.floor
	former := !j.changed.IsZero() && !answer.GetFreshness().GetProvenAt().AsTime().After(j.changed)
	known := !j.learned.IsZero() && begun.After(j.learned)
	j.mu.Unlock()
	if former && known {
		j.wrong("%s: an answer at offset %d, proven at %s, of a ledger that another one had replaced, as the service knew", call,
			answer.GetPosition().GetOffset(), answer.GetFreshness().GetProvenAt().AsTime())
	}
	return pruned || former
}

// pick is a digest: one that was consumed, as a rule lately, or a new one.
func (j *judge) pick() consumption {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := len(j.consumed); n > 0 && rand.IntN(2) == 0 {
		return j.consumed[n-1-rand.IntN(min(n, 1+rand.IntN(200)))]
	}
	return consumption{j.w.Apps[rand.IntN(len(j.w.Apps))], newDigest()}
}

func (j *judge) pickEnded() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := len(j.endIDs); n > 0 {
		return j.endIDs[n-1-rand.IntN(min(n, 1+rand.IntN(200)))]
	}
	return j.w.Apps[0].Root
}

// readers ask and judge all the time.
type readers struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// startReaders begins so many readers of the service's API, until stop or the test's end; each waits pause
// between two calls. target gives the API to ask, anew for each call.
func startReaders(j *judge, n int, pause time.Duration, target func() disclosurev1.DisclosureServiceClient) *readers {
	ctx, cancel := context.WithCancel(context.Background())
	r := &readers{cancel: cancel}
	for range n {
		r.done.Go(func() {
			for ctx.Err() == nil {
				wait := pause
				if !j.ask(ctx, target()) {
					wait = max(wait, 5*time.Millisecond) // nobody there: don't spin
				}
				if wait > 0 {
					select {
					case <-time.After(wait):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	j.t.Cleanup(r.stop)
	return r
}

// stop ends the readers and waits for them.
func (r *readers) stop() {
	r.cancel()
	r.done.Wait()
}

// ask makes one call of some kind, judges what comes, and tells whether an answer came.
func (j *judge) ask(ctx context.Context, api disclosurev1.DisclosureServiceClient) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	switch n := rand.IntN(10); {
	case n < 4:
		return j.askPrepare(ctx, api)
	case n < 7:
		return j.askCovering(ctx, api)
	case n < 8:
		return j.askBatch(ctx, api)
	case n < 9:
		return j.askFate(ctx, api)
	default:
		return j.askCore(ctx, api)
	}
}

func (j *judge) prepareRequest(c consumption) *disclosurev1.PrepareRedeemRequest {
	return &disclosurev1.PrepareRedeemRequest{
		Scope:   &disclosurev1.ScopeSelector{Consumer: c.app.Consumer},
		Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: c.digest.String()},
	}
}

func (j *judge) askPrepare(ctx context.Context, api disclosurev1.DisclosureServiceClient) bool {
	c := j.pick()
	begun := time.Now()
	answer, err := api.PrepareRedeem(ctx, j.prepareRequest(c))
	if !j.came(ctx, "PrepareRedeem", err) {
		return false
	}
	j.ledger.RLock()
	defer j.ledger.RUnlock()
	if j.former("PrepareRedeem", begun, answer.Answer) {
		return true
	}
	j.checkPrepare(c, answer.Answer, answer)
	return true
}

func (j *judge) askBatch(ctx context.Context, api disclosurev1.DisclosureServiceClient) bool {
	var asked []consumption
	request := &disclosurev1.BatchPrepareRedeemRequest{}
	for range 5 {
		c := j.pick()
		asked = append(asked, c)
		request.Items = append(request.Items, j.prepareRequest(c))
	}
	begun := time.Now()
	answer, err := api.BatchPrepareRedeem(ctx, request)
	if !j.came(ctx, "BatchPrepareRedeem", err) {
		return false
	}
	j.ledger.RLock()
	defer j.ledger.RUnlock()
	if j.former("BatchPrepareRedeem", begun, answer.Answer) {
		return true
	}
	for i, item := range answer.Items {
		if e := item.GetError(); e != nil {
			j.refused("BatchPrepareRedeem", e.Reason, e.Message, e.Metadata)
			continue
		}
		j.checkPrepare(asked[i], answer.Answer, item.GetResponse())
	}
	return true
}

func (j *judge) checkPrepare(c consumption, at *disclosurev1.Answer, answer *disclosurev1.PrepareRedeemResponse) {
	consumed := answer.Verdict == disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED
	j.checkNode("PrepareRedeem", c, at, answer.ReplayNode, consumed, answer.Consumption)
	if core := answer.CoreState.GetContract(); core != nil {
		j.checkContract("PrepareRedeem's CoreState", at, core, j.world().sim.ActiveAt(core.ContractId, at.Position.Offset))
	}
	if consumed {
		if len(answer.DisclosedContracts) != 0 {
			j.wrong("%d disclosures for a digest that is consumed", len(answer.DisclosedContracts))
		}
		return
	}
	want := map[string]bool{answer.ReplayNode.GetContract().GetContractId(): true, answer.CoreState.GetContract().GetContractId(): true}
	if len(answer.DisclosedContracts) != 2 {
		j.wrong("%d disclosures for a redeem", len(answer.DisclosedContracts))
	}
	for _, d := range answer.DisclosedContracts {
		truth := j.world().sim.ActiveAt(d.ContractId, at.Position.Offset)
		if !want[d.ContractId] || len(truth) != 1 || !bytes.Equal(truth[0].Blob, d.CreatedEventBlob) || truth[0].SynchronizerID != d.SynchronizerId {
			j.wrong("at offset %d the disclosure of %s is not that of the ledger", at.Position.Offset, d.ContractId)
		}
	}
}

func (j *judge) askCovering(ctx context.Context, api disclosurev1.DisclosureServiceClient) bool {
	c := j.pick()
	begun := time.Now()
	answer, err := api.GetCoveringNode(ctx, &disclosurev1.GetCoveringNodeRequest{
		Scope: &disclosurev1.ScopeSelector{Consumer: c.app.Consumer}, Digest: c.digest.String(),
	})
	if !j.came(ctx, "GetCoveringNode", err) {
		return false
	}
	j.ledger.RLock()
	defer j.ledger.RUnlock()
	if j.former("GetCoveringNode", begun, answer.Answer) {
		return true
	}
	j.checkNode("GetCoveringNode", c, answer.Answer, answer.ReplayNode, answer.Consumed, answer.Consumption)
	return true
}

func (j *judge) askCore(ctx context.Context, api disclosurev1.DisclosureServiceClient) bool {
	begun := time.Now()
	answer, err := api.GetCoreState(ctx, &disclosurev1.GetCoreStateRequest{})
	if !j.came(ctx, "GetCoreState", err) {
		return false
	}
	j.ledger.RLock()
	defer j.ledger.RUnlock()
	if j.former("GetCoreState", begun, answer.Answer) {
		return true
	}
	core := answer.CoreState.GetContract()
	j.checkContract("GetCoreState", answer.Answer, core, j.world().sim.ActiveAt(core.GetContractId(), answer.Answer.Position.Offset))
	j.checkFresh("GetCoreState", answer.Answer)
	return true
}

func (j *judge) askFate(ctx context.Context, api disclosurev1.DisclosureServiceClient) bool {
	cid := j.pickEnded()
	begun := time.Now()
	answer, err := api.GetContractFate(ctx, &disclosurev1.GetContractFateRequest{ContractId: cid})
	if !j.came(ctx, "GetContractFate", err) {
		return false
	}
	j.ledger.RLock()
	defer j.ledger.RUnlock()
	if j.former("GetContractFate", begun, answer.Answer) {
		return true
	}
	j.checkFresh("GetContractFate", answer.Answer)
	at := answer.Answer.Position.Offset
	active := len(j.world().sim.ActiveAt(cid, at)) > 0 && !j.isForeign()
	if active != (answer.Fate == disclosurev1.Fate_FATE_ACTIVE) && answer.Fate != disclosurev1.Fate_FATE_IN_FLIGHT {
		j.wrong("at offset %d contract %s is active: %v; its fate is %s", at, cid, active, answer.Fate)
	}
	j.mu.Lock()
	e, known := j.ends[cid]
	j.mu.Unlock()
	if active || !known || e.offset > at {
		return true
	}
	switch answer.Fate {
	case disclosurev1.Fate_FATE_SUPERSEDED, disclosurev1.Fate_FATE_SPLIT:
		successors := slices.Sorted(slices.Values(answer.SuccessorContractIds))
		if answer.UpdateId != e.updateID || !slices.Equal(successors, e.successors) || (len(successors) > 1) != (answer.Fate == disclosurev1.Fate_FATE_SPLIT) {
			j.wrong("contract %s ended by update %s with %d successors; its fate is %s by %s with %d", cid, e.updateID, len(e.successors), answer.Fate, answer.UpdateId, len(successors))
		}
	case disclosurev1.Fate_FATE_UNKNOWN, disclosurev1.Fate_FATE_GONE:
		if j.history && e.offset > j.since {
			j.wrong("contract %s ended at offset %d, within history; its fate at offset %d is %s", cid, e.offset, at, answer.Fate)
		}
	default:
		j.wrong("contract %s was consumed on; its fate is %s", cid, answer.Fate)
	}
	return true
}

// checkNode holds a covering node and what is said about the digest to the ledger at the answer's offset.
func (j *judge) checkNode(call string, c consumption, answer *disclosurev1.Answer, node *disclosurev1.ReplayNode, consumed bool, by *disclosurev1.Consumption) {
	j.checkFresh(call, answer)
	at := answer.Position.Offset
	scope := j.world().scope(c.app)
	j.checkContract(call, answer, node.GetContract(), j.world().sim.Covering(scope, c.digest, at))
	consumes := j.world().sim.Consumed(scope, c.digest, at)
	if consumed != (len(consumes) > 0) {
		j.wrong("%s: at offset %d digest %s was consumed %d times; consumed is %v", call, at, c.digest, len(consumes), consumed)
		return
	}
	if !consumed {
		return
	}
	if by.GetHistoryUnavailable() { // said so, and judged as far as it goes: the machine was busy, or the database away
		j.mu.Lock()
		j.unattributed++
		j.mu.Unlock()
		return
	}
	if by.GetUpdateId() != "" {
		j.mu.Lock()
		j.attributed++
		j.mu.Unlock()
	}
	switch {
	case by.GetUpdateId() != "" && by.UpdateId != consumes[0].UpdateID:
		j.wrong("%s: digest %s was consumed by update %s, not by %s", call, c.digest, consumes[0].UpdateID, by.UpdateId)
	case by.GetUpdateId() == "" && j.history && consumes[0].Offset > j.since:
		j.wrong("%s: digest %s was consumed at offset %d, within history; the answer at offset %d does not say by whom", call, c.digest, consumes[0].Offset, at)
	case by.GetUpdateId() == "" && by.GetBeforeHistoryOffset() < consumes[0].Offset:
		j.wrong("%s: digest %s was consumed at offset %d, not before %d", call, c.digest, consumes[0].Offset, by.GetBeforeHistoryOffset())
	}
}

// checkContract: there is exactly one such contract at the answer's offset, and it is the one that was served, with its blob.
func (j *judge) checkContract(call string, answer *disclosurev1.Answer, served *disclosurev1.Contract, truth []ledger.Contract) {
	at := answer.Position.Offset
	switch {
	case j.isForeign():
		j.wrong("%s: a contract of other anchors is served: %s", call, served.GetContractId())
	case served == nil:
		j.wrong("%s: an answer at offset %d without a contract", call, at)
	case answer.Position.ParticipantId != j.world().sim.ParticipantID():
		j.wrong("%s: an answer of participant %s", call, answer.Position.ParticipantId)
	case len(truth) != 1:
		j.wrong("%s: an answer (%s) at offset %d, where %d contracts fit", call, served.ContractId, at, len(truth))
	case truth[0].ContractID != served.ContractId:
		j.wrong("%s: at offset %d it is %s; served is %s", call, at, truth[0].ContractID, served.ContractId)
	case truth[0].SynchronizerID != served.SynchronizerId || truth[0].ReassignmentCounter != served.ReassignmentCounter:
		j.wrong("%s: at offset %d it is on %s (%d); served is %s (%d)", call, at, truth[0].SynchronizerID, truth[0].ReassignmentCounter, served.SynchronizerId, served.ReassignmentCounter)
	case !served.BlobOmitted && !bytes.Equal(truth[0].Blob, served.CreatedEventBlob):
		j.wrong("%s: at offset %d the blob of %s is not the ledger's", call, at, served.ContractId)
	}
}

// checkFresh: an index that was proven complete at a moment has what was committed before it.
func (j *judge) checkFresh(call string, answer *disclosurev1.Answer) {
	proven := answer.GetFreshness().GetProvenAt()
	if proven == nil {
		return
	}
	if known := j.knownBefore(proven.AsTime()); known > answer.Position.Offset {
		j.wrong("%s: an answer at offset %d, proven complete at %s, when offset %d had been confirmed to its submitter", call, answer.Position.Offset, proven.AsTime(), known)
	}
}

// came counts a call's outcome and tells whether there is an answer to judge.
func (j *judge) came(ctx context.Context, call string, err error) bool {
	if err == nil {
		j.mu.Lock()
		j.answers[call]++
		j.mu.Unlock()
		return true
	}
	if ctx.Err() == context.Canceled {
		return false
	}
	reason, metadata := reasonOf(err)
	j.refused(call, reason, err.Error(), metadata)
	return false
}

// refused judges an error: its reason has to be expected, and what it says of the ledger true.
func (j *judge) refused(call, reason, message string, metadata map[string]string) {
	j.mu.Lock()
	j.errors[reason]++
	expected := j.expected[reason]
	j.mu.Unlock()
	if !expected {
		j.wrong("%s: %s: %s", call, reason, message)
		return
	}
	at, err := strconv.ParseInt(metadata["offset"], 10, 64)
	if err != nil {
		return
	}
	if reason == "IN_FLIGHT" && !slices.ContainsFunc(j.world().sim.InFlight(at), func(f ledger.InFlight) bool { return f.Contract.ContractID == metadata["contract_id"] }) {
		j.wrong("%s: at offset %d contract %s is not in flight", call, at, metadata["contract_id"])
	}
}

// reasonOf is an error's reason as the service gives it, or unavailable where no service was reached.
func reasonOf(err error) (reason string, metadata map[string]string) {
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason, info.Metadata
		}
	}
	if st.Code() == codes.Unavailable || st.Code() == codes.Canceled {
		return unavailable, nil // ours to cancel: the connection is closed when a test ends
	}
	return st.Code().String(), nil
}

// equalsLedger has the service audit its whole index and compares that with the ledger at the audit's own offset, whether the index is
// proven or not. It returns the audit.
func (j *judge) equalsLedger(api disclosurev1.DisclosureServiceClient) (*disclosurev1.AuditResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	audit, err := api.Audit(ctx, &disclosurev1.AuditRequest{Full: true, Read: &disclosurev1.ReadOptions{AllowStale: true}})
	if err != nil {
		return nil, err
	}
	at := audit.Answer.Position.Offset
	hash, activations, err := j.world().truth(at)
	if err != nil {
		return nil, err
	}
	if hash != audit.StateHash {
		j.wrong("at offset %d the index has %d activations and is not the ledger's active set, of %d", at, audit.Activations, activations)
	}
	if !audit.IncrementalAgrees {
		j.wrong("at offset %d the findings kept differ from those computed anew", at)
	}
	return audit, nil
}

// caughtUp waits until the index is proven complete at the present ledger end or after, and equal to the ledger there.
func (j *judge) caughtUp(api disclosurev1.DisclosureServiceClient) *disclosurev1.AuditResponse {
	j.t.Helper()
	end := j.world().sim.LedgerEnd()
	until(j.t, patience, fmt.Sprintf("the index is proven complete up to offset %d", end), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		answer, err := api.GetCoreState(ctx, &disclosurev1.GetCoreStateRequest{})
		if err != nil {
			return err
		}
		if at := answer.Answer.Position.Offset; at < end {
			return fmt.Errorf("it is at %d", at)
		}
		return nil
	})
	audit, err := j.equalsLedger(api)
	if err != nil {
		j.t.Fatalf("auditing the index: %v", err)
	}
	return audit
}
