package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

// parallel is the maximum number of objects that are deleted at the same time.
const parallel = 32

// Delete implements resource.Resource. It refuses to remove the CA from shards that have a configuration or instances,
// unless `force_destroy` is set.
func (r *Resource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m model
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	what := "Cannot destroy cluster " + m.ID.ValueString()
	state, err := r.Bucket.Cluster(ctx, m.ID.ValueString(), keyring.Ring{})
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterCA(), err))
		return
	}
	if !m.ForceDestroy.ValueBool() {
		if diagnose := r.inUse(ctx, state, what); diagnose != nil {
			resp.Diagnostics.Append(diagnose)
			return
		}
	}
	if err := r.remove(ctx, state, m.ID.ValueString(), m.CAFingerprint.ValueString()); err != nil {
		resp.Diagnostics.Append(r.failure(what, "cluster/", err))
	}
}

// inUse returns an error if a shard has a configuration in the bucket, or a record of an instance.
func (r *Resource) inUse(ctx context.Context, state *clusterstate.State, what string) diag.Diagnostic {
	shards, err := state.Shards(ctx)
	if err != nil {
		return r.failure(what, keys.ConfigPrefix(), err)
	}
	if len(shards) > 0 {
		return diagnostic.Failure{
			What: what, Where: r.Bucket.Place(keys.Config(shards[0])),
			Why: fmt.Errorf("these shards have a configuration: %s: without the CA and the secrets their servers and "+
				"agents cannot work", strings.Join(shards, ", ")),
			Do: "Nothing was changed. Destroy the shards first (let every nstance_shard depend on the " +
				"nstance_cluster). " +
				"If another address in Terraform manages the cluster now, keep it: write a moved block from this " +
				"address to that one, or a removed block with destroy = false. To give up the shards, set " +
				"force_destroy = true, apply, and destroy again.",
		}.Error()
	}
	instances, err := state.ListAllInstances(ctx)
	if err != nil {
		return r.failure(what, keys.ShardsPrefix(), err)
	}
	if len(instances) == 0 {
		return nil
	}
	return diagnostic.Failure{
		What: what, Where: r.Bucket.Place(keys.InstancePrefix(instances[0].Shard)),
		Why: fmt.Errorf(
			"there are records of %d instances, such as %s in shard %s: without the CA their agents cannot connect",
			len(instances), instances[0].ID, instances[0].Shard),
		Do: "Destroy the cluster's shards first (let every nstance_shard depend on the nstance_cluster). If the " +
			"instances are gone or should be given up, set force_destroy = true, " +
			"apply, and destroy again.",
	}.Error()
}

// warnOfDestroy returns a warning that names what a destroy of the cluster removes although other resources and
// programs may use it. It returns nil if there is nothing of that kind, or if the bucket cannot be read.
func (r *Resource) warnOfDestroy(ctx context.Context, m model) (warning diag.Diagnostic) {
	r.Bucket.Glance(ctx, func(ctx context.Context) {
		state, err := r.Bucket.Shard(ctx, m.ID.ValueString(), "")
		if err != nil {
			return
		}
		var lines []string
		if secrets := r.userSecrets(ctx, m.ID.ValueString()); len(secrets) > 0 {
			lines = append(lines, "secrets: "+strings.Join(secrets, ", "))
		}
		if operators := r.operators(ctx, state); len(operators) > 0 {
			lines = append(lines, fmt.Sprintf("%d operators: %s", len(operators), few(operators)))
		}
		switch shards, err := state.Shards(ctx); {
		case err != nil || len(shards) == 0:
		case m.ForceDestroy.ValueBool():
			lines = append(lines, "the CA of these shards: "+few(shards))
		default:
			lines = append(lines, "nothing while these shards have a configuration: "+few(shards))
		}
		if len(lines) == 0 {
			return
		}
		warning = diagnostic.Failure{
			What:  "The destroy of cluster " + m.ID.ValueString() + " removes what others may use",
			Where: r.Bucket.Place("cluster/"),
			Why:   errors.New("besides the CA it removes\n* " + strings.Join(lines, "\n* ")),
			Do: "Go on if nothing needs them any more. If only the address in Terraform changed, write a moved block " +
				"instead.",
		}.Warning()
	})
	return warning
}

// few joins the first names and counts the others.
func few(names []string) string {
	const most = 20
	if more := len(names) - most; more > 0 {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// userSecrets returns the names of the secrets that a destroy removes and that are not the cluster's own, sorted.
func (r *Resource) userSecrets(ctx context.Context, cluster string) []string {
	if !r.Bucket.Sealed() {
		return nil // a service keeps them
	}
	secrets, err := r.Bucket.SealedSecrets(ctx, cluster, keyring.Ring{})
	if err != nil {
		return nil
	}
	names, err := secrets.List(ctx)
	if err != nil {
		return nil
	}
	own := []string{secretstore.CAKey, secretstore.NextCAKey, secretstore.NonceKey, secretstore.WorkloadCAKey}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(own, name) })
	slices.Sort(names)
	return names
}

// operators returns the operators that are not removed, as tenant/ID.
func (r *Resource) operators(ctx context.Context, state *clusterstate.State) (names []string) {
	store, err := r.Bucket.Store(ctx)
	if err != nil {
		return nil
	}
	entries, err := store.List(ctx, keys.OperatorPrefix())
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		key, err := keys.Parse(entry.Key)
		if err != nil {
			continue
		}
		id, err := ident.ParseStorageID(key.ID)
		if err != nil {
			continue
		}
		if rec, _, err := state.UnverifiedOperator(ctx, key.Tenant, id); err != nil || rec.RemovedAt.IsZero() {
			names = append(names, key.Tenant+"/"+id.String())
		}
	}
	return names
}

// remove deletes the operators, the secrets, the keys of agents, the journal and the CA of the cluster. It deletes
// the CA's key last: after an interruption, the CA's certificate can still be derived from that key.
func (r *Resource) remove(ctx context.Context, state *clusterstate.State, cluster, fingerprint string) error {
	store, err := r.Bucket.Store(ctx)
	if err != nil {
		return err
	}
	bundle, err := state.UnverifiedCABundle(ctx) // it only shows whether this is the same cluster
	known := slices.ContainsFunc(bundle, func(cert *x509.Certificate) bool {
		return authority.Fingerprint(cert) == fingerprint
	})
	switch {
	case errors.Is(err, objstore.ErrNotFound):
	case err != nil:
		return err
	case !known:
		return fmt.Errorf("%w: the CA there is not %s", clusterstate.ErrForeign, fingerprint)
	}
	prefixes := []string{keys.OperatorPrefix(), keys.AgentKeyPrefix(), keys.ClusterJournalPrefix(),
		keys.ProbePrefix(keys.ClusterProbeShard)}
	if r.Bucket.Sealed() {
		prefixes = append(prefixes, keys.SecretPrefix())
	}
	caKey := keys.ClusterSecret(secretstore.CAKey)
	for _, prefix := range prefixes {
		entries, err := store.List(ctx, prefix)
		if err != nil {
			return err
		}
		// A cluster has one key for each registration and each renewal.
		err = bucket.ForEach(ctx, len(entries), parallel, func(ctx context.Context, i int) error {
			if entries[i].Key == caKey {
				return nil
			}
			return store.Delete(ctx, entries[i].Key)
		})
		if err != nil {
			return err
		}
	}
	if r.Bucket.Sealed() {
		if err := store.Delete(ctx, keys.ClusterCA()); err != nil {
			return err
		}
		return store.Delete(ctx, caKey)
	}
	// A service has secrets of other programs under the same prefix, so only the cluster's own are deleted.
	secrets, err := r.Bucket.Secrets(ctx, cluster, keyring.Ring{})
	if err != nil {
		return err
	}
	for _, name := range []string{secretstore.NonceKey, secretstore.WorkloadCAKey, secretstore.NextCAKey} {
		if err := secrets.Delete(ctx, name); err != nil {
			return err
		}
	}
	if err := store.Delete(ctx, keys.ClusterCA()); err != nil {
		return err
	}
	return secrets.Delete(ctx, secretstore.CAKey)
}
