package api

import (
	"fmt"
	"math"
	"math/bits"
)

// leastConnections and leastOpsConnections are what a server works with: some callers with calls and room for another; a probe, a scraper
// and a human.
const leastConnections, leastOpsConnections = 32, 16

// Connections is how many connections the limits allow at once, with those of the operator's endpoints where ops says that they are served.
func (l Limits) Connections(ops bool) int {
	if !ops {
		return l.MaxConnections
	}
	return sum(l.MaxConnections, l.MaxOpsConnections)
}

// Fit lowers the limits to that many connections at once, of both listeners where ops says so, because the process can't hold more. Each has its
// share of them, and the bounds per caller are lowered with it. So are calls and streams, where all of them together would leave some connection
// without any: that is what newcomers' room is made of. The error is that so few don't do; least is how many would.
func (l Limits) Fit(connections int, ops bool) (fitted Limits, least int, err error) {
	all := l.Connections(ops)
	leastOfCalls, leastOfOps := min(leastConnections, l.MaxConnections), 0
	if ops {
		leastOfOps = min(leastOpsConnections, l.MaxOpsConnections)
	}
	least = leastOfCalls + leastOfOps
	switch {
	case connections >= all:
		return l, least, nil
	case connections < least:
		return l, least, fmt.Errorf("api: there is room for %d connections, and %d are the least that do", max(0, connections), least)
	}
	fitted = l
	fitted.MaxConnections = connections
	if ops {
		share := part(l.MaxOpsConnections, connections, all)
		fitted.MaxOpsConnections = min(max(share, leastOfOps), connections-leastOfCalls)
		fitted.MaxConnections -= fitted.MaxOpsConnections
		fitted.MaxOpsConnectionsPerCaller = part(l.MaxOpsConnectionsPerCaller, fitted.MaxOpsConnections, l.MaxOpsConnections)
	}
	lower := func(bounds ...*int) {
		for _, bound := range bounds {
			*bound = part(*bound, fitted.MaxConnections, l.MaxConnections)
		}
	}
	lower(&fitted.MaxConnectionsPerCaller)
	if sum(l.MaxCalls, l.MaxStreams) < l.MaxConnections {
		lower(&fitted.MaxCalls, &fitted.MaxCallsPerCaller, &fitted.MaxStreams, &fitted.MaxStreamsPerCaller)
	}
	return fitted, least, nil
}

// sum is that of two bounds, which can be so great that it overflows: then it is the greatest that there is.
func sum(a, b int) int { return min(a, math.MaxInt-b) + b }

// part is of a bound as much as now is of before, which is no less, and at least one. Products of bounds can be greater than an integer.
func part(bound, now, before int) int {
	high, low := bits.Mul64(uint64(bound), uint64(now))
	share, _ := bits.Div64(high, low, uint64(before)) // no greater than the bound
	return max(1, int(share))
}
