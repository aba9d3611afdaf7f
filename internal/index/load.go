package index

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

// load publishes what the store holds, if it is what was written. A database outlives its writer and others can reach it, so what comes
// back is held to what it says of itself (Options.CheckLoaded) before anyone reads it. What can't be decoded at all is as wrong as what was
// edited: the ledger has all of it.
func (x *Index) load(ctx context.Context) error {
	rebuild := NewRebuild(x.policy)
	c := newLoadChecker(x.opts.CheckLoaded, rebuild.Add)
	loaded, err := x.store.Load(ctx, c.add)
	wrong := c.wait()
	if err != nil {
		return fmt.Errorf("loading the index from its store: %w", err)
	}
	kept := loaded.Ghosts[:0:0]
	for _, e := range loaded.Ghosts {
		if x.opts.CheckLoaded != nil {
			if err := x.opts.CheckLoaded(e); err != nil {
				wrong.note(e, err)
				continue
			}
		}
		kept = append(kept, e)
	}
	loaded.Ghosts = kept
	if loaded.Unreadable.Rows > 0 {
		wrong.count, wrong.err = wrong.count+loaded.Unreadable.Rows, loaded.Unreadable.First
	}
	view, changed := rebuild.View(loaded)
	if wrong.count > 0 {
		x.opts.Logger.Error("the store holds contracts that are not as they were written: it was damaged or edited. Nothing of it is served, and the index is built anew from the ledger",
			"contracts", wrong.count, "unreadable", loaded.Unreadable.Rows, "first", wrong.contractID, "error", wrong.err)
		x.unsure, x.suspect = nil, view
		return nil
	}
	if len(changed) > 0 {
		// The policy is another than the one the rows were classed by. They are brought up to date before anyone reads them.
		x.opts.Logger.Warn("contracts changed class: the policy is not the one that the index was written with", "contracts", len(changed))
		delta := Delta{From: loaded.Position, To: loaded.Position, Put: changed, Scopes: newScopes(view, loaded.KnownScopes)}
		if err := x.store.Commit(ctx, delta); err != nil {
			return fmt.Errorf("storing the classes of a changed policy: %w", err)
		}
	}
	x.unsure, x.suspect = nil, nil
	x.publish(Publication{View: view}, nil)
	return nil
}

// wrongEntries are the entries that failed their check or could not be read: how many, and one of those that failed.
type wrongEntries struct {
	count      int
	contractID string
	err        error
}

func (w *wrongEntries) note(e *Entry, err error) {
	if w.count == 0 {
		w.contractID, w.err = e.ContractID, err
	}
	w.count++
}

// loadChecker checks entries on all cores while they are still being read, for a check recomputes a hash over all that an entry holds.
// What passes is kept by one goroutine, in no order.
type loadChecker struct {
	entries, passed chan *Entry
	checking        sync.WaitGroup
	keeping         sync.WaitGroup

	mu    sync.Mutex
	wrong wrongEntries
}

// loadAhead is how many entries lie between two steps of a load.
const loadAhead = 64

// newLoadChecker starts the goroutines, which wait ends. check may be nil.
func newLoadChecker(check func(*Entry) error, keep func(*Entry)) *loadChecker {
	c := &loadChecker{entries: make(chan *Entry, loadAhead), passed: make(chan *Entry, loadAhead)}
	for range runtime.GOMAXPROCS(0) {
		c.checking.Go(func() {
			for e := range c.entries {
				if check != nil {
					if err := check(e); err != nil {
						c.mu.Lock()
						c.wrong.note(e, err)
						c.mu.Unlock()
						continue
					}
				}
				c.passed <- e
			}
		})
	}
	c.keeping.Go(func() {
		for e := range c.passed {
			keep(e)
		}
	})
	return c
}

func (c *loadChecker) add(e *Entry) error {
	c.entries <- e
	return nil
}

// wait waits for all that was added. Nothing is added after it.
func (c *loadChecker) wait() wrongEntries {
	close(c.entries)
	c.checking.Wait()
	close(c.passed)
	c.keeping.Wait()
	return c.wrong
}
