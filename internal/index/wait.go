package index

import (
	"context"
	"fmt"
	"sync"
)

// Wait returns the first view that satisfies the condition: the present one or a later one. It wakes at each publication and at
// no other time. The error is the context's.
func (x *Index) Wait(ctx context.Context, until func(*View) bool) (*View, error) {
	for {
		p := x.now.Load()
		if p.view != nil && until(p.view) {
			return p.view, nil
		}
		select {
		case <-p.next:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a later view: %w", context.Cause(ctx))
		}
	}
}

// WaitUpdate returns once the update is in the view, with that view and where the update is. An update that is no longer
// remembered, or that brings nothing that the index follows, never comes: the context bounds the wait.
func (x *Index) WaitUpdate(ctx context.Context, updateID string) (*View, UpdateRef, error) {
	woken, leave := x.waiters.join(updateID)
	defer leave()
	for {
		// The last update that a snapshot contains is known by the view and by no history.
		if v := x.View(); v != nil && v.pos.UpdateID == updateID {
			return v, UpdateRef{Offset: v.pos.UpdateOffset, UpdateID: updateID, RecordTime: v.pos.RecordTime}, nil
		}
		before := x.View()
		ref, known, err := x.History().UpdateByID(ctx, updateID)
		if err != nil {
			return nil, UpdateRef{}, fmt.Errorf("looking for update %s: %w", updateID, err)
		}
		// History may be ahead of the view for the moment between commit and publication. And what it says is of its own history alone: where
		// another one came to be published meanwhile it is not known of which.
		after := x.View()
		switch {
		case after != nil && (before == nil || !after.Continues(before)):
			continue
		case known && after != nil && after.pos.Offset >= ref.Offset:
			return after, ref, nil
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return nil, UpdateRef{}, fmt.Errorf("waiting for update %s: %w", updateID, context.Cause(ctx))
		}
	}
}

// updateWaiters wakes those who wait for an update when it is published, and nobody else.
type updateWaiters struct {
	mu   sync.Mutex
	byID map[string]map[chan struct{}]struct{}
}

// join adds a waiter. Its channel has room for one wake-up, so that none is missed.
func (w *updateWaiters) join(updateID string) (woken <-chan struct{}, leave func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byID == nil {
		w.byID = map[string]map[chan struct{}]struct{}{}
	}
	if w.byID[updateID] == nil {
		w.byID[updateID] = map[chan struct{}]struct{}{}
	}
	w.byID[updateID][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.byID[updateID], ch)
		if len(w.byID[updateID]) == 0 {
			delete(w.byID, updateID)
		}
	}
}

// wake wakes those who wait for one of the updates.
func (w *updateWaiters) wake(updates []UpdateRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byID) == 0 {
		return
	}
	for _, u := range updates {
		for ch := range w.byID[u.UpdateID] {
			signal(ch)
		}
	}
}

// wakeAll wakes everyone: after a seed or a load any update may be there.
func (w *updateWaiters) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, waiters := range w.byID {
		for ch := range waiters {
			signal(ch)
		}
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
