//go:build !race

package proctest

// Race tells whether the tests have the race detector.
const Race = false
