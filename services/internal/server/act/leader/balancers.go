package leader

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// balancerInterval is the time between two rounds of questions to load balancers.
const balancerInterval = 20 * time.Second

// FollowBalancers asks load balancers about their instances until ctx ends. It asks only about instances of groups with
// load_balancer_health. While there are no such instances, it makes no calls.
func (l *Leader) FollowBalancers(ctx context.Context) {
	health, ok := infra.Capability[infra.LoadBalancerHealth](l.Executor.Provider)
	if !ok {
		<-ctx.Done()
		return
	}
	failing := map[config.GroupKey]bool{}
	for l.Executor.Env.Sleep(ctx, balancerInterval) == nil {
		asked, members := l.Executor.Env.Now(), l.State.Members()
		answers, errs := askBalancers(ctx, health, members)
		if ctx.Err() != nil {
			return
		}
		l.State.SetVerdicts(verdicts(members, answers), asked)
		l.reportBalancers(failing, members, errs)
	}
}

// askBalancers asks each load balancer once about all its members. If a load balancer does not answer, its error is in
// errs, and answers has no entry for it.
func askBalancers(ctx context.Context, health infra.LoadBalancerHealth, members []shardstate.Member) (
	answers map[string]map[string]infra.MemberHealth, errs map[string]error) {
	vms := map[string][]infra.VM{}
	for _, m := range members {
		for _, name := range m.Balancers {
			vms[name] = append(vms[name], m.VM)
		}
	}
	answers, errs = map[string]map[string]infra.MemberHealth{}, map[string]error{}
	for _, name := range slices.Sorted(maps.Keys(vms)) {
		answer, err := health.MemberHealth(ctx, name, vms[name])
		if err != nil {
			errs[name] = err
			continue
		}
		answers[name] = answer
	}
	return answers, errs
}

// verdicts combines the answers of each instance's load balancers. An instance is unhealthy if at least one of them
// calls it unhealthy. If none calls it unhealthy, but at least one did not answer, the instance has no verdict.
func verdicts(members []shardstate.Member, answers map[string]map[string]infra.MemberHealth) (
	all map[ident.ID]plan.BalancerVerdict) {
	all = map[ident.ID]plan.BalancerVerdict{}
	for _, m := range members {
		var v plan.BalancerVerdict
		known := true
		for _, name := range m.Balancers {
			answer, answered := answers[name]
			said, decided := answer[m.VM.ProviderID]
			known = known && answered
			v.Healthy = v.Healthy || said.Healthy
			if decided && !said.Healthy && v.Failed == "" {
				v.Failed = fmt.Sprintf("load balancer %s: %s", name, said.Reason)
			}
		}
		if v.Healthy = v.Healthy && v.Failed == ""; known || v.Failed != "" {
			all[m.VM.Tags.Instance] = v
		}
	}
	return all
}

// reportBalancers raises an alert for each group with a load balancer that did not answer. failing holds the groups
// that have such an alert. reportBalancers resolves an alert when all load balancers of its group answer.
func (l *Leader) reportBalancers(failing map[config.GroupKey]bool, members []shardstate.Member, errs map[string]error) {
	now := map[config.GroupKey]error{}
	for _, m := range members {
		for _, name := range m.Balancers {
			if now[m.Group] == nil {
				now[m.Group] = errs[name]
			}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(now), compareGroups) {
		if _, there := l.State.Group(key); there && now[key] != nil {
			failing[key] = true
			l.State.RaiseError(shardstate.GroupError(plan.AlertLoadBalancers, key, ident.ID{}),
				fmt.Sprintf("%v; verdicts of load_balancer_health stay as they were (rule 59)", now[key]))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(failing), compareGroups) {
		if now[key] == nil {
			delete(failing, key)
			l.State.ResolveError(shardstate.GroupError(plan.AlertLoadBalancers, key, ident.ID{}))
		}
	}
}

func compareGroups(a, b config.GroupKey) int { return strings.Compare(a.String(), b.String()) }
