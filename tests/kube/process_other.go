//go:build !linux

package kube

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}
