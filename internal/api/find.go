package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/index"
)

const (
	// findAfter is how long an update is waited for before the participant is asked where it is: most come by themselves.
	findAfter = 50 * time.Millisecond
	// maxFinds is how many callers' updates are asked for at once. The others wait for their turn.
	maxFinds = 4
)

var errFound = errors.New("the update was found on the participant")

// waitUpdate returns a view that contains the update. History knows the updates that were applied; of those that a snapshot brought it
// knows nothing, and it can be out of reach. So the participant is asked too, once for each call: a view at or past the update's offset
// has it, wherever it came from.
func (s *Service) waitUpdate(ctx context.Context, updateID string) (*index.View, error) {
	if s.findUpdate == nil {
		view, _, err := s.index.WaitUpdate(ctx, updateID)
		return view, err
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		located *index.View
		finding sync.WaitGroup
	)
	finding.Go(func() {
		if located = s.locate(waiting, updateID); located != nil {
			stop(errFound)
		}
	})
	view, _, err := s.index.WaitUpdate(waiting, updateID)
	if err == nil {
		stop(nil) // and whatever was found says no more
	}
	// Where history has failed the participant may still tell.
	finding.Wait()
	switch {
	case err == nil:
		return view, nil
	case located != nil:
		return located, nil
	}
	return nil, err
}

// locate asks the participant where the update is, and waits for a view that goes as far. It returns nil where the update is not found,
// or not reached while the context lasts.
func (s *Service) locate(ctx context.Context, updateID string) *index.View {
	timer := time.NewTimer(findAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil
	}
	select {
	case s.finding <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	participantID, offset, found := s.findUpdate(ctx, updateID)
	<-s.finding
	if !found {
		return nil
	}
	view, err := s.index.Wait(ctx, func(v *index.View) bool {
		return v.Position().ParticipantID == participantID && v.Position().Offset >= offset
	})
	if err != nil {
		return nil
	}
	return view
}
