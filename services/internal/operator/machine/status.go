package machine

import (
	"cmp"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

func (v *view) setCondition(d *decision, condition string, is bool, reason, message string) {
	scope.SetCondition(&d.status.Conditions, v.machine.Generation, v.now.Time, condition, is, reason, message)
}

// setUncreated sets the conditions that say why there is no instance.
func (v *view) setUncreated(d *decision, reason, message string) {
	v.setCondition(d, v1beta1.InstanceCreatedCondition, false, reason, message)
	v.setCondition(d, v1beta1.ReadyCondition, false, reason, message)
}

// maxProviderID is the longest provider ID that the API accepts.
const maxProviderID = 512

// updateStatus updates the status from an existing instance.
func (v *view) updateStatus(d *decision, i *nstancev1.InstanceStatus) {
	m, s := v.machine, &d.status
	s.InstanceID = m.Spec.InstanceID
	s.State = laterState(s.State, i.GetState())
	s.FailureDomain = m.Spec.Shard
	if addresses := addressesOf(i); len(addresses) > 0 {
		s.Addresses = addresses
	}
	v.setCondition(d, v1beta1.InstanceCreatedCondition, true, v1beta1.CreatedReason, "")

	provider := m.Spec.ProviderID
	if id := i.GetProviderId(); provider == "" && id != "" && len(id) <= maxProviderID {
		d.step, d.providerID, provider = stepKeep, id, id
	}
	// A registered instance has booted, even if the provider last reported "pending": the provider is asked only every
	// few minutes.
	running := i.GetProviderState() == "running" || i.GetProviderState() == "pending" && s.State == "registered"
	if provider != "" && running {
		s.Initialization.Provisioned = ptr.To(true)
	}
	// After a change of the leader, the health is "unknown" until the agent reports to the new leader. During this
	// time, a ready instance stays ready.
	healthy := i.GetHealth() == "healthy" || i.GetHealth() == "unknown" && s.Ready
	s.Ready = running && healthy && s.State == "registered"
	switch {
	case s.Ready && provider != "":
		v.setCondition(d, v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
	case s.State == stateDeleting:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "the instance is being deleted")
	case s.State != "registered" || !running:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.WaitingForInstanceReason, "the instance is "+s.State+
			", its VM is "+cmp.Or(i.GetProviderState(), "unknown"))
	default:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.NotReadyReason, "the instance is "+
			cmp.Or(i.GetHealth(), "unknown"))
	}
}

// addressesOf returns the instance's host name and private addresses. External addresses are not known.
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
