package api_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/api"
)

// Connections that there are descriptors for are shared by both listeners as their bounds are, and what goes with them is lowered with them.
func TestLimitsFitConnections(t *testing.T) {
	type limits struct{ conns, perCaller, ops, opsPerCaller, calls, callsPerCaller, streams int }
	of := func(l api.Limits) limits {
		return limits{l.MaxConnections, l.MaxConnectionsPerCaller, l.MaxOpsConnections, l.MaxOpsConnectionsPerCaller, l.MaxCalls, l.MaxCallsPerCaller, l.MaxStreams}
	}
	def := api.DefaultConfig().Limits
	few, proxied, busy, boundless := def, def, def, def
	few.MaxConnections, few.MaxConnectionsPerCaller = 10, 5
	proxied.MaxConnectionsPerCaller, proxied.MaxCallsPerCaller = 4096, 2048
	busy.MaxCalls = 4096
	boundless.MaxCalls = math.MaxInt
	for name, test := range map[string]struct {
		limits      api.Limits
		connections int
		ops         bool
		want        limits // none: an error
	}{
		"enough":                      {def, 4352, true, of(def)},
		"enough, without ops":         {def, 4096, false, of(def)},
		"half":                        {def, 2176, true, limits{2048, 512, 128, 32, 1024, 256, 256}},
		"half, without ops":           {def, 2048, false, limits{2048, 512, 256, 64, 1024, 256, 256}},
		"the operator's least":        {def, 100, true, limits{84, 21, 16, 4, 42, 10, 10}},
		"the least":                   {def, 48, true, limits{32, 8, 16, 4, 16, 4, 4}},
		"less":                        {def, 47, true, limits{}},
		"nothing":                     {def, -5, true, limits{}},
		"the callers' least":          {few, 100, true, limits{10, 5, 90, 22, 2048, 512, 512}},
		"one caller":                  {proxied, 2176, true, limits{2048, 2048, 128, 32, 1024, 1024, 256}},
		"calls on all were allowed":   {busy, 2176, true, limits{2048, 512, 128, 32, 4096, 512, 512}},
		"calls without bound":         {boundless, 2176, true, limits{2048, 512, 128, 32, math.MaxInt, 512, 512}},
		"a least that is above bound": {few, 25, true, limits{}},
	} {
		got, least, err := test.limits.Fit(test.connections, test.ops)
		if (err != nil) != (test.want == limits{}) || err == nil && of(got) != test.want {
			t.Errorf("%s: %+v, %v; want %+v", name, of(got), err, test.want)
		}
		if err != nil && test.connections >= least {
			t.Errorf("%s: %d connections are refused, and %d would do", name, test.connections, least)
		}
	}
}

// Whatever the bounds are, what fits does, and no bound is raised.
func TestLimitsFitAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.OneOf(rapid.IntRange(1, 5000), rapid.IntRange(1, math.MaxInt))
		l := api.DefaultConfig().Limits
		l.MaxConnections, l.MaxConnectionsPerCaller = bound.Draw(t, "connections"), bound.Draw(t, "per caller")
		l.MaxCalls, l.MaxCallsPerCaller = bound.Draw(t, "calls"), bound.Draw(t, "calls per caller")
		ops, connections := rapid.Bool().Draw(t, "ops"), rapid.OneOf(rapid.IntRange(-10, 5000), bound).Draw(t, "room")
		got, least, err := l.Fit(connections, ops)
		if (err != nil) != (connections < least && connections < l.Connections(ops)) {
			t.Fatalf("%v with a least of %d", err, least)
		}
		if err != nil {
			return
		}
		if all := got.Connections(ops); all > connections {
			t.Errorf("%d connections", all)
		}
		for _, bounds := range [][2]int{
			{got.MaxConnections, l.MaxConnections}, {got.MaxConnectionsPerCaller, l.MaxConnectionsPerCaller},
			{got.MaxOpsConnections, l.MaxOpsConnections}, {got.MaxOpsConnectionsPerCaller, l.MaxOpsConnectionsPerCaller},
			{got.MaxCalls, l.MaxCalls}, {got.MaxCallsPerCaller, l.MaxCallsPerCaller}, {got.MaxStreams, l.MaxStreams},
		} {
			if bounds[0] < 1 || bounds[0] > bounds[1] {
				t.Errorf("%d of %d", bounds[0], bounds[1])
			}
		}
		free := l.MaxCalls < l.MaxConnections-l.MaxStreams // without the sum, which can overflow
		if free && l.MaxConnections < 1<<40 && got.MaxCalls+got.MaxStreams > got.MaxConnections {
			t.Errorf("%d calls and %d streams on %d connections", got.MaxCalls, got.MaxStreams, got.MaxConnections)
		}
	})
}
