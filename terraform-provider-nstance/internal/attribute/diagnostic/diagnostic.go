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
	"github.com/nstance-kit/nstance/services/store/objstore"
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

// OfDocument returns a diagnostic for each problem of a document that is the value of an attribute. what names the
// document, such as "group". The text has the full path. The diagnostic does not point to the attribute, because the
// CLIs would print all lines of the document beside each problem.
func OfDocument(problems config.Problems, attribute, what string) (out diag.Diagnostics) {
	for _, p := range problems {
		where := attribute
		switch {
		case strings.HasPrefix(p.Path, "["):
			where += p.Path
		case p.Path != "":
			where += "." + p.Path
		}
		detail := where + ": " + p.Message + "."
		if p.Hint != "" {
			detail += "\nHint: " + p.Hint
		}
		if p.Warning {
			out.AddWarning("The "+what+" has a part that may not do what it says", detail)
		} else {
			out.AddError("Invalid "+what, detail)
		}
	}
	return out
}
