package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// redeems: a party that is a stakeholder of nothing redeems from each app, with what the service gave.
func (s *story) redeems() {
	for i := range thresholds {
		outcome := s.redeem(i, s.vaa(i), redeemer(0))
		if outcome.Submissions != 1 {
			s.t.Errorf("app %d: the redeem took %d submissions: %v", i+1, outcome.Submissions, outcome.Retries)
		}
	}
}

// splits: each app's root is filled to its threshold, and the next redeem splits it.
func (s *story) splits() {
	for i, threshold := range thresholds {
		vaa := s.vaa(i)
		before := s.covering(i, vaa)
		held := before.Payload.(*wormhole.ReplayNode).Consumed.Len()
		for range int(threshold) - held {
			s.consume(i, randomDigest())
		}
		before = s.covering(i, vaa)
		s.redeem(i, vaa, redeemer(0))
		result := s.subject.lastResult()
		if made := strings.Count(shape(result), "ReplayNode:16"); made != 1 {
			s.t.Errorf("app %d: the redeem at threshold %d %s, want 16 nodes", i+1, threshold, shape(result))
		}
		fate := s.fate(before.ContractID, vaa.Digest())
		if fate.Fate != disclosurev1.Fate_FATE_SPLIT || len(fate.SuccessorContractIds) != 16 || fate.UpdateId != result.UpdateID ||
			fate.CoveringContractId != s.covering(i, vaa).ContractID {
			s.t.Errorf("app %d: of the root that update %s split the service says %v", i+1, result.UpdateID, fate)
		}
	}
}

func randomDigest() (d wormhole.Digest) {
	_, _ = rand.Read(d[:]) // never fails
	return d
}

// covering is the app's node on the subject that covers the VAA.
func (s *story) covering(i int, vaa *wormhole.VAA) submit.Created {
	s.t.Helper()
	node, err := s.subject.covering(s.app(s.subject, i).Consumer, vaa.Digest())
	if err != nil {
		s.t.Fatal(err)
	}
	return node
}

// consume has the app itself consume a digest, on both sides.
func (s *story) consume(i int, digest wormhole.Digest) *submit.Result {
	s.t.Helper()
	result, _ := s.both("a consume by the app", func(on *side) (*submit.Result, error) {
		consumer := s.app(on, i).Consumer
		node, err := on.covering(consumer, digest)
		if err != nil {
			return nil, err
		}
		return on.client.Do(record.Note(s.ctx, "consume by app %d", i+1), []string{consumer}, nil, submit.ConsumeDigest(node.ContractID, digest.String()))
	})
	return result
}

// fate asks what became of a contract and, with a digest, which node covers that now.
func (s *story) fate(contractID string, digest ...wormhole.Digest) *disclosurev1.GetContractFateResponse {
	s.t.Helper()
	answer, err := ask(s, "GetContractFate", func(ctx context.Context) (*disclosurev1.GetContractFateResponse, error) {
		request := &disclosurev1.GetContractFateRequest{ContractId: contractID, Read: s.fresh()}
		if len(digest) > 0 {
			request.Digest = digest[0].String()
		}
		return s.service.api.GetContractFate(ctx, request)
	})
	if err != nil {
		s.t.Fatalf("GetContractFate: %v", err)
	}
	return answer
}

// vaaWhere is a new VAA of the app whose covering node is as asked.
func (s *story) vaaWhere(i int, so func(node submit.Created) bool) *wormhole.VAA {
	s.t.Helper()
	for range 10_000 {
		vaa := s.vaa(i)
		if so(s.covering(i, vaa)) {
			return vaa
		}
	}
	s.t.Fatal("no VAA of 10,000 lies on such a node")
	return nil
}

// beside is a new VAA that the same node covers.
func (s *story) beside(i int, vaa *wormhole.VAA) *wormhole.VAA {
	s.t.Helper()
	id := s.covering(i, vaa).ContractID
	return s.vaaWhere(i, func(n submit.Created) bool { return n.ContractID == id })
}

// stale: a bundle whose node was replaced since it was prepared.
func (s *story) stale() {
	late := s.vaa(0)
	early := s.beside(0, late)
	p := s.redeemable(0, late, redeemer(1))
	stale := map[*side]submit.Created{}
	for _, on := range []*side{s.subject, s.standIn} {
		node, err := on.covering(s.app(on, 0).Consumer, late.Digest())
		if err != nil {
			s.t.Fatal(err)
		}
		stale[on] = node
	}
	s.redeem(0, early, redeemer(0))

	id := stale[s.subject].ContractID
	fate := s.fate(id, late.Digest())
	if fate.Fate != disclosurev1.Fate_FATE_SUPERSEDED && fate.Fate != disclosurev1.Fate_FATE_SPLIT {
		s.t.Errorf("of the stale node the service says %s", fate.Fate)
	}
	predicted := fmt.Sprintf("the node is %s, another one covers the digest", strings.ToLower(strings.TrimPrefix(fate.Fate.String(), "FATE_")))
	if again := s.prepared(0, late); again.Arguments.ReplayNodeContractId == id {
		s.t.Error("the service gives the stale node again")
	}
	refusal := s.refused("a stale node, disclosed", predicted, inactive, func(on *side) submit.Submission { return p.of(s, on).submission() })
	if refusal != nil && !slices.Contains(refusal.Contracts, id) {
		s.t.Errorf("the refusal names contracts %v, not the stale node", refusal.Contracts)
	}
	s.lookInactive = answerOf(refusal)
	s.refused("a VAA that was redeemed, with the stale node", "already consumed", inactive, func(on *side) submit.Submission {
		b := *p.of(s, on)
		b.encoded = early.EncodedHex()
		return b.submission()
	})
	direct := func(on *side, disclosed ...submit.Disclosure) submit.Submission {
		return submit.Submission{ActAs: []string{s.app(on, 0).Consumer}, Disclosed: disclosed,
			Commands: []submit.Command{submit.ConsumeDigest(stale[on].ContractID, late.Digest().String())}}
	}
	s.refused("a stale node, by its own stakeholder without disclosure", predicted, notFound, func(on *side) submit.Submission { return direct(on) })
	s.refused("a stale node, by its own stakeholder who discloses it", predicted, inactive, func(on *side) submit.Submission {
		return direct(on, *disclosure(stale[on].Contract))
	})
	s.redeem(0, late, redeemer(1))
}

// contends: eight strangers redeem at once, all of them on one node. Who loses tries again, and all end committed.
func (s *story) contends() {
	vaas := []*wormhole.VAA{s.vaa(2)}
	for range redeemers - 1 {
		vaas = append(vaas, s.beside(2, vaas[0]))
	}
	type end struct {
		result  *submit.Result
		outcome client.Outcome
		err     error
	}
	ends := make([]end, redeemers)
	var refusals struct {
		sync.Mutex
		all []error
	}
	s.onRefusal = func(err error) {
		refusals.Lock()
		defer refusals.Unlock()
		refusals.all = append(refusals.all, err)
	}
	var running sync.WaitGroup
	for n := range redeemers {
		running.Go(func() {
			e := &ends[n]
			e.result, e.outcome, e.err = s.redeemOnSubject(2, vaas[n], redeemer(n))
			if e.err == nil {
				s.subject.learn(e.result)
			}
		})
	}
	running.Wait()
	s.onRefusal = nil
	order := []int{}
	submissions := 0
	for n, e := range ends {
		if e.err != nil {
			s.t.Fatalf("redeemer %d: %v", n+1, e.err)
		}
		order = append(order, n)
		submissions += e.outcome.Submissions
	}
	// The stand-in is told the same in the order of the commits.
	slices.SortFunc(order, func(a, b int) int { return int(ends[a].result.Offset - ends[b].result.Offset) })
	for _, n := range order {
		result, err := s.redeemOnStandIn(2, vaas[n], redeemer(n))
		if err != nil {
			s.t.Fatalf("the stand-in refuses what the participant has taken: %v", err)
		}
		s.standIn.learn(result)
		s.report.commits++
		if got, want := shape(ends[n].result), shape(result); got != want {
			s.t.Errorf("redeemer %d: the participant %s, the stand-in %s", n+1, got, want)
		}
		s.consumedBy(2, vaas[n], ends[n].result.UpdateID)
	}

	// What losers get, the stand-in gives on demand: one submission is held between the locking of its inputs and its commit.
	winner := s.beside(2, vaas[0])
	loser := s.beside(2, winner)
	var locked error
	s.each("a redeem, while the stand-in's is being contended", func(on *side) (*submit.Result, error) {
		result, _, err := s.redeemOnSubject(2, winner, redeemer(0))
		return result, err
	}, func(on *side) (*submit.Result, error) {
		return s.held(func() (*submit.Result, error) { return s.redeemOnStandIn(2, winner, redeemer(0)) }, func() {
			_, locked = s.redeemOnStandIn(2, loser, redeemer(1))
		})
	})
	simulated := map[string]answer{submit.ReasonLocked: answerOf(locked), submit.ReasonInactive: s.lookInactive}
	counts := map[string]int{}
	for _, err := range refusals.all {
		got := answerOf(err)
		counts[got.reason]++
		expected, allowed := simulated[got.reason]
		row := refusalRow{scene: s.report.scene, what: "lost a race for a node", predicted: "a race: LOCKED or INACTIVE", answer: got}
		if !allowed {
			row.differences = []string{"a race may end with LOCAL_VERDICT_LOCKED_CONTRACTS or LOCAL_VERDICT_INACTIVE_CONTRACTS"}
			s.t.Errorf("who lost a race was told %v", err)
		} else if row.differences = differences(got, expected); len(row.differences) > 0 {
			s.t.Errorf("who lost a race was told %v: %s", err, strings.Join(row.differences, "; "))
		}
		if counts[got.reason] == 1 || len(row.differences) > 0 {
			s.report.refusals = append(s.report.refusals, row)
		}
	}
	s.report.note("%d redeemers of one node needed %d submissions; the losers' reasons were %v", redeemers, submissions, counts)
}

// replays: what is consumed is redeemed again, and what was submitted is submitted again.
func (s *story) replays() {
	first := s.vaa(0)
	s.redeem(0, first, redeemer(0))
	outcome, err := s.client.Redeem(s.ctx, client.Request{Consumer: s.app(s.subject, 0).Consumer, VAA: first.Encode()},
		func(context.Context, client.Prepared) (client.Submitted, error) {
			s.t.Error("the client submits what the service calls consumed")
			return client.Submitted{}, client.ErrNotSubmitted
		})
	if err != nil || outcome.State != client.Consumed || outcome.UpdateID != s.subject.lastResult().UpdateID {
		s.t.Errorf("the client's redeem of what is consumed ended %s by %s: %v", outcome.State, outcome.UpdateID, err)
	}
	other := s.beside(0, first)
	p := s.redeemable(0, other, redeemer(0))
	s.refused("a replay, with the fresh node", "already consumed", saysModel("VAA already consumed"), func(on *side) submit.Submission {
		b := *p.of(s, on)
		b.encoded = first.EncodedHex()
		return b.submission()
	})
	p.subject.commandID, p.standIn.commandID = "once"+s.suffix, "once"+s.suffix
	s.commit("a redeem under a command id", p)
	again := s.refused("the same submission again", "already consumed", want{codes.AlreadyExists, submit.ReasonDuplicate, ""},
		func(on *side) submit.Submission { return p.of(s, on).submission() })
	s.twice(answerOf(again))
}

// twice: one submission, twice at the same time. One of the two commits. duplicate is the answer to one that has committed already.
func (s *story) twice(duplicate answer) {
	vaa := s.vaa(0)
	p := s.redeemable(0, vaa, redeemer(0))
	p.subject.commandID, p.standIn.commandID = "twice"+s.suffix, "twice"+s.suffix
	var lost, inFlight error
	s.each("one submission twice at once", func(on *side) (*submit.Result, error) {
		results, errs := make([]*submit.Result, 2), make([]error, 2)
		var running sync.WaitGroup
		for n := range results {
			running.Go(func() {
				results[n], errs[n] = on.client.Submit(record.Note(s.ctx, "twice, %d", n+1), p.subject.submission())
			})
		}
		running.Wait()
		won := slices.IndexFunc(errs, func(err error) bool { return err == nil })
		if won < 0 || errs[1-won] == nil {
			return nil, fmt.Errorf("of one submission made twice came: %v, %v", errs[0], errs[1])
		}
		lost = errs[1-won]
		return results[won], nil
	}, func(on *side) (*submit.Result, error) {
		return s.held(func() (*submit.Result, error) { return on.client.Submit(s.ctx, p.standIn.submission()) }, func() {
			_, inFlight = on.client.Submit(s.ctx, p.standIn.submission())
		})
	})
	row := refusalRow{scene: s.report.scene, what: "a submission that is on its way already", predicted: "a race: in flight or duplicate", answer: answerOf(lost)}
	switch row.answer.reason {
	case "SUBMISSION_ALREADY_IN_FLIGHT":
		row.differences = differences(row.answer, answerOf(inFlight))
	case submit.ReasonDuplicate:
		row.differences = differences(row.answer, duplicate)
	default:
		row.differences = []string{"expected was SUBMISSION_ALREADY_IN_FLIGHT or DUPLICATE_COMMAND"}
	}
	if len(row.differences) > 0 {
		s.t.Errorf("a submission that is on its way was told %v: %s", lost, strings.Join(row.differences, "; "))
	}
	s.report.refusals = append(s.report.refusals, row)
}

// held has the stand-in hold a submission between the locking of its inputs and its commit while something else is tried.
func (s *story) held(submission func() (*submit.Result, error), meanwhile func()) (*submit.Result, error) {
	release := s.sim.HoldCommits()
	defer release()
	type answer struct {
		result *submit.Result
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		result, err := submission()
		done <- answer{result, err}
	}()
	if err := s.sim.AwaitPending(s.ctx, 1); err != nil {
		release()
		<-done
		return nil, err
	}
	meanwhile()
	release()
	first := <-done
	return first.result, first.err
}
