package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/check"
)

// drainFile is the name of a file in the identity folder that has the [drainState]. The file exists from the start of
// the drain hook on.
const drainFile = "drain.json"

// drainState is what the agent stores about its drain hook, because the hook runs once in the instance's life.
type drainState struct {
	// Instance is the instance whose hook it is. The disk may be a copy of another VM's disk.
	Instance string `json:"instance"`
	Ended    bool   `json:"ended"`
	Error    string `json:"error,omitempty"`
}

// drain is the drain hook of a [Client], which guards the fields with its mu.
type drain struct {
	asked chan *nstancev1.Drain // receives the first request
	begun bool
	until time.Time   // when the hook is killed
	timer *time.Timer // kills the hook; nil: it does not run yet
}

// askDrain takes a request to run the drain hook. Only the first one runs it. A later one can shorten the hook's time.
func (c *Client) askDrain(request *nstancev1.Drain) {
	left := max(0, min(request.GetTimeout().AsDuration(), request.GetRemaining().AsDuration()))
	until := time.Now().Add(left)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch d := &c.drain; {
	case !d.begun:
		d.begun, d.until = true, until
		d.asked <- request
	case until.Before(d.until):
		d.until = until
		if d.timer != nil {
			d.timer.Reset(left)
		}
	}
}

// runDrain runs the drain hook when the server asks for it, and reports its end. If the agent ends meanwhile, the hook
// is killed, and the next process of the agent reports that.
func (c *Client) runDrain(ctx context.Context) error {
	var request *nstancev1.Drain
	select {
	case <-ctx.Done():
		return ctx.Err()
	case request = <-c.drain.asked:
	}
	c.storeDrain(drainState{})
	hook, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	c.mu.Lock()
	until := c.drain.until
	timer := time.AfterFunc(time.Until(until), func() { kill(context.DeadlineExceeded) })
	defer timer.Stop()
	c.drain.timer = timer
	c.mu.Unlock()
	c.Log.Info("The drain hook starts", "reason", request.GetReason(), "deadline", until)
	failure := c.DrainHook(hook, request.GetCommand(),
		Prefix+"DRAIN_REASON="+strings.ReplaceAll(request.GetReason(), "\x00", ""),
		Prefix+"DRAIN_DEADLINE="+until.UTC().Format(time.RFC3339))
	if failure != "" && ctx.Err() != nil {
		return ctx.Err()
	}
	c.storeDrain(drainState{Ended: true, Error: failure})
	if failure == "" {
		c.Log.Info("The drain hook ran")
	} else {
		c.Log.Error("The drain hook failed", "error", failure)
	}
	c.reportDrain(failure)
	return nil
}

// reportDrain reports how the drain hook ended, from now on.
func (c *Client) reportDrain(failure string) {
	c.update(func(s *standing) {
		s.drain, s.urgent = &nstancev1.DrainReport{Error: check.Line(failure)}, true
	})
}

// storeState stores a state in a file of the identity folder.
func (c *Client) storeState(file string, state any) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return c.Identity.Write(file, text, c.IdentityMode)
}

func (c *Client) storeDrain(state drainState) {
	state.Instance = c.ID.String()
	if err := c.storeState(drainFile, state); err != nil {
		c.Log.Error("The state of the drain hook was not stored: a restarted agent does not know it", "error", err)
	}
}

// loadDrain reads what an earlier process of this agent stored about the drain hook. A hook of which it stored no end
// has failed.
func (c *Client) loadDrain() {
	text, err := c.Identity.Read(drainFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var state drainState
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	switch {
	case err != nil:
		c.Log.Error("The stored state of the drain hook cannot be used", "error", err)
		state = drainState{}
	case state.Instance != c.ID.String():
		return
	}
	if !state.Ended {
		state.Error = "the agent restarted while the hook ran"
	}
	c.mu.Lock()
	c.drain.begun = true
	c.mu.Unlock()
	c.reportDrain(state.Error)
}
