package kube

import "syscall"

// dieWithParent makes the kernel kill the process when this process ends, even after a crash.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
