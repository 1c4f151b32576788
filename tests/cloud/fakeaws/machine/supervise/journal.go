package supervise

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// kept is how many lines journalctl can show.
const kept = 20000

// journal is the machine's log: a file on the host that tests read, and its last lines for journalctl.
type journal struct {
	mu    sync.Mutex
	out   io.Writer
	lines []line
}

type line struct {
	at           time.Time
	source, text string
	pid          int
}

func (l line) String() string {
	return fmt.Sprintf("%s %s[%d]: %s", l.at.UTC().Format("2006-01-02T15:04:05.000Z"), l.source, l.pid, l.text)
}

// write appends one line. source is a unit's name, or of a program.
func (j *journal) write(source string, pid int, text string) {
	l := line{time.Now(), source, text, pid}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lines = append(j.lines, l); len(j.lines) > kept {
		j.lines = append([]line(nil), j.lines[len(j.lines)-kept/2:]...)
	}
	fmt.Fprintln(j.out, l.String())
}

// say logs what init itself has to say.
func (j *journal) say(format string, args ...any) {
	j.write("systemd", 1, fmt.Sprintf(format, args...))
}

// pipe returns a file whose lines go to the journal. The caller closes it when the process that writes it was started.
// ended is closed when nobody can write to it any more and all is in the journal.
func (j *journal) pipe(source string, pid func() int, also io.Writer) (w *os.File, ended <-chan struct{}, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.Close()
		var in io.Reader = r
		if also != nil {
			in = io.TeeReader(r, also)
		}
		j.follow(source, pid, in)
	}()
	return w, done, nil
}

// follow logs what it reads, line by line, to the end. A line of extraordinary length is cut.
func (j *journal) follow(source string, pid func() int, in io.Reader) {
	lines := bufio.NewReaderSize(in, 48<<10) // systemd's own LineMax=
	for {
		text, err := lines.ReadSlice('\n')
		if len(text) > 0 {
			j.write(source, pid(), strings.TrimRight(string(text), "\r\n"))
		}
		if err != nil && err != bufio.ErrBufferFull { //nolint:errorlint // the reader's own, never wrapped
			return
		}
	}
}

// select returns the last n lines of the sources, all of them when there is none.
func (j *journal) search(sources []string, n int) []line {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []line
	for _, l := range j.lines {
		match := len(sources) == 0
		for _, s := range sources {
			match = match || l.source == s || l.source == "systemd" && strings.Contains(l.text, s)
		}
		if match {
			found = append(found, l)
		}
	}
	return found[max(0, len(found)-n):]
}
