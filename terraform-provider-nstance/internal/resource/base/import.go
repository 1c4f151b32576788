package base

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

// Importer implements resource.ResourceWithImportState for a resource, which embeds it. The import ID consists of the
// parts, with slashes between them. Example is an import ID.
type Importer struct {
	Parts   []Part
	Example string
}

// Part is a part of an import ID. Name is its name in messages, and Check returns what is wrong with its text.
type Part struct {
	Attribute, Name string
	Check           func(string) error
}

// ImportState implements resource.ResourceWithImportState.
func (i Importer) ImportState(ctx context.Context, req resource.ImportStateRequest,
	resp *resource.ImportStateResponse) {
	parts, err := i.Parse(req.ID)
	if err != nil {
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Cannot import " + req.ID, Why: err,
			Do: "Import by " + i.form() + ": terraform import <address of the resource> " + i.Example,
		}.Error())
		return
	}
	for n, text := range parts {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(i.Parts[n].Attribute), text)...)
	}
}

// Parse returns the parts of an import ID. The error names the part that is not valid.
func (i Importer) Parse(id string) ([]string, error) {
	parts := strings.Split(id, "/")
	if len(parts) != len(i.Parts) {
		return nil, fmt.Errorf("want %s, have %q", i.form(), id)
	}
	for n, part := range i.Parts {
		if err := part.Check(parts[n]); err != nil {
			return nil, fmt.Errorf("%s: %w", part.Name, err)
		}
	}
	return parts, nil
}

func (i Importer) form() string {
	names := make([]string, len(i.Parts))
	for n, part := range i.Parts {
		names[n] = part.Name
	}
	return strings.Join(names, "/")
}

// Timeout returns one time limit of the attribute `timeouts` of a plan or state. The parameter "of" is the method that
// reads this limit. If the limit is not set, Timeout returns fallback.
func Timeout(ctx context.Context, get func(context.Context, path.Path, any) diag.Diagnostics,
	of func(timeouts.Value, context.Context, time.Duration) (time.Duration, diag.Diagnostics),
	fallback time.Duration) (time.Duration, diag.Diagnostics) {
	var value timeouts.Value
	if diags := get(ctx, path.Root("timeouts"), &value); diags.HasError() {
		return 0, diags
	}
	return of(value, ctx, fallback)
}
