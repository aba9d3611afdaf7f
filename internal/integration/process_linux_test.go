package integration

import "syscall"

// dieWithUs has the kernel kill the process when the thread that started it dies.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
