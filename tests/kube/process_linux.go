package kube

import "syscall"

// dieWithParent has the kernel kill the process when this one ends, however it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
