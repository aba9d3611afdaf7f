//go:build !linux

package proctest

import "syscall"

// dieWithParent is nothing where the kernel can't do it.
func dieWithParent() *syscall.SysProcAttr { return nil }
