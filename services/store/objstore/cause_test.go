package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/nstance-kit/nstance/services/store/objstore"
)

func TestCause(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for want, err := range map[string]error{
		"":                              nil,
		"connection refused":            fmt.Errorf("s3: put %q: %w: %w", "k", objstore.ErrIndeterminate, refused),
		"no answer in time":             fmt.Errorf("get: %w", context.DeadlineExceeded),
		"no host has the name s3.local": fmt.Errorf("get: %w", &net.DNSError{Name: "s3.local", IsNotFound: true}),
		"access denied": fmt.Errorf("put k: %w", fmt.Errorf("operation error: %w",
			errors.New("access denied"))),
		"result of the write is unknown": fmt.Errorf("put: %w", objstore.ErrIndeterminate),
		"lost":                           fmt.Errorf("put: %w: %w", errors.New("lost"), objstore.ErrIndeterminate),
	} {
		if got := objstore.Cause(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
