//go:build unix && !linux

package pgserver

import "syscall"

// endWithParent: this system cannot tie a child to its parent's life. A killed owner leaves its server running.
func endWithParent(*syscall.SysProcAttr) {}
