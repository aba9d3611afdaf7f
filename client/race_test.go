//go:build race

package client_test

// raceEnabled: this is built with the race detector, which takes its time.
const raceEnabled = true
