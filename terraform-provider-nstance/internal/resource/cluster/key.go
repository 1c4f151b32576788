package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

// keySource returns the source in the attribute encryption_key. ok is false if the attribute is not set or not yet
// known.
func (m model) keySource(ctx context.Context) (source config.KeySource, ok bool) {
	var key struct {
		Provider types.String `tfsdk:"provider"`
		Source   types.String `tfsdk:"source"`
	}
	if m.EncryptionKey.IsNull() || m.EncryptionKey.IsUnknown() ||
		m.EncryptionKey.As(ctx, &key, basetypes.ObjectAsOptions{}).HasError() ||
		key.Provider.IsUnknown() || key.Source.IsUnknown() {
		return config.KeySource{}, false
	}
	return config.KeySource{Provider: key.Provider.ValueString(), Source: key.Source.ValueString()}, true
}

// keyChanges reports whether the secrets must be sealed again, because the source of the key or its version changed.
func keyChanges(before, after model) bool {
	return !after.EncryptionKey.Equal(before.EncryptionKey) ||
		!after.EncryptionKeyWOVersion.IsNull() && !after.EncryptionKeyWOVersion.Equal(before.EncryptionKeyWOVersion)
}

// ring returns the encryption keys of the provider's settings. If the resource itself sets a key, this key becomes the
// current one, and the others are old.
func (r *Resource) ring(ctx context.Context, config model) (keyring.Ring, error) {
	ring, err := r.Bucket.Ring(ctx)
	if err != nil {
		return keyring.Ring{}, err
	}
	var key envelope.Key
	if source, ok := config.keySource(ctx); ok {
		key, err = r.Bucket.Key(ctx, source)
	} else if !config.EncryptionKeyWO.IsNull() {
		if key, err = keyring.Parse([]byte(config.EncryptionKeyWO.ValueString())); err != nil {
			err = fmt.Errorf("encryption_key_wo: %w", err)
		}
	} else {
		return ring, nil
	}
	return keyring.Ring{Current: key, Old: slices.DeleteFunc(slices.Clone(ring.Keys()), key.Equal)}, err
}

// reseal seals all secrets of the cluster with the encryption key in config. It opens them with the keys in the
// provider's settings, and with the key from the source in `before`. `before` is the Terraform state.
func (r *Resource) reseal(ctx context.Context, before, config model) error {
	ring, err := r.ring(ctx, config)
	if err != nil {
		return err
	}
	if ring.Current.IsZero() {
		return secretstore.ErrNoKey
	}
	var errs []error
	if source, ok := before.keySource(ctx); ok {
		old, err := r.Bucket.Key(ctx, source)
		if err == nil {
			ring.Old = append(ring.Old, old)
		}
		errs = append(errs, err)
	}
	secrets, err := r.Bucket.SealedSecrets(ctx, config.ID.ValueString(), ring)
	if err != nil {
		return err
	}
	names, err := secrets.List(ctx)
	if err != nil {
		return err
	}
	failed := false
	for _, name := range names {
		if _, err := secrets.Reseal(ctx, name); err != nil {
			errs, failed = append(errs, err), true
		}
	}
	if !failed {
		return nil // Then the old key was not needed.
	}
	return errors.Join(errs...)
}

// checkKeyChange refuses a change of the encryption key if the apply may be unable to read the key that seals the
// secrets now. Other resources may overwrite a stored key earlier in the apply. If the plan has no permission to read a
// key, checkKeyChange only warns.
func (r *Resource) checkKeyChange(ctx context.Context, before, config model) (diags diag.Diagnostics) {
	lasting, err := r.lastingKeys(ctx, before, config)
	if errors.Is(err, bucket.ErrUnknown) || slices.ContainsFunc(lasting, func(key envelope.Key) bool {
		return key.ID().String() == before.EncryptionKeyID.ValueString()
	}) {
		return
	}
	if errors.Is(err, keyring.ErrDenied) {
		// The apply may have the permission that the plan lacks, so this is only a warning.
		diags.Append(diagnostic.Failure{
			What:  "The change of the encryption key of cluster " + before.ID.ValueString() + " is not checked",
			Where: r.Bucket.SecretPlace(secretstore.CAKey), Why: err,
			Do: "Make sure that apply can read the present key: from the source that it has now, or from the " +
				"provider's old_encryption_keys.",
		}.Warning())
		return diags
	}
	diags.Append(diagnostic.Failure{
		What:  "Cannot change the encryption key of cluster " + before.ID.ValueString(),
		Where: r.Bucket.Place(keys.ClusterSecret(secretstore.CAKey)),
		Why: errors.Join(
			fmt.Errorf("it is sealed with the key %s, and no key that can be read during apply is that key",
				before.EncryptionKeyID.ValueString()), err),
		Do: "Nothing was changed. Write the present key to a file, add it to the provider's old_encryption_keys, " +
			"such " +
			`as old_encryption_keys = [{ provider = "file", source = "old.key" }], and plan again. Or undo the ` +
			"change of the key.",
	}.Error())
	return diags
}

// lastingKeys returns the keys that can be read now and will certainly be readable during the apply. It leaves out
// encryption_key_wo while the secrets are sealed with it, because the apply may overwrite it. The error names the
// sources that cannot be read.
func (r *Resource) lastingKeys(ctx context.Context, before, config model) (lasting []envelope.Key, err error) {
	ring, err := r.Bucket.Ring(ctx)
	errs := []error{err}
	lasting = ring.Old
	versioned := false
	if text := config.EncryptionKeyWO; !text.IsNull() {
		key, err := keyring.Parse([]byte(text.ValueString()))
		versioned = text.IsUnknown() || err != nil || key.ID().String() == before.EncryptionKeyID.ValueString()
	}
	if !versioned {
		lasting = ring.Keys()
	}
	for _, m := range []model{before, config} {
		if source, ok := m.keySource(ctx); ok {
			key, err := r.Bucket.Key(ctx, source)
			if err == nil {
				lasting = append(lasting, key)
			}
			errs = append(errs, err)
		}
	}
	return lasting, errors.Join(errs...)
}

// longestEarlyRenewal is the largest value of ca_early_renewal: half of the life of a CA. With a larger value, a new CA
// would soon be due for replacement again.
const longestEarlyRenewal = 5 * 365 * 24 * time.Hour

// checkEarlyRenewal checks a value of ca_early_renewal.
func checkEarlyRenewal(text string) error {
	early, err := config.ParseDuration(text)
	if err == nil && (early.D() <= 0 || early.D() > longestEarlyRenewal) {
		err = errors.New("it is not between 0 and 1825d, half of the life of a CA")
	}
	return err
}

// rotationDue reports whether an apply must begin or continue the replacement of the CA.
func rotationDue(plan, state model, now time.Time) bool {
	if plan.CAEarlyRenewal.IsNull() || plan.CAEarlyRenewal.IsUnknown() {
		return false
	}
	early, err := config.ParseDuration(plan.CAEarlyRenewal.ValueString())
	if err != nil {
		return false // the attribute's validator reports it
	}
	end, err := time.Parse(time.RFC3339, state.CANotAfter.ValueString())
	return state.CARotating.ValueBool() || err == nil && !now.Before(end.Add(-early.D()))
}

// markRotation sets the attributes that a CA rotation changes to unknown. So Terraform plans an update.
func (m *model) markRotation() {
	m.CARotating = types.BoolUnknown()
	for _, text := range []*types.String{&m.CACertificatePEM, &m.CAFingerprint, &m.CANotAfter, &m.CAKeyID} {
		*text = types.StringUnknown()
	}
}

// rotateCA takes all steps of a CA rotation that are possible now. If it must wait for clients before the next step, it
// returns a warning that names these clients.
func (r *Resource) rotateCA(ctx context.Context, state *clusterstate.State, cluster string) (diags diag.Diagnostics,
	err error) {
	var following clusterstate.Following
	rotation, err := state.RotateCA(ctx, func(ctx context.Context, _ clusterstate.Rotation,
		followers *clusterstate.Followers) (done bool, err error) {
		following, err = followers.Check(ctx)
		return following.Done(), err
	})
	if err != nil || rotation.Step == clusterstate.RotationNone {
		return nil, err
	}
	diags.Append(diagnostic.Failure{
		What:  fmt.Sprintf("The CA of cluster %s is being replaced", cluster),
		Where: r.Bucket.Place(keys.ClusterCA()),
		Why: fmt.Errorf("the new CA is %s; the next step waits until these follow: %s", rotation.Step,
			describeFollowing(following)),
		Do: "Apply again in ten minutes, until ca_rotating is false. The cluster works with both CAs until then.",
	}.Warning())
	return diags, nil
}

// describeFollowing lists the leaders, instances and operators that have not yet completed the present step of a CA
// rotation.
func describeFollowing(f clusterstate.Following) string {
	var waiting []string
	for _, shard := range f.Shards {
		if !shard.Leader {
			waiting = append(waiting, "the leader of shard "+shard.Shard)
		}
		if n := len(shard.Behind); n > 0 {
			waiting = append(waiting, fmt.Sprintf("%d of %d instances of shard %s", n, shard.Instances, shard.Shard))
		}
	}
	for _, operator := range f.Operators {
		waiting = append(waiting, fmt.Sprintf("operator %s of tenant %s", operator.ID, operator.Tenant))
	}
	if !f.FilesUntil.IsZero() {
		waiting = append(waiting, "certificates in files of instances, until "+f.FilesUntil.Format(time.RFC3339))
	}
	return strings.Join(waiting, ", ")
}
