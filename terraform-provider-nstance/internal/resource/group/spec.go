package group

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
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
func (r reading) diagnostics() diag.Diagnostics {
	return diagnostic.OfDocument(r.problems.Errors(), "spec", "group")
}

// drifted returns the attribute spec for a group that another client has changed. Fields that mean the same as before
// keep their form.
func drifted(before tftypes.Value, have, now config.GroupSpec) (tftypes.Value, error) {
	var trees [2]any
	for i, spec := range []config.GroupSpec{have, now} {
		encoded, err := json.Marshal(spec)
		if err != nil {
			return tftypes.Value{}, err
		}
		if err := json.Unmarshal(encoded, &trees[i]); err != nil {
			return tftypes.Value{}, err
		}
	}
	return document.Update(before, trees[0], trees[1]), nil
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
