// Package diagnostic formats the provider's messages to users.
//
// Invariant: every error states what failed, where, why, and what to do next.
package diagnostic

import (
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/typedconfig"
)

// Failure is the content of one error or warning.
type Failure struct {
	What  string // summary, one line
	Where string // location, such as bucket and key; "" if What contains it
	Why   error
	Do    string // full sentences; "" if nothing is to be done
}

// Detail returns the text below the summary. If the person interrupted the run, neither the bucket nor a server is to
// blame, and the advice is only how to go on.
func (f Failure) Detail() string {
	if objstore.Interrupted(f.Why) || status.Code(f.Why) == codes.Canceled {
		f.Why = fmt.Errorf("the run was interrupted: %w", f.Why)
		f.Do = "Run this again: it reads what was done, and goes on from there."
	}
	var b strings.Builder
	if f.Where != "" {
		fmt.Fprintf(&b, "Where: %s\n", f.Where)
	}
	if f.Why != nil {
		fmt.Fprintf(&b, "Why: %v\n", f.Why)
	}
	if f.Do != "" {
		fmt.Fprintf(&b, "What to do: %s", f.Do)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Error returns f as an error diagnostic.
func (f Failure) Error() diag.Diagnostic { return diag.NewErrorDiagnostic(f.What, f.Detail()) }

// Warning returns f as a warning diagnostic, which does not stop the run.
func (f Failure) Warning() diag.Diagnostic { return diag.NewWarningDiagnostic(f.What, f.Detail()) }

// At returns f as an error diagnostic for the attribute at a path.
func (f Failure) At(at path.Path) diag.Diagnostic {
	return diag.NewAttributeErrorDiagnostic(at, f.What, f.Detail())
}

const (
	wrong   = "Invalid shard configuration"
	ignored = "The shard configuration has a part that may not do what it says"
)

// OfTyped returns a diagnostic for each problem of a configuration that consists of typed attributes. The diagnostic
// points to the attribute with the problem.
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

// nearest shortens a path until it is a top-level attribute or an element of one. For a longer path, the CLIs show the
// first line of the resource instead of the attribute's line. The text of the diagnostic contains the full path.
func nearest(at path.Path) path.Path {
	for steps := at.Steps(); len(steps) > 1; steps = at.Steps() {
		if _, name := steps[1].(path.PathStepAttributeName); !name && len(steps) == 2 {
			break
		}
		at = at.ParentPath()
	}
	return at
}

// OfDocument returns a diagnostic for each problem of a document that is the value of one attribute. The diagnostic
// states the problem's line and column.
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
