package leader_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

// balancers is a provider with load balancers. Its fields change only while the leader sleeps.
type balancers struct {
	infra.Provider
	unhealthy map[string][]string // provider IDs, by load balancer
	silent    map[string]bool     // load balancers that do not answer
	asked     []string            // load balancers
}

func (b *balancers) MemberHealth(_ context.Context, lb string, vms []infra.VM) (map[string]infra.MemberHealth, error) {
	b.asked = append(b.asked, lb)
	if b.silent[lb] {
		return nil, infra.Errorf(infra.Denied, "ask "+lb, "not permitted")
	}
	answer := map[string]infra.MemberHealth{}
	for _, vm := range vms {
		if slices.Contains(b.unhealthy[lb], vm.ProviderID) {
			answer[vm.ProviderID] = infra.MemberHealth{Reason: "refused"}
		} else {
			answer[vm.ProviderID] = infra.MemberHealth{Healthy: true}
		}
	}
	return answer, nil
}

// TestFollowBalancers checks that a load balancer is asked once in a round, that its verdict counts from the second
// round on, and that one that does not answer raises an alert and changes no verdict.
func TestFollowBalancers(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, s *shard) {
		ids := []ident.ID{s.newID(), s.newID(), s.newID()}
		for _, id := range ids {
			s.write(id, record.Registered, asWritten)
		}
		if err := s.TakeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := &balancers{Provider: s.provider, unhealthy: map[string][]string{}, silent: map[string]bool{}}
		s.Executor.Provider = b
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.FollowBalancers(ctx)
		pass := func() {
			time.Sleep(20 * time.Second)
			synctest.Wait()
		}
		pass()
		if len(b.asked) != 0 {
			t.Errorf("no group has the option, but %v are asked", b.asked)
		}
		g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Size: 3,
			LoadBalancers: []string{"web", "api"}, LoadBalancerHealth: true}
		s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
		for _, id := range ids {
			stream, _ := s.State.Connected(id)
			s.State.Reported(id, stream, shardstate.Report{Healthy: true})
			s.State.Balanced(id, true)
		}
		failed := func() map[ident.ID]string {
			snapshot, _ := s.State.Snapshot(workers, nil)
			all := map[ident.ID]string{}
			for _, i := range snapshot.Instances {
				if i.Balancer.Failed != "" {
					all[i.ID] = i.Balancer.Failed
				}
			}
			return all
		}
		want := func(what string, asked int, want map[ident.ID]string, alert bool) {
			t.Helper()
			b.asked = nil
			pass()
			got, raised := failed(), s.standing(plan.AlertProvider)
			if !maps.Equal(got, want) || len(b.asked) != asked || raised != alert {
				t.Errorf("%s: %v after the questions %v, alert %v", what, got, b.asked, raised)
			}
		}
		none, one := map[ident.ID]string{}, map[ident.ID]string{ids[1]: "load balancer api: refused"}
		want("all are healthy", 2, none, false)
		b.unhealthy["api"] = []string{"vm-" + ids[1].String()}
		want("the first time", 2, none, false)
		b.silent["web"], b.silent["api"] = true, true
		want("none answers", 2, none, true)
		for _, e := range s.State.Standing(workers.Tenant) {
			if e.Group != workers.Group || !strings.Contains(e.Message, "not permitted") ||
				!strings.Contains(e.Message, "rule 59") {
				t.Errorf("the alert %+v", e)
			}
		}
		b.silent["api"] = false
		want("one answers, the second time", 2, one, true)
		b.unhealthy["api"] = nil
		want("the other might be why", 2, one, true)
		b.silent["web"] = false
		want("all are healthy again", 2, none, false)
		cancel()
	})
}
