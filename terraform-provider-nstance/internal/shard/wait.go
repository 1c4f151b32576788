package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/poll"
)

// wait implements `wait_for_leader`. It polls the election lock until the lock names token as the applied version. It
// returns nil if the attribute is not set.
func (r *Resource) wait(ctx context.Context, plan tfsdk.Plan, want document, token objstore.Token,
	of func(timeouts.Value, context.Context, time.Duration) (time.Duration, diag.Diagnostics)) diag.Diagnostic {
	var wanted types.Bool
	if diags := plan.GetAttribute(ctx, path.Root("wait_for_leader"), &wanted); diags.HasError() {
		return diags[0]
	}
	if !wanted.ValueBool() {
		return nil
	}
	name := want.name()
	limit, diags := timeout(ctx, plan.GetAttribute, of, defaultWait)
	if diags.HasError() {
		return diags[0]
	}
	state, err := r.bucket.Shard(ctx, want.cluster(), name)
	if err != nil {
		return r.failure("Cannot wait for the leader of shard "+name, name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	watch := leaderWatch{state: state, shard: name}
	err = poll.Until(ctx, func(ctx context.Context) (bool, error) {
		if err := watch.readLock(ctx); err != nil {
			return false, err
		}
		tflog.Info(ctx, "waiting for the leader to apply the configuration",
			map[string]any{"shard": name, "leader": watch.String(), "etag": string(token)})
		return watch.applied(token), nil
	})
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, context.DeadlineExceeded):
		return r.failure("The configuration of shard "+name+" is written, but waiting for its leader failed", name, err)
	}
	return diagnostic.Failure{
		What: fmt.Sprintf("The configuration of shard %s is written, but its leader did not apply it within %s", name,
			limit),
		Where: r.bucket.Place(keys.Leader(name)),
		Why:   fmt.Errorf("the lock does not name version %s as applied: %s", token, &watch),
		Do: "Check that a server of the shard runs and read its log, which names the reason. The configuration stays " +
			"in the bucket and is applied as soon as a server leads. Set timeouts to wait longer.",
	}.Error()
}

// leaderWatch follows the election lock of one shard. It is not safe for concurrent use.
type leaderWatch struct {
	state *clusterstate.State
	shard string

	lock  record.Lock
	there bool
	since time.Time // when this process first read the current version of the lock
}

func (w *leaderWatch) readLock(ctx context.Context) error {
	lock, _, err := w.state.ReadLock(ctx, w.shard)
	if errors.Is(err, objstore.ErrNotFound) {
		w.lock, w.there = record.Lock{}, false
		return nil
	}
	if err != nil {
		return err
	}
	if !w.there || lock.Version() != w.lock.Version() {
		w.since = time.Now()
	}
	w.lock, w.there = lock, true
	return nil
}

func (w *leaderWatch) applied(token objstore.Token) bool {
	return w.there && w.lock.AppliedETag == string(token)
}

// leaderless reports whether the shard certainly has no leader. That holds in three cases: there is no lock, the leader
// released it, or the lock has not changed for its lease plus one renewal interval. The elapsed time is measured on
// this machine, because the clocks of other machines may differ.
func (w *leaderWatch) leaderless() bool {
	return !w.there || w.lock.Released || time.Since(w.since) > w.lock.Lease()+w.lock.Renew()
}

func (w *leaderWatch) String() string {
	switch {
	case !w.there:
		return "no server has led the shard yet"
	case w.lock.Released:
		return fmt.Sprintf("no server leads: %s resigned in term %d", w.lock.LeaderID, w.lock.Term)
	case w.leaderless():
		return fmt.Sprintf("no server leads: %s stopped renewing in term %d", w.lock.LeaderID, w.lock.Term)
	case w.lock.AppliedETag == "":
		return fmt.Sprintf("%s leads in term %d and has applied no configuration", w.lock.LeaderID, w.lock.Term)
	}
	return fmt.Sprintf("%s leads in term %d and has applied version %s", w.lock.LeaderID, w.lock.Term,
		w.lock.AppliedETag)
}
