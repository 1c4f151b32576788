package execute

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// placement is one combination of instance type, subnet and market that a create call can use.
type placement struct {
	instanceType, subnet string
	spot                 bool
}

// placements returns the combinations of type and subnet that are worth a try in the market (spot or on-demand), in
// order of preference. refused has the other combinations, each with the reason why it is not worth a try.
func (x *Executor) placements(group config.Group, first string, spot bool) (places []placement, refused []string) {
	now := x.Env.Now()
	for _, t := range append([]string{first}, group.InstanceTypes...) {
		for _, subnet := range group.Subnets {
			place := placement{t, subnet, spot}
			if why := x.capacity.refusal(place, now); why != "" {
				refused = append(refused, place.String()+": "+why)
				continue
			}
			places = append(places, place)
		}
	}
	return places, refused
}

// QuerySubnetCapacity asks the provider which subnets are full, so that later creates do not wait for the answer. If
// the provider cannot tell or does not answer, no subnet counts as full. The only subnet of a pool never counts as
// full, because there is no other choice.
func (x *Executor) QuerySubnetCapacity(ctx context.Context) {
	provider, ok := infra.Capability[infra.SubnetCapacity](x.Provider)
	subnets := x.State.Subnets()
	if !ok || len(subnets) == 0 {
		x.capacity.learn(nil, nil, nil)
		return
	}
	room, err := provider.HasRoom(ctx, subnets)
	x.capacity.learn(subnets, room, err)
}

// capacity remembers which subnets are full, and which placements were refused for lack of capacity.
type capacity struct {
	mu      sync.Mutex
	refused map[placement]refusal
	full    map[string]bool
}

// refusal records why and when the provider refused a placement.
type refusal struct {
	why string
	at  time.Time
}

func (c *capacity) learn(subnets []string, room map[string]bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = map[string]bool{}
	for _, subnet := range subnets {
		c.full[subnet] = err == nil && !room[subnet]
	}
}

// remember stores that the provider refused a placement, and why.
func (c *capacity) remember(p placement, why string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[placement]refusal{}
	}
	c.refused[p] = refusal{why, now}
}

// refusal returns why a placement is not worth a try, or "" if it is worth one.
func (c *capacity) refusal(p placement, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full[p.subnet] {
		return "the subnet is full"
	}
	if r, ok := c.refused[p]; ok && now.Sub(r.at) < capacityMemory {
		return "refused lately: " + r.why
	}
	return ""
}

func (p placement) String() string {
	text := strings.TrimPrefix(p.instanceType+" in "+p.subnet, " ")
	if p.spot {
		text += " as a spot instance"
	}
	return text
}
