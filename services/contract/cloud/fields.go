package cloud

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Field is an option or an argument that a cloud knows.
type Field[V any] struct {
	// Parse reads the value. Nil: every value is accepted.
	Parse func(value V) error
	// Hint says how to write the value. Optional.
	Hint string
	// Refused says why the name may not be used. Hints do not list such a name. Empty: it may be used.
	Refused string
}

// Check returns a check that parses a value and returns only its problems.
func Check[V, T any](parse func(V) (T, []Problem)) func(V) []Problem {
	return func(value V) []Problem {
		_, problems := parse(value)
		return problems
	}
}

// ParseFields reads the values in raw, sorted by name, and returns all problems. unknown is the message for a name
// without a field.
func ParseFields[V any](raw map[string]V, unknown string, fields map[string]Field[V]) (found []Problem) {
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		field, known := fields[name]
		problem := Problem{Path: []any{name}, Message: field.Refused, Hint: field.Hint}
		if !known {
			problem.Message, problem.Hint = unknown, listFields(fields)
		} else if field.Parse != nil {
			if err := field.Parse(raw[name]); err != nil {
				problem.Message = err.Error()
			}
		}
		if problem.Message != "" {
			found = append(found, problem)
		}
	}
	return found
}

func listFields[V any](fields map[string]Field[V]) string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(name string) bool {
		return fields[name].Refused != ""
	})
	if len(names) == 1 {
		return "there is " + names[0]
	}
	return "there are " + strings.Join(names, ", ")
}

// Matching returns a function that stores a text. It returns an error with the text if the pattern does not match.
func Matching(pattern *regexp.Regexp, into *string, format string) func(string) error {
	return func(text string) error {
		if *into = text; !pattern.MatchString(text) {
			return fmt.Errorf(format, text)
		}
		return nil
	}
}

// MatchingArg is [Matching] for an argument of any type. A text that holds a template is not checked.
func MatchingArg(pattern *regexp.Regexp, into *string, format string) func(any) error {
	return func(value any) error {
		text, ok := value.(string)
		if !ok {
			return errors.New("is not a string")
		}
		err := Matching(pattern, into, format)(text)
		if strings.Contains(text, "{{") {
			return nil
		}
		return err
	}
}
