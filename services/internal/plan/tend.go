package plan

import "github.com/nstance-kit/nstance/services/contract/record"

// tend plans what an instance that stays should have: membership in the group's load balancers from its first healthy
// report on, and files that match the group's runtime configuration (or that it could not store), once per sending,
// while its stream is open. After a failure the two take turns, so that neither starves the other.
func (p *planner) tend(i *Instance) {
	if i.Work != Idle || i.State != record.Registered {
		return
	}
	register := len(p.Group.LoadBalancers) > 0 && i.Healthy && i.Connected && !i.InLoadBalancers
	push := i.Connected && !i.LastReport.IsZero() && p.Group.RuntimeHash != "" && i.FilesSent != p.Group.RuntimeHash &&
		(i.RuntimeHash != p.Group.RuntimeHash || i.FilesFailed)
	if !register && !push || !p.retry(i, i.TendFailed) {
		return
	}
	if push && (!register || i.TendFailed.Count%2 == 0) {
		reason := "its runtime configuration is out of date"
		if i.RuntimeHash == p.Group.RuntimeHash {
			reason = "it could not store a file"
		}
		p.emit(Action{Kind: PushFiles, Instance: i.ID, ProviderID: i.ProviderID, Reason: reason})
		return
	}
	p.emit(Action{Kind: Register, Instance: i.ID, ProviderID: i.ProviderID, Reason: "it reported healthy"})
}
