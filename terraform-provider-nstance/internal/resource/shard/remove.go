package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	docs "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/poll"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// parallel is the maximum number of objects that are read or deleted at the same time.
const parallel = 32

// Delete implements resource.Resource. It marks the shard as terminating, waits until the leader has deleted all
// instances, and then deletes the remaining objects of the shard. In a copy of the shard's home, it refuses, or with
// force_destroy deletes only the objects.
func (r *Resource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	attributes := docs.Attributes(req.State.Raw)
	name := docs.TextOf(attributes["shard"])
	limit, diags := base.Timeout(ctx, req.State.GetAttribute, timeouts.Value.Delete, defaultDelete)
	resp.Diagnostics.Append(diags...)
	if diags.HasError() {
		return
	}
	state, err := r.Bucket.Shard(ctx, docs.TextOf(attributes["cluster_id"]), name)
	if err != nil {
		resp.Diagnostics.Append(r.failure("Cannot destroy shard "+name, name, err))
		return
	}
	force := docs.FlagOf(attributes["force_destroy"])
	failure, copied := r.Bucket.NotHome(r.Bucket.CheckHome(ctx, name))
	if copied && !force {
		failure.Do += " To give up this copy, delete its objects, and let Terraform forget its resources " +
			"(terraform state rm), or set force_destroy = true, apply, and destroy again."
		resp.Diagnostics.Append(failure.Error())
		return
	}
	token, terminating, failed := r.terminate(ctx, state, read(req.State.Raw), name,
		objstore.Token(docs.TextOf(attributes["etag"])))
	if failed != nil {
		resp.Diagnostics.Append(failed)
		return
	}
	// Store the new version in the Terraform state now, so that the state matches the bucket even if a later step
	// fails.
	if terminating != nil {
		resp.Diagnostics.Append(r.refresh(&resp.State, name, terminating, token)...)
	}
	leader := leaderWatch{state: state, shard: name, copied: copied}
	shard := contents{state: state, tombstones: map[ident.ID]bool{}}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := leader.readLock(ctx); err == nil {
		// Without this call, the leader finds the change only at its next poll of the bucket.
		_, err = r.refreshLeader(ctx, &leader, token)
		tflog.Info(ctx, "asked the leader to empty the shard", map[string]any{"shard": name, "answer": fmt.Sprint(err)})
	}
	reported := ""
	err = poll.Until(waiting, func(ctx context.Context) (bool, error) {
		if err := errors.Join(leader.readLock(ctx), shard.readContents(ctx)); err != nil {
			return false, err
		}
		if now := fmt.Sprintf("%s; %s", &shard, &leader); now != reported {
			reported = now
			tflog.Info(ctx, "waiting until the shard is empty", map[string]any{"shard": name, "left": len(shard.left),
				"state": now})
		}
		if force && leader.leaderless() {
			return true, nil // without a server the records would stay forever
		}
		return len(shard.left) == 0 && (leader.applied(token) || leader.leaderless()), nil
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		resp.Diagnostics.Append(diagnostic.Failure{
			What:  fmt.Sprintf("Shard %s was not empty after %s", name, limit),
			Where: r.Bucket.Place(keys.InstancePrefix(name)),
			Why:   fmt.Errorf("%s; %s", &shard, &leader),
			Do: "The configuration is marked as terminating, so the leader continues. Check that a server of the " +
				"shard runs and read its log, then destroy again to wait for the rest. Set timeouts.delete to wait " +
				"longer. If the shard has no server any more, set force_destroy = true, apply, and destroy again: " +
				"the VMs that are left are then yours to terminate.",
		}.Error())
		return
	case err != nil:
		resp.Diagnostics.Append(r.failure("Cannot read whether shard "+name+" is empty", name, err))
		return
	}
	if orphans := shard.orphans(); orphans != "" && !copied { // the VMs of a copy belong to the home
		resp.Diagnostics.AddWarning("VMs of shard "+name+" may still run", "The shard had no server that could "+
			"terminate them, and force_destroy is set. Terminate them: "+orphans+".")
	}
	if err := r.remove(ctx, &leader, token); err != nil {
		resp.Diagnostics.Append(r.failure("Shard "+name+" is empty, but what it left in the bucket cannot be removed",
			name, err))
	}
}

// terminate marks the configuration as terminating. It returns the token and the text of the new version. If the bucket
// has no configuration, terminate writes one, because a leader may still use a configuration that was deleted. It
// returns a diagnostic if the bucket now has another version than when the plan was made, or if the configuration is
// not valid.
func (r *Resource) terminate(ctx context.Context, state *clusterstate.State, have document, name string,
	seen objstore.Token) (objstore.Token, []byte, diag.Diagnostic) {
	what := "Cannot mark shard " + name + " as terminating"
	body, token, err := state.ReadConfig(ctx, name)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		body, token = nil, ""
	case err != nil:
		return "", nil, r.failure(what, name, err)
	case token != seen:
		return "", nil, diagnostic.Failure{
			What: what, Where: r.Bucket.Place(keys.Config(name)), Why: fmt.Errorf(
				"the plan was made from version %s, and the bucket has version %s now", seen, token),
			Do: "Another program changed the configuration after the plan was made. Nothing was written. Review the " +
				"change with a new plan, then destroy again.",
		}.Error()
	}
	if have.shard == nil {
		return "", nil, diagnostic.Failure{
			What: what, Where: r.Bucket.Place(keys.Config(name)), Why: errors.New(
				"the configuration in the bucket is not valid, so the servers would not read it"),
			Do: "Apply a valid configuration, then destroy again.",
		}.Error()
	}
	terminating := *have.shard
	terminating.Terminating = true
	want := config.Encode(&terminating)
	if have.shard.Terminating && body != nil {
		want = body
	}
	if bytes.Equal(want, body) {
		return token, body, nil
	}
	token, err = state.WriteConfig(ctx, name, want, token)
	if err != nil {
		return "", nil, r.failure(what, name, err)
	}
	return token, want, nil
}

// contents holds the instances that a shard still has. It is not safe for concurrent use.
type contents struct {
	state      *clusterstate.State
	tombstones map[ident.ID]bool // which never change and need no second read
	left       []record.Instance
}

func (c *contents) readContents(ctx context.Context) error {
	names, err := c.state.ListInstances(ctx)
	if err != nil {
		return err
	}
	records := make([]record.Instance, len(names))
	err = bucket.ForEach(ctx, len(names), parallel, func(ctx context.Context, i int) error {
		if c.tombstones[names[i].ID] {
			return nil
		}
		rec, _, err := c.state.GetInstance(ctx, names[i].Tenant, names[i].ID)
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		records[i] = rec
		return err
	})
	if err != nil {
		return err
	}
	c.left = nil
	for _, rec := range records {
		switch {
		case rec.ID.IsZero():
		case rec.State == record.Deleted:
			c.tombstones[rec.ID] = true
		default:
			c.left = append(c.left, rec)
		}
	}
	return nil
}

// orphans lists the VMs of the remaining instances, separated by commas. It leaves out instances without a known VM.
func (c *contents) orphans() string {
	var vms []string
	for _, rec := range c.left {
		if rec.ProviderID != "" {
			vms = append(vms, fmt.Sprintf("%s (%s of %s/%s)", rec.ProviderID, rec.ID, rec.Tenant, rec.Group))
		}
	}
	return strings.Join(vms, ", ")
}

func (c *contents) String() string {
	const most = 5
	if len(c.left) == 0 {
		return "no instances are left"
	}
	vms := slices.Clone(c.left)
	vms = slices.DeleteFunc(vms, func(rec record.Instance) bool {
		return rec.State == record.Reserved && rec.Group == "" // an ID in store
	})
	reserved := len(c.left) - len(vms)
	if len(vms) == 0 {
		return fmt.Sprintf("no VM is left; %d reserved IDs without a VM are", reserved)
	}
	var names []string
	for _, rec := range vms[:min(len(vms), most)] {
		what := string(rec.State)
		if rec.State == record.Deleting {
			what = "deleting since " + rec.DeletingAt.UTC().Format("15:04:05Z")
		}
		names = append(names, fmt.Sprintf("%s of %s/%s (%s)", rec.ID, rec.Tenant, rec.Group, what))
	}
	if more := len(vms) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	text := fmt.Sprintf("%d instances are left: %s", len(vms), strings.Join(names, ", "))
	if reserved > 0 {
		text += fmt.Sprintf("; and %d reserved IDs without a VM", reserved)
	}
	return text
}

// remove deletes all objects of an empty shard if the configuration still has the version with the given token. It
// deletes the configuration last: if an earlier step fails, the resource still exists and can be destroyed again. It
// keeps the election lock while a server leads, because that server would write the lock again.
func (r *Resource) remove(ctx context.Context, leader *leaderWatch, token objstore.Token) error {
	name := leader.shard
	store, err := r.Bucket.Store(ctx)
	if err != nil {
		return err
	}
	var doomed []string
	for _, prefix := range []string{keys.InstancePrefix(name), keys.CertLogPrefix(name), keys.JournalPrefix(name),
		keys.ProbePrefix(name), keys.RolloutPrefix(name)} {
		entries, err := store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			doomed = append(doomed, entry.Key)
		}
	}
	doomed = append(doomed, keys.Groups(name), keys.Applied(name), keys.ServerReport(name), keys.Home(name))
	if err := checkConfig(ctx, leader.state, name, token); err != nil {
		return err
	}
	err = bucket.ForEach(ctx, len(doomed), parallel, func(ctx context.Context, i int) error {
		return store.Delete(ctx, doomed[i])
	})
	if err != nil {
		return err
	}
	if err := leader.readLock(ctx); err != nil {
		return err
	}
	if leader.leaderless() {
		if err := store.Delete(ctx, keys.Leader(name)); err != nil {
			return err
		}
	}
	if err := checkConfig(ctx, leader.state, name, token); err != nil {
		return err
	}
	return leader.state.DeleteConfig(ctx, name)
}

// checkConfig returns an error unless the shard's configuration still has the version with the given token. Stores have
// no conditional delete, so call checkConfig right before a delete.
func checkConfig(ctx context.Context, state *clusterstate.State, name string, token objstore.Token) error {
	_, now, err := state.ReadConfig(ctx, name)
	if err != nil {
		return err
	}
	if now != token {
		return fmt.Errorf("the configuration was changed meanwhile: version %s is there, not %s", now, token)
	}
	return nil
}
