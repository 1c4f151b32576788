package rest

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// check compares a JSON value with its schema.
func (d *document) check(at string, s *schema, value any) error {
	for s != nil && s.Ref != "" {
		s = d.Schemas[s.Ref]
	}
	if s == nil || value == nil || s.Type == "any" {
		return nil
	}
	ok := true
	switch s.Type {
	case "object":
		return d.checkObject(at, s, value)
	case "array":
		list, isList := value.([]any)
		if !isList {
			return wrongType(at, "array")
		}
		for i, element := range list {
			if err := d.check(at+"["+strconv.Itoa(i)+"]", s.Items, element); err != nil {
				return err
			}
		}
	case "boolean":
		_, ok = value.(bool)
	case "integer", "number":
		var n float64
		n, ok = toNumber(value)
		ok = ok && (s.Type == "number" || n == math.Trunc(n) && (s.Format != "int32" || math.Abs(n) <= math.MaxInt32))
	case "string":
		return checkText(at, s, value)
	}
	if !ok {
		return wrongType(at, s.Type)
	}
	return nil
}

func (d *document) checkObject(at string, s *schema, value any) error {
	object, ok := value.(map[string]any)
	if !ok {
		return wrongType(at, "object")
	}
	for name, field := range object {
		below, known := s.Properties[name]
		if !known {
			below = s.Names
		}
		if below == nil {
			return invalid("Invalid JSON payload received. Unknown name %q at %q: Cannot find field.", name, at)
		}
		if err := d.check(at+"."+name, below, field); err != nil {
			return err
		}
	}
	return nil
}

func checkText(at string, s *schema, value any) error {
	text, ok := value.(string)
	if number, isNumber := value.(json.Number); isNumber && (s.Format == "int64" || s.Format == "uint64") {
		text, ok = number.String(), true
	}
	if !ok {
		return wrongType(at, "string")
	}
	var err error
	switch s.Format {
	case "int64":
		_, err = strconv.ParseInt(text, 10, 64)
	case "uint64":
		_, err = strconv.ParseUint(text, 10, 64)
	case "byte":
		_, err = base64.StdEncoding.DecodeString(text)
		if err != nil {
			_, err = base64.URLEncoding.DecodeString(text)
		}
	}
	if err != nil {
		return wrongType(at, s.Format)
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, text) {
		return invalid("Invalid value for field %q: %q is none of %v", at, text, s.Enum)
	}
	return nil
}

func toNumber(value any) (float64, bool) {
	switch value := value.(type) {
	case float64:
		return value, true
	case json.Number:
		n, err := value.Float64()
		return n, err == nil
	}
	return 0, false
}

func wrongType(at, want string) error {
	return invalid("Invalid JSON payload received. Invalid value at %q: want %s", at, want)
}
