package replayguard_test

import (
	"math"
	"testing"
	"time"

	"github.com/disclosured/disclosured/replayguard"
)

func TestLimitsDefaults(t *testing.T) {
	got, err := replayguard.Limits{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if got.MaxEntries != 10_000 || got.MaxTTL != 30*time.Minute || got.MaxLifetime != 2*time.Hour || got.AllowRelease {
		t.Errorf("got %+v", got)
	}
	if want := (replayguard.Quota{MaxLive: 2500, PerMinute: 600, Burst: 600, LapseCost: 2}); got.Quota != want {
		t.Errorf("got %+v, want %+v", got.Quota, want)
	}
	if idle := got.ClientIdle(); idle != time.Hour {
		t.Errorf("idle after %v", idle)
	}
	small, err := replayguard.Limits{MaxEntries: 1, MaxTTL: 1500 * time.Millisecond}.WithDefaults()
	if err != nil || small.Quota.MaxLive != 1 || small.MaxTTL != time.Second || small.MaxLifetime != 4*time.Second {
		t.Errorf("got %+v, %v", small, err)
	}
	great, err := replayguard.Limits{
		MaxEntries: math.MaxInt, MaxTTL: math.MaxInt64, MaxLifetime: math.MaxInt64,
		Quota: replayguard.Quota{PerMinute: 1, Burst: replayguard.NoLimit},
	}.WithDefaults()
	if err != nil || great.Quota.MaxLive != replayguard.NoLimit || great.MaxTTL < 290*365*24*time.Hour {
		t.Errorf("got %+v, %v", great, err)
	}
	if idle := great.ClientIdle(); idle < 290*365*24*time.Hour {
		t.Errorf("idle after %v", idle)
	}
}

func TestLimitsFaults(t *testing.T) {
	for name, limits := range map[string]replayguard.Limits{
		"MaxEntries":         {MaxEntries: -1},
		"MaxTTL":             {MaxTTL: -time.Second},
		"MaxTTL of 1 ns":     {MaxTTL: 1},
		"MaxLifetime":        {MaxLifetime: -time.Second},
		"MaxLive":            {Quota: replayguard.Quota{MaxLive: -1}},
		"PerMinute":          {Quota: replayguard.Quota{PerMinute: -1}},
		"Burst":              {Quota: replayguard.Quota{Burst: -1}},
		"LapseCost":          {Quota: replayguard.Quota{LapseCost: -1}},
		"more than NoLimit":  {Quota: replayguard.Quota{PerMinute: replayguard.NoLimit + 1}},
		"the least of all":   {MaxEntries: math.MinInt},
		"the least duration": {MaxTTL: math.MinInt64},
	} {
		if got, err := limits.WithDefaults(); err == nil {
			t.Errorf("%s: %+v is accepted as %+v", name, limits, got)
		}
	}
}
