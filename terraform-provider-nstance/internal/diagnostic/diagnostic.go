// Package diagnostic owns the form of what the provider reports to people.
//
// Invariant: every error says what failed, where, why, and what to do about it.
package diagnostic

import (
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/typedconfig"
)

// Failure is one error.
type Failure struct {
	What  string // the summary, on one line
	Where string // a place: a bucket and key; "" if What says it
	Why   error
	Do    string // full sentences
}

// Detail is what is printed below the summary.
func (f Failure) Detail() string {
	var b strings.Builder
	if f.Where != "" {
		fmt.Fprintf(&b, "Where: %s\n", f.Where)
	}
	if f.Why != nil {
		fmt.Fprintf(&b, "Why: %v\n", f.Why)
	}
	fmt.Fprintf(&b, "What to do: %s", f.Do)
	return b.String()
}

// Error makes a diagnostic of a failure.
func (f Failure) Error() diag.Diagnostic { return diag.NewErrorDiagnostic(f.What, f.Detail()) }

// Warning is [Failure.Error] for what needs attention but stops nothing.
func (f Failure) Warning() diag.Diagnostic { return diag.NewWarningDiagnostic(f.What, f.Detail()) }

// At is [Failure.Error] for what is wrong with an attribute.
func (f Failure) At(at path.Path) diag.Diagnostic {
	return diag.NewAttributeErrorDiagnostic(at, f.What, f.Detail())
}

const (
	wrong   = "Invalid shard configuration"
	ignored = "Part of the shard configuration is ignored"
)

// OfTyped reports the problems of a configuration that was written in attributes, each at its own.
func OfTyped(problems config.Problems) diag.Diagnostics {
	var out diag.Diagnostics
	for _, p := range problems {
		name := p.Path
		if name == "" {
			name = "the configuration"
		}
		out.Append(of(p, nearest(typedconfig.AttributePath(p.Path)), name))
	}
	return out
}

// OfGroup reports the problems of one group, each at its own attribute.
func OfGroup(problems config.Problems) diag.Diagnostics {
	var out diag.Diagnostics
	for _, p := range problems {
		at, detail := nearest(typedconfig.GroupAttributePath(p.Path)),
			strings.TrimPrefix(p.Path+": "+p.Message+".", ": ")
		if p.Hint != "" {
			detail += "\nHint: " + p.Hint
		}
		out.AddAttributeError(at, "Invalid group", detail)
	}
	return out
}

// nearest returns the innermost attribute that the CLIs can show the line of: one at the top, or an element of it. Of a
// path that is longer they show the first line of the resource. The text of a diagnostic names the whole path.
func nearest(at path.Path) path.Path {
	for steps := at.Steps(); len(steps) > 1; steps = at.Steps() {
		if _, name := steps[1].(path.PathStepAttributeName); !name && len(steps) == 2 {
			break
		}
		at = at.ParentPath()
	}
	return at
}

// OfDocument reports the problems of a document that is the value of one attribute, with lines and columns.
func OfDocument(problems config.Problems, at path.Path) diag.Diagnostics {
	var out diag.Diagnostics
	for _, p := range problems {
		name := fmt.Sprintf("line %d, column %d", p.Line, p.Col)
		if p.Path != "" {
			name += ": " + p.Path
		}
		out.Append(of(p, at, name))
	}
	return out
}

func of(p config.Problem, at path.Path, name string) diag.Diagnostic {
	detail := name + ": " + p.Message + "."
	if p.Hint != "" {
		detail += "\nHint: " + p.Hint
	}
	summary := wrong
	if p.Warning {
		summary = ignored
	}
	if p.Warning {
		return diag.NewAttributeWarningDiagnostic(at, summary, detail)
	}
	return diag.NewAttributeErrorDiagnostic(at, summary, detail)
}
