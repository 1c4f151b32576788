package chaos

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

// watch asks every server twenty times a second whether it leads. The observer's way to them is always good.
type watch struct {
	mu      sync.Mutex
	said    [servers + 1]page // counted from 1
	led     time.Time         // somebody has said that it leads
	longest time.Duration     // without anybody who does
}

// page is what a server said last; the zero page: it does not answer.
type page struct {
	leads bool
	term  uint64
	heir  string
}

// follow asks one server until ctx ends.
func (w *watch) follow(ctx context.Context, n int, url string) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		p := ask(ctx, client, url)
		w.mu.Lock()
		w.said[n] = p
		if p.leads {
			now := time.Now()
			if !w.led.IsZero() {
				w.longest = max(w.longest, now.Sub(w.led))
			}
			w.led = now
		}
		w.mu.Unlock()
		_ = pause(ctx, 50*time.Millisecond) // why it ended does not matter
	}
}

func ask(ctx context.Context, client *http.Client, url string) (p page) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return page{}
	}
	resp, err := client.Do(req)
	if err != nil {
		return page{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil || !strings.HasPrefix(string(body), "leader term=") {
		return page{}
	}
	_, _ = fmt.Sscanf(string(body), "leader term=%d heir=%s", &p.term, &p.heir) // there may be no heir
	p.leads = true
	return p
}

// reset forgets how long there was no leader until now.
func (w *watch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.led, w.longest = time.Now(), 0
}

// without is the longest time since reset in which nobody said that it leads, to about a tenth of a second.
func (w *watch) without() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.longest, time.Since(w.led))
}

// leaders are those who say that they lead.
func (w *watch) leaders() (found map[string]page) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found = map[string]page{}
	for n, p := range w.said {
		if p.leads {
			found[local.ServerName(n)] = p
		}
	}
	return found
}

// pair waits for a leader whose heir is the other server.
func (s *shard) pair(ctx context.Context) (leader, heir string, term uint64, err error) {
	for {
		found := s.watch.leaders()
		for name, p := range found {
			if len(found) == 1 && p.heir != "" && p.heir != name {
				return name, p.heir, p.term, nil
			}
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return "", "", 0, fmt.Errorf("no leader with an heir: %w", err)
		}
	}
}

// journal is what the servers' logs say, in the order in which it was written there: their clocks may be wrong.
type journal struct {
	mu    sync.Mutex
	pass  int                        // through all logs
	read  [servers + 1]int64         // bytes of each log
	ahead [servers + 1]time.Duration // each one's time of day of ours, by its last line
	acted map[uint64]int             // term: the pass in which it was first seen to act
	led   map[uint64]string
	err   error
}

// follow reads what is new in the logs until ctx ends.
func (j *journal) follow(ctx context.Context, s *local.Stack) {
	for ctx.Err() == nil {
		j.mu.Lock()
		j.pass++
		for n := 1; n <= servers; n++ {
			j.err = errors.Join(j.err, j.take(n, s.LogFile(local.ServerName(n))))
		}
		j.mu.Unlock()
		_ = pause(ctx, 100*time.Millisecond) // why it ended does not matter
	}
}

// take reads one log on. Nobody may act in a term after somebody has in a later one. A line of an earlier pass but one
// is older than one of this pass, whichever log is read first.
func (j *journal) take(n int, path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.NewSectionReader(file, j.read[n], 1<<24))
	if err != nil {
		return err
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	j.read[n] += int64(len(raw))
	name := local.ServerName(n)
	for text := range bytes.Lines(raw) {
		var line local.Line
		if json.Unmarshal(text, &line) != nil {
			continue // a crash
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

// history says what was wrong in the logs until now.
func (j *journal) history() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.acted) == 0 {
		return errors.Join(j.err, errors.New("the logs tell of no action"))
	}
	return j.err
}

// told is by how much a server's clock was ahead of this process's when it logged something last.
func (j *journal) told(server string) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n, ahead := range j.ahead {
		if local.ServerName(n) == server {
			return ahead
		}
	}
	return 0
}
