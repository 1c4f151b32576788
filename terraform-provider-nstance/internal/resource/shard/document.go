package shard

import (
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	docs "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

// document is a shard configuration, read from the attribute config of a plan, a state or a Terraform configuration.
type document struct {
	// shard holds the known part of the configuration. It is nil if nothing is known, or if the configuration is not
	// valid.
	shard *config.Shard
	// body is the text to write to the bucket. It is nil if a value is unknown or the configuration is not valid.
	body []byte
	// groupsKnown means that all values on which the groups' instances depend are known. Other values may be unknown.
	groupsKnown bool
	// subnetsUnknown means that groupsKnown is false only because subnets of pools are unknown.
	subnetsUnknown bool
	unknown        []string // paths of values that are not known yet
	diags          diag.Diagnostics
}

// cluster returns the name of the cluster, or "" if it is not known.
func (d document) cluster() string {
	if d.shard == nil {
		return ""
	}
	return d.shard.Cluster.ID
}

func (d document) name() string {
	if d.shard == nil {
		return ""
	}
	return d.shard.Server.Shard
}

// read decodes and validates the known part of the attribute config with the servers' own decoder. The result also
// holds the diagnostics.
func read(raw tftypes.Value) document {
	var d document
	v := docs.Attributes(raw)["config"]
	if !v.IsKnown() {
		d.unknown = []string{""}
		return d
	}
	if v.IsNull() {
		return d // the schema requires the attribute: this is the state of an import
	}
	text, unknown, err := docs.Encode(v)
	if err != nil {
		d.diags.AddAttributeError(path.Root("config"), "Invalid shard configuration", err.Error())
		return d
	}
	shard, problems := config.ParsePartial(text, unknown...)
	d.diags = diagnostic.OfDocument(problems, "config", "shard configuration")
	d.unknown = unknown
	if shard == nil || d.nameUnknown() {
		return d
	}
	d.shard, d.groupsKnown = shard, !slices.ContainsFunc(unknown, config.ConcernsGroups)
	d.subnetsUnknown = !d.groupsKnown && !slices.ContainsFunc(unknown, func(at string) bool {
		return config.ConcernsGroups(at) && !concernsSubnets(at)
	})
	if len(unknown) == 0 {
		d.body = config.Encode(shard)
	}
	return d
}

// nameUnknown reports whether the name of the shard is known only after the apply.
func (d document) nameUnknown() bool {
	return slices.ContainsFunc(d.unknown, func(at string) bool {
		return at == "" || at == "server" || at == "server.shard"
	})
}

// checkName returns an error in a plan for which the name of the shard is not known. While Terraform only validates,
// the variables of modules are not known either, so ValidateConfig accepts such a name.
func (d document) checkName() diag.Diagnostics {
	if !d.nameUnknown() {
		return nil
	}
	return diag.Diagnostics{diagnostic.Failure{
		What: "The name of the shard, config.server.shard, is not known",
		Why:  errors.New("it depends on a resource that is not applied yet"),
		Do:   "Write the name itself, or take it from a variable. It is part of the key of the configuration.",
	}.At(path.Root("config"))}
}

// concernsSubnets reports whether the value at a path may change the subnets of groups, but nothing else of groups.
func concernsSubnets(at string) bool { return strings.HasPrefix(at, "server.subnet_pools") }

// groups returns the values of the attributes that describe the static groups.
func groups(s *config.Shard) map[string]tftypes.Value {
	typ := hashesType()
	merged, _ := s.Merged(config.Groups{})
	full := s.WithDefaults()
	hashes, settings := map[string]tftypes.Value{}, map[string]tftypes.Value{}
	for key, group := range merged {
		hashes[key.String()] = tftypes.NewValue(typ.ElementType, map[string]tftypes.Value{
			"infra":   docs.Text(group.InfraHash),
			"runtime": docs.Text(group.RuntimeHash),
		})
		settings[key.String()] = docs.Text(full.SettingsOf(key, config.Groups{}).Document())
	}
	return map[string]tftypes.Value{"group_hashes": tftypes.NewValue(typ, hashes),
		"group_settings": tftypes.NewValue(tftypes.Map{ElementType: tftypes.String}, settings)}
}
