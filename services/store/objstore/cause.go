package objstore

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
)

// Cause returns the cause of an error in a few words, such as "connection refused", without the request and the key
// that failed.
func Cause(err error) string {
	var errno syscall.Errno
	var name *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &name) && name.IsNotFound:
		return "no host has the name " + name.Name
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	return strings.TrimSpace(innermost(err).Error())
}

// innermost returns the last of the errors inside err that is not one of this package's.
func innermost(err error) error {
	switch wrapped := err.(type) { //nolint:errorlint // it walks through the errors itself
	case interface{ Unwrap() error }:
		if inner := wrapped.Unwrap(); inner != nil {
			return innermost(inner)
		}
	case interface{ Unwrap() []error }:
		inner := wrapped.Unwrap()
		for n := len(inner) - 1; n >= 0; n-- {
			if inner[n] != ErrIndeterminate && inner[n] != ErrNotSent { //nolint:errorlint // not the errors inside it
				return innermost(inner[n])
			}
		}
	}
	return err
}
