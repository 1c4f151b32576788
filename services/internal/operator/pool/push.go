package pool

import (
	"encoding/json"
	"maps"
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
	request := &nstancev1.UpsertGroupRequest{Group: want.Group}
	switch {
	case group == nil, group.GetDeleting() && !group.GetIsStatic():
		// The shard has no such group, or is deleting a dynamic one. So the request must contain the complete
		// definition.
		request.Size, request.Template, request.InstanceType, request.SubnetPool = ptr.To(wantedSize(want)),
			want.Template,
			want.InstanceType, want.SubnetPool
		request.Vars, request.SetVars = maps.Clone(want.Vars), len(want.Vars) > 0
		return request
	case group.GetIsStatic():
		addStaticDifferences(request, want, owned, group)
	default:
		addDynamicDifferences(request, want, group)
	}
	changed := group.GetSize() != wantedSize(want)
	if changed {
		request.Size = ptr.To(wantedSize(want))
	}
	if !changed && request.Template == "" && request.InstanceType == "" && request.SubnetPool == "" &&
		!request.SetVars && len(request.ClearFields) == 0 {
		return nil
	}
	return request
}

func wantedSize(spec v1beta1.NstanceShardGroupSpec) uint32 {
	return uint32(max(ptr.Deref(spec.Size, 0), 0))
}

// addDynamicDifferences adds to the request the settings in which a dynamic group differs from the spec. Kubernetes is
// the source of all the group's own settings. Settings that come from the group's template are not differences.
func addDynamicDifferences(request *nstancev1.UpsertGroupRequest, want v1beta1.NstanceShardGroupSpec,
	group *nstancev1.GroupStatus) {
	if group.GetTemplate() != want.Template {
		request.Template = want.Template
	}
	own, known := ownSpec(group)
	if !known {
		// The server did not send the group's own settings. So compare the settings in force, some of which may come
		// from the group's template. In this case no setting can be cleared.
		own = config.GroupSpec{InstanceType: group.GetInstanceType(), SubnetPool: group.GetSubnetPool(),
			Vars: group.GetVars()}
	}
	for _, field := range []struct {
		name      string
		own, want string
		set       *string
	}{{"instance_type", own.InstanceType, want.InstanceType, &request.InstanceType},
		{"subnet_pool", own.SubnetPool, want.SubnetPool, &request.SubnetPool}} {
		switch {
		case field.own == field.want:
		case field.want != "":
			*field.set = field.want
		case known:
			request.ClearFields = append(request.ClearFields, field.name)
		}
	}
	if known && !maps.Equal(own.Vars, want.Vars) || !known && !isSubset(want.Vars, own.Vars) {
		request.Vars, request.SetVars = maps.Clone(want.Vars), true
	}
}

// addStaticDifferences adds to the request the settings in which a static group differs from the spec. The shard's
// configuration defines the group, and the spec overrides its settings. If a setting is no longer in the spec, its
// override is cleared only if Kubernetes has set it. Overrides from other clients stay.
func addStaticDifferences(request *nstancev1.UpsertGroupRequest, want v1beta1.NstanceShardGroupSpec, owned []string,
	group *nstancev1.GroupStatus) {
	own, known := ownSpec(group)
	switch {
	case want.InstanceType != "":
		if want.InstanceType != group.GetInstanceType() {
			request.InstanceType = want.InstanceType
		}
	case known && own.InstanceType != "" && slices.Contains(owned, instanceTypeField):
		request.ClearFields = append(request.ClearFields, "instance_type")
	}
	removed := known && slices.Contains(owned, varsField) && !isSubset(own.Vars, want.Vars)
	switch {
	case removed && len(want.Vars) == 0:
		request.ClearFields = append(request.ClearFields, "vars")
	case removed, !isSubset(want.Vars, group.GetVars()):
		request.Vars, request.SetVars = maps.Clone(want.Vars), true
	}
}

// isSubset reports whether the map "others" contains all entries of the map "vars".
func isSubset(vars, others map[string]string) bool {
	for name, value := range vars {
		if other, ok := others[name]; !ok || other != value {
			return false
		}
	}
	return true
}

// ownSpec returns the settings of the group itself. For a static group, these are the group's override. ownSpec returns
// false if the server did not send the settings or if they cannot be decoded.
func ownSpec(group *nstancev1.GroupStatus) (config.GroupSpec, bool) {
	if group.GetSpecJson() == "" {
		// A dynamic group always has settings of its own. A static group without an override has no settings of its
		// own.
		return config.GroupSpec{}, group.GetIsStatic()
	}
	var spec config.GroupSpec
	if err := json.Unmarshal([]byte(group.GetSpecJson()), &spec); err != nil {
		return config.GroupSpec{}, false
	}
	return spec, true
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
