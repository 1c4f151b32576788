// Package name validates attributes that hold a name, with the rules of package ident. It also formats lists of names
// for the documentation.
package name

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

// List returns names as Markdown code, separated by commas.
func List(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }

// Valid returns a validator that accepts a name if check returns no error. `what` is the kind of object for messages,
// such as "shard".
func Valid(what string, check func(string) error) validator.String { return valid{what, check} }

// Parsed returns a validator that accepts a text if parse returns no error.
func Parsed[T any](what string, parse func(string) (T, error)) validator.String {
	return Valid(what, func(text string) error {
		_, err := parse(text)
		return err
	})
}

type valid struct {
	what  string
	check func(string) error
}

func (v valid) Description(context.Context) string { return "the name of a " + v.what }

func (v valid) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (v valid) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if err := v.check(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.Append(diagnostic.Failure{What: "Invalid " + v.what, Why: err, Do: "Correct " +
			req.Path.String() + "."}.At(req.Path))
	}
}
