package proctest

import "syscall"

// dieWithParent has the kernel kill the process when the thread that started it dies.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
