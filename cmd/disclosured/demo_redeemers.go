package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// demoRun is what the redeemers share.
type demoRun struct {
	sim    *ledgersim.Sim
	world  *devnet.World
	client *submit.Client
	api    disclosurev1.DisclosureServiceClient

	consumes, splits, retries, lookups, unavailable atomic.Int64
	governances, reassignments                      atomic.Int64

	mu        sync.Mutex
	latencies []time.Duration
	wrongs    []string
	wrongN    int
}

func newDemoRun(sim *ledgersim.Sim, world *devnet.World, client *submit.Client, api disclosurev1.DisclosureServiceClient) *demoRun {
	return &demoRun{sim: sim, world: world, client: client, api: api}
}

// redeem runs the redeemers, the governance and the reassignments for the time given, with a progress line.
func (r *demoRun) redeem(ctx context.Context, out io.Writer, lasts time.Duration) error {
	begun := time.Now()
	lasting, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	// What was begun may end: a redeem that is cut off has an unknown outcome.
	ending, cancelEnding := context.WithTimeout(context.WithoutCancel(ctx), lasts+demoGrace)
	defer cancelEnding()
	group, groupCtx := errgroup.WithContext(ending)
	for i, app := range r.world.Apps {
		for j := range redeemersPerApp {
			group.Go(func() error {
				user, err := r.client.AllocateParty(groupCtx, fmt.Sprintf("redeemer-%d-%d", i+1, j+1))
				if err != nil {
					return err
				}
				redeemer := &redeemer{run: r, app: app, user: user}
				for lasting.Err() == nil && groupCtx.Err() == nil {
					if err := redeemer.redeemOne(groupCtx); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	group.Go(func() error { return r.govern(lasting, groupCtx, lasts/3) })
	group.Go(func() error { return r.reassign(lasting, groupCtx, lasts/2) })
	var progress sync.WaitGroup
	done := make(chan struct{})
	progress.Go(func() { r.progress(done, out, begun) })
	err := group.Wait()
	close(done)
	progress.Wait()
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// progress writes how far the demo is: over one line on a terminal, else a line every five seconds.
func (r *demoRun) progress(done <-chan struct{}, out io.Writer, begun time.Time) {
	terminal := isTerminal(out)
	every := 5 * time.Second
	if terminal {
		every = 200 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			if terminal {
				fmt.Fprint(out, "\r\x1b[K")
			}
			return
		case <-ticker.C:
		}
		line := fmt.Sprintf("demo: %3.0fs consumes=%d splits=%d retries=%d lookups=%d wrong=%d", time.Since(begun).Seconds(),
			r.consumes.Load(), r.splits.Load(), r.retries.Load(), r.lookups.Load(), len(r.faults()))
		if terminal {
			fmt.Fprint(out, "\r\x1b[K"+line)
		} else {
			fmt.Fprintln(out, line)
		}
	}
}

// redeemer is a user who is a stakeholder of nothing: all that she submits with, the service (and the app's own contract) gave her.
type redeemer struct {
	run  *demoRun
	app  *devnet.App
	user string
}

// signingTime is how long a slow signer takes at most.
const signingTime = 300 * time.Millisecond

// maxTries bounds the tries of one redeem; contention among the demo's few redeemers stays far below.
const maxTries = 200

// redeemOne redeems a new VAA: find, disclose, submit, and again until it is committed.
func (u *redeemer) redeemOne(ctx context.Context) error {
	r := u.run
	vaa, err := r.world.VAA(u.app, []byte("demo"))
	if err != nil {
		return err
	}
	read := &disclosurev1.ReadOptions{}
	for try := range maxTries {
		answer, retry := u.prepare(ctx, vaa, read)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if answer == nil {
			if !retry {
				return nil
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		if answer.Verdict == disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED {
			r.wrong("a new digest, %s, was called consumed at offset %d", answer.Digest, answer.Answer.Position.Offset)
			return nil
		}
		if try == 0 && rand.N(12) == 0 {
			// A slow signer: she submits what she was given only once the node has a successor, or a while has passed.
			u.prepare(ctx, vaa, &disclosurev1.ReadOptions{
				NotContractIds: []string{answer.Arguments.ReplayNodeContractId}, Wait: durationpb.New(signingTime),
			})
		}
		result, err := u.submit(ctx, answer, vaa)
		if err == nil {
			r.committed(result)
			return u.readMyWrite(ctx, vaa, result)
		}
		var rejection *submit.Rejection
		if !errors.As(err, &rejection) {
			return fmt.Errorf("redeeming as %s: %w", u.user, err)
		}
		if !slices.Contains(expectedRejections, rejection.Reason) {
			r.wrong("the ledger refused a redeem that the service prepared at offset %d: %v", answer.Answer.Position.Offset, rejection)
			return nil
		}
		r.retries.Add(1)
		// The contracts that just failed; a cid that is only locked may still be the answer, and then comes back as unchanged.
		read = &disclosurev1.ReadOptions{NotContractIds: failedOf(rejection, answer)}
	}
	r.wrong("a redeem of %s did not succeed in %d tries", u.app.Consumer, maxTries)
	return nil
}

// expectedRejections are what contention, staleness and reassignments lead to.
var expectedRejections = []string{
	submit.ReasonInactive, submit.ReasonLocked, submit.ReasonNotFound, "UNKNOWN_CONTRACT_SYNCHRONIZERS", "SUBMITTER_ALWAYS_STAKEHOLDER",
	"NO_SYNCHRONIZER_FOR_SUBMISSION", "DISCLOSED_CONTRACTS_SYNCHRONIZER_ID_MISMATCH",
}

// failedOf are the contracts of a bundle that a rejection speaks of; where it names none, the replay node, which changes most.
func failedOf(rejection *submit.Rejection, used *disclosurev1.PrepareRedeemResponse) []string {
	var failed []string
	for _, cid := range []string{used.Arguments.ReplayNodeContractId, used.Arguments.CoreStateContractId} {
		if slices.Contains(rejection.Contracts, cid) {
			failed = append(failed, cid)
		}
	}
	if len(failed) == 0 {
		failed = []string{used.Arguments.ReplayNodeContractId}
	}
	return failed
}

// prepare asks the service and holds its answer to the ledger's truth. Where there is no answer, retry says whether to ask again.
func (u *redeemer) prepare(ctx context.Context, vaa *wormhole.VAA, read *disclosurev1.ReadOptions) (answer *disclosurev1.PrepareRedeemResponse, retry bool) {
	r := u.run
	begun := time.Now()
	answer, err := r.api.PrepareRedeem(ctx, &disclosurev1.PrepareRedeemRequest{
		Scope:   &disclosurev1.ScopeSelector{Consumer: u.app.Consumer},
		Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa.Encode()},
		Read:    read,
	})
	if ctx.Err() != nil {
		return nil, false
	}
	r.lookups.Add(1)
	if len(read.NotContractIds) == 0 && read.AfterUpdateId == "" { // waits that were asked for are not the service's latency
		r.took(time.Since(begun))
	}
	if err != nil {
		if r.explained(err, u.app) {
			r.unavailable.Add(1)
			return nil, true
		}
		r.wrong("PrepareRedeem of %s: %v", u.app.Consumer, err)
		return nil, false
	}
	r.check(u.app, vaa.Digest(), answer)
	if answer.Verdict == disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID {
		r.wrong("a good VAA was called invalid at offset %d: %s", answer.Answer.Position.Offset, answer.FailedRule.GetMessage())
		return nil, false
	}
	return answer, false
}

// explained reports whether an error is what the truth at its offset leads to: the reassignments of the demo.
func (r *demoRun) explained(err error, app *devnet.App) bool {
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		at, err := strconv.ParseInt(info.Metadata["offset"], 10, 64)
		if err != nil {
			return false
		}
		switch info.Reason {
		case "IN_FLIGHT":
			for _, f := range r.sim.InFlight(at) {
				if f.Contract.ContractID == info.Metadata["contract_id"] {
					return true
				}
			}
			return false
		case "DIFFERENT_SYNCHRONIZERS":
			for _, c := range r.sim.Active(at) {
				if node, ok := c.Payload.(*wormhole.ReplayNode); ok && node.Consumer == app.Consumer && c.SynchronizerID != r.sim.Synchronizers()[0] {
					return true
				}
			}
			return false
		}
	}
	return false
}

// check compares one answer with the ledger at the answer's offset.
func (r *demoRun) check(app *devnet.App, digest wormhole.Digest, answer *disclosurev1.PrepareRedeemResponse) {
	at := answer.Answer.Position.Offset
	scope := ledgersim.Scope{Consumer: app.Consumer, Operator: r.world.Operator}
	covering := r.sim.Covering(scope, digest, at)
	node := answer.ReplayNode
	switch {
	case len(covering) != 1:
		r.wrong("an answer at offset %d, where %d nodes cover the digest", at, len(covering))
		return
	case covering[0].ContractID != node.Contract.ContractId:
		r.wrong("at offset %d the covering node is %s, the answer has %s", at, covering[0].ContractID, node.Contract.ContractId)
	case covering[0].SynchronizerID != node.Contract.SynchronizerId:
		r.wrong("at offset %d the node is on %s, the answer says %s", at, covering[0].SynchronizerID, node.Contract.SynchronizerId)
	}
	core := r.sim.ActiveAt(answer.CoreState.Contract.ContractId, at)
	if len(core) != 1 {
		r.wrong("at offset %d CoreState %s is not active", at, answer.CoreState.Contract.ContractId)
	}
	consumed := r.sim.Consumed(scope, digest, at)
	if (len(consumed) > 0) != (answer.Verdict == disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED) {
		r.wrong("at offset %d the digest was consumed %d times, the verdict is %s", at, len(consumed), answer.Verdict)
	}
	if c := answer.Consumption; c != nil && (len(consumed) == 0 || c.UpdateId != consumed[0].UpdateID) {
		r.wrong("at offset %d the digest was not consumed by update %s", at, c.UpdateId)
	}
}

// submit redeems with exactly what the service gave, and the app's own contract.
func (u *redeemer) submit(ctx context.Context, answer *disclosurev1.PrepareRedeemResponse, vaa *wormhole.VAA) (*submit.Result, error) {
	disclosed := []submit.Disclosure{submit.Disclose(u.app.Integrator.Contract)}
	for _, c := range answer.DisclosedContracts {
		disclosed = append(disclosed, submit.Disclosure{
			Blob: c.CreatedEventBlob, ContractID: c.ContractId, SynchronizerID: c.SynchronizerId,
			TemplateID: damlvalue.TypeName{PackageID: c.TemplateId.PackageId, Module: c.TemplateId.ModuleName, Entity: c.TemplateId.EntityName},
		})
	}
	keys := make([]wormhole.PubKey, 0, len(answer.Arguments.PubKeys))
	for _, k := range answer.Arguments.PubKeys {
		keys = append(keys, wormhole.PubKey{Index: k.GuardianIndex, Key: k.PublicKey})
	}
	return u.run.client.Do(ctx, []string{u.user}, disclosed, submit.Redeem(submit.Redemption{
		Integrator: u.app.Integrator.ContractID, CoreState: answer.Arguments.CoreStateContractId,
		ReplayNode: answer.Arguments.ReplayNodeContractId, Redeemer: u.user, EncodedVAA: vaa.EncodedHex(), PubKeys: keys,
	}))
}

// readMyWrite asks for the digest after the update that consumed it: the service must know.
func (u *redeemer) readMyWrite(ctx context.Context, vaa *wormhole.VAA, result *submit.Result) error {
	answer, _ := u.prepare(ctx, vaa, &disclosurev1.ReadOptions{AfterUpdateId: result.UpdateID})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if answer == nil {
		return nil // the node is being reassigned, or prepare has said what is wrong
	}
	if answer.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || answer.Consumption.GetUpdateId() != result.UpdateID {
		u.run.wrong("after update %s the digest is %s, consumed by %q", result.UpdateID, answer.Verdict, answer.Consumption.GetUpdateId())
	}
	return nil
}

// committed counts a redeem, and the split where it made one.
func (r *demoRun) committed(result *submit.Result) {
	r.consumes.Add(1)
	nodes := 0
	for _, c := range result.Created {
		if c.TemplateID.QualifiedName() == wormhole.ReplayNodeTemplate.QualifiedName() {
			nodes++
		}
	}
	if nodes > 1 {
		r.splits.Add(1)
	}
}

// govern changes CoreState once the time has come: a message fee, then a guardian set upgrade.
func (r *demoRun) govern(lasting, ctx context.Context, after time.Duration) error {
	coreState := r.world.CoreState
	for _, change := range []struct {
		vaa      func() (*wormhole.VAA, error)
		finished func()
	}{
		{func() (*wormhole.VAA, error) { return r.world.FeeVAA(7) }, func() {}},
		{r.world.UpgradeVAA, r.world.Upgraded},
	} {
		if pause(lasting, after) != nil {
			return nil // the time is over
		}
		vaa, err := change.vaa()
		if err != nil {
			return err
		}
		var update *submit.Result
		if coreState, update, err = r.world.Govern(ctx, r.client, coreState, vaa); err != nil {
			return err
		}
		// Nobody signs with a new guardian set before the service has it: a VAA of a set that a CoreState lacks can't be redeemed there.
		served, err := r.api.GetCoreState(ctx, &disclosurev1.GetCoreStateRequest{Read: &disclosurev1.ReadOptions{AfterUpdateId: update.UpdateID}})
		if err != nil {
			return explain("asking for the new CoreState", err)
		}
		if served.CoreState.Contract.ContractId != coreState {
			r.wrong("after update %s CoreState is %s, served is %s", update.UpdateID, coreState, served.CoreState.Contract.ContractId)
		}
		change.finished()
		r.governances.Add(1)
	}
	return nil
}

// reassign takes a replay node to the other synchronizer and back: while it is on its way, or not where CoreState is, nobody can
// redeem with it, and the service has to say so.
func (r *demoRun) reassign(lasting, ctx context.Context, after time.Duration) error {
	if pause(lasting, after) != nil {
		return nil
	}
	app := r.world.Apps[0]
	here, there := r.sim.Synchronizers()[0], r.sim.Synchronizers()[1]
	for range maxTries {
		nodes := r.sim.Covering(ledgersim.Scope{Consumer: app.Consumer, Operator: r.world.Operator}, wormhole.Digest{}, r.sim.LedgerEnd())
		if len(nodes) != 1 {
			return fmt.Errorf("%d nodes cover the zero digest", len(nodes))
		}
		cid := nodes[0].ContractID
		left, err := r.client.Unassign(ctx, app.Consumer, cid, here, there)
		if err != nil {
			continue // somebody consumed on it in this moment
		}
		// On its way, and away: what is in flight stays so for a moment, so that redeemers see it.
		for _, step := range []func() error{
			func() error { _, err := r.client.Assign(ctx, app.Consumer, left); return err },
			func() (err error) { left, err = r.client.Unassign(ctx, app.Consumer, cid, there, here); return err },
			func() error { _, err := r.client.Assign(ctx, app.Consumer, left); return err },
		} {
			if err := pause(ctx, 150*time.Millisecond); err != nil {
				return err
			}
			if err := step(); err != nil {
				return fmt.Errorf("reassigning a node: %w", err)
			}
		}
		r.reassignments.Add(2)
		return nil
	}
	return errors.New("no node could be unassigned")
}

func (r *demoRun) took(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latencies = append(r.latencies, d)
}

// maxWrongs bounds what is kept of wrong answers; all are counted.
const maxWrongs = 20

func (r *demoRun) wrong(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrongN++
	if len(r.wrongs) < maxWrongs {
		r.wrongs = append(r.wrongs, fmt.Sprintf(format, args...))
	}
}

func (r *demoRun) faults() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.wrongs)
}

// summary is the demo's last line.
func (r *demoRun) summary(audit string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.latencies)
	return fmt.Sprintf("demo: consumes=%d splits=%d retries=%d lookups=%d wrong=%d audit=%s p50=%s p99=%s",
		r.consumes.Load(), r.splits.Load(), r.retries.Load(), r.lookups.Load(), r.wrongN, audit,
		percentile(r.latencies, 50), percentile(r.latencies, 99))
}

// percentile of sorted durations, by the nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*p/100].Round(10 * time.Microsecond)
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
