package group

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/document"
)

// reading is the attribute spec of a plan, state or configuration.
type reading struct {
	spec config.GroupSpec
	// known means that Terraform knows every value.
	known    bool
	problems config.Problems
}

// readSpec decodes the attribute spec. It finds all mistakes in the known part that can be found without the
// configuration of the shard. The server validates the rest.
func readSpec(attributes map[string]tftypes.Value) reading {
	v := attributes["spec"]
	if !v.IsKnown() {
		return reading{}
	}
	text, unknown, err := document.Encode(v)
	if err != nil {
		return reading{problems: config.Problems{{Message: err.Error()}}}
	}
	r := reading{known: len(unknown) == 0}
	r.spec, r.problems = config.ParseDynamic(text, unknown...)
	return r
}

// diagnostics returns an error for each problem of the spec, with its path.
func (r reading) diagnostics() (out diag.Diagnostics) {
	for _, p := range r.problems.Errors() {
		detail := "spec: " + p.Message
		if p.Path != "" {
			detail = "spec." + p.Path + ": " + p.Message
		}
		if p.Hint != "" {
			detail += " (" + p.Hint + ")"
		}
		out.AddAttributeError(path.Root("spec"), "Invalid group", detail+".")
	}
	return out
}

// drifted returns the attribute spec for a group that another client has changed. Fields that mean the same as before
// keep their form.
func drifted(before tftypes.Value, have, now config.GroupSpec) (tftypes.Value, error) {
	encoded, err := json.Marshal(now)
	if err != nil {
		return tftypes.Value{}, err
	}
	var tree map[string]any
	if err := json.Unmarshal(encoded, &tree); err != nil {
		return tftypes.Value{}, err
	}
	var members, earlier map[string]tftypes.Value
	if err := document.Decode(tree).As(&members); err != nil {
		return tftypes.Value{}, err
	}
	if before.IsKnown() && !before.IsNull() {
		if err := before.As(&earlier); err != nil {
			return tftypes.Value{}, err
		}
	}
	members = maps.Clone(members)
	eachField(have, now, now, func(name string, have, now, _ reflect.Value) {
		if v, ok := earlier[name]; ok && equal(have, now) {
			members[name] = v
		}
	})
	return document.Object(members), nil
}

// errNoSpec means that the answer of a server has no settings of the group.
var errNoSpec = errors.New("the server's answer has no spec_json: the server is older than this provider, upgrade it")

// specOf returns the group's own fields, without values that come from its template.
func specOf(status interface{ GetSpecJson() string }) (config.GroupSpec, error) {
	if status.GetSpecJson() == "" {
		return config.GroupSpec{}, errNoSpec
	}
	spec, problems := config.ParseGroup("", []byte(status.GetSpecJson()))
	if err := problems.Err(); err != nil {
		return config.GroupSpec{}, fmt.Errorf("the server's answer: spec_json: %w", err)
	}
	// Only the server sets these.
	spec.Deleted, spec.Removed, spec.Protected = false, nil, nil
	return spec, nil
}
