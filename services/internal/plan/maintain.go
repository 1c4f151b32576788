package plan

import "github.com/nstance-kit/nstance/services/contract/record"

// planMaintenance is rule 32. An instance that stays joins the group's load balancers after its first healthy report.
// While its stream is open, it gets the files of the group's runtime configuration once if it has files of another
// configuration, or could not store a file. After a failure, registration and files take turns.
func (g *group) planMaintenance(out *steps, i *Instance) {
	if i.Work != Idle || i.State != record.Registered {
		return
	}
	register := len(g.Group.LoadBalancers) > 0 && i.Healthy && i.Connected && !i.InLoadBalancers
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
