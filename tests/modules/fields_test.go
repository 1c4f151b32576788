package modules

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/zclconf/go-cty/cty"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// definition is an object of the JSON Schema of shard configurations.
type definition struct {
	Properties map[string]struct {
		Ref   string `json:"$ref"`
		Items struct {
			Ref string `json:"$ref"`
		} `json:"items"`
		AdditionalProperties struct {
			Ref string `json:"$ref"`
		} `json:"additionalProperties"`
	} `json:"properties"`
}

// configVariables maps each variable of a shard module to a definition in the JSON Schema of the shard configuration.
// The variable and the definition have the same fields. The module copies the value of the variable into the
// configuration.
var configVariables = map[string]string{
	"certificates": "certificate",
	"defaults":     "defaults",
	"groups":       "groupSpec",
	"images":       "image",
	"settings":     "server",
	"templates":    "template",
	"tenants":      "tenant",
}

// omittedFields maps definitions in the JSON Schema of the shard configuration to the fields that users of a module
// cannot set.
var omittedFields = map[string][]string{
	"groupSpec":      {"deleted", "protected", "removed"}, // only servers set them
	"image":          {"provider"},                        // the module's cloud
	"leaderElection": {"enabled"},                         // for development only
	// Users set these fields with variables of other names, or the module derives the values.
	"server": {"advertise", "bind", "dynamic_subnet_pools", "leader_network", "provider", "shard", "subnet_pools"},
}

// unsupportedFields maps each cloud to the configuration fields that cannot be used with it. The keys of an inner map
// are names of definitions in the JSON Schema.
var unsupportedFields = map[string]map[string][]string{
	"gcp":     {"attestation": {"certificates"}}, // the provider's certificates are public
	"libvirt": noCloud,
	"proxmox": noCloud,
}

// noCloud are the fields that a provider such as libvirt cannot have, because it lacks a cloud's services. The fields
// need load balancers, a spot market, queries of images, or attestation.
var noCloud = map[string][]string{
	"groupSpec":   {"load_balancers", "purchase"},
	"permissions": {"load_balancers"},
	"server":      {"attestation", "image_refresh_interval"},
	"template":    {"load_balancer_health"},
}

// TestFields checks that the variables of the shard modules have every field of the shard configuration. If a user sets
// a field that is missing in the type of the variable, Terraform drops it without an error.
func TestFields(t *testing.T) {
	var schema struct {
		Defs map[string]definition `json:"$defs"`
	}
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join("..", "..", "modules", "*", "shard", "variables-config.tf"))
	if err != nil || len(paths) < 4 {
		t.Fatalf("only %q: %v", paths, err)
	}
	for _, path := range paths {
		f, err := parseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := moduleFields{T: t, cloud: filepath.Base(filepath.Dir(filepath.Dir(path))), defs: schema.Defs}
		checked := 0
		for _, b := range f.body.Blocks {
			name, ok := configVariables[b.Labels[0]]
			if !ok {
				continue
			}
			typ, _, diags := typeexpr.TypeConstraintWithDefaults(b.Body.Attributes["type"].Expr)
			if diags.HasErrors() {
				t.Fatal(diags)
			}
			m.compare("var."+b.Labels[0], elementOf(typ), name)
			checked++
		}
		if checked < len(configVariables)-1 {
			t.Errorf("%s has only %d of the variables %v", path, checked, configVariables)
		}
	}
}

// moduleFields compares the types of one module's variables with the JSON Schema.
type moduleFields struct {
	*testing.T
	cloud string
	defs  map[string]definition
}

func (m moduleFields) compare(path string, typ cty.Type, name string) {
	def, ok := m.defs[name]
	if !ok {
		m.Errorf("the JSON Schema has no definition %q", name)
		return
	}
	if !typ.IsObjectType() {
		m.Errorf("%s: %s is a %s, want an object", m.cloud, path, typ.FriendlyName())
		return
	}
	has := maps.Clone(typ.AttributeTypes())
	for field, property := range def.Properties {
		attribute := field
		if _, ok := has[field+"_json"]; ok {
			attribute = field + "_json"
		}
		omitted := slices.Contains(omittedFields[name], field) ||
			slices.Contains(unsupportedFields[m.cloud][name], field)
		switch of, ok := has[attribute]; {
		case ok && omitted:
			m.Errorf("%s: %s has %s, which this test lists as omitted", m.cloud, path, attribute)
		case !ok && !omitted:
			m.Errorf("%s: %s has no field %s", m.cloud, path, attribute)
		case ok:
			for _, ref := range []string{property.Ref, property.Items.Ref, property.AdditionalProperties.Ref} {
				if ref != "" {
					m.compare(path+"."+attribute, elementOf(of), strings.TrimPrefix(ref, "#/$defs/"))
				}
			}
		}
		delete(has, attribute)
	}
	delete(has, "provider_options") // server.provider.options
	for attribute := range has {
		m.Errorf("%s: %s has the field %s, which the shard configuration lacks", m.cloud, path, attribute)
	}
}

// elementOf returns the type of the elements if the type is a list, set or map. Otherwise it returns the type itself.
func elementOf(typ cty.Type) cty.Type {
	if typ.IsCollectionType() {
		return typ.ElementType()
	}
	return typ
}
