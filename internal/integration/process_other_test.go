//go:build !linux

package integration

import "syscall"

// dieWithUs is nothing where the kernel can't do it.
func dieWithUs() *syscall.SysProcAttr { return nil }
