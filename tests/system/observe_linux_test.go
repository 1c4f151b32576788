package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// leaderPoll reads the /leader page of every server twenty times a second. Network faults never affect these requests.
type leaderPoll struct {
	mu      sync.Mutex
	pages   [servers + 1]leaderPage
	led     time.Time     // when a server said last that it leads
	longest time.Duration // the longest time without a leader
}

// leaderPage is the content of a server's last /leader page. All fields are zero if the server does not lead or does
// not answer.
type leaderPage struct {
	leads bool
	term  uint64
	heir  string
}

// poll reads the page of one server until ctx ends.
func (l *leaderPoll) poll(ctx context.Context, n int, url string) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		p := readLeaderPage(ctx, client, url)
		l.mu.Lock()
		l.pages[n] = p
		if p.leads {
			now := time.Now()
			if !l.led.IsZero() {
				l.longest = max(l.longest, now.Sub(l.led))
			}
			l.led = now
		}
		l.mu.Unlock()
		_ = local.Pause(ctx, 50*time.Millisecond) // the loop checks ctx
	}
}

func readLeaderPage(ctx context.Context, client *http.Client, url string) (p leaderPage) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return leaderPage{}
	}
	resp, err := client.Do(req)
	if err != nil {
		return leaderPage{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil || !strings.HasPrefix(string(body), "leader term=") {
		return leaderPage{}
	}
	// If the leader has no heir, the page lacks the part heir=.
	_, _ = fmt.Sscanf(string(body), "leader term=%d heir=%s", &p.term, &p.heir)
	p.leads = true
	return p
}

// reset starts a new measurement.
func (l *leaderPoll) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.led, l.longest = time.Now(), 0
}

// longestGap returns the longest time without a leader since the last call of reset, to about a tenth of a second.
func (l *leaderPoll) longestGap() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.longest, time.Since(l.led))
}

// leaders returns the servers whose /leader page shows that they lead.
func (l *leaderPoll) leaders() (found map[string]leaderPage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found = map[string]leaderPage{}
	for n, p := range l.pages {
		if p.leads {
			found[local.ServerName(n)] = p
		}
	}
	return found
}

// awaitPair waits for a leader that has the other server as its heir.
func (s *shard) awaitPair(ctx context.Context) (leader, heir string, term uint64, err error) {
	for {
		found := s.polls.leaders()
		for name, p := range found {
			if len(found) == 1 && p.heir != "" && p.heir != name {
				return name, p.heir, p.term, nil
			}
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return "", "", 0, fmt.Errorf("no leader with an heir: %w", err)
		}
	}
}

// actionLog reads in the servers' logs which server acted in which term. It ignores the times of the lines, because the
// clocks of the servers may be wrong. Only the order in which the lines were written counts.
type actionLog struct {
	mu    sync.Mutex
	pass  int                        // number of reads of all logs
	bytes [servers + 1]int64         // read of each log
	ahead [servers + 1]time.Duration // of each clock, by the last line of its log
	acted map[uint64]int             // first pass with an action, by term
	led   map[uint64]string          // leader by term
	err   error
}

// collect reads new lines of all logs until ctx ends.
func (j *actionLog) collect(ctx context.Context, s *local.Stack) {
	for ctx.Err() == nil {
		j.mu.Lock()
		j.pass++
		for n := 1; n <= servers; n++ {
			j.err = errors.Join(j.err, j.read(n, s.LogFile(local.ServerName(n))))
		}
		j.mu.Unlock()
		_ = local.Pause(ctx, 100*time.Millisecond) // the loop checks ctx
	}
}

// read reads the new lines of one log. It returns an error if two servers led in the same term. It also returns an
// error if a server acts in a term although another server has already acted in a later term. The logs are read in
// turn, in passes. So the order of two actions is certain only if one was read at least two passes before the other.
func (j *actionLog) read(n int, path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.NewSectionReader(file, j.bytes[n], 1<<24))
	if err != nil {
		return err
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	j.bytes[n] += int64(len(raw))
	name := local.ServerName(n)
	for text := range bytes.Lines(raw) {
		var line local.Line
		if json.Unmarshal(text, &line) != nil {
			continue // the output of a crash
		}
		j.ahead[n] = time.Until(line.Time)
		switch line.Msg {
		case "became leader":
			if other := j.led[line.Term]; other != "" {
				return fmt.Errorf("%s and %s led in term %d", other, name, line.Term)
			}
			j.led[line.Term] = name
		case "acting":
			for term, pass := range j.acted {
				if term > line.Term && pass < j.pass-1 {
					return fmt.Errorf("%s acted in term %d although %s had acted in term %d: %s", name, line.Term,
						j.led[term], term, text)
				}
			}
			if _, ok := j.acted[line.Term]; !ok {
				j.acted[line.Term] = j.pass
			}
		}
	}
	return nil
}

// check returns the errors that collect has recorded so far. It also returns an error if the logs contain no action.
func (j *actionLog) check(context.Context) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.acted) == 0 {
		return errors.Join(j.err, errors.New("the logs contain no action"))
	}
	return j.err
}

// clockAhead returns by how much the clock of a server was ahead of the clock of this process when it logged its last
// line.
func (j *actionLog) clockAhead(server string) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n, ahead := range j.ahead {
		if local.ServerName(n) == server {
			return ahead
		}
	}
	return 0
}
