package modules

import (
	"crypto/sha1" //nolint:gosec // as Terraform's function sha1
	"encoding/hex"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// nameFunctions are the functions that names of resources use.
func nameFunctions() map[string]function.Function {
	return map[string]function.Function{
		"coalesce": stdlib.CoalesceFunc, "join": stdlib.JoinFunc, "keys": stdlib.KeysFunc, "length": stdlib.StrlenFunc,
		"concat": stdlib.ConcatFunc, "merge": stdlib.MergeFunc, "replace": stdlib.ReplaceFunc,
		"substr": stdlib.SubstrFunc, "trim": stdlib.TrimFunc,
		"sha1": function.New(&function.Spec{
			Params: []function.Parameter{{Name: "text", Type: cty.String}}, Type: function.StaticReturnType(cty.String),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				sum := sha1.Sum([]byte(args[0].AsString())) //nolint:gosec // as Terraform's function sha1
				return cty.StringVal(hex.EncodeToString(sum[:])), nil
			},
		}),
	}
}

// expression returns the expression of a local, or of an attribute of a resource, in a module.
func expression(t *testing.T, module, resource, name string) hcl.Expression {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", "modules", filepath.FromSlash(module), "*.tf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f, err := parseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range f.body.Blocks {
			if block.Type != "locals" && block.Type != "resource" || strings.Join(block.Labels, ".") != resource {
				continue
			}
			if attribute := block.Body.Attributes[name]; attribute != nil {
				return attribute.Expr
			}
		}
	}
	t.Fatalf("modules/%s has no %s of %q", module, name, resource)
	return hcl.StaticExpr(cty.NilVal, hcl.Range{})
}

func texts(values map[string]string) cty.Value {
	out := map[string]cty.Value{}
	for key, value := range values {
		out[key] = cty.StringVal(value)
	}
	return cty.ObjectVal(out)
}

// TestLongestNames evaluates the names of resources for the longest names of clusters, shards, networks and load
// balancers that the modules' variables permit. No name may exceed the cloud's limit.
func TestLongestNames(t *testing.T) {
	const (
		account   = 40 // variable "name" of the modules account
		cluster   = 30
		shard     = 32
		network   = 40 // on Google Cloud 30
		listener  = 80 // no limit
		twoOnGCP  = 50 // cluster and shard together
		gcpRegion = "northamerica-northeast1"
	)
	x := func(n int) string { return "x" + strings.Repeat("-y", n)[:n-2] + "z" }
	object := func(name string) cty.Value { return cty.ObjectVal(map[string]cty.Value{name: cty.True}) }
	lb := strings.Repeat("b", 16)
	key := lb + "/" + x(listener)
	vpc := cty.StringVal(x(30))
	shardName := texts(map[string]string{"name": x(cluster) + "-" + x(shard)})
	gcpShard := texts(map[string]string{"name": x(cluster) + "-" + x(twoOnGCP-cluster)})
	dns := `^[a-z]([a-z0-9-]*[a-z0-9])?$`
	for _, test := range []struct {
		module, resource, attribute string
		long                        string // local with the names before they are shortened
		given                       map[string]cty.Value
		limit                       int
		form                        string
	}{
		{"aws/account", "aws_iam_role.agent", "name", "", map[string]cty.Value{
			"local": texts(map[string]string{"name": x(account)})}, 64, ``},
		{"aws/account", "aws_iam_instance_profile.agent", "name", "", map[string]cty.Value{
			"local": texts(map[string]string{"name": x(account)})}, 128, ``},
		{"aws/account", "", "server_names", "long_names", map[string]cty.Value{
			"local": texts(map[string]string{"name": x(account)}),
			"var":   cty.ObjectVal(map[string]cty.Value{"shards": object(x(shard))})}, 64, ``},
		{"aws/network", "aws_lb.this", "name_prefix", "", map[string]cty.Value{"each": texts(map[string]string{
			"key": "abcd-efgh"})}, 6, dns[:len(dns)-2]},
		{"aws/network", "aws_security_group.balancer", "name", "", map[string]cty.Value{
			"var":  texts(map[string]string{"name": x(network)}),
			"each": texts(map[string]string{"key": lb})}, 255, ``},
		{"aws/shard", "aws_lb_target_group.health", "name", "", map[string]cty.Value{
			"local": cty.ObjectVal(map[string]cty.Value{"name": shardName.GetAttr("name"),
				"server_subnets": cty.TupleVal([]cty.Value{object("native")})})}, 32, dns},
		{"aws/shard", "", "server_group", "", map[string]cty.Value{"local": shardName}, 255, ``},
		{"aws/shard", "aws_security_group.agent", "name", "", map[string]cty.Value{"local": shardName}, 255, ``},
		{"gcp/account", "", "names", "long_names", map[string]cty.Value{
			"local": texts(map[string]string{"name": x(account)}),
			"var": cty.ObjectVal(map[string]cty.Value{"shards": object(x(shard)),
				"agent_service_account": cty.True})}, 30, dns},
		{"gcp/network", "", "names", "long_names", map[string]cty.Value{
			"var": cty.ObjectVal(map[string]cty.Value{"name": vpc}),
			"local": cty.ObjectVal(map[string]cty.Value{"subnets": object(x(listener) + "/" + gcpRegion + "/0"),
				"listeners": object(key)})}, 63, dns},
		{"gcp/network", "google_compute_address.balancer", "name", "", map[string]cty.Value{
			"var": cty.ObjectVal(map[string]cty.Value{"name": vpc}), "each": eachKey(lb)}, 63, dns},
		{"gcp/network", "google_compute_router.this", "name", "", map[string]cty.Value{
			"var": cty.ObjectVal(map[string]cty.Value{"name": vpc}), "each": eachKey(gcpRegion)}, 63, dns},
		{"gcp/network", "google_compute_firewall.health_checks", "name", "", map[string]cty.Value{
			"var": cty.ObjectVal(map[string]cty.Value{"name": vpc})}, 63, dns},
		{"gcp/shard", "google_compute_region_health_check.leader", "name", "",
			map[string]cty.Value{"local": gcpShard}, 63,
			dns},
		{"gcp/shard", "", "firewall_names", "long_firewall_names", map[string]cty.Value{
			"local": cty.ObjectVal(map[string]cty.Value{
				"name": gcpShard.GetAttr("name"), "server_ingress": object(x(listener)),
				"agent_ingress": object("lb-" + lb + "-tcp")})}, 63, dns},
	} {
		at := test.module + " " + test.resource + "." + test.attribute
		context := &hcl.EvalContext{Variables: test.given, Functions: nameFunctions()}
		if test.long != "" {
			value, diags := expression(t, test.module, "", test.long).Value(context)
			if diags.HasErrors() {
				t.Fatalf("%s: %v", at, diags)
			}
			locals := test.given["local"].AsValueMap()
			locals[test.long] = value
			context.Variables["local"] = cty.ObjectVal(locals)
		}
		value, diags := expression(t, test.module, test.resource, test.attribute).Value(context)
		if diags.HasErrors() {
			t.Errorf("%s: %v", at, diags)
			continue
		}
		names := []cty.Value{value}
		if value.Type() != cty.String {
			names = nil
			for _, name := range value.AsValueMap() {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			t.Errorf("%s: no names", at)
		}
		for _, name := range names {
			if n := len(name.AsString()); n > test.limit ||
				!regexp.MustCompile(test.form).MatchString(name.AsString()) {
				t.Errorf("%s: %q has %d characters, and at most %d are permitted in the form %q", at,
					name.AsString(), n,
					test.limit, test.form)
			}
		}
	}
}

func eachKey(name string) cty.Value { return texts(map[string]string{"key": name}) }
