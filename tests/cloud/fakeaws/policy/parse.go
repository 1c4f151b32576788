package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kind says what a policy document is used for. It decides which elements the document must and must not have.
type Kind int

// Kinds of documents.
const (
	Identity Kind = iota // of a role: no Principal
	Resource             // of a bucket or a secret: Principal and Resource
	Trust                // who may assume a role: Principal, no Resource
)

var (
	sidForm    = regexp.MustCompile(`^[A-Za-z0-9 ]*$`)
	actionForm = regexp.MustCompile(`^(\*|[A-Za-z0-9-]+:[A-Za-z0-9*?]+)$`)
	keyForm    = regexp.MustCompile(`^[A-Za-z0-9.-]+:[^\s].*$`)
	account    = regexp.MustCompile(`^[0-9]{12}$`)
)

// maxNesting exceeds the depth of any policy: the deepest path is Statement → Condition → operator → key → list.
const maxNesting = 8

// Parse reads a policy document. Errors have the wording of IAM's MalformedPolicyDocument and name the statement.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
func Parse(kind Kind, text string) (*Document, error) {
	root, err := readObject(text)
	if err != nil {
		return nil, fmt.Errorf("syntax errors in policy: %w", err)
	}
	doc := &Document{Version: "2008-10-17"}
	for _, name := range slices.Sorted(maps.Keys(root)) {
		switch value := root[name]; name {
		case "Version":
			doc.Version, _ = value.(string)
			if doc.Version != "2012-10-17" && doc.Version != "2008-10-17" {
				return nil, fmt.Errorf("the policy must contain a valid version string, not %v", value)
			}
		case "Id":
			id, ok := value.(string)
			if !ok {
				return nil, errors.New("the policy's Id is not a string")
			}
			doc.ID = id
		case "Statement":
			if doc.Statements, err = statements(kind, value); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("syntax errors in policy: unknown element %q", name)
		}
	}
	if len(doc.Statements) == 0 {
		return nil, errors.New("the policy has no statement")
	}
	return doc, nil
}

func statements(kind Kind, value any) ([]Statement, error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	out := make([]Statement, 0, len(list))
	seen := map[string]bool{}
	for i, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("statement %d is not an object", i+1)
		}
		s, err := statement(kind, object)
		if err != nil {
			return nil, fmt.Errorf("statement %d: %w", i+1, err)
		}
		if s.SID != "" && seen[s.SID] {
			return nil, fmt.Errorf("statement IDs (SID) in a single policy must be unique: %s", s.SID)
		}
		seen[s.SID] = true
		out = append(out, s)
	}
	return out, nil
}

func statement(kind Kind, object map[string]any) (Statement, error) {
	var s Statement
	for _, name := range slices.Sorted(maps.Keys(object)) {
		var err error
		switch value := object[name]; name {
		case "Sid":
			s.SID, err = text(value)
			if err == nil && !sidForm.MatchString(s.SID) {
				err = errors.New("only letters, digits and spaces are allowed")
			}
		case "Effect":
			var effect string
			if effect, err = text(value); err == nil && effect != "Allow" && effect != "Deny" {
				err = fmt.Errorf("%q is neither Allow nor Deny", effect)
			}
			s.Deny = effect == "Deny"
		case "Action":
			s.Actions, err = actions(value)
		case "NotAction":
			s.NotActions, err = actions(value)
		case "Resource":
			s.Resources, err = resources(value)
		case "NotResource":
			s.NotResources, err = resources(value)
		case "Principal":
			s.Principals, err = principals(value)
		case "Condition":
			s.Conditions, err = conditions(value)
		default:
			err = errors.New("unknown element, or one that is not supported here")
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s, s.check(kind, object)
}

// check refuses missing elements, and elements that the kind does not allow.
func (s *Statement) check(kind Kind, object map[string]any) error {
	if _, ok := object["Effect"]; !ok {
		return errors.New("missing required field Effect")
	}
	if (len(s.Actions) == 0) == (len(s.NotActions) == 0) {
		return errors.New("policy statement must contain actions: either Action or NotAction")
	}
	if (s.Principals == nil) != (kind == Identity) {
		if kind == Identity {
			return errors.New("policy document should not specify a principal")
		}
		return errors.New("missing required field Principal")
	}
	if kind == Trust {
		if s.Resources != nil || s.NotResources != nil {
			return errors.New("has prohibited field Resource")
		}
		return nil
	}
	if (len(s.Resources) == 0) == (len(s.NotResources) == 0) {
		return errors.New("policy statement must contain resources: either Resource or NotResource")
	}
	return nil
}

func text(value any) (string, error) {
	s, ok := value.(string)
	if !ok {
		return "", errors.New("not a string")
	}
	return s, nil
}

// texts reads a string or a list of strings.
func texts(value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	if len(list) == 0 {
		return nil, errors.New("the list is empty")
	}
	out := make([]string, 0, len(list))
	for _, item := range list {
		s, err := text(item)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func actions(value any) ([]string, error) {
	list, err := texts(value)
	for _, a := range list {
		if !actionForm.MatchString(a) {
			return nil, fmt.Errorf("actions must be prefaced by a vendor, e.g. iam, ec2: %q", a)
		}
	}
	return list, err
}

func resources(value any) ([]string, error) {
	list, err := texts(value)
	for _, r := range list {
		if r != "*" && !strings.HasPrefix(r, "arn:") {
			return nil, fmt.Errorf("resource %q must be in ARN format or \"*\"", r)
		}
	}
	return list, err
}

func principals(value any) (*Principals, error) {
	if s, ok := value.(string); ok {
		if s != "*" {
			return nil, fmt.Errorf("invalid principal %q", s)
		}
		return &Principals{Any: true}, nil
	}
	object, ok := value.(map[string]any)
	if !ok || len(object) == 0 {
		return nil, errors.New("not \"*\" and not an object of principals")
	}
	p := &Principals{}
	for _, kind := range slices.Sorted(maps.Keys(object)) {
		list, err := texts(object[kind])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		switch kind {
		case "AWS":
			for _, who := range list {
				switch {
				case who == "*":
					p.Any = true
				case account.MatchString(who), strings.HasPrefix(who, "arn:") && !strings.ContainsAny(who, "*?"):
					p.AWS = append(p.AWS, who)
				default:
					return nil, fmt.Errorf("invalid principal in policy: %q", who)
				}
			}
		case "Service":
			p.Services = append(p.Services, list...)
		case "Federated":
			p.Federated = append(p.Federated, list...)
		case "CanonicalUser": // no principal of this kind exists here
		default:
			return nil, fmt.Errorf("unknown kind of principal %q", kind)
		}
	}
	return p, nil
}

func conditions(value any) ([]Condition, error) {
	object, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("not an object of operators")
	}
	var out []Condition
	for _, operator := range slices.Sorted(maps.Keys(object)) {
		c, err := parseOperator(operator)
		if err != nil {
			return nil, err
		}
		keys, ok := object[operator].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: not an object of keys", operator)
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if !keyForm.MatchString(key) {
				return nil, fmt.Errorf("conditions must be prefaced by a vendor, e.g. iam, ec2: %q", key)
			}
			if c.Values, err = conditionValues(keys[key]); err == nil {
				err = operators[c.Operator].check(c.Values)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", operator, key, err)
			}
			c.Key = key
			out = append(out, c)
		}
	}
	return out, nil
}

func parseOperator(name string) (Condition, error) {
	c := Condition{Operator: name}
	if set, operator, ok := strings.Cut(name, ":"); ok {
		if set != "ForAllValues" && set != "ForAnyValue" {
			return c, fmt.Errorf("invalid condition type: %s", name)
		}
		c.Set, c.Operator = set, operator
	}
	c.Operator, c.IfExists = strings.CutSuffix(c.Operator, "IfExists")
	if _, ok := operators[c.Operator]; !ok || c.Operator == "Null" && (c.IfExists || c.Set != "") {
		return c, fmt.Errorf("invalid condition type: %s", name)
	}
	return c, nil
}

// conditionValues reads a string, number or boolean, or a list of them. It returns numbers and booleans as their JSON
// text.
func conditionValues(value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	if len(list) == 0 {
		return nil, errors.New("the list is empty")
	}
	out := make([]string, 0, len(list))
	for _, item := range list {
		switch v := item.(type) {
		case string:
			out = append(out, v)
		case json.Number:
			out = append(out, v.String())
		case bool:
			out = append(out, strconv.FormatBool(v))
		default:
			return nil, errors.New("not a string, a number or a boolean")
		}
	}
	return out, nil
}

// readObject reads one JSON object and refuses duplicate names. encoding/json alone would use the last one.
func readObject(s string) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader([]byte(s)))
	dec.UseNumber()
	value, err := readValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the document")
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return object, nil
}

func readValue(dec *json.Decoder, depth int) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxNesting {
		return nil, errors.New("nested too deeply")
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			item, err := readValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		_, err := dec.Token()
		return list, err
	case json.Delim('{'):
		object := map[string]any{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key := name.(string) // the decoder allows only strings as names
			if _, twice := object[key]; twice {
				return nil, fmt.Errorf("%q appears twice", key)
			}
			if object[key], err = readValue(dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := dec.Token()
		return object, err
	}
	return token, nil
}
