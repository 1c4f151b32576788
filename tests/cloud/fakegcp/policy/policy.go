// Package policy keeps and evaluates the IAM policies of resources in the fake Google Cloud.
package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// Policy is the IAM policy of one resource. The zero value has no bindings.
type Policy struct {
	bindings []Binding
	changes  int
}

// Binding gives a role to members, under a condition.
type Binding struct {
	Role      string     `json:"role"`
	Members   []string   `json:"members"`
	Condition *Condition `json:"condition,omitempty"`
}

// Condition is an expression of CEL.
type Condition struct {
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Expression  string `json:"expression"`
}

// withConditions is the version number that a policy must have to contain conditions.
// https://cloud.google.com/iam/docs/policies#versions
const withConditions = 3

// Get answers getIamPolicy. The caller asks for a policy of the given version. If the version is less than
// withConditions, the answer lacks the conditions.
func (p *Policy) Get(version int) map[string]any {
	answer, conditional := 1, false
	for _, b := range p.bindings {
		conditional = conditional || b.Condition != nil
	}
	if conditional && version >= withConditions {
		answer = withConditions
	}
	out := map[string]any{"etag": p.etag(), "version": answer}
	if len(p.bindings) > 0 {
		bindings := slices.Clone(p.bindings)
		for i := range bindings {
			if conditional && answer < withConditions && bindings[i].Condition != nil {
				bindings[i].Role += "_withcond_" + strconv.Itoa(i)
				bindings[i].Condition = nil
			}
		}
		out["bindings"] = bindings
	}
	return out
}

func (p *Policy) etag() string { return fmt.Sprintf("BwW%05d", p.changes) }

// Set answers setIamPolicy.
func (p *Policy) Set(given any) (map[string]any, error) {
	text, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	var next struct {
		Bindings []Binding
		Etag     string
		Version  int
	}
	if err := json.Unmarshal(text, &next); err != nil {
		return nil, invalid("%v", err)
	}
	if next.Etag != "" && next.Etag != p.etag() {
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "aborted", Status: "ABORTED",
			Message: "There were concurrent policy changes. Please retry the whole read-modify-write with " +
				"exponential backoff."}
	}
	for _, b := range next.Bindings {
		if b.Condition == nil {
			continue
		}
		if next.Version != withConditions {
			return nil, invalid("Conditions are only supported in policies of version 3.")
		}
		if n := len(operators.FindAllString(b.Condition.Expression, -1)); n > maxOperators {
			return nil, invalid("The condition %q has %d logical operators, at most %d are allowed.",
				b.Condition.Expression, n, maxOperators)
		}
		if _, err := Evaluate(b.Condition.Expression, Attributes{}); err != nil {
			return nil, invalid("The condition %q is invalid: %v", b.Condition.Expression, err)
		}
	}
	// A binding without members is dropped.
	p.bindings = slices.DeleteFunc(next.Bindings, func(b Binding) bool { return len(b.Members) == 0 })
	p.changes++
	return p.Get(withConditions), nil
}

// Bindings returns the bindings.
func (p *Policy) Bindings() []Binding { return slices.Clone(p.bindings) }

// Allows reports whether a binding gives a permission to a member. includes reports whether a role has the permission.
func (p *Policy) Allows(member string, attributes Attributes, includes func(role string) bool) bool {
	return slices.ContainsFunc(p.bindings, func(b Binding) bool {
		if !slices.Contains(b.Members, member) || !includes(b.Role) {
			return false
		}
		if b.Condition == nil {
			return true
		}
		ok, err := Evaluate(b.Condition.Expression, attributes)
		return err == nil && ok
	})
}

func invalid(format string, args ...any) error {
	return &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
		Message: fmt.Sprintf(format, args...)}
}
