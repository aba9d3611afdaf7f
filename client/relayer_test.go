package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/client"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// relayer is a relayer of its own, by a client of its own.
func (w *world) relayer(g client.Guard) *client.Relayer {
	w.t.Helper()
	r, err := client.NewRelayer(w.client(w.options()), g)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// TestRelayer has each end of a guarded redeem, against a ledger, behind each kind of guard.
func TestRelayer(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	for _, kind := range guardKinds {
		for _, row := range []struct {
			name string
			test func(*testing.T, *world, guardKind)
		}{
			{"submitted: committed, and settled so", relayCommits},
			{"already received, until when", relayDuplicate},
			{"consumed already: its update, and no entry", relayConsumed},
			{"consumed by another meanwhile: settled so", relayLoses},
			{"refused: the guard is full", relayRefused},
			{"a forged copy reserves nothing, and does not block the genuine one", relayForged},
			{"refused by the ledger: left to its expiry", relayInvalid},
			{"an unknown outcome: left to its expiry", relayUnknown},
			{"nothing was submitted: given up, and the next may", relayNeverLeft},
			{"the redeem's retries run under one reservation", relayRetries},
			{"8 relayers, 64 goroutines, one VAA: one submits", relayRace},
			{"the guard fails: unguarded, and the ledger lets one commit", relayUnguarded},
		} {
			t.Run(kind.name+"/"+row.name, func(t *testing.T) {
				of := *w
				of.t = t
				row.test(t, &of, kind)
			})
		}
	}
}

var users atomic.Int64

// user is a party that no other test of this file has.
func (w *world) user() string {
	w.t.Helper()
	return w.party(fmt.Sprintf("user%d", users.Add(1)))
}

// never is a function that must not be called.
func (w *world) never() client.SubmitFunc {
	return func(context.Context, client.Prepared) (client.Submitted, error) {
		w.t.Error("it was submitted")
		return client.Submitted{}, client.ErrNotSubmitted
	}
}

func relayCommits(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	vaa := w.vaa()
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), w.redeemer(w.user()))
	w.want(got.Outcome, err, client.Committed, vaa.Digest())
	if !got.Submitted() || got.Admission.Decision != client.Admitted || got.Admission.Held != nil || got.Admission.Token <= 0 {
		t.Errorf("%+v", got.Admission)
	}
	if got.Outcome.Answers != 1 {
		t.Errorf("%d answers were used, want the one that was verified before the guard was asked", got.Outcome.Answers)
	}
	store.wantEnds(t, "committed")
}

func relayDuplicate(t *testing.T, w *world, kind guardKind) {
	guards, store := kind.make(w, roomy(10), 2, client.GuardOptions{TTL: time.Minute})
	vaa := w.vaa()
	user := w.user()
	got, err := w.relayer(guards[0]).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		other, err := w.relayer(guards[1]).Redeem(ctx, w.request(vaa), w.never())
		if err != nil || other.Submitted() || other.Admission.Decision != client.AlreadyReceived || other.Admission.ExpiresAt.Before(time.Now()) || other.Outcome.State != 0 || other.Outcome.Digest != p.Digest {
			t.Errorf("the other relayer: %+v, %v", other, err)
		}
		return w.redeemer(user)(ctx, p)
	})
	w.want(got.Outcome, err, client.Committed, vaa.Digest())
	store.wantEnds(t, "committed")
}

func relayConsumed(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{Release: true})
	vaa := w.vaa()
	first, err := w.client(w.options()).Redeem(t.Context(), w.request(vaa), w.redeemer(w.user()))
	w.want(first, err, client.Committed, vaa.Digest())
	w.eventually("a service that knows the consume", func() error {
		covering, err := w.api.GetCoveringNode(t.Context(), &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: w.app.Consumer}, Digest: vaa.Digest().String()})
		if err == nil && !covering.GetConsumed() {
			err = errors.New("it is not consumed there")
		}
		return err
	})
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), w.never())
	w.want(got.Outcome, err, client.Consumed, vaa.Digest())
	if got.Submitted() || got.Admission.Decision != 0 {
		t.Errorf("%+v", got.Admission)
	}
	store.wantLive(t, 0)
}

func relayLoses(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	vaa := w.vaa()
	user, other := w.user(), w.user()
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		if p.Submission == 1 && !p.Probe {
			// Somebody who asks no guard.
			if end, err := w.client(w.options()).Redeem(ctx, w.request(vaa), w.redeemer(other)); err != nil || end.State != client.Committed {
				t.Errorf("the other: %+v, %v", end, err)
			}
		}
		return w.redeemer(user)(ctx, p)
	})
	w.want(got.Outcome, err, got.Outcome.State, vaa.Digest())
	if got.Outcome.State != client.Consumed {
		t.Errorf("%+v", got.Outcome)
	}
	store.wantEnds(t, "consumed")
}

func relayRefused(t *testing.T, w *world, kind guardKind) {
	g, _ := kind.one(w, roomy(1), client.GuardOptions{})
	admit(t, g, w.submission(w.vaa()), client.Admitted, client.EndingUnknown)
	vaa := w.vaa()
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), w.never())
	if got.Submitted() || got.Admission.Decision != client.Refused || got.Admission.Reason != "CAPACITY" || got.Admission.RetryAfter <= 0 || !errors.Is(err, client.ErrNotAdmitted) {
		t.Errorf("%+v, %v", got, err)
	}
}

func relayForged(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	genuine := w.vaa()
	unsigned := *genuine
	unsigned.Signatures = nil
	later := genuine.Encode()
	later[0] = 2
	for _, forged := range [][]byte{unsigned.Encode(), later, genuine.Encode()[:80]} {
		request := w.request(genuine)
		request.VAA = forged
		got, err := w.relayer(g).Redeem(t.Context(), request, w.never())
		if err != nil || got.Submitted() || got.Admission.Decision != 0 || got.Outcome.State != client.Invalid || got.Outcome.Message == "" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	store.wantLive(t, 0)
	got, err := w.relayer(g).Redeem(t.Context(), w.request(genuine), w.redeemer(w.user()))
	w.want(got.Outcome, err, client.Committed, genuine.Digest())
}

func relayInvalid(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{Release: true})
	foreign := *w.app
	foreign.PeerAddress = "abababababababababababababababababababababababababababababababab"
	vaa, err := w.world.VAA(&foreign, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), w.redeemer(w.user()))
	if err != nil || got.Admission.Decision != client.Admitted || got.Outcome.State != client.Invalid || got.Outcome.Message != "VAA is from a different emitter" {
		t.Errorf("%+v, %v", got, err)
	}
	store.wantEnds(t)
	store.wantLive(t, 1)
}

func relayUnknown(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{Release: true})
	options := w.options()
	options.MaxSubmissions = 1
	r, err := client.NewRelayer(w.client(options), g)
	if err != nil {
		t.Fatal(err)
	}
	vaa := w.vaa()
	got, err := r.Redeem(t.Context(), w.request(vaa), func(context.Context, client.Prepared) (client.Submitted, error) {
		return client.Submitted{}, errors.New("the connection broke")
	})
	if got.Admission.Decision != client.Admitted || got.Outcome.State != client.Unknown || !errors.Is(err, client.ErrUnknown) {
		t.Errorf("%+v, %v", got, err)
	}
	store.wantEnds(t)
	again, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), w.never())
	if err != nil || again.Admission.Decision != client.AlreadyReceived {
		t.Errorf("%+v, %v", again, err)
	}
}

func relayNeverLeft(t *testing.T, w *world, kind guardKind) {
	limits := roomy(10)
	limits.AllowRelease = true
	g, store := kind.one(w, limits, client.GuardOptions{Release: true})
	vaa := w.vaa()
	// The caller leaves after it was admitted and before anything is submitted.
	ctx, cancel := context.WithCancelCause(t.Context())
	left, err := w.relayer(guardFunc(func(ctx context.Context, s client.Submission, run func(context.Context, client.Admission) client.Ending) (client.Admission, error) {
		return g.Admit(ctx, s, func(ctx context.Context, a client.Admission) client.Ending {
			cancel(errLeft)
			return run(ctx, a)
		})
	})).Redeem(ctx, w.request(vaa), w.never())
	if left.Admission.Decision != client.Admitted || left.Admission.Held != nil || left.Outcome.State != client.GaveUp || left.Outcome.Reason != "CANCELLED" || !errors.Is(err, errLeft) {
		t.Errorf("%+v, %v", left, err)
	}
	store.wantEnds(t, "released")
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), w.redeemer(w.user()))
	w.want(got.Outcome, err, client.Committed, vaa.Digest())
	store.wantEnds(t, "released", "committed")
}

// guardFunc is a function as a Guard.
type guardFunc func(context.Context, client.Submission, func(context.Context, client.Admission) client.Ending) (client.Admission, error)

func (f guardFunc) Admit(ctx context.Context, s client.Submission, run func(context.Context, client.Admission) client.Ending) (client.Admission, error) {
	return f(ctx, s, run)
}

func relayRetries(t *testing.T, w *world, kind guardKind) {
	g, store := kind.one(w, roomy(10), client.GuardOptions{})
	vaa, user := w.vaa(), w.user()
	got, err := w.relayer(g).Redeem(t.Context(), w.request(vaa), func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
		switch p.Submission {
		case 1: // the node changed meanwhile
			return client.Submitted{}, statusOf(t, codes.NotFound, "LOCAL_VERDICT_INACTIVE_CONTRACTS", "gone", nil)
		case 2: // the answer is lost, without anything done
			return client.Submitted{}, status.Error(codes.Unavailable, "error reading from server: EOF")
		}
		return w.redeemer(user)(ctx, p)
	})
	w.want(got.Outcome, err, client.Committed, vaa.Digest())
	if got.Outcome.Submissions != 3 || got.Outcome.Retries["refresh"] != 1 || got.Outcome.Retries["unknown outcome"] != 1 {
		t.Errorf("%+v", got.Outcome)
	}
	store.wantEnds(t, "committed")
	store.wantLive(t, 1)
}

// race has 8 relayers redeem one VAA in 8 goroutines each, and gives what each got and how often a submission was made.
func (w *world) race(guards []client.Guard, request client.Request, user string) (all []client.Relayed, errs []error, submissions int64) {
	w.t.Helper()
	var count atomic.Int64
	var mu sync.Mutex
	var running sync.WaitGroup
	start := make(chan struct{})
	for _, g := range guards {
		r := w.relayer(g)
		for range 64 / len(guards) {
			running.Go(func() {
				<-start
				got, err := r.Redeem(context.Background(), request, func(ctx context.Context, p client.Prepared) (client.Submitted, error) {
					if !p.Probe {
						count.Add(1)
					}
					return w.redeemer(user)(ctx, p)
				})
				mu.Lock()
				defer mu.Unlock()
				all, errs = append(all, got), append(errs, err)
			})
		}
	}
	close(start)
	running.Wait()
	return all, errs, count.Load()
}

func relayRace(t *testing.T, w *world, kind guardKind) {
	guards, store := kind.make(w, roomy(10), 8, client.GuardOptions{})
	vaa := w.vaa()
	all, errs, submissions := w.race(guards, w.request(vaa), w.user())
	if submissions != 1 {
		t.Errorf("%d submissions were made, want 1", submissions)
	}
	committed := 0
	for i, got := range all {
		switch {
		case errs[i] != nil:
			t.Error(errs[i])
		case got.Submitted():
			committed++
			w.want(got.Outcome, nil, client.Committed, vaa.Digest())
		case got.Admission.Decision == client.AlreadyReceived, got.Admission.Decision == client.AlreadyConsumed, got.Outcome.State == client.Consumed:
		default:
			t.Errorf("%+v", got)
		}
	}
	if committed != 1 || len(w.consumed(vaa.Digest())) != 1 {
		t.Errorf("%d committed, the digest is consumed %d times", committed, len(w.consumed(vaa.Digest())))
	}
	store.wantEnds(t, "committed")
}

func relayUnguarded(t *testing.T, w *world, kind guardKind) {
	var seen events
	guards, store := kind.make(w, roomy(10), 8, client.GuardOptions{Observe: seen.observe})
	store.fail(errors.New("the database is gone"))
	vaa := w.vaa()
	all, errs, submissions := w.race(guards, w.request(vaa), w.user())
	unguarded := 0
	for i, got := range all {
		if got.Admission.Decision == client.Unguarded {
			unguarded++
			if got.Admission.Unguarded == nil || got.Outcome.State != client.Committed && got.Outcome.State != client.Consumed {
				t.Errorf("%+v", got)
			}
		} else if got.Outcome.State != client.Consumed && got.Admission.Decision != client.AlreadyConsumed {
			t.Errorf("%+v", got)
		}
		if errs[i] != nil {
			t.Error(errs[i])
		}
	}
	if n := seen.count(client.EventUnguarded); n != unguarded || unguarded == 0 || submissions == 0 || seen.count(client.EventSettled) != 0 {
		t.Errorf("%d ran unguarded, %d were observed", unguarded, n)
	}
	if len(w.consumed(vaa.Digest())) != 1 {
		t.Errorf("the digest is consumed %d times", len(w.consumed(vaa.Digest())))
	}
}

// What a request lacks is said before anybody is asked.
func TestRelayerWrongRequests(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	g, err := client.NewLocalGuard(client.LocalGuardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := w.relayer(g)
	if got, err := r.Redeem(t.Context(), client.Request{}, w.never()); err == nil || got.Outcome.State != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := r.Redeem(t.Context(), client.Request{Consumer: "nobody::1220", VAA: w.vaa().Encode()}, w.never()); !errors.Is(err, client.ErrGaveUp) || got.Outcome.Reason != "UNKNOWN_SCOPE" || got.Admission.Decision != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
