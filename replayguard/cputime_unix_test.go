//go:build unix

package replayguard_test

import (
	"syscall"
	"time"
)

// processTime is the processor time that this process has spent.
func processTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
