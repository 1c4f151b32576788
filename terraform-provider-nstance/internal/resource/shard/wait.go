package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/poll"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// wait makes the leader apply the configuration's version with the given token. It returns when that version is in
// force and no VM is left in the subnets of `released`, or when limit has passed. If no leader answers, it waits only
// if `wait_for_leader` is set or `released` is not empty. changed means that this apply wrote the configuration. In a
// copy of the shard's home, wait does not wait, because no server leads there.
func (r *Resource) wait(ctx context.Context, plan tfsdk.Plan, want document, token objstore.Token, limit time.Duration,
	changed bool, released release) diag.Diagnostic {
	var wanted types.Bool
	if diags := plan.GetAttribute(ctx, path.Root("wait_for_leader"), &wanted); diags.HasError() {
		return diags[0]
	}
	name := want.name()
	if failure, copied := r.Bucket.NotHome(r.Bucket.CheckHome(ctx, name)); copied {
		if wanted.ValueBool() {
			return failure.Error()
		}
		return failure.Warning()
	}
	if _, err := r.Servers.Identity(); !wanted.ValueBool() && released.isEmpty() && (err != nil || !changed) {
		return nil
	}
	state, err := r.Bucket.Shard(ctx, want.cluster(), name)
	if err != nil {
		return r.failure("Cannot wait for the leader of shard "+name, name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	watch := leaderWatch{state: state, shard: name}
	shard := contents{state: state, tombstones: map[ident.ID]bool{}}
	must := wanted.ValueBool() || !released.isEmpty()
	var refused *refusedError
	var held error
	err = poll.Until(ctx, func(ctx context.Context) (bool, error) {
		if err := watch.readLock(ctx); err != nil && must {
			return false, err
		}
		applied, err := r.refreshLeader(ctx, &watch, token)
		tflog.Info(ctx, "waiting for the leader to apply the configuration",
			map[string]any{"shard": name, "leader": watch.String(), "etag": string(token), "answer": fmt.Sprint(err)})
		if errors.As(err, &refused) {
			return true, nil
		}
		must = must || err == nil // a leader that answered once is waited for
		applied = applied || watch.applied(token) || recordsApplied(ctx, state, token)
		if len(released.subnets) > 0 {
			if err := shard.readContents(ctx); err != nil {
				return false, err
			}
			held = released.heldBy(shard.left)
		}
		// If the shard has no leader, nothing uses the subnets and the interface that this apply removes.
		isIdle := !released.isEmpty() && !wanted.ValueBool() && watch.leaderless()
		return held == nil && (applied || !must || isIdle), nil
	})
	switch {
	case refused != nil:
		return diagnostic.Failure{
			What:  fmt.Sprintf("The configuration of shard %s is written, but its leader refuses it", name),
			Where: r.Bucket.Place(keys.Config(name)), Why: refused,
			Do: "The shard goes on with the configuration that was applied last. Correct what is named above, and " +
				"apply again.",
		}.Error()
	case err == nil && wanted.ValueBool():
		return r.blockedGroups(ctx, name)
	case err == nil:
		return nil
	case !errors.Is(err, context.DeadlineExceeded):
		return r.failure("The configuration of shard "+name+" is written, but waiting for its leader failed", name, err)
	}
	if held != nil {
		return diagnostic.Failure{
			What: fmt.Sprintf("The configuration of shard %s is written, but VMs did not leave the removed subnets "+
				"within %s", name, limit),
			Where: r.Bucket.Place(keys.InstancePrefix(name)), Why: fmt.Errorf("%w; %s", held, &watch),
			Do: "The leader goes on replacing them. On-demand instances stay until they are deleted. Apply again to " +
				"remove the subnets, or set timeouts.update to wait longer.",
		}.Error()
	}
	return diagnostic.Failure{
		What: fmt.Sprintf("The configuration of shard %s is written, but its leader did not apply it within %s", name,
			limit),
		Where: r.Bucket.Place(keys.Leader(name)),
		Why:   fmt.Errorf("the lock does not name version %s as applied: %s", token, &watch),
		Do: "Check that a server of the shard runs and read its log, which names the reason. The configuration stays " +
			"in the bucket and is applied as soon as a server leads. Set timeouts to wait longer.",
	}.Error()
}

// settleTime is the time for which an apply checks that the leader can create instances. The time begins when the
// leader has applied the configuration.
const settleTime = 10 * time.Second

// blockedGroups returns a warning that names the groups in which the leader cannot create instances, for example
// because an image does not exist. It returns nil if it sees no such group within settleTime, or if no leader answers.
func (r *Resource) blockedGroups(ctx context.Context, name string) diag.Diagnostic {
	if _, err := r.Servers.Identity(); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	var blocked []string
	_ = poll.Until(ctx, func(ctx context.Context) (bool, error) {
		var answer *nstancev1.ListGroupsResponse
		err := r.Servers.Call(ctx, name, func(ctx context.Context, client servers.Client) (err error) {
			answer, err = client.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
			return err
		})
		if err != nil {
			return true, nil //nolint:nilerr // the configuration is applied; this only adds a warning
		}
		complete := true
		blocked = nil
		for _, g := range answer.GetGroups() {
			complete = complete && len(g.GetProviderIds()) >= int(g.GetSize()) && g.GetOutdated() == 0
			if reason := g.GetBlockedReason(); reason != "" {
				blocked = append(blocked, g.GetGroup()+": "+cmp.Or(g.GetWait().GetText(), reason))
			}
		}
		return complete || len(blocked) > 0, nil
	})
	if len(blocked) == 0 {
		return nil
	}
	return diagnostic.Failure{
		What:  "The leader of shard " + name + " cannot create all instances",
		Where: r.Bucket.Place(keys.Config(name)), Why: errors.New(strings.Join(blocked, "\n")),
		Do: "The configuration is applied, and the leader goes on trying. `nstance-admin events` shows when it " +
			"succeeds.",
	}.Warning()
}

// checkApplied warns if the shard's leader has applied a version of the configuration other than the one with the given
// token.
func (r *Resource) checkApplied(ctx context.Context, state *clusterstate.State, name string,
	token objstore.Token) diag.Diagnostics {
	leader := leaderWatch{state: state, shard: name}
	err := leader.readLock(ctx)
	if errors.Is(err, clusterstate.ErrDamaged) {
		return diag.Diagnostics{diagnostic.Failure{
			What: "The lock of shard " + name + " cannot be read", Where: r.Bucket.Place(keys.Leader(name)), Why: err,
			Do: "The plan does not know what the leader has applied. If no server of the shard leads, stop them, " +
				"delete the object, and start them again.",
		}.Warning()}
	}
	if err != nil {
		return diag.Diagnostics{r.failure("Cannot read the lock of shard "+name, name, err)}
	}
	if leader.leaderless() || leader.applied(token) {
		return nil
	}
	if recordsApplied(ctx, state, token) {
		return nil
	}
	return diag.Diagnostics{diagnostic.Failure{
		What:  fmt.Sprintf("The leader of shard %s has not applied the configuration in the bucket", name),
		Where: r.Bucket.Place(keys.Leader(name)),
		Why:   fmt.Errorf("the bucket has version %s, and %s", token, &leader),
		Do: "A leader applies a new version within seconds, unless it refuses it. `nstance-admin config " +
			"status` shows the reasons for a refusal.",
	}.Warning()}
}

// haltedGroups warns of each group whose rollout is halted, because a plan does not show that such a group does not
// run its configuration. body is the configuration in the bucket. Nothing depends on the warnings, so they are not
// verified.
func (r *Resource) haltedGroups(ctx context.Context, state *clusterstate.State, name string,
	body []byte) (diags diag.Diagnostics) {
	stored, err := state.UnverifiedRollouts(ctx)
	if err != nil || len(stored) == 0 {
		return nil // the credentials may not permit it
	}
	shard, problems := config.ParseStored(keys.Config(name), body)
	groups, _, _, err := state.ReadGroups(ctx)
	if len(problems.Errors()) > 0 || err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	shard = shard.WithDefaults()
	merged, _ := shard.Merged(groups)
	for _, rollout := range stored {
		key := config.GroupKey{Tenant: rollout.Tenant, Group: rollout.Group}
		g, exists := merged[key]
		if g = shard.WithRollout(g, rollout); !exists || g.HaltReason() == "" {
			continue
		}
		what := "The rollout of group " + key.Group + " is halted"
		if g.RolledBack() {
			what = "Group " + key.Group + " runs its last good configuration"
		}
		diags = append(diags, diagnostic.Failure{
			What: what, Where: "shard " + name + ", tenant " + key.Tenant, Why: errors.New(g.HaltReason()),
			Do: "Correct the group's configuration and apply it. To try the same configuration again, run " +
				"`nstance-admin group resume " + key.Group + "`.",
		}.Warning())
	}
	return diags
}

// recordsApplied reports whether a leader recorded the version of the configuration as applied. A leader does so
// immediately before it applies the version. The lock contains the version only after the lock's next renewal.
func recordsApplied(ctx context.Context, state *clusterstate.State, token objstore.Token) bool {
	applied, err := state.UnverifiedApplied(ctx)
	return err == nil && applied.Source == string(token)
}

// refusedError means that the leader refuses the configuration in the bucket.
type refusedError struct{ problems []*nstancev1.ConfigProblem }

func (e *refusedError) Error() string {
	lines := make([]string, len(e.problems))
	for i, p := range e.problems {
		lines[i] = strings.TrimPrefix(p.GetPath()+": "+p.GetMessage(), ": ")
	}
	return strings.Join(lines, "\n")
}

var errNoLeader = errors.New("the shard has no leader")

// refreshLeader makes the leader apply the configuration in the bucket now. It reports whether the version with the
// given token is in force. It returns false if the leader must first restart. The error is a *refusedError, or says why
// no leader answers.
func (r *Resource) refreshLeader(ctx context.Context, leader *leaderWatch, token objstore.Token) (bool, error) {
	if leader.leaderless() {
		return false, errNoLeader // dialing a server that is not there can take long
	}
	var answer *nstancev1.RefreshConfigResponse
	err := r.Servers.Call(ctx, leader.shard, func(ctx context.Context, client servers.Client) (err error) {
		answer, err = client.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
		return err
	})
	switch {
	case err != nil:
		return false, err
	case answer.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID:
		return false, &refusedError{answer.GetProblems()}
	}
	return !answer.GetRestarting() && answer.GetEtag() == string(token), nil
}

// leaderWatch observes the election lock of one shard. It is not safe for concurrent use.
type leaderWatch struct {
	state *clusterstate.State
	shard string
	// copied means that the bucket is a copy, so that the lock names a leader that uses another bucket.
	copied bool

	lock  record.Lock
	there bool
	since time.Time // when this process first read the current version of the lock
}

func (l *leaderWatch) readLock(ctx context.Context) error {
	lock, _, err := l.state.ReadLock(ctx, l.shard)
	if errors.Is(err, objstore.ErrNotFound) {
		l.lock, l.there = record.Lock{}, false
		return nil
	}
	if err != nil {
		return err
	}
	if !l.there || lock.Version() != l.lock.Version() {
		l.since = time.Now()
	}
	l.lock, l.there = lock, true
	return nil
}

func (l *leaderWatch) applied(token objstore.Token) bool {
	return l.there && l.lock.AppliedETag == string(token)
}

// leaderless reports whether the shard certainly has no leader. That holds in four cases: the bucket is a copy, there
// is no lock, the leader released it, or the lock has not changed for its lease plus one renewal interval. It measures
// the elapsed time on this machine, because the clocks of other machines may differ.
func (l *leaderWatch) leaderless() bool {
	return l.copied || !l.there || l.lock.Released || time.Since(l.since) > l.lock.Lease()+l.lock.Renew()
}

func (l *leaderWatch) String() string {
	switch {
	case !l.there:
		return "no server has led the shard yet"
	case l.lock.Released:
		return fmt.Sprintf("no server leads: %s resigned in term %d", l.lock.LeaderID, l.lock.Term)
	case l.leaderless():
		return fmt.Sprintf("no server leads: %s stopped renewing in term %d", l.lock.LeaderID, l.lock.Term)
	case l.lock.AppliedETag == "":
		return fmt.Sprintf("%s leads in term %d and has applied no configuration", l.lock.LeaderID, l.lock.Term)
	}
	return fmt.Sprintf("%s leads in term %d and has applied version %s", l.lock.LeaderID, l.lock.Term,
		l.lock.AppliedETag)
}

// release lists the subnets and the network interface that servers and VMs stop using after a change of the
// configuration. Terraform may destroy them after the update of this resource, so the update must wait until they are
// no longer used.
type release struct {
	// subnets are the subnets that are no longer in any pool, sorted.
	subnets []string
	// leaderInterface means that the leader's address has left its network interface.
	leaderInterface bool
}

// releaseOf compares two configurations.
func releaseOf(before, after *config.Shard) release {
	var out release
	if before == nil || after == nil {
		return out
	}
	kept := map[string]bool{}
	for _, subnets := range after.Server.SubnetPools {
		for _, subnet := range subnets {
			kept[subnet] = true
		}
	}
	for _, subnets := range before.Server.SubnetPools {
		for _, subnet := range subnets {
			if !kept[subnet] {
				out.subnets = append(out.subnets, subnet)
			}
		}
	}
	slices.Sort(out.subnets)
	from, to := before.Server.LeaderNetwork, after.Server.LeaderNetwork
	out.leaderInterface = from != nil && from.InterfaceID != "" && (to == nil || to.InterfaceID != from.InterfaceID)
	return out
}

func (r release) isEmpty() bool { return len(r.subnets) == 0 && !r.leaderInterface }

// heldBy returns an error that names the instances in released subnets, or nil if there are no such instances.
func (r release) heldBy(instances []record.Instance) error {
	held := contents{}
	for _, rec := range instances {
		if slices.Contains(r.subnets, rec.SubnetID) {
			held.left = append(held.left, rec)
		}
	}
	if len(held.left) == 0 {
		return nil
	}
	return fmt.Errorf("in %s, %s", strings.Join(r.subnets, ", "), &held)
}
