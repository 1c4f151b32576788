//go:build !linux

package kube

import "errors"

// Isolate returns an error, because only Linux has network namespaces.
func Isolate(func() error) (code int, done bool, err error) {
	return 1, true, errors.New("these tests need network namespaces, which only Linux has")
}
