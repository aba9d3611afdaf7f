package api

import (
	"context"
	"math"
	"slices"
	"sync"
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

	// forecastEnough is how many ended nodes of its own make a node's forecast; one with fewer inherits from those it was split from.
	forecastEnough = 8
	// forecastAncestors is how far up a node inherits: a child that came over-full splits again at its next consume.
	forecastAncestors = 2
)

// forecasts remembers the lives before each present node, since while a node is the one with its prefix no other of that prefix ends: history
// is asked once per contract id. What it remembers is of one history of one ledger, that of the views of now.
type forecasts struct {
	mu sync.Mutex
	// lru has the lives, of is a view of the history that they are of.
	lru *lru[forecastKey, []life]
	of  *index.View
	// pausedUntil is in nanoseconds since 1970, 0 for never.
	pausedUntil atomic.Int64
}

// at is the memory for answers from the view; nil where that is not of the present history, whose lives its contracts must not be told by.
func (f *forecasts) at(view, present *index.View) *lru[forecastKey, []life] {
	if !sameHistory(view, present) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of != nil && !sameHistory(f.of, present) {
		f.lru = newLRU[forecastKey, []life](maxForecasts, maxLivesBytes)
	}
	f.of = present
	return f.lru
}

// sameHistory reports whether two views are of one history of one ledger.
func sameHistory(a, b *index.View) bool {
	return a != nil && b != nil && (a.Continues(b) || b.Continues(a))
}

type forecastKey struct{ participantID, contractID string }

// life is when a node began, zero where that is not known, and ended. It is of the node itself (0), of the one that it was split from (1), or
// of the one that that was split from.
type life struct {
	created, ended time.Time
	generation     int
}

// alike is how many nodes share what happened to the one that they were split from: a digest falls on each nibble alike.
func (l life) alike() int { return 1 << (4 * l.generation) }

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
	lately := recent(lives, e.RecordTime, r.ledgerNow())
	if lately.window > 0 {
		forecast.ConsumesSeen, forecast.InheritedConsumesSeen = int32(lately.own), int32(lately.inherited)
		forecast.Window = durationpb.New(lately.window.Truncate(time.Second))
		// In hundredths: more would only look exact.
		forecast.ConsumesPerMinute = math.Round(lately.consumes/lately.window.Minutes()*100) / 100
	}
	if median, n, inherited := medianLife(lives); n > 0 {
		forecast.MedianLife, forecast.LivesSeen, forecast.MedianLifeInherited = durationpb.New(median), int32(n), inherited
	}
	return forecast
}

// lives are the latest ended nodes with the entry's prefix, newest first, and then, where these are few, those of the nodes it was split from.
func (s *Service) lives(ctx context.Context, r *reading, scope index.Scope, e *index.Entry, node *wormhole.ReplayNode) ([]life, bool) {
	pos := r.view.Position()
	key := forecastKey{pos.ParticipantID, e.ContractID}
	memory := s.forecasts.at(r.view, s.index.View())
	if memory != nil {
		if lives, ok := memory.get(key); ok {
			return lives, true
		}
	}
	if r.now.UnixNano() < s.forecasts.pausedUntil.Load() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, forecastTimeout)
	defer cancel()
	r.usedHistory = true
	var lives []life
	prefix, atOrBefore, sample := node.Prefix, pos.Offset, forecastSample
	for generation := 0; ; generation++ {
		ended, err := s.index.History().NodeLives(ctx, scope, prefix, atOrBefore, sample)
		if err != nil {
			s.forecasts.pausedUntil.Store(r.now.Add(forecastPause).UnixNano())
			return nil, false
		}
		for _, l := range ended {
			if l.Prefix == prefix { // those below it are what it was split into, or of a fork that is over
				lives = append(lives, life{l.Created, l.Ended, generation})
			}
		}
		if generation == forecastAncestors || prefix.Len() == 0 || len(lives) >= forecastEnough {
			break
		}
		if prefix, err = wormhole.ParsePrefix(prefix.String()[:prefix.Len()-1]); err != nil {
			return nil, false // no prefix of a prefix is malformed
		}
		if len(lives) == 0 {
			atOrBefore = e.Offset // it came with the split that ended what it was split from
		} else {
			sample = forecastSample * 4 // some of which its siblings will be
		}
	}
	if memory == nil {
		return lives, true
	}
	return memory.getOrAdd(key, lives, livesBytes+lifeBytes*len(lives)), true
}

// lately is what ended in a time: nodes of the forecast's own prefix, and of those it was split from. consumes are the former and the share of
// the latter that was this prefix's.
type lately struct {
	own, inherited int
	consumes       float64
	window         time.Duration
}

// recent counts the nodes that ended lately, and says in how long a time; no window where nothing can be said. activated is when the present
// node was, zero where that is not known.
func recent(lives []life, activated, now time.Time) (found lately) {
	from := activated
	for _, l := range lives {
		if now.Sub(l.ended) > forecastWindow {
			found.window = forecastWindow
			return found
		}
		if l.generation == 0 {
			found.own++
		} else {
			found.inherited++
		}
		found.consumes += 1 / float64(l.alike())
		if from = l.created; from.IsZero() {
			from = l.ended
		}
	}
	if !from.IsZero() {
		found.window = min(forecastWindow, max(forecastLeast, now.Sub(from)))
	}
	return found
}

// medianLife is the median of the lives whose beginning is known, and how many these are: of the node's own or, where there are none, of those of
// the nearest one that it was split from, as many times longer as there are nodes alike.
func medianLife(lives []life) (median time.Duration, n int, inherited bool) {
	var lengths []time.Duration
	generation := 0
	for _, l := range lives {
		if l.created.IsZero() || len(lengths) > 0 && l.generation > generation {
			continue
		}
		generation = l.generation
		lengths = append(lengths, max(0, l.ended.Sub(l.created))*time.Duration(l.alike()))
	}
	if n = len(lengths); n == 0 {
		return 0, 0, false
	}
	slices.Sort(lengths)
	return lengths[(n-1)/2]/2 + lengths[n/2]/2, n, generation > 0
}
