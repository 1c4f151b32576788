package gcp

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// Register implements infra.LoadBalancers. It adds the VM to the load balancer's unmanaged instance group. The group
// identifies its members by name, so Register looks up the VM's name by its numeric ID.
func (p *Provider) Register(ctx context.Context, lb string, vm infra.VM) error {
	what := fmt.Sprintf("register %s with load balancer %s", vm.ProviderID, lb)
	group, ok := p.group(lb)
	if !ok {
		return refused(what, "the configuration has no such load balancer of provider gcp")
	}
	if vm.ProviderID == "" {
		return infra.Errorf(infra.NotFound, what, "the VM is not known yet")
	}
	found, err := p.api.get(ctx, vm.ProviderID)
	if googlecloud.StatusOf(err) == http.StatusNotFound {
		return refused(what, "the instance is gone")
	}
	if err != nil {
		return p.classify(what, "instances.get", err)
	}
	if !stateOf(found).Alive() {
		return refused(what, "the instance is %s", stateOf(found))
	}
	err = p.api.addToGroup(ctx, group, found.SelfLink)
	if code := codeOf(err); code == "memberAlreadyExists" || code == "MEMBER_ALREADY_EXISTS" {
		return nil
	}
	return p.classify(what+" in "+group, "instanceGroups.addInstances", err)
}

// Deregister implements infra.LoadBalancers. A missing group or member is not an error. Google removes a deleted
// instance from its groups.
func (p *Provider) Deregister(ctx context.Context, lb string, vm infra.VM) error {
	what := fmt.Sprintf("deregister %s from load balancer %s", vm.ProviderID, lb)
	group, ok := p.group(lb)
	if !ok || vm.ProviderID == "" {
		return nil
	}
	found, err := p.api.get(ctx, vm.ProviderID)
	if googlecloud.StatusOf(err) == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return p.classify(what, "instances.get", err)
	}
	members, err := p.api.groupMembers(ctx, group)
	if googlecloud.StatusOf(err) == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return p.classify(what, "instanceGroups.listInstances", err)
	}
	i := slices.IndexFunc(members, func(link string) bool { return strings.HasSuffix(link, "/instances/"+found.Name) })
	if i < 0 {
		return nil
	}
	err = p.api.removeFromGroup(ctx, group, members[i])
	err = p.classify(what+" from "+group, "instanceGroups.removeInstances", err)
	if infra.ClassOf(err) == infra.NotFound {
		return nil
	}
	return err
}

// MemberHealth implements infra.LoadBalancerHealth. It asks each backend service of the load balancer once. For each
// instance, the answer has one verdict for each forwarding rule of the service. An instance is healthy if at least one
// verdict is HEALTHY and none is UNHEALTHY.
//
// https://cloud.google.com/compute/docs/reference/rest/v1/regionBackendServices/getHealth
func (p *Provider) MemberHealth(ctx context.Context, lb string, vms []infra.VM) (map[string]infra.MemberHealth,
	error) {
	what := "ask for the health in load balancer " + lb
	group, ok := p.balancer(lb)
	if !ok || len(group.BackendServiceNames) == 0 {
		return nil, refused(what, "the configuration has no such load balancer of provider gcp with "+
			"backend_service_names")
	}
	ids := map[string]string{} // by name, which is all that the answer has
	for _, vm := range vms {
		ids[vm.Tags.Instance.String()] = vm.ProviderID
	}
	members := map[string]infra.MemberHealth{}
	for _, service := range group.BackendServiceNames {
		statuses, err := p.api.groupHealth(ctx, service, group.InstanceGroupName)
		if err != nil {
			return nil, p.classify(what+" at "+service, "regionBackendServices.getHealth", err)
		}
		for _, status := range statuses {
			id, asked := ids[status.Instance[strings.LastIndexByte(status.Instance, '/')+1:]]
			_, decided := members[id]
			switch state := cmp.Or(status.HealthState, status.Ipv6HealthState); {
			case !asked:
			case state == "UNHEALTHY":
				members[id] = infra.MemberHealth{Reason: "UNHEALTHY in " + service}
			case state == "HEALTHY" && !decided:
				members[id] = infra.MemberHealth{Healthy: true}
			}
		}
	}
	return members, nil
}

// DeregistrationDelay implements infra.DeregistrationDelay. If several backend services have an instance group, Google
// uses the longest of their delays.
//
// https://cloud.google.com/load-balancing/docs/enabling-connection-draining
func (p *Provider) DeregistrationDelay(ctx context.Context, lb string) (longest time.Duration, err error) {
	what := "ask for the deregistration delay of load balancer " + lb
	group, ok := p.balancer(lb)
	if !ok {
		return 0, infra.Errorf(infra.NotFound, what, "the configuration has no such load balancer of provider gcp")
	}
	if len(group.BackendServiceNames) == 0 {
		return 0, refused(what, "the load balancer has no backend_service_names")
	}
	for _, name := range group.BackendServiceNames {
		service, err := p.api.backendService(ctx, name)
		if err != nil {
			return 0, p.classify(what+" at "+name, "regionBackendServices.get", err)
		}
		if service.ConnectionDraining != nil {
			longest = max(longest, time.Duration(service.ConnectionDraining.DrainingTimeoutSec)*time.Second)
		}
	}
	return longest, nil
}

// group returns the name of a load balancer's instance group.
func (p *Provider) group(lb string) (name string, ok bool) {
	group, ok := p.balancer(lb)
	return group.InstanceGroupName, ok
}

func (p *Provider) balancer(lb string) (group contract.InstanceGroup, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	group, ok = p.groups[lb]
	return group, ok
}
