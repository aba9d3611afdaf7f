package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// holding is a reservation that this process holds, at whatever guard.
type holding interface {
	// extend moves the expiry ahead. An error that wraps errNotExtendable says that trying again is no use.
	extend(ctx context.Context, until time.Time) (time.Time, error)
	// settle says how it ended, committed or else seen consumed.
	settle(ctx context.Context, committed bool) error
	// release gives it up. It is nil also where the guard does not allow that.
	release(ctx context.Context) error
}

// errNotExtendable is wrapped by errors of extend that are for good: the reservation is gone, or at its greatest lifetime.
var errNotExtendable = errors.New("the reservation can't be extended")

// hold runs an admitted submission: with its reservation extended meanwhile, and settled afterwards. Where run does not return, by a panic
// or runtime.Goexit, the extending ends and nothing is settled.
func (o *GuardOptions) hold(ctx context.Context, s *Submission, begun time.Time, h holding, a Admission, run func(context.Context, Admission) Ending) (Admission, error) {
	o.observe(s, Event{Kind: EventGuard, Endpoint: a.Endpoint, Reason: a.Decision.String(), Took: time.Since(begun)})
	k := &keeper{o: o, s: s, h: h, endpoint: a.Endpoint, until: a.ExpiresAt}
	stop := k.start(ctx)
	ending := func() Ending {
		defer stop()
		return run(ctx, a)
	}()
	a.ExpiresAt = k.until
	a.Held = errors.Join(k.err, o.conclude(ctx, s, h, a.Endpoint, ending))
	return a, nil
}

// conclude settles, or releases, or leaves a reservation. It outlasts the caller's context by the calls' own timeouts.
func (o *GuardOptions) conclude(ctx context.Context, s *Submission, h holding, endpoint string, ending Ending) error {
	ctx = context.WithoutCancel(ctx)
	begun := time.Now()
	var err error
	var kind EventKind
	switch {
	case ending == EndingCommitted || ending == EndingConsumed:
		kind, err = EventSettled, h.settle(ctx, ending == EndingCommitted)
	case ending == EndingNeverLeft && o.Release:
		kind, err = EventReleased, h.release(ctx)
	default:
		return nil
	}
	o.observe(s, Event{Kind: kind, Endpoint: endpoint, Took: time.Since(begun), Err: err})
	if err != nil {
		err = fmt.Errorf("ending the reservation of digest %s: %w", digestText(s), err)
		o.Log.Warn("a reservation could not be ended: it stays until its expiry", "digest", digestText(s), "error", err)
	}
	return err
}

// keeper extends a reservation while its submission runs.
type keeper struct {
	o        *GuardOptions
	s        *Submission
	h        holding
	endpoint string

	// Of the keeper's goroutine until that has ended.
	until time.Time
	err   error
}

// start begins; the function that it returns ends the keeping and waits for that. It may be called once.
func (k *keeper) start(ctx context.Context) (stop func()) {
	if k.s.Extend < 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { k.keep(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// pause is how long not to extend: until half of an extension is left, or half of what there is, if that is sooner gone. The expiry was chosen
// by this machine's clock; the guard's may be ahead of it by less than that half.
func (k *keeper) pause() time.Duration {
	left := time.Until(k.until)
	return max(left-k.s.Extend/2, left/2, minPause)
}

// minPause keeps clocks that differ from making a loop without rest.
const minPause = 100 * time.Millisecond

// keep extends when half of the time that an extension gives is left, and after a failure at an eighth of it, until the submission ends or
// the guard says that there is nothing to extend.
func (k *keeper) keep(ctx context.Context) {
	next := k.pause()
	for {
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		begun := time.Now()
		wanted := begun.Add(k.s.Extend)
		if wanted.Before(k.until) {
			wanted = k.until // extending never shortens
		}
		until, err := k.h.extend(ctx, wanted)
		if ctx.Err() != nil {
			return // the submission ended meanwhile: settling says what matters
		}
		k.o.observe(k.s, Event{Kind: EventExtended, Endpoint: k.endpoint, Took: time.Since(begun), Err: err})
		if err == nil {
			k.until, k.err = until, nil
			next = k.pause()
			continue
		}
		k.err = fmt.Errorf("extending the reservation of digest %s: %w", digestText(k.s), err)
		k.o.Log.Warn("a reservation could not be extended", "digest", digestText(k.s), "until", k.until, "error", err)
		if errors.Is(err, errNotExtendable) {
			return
		}
		next = k.s.Extend / 8
	}
}
