package agentapi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

const (
	// ProcessHeader is the request header that tells agents with the same identity apart. Its value is a random text
	// that an agent makes when its process starts.
	ProcessHeader = "nstance-agent-process"
	maxProcess    = 64 // bytes
	// maxCallers is how many callers of one instance the leader remembers.
	maxCallers = 8
	// sharedFor is how long two agents count as users of one identity after the last sign of the second one.
	sharedFor = 10 * time.Minute
	// addressReturns is how often callers must come back within sharedFor if only their addresses tell them apart. One
	// agent may have two addresses, so a single return proves nothing.
	addressReturns = 3
)

// caller identifies an agent's process.
type caller struct {
	process string // empty if the agent does not name its process
	from    netip.Addr
}

// callerOf returns the caller of a call.
func callerOf(ctx context.Context) caller {
	c := caller{from: transport.PeerAddress(ctx)}
	if values := metadata.ValueFromIncomingContext(ctx, ProcessHeader); len(values) == 1 &&
		len(values[0]) <= maxProcess {
		c.process = values[0]
	}
	return c
}

// callers are the agents that use the identity of one instance. There are more than one if the disk of a VM was copied.
type callers struct {
	seen []caller // the callers of health streams, the present one last
	// returns counts the callers that came back from an earlier address since returnsSince.
	returns      int
	returnsSince time.Time
	// until is zero unless two agents use the identity. It is when they no longer count as two.
	until time.Time
	// served is the agent that may call while its health stream is open. It is set if two agents alternate. If
	// byAddress is set, only their addresses tell them apart.
	served    *caller
	byAddress bool
}

// serves reports whether a caller is the one that the leader serves.
func (c *callers) serves(who caller) bool {
	return c.served == nil || c.served.process == who.process && (!c.byAddress || c.served.from == who.from)
}

// other returns the address of the last caller from another address than `from`, or an invalid address.
func (c *callers) other(from netip.Addr) netip.Addr {
	for _, who := range slices.Backward(c.seen) {
		if who.from != from {
			return who.from
		}
	}
	return netip.Addr{}
}

// alternate notes the caller of a new health stream. It reports whether the stream proves that two live agents
// alternate: an agent that restarts never comes back as an earlier process. replaced means that the stream replaced an
// open one.
func (c *callers) alternate(who caller, replaced bool, now time.Time) bool {
	at := slices.Index(c.seen, who)
	if at >= 0 && at == len(c.seen)-1 {
		return false
	}
	var process, address bool
	if len(c.seen) > 0 {
		present := c.seen[len(c.seen)-1]
		process = who.process != "" && who.process != present.process &&
			slices.ContainsFunc(c.seen, func(s caller) bool { return s.process == who.process })
		address = at >= 0 && replaced && who.process == present.process &&
			who.from.Is4() == present.from.Is4()
	}
	if at >= 0 {
		c.seen = slices.Delete(c.seen, at, at+1)
	}
	if len(c.seen) == maxCallers {
		c.seen = slices.Delete(c.seen, 0, 1)
	}
	c.seen = append(c.seen, who)
	if address {
		if now.Sub(c.returnsSince) >= sharedFor {
			c.returns, c.returnsSince = 0, now
		}
		c.returns++
	}
	if address = c.returns >= addressReturns; !process && !address {
		return false
	}
	c.served, c.byAddress, c.until = &who, !process, now.Add(sharedFor)
	return true
}

// checkCaller refuses a caller that does not call from its VM, and a second agent with the identity of the instance.
// The alert then tells about both.
func (s *Service) checkCaller(ctx context.Context, c *call) error {
	a, now := c.agent, s.Now()
	err := c.leader.Addresses.Check(ctx, a.id, c.caller.from)
	if errors.Is(err, vmaddress.ErrNoAnswer) {
		err = nil // a fault of the provider must not silence agents; the next report is checked again
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	users := &a.callers
	switch {
	case status.Code(err) == codes.PermissionDenied:
		users.until = now.Add(sharedFor)
		c.raiseShared(users.other(c.caller.from), fmt.Sprintf("%s is not an address of its VM", c.caller.from))
		return err
	case err != nil:
		return err
	case users.serves(c.caller) || a.streams[healthStream] == nil:
		return nil
	}
	users.until = now.Add(sharedFor)
	c.raiseShared(users.served.from, "one VM is a copy of the other")
	return status.Errorf(codes.PermissionDenied, "another agent uses the identity of instance %s, from %s: one VM is "+
		"a copy of the other", a.name, users.served.from)
}

// noteCaller notes that the caller has opened a health stream.
func (s *Service) noteCaller(c *call) {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	users, replaced := &a.callers, a.replaced
	a.replaced = false
	switch {
	case users.alternate(c.caller, replaced, s.Now()):
		c.raiseShared(users.other(c.caller.from), "one VM is a copy of the other")
	case users.served != nil:
		users.served = &c.caller // the agent that was served is gone
	}
}

// raiseShared raises the alert that the caller and an agent at another address use the same identity. The address is
// invalid if no other is known. The caller of raiseShared must hold the agent's mu.
func (c *call) raiseShared(other netip.Addr, why string) {
	from := []string{c.caller.from.String()}
	text := "an agent uses the identity of %s, from %s: %s"
	switch {
	case other.IsValid():
		from = append(from, other.String())
		slices.Sort(from)
		text = "two agents use the identity of %s, from %s: %s"
	case c.agent.callers.served != nil:
		from = append(from, from[0])
		text = "two agents use the identity of %s, from %s: %s"
	}
	where := from[0]
	if len(from) > 1 {
		where += " and " + from[1]
	}
	c.leader.State.RaiseError(c.sharedKey(), fmt.Sprintf(text, c.agent.name, where, why))
}

func (c *call) sharedKey() shardstate.ErrorKey {
	return shardstate.GroupError(plan.AlertSharedIdentity, c.group, c.agent.id)
}

// resolveShared resolves the alert when there has been no sign of a second agent for sharedFor.
func (s *Service) resolveShared(c *call) {
	a := c.agent
	a.mu.Lock()
	over := !a.callers.until.IsZero() && !s.Now().Before(a.callers.until)
	if over {
		a.callers = callers{seen: []caller{c.caller}}
	}
	a.mu.Unlock()
	if over {
		c.leader.State.ResolveError(c.sharedKey())
	}
}
