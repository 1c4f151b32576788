package shard

import (
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/typedconfig"
)

// document is the configuration that attributes describe.
type document struct {
	// shard is what is known of it; nil if nothing is, or if it is not valid.
	shard *config.Shard
	// body is what is written; nil if it is not all known, or not valid.
	body  []byte
	diags diag.Diagnostics
}

// cluster and name are "" if they are not known.
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

// attributesOf takes the whole value of a plan, state or configuration apart; nil for null.
func attributesOf(raw tftypes.Value) map[string]tftypes.Value {
	var out map[string]tftypes.Value
	if raw.IsKnown() && !raw.IsNull() {
		if err := raw.As(&out); err != nil {
			panic("shard: " + err.Error()) // a resource is an object
		}
	}
	return out
}

// read checks what attributes describe, as far as it is known.
func read(raw tftypes.Value) document {
	attributes := attributesOf(raw)
	jsonc := attributes["config_jsonc"]
	typed := isTyped(attributes)
	var d document
	switch {
	case typed && (!jsonc.IsKnown() || !jsonc.IsNull()):
		d.diags.AddAttributeError(path.Root("config_jsonc"), "Two shard configurations",
			"What to do: write the shard in attributes or in config_jsonc, not in both.")
	case !jsonc.IsKnown():
	case !jsonc.IsNull():
		var text string
		if err := jsonc.As(&text); err != nil {
			panic("shard: " + err.Error()) // the schema says that it is a text
		}
		s, problems := config.Parse("config_jsonc", []byte(text))
		d.diags = diagnostic.OfDocument(problems, path.Root("config_jsonc"))
		if s != nil {
			d.shard, d.body = s, []byte(text)
		}
	case !typed:
		d.diags.AddError("No shard configuration",
			"What to do: write the shard in attributes, of which cluster and server are required, or give a whole "+
				"document in config_jsonc.")
	default:
		reading := typedconfig.Read(attributes)
		problems := reading.Problems()
		d.diags = diagnostic.OfTyped(problems)
		if len(problems.Errors()) > 0 {
			break
		}
		d.shard = reading.Shard
		if reading.Known() {
			d.body = config.Encode(reading.Shard)
		}
	}
	return d
}

// isTyped reports whether any attribute of the configuration is set.
func isTyped(attributes map[string]tftypes.Value) bool {
	for _, name := range typedconfig.Names() {
		if v := attributes[name]; !v.IsKnown() || !v.IsNull() {
			return true
		}
	}
	return false
}

// groupHashes is the value of `group_hashes`.
func groupHashes(s *config.Shard) tftypes.Value {
	typ := hashesType()
	merged, _ := s.Merged(config.Groups{})
	out := map[string]tftypes.Value{}
	for key, group := range merged {
		out[key.String()] = tftypes.NewValue(typ.ElementType, map[string]tftypes.Value{
			"infra":   tftypes.NewValue(tftypes.String, group.InfraHash),
			"runtime": tftypes.NewValue(tftypes.String, group.RuntimeHash),
		})
	}
	return tftypes.NewValue(typ, out)
}

// replaced returns an object with some of its attributes replaced.
func replaced(raw tftypes.Value, with map[string]tftypes.Value) tftypes.Value {
	out := attributesOf(raw)
	for name, v := range with {
		out[name] = v
	}
	return tftypes.NewValue(raw.Type(), out)
}

func textValue(s string) tftypes.Value { return tftypes.NewValue(tftypes.String, s) }

func textOf(v tftypes.Value) string {
	var s string
	if v.IsKnown() && !v.IsNull() && v.As(&s) == nil {
		return s
	}
	return ""
}
