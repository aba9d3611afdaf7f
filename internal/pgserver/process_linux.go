package pgserver

import "syscall"

// endWithParent has the kernel send PostgreSQL's immediate shutdown signal when we die.
func endWithParent(attr *syscall.SysProcAttr) {
	attr.Pdeathsig = syscall.SIGQUIT
}
