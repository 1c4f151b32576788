package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/suggest"
)

// checker collects the problems of a document that is already decoded into config types. Its paths are paths in that
// document.
type checker struct {
	s     *Shard // with defaults filled in
	found []finding
	// rendered marks the problems of templates that were already reported, by path and message. Many groups may share a
	// template, so the same problem would be reported for each of them.
	rendered map[string]bool
}

// problems returns the collected problems, without positions.
func (c *checker) problems() Problems {
	var out Problems
	for _, f := range c.found {
		out = append(out, f.problem())
	}
	return out
}

func (c *checker) add(path, format string, args ...any) *finding {
	c.found = append(c.found, finding{path: path, offset: -1, message: fmt.Sprintf(format, args...)})
	return &c.found[len(c.found)-1]
}

// err reports err as a problem of the field at path, unless err is nil.
func (c *checker) err(path string, err error) {
	if err != nil {
		c.add(path, "%v", err)
	}
}

// key reports err as a problem of the map key at path, unless err is nil.
func (c *checker) key(path string, err error) {
	if err != nil {
		c.add(path, "%v", err).onKey = true
	}
}

// reference returns true if the map `in` has the key `name`. Otherwise it reports at path that there is no such object,
// and returns false. `what` is the kind of object, for the message. target is the path of the map.
func reference[V any](c *checker, path, what, name string, in map[string]V, target string) bool {
	if _, ok := in[name]; ok {
		return true
	}
	names := sortedKeys(in)
	f := c.add(path, "there is no %s %s", what, quote(name))
	f.depends = []string{target}
	switch similar := suggest.Nearest(name, names); {
	case similar != "":
		f.hint = fmt.Sprintf("did you mean %q?", similar)
	case len(names) > 0 && len(names) <= 20:
		f.hint = "there are " + strings.Join(names, ", ")
	}
	return false
}

// fields checks every config struct in v against the rules in its struct tags.
func (c *checker) fields(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			c.fields(v.Elem(), path)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			at, value := ChildPath(path, f.name), f.in(v)
			// A missing struct is not reported itself. Instead, the required fields in it are reported as missing.
			if f.required && isZero(value) && !f.positive && f.Type.Kind() != reflect.Struct {
				c.add(at, "is required")
				continue
			}
			c.rules(f, value, at)
			c.fields(value, at)
		}
	case reflect.Slice:
		for i := range v.Len() {
			c.fields(v.Index(i), element(path, i))
		}
	case reflect.Map:
		keys := make([]string, 0, v.Len())
		for _, key := range v.MapKeys() {
			keys = append(keys, key.String())
		}
		slices.Sort(keys)
		for _, key := range keys {
			c.fields(v.MapIndex(reflect.ValueOf(key)), ChildPath(path, key))
		}
	}
}

func (c *checker) rules(f field, v reflect.Value, path string) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		switch n := v.Int(); {
		case f.positive && n <= 0:
			c.add(path, "must be more than 0")
		case n < 0 && (f.nonnegative || v.Type() == reflect.TypeFor[Duration]()):
			c.add(path, "cannot be negative")
		}
	case reflect.String:
		s := v.String()
		if f.enum == nil || s == "" || slices.Contains(f.enum, s) {
			return
		}
		p := c.add(path, "%s is none of %s", quote(s), strings.Join(f.enum, ", "))
		if similar := suggest.Nearest(s, f.enum); similar != "" {
			p.hint = fmt.Sprintf("did you mean %q?", similar)
		}
	}
}

// validateKey checks the names of load balancers, certificates and files. These names are not identifiers, and they are
// not part of a bucket key.
func validateKey(what, s string) error {
	switch {
	case s == "" || len(s) > 128:
		return fmt.Errorf("the name of a %s has 1 to 128 characters, not %d", what, len(s))
	case !keyPattern.MatchString(s):
		return fmt.Errorf(
			"the name of a %s has letters, digits, dots, underscores and dashes, and begins with a letter or digit",
			what)
	}
	return nil
}

var (
	keyPattern        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	identifierPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// validateIdentifier checks the name of an image. Templates refer to the image as {{ .Image.name }}.
func validateIdentifier(s string) error {
	switch {
	case s == "" || len(s) > 128:
		return errors.New("the name of an image has 1 to 128 characters")
	case !identifierPattern.MatchString(s):
		return fmt.Errorf(
			"%s has to be an identifier, for {{ .Image.name }}: letters, digits and underscores, no digit first",
			quote(s))
	}
	return nil
}

// distinct reports values that are empty or repeated.
func (c *checker) distinct(list []string, path string) {
	for i, value := range list {
		switch first := slices.Index(list, value); {
		case value == "":
			c.add(element(path, i), "is empty")
		case first < i:
			c.add(element(path, i), "%s is there twice", quote(value))
		}
	}
}
