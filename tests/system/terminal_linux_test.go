package system

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal. The test types into it like a user.
type terminal struct{ user, screen *os.File }

// newTerminal opens a terminal and types the same line many times.
func newTerminal(line string) (*terminal, error) {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return nil, errors.Join(err, screen.Close())
	}
	user, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, errors.Join(err, screen.Close())
	}
	_, err = screen.WriteString(strings.Repeat(line, 20))
	return &terminal{user, screen}, err
}

// Close closes the terminal.
func (t *terminal) Close() { _, _ = t.user.Close(), t.screen.Close() } // nothing is written
