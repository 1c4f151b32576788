package leader_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// balancers is a provider with load balancers.
type balancers struct {
	infra.Provider
	mu        sync.Mutex
	unhealthy map[string][]string // provider IDs, by load balancer
	silent    map[string]bool     // load balancers that do not answer
	asked     []string            // load balancers
	requests  int
}

func (b *balancers) MemberHealth(_ context.Context, lb string, vms []infra.VM) (map[string]infra.MemberHealth, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, lb)
	b.requests++
	if b.silent[lb] {
		return nil, infra.Errorf(infra.Denied, "ask "+lb, "not permitted (request %d)", b.requests)
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

// takeAsked returns the load balancers that were asked since the last call.
func (b *balancers) takeAsked() (asked []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked, b.asked = b.asked, nil
	return asked
}

func (b *balancers) setUnhealthy(lb string, providerIDs ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unhealthy[lb] = providerIDs
}

func (b *balancers) setSilent(lb string, silent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent[lb] = silent
}

// TestFollowBalancers checks that a load balancer is asked once in a round, and that its verdict counts from the second
// round on. A load balancer that does not answer causes an alert and changes no verdict.
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
		if asked := b.takeAsked(); len(asked) != 0 {
			t.Errorf("no group has the option, but %v are asked", asked)
		}
		g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Size: 3,
			LoadBalancers: []string{"web", "api"}, LoadBalancerHealth: true}
		s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
		for _, id := range ids {
			stream, _ := s.State.Connected(id)
			s.State.Reported(id, stream, shardstate.Report{Healthy: true})
			s.State.Balanced(id, true, time.Now())
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
			pass()
			got, questions, raised := failed(), b.takeAsked(), s.standing(plan.AlertLoadBalancers)
			if !maps.Equal(got, want) || len(questions) != asked || raised != alert {
				t.Errorf("%s: %v after the questions %v, alert %v", what, got, questions, raised)
			}
		}
		none, one := map[ident.ID]string{}, map[ident.ID]string{ids[1]: "load balancer api: refused"}
		want("all are healthy", 2, none, false)
		b.setUnhealthy("api", "vm-"+ids[1].String())
		want("the first time", 2, none, false)
		b.setSilent("web", true)
		b.setSilent("api", true)
		want("none answers", 2, none, true)
		for _, e := range s.State.Standing(workers.Tenant) {
			if e.Group != workers.Group || !strings.Contains(e.Message, "not permitted") ||
				!strings.Contains(e.Message, "rule 59") {
				t.Errorf("the alert %+v", e)
			}
		}
		b.setSilent("api", false)
		want("one answers, the second time", 2, one, true)
		b.setUnhealthy("api")
		want("the other might be why", 2, one, true)
		b.setSilent("web", false)
		want("all are healthy again", 2, none, false)
		cancel()
	})
}

// TestBalancerAlert checks that the alert about a load balancer is raised once, although the error's message changes.
// The alert neither replaces nor resolves an alert about calls of the provider.
func TestBalancerAlert(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, s *shard) {
		id := s.newID()
		s.write(id, record.Registered, asWritten)
		if err := s.TakeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Size: 1,
			LoadBalancers: []string{"web"}, LoadBalancerHealth: true}
		s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
		s.State.Balanced(id, true, time.Now())
		s.State.RaiseError(shardstate.GroupError(plan.AlertProvider, workers, ident.ID{}), "create: no capacity")
		b := &balancers{Provider: s.provider, silent: map[string]bool{"web": true}}
		s.Executor.Provider = b
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.FollowBalancers(ctx)
		alerts := func(part string) (found []shardstate.ErrorEvent) {
			for _, e := range s.State.Standing(workers.Tenant) {
				if e.Group == workers.Group && strings.Contains(e.Message, part) {
					found = append(found, e)
				}
			}
			return found
		}
		round := func() {
			time.Sleep(20 * time.Second)
			synctest.Wait()
		}
		round()
		first := alerts("rule 59")
		round()
		if again := alerts("rule 59"); len(first) != 1 || !slices.Equal(first, again) {
			t.Errorf("after one question %+v, after two %+v", first, again)
		}
		s.State.ResolveError(shardstate.GroupError(plan.AlertProvider, workers, ident.ID{})) // a creation succeeds
		s.State.RaiseError(shardstate.GroupError(plan.AlertProvider, workers, ident.ID{}), "create: no capacity")
		if len(alerts("rule 59")) != 1 {
			t.Error("a successful creation resolves the alert about the load balancer")
		}
		b.setSilent("web", false)
		round()
		if len(alerts("rule 59")) != 0 || len(alerts("create: no capacity")) != 1 {
			t.Errorf("after an answer: %+v, want the alert about creations only", s.State.Standing(workers.Tenant))
		}
		cancel()
	})
}
