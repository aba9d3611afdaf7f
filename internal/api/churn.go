package api

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

const (
	// forecastWindow is what "lately" is, forecastLeast the least time that a rate is made of: a single consume seconds ago is no rate.
	forecastWindow = 10 * time.Minute
	forecastLeast  = time.Minute
	// forecastSample is how many ended nodes a forecast looks at.
	forecastSample = 64
	// forecastTimeout is how long history may take, and forecastPause how long it is left alone after it failed: a forecast is worth no
	// wait. Answers need no store but for it.
	forecastTimeout = 250 * time.Millisecond
	forecastPause   = 5 * time.Second

	maxForecasts  = 4096
	livesBytes    = 300
	lifeBytes     = 64
	maxLivesBytes = 16 << 20
)

// forecasts remembers the lives before each present node, since while a node is the one with its prefix no other of that prefix ends: history
// is asked once per contract id.
type forecasts struct {
	*lru[forecastKey, []life]
	// pausedUntil is in nanoseconds since 1970, 0 for never.
	pausedUntil atomic.Int64
}

type forecastKey struct{ participantID, contractID string }

// life is when a node began, zero where that is not known, and ended.
type life struct{ created, ended time.Time }

// churn forecasts how long the node will last; nil where history can't be read.
func (s *Service) churn(ctx context.Context, r *reading, scope index.Scope, e *index.Entry) *disclosurev1.ChurnForecast {
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok {
		return nil
	}
	lives, ok := s.lives(ctx, r, scope, e, node)
	if !ok {
		return nil
	}
	filled := int64(node.Consumed.Len())
	forecast := &disclosurev1.ChurnForecast{
		ConsumedCount:     filled,
		SplitThreshold:    node.SplitThreshold,
		NextConsumeSplits: filled >= node.SplitThreshold && node.Prefix.Len() < wormhole.MaxPrefixNibbles,
	}
	seen, window := recent(lives, e.RecordTime, r.ledgerNow())
	if window > 0 {
		forecast.ConsumesSeen = int32(seen)
		forecast.Window = durationpb.New(window.Truncate(time.Second))
		// In hundredths: more would only look exact.
		forecast.ConsumesPerMinute = math.Round(float64(seen)/window.Minutes()*100) / 100
	}
	if median, n := medianLife(lives); n > 0 {
		forecast.MedianLife, forecast.LivesSeen = durationpb.New(median), int32(n)
	}
	return forecast
}

// lives are the latest ended nodes with the entry's prefix, newest first.
func (s *Service) lives(ctx context.Context, r *reading, scope index.Scope, e *index.Entry, node *wormhole.ReplayNode) ([]life, bool) {
	pos := r.view.Position()
	key := forecastKey{pos.ParticipantID, e.ContractID}
	if lives, ok := s.forecasts.get(key); ok {
		return lives, true
	}
	if r.now.UnixNano() < s.forecasts.pausedUntil.Load() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, forecastTimeout)
	defer cancel()
	r.usedHistory = true
	ended, err := s.index.History().NodeLives(ctx, scope, node.Prefix, pos.Offset, forecastSample)
	if err != nil {
		s.forecasts.pausedUntil.Store(r.now.Add(forecastPause).UnixNano())
		return nil, false
	}
	lives := make([]life, 0, len(ended))
	for _, l := range ended {
		if l.Prefix == node.Prefix { // those below it are of a fork that is over
			lives = append(lives, life{l.Created, l.Ended})
		}
	}
	return s.forecasts.getOrAdd(key, lives, livesBytes+lifeBytes*len(lives)), true
}

// recent counts the nodes that ended lately, and says in how long a time; 0 where nothing can be said. activated is when the present
// node was, zero where that is not known.
func recent(lives []life, activated, now time.Time) (seen int, window time.Duration) {
	from := activated
	for _, l := range lives {
		if now.Sub(l.ended) > forecastWindow {
			return seen, forecastWindow
		}
		seen++
		if from = l.created; from.IsZero() {
			from = l.ended
		}
	}
	if from.IsZero() {
		return 0, 0
	}
	return seen, min(forecastWindow, max(forecastLeast, now.Sub(from)))
}

// medianLife is the median of the lives whose beginning is known, and how many these are.
func medianLife(lives []life) (median time.Duration, n int) {
	var lengths []time.Duration
	for _, l := range lives {
		if !l.created.IsZero() {
			lengths = append(lengths, max(0, l.ended.Sub(l.created)))
		}
	}
	if n = len(lengths); n == 0 {
		return 0, 0
	}
	slices.Sort(lengths)
	return lengths[(n-1)/2]/2 + lengths[n/2]/2, n
}
