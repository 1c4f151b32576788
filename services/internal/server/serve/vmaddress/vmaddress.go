// Package vmaddress checks that the agent of an instance calls from an address of the instance's VM. On another VM, a
// stolen nonce or a copy of an agent's identity is then of no use.
package vmaddress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// ErrNoAnswer means that the address cannot be checked, because the provider did not answer.
var ErrNoAnswer = errors.New("the provider did not answer")

const (
	// askAgain is the least time between two questions to the provider about the same instance.
	askAgain = 5 * time.Second
	// maxAsked is how many instances a Checker remembers before it forgets those that it asked about long ago.
	maxAsked = 1024
)

// Checker checks addresses for one leadership. It is safe for concurrent use.
type Checker struct {
	State *shardstate.State
	// Enabled returns server.check_registration_address.
	Enabled func() bool
	// Ask asks the provider for an instance's VM and stores the answer in State. Optional.
	Ask func(ctx context.Context, id ident.ID) error
	Now func() time.Time

	mu    sync.Mutex
	asked map[ident.ID]time.Time
}

// Check returns an error if from is not an address of the instance's VM. If the leader does not know that address, it
// asks the provider first. If the provider knows no address of the VM, any is right. The error is a status error:
// PermissionDenied, or Unavailable while the VM does not run, because the provider may still add addresses. If the
// provider does not answer, the error is ErrNoAnswer.
func (c *Checker) Check(ctx context.Context, id ident.ID, from netip.Addr) error {
	if c == nil || !c.Enabled() {
		return nil
	}
	text := from.String()
	vm, _ := c.State.VM(id)
	if slices.Contains(vm.Addresses, text) {
		return nil
	}
	if c.Ask != nil && c.mayAsk(id) {
		if err := c.Ask(ctx, id); err != nil {
			return fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		if now, _ := c.State.VM(id); len(now.Addresses) > 0 { // else those that were known still count
			vm = now
		}
	}
	if len(vm.Addresses) == 0 || slices.Contains(vm.Addresses, text) {
		return nil
	}
	if vm.State != infra.Running {
		return status.Errorf(codes.Unavailable, "instance %s: %s is not an address of its VM so far, try again", id,
			from)
	}
	return status.Errorf(codes.PermissionDenied, "instance %s: %s is not an address of its VM; set "+
		"server.check_registration_address to false if agents reach the server through NAT", id, from)
}

// Doubtful reports whether the leader knows addresses of the instance's VM, and from is none of them. Unlike Check, it
// asks nobody, so that it delays no report.
func (c *Checker) Doubtful(id ident.ID, from netip.Addr) bool {
	if c == nil || !c.Enabled() {
		return false
	}
	vm, _ := c.State.VM(id)
	return len(vm.Addresses) > 0 && !slices.Contains(vm.Addresses, from.String())
}

// mayAsk reports whether the last question about an instance was long enough ago, and notes a new one.
func (c *Checker) mayAsk(id ident.ID) bool {
	now := c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.asked[id]; ok && now.Sub(last) < askAgain {
		return false
	}
	if c.asked == nil {
		c.asked = map[ident.ID]time.Time{}
	}
	if len(c.asked) >= maxAsked {
		maps.DeleteFunc(c.asked, func(_ ident.ID, last time.Time) bool { return now.Sub(last) >= askAgain })
	}
	c.asked[id] = now
	return true
}
