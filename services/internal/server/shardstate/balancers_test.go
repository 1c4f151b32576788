package shardstate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestLoadBalancerHealth checks which instances are members, and how the verdicts of load balancers change the
// instances.
func TestLoadBalancerHealth(t *testing.T) {
	p := newPicture(t)
	with := func(on bool, balancers ...string) {
		g := p.merged[workers]
		g.LoadBalancers, g.LoadBalancerHealth = balancers, on
		p.merged[workers] = g
		p.Configure(p.shard, p.merged)
	}
	with(true, "web")
	one, two, other := p.serving(t), p.serving(t), p.newID(t)
	p.put(other, others, record.Registered)
	var streams []uint64
	for _, id := range []ident.ID{one, two, other} {
		stream, _ := p.Connected(id)
		streams = append(streams, stream)
		p.Reported(id, stream, shardstate.Report{Healthy: true, RuntimeHash: "r1"})
	}
	members := func() (ids []ident.ID) {
		for _, m := range p.Members() {
			if m.Group != workers || m.VM.ProviderID != "vm-"+m.VM.Tags.Instance.String() ||
				!slices.Equal(m.Balancers, []string{"web"}) {
				t.Errorf("member %+v", m)
			}
			ids = append(ids, m.VM.Tags.Instance)
		}
		return ids
	}
	p.Balanced(one, true, p.now)
	p.Balanced(other, true, p.now)
	if got := members(); !slices.Equal(got, []ident.ID{one}) {
		t.Errorf("asks about %v, want only the registered instance of the group with the option", got)
	}
	p.Balanced(two, true, p.now)
	all := func(v plan.BalancerVerdict) map[ident.ID]plan.BalancerVerdict {
		return map[ident.ID]plan.BalancerVerdict{one: v, two: v, other: v, p.newID(t): v}
	}
	healthy, sick := plan.BalancerVerdict{Healthy: true}, plan.BalancerVerdict{Failed: "load balancer web: no"}
	p.SetVerdicts(all(healthy), p.now)
	p.SetVerdicts(all(sick), p.now)
	p.forget()
	p.SetVerdicts(all(sick), p.now)
	if p.planned(t, one).Healthy || p.planned(t, two).Healthy || !p.planned(t, other).Healthy {
		t.Error("want two unhealthy instances, and none of the group without the option")
	}
	if len(p.instances) != 2 || p.instances[0].Type != shardstate.EventUnhealthy ||
		p.instances[0].Reason != "unhealthy in load balancer web: no" || p.wakes != 1 {
		t.Errorf("events %+v, %d wakes", p.instances, p.wakes)
	}
	p.forget()
	p.SetVerdicts(all(sick), p.now)
	if p.wakes != 0 || len(p.instances) != 0 {
		t.Errorf("the same verdicts again: events %+v, %d wakes", p.instances, p.wakes)
	}

	// After a change of the load balancer or of load_balancer_health, all verdicts are forgotten.
	with(true, "other")
	if i := p.planned(t, one); i.Balancer != (plan.BalancerHealth{}) || i.FailedCheck != "" || i.InLoadBalancers {
		t.Errorf("with another load balancer: %+v, %q", i.Balancer, i.FailedCheck)
	}
	p.SetVerdicts(all(sick), p.now) // an answer of the old one
	p.Balanced(one, true, p.now)
	if i := p.planned(t, one); i.Balancer.Rounds != 0 || !i.BalancedAt.Equal(p.now) {
		t.Errorf("%+v, registered at %s", i.Balancer, i.BalancedAt)
	}
	p.SetVerdicts(all(healthy), p.now.Add(-time.Second)) // the old one answers late
	if i := p.planned(t, one); i.Balancer.WasHealthy {
		t.Error("a load balancer that the group has left called the instance healthy, and that counts")
	}
	p.Reported(one, streams[0], shardstate.Report{Healthy: true, RuntimeHash: "r1"})
	if !p.planned(t, one).Healthy {
		t.Error("it stays unhealthy after its verdict is forgotten")
	}
	p.now = p.now.Add(time.Hour) // longer than any grace
	p.SetVerdicts(all(sick), p.now)
	with(false, "other")
	if i := p.planned(t, one); i.Balancer.Rounds != 0 || len(p.Members()) != 0 {
		t.Errorf("without the option: %+v", i.Balancer)
	}
}
