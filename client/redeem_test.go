package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

const submitMethod = "/com.daml.ledger.api.v2.CommandService/SubmitAndWaitForTransaction"

func TestRedeemCommits(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	for range 12 { // across splits
		vaa := w.vaa()
		outcome, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
		w.want(outcome, err, client.Committed, vaa.Digest())
		if outcome.Submissions != 1 || outcome.Digest != vaa.Digest().String() || outcome.CommandID != client.CommandID(wormhole.PackageName, w.app.Consumer, w.world.Operator, nil, outcome.Digest) {
			t.Errorf("outcome %+v", outcome)
		}
		again, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
		if again.Submissions > 0 {
			// The service had not seen the commit yet, and the participant knew it as ours.
			w.want(again, err, client.Committed, vaa.Digest())
			if again.Retries["duplicate"] != 1 {
				t.Errorf("outcome %+v", again)
			}
			continue
		}
		w.want(again, err, client.Consumed, vaa.Digest())
	}
}

// B04, B05: a bundle that went stale while it was signed. The participant names one of two stale contracts; both are read anew.
func TestRedeemDropsTheWholeBundle(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user, other := w.party("user"), w.party("other")
	vaa := w.vaa()
	var bundles []client.Prepared
	outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		bundles = append(bundles, p)
		if len(bundles) == 1 {
			// While she signs, the fee changes and somebody else consumes: both contracts of the bundle are archived.
			fee, err := w.world.FeeVAA(7)
			if err != nil {
				return client.Submitted{}, err
			}
			if _, _, err := w.world.Govern(ctx, w.submit, w.world.CoreState, fee); err != nil {
				return client.Submitted{}, err
			}
			elsewhere := w.vaa()
			if end, err := c.Redeem(ctx, w.request(elsewhere), w.redeemer(other)); err != nil || end.State != client.Committed {
				t.Errorf("the other redeem ended %s: %v", end.State, err)
			}
			_, err = w.redeemer(user)(ctx, p)
			var rejection *submit.Rejection
			if !errors.As(err, &rejection) || rejection.Reason != submit.ReasonInactive {
				t.Errorf("a stale bundle got %v", err)
				return client.Submitted{}, err
			}
			// As a participant may: of two stale contracts it names the node alone.
			return client.Submitted{}, &client.LedgerError{Reason: rejection.Reason, Code: rejection.Code, Message: rejection.Message,
				ContractIDs: []string{p.ReplayNodeContractID}}
		}
		return w.redeemer(user)(ctx, p)
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
	if len(bundles) != 2 {
		t.Fatalf("%d submissions, want 2: a bundle with a contract of before was used again", len(bundles))
	}
	if bundles[0].CoreStateContractID == bundles[1].CoreStateContractID || bundles[0].ReplayNodeContractID == bundles[1].ReplayNodeContractID {
		t.Error("a contract of the failed bundle was used again")
	}
	if outcome.Retries["refresh"] != 1 {
		t.Errorf("retries %v", outcome.Retries)
	}
	if bundles[1].At.Offset <= bundles[0].At.Offset || bundles[1].CoreState.MessageFee != 7 {
		t.Errorf("the second bundle is of offset %d, the first of %d", bundles[1].At.Offset, bundles[0].At.Offset)
	}
}

// B06: a submission that names a stale contract without using it is accepted; an accepted submission proves no freshness, and a redeem
// that ends well ends with the update that consumed this digest, as the ledger has it (want checks that).
func TestRedeemTakesTheUpdateForProof(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	first, second := w.vaa(), w.vaa()
	var stale client.Disclosure
	outcome, err := c.Redeem(t.Context(), w.request(first), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		stale = p.Disclosures[slices.IndexFunc(p.Disclosures, func(d client.Disclosure) bool { return d.ContractID == p.ReplayNodeContractID })]
		return w.redeemer(user)(ctx, p)
	})
	w.want(outcome, err, client.Committed, first.Digest())
	outcome, err = c.Redeem(t.Context(), w.request(second), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		p.Disclosures = append(p.Disclosures, stale) // superfluous, archived, and accepted
		return w.redeemer(user)(ctx, p)
	})
	w.want(outcome, err, client.Committed, second.Digest())
}

// The answer to a submission that committed is lost: the digest is read, and the participant says whose it was.
func TestRedeemLostAnswer(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	vaa := w.vaa()
	w.sim.LoseAnswers(1)
	outcome, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
	w.want(outcome, err, client.Committed, vaa.Digest())
	if outcome.Submissions != 1 || outcome.Probes != 1 || outcome.Retries["unknown outcome"] != 1 {
		t.Errorf("outcome %+v, want one submission and one probe", outcome)
	}
}

// A submission fails without having reached the participant: nobody knows that. The digest is read before the second.
func TestRedeemUnknownNotCommitted(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	var events []client.Event
	options := w.options()
	options.Observe = func(e client.Event) { events = append(events, e) }
	c := w.client(options)
	vaa := w.vaa()
	w.sim.FailNext(submitMethod, status.Error(codes.Unavailable, "error reading from server: EOF"))
	outcome, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(w.party("user")))
	w.want(outcome, err, client.Committed, vaa.Digest())
	if outcome.Submissions != 2 || outcome.Probes != 0 {
		t.Errorf("outcome %+v, want two submissions", outcome)
	}
	// Between the two submissions two answers at least: the second one proven past the first.
	var kinds []client.EventKind
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	first := slices.Index(kinds, client.EventSubmitted)
	second := first + 1 + slices.Index(kinds[first+1:], client.EventSubmitted)
	between := 0
	for _, k := range kinds[first:second] {
		if k == client.EventAnswer {
			between++
		}
	}
	if between < 2 {
		t.Errorf("%d answers were read between an unknown outcome and the next submission: %v", between, kinds)
	}
}

// The outcome is unknown and somebody else consumes the digest: it is not ours, and the participant proves it.
func TestRedeemUnknownConsumedByAnother(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user, other := w.party("user"), w.party("other")
	vaa := w.vaa()
	calls := 0
	outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if calls++; calls > 1 {
			return w.redeemer(user)(ctx, p)
		}
		if _, err := w.redeemer(other)(ctx, p); err != nil {
			t.Error(err)
		}
		return client.Submitted{}, status.Error(codes.Unavailable, "error reading from server: EOF")
	})
	w.want(outcome, err, client.Consumed, vaa.Digest())
	if outcome.Submissions != 1 || outcome.Probes != 1 {
		t.Errorf("outcome %+v, want one submission and one probe", outcome)
	}
}

// The outcome is unknown and somebody else consumes another digest on the node: the submission is dead, and the redeem goes on without
// anything open.
func TestRedeemBuriesDeadSubmissions(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	options := w.options()
	options.MaxSubmissions = 1
	c := w.client(options)
	vaa, elsewhere := w.vaa(), w.vaa()
	other := w.party("other")
	outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if end, err := c.Redeem(ctx, w.request(elsewhere), w.redeemer(other)); err != nil || end.State != client.Committed {
			t.Errorf("the other redeem ended %s: %v", end.State, err)
		}
		return client.Submitted{}, status.Error(codes.Unavailable, "error reading from server: EOF")
	})
	w.want(outcome, err, client.GaveUp, vaa.Digest())
	if outcome.Reason != "BUDGET" || !errors.Is(err, client.ErrGaveUp) {
		t.Errorf("outcome %+v, error %v", outcome, err)
	}
}

// The outcome is unknown, nobody touches the node, and the budget is used up: unknown it stays, and says what to check.
func TestRedeemEndsUnknown(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	options := w.options()
	options.MaxSubmissions = 1
	c := w.client(options)
	vaa := w.vaa()
	outcome, err := c.Redeem(t.Context(), w.request(vaa), func(context.Context, client.Prepared) (client.Submitted, error) {
		return client.Submitted{}, errors.New("the connection broke")
	})
	w.want(outcome, err, client.Unknown, vaa.Digest())
	if !errors.Is(err, client.ErrUnknown) || !strings.Contains(outcome.Check, outcome.Digest) || !strings.Contains(outcome.Check, outcome.CommandID) {
		t.Errorf("outcome %+v, error %v", outcome, err)
	}
}

// The caller leaves while its submission is on its way: the outcome is still looked for.
func TestRedeemCancelledWhileSubmitting(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	vaa := w.vaa()
	ctx, cancel := context.WithCancel(t.Context())
	outcome, err := c.Redeem(ctx, w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		done, err := w.redeemer(user)(context.WithoutCancel(ctx), p)
		if !p.Probe {
			cancel()
			return client.Submitted{}, ctx.Err()
		}
		return done, err
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
}

// A submission that nobody waited for is an outcome to be read; where its repetition says no more than the first, whose it was is left
// to the caller, with the update.
func TestRedeemWithoutWaiting(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	vaa := w.vaa()
	outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if !p.Probe {
			if _, err := w.redeemer(user)(ctx, p); err != nil {
				t.Error(err)
			}
		}
		return client.Submitted{}, nil
	})
	w.want(outcome, err, client.Unknown, vaa.Digest())
	if on := w.consumed(vaa.Digest()); outcome.Reason != "UNATTRIBUTED" || !strings.Contains(outcome.Check, on[0].UpdateID) {
		t.Errorf("outcome %+v", outcome)
	}
	// With one that waits when it is asked to repeat, it is known.
	vaa = w.vaa()
	outcome, err = c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		done, err := w.redeemer(user)(ctx, p)
		if !p.Probe {
			done, err = client.Submitted{}, nil
		}
		return done, err
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
}

// A VAA of a guardian set that was replaced is good until that set expires, and the submission is told when.
func TestRedeemOfAnExpiringSet(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	vaa := w.vaa()
	upgrade, err := w.world.UpgradeVAA()
	if err != nil {
		t.Fatal(err)
	}
	coreState, update, err := w.world.Govern(t.Context(), w.submit, w.world.CoreState, upgrade)
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("a service that knows the new CoreState", func() error {
		_, err := w.api.GetCoreState(t.Context(), &disclosurev1.GetCoreStateRequest{Read: &disclosurev1.ReadOptions{AfterUpdateId: update.UpdateID}})
		return err
	})
	outcome, err := c.Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if p.GuardianSetExpiresAt.IsZero() || p.CoreStateContractID != coreState {
			t.Errorf("prepared with CoreState %s, set expires at %s", p.CoreStateContractID, p.GuardianSetExpiresAt)
		}
		return w.redeemer(user)(ctx, p)
	})
	w.want(outcome, err, client.Committed, vaa.Digest())
}

// Submitting twice at once under one command id: the participant refuses the second, which waits and finds its digest consumed by us.
func TestRedeemTwiceAtOnce(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	user := w.party("user")
	vaa := w.vaa()
	release := w.sim.HoldCommits()
	type end struct {
		outcome client.Outcome
		err     error
	}
	ends := make(chan end, 2)
	for range 2 {
		go func() {
			outcome, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(user))
			ends <- end{outcome, err}
		}()
	}
	if err := w.sim.AwaitPending(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	release()
	for range 2 {
		e := <-ends
		if e.outcome.State == client.Consumed {
			// The other had committed before this one was read for the first time.
			w.want(e.outcome, e.err, client.Consumed, vaa.Digest())
			continue
		}
		w.want(e.outcome, e.err, client.Committed, vaa.Digest())
	}
}

func TestRedeemInvalid(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	options := w.options()
	options.GuardianSetWait = -1
	c := w.client(options)
	never := func(context.Context, client.Prepared) (client.Submitted, error) {
		t.Error("an invalid VAA was submitted")
		return client.Submitted{}, nil
	}
	good := w.vaa()
	for _, test := range []struct {
		name, reason, message string
		vaa                   func() []byte
	}{
		{"version", string(wormhole.RuleVAAVersion), "unsupported VAA version: 2", func() []byte { b := good.Encode(); b[0] = 2; return b }},
		{"truncated", string(wormhole.RuleVAATruncated), "unexpected end of bytes", func() []byte { return good.Encode()[:100] }},
		{"unknown set", string(wormhole.RuleUnknownGuardianSet), "unknown guardian set index", func() []byte { b := good.Encode(); b[4] = 9; return b }},
		{"no signature", string(wormhole.RuleNoQuorum), "no quorum: have 0, need 1", func() []byte { v := *good; v.Signatures = nil; return v.Encode() }},
		{"bad signature", string(wormhole.RuleInvalidSignature), "invalid signature for guardian index 0", func() []byte {
			v := *good
			v.Payload = append([]byte("x"), v.Payload...)
			return v.Encode()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			outcome, err := c.Redeem(t.Context(), client.Request{Consumer: w.app.Consumer, VAA: test.vaa()}, never)
			if err != nil || outcome.State != client.Invalid || outcome.Message != test.message || outcome.Reason != test.reason {
				t.Errorf("outcome %+v, error %v", outcome, err)
			}
		})
	}
}

// What the app itself says no to is invalid, in its words.
func TestRedeemRefusedByTheModel(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	foreign := *w.app
	foreign.PeerAddress = strings.Repeat("ab", 32)
	vaa, err := w.world.VAA(&foreign, nil)
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := c.Redeem(t.Context(), w.request(vaa), w.redeemer(w.party("user")))
	if err != nil || outcome.State != client.Invalid || outcome.Reason != "DAML_FAILURE" || outcome.Message != "VAA is from a different emitter" {
		t.Errorf("outcome %+v, error %v", outcome, err)
	}
}

func TestRedeemGivesUp(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	t.Run("the user does not sign", func(t *testing.T) {
		outcome, err := c.Redeem(t.Context(), w.request(w.vaa()), func(context.Context, client.Prepared) (client.Submitted, error) {
			return client.Submitted{}, client.ErrNotSubmitted
		})
		if outcome.State != client.GaveUp || outcome.Reason != "NOT_SUBMITTED" || !errors.Is(err, client.ErrNotSubmitted) {
			t.Errorf("outcome %+v, error %v", outcome, err)
		}
	})
	t.Run("the disclosures are left out", func(t *testing.T) {
		options := w.options()
		options.SuccessorWait = 10 * time.Millisecond
		vaa := w.vaa()
		user := w.party("user")
		outcome, err := w.client(options).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
			p.Disclosures = nil
			return w.redeemer(user)(ctx, p)
		})
		w.want(outcome, err, client.GaveUp, vaa.Digest())
		if outcome.Reason != "CONTRACT_NOT_FOUND" || outcome.Submissions != 5 {
			t.Errorf("outcome %+v", outcome)
		}
	})
	t.Run("unknown scope", func(t *testing.T) {
		outcome, err := c.Redeem(t.Context(), client.Request{Consumer: "nobody::1220", VAA: w.vaa().Encode()}, w.redeemer("user"))
		if outcome.State != client.GaveUp || outcome.Reason != "UNKNOWN_SCOPE" || err == nil {
			t.Errorf("outcome %+v, error %v", outcome, err)
		}
	})
	t.Run("no endpoint", func(t *testing.T) {
		options := w.options()
		options.MaxTime, options.SettleTime = 200*time.Millisecond, time.Millisecond
		down := w.client(options, "127.0.0.1:1")
		outcome, err := down.Redeem(t.Context(), w.request(w.vaa()), w.redeemer("user"))
		if outcome.State != client.GaveUp || outcome.Reason != "BUDGET" || err == nil {
			t.Errorf("outcome %+v, error %v", outcome, err)
		}
	})
	t.Run("wrong requests", func(t *testing.T) {
		vaa := w.vaa().Encode()
		empty := ""
		for _, request := range []client.Request{
			{}, {Consumer: "c"}, {VAA: vaa}, {Consumer: "c", VAA: vaa, Digest: strings.Repeat("00", 32)}, {Consumer: "c", Digest: "00"},
			{Consumer: "c", VAA: vaa, Namespace: &empty, WithoutNamespace: true},
		} {
			if outcome, err := c.Redeem(t.Context(), request, w.redeemer("user")); err == nil || outcome.State != 0 {
				t.Errorf("%+v: outcome %+v, error %v", request, outcome, err)
			}
		}
	})
}

// A bare digest, for apps that consume without the bridge: the consumer's own choice.
func TestRedeemDigest(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	c := w.client(w.options())
	vaa := w.vaa()
	outcome, err := c.Redeem(t.Context(), client.Request{Consumer: w.app.Consumer, Digest: "0x" + strings.ToUpper(vaa.Digest().String())},
		func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
			if p.EncodedVAA != "" || p.PubKeys != nil {
				t.Errorf("arguments of a VAA for a bare digest: %+v", p)
			}
			result, err := w.submit.Submit(ctx, submit.Submission{CommandID: p.CommandID, ActAs: []string{w.app.Consumer},
				Commands: []submit.Command{submit.ConsumeDigest(p.ReplayNodeContractID, p.Digest)}})
			if err != nil {
				return client.Submitted{}, err
			}
			return client.Submitted{UpdateID: result.UpdateID}, nil
		})
	w.want(outcome, err, client.Committed, vaa.Digest())
}
