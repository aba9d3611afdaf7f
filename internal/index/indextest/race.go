//go:build race

package indextest

// raced says that the race detector is on: a history then takes ten times as long, and one goroutine races with nobody.
const raced = true
