package pool

import (
	"encoding/json"
	"maps"
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// configTree returns the settings in the field "config" of a spec as a JSON object. A member that is null counts as
// absent.
func configTree(settings *apiextensionsv1.JSON) map[string]any {
	if settings == nil {
		return map[string]any{}
	}
	return config.MergePatch(map[string]any{}, parseTree(string(settings.Raw)))
}

// instanceTypeOf returns the instance type in settings, "" if there is none.
func instanceTypeOf(settings *apiextensionsv1.JSON) string {
	text, _ := configTree(settings)["instance_type"].(string)
	return text
}

// treeConfig is the inverse of [configTree]. It returns nil if there are no settings.
func treeConfig(settings map[string]any) *apiextensionsv1.JSON {
	if len(settings) == 0 {
		return nil
	}
	return &apiextensionsv1.JSON{Raw: []byte(treeJSON(settings))}
}

// parseTree parses a JSON object. It returns an empty object if the text is not a JSON object.
func parseTree(text string) map[string]any {
	var tree map[string]any
	if json.Unmarshal([]byte(text), &tree) != nil || tree == nil {
		return map[string]any{}
	}
	return tree
}

func treeJSON(tree map[string]any) string {
	text, err := json.Marshal(tree)
	if err != nil {
		panic("pool: " + err.Error()) // not reached: the tree came from JSON
	}
	return string(text)
}

// canonical returns settings in the spelling of the servers, such as "1m" for "60s", without those that are equal to
// not being set. A setting that cannot be decoded stays as it is: the shard decides about it.
func canonical(settings map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range settings {
		one := map[string]any{name: value}
		if patch, problems := config.ParsePatch("", []byte(treeJSON(one))); len(problems) == 0 {
			if spec, err := patch.Apply(config.GroupSpec{}); err == nil {
				one = parseTree(config.PatchOf(spec).JSON())
			}
		}
		maps.Copy(out, one)
	}
	return out
}

// overrides returns the settings that the override of a static group must have: those that own, the override, has
// already, and those that differ from the settings in force.
func overrides(settings, own, inForce map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range settings {
		have, overridden := own[name]
		object, isObject := value.(map[string]any)
		if below, both := inForce[name].(map[string]any); isObject && both {
			ownObject, _ := have.(map[string]any)
			if needed := overrides(object, ownObject, below); len(needed) > 0 {
				out[name] = needed
			}
		} else if overridden || !reflect.DeepEqual(value, inForce[name]) {
			out[name] = value
		}
	}
	return out
}

// without returns own without the owned fields that are not wanted, and without the objects that lose their last field
// by that. own is not changed.
func without(own, owned, wanted map[string]any) map[string]any {
	out := maps.Clone(own)
	for name, field := range owned {
		value, has := own[name]
		want, isWanted := wanted[name]
		object, isObject := value.(map[string]any)
		fields, _ := field.(map[string]any)
		switch {
		case !has:
		case isObject && fields != nil:
			wantedFields, _ := want.(map[string]any)
			out[name] = without(object, fields, wantedFields)
			if left, _ := out[name].(map[string]any); len(left) == 0 && (len(object) > 0 || !isWanted) {
				delete(out, name)
			}
		case isWanted:
		case isObject && len(object) > 0:
			// Other clients have set these fields. spec.config had an empty object.
		default:
			delete(out, name)
		}
	}
	return out
}

// removal returns the JSON merge patch that removes the fields of an object.
func removal(fields map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range fields {
		out[name] = nil
		if below, _ := value.(map[string]any); len(below) > 0 {
			out[name] = removal(below)
		}
	}
	return out
}

// union returns the JSON merge patch that removes what two such patches remove.
func union(a, b map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, a)
	for name, value := range b {
		one, _ := a[name].(map[string]any)
		other, _ := value.(map[string]any)
		if out[name] = nil; one != nil || other != nil {
			out[name] = union(one, other)
		}
	}
	return out
}
