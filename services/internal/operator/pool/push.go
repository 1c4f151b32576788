package pool

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Field names in [v1beta1.OwnedFieldsAnnotation].
const (
	instanceTypeField = "instanceType"
	varsField         = "vars"
)

// upsertRequest returns the request that makes a shard's group match a spec, nil if it matches already. group is nil if
// the shard does not have the group. owned are the fields of a static group that Kubernetes sets or has set before.
func upsertRequest(want v1beta1.NstanceShardGroupSpec, owned []string,
	group *nstancev1.GroupStatus) *nstancev1.UpsertGroupRequest {
	size, present := int(wantedSize(want)), int(group.GetSize())
	spec := config.GroupSpec{Size: &size, Template: want.Template, InstanceType: want.InstanceType,
		SubnetPool: want.SubnetPool, Vars: want.Vars}
	var have config.GroupSpec
	switch {
	case group == nil, group.GetDeleting() && !group.GetIsStatic():
		// The shard has no such group, or is deleting a dynamic one. So the request must contain the complete
		// definition.
	case group.GetIsStatic():
		spec.Template, spec.SubnetPool = "", ""
		have = staticSettings(want, owned, group)
	default:
		// Kubernetes is the source of these settings of a dynamic group. Settings that come from the group's template
		// are not differences.
		own := ownSpec(group)
		have = config.GroupSpec{Size: &present, Template: group.GetTemplate(), InstanceType: own.InstanceType,
			SubnetPool: own.SubnetPool, Vars: own.Vars}
	}
	patch, _ := config.PatchBetween(have, spec) // fails only for arguments
	if group != nil && patch.Empty() {
		return nil
	}
	return &nstancev1.UpsertGroupRequest{Group: want.Group, Patch: patch.JSON()}
}

func wantedSize(spec v1beta1.NstanceShardGroupSpec) uint32 {
	return uint32(max(ptr.Deref(spec.Size, 0), 0))
}

// staticSettings returns the settings of a static group from which a spec may differ. The shard's configuration defines
// the group, and the spec overrides its settings. If a setting is no longer in the spec, its override is removed only
// if Kubernetes has set it. Overrides from other clients stay.
func staticSettings(want v1beta1.NstanceShardGroupSpec, owned []string, group *nstancev1.GroupStatus) config.GroupSpec {
	own, present := ownSpec(group), int(group.GetSize())
	have := config.GroupSpec{Size: &present, Vars: map[string]string{}}
	switch {
	case want.InstanceType != "":
		have.InstanceType = group.GetInstanceType()
	case slices.Contains(owned, instanceTypeField):
		have.InstanceType = own.InstanceType
	}
	for name := range want.Vars {
		if value, ok := group.GetVars()[name]; ok {
			have.Vars[name] = value
		}
	}
	for name, value := range own.Vars {
		if _, wanted := want.Vars[name]; !wanted && slices.Contains(owned, varsField) {
			have.Vars[name] = value
		}
	}
	return have
}

// ownSpec returns the settings of the group itself. For a static group, these are the group's override.
func ownSpec(group *nstancev1.GroupStatus) config.GroupSpec {
	var spec config.GroupSpec
	if text := group.GetSpecJson(); text != "" {
		_ = json.Unmarshal([]byte(text), &spec) // a newer server may have values that are unknown here
	}
	return spec
}

// ownedFields returns the fields listed in [v1beta1.OwnedFieldsAnnotation].
func ownedFields(group *v1beta1.NstanceShardGroup) []string {
	text := group.Annotations[v1beta1.OwnedFieldsAnnotation]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// rememberOwnedFields adds to [v1beta1.OwnedFieldsAnnotation] the fields that are set in the spec.
func rememberOwnedFields(group *v1beta1.NstanceShardGroup) {
	fields := ownedFields(group)
	for _, field := range []struct {
		name  string
		isSet bool
	}{{instanceTypeField, group.Spec.InstanceType != ""}, {varsField, len(group.Spec.Vars) > 0}} {
		if field.isSet && !slices.Contains(fields, field.name) {
			fields = append(fields, field.name)
		}
	}
	if len(fields) == 0 {
		return
	}
	if group.Annotations == nil {
		group.Annotations = map[string]string{}
	}
	slices.Sort(fields)
	group.Annotations[v1beta1.OwnedFieldsAnnotation] = strings.Join(fields, ",")
}
