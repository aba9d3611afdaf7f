package e2e

import "syscall"

// dieWithUs has the kernel kill the process when the tests die.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
