package pool

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// upsertRequest returns the request that makes a shard's group match a spec, nil if it matches already. group is nil if
// the shard does not have the group. owned are the fields in [v1beta1.OwnedFieldsAnnotation].
//
// The request changes the group's own settings, which for a static group are its override. It sets the fields that
// spec.config has, and removes those that spec.config once had. The settings of other clients stay.
func upsertRequest(want v1beta1.NstanceShardGroupSpec, owned map[string]any,
	group *nstancev1.GroupStatus) *nstancev1.UpsertGroupRequest {
	settings, have, next := configTree(want.Config), map[string]any{}, map[string]any{}
	// If the shard has no such group, or is deleting a dynamic one, the request must contain the complete definition.
	if group != nil && (group.GetIsStatic() || !group.GetDeleting()) {
		have = ownSettings(group)
		have["size"] = group.GetSize()
		next = without(ownSettings(group), owned, settings)
	}
	if group.GetIsStatic() {
		settings = overrides(config.MergePatch(settings, canonical(settings)), have, parseTree(group.GetMergedJson()))
	}
	settings["size"] = wantedSize(want)
	patch := config.Difference(canonical(have), canonical(config.MergePatch(next, settings)))
	if len(patch) == 0 {
		return nil
	}
	return &nstancev1.UpsertGroupRequest{Group: want.Group, Patch: treeJSON(patch)}
}

func wantedSize(spec v1beta1.NstanceShardGroupSpec) uint32 {
	return uint32(max(ptr.Deref(spec.Size, 0), 0))
}

// ownSettings returns the settings of the group itself. For a static group, these are the group's override.
func ownSettings(group *nstancev1.GroupStatus) map[string]any {
	if group.GetIsStatic() {
		return parseTree(config.PatchOf(ownSpec(group)).JSON())
	}
	return parseTree(group.GetSpecJson())
}

func ownSpec(group *nstancev1.GroupStatus) config.GroupSpec {
	var spec config.GroupSpec
	if text := group.GetSpecJson(); text != "" {
		_ = json.Unmarshal([]byte(text), &spec) // a newer server may have values that are unknown here
	}
	if group.GetIsStatic() {
		return spec.Override()
	}
	return spec
}

// ownedFields returns the JSON merge patch in [v1beta1.OwnedFieldsAnnotation].
func ownedFields(group *v1beta1.NstanceShardGroup) map[string]any {
	return removal(parseTree(group.Annotations[v1beta1.OwnedFieldsAnnotation]))
}

// rememberOwnedFields adds to [v1beta1.OwnedFieldsAnnotation] the fields that are set in spec.config.
func rememberOwnedFields(group *v1beta1.NstanceShardGroup) {
	fields := union(ownedFields(group), removal(configTree(group.Spec.Config)))
	if len(fields) == 0 {
		return
	}
	metav1.SetMetaDataAnnotation(&group.ObjectMeta, v1beta1.OwnedFieldsAnnotation, treeJSON(fields))
}
