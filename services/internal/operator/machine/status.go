package machine

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

func (v *view) set(d *decision, condition string, is bool, reason, message string) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{Type: condition, Status: status, Reason: reason,
		Message:            message,
		ObservedGeneration: v.machine.Generation, LastTransitionTime: v.now})
}

// maxProviderID is what the schema allows.
const maxProviderID = 512

// follow takes over what the server says of an instance that is there.
func (v *view) follow(d *decision, i *nstancev1.InstanceStatus) {
	m, s := v.machine, &d.status
	s.InstanceID = m.Spec.InstanceID
	s.State = later(s.State, i.GetState())
	s.FailureDomain = m.Spec.Shard
	if addresses := addressesOf(i); len(addresses) > 0 {
		s.Addresses = addresses
	}
	v.set(d, v1beta1.InstanceCreatedCondition, true, v1beta1.CreatedReason, "")

	provider := m.Spec.ProviderID
	if id := i.GetProviderId(); provider == "" && id != "" && len(id) <= maxProviderID {
		d.step, d.providerID, provider = keep, id, id
	}
	// Whose agent has registered has booted, even if the provider said "pending" last: it is not asked again for
	// minutes.
	running := i.GetProviderState() == "running" || i.GetProviderState() == "pending" && s.State == "registered"
	if provider != "" && running && (s.Initialization.Provisioned == nil || !*s.Initialization.Provisioned) {
		yes := true
		s.Initialization.Provisioned = &yes
	}
	// A leader that has just taken over has not heard of the agents yet ("unknown"): that says nothing new.
	healthy := i.GetHealth() == "healthy" || i.GetHealth() == "unknown" && s.Ready
	s.Ready = running && healthy && s.State == "registered"
	switch {
	case s.Ready && provider != "":
		v.set(d, v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
	case s.State == stateDeleting:
		v.set(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "the instance is being deleted")
	case s.State != "registered" || !running:
		v.set(d, v1beta1.ReadyCondition, false, v1beta1.WaitingForInstanceReason, "the instance is "+s.State+
			", its machine "+word(i.GetProviderState()))
	default:
		v.set(d, v1beta1.ReadyCondition, false, v1beta1.NotReadyReason, "the instance is "+word(i.GetHealth()))
	}
}

func word(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// addressesOf lists the addresses in the order of the contract's examples. What is outside is not known: instances have
// private addresses.
func addressesOf(i *nstancev1.InstanceStatus) (out clusterv1.MachineAddresses) {
	for _, a := range []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: i.GetHostname()},
		{Type: clusterv1.MachineInternalIP, Address: i.GetIpv4()},
		{Type: clusterv1.MachineInternalIP, Address: i.GetIpv6()},
	} {
		if a.Address != "" && len(a.Address) <= 256 {
			out = append(out, a)
		}
	}
	return out
}
