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

// kept is the number of lines that journalctl can show.
const kept = 20000

// journal is the machine's log. All lines go to a file on the host, which tests read. The last lines are kept for
// journalctl.
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

// write appends one line. source is the name of a unit or of a program.
func (j *journal) write(source string, pid int, text string) {
	l := line{time.Now(), source, text, pid}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lines = append(j.lines, l); len(j.lines) > kept {
		j.lines = append([]line(nil), j.lines[len(j.lines)-kept/2:]...)
	}
	fmt.Fprintln(j.out, l.String())
}

// logf logs a message of init itself.
func (j *journal) logf(format string, args ...any) {
	j.write("systemd", 1, fmt.Sprintf(format, args...))
}

// pipe returns a file that a process can use as its output. The lines written to the file go to the journal. They also
// go to the writer "also", unless that is nil. The caller starts the process and then closes the file. The channel
// "ended" is closed when all writers have closed the file and the journal contains everything.
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
		j.logLines(source, pid, in)
	}()
	return w, done, nil
}

// logLines reads lines until the reader has no more, and logs them. It splits a line of more than 48 KiB.
func (j *journal) logLines(source string, pid func() int, in io.Reader) {
	lines := bufio.NewReaderSize(in, 48<<10) // The default of systemd's LineMax=.
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

// search returns the kept lines of a service, including what init logged about it. Without a name it returns all kept
// lines.
func (j *journal) search(name string) (found []line) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if name == "" || l.source == name || l.source == "systemd" && strings.Contains(l.text, name) {
			found = append(found, l)
		}
	}
	return found
}
