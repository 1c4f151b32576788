//go:build unix

package file

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the lock unless another open file holds it (flock(2)). The kernel releases the lock when its holder
// dies.
func tryLock(f *os.File) (held bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return err == nil, err
}

// releaseLock releases a held lock, which cannot fail.
func releaseLock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
