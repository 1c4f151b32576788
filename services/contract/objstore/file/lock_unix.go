//go:build unix

package file

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the lock unless another open file holds it (flock(2): the kernel gives it up when its holder dies).
func tryLock(f *os.File) (held bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return err == nil, err
}

// releaseLock cannot fail for a lock that is held.
func releaseLock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
