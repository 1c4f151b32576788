package modules

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

//go:generate go test -run ^TestGenerated$ . -update

// begin and end mark the part of a README that is generated from the module's HCL. The rest is written by hand.
const (
	begin = "<!-- generated from the HCL files beside this one: begin -->\n"
	end   = "<!-- generated: end -->\n"
)

// block is a variable or an output.
type block struct {
	name, description string
	typ, value        string // As written in the file; value is a variable's default.
	required          bool
}

// documented is the content of the generated part of a README.
type documented struct {
	terraform          string
	providers          []string
	variables, outputs []block
	resources          []string
}

// readModule reads the documented parts of the module in a directory. Variables and outputs are in the order of the
// files.
func readModule(dir string) (documented, error) {
	var out documented
	paths, err := filepath.Glob(filepath.Join(dir, "*.tf"))
	if err != nil {
		return out, err
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			return out, err
		}
		f, err := parseFile(path)
		if err != nil {
			return out, err
		}
		for _, b := range f.body.Blocks {
			if err := out.add(b, source); err != nil {
				return out, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	slices.Sort(out.resources)
	out.resources = slices.Compact(out.resources)
	return out, nil
}

func (d *documented) add(b *hclsyntax.Block, source []byte) error {
	switch b.Type {
	case "terraform":
		return d.addRequirements(b)
	case "resource":
		d.resources = append(d.resources, b.Labels[0])
	case "variable", "output":
		made := block{name: b.Labels[0], required: b.Body.Attributes["default"] == nil}
		var err error
		if made.description, err = text(b.Body.Attributes["description"]); err != nil || made.description == "" {
			return fmt.Errorf("%s %s has no description: %w", b.Type, made.name, err)
		}
		made.typ, made.value = written(b.Body.Attributes["type"], source), written(b.Body.Attributes["default"], source)
		if b.Type == "output" {
			d.outputs = append(d.outputs, made)
		} else {
			d.variables = append(d.variables, made)
		}
	}
	return nil
}

func (d *documented) addRequirements(b *hclsyntax.Block) (err error) {
	if a := b.Body.Attributes["required_version"]; a != nil {
		if d.terraform, err = text(a); err != nil {
			return err
		}
	}
	for _, inner := range b.Body.Blocks {
		if inner.Type != "required_providers" {
			continue
		}
		for _, a := range inner.Body.Attributes {
			value, diags := a.Expr.Value(nil)
			if diags.HasErrors() {
				return diags
			}
			line := "`" + value.GetAttr("source").AsString() + "`"
			if value.Type().HasAttribute("version") {
				line += " " + value.GetAttr("version").AsString()
			}
			d.providers = append(d.providers, line)
		}
	}
	slices.Sort(d.providers)
	return nil
}

// text returns the value of a constant text attribute, or "" if the attribute is missing.
func text(a *hclsyntax.Attribute) (string, error) {
	if a == nil {
		return "", nil
	}
	value, diags := a.Expr.Value(nil)
	if diags.HasErrors() {
		return "", diags
	}
	if value.Type() != cty.String {
		return "", fmt.Errorf("%s is no text", a.Name)
	}
	return strings.TrimSpace(value.AsString()), nil
}

// written returns an attribute's expression as written in the file, without indentation. It returns "" if the attribute
// is missing.
func written(a *hclsyntax.Attribute, source []byte) string {
	if a == nil {
		return ""
	}
	r := a.Expr.Range()
	return strings.TrimSpace(string(hclwrite.Format(slices.Clone(r.SliceBytes(source)))))
}

// markdown returns the part of the README that is generated.
func (d documented) markdown() string {
	var out strings.Builder
	providers := "no providers"
	if len(d.providers) > 0 {
		providers = "providers " + strings.Join(d.providers, ", ")
	}
	fmt.Fprintf(&out, "## Requirements\n\nTerraform or OpenTofu %s; %s.\n", d.terraform, providers)
	if len(d.variables) > 0 {
		out.WriteString("\n## Variables\n")
		// Required variables come first.
		variables := slices.Clone(d.variables)
		slices.SortStableFunc(variables, func(a, b block) int { return cmp.Compare(rank(a), rank(b)) })
		for _, v := range variables {
			fmt.Fprintf(&out, "\n### `%s`\n\n%s\n\n", v.name, v.description)
			switch {
			case strings.Contains(v.typ, "\n"):
				fmt.Fprintf(&out, "```hcl\n%s\n```\n\n", v.typ)
			default:
				fmt.Fprintf(&out, "Type: `%s`. ", v.typ)
			}
			switch {
			case v.required:
				out.WriteString("Required.\n")
			case strings.Contains(v.value, "\n"):
				fmt.Fprintf(&out, "Default:\n\n```hcl\n%s\n```\n", v.value)
			default:
				fmt.Fprintf(&out, "Default: `%s`.\n", v.value)
			}
		}
	}
	if len(d.outputs) > 0 {
		out.WriteString("\n## Outputs\n\n")
		for _, o := range d.outputs {
			fmt.Fprintf(&out, "* `%s`: %s\n", o.name, o.description)
		}
	}
	if len(d.resources) > 0 {
		fmt.Fprintf(&out, "\n## Resources\n\n`%s`\n", strings.Join(d.resources, "`, `"))
	}
	return out.String()
}

func rank(b block) int {
	if b.required {
		return 0
	}
	return 1
}

// withGenerated replaces the text between the marks of a README.
func withGenerated(readme []byte, generated string) ([]byte, error) {
	before, rest, found := bytes.Cut(readme, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return nil, fmt.Errorf("no place for the generated part: the lines %q and %q mark it", strings.TrimSpace(begin),
			strings.TrimSpace(end))
	}
	return slices.Concat(before, []byte(begin), []byte(generated), []byte(end), after), nil
}
