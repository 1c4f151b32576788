package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/local"
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

// history checks in the servers' logs that nobody acted in a term after somebody had in a later one, and that nobody led in another's term.
func (s *shard) history() error {
	type act struct {
		local.Line
		by string
	}
	var acts []act
	led := map[uint64]string{}
	for n := 1; n <= servers; n++ {
		name := local.ServerName(n)
		lines, err := s.Lines(name)
		if err != nil {
			return err
		}
		for _, line := range lines {
			switch line.Msg {
			case "acting":
				acts = append(acts, act{line, name})
			case "became leader":
				if other := led[line.Term]; other != "" {
					return fmt.Errorf("%s and %s led in term %d", other, name, line.Term)
				}
				led[line.Term] = name
			}
		}
	}
	if len(acts) == 0 {
		return errors.New("the logs tell of no action")
	}
	slices.SortStableFunc(acts, func(a, b act) int { return cmp.Compare(a.Time.UnixNano(), b.Time.UnixNano()) })
	for i := 1; i < len(acts); i++ {
		if before, after := acts[i-1], acts[i]; after.Term < before.Term {
			return fmt.Errorf("%s acted in term %d at %v, although %s had acted in term %d at %v", after.by, after.Term, after.Time, before.by, before.Term, before.Time)
		}
	}
	return nil
}
