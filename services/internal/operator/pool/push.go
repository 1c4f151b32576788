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

// Fields of [v1beta1.OwnedFieldsAnnotation].
const (
	instanceTypeField = "instanceType"
	varsField         = "vars"
)

// push returns what the shard has to be told so that its group is as wanted; nil when it is. group is nil when the
// shard has none. owned are the fields of a static group that Kubernetes has ever said something of.
func push(want v1beta1.NstanceShardGroupSpec, owned []string,
	group *nstancev1.GroupStatus) *nstancev1.UpsertGroupRequest {
	request := &nstancev1.UpsertGroupRequest{Group: want.Group}
	switch {
	case group == nil, group.GetDeleting() && !group.GetIsStatic():
		// What is on its way out is defined anew.
		request.Size, request.Template, request.InstanceType, request.SubnetPool = ptr.To(size(want)), want.Template,
			want.InstanceType, want.SubnetPool
		request.Vars, request.SetVars = maps.Clone(want.Vars), len(want.Vars) > 0
		return request
	case group.GetIsStatic():
		pushStatic(request, want, owned, group)
	default:
		pushDynamic(request, want, group)
	}
	changed := group.GetSize() != size(want)
	if changed {
		request.Size = ptr.To(size(want))
	}
	if !changed && request.Template == "" && request.InstanceType == "" && request.SubnetPool == "" &&
		!request.SetVars && len(request.ClearFields) == 0 {
		return nil
	}
	return request
}

func size(spec v1beta1.NstanceShardGroupSpec) uint32 { return uint32(max(ptr.Deref(spec.Size, 0), 0)) }

// pushDynamic: Kubernetes is the source of all that the group says by itself. What it takes from its template is no
// difference.
func pushDynamic(request *nstancev1.UpsertGroupRequest, want v1beta1.NstanceShardGroupSpec,
	group *nstancev1.GroupStatus) {
	if group.GetTemplate() != want.Template {
		request.Template = want.Template
	}
	own, known := ownSpec(group)
	if !known {
		// Then only what would show can be compared, and nothing can be cleared.
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
	if known && !maps.Equal(own.Vars, want.Vars) || !known && !within(want.Vars, own.Vars) {
		request.Vars, request.SetVars = maps.Clone(want.Vars), true
	}
}

// pushStatic: the shard's configuration says what the group is. Kubernetes changes what it says something of, and takes
// that back when it no longer does; what somebody else has overridden stays.
func pushStatic(request *nstancev1.UpsertGroupRequest, want v1beta1.NstanceShardGroupSpec, owned []string,
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
	removed := known && slices.Contains(owned, varsField) && !within(own.Vars, want.Vars)
	switch {
	case removed && len(want.Vars) == 0:
		request.ClearFields = append(request.ClearFields, "vars")
	case removed, !within(want.Vars, group.GetVars()):
		request.Vars, request.SetVars = maps.Clone(want.Vars), true
	}
}

// within reports whether all of some vars are among others, with the same values.
func within(vars, others map[string]string) bool {
	for name, value := range vars {
		if other, ok := others[name]; !ok || other != value {
			return false
		}
	}
	return true
}

// ownSpec is what a group says by itself: of a static one, its override. false: the server did not say, or not in a
// form that we know.
func ownSpec(group *nstancev1.GroupStatus) (config.GroupSpec, bool) {
	if group.GetSpecJson() == "" {
		// A static group without an override has nothing of its own; a dynamic one always has.
		return config.GroupSpec{}, group.GetIsStatic()
	}
	var spec config.GroupSpec
	if err := json.Unmarshal([]byte(group.GetSpecJson()), &spec); err != nil {
		return config.GroupSpec{}, false
	}
	return spec, true
}

// owned reads the annotation.
func owned(group *v1beta1.NstanceShardGroup) []string {
	text := group.Annotations[v1beta1.OwnedFieldsAnnotation]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// remember adds the fields that a spec says something of to those that the annotation names.
func remember(group *v1beta1.NstanceShardGroup) {
	fields := owned(group)
	for _, field := range []struct {
		name string
		said bool
	}{{instanceTypeField, group.Spec.InstanceType != ""}, {varsField, len(group.Spec.Vars) > 0}} {
		if field.said && !slices.Contains(fields, field.name) {
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
