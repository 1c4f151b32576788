package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

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
