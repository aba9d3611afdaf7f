//go:build !unix

package replayguard_test

import "time"

var began = time.Now()

// processTime is the time since the process began, where nothing better is to be had.
func processTime() time.Duration { return time.Since(began) }
