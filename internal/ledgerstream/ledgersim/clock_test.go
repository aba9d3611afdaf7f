package ledgersim_test

import (
	"slices"
	"sync"
	"time"
)

// clock is a clock that the test moves.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*timer
}

type timer struct {
	at time.Time
	c  chan time.Time
}

func newClock(now time.Time) *clock { return &clock{now: now} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{c.now.Add(d), make(chan time.Time, 1)}
	if d <= 0 {
		t.c <- c.now
		return t.c
	}
	c.timers = append(c.timers, t)
	return t.c
}

// moveTo moves the clock forward and fires what is due, in order.
func (c *clock) moveTo(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.now) {
		return
	}
	c.now = now
	slices.SortFunc(c.timers, func(a, b *timer) int { return a.at.Compare(b.at) })
	for len(c.timers) > 0 && !c.timers[0].at.After(now) {
		c.timers[0].c <- now
		c.timers = c.timers[1:]
	}
}

func (c *clock) advance(d time.Duration) { c.moveTo(c.Now().Add(d)) }
