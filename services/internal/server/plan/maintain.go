package plan

import "github.com/nstance-kit/nstance/services/contract/record"

// planMaintenance is rule 32. It registers a connected, healthy instance that is no spare with the group's load
// balancers. It also sends the group's files to a connected instance, if the instance has the files of another
// configuration or could not store a file. The same files are sent only once on each health stream. If both actions are
// due and one fails, the other one is next.
func (g *group) planMaintenance(out *steps, i *Instance) {
	if i.Work != Idle || i.State != record.Registered {
		return
	}
	register := len(g.Group.LoadBalancers) > 0 && i.Healthy && i.Connected && !i.InLoadBalancers &&
		!i.Spare
	push := i.Connected && !i.LastReport.IsZero() && g.Group.RuntimeHash != "" && i.FilesSent != g.Group.RuntimeHash &&
		(i.RuntimeHash != g.Group.RuntimeHash || i.FilesFailed)
	switch {
	case !register && !push:
		return
	case !push || register && i.MaintenanceFailed.Count%2 != 0:
		g.attempt(out, i.MaintenanceFailed, Action{Kind: Register, Instance: i.ID, ProviderID: i.ProviderID,
			Reason: "it reported healthy"})
		return
	}
	reason := "its runtime configuration is out of date"
	if i.RuntimeHash == g.Group.RuntimeHash {
		reason = "it could not store a file"
	}
	g.attempt(out, i.MaintenanceFailed, Action{Kind: PushFiles, Instance: i.ID, ProviderID: i.ProviderID,
		Reason: reason})
}
