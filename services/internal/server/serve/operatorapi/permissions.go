package operatorapi

import (
	"cmp"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

// permitGroup refuses a change of a group if the tenant's usage would then exceed its quotas. It does not count
// instances that CreateInstance creates while the group is being written. So the usage may exceed the quota by the
// number of these instances.
func (c *call) permitGroup(key config.GroupKey, spec config.GroupSpec) error {
	c.mu.Lock()
	before := c.usage()
	c.mu.Unlock()
	shard, after := c.Config.Shard(), before
	have, exists := c.Config.Groups()[key]
	if !exists {
		after.Groups++
	}
	after.Instances += config.MostInstances(shard, key, spec) - have.MostInstances()
	return c.refusal(codes.ResourceExhausted, key, config.CheckQuota(shard, key.Tenant, before, after))
}

// permitInstance refuses an on-demand instance if the tenant's quota does not permit one more. Call with mu held.
func (c *call) permitInstance(key config.GroupKey) error {
	before := c.usage()
	after := before
	after.Instances++
	return c.refusal(codes.ResourceExhausted, key, config.CheckQuota(c.Config.Shard(), key.Tenant, before, after))
}

// usage counts the tenant's groups and instances, including the on-demand instances that are being created. Call with
// mu held.
func (c *call) usage() config.Usage {
	var used config.Usage
	if c.Config.Shard().Tenants[c.tenant] == (config.Tenant{}) {
		return used // without quotas, nothing needs to be counted
	}
	for key, group := range c.Config.Groups() {
		if key.Tenant == c.tenant {
			used = used.Add(group)
		}
	}
	onDemand := map[ident.ID]bool{}
	for id, made := range c.creating {
		if made.tenant == c.tenant {
			onDemand[id] = true
		}
	}
	for _, view := range c.state().Instances(c.tenant, "") {
		if view.Record.OnDemand {
			onDemand[view.Record.ID] = true
		}
	}
	used.Instances += len(onDemand)
	return used
}

// refusal returns an error that lists the given problems: forbidden fields of a group, or exceeded quotas. It returns
// nil if there are none.
func (c *call) refusal(code codes.Code, key config.GroupKey, found config.Problems) error {
	if len(found) == 0 {
		return nil
	}
	fields := make([]string, len(found))
	for i := range found {
		found[i].Path = cmp.Or(found[i].Path, "group")
		fields[i] = found[i].Path
	}
	c.refuses(key, fields)
	return status.Error(code, "group "+key.Group+" is not permitted:\n"+found.Error())
}

// refuses stores which fields of a group are forbidden, so that logRefusal logs them.
func (c *call) refuses(key config.GroupKey, fields []string) {
	c.refused = []any{"group", key.Group, "field", strings.Join(fields, ", ")}
}

// logRefusal logs err if the call was refused because of its request or of the operator's identity, role or quotas. It
// ignores other errors.
func (c *call) logRefusal(err error) {
	level := slog.LevelWarn
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.FailedPrecondition:
		if c.refused == nil || !c.service.refusals.Allows() {
			return
		}
	case codes.NotFound: // clients ask for what is already deleted
		level = slog.LevelInfo
		fallthrough
	default:
		if !c.service.refusals.Admits(err) {
			return
		}
	}
	about := append([]any{"tenant", c.tenant, "operator", c.operator.String(), "source",
		transport.PeerAddress(c.client).String(), "call", methodOf(c.client)}, c.refused...)
	c.Log.Log(c.client, level, "operator's request refused", append(about, "reason", status.Convert(err).Message())...)
}
