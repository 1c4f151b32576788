//go:build !linux

package kube

import "errors"

// Isolate needs network namespaces, which only Linux has.
func Isolate(func() error) (code int, done bool, err error) {
	return 1, true, errors.New("these tests need network namespaces, which only Linux has")
}
