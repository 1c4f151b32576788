package modules

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// TestEveryRollIsWaitedFor checks that the generation of the servers of AWS, for which nstance_servers_ready waits,
// depends on everything that rolls the servers: the launch template, its boot script, and the subnets of the group.
func TestEveryRollIsWaitedFor(t *testing.T) {
	var body hclsyntax.Blocks
	locals := map[string]hclsyntax.Expression{}
	for _, name := range []string{"main.tf", "security.tf", "servers.tf"} {
		for _, block := range module(t, "shard", name).body.Blocks {
			body = append(body, block)
			if block.Type == "locals" {
				for name, attribute := range block.Body.Attributes {
					locals[name] = attribute.Expr
				}
			}
		}
	}
	waited := sources(locals, locals["server_generation"].Variables())
	rolls := map[string]bool{}
	for _, block := range body {
		switch strings.Join(block.Labels, ".") {
		case "aws_launch_template.server", "nstance_userdata.server":
			maps.Copy(rolls, sources(locals, templateVariables(block.Body)))
		case "aws_autoscaling_group.server":
			maps.Copy(rolls, sources(locals, block.Body.Attributes["vpc_zone_identifier"].Expr.Variables()))
		}
	}
	if len(rolls) < 10 {
		t.Fatalf("only %v roll the servers: this test does not find their resources", rolls)
	}
	for _, part := range []string{
		// A change of these replaces the whole shard.
		"var.shard", "var.zone", "var.cluster",
		// The generation has the ID of the image, and the interface that these give to the leader.
		"data.nstance_userdata", "aws_network_interface.leader", "data.aws_subnet",
	} {
		delete(rolls, part)
	}
	for _, part := range slices.Sorted(maps.Keys(rolls)) {
		if !waited[part] {
			t.Errorf("%s rolls the servers, but server_generation does not depend on it, so no apply waits", part)
		}
	}
}

// templateVariables returns the references of a block's attributes and inner blocks, without the block's own tags,
// which make no new version of a launch template.
func templateVariables(body *hclsyntax.Body) (out []hcl.Traversal) {
	for name, attribute := range body.Attributes {
		if name != "tags" && name != "name" && name != "description" {
			out = append(out, attribute.Expr.Variables()...)
		}
	}
	for _, block := range body.Blocks {
		for _, attribute := range block.Body.Attributes {
			out = append(out, attribute.Expr.Variables()...)
		}
		for _, inner := range block.Body.Blocks {
			for _, attribute := range inner.Body.Attributes {
				out = append(out, attribute.Expr.Variables()...)
			}
		}
	}
	return out
}

// sources resolves references to variables, resources and data sources, as "var.name" or "data.type". It follows
// locals, except the generation itself.
func sources(locals map[string]hclsyntax.Expression, references []hcl.Traversal) map[string]bool {
	out := map[string]bool{}
	for _, reference := range references {
		if len(reference) < 2 {
			continue
		}
		step, ok := reference[1].(hcl.TraverseAttr)
		switch root := reference.RootName(); {
		case !ok || root == "each" || strings.HasSuffix(root, "specifications"):
		case root == "local" && step.Name == "server_generation":
		case root == "local" && locals[step.Name] != nil:
			maps.Copy(out, sources(locals, locals[step.Name].Variables()))
		default:
			out[root+"."+step.Name] = true
		}
	}
	return out
}
