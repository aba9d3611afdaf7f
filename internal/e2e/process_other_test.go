//go:build !linux

package e2e

import "syscall"

// dieWithUs is nothing where the kernel can't do it.
func dieWithUs() *syscall.SysProcAttr { return nil }
