package provider_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/provider"
)

// TestExamplesMatchTheSchema checks the Terraform files of this repository that use the provider. Every attribute,
// nested ones too, must be in the schema. Terraform itself drops unknown attributes of nested objects without a
// message.
func TestExamplesMatchTheSchema(t *testing.T) {
	server, err := providerserver.NewProtocol6WithError(provider.New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil || len(schemas.Diagnostics) > 0 {
		t.Fatalf("%v, %v", err, schemas.Diagnostics)
	}
	c := exampleCheck{T: t}
	for _, dir := range []string{"terraform-provider-nstance/examples", "examples", "modules", "tests"} {
		err := filepath.WalkDir(filepath.Join("../../..", dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".tf" {
				return err
			}
			c.checkFile(path, schemas)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.checkPages(schemas)
	if c.blocks < 15 {
		t.Errorf("only %d blocks of the provider were found", c.blocks)
	}
}

// metaArguments are arguments that Terraform itself defines for blocks.
var metaArguments = []string{"count", "depends_on", "for_each", "provider", "alias"}

type exampleCheck struct {
	*testing.T
	blocks int
}

// checkPages checks the arguments of nstance_shard on pages of docs/how-to.
func (c *exampleCheck) checkPages(schemas *tfprotov6.GetProviderSchemaResponse) {
	c.Helper()
	paths, err := filepath.Glob("../../../docs/how-to/*.md")
	if err != nil {
		c.Fatal(err)
	}
	before := c.blocks
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			c.Fatal(err)
		}
		for n, block := range strings.Split(string(text), "```") {
			if code, ok := strings.CutPrefix(block, "hcl\n"); n%2 == 1 && ok {
				c.checkSource(path, []byte("resource \"nstance_shard\" \"this\" {\n"+code+"}\n"), schemas)
			}
		}
	}
	if c.blocks == before {
		c.Error("no page has arguments of nstance_shard")
	}
}

func (c *exampleCheck) checkFile(path string, schemas *tfprotov6.GetProviderSchemaResponse) {
	c.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		c.Fatal(err)
	}
	c.checkSource(path, source, schemas)
}

func (c *exampleCheck) checkSource(path string, source []byte, schemas *tfprotov6.GetProviderSchemaResponse) {
	c.Helper()
	file, problems := hclsyntax.ParseConfig(source, path, hcl.InitialPos)
	if problems.HasErrors() {
		c.Fatal(problems)
	}
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		if len(block.Labels) == 0 || !strings.HasPrefix(block.Labels[0], "nstance") {
			continue
		}
		schema := map[string]map[string]*tfprotov6.Schema{"resource": schemas.ResourceSchemas,
			"data": schemas.DataSourceSchemas, "ephemeral": schemas.EphemeralResourceSchemas,
			"provider": {"nstance": schemas.Provider}}[block.Type][block.Labels[0]]
		if schema == nil {
			c.Errorf("%s: the provider has no %s %s", block.TypeRange, block.Type, block.Labels[0])
			continue
		}
		c.blocks++
		for name, attribute := range block.Body.Attributes {
			if !slices.Contains(metaArguments, name) {
				c.checkAttribute(name, attribute.Expr, schema.Block.Attributes)
			}
		}
	}
}

func (c *exampleCheck) checkAttribute(name string, value hclsyntax.Expression, known []*tfprotov6.SchemaAttribute) {
	c.Helper()
	at := slices.IndexFunc(known, func(a *tfprotov6.SchemaAttribute) bool { return a.Name == name })
	if at < 0 {
		c.Errorf("%s: the schema has no attribute %s here", value.Range(), name)
		return
	}
	if nested := known[at].NestedType; nested != nil {
		c.checkValue(value, nested.Attributes, nested.Nesting != tfprotov6.SchemaObjectNestingModeSingle)
	}
}

// checkValue checks the attributes of the object in an expression. If many is set, the expression has a list or map,
// and checkValue checks each object in it. It skips an expression without a literal object.
func (c *exampleCheck) checkValue(value hclsyntax.Expression, known []*tfprotov6.SchemaAttribute, many bool) {
	c.Helper()
	switch value := value.(type) {
	case *hclsyntax.ParenthesesExpr:
		c.checkValue(value.Expression, known, many)
	case *hclsyntax.ConditionalExpr:
		c.checkValue(value.TrueResult, known, many)
		c.checkValue(value.FalseResult, known, many)
	case *hclsyntax.ForExpr:
		c.checkValue(value.ValExpr, known, false)
	case *hclsyntax.FunctionCallExpr:
		if value.Name == "merge" {
			for _, argument := range value.Args {
				c.checkValue(argument, known, many)
			}
		}
	case *hclsyntax.TupleConsExpr:
		for _, item := range value.Exprs {
			c.checkValue(item, known, false)
		}
	case *hclsyntax.ObjectConsExpr:
		for _, item := range value.Items {
			if many {
				c.checkValue(item.ValueExpr, known, false)
				continue
			}
			key, problems := item.KeyExpr.Value(nil)
			if problems.HasErrors() {
				c.Errorf("%s: a name that is not constant", item.KeyExpr.Range())
				continue
			}
			c.checkAttribute(key.AsString(), item.ValueExpr, known)
		}
	}
}
