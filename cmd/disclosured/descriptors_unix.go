//go:build unix

package main

import (
	"math"
	"syscall"
)

// descriptorLimit is how many file descriptors this process may have: the soft limit, which Go raises to the hard one as a program starts.
func descriptorLimit() (limit int, known bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	// Its type is signed on some systems, where no limit is the greatest value or -1.
	return int(min(uint64(r.Cur), math.MaxInt)), true
}
