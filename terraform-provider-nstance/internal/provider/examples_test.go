package provider_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/provider"
)

// TestExamplesMatchTheSchema checks the Terraform files of this repository that use the provider. Every attribute,
// nested ones too, must be in the schema, and every field of a shard's configuration must exist.
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
	if c.blocks < 15 || c.configs < 15 {
		t.Errorf("only %d blocks of the provider and %d configurations were found", c.blocks, c.configs)
	}
}

// metaArguments are arguments that Terraform itself defines for blocks.
var metaArguments = []string{"count", "depends_on", "for_each", "provider", "alias"}

type exampleCheck struct {
	*testing.T
	blocks  int // of the provider
	configs int // literal configurations of shards
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
		if document := block.Body.Attributes["config"]; document != nil && block.Type != "provider" {
			c.checkConfig(document.Expr)
		}
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

// checkValue checks the names in a literal object of a nested attribute. If many is set, the object is a map of such
// objects.
func (c *exampleCheck) checkValue(value hclsyntax.Expression, known []*tfprotov6.SchemaAttribute, many bool) {
	c.Helper()
	object, ok := value.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return
	}
	for _, item := range object.Items {
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

// checkConfig decodes the objects in the attribute config of a shard or a module. They must have no field that does not
// exist. What only a run can tell is left out.
func (c *exampleCheck) checkConfig(value hclsyntax.Expression) {
	c.Helper()
	if call, ok := value.(*hclsyntax.FunctionCallExpr); ok {
		for _, argument := range call.Args {
			c.checkConfig(argument)
		}
		return
	}
	tree, ok := literal(value).(map[string]any)
	if !ok {
		return
	}
	text, err := json.Marshal(tree)
	if err != nil {
		c.Fatal(err)
	}
	c.configs++
	_, problems := config.ParsePartial(text)
	for _, p := range problems {
		if p.Message == "there is no such field" {
			c.Errorf("%s: %s", value.Range(), p)
		}
	}
}

// literal returns the objects and lists in an expression. Everything else is null.
func literal(value hclsyntax.Expression) any {
	switch value := value.(type) {
	case *hclsyntax.ParenthesesExpr:
		return literal(value.Expression)
	case *hclsyntax.ForExpr:
		if value.KeyExpr == nil {
			return []any{literal(value.ValExpr)}
		}
		return map[string]any{"each": literal(value.ValExpr)}
	case *hclsyntax.ObjectConsExpr:
		members := map[string]any{}
		for i, item := range value.Items {
			name := "member-" + strconv.Itoa(i)
			if key, problems := item.KeyExpr.Value(nil); !problems.HasErrors() {
				name = key.AsString()
			}
			members[name] = literal(item.ValueExpr)
		}
		return members
	case *hclsyntax.TupleConsExpr:
		list := []any{}
		for _, item := range value.Exprs {
			list = append(list, literal(item))
		}
		return list
	}
	return nil
}
