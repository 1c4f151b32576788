// Package apiargs checks args of the shard configuration against the fields and JSON types of a cloud's API.
//
// The tables of fields are generated from the clouds' SDKs, so that no program has to link an SDK to check args.
package apiargs

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/suggest"
)

// maxDepth bounds the nesting of args. The APIs have at most six levels.
const maxDepth = 16

// Call describes the API call that takes the args.
type Call struct {
	// Name is the call's name in messages. Reference says where its parameters are documented.
	Name, Reference string
	// Fields holds the fields of each object: type → field → type of the field. A type is one of
	//
	//   - the name of an object
	//   - string, bool, int32, int64, float64 or time
	//   - int64 text (a whole number that the API takes as text) or base64
	//   - [] (a list) or map[string] (an object with arbitrary names), followed by one of these types
	Fields map[string]map[string]string
	// Root is the type of args as a whole.
	Root string
	// Reserved are the fields that args may not set, each with the reason.
	Reserved map[string]string
	// Rules reports values in decoded args that would break the server's own guarantees.
	Rules func(d *Decoder, args map[string]any)
}

// DecodeArgs checks args against the fields, types and rules of the call. It returns args with every value in the type
// of its field. Texts with numbers or booleans are converted, because templates yield only texts. Names are
// case-sensitive. A null counts as absent, because a merge uses null to unset a value.
//
// If templates is true, texts may contain templates that are not rendered yet. The result then leaves out each template
// in a field that is not of type text.
func (c Call) DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	d := &Decoder{Call: c, Templates: templates}
	decoded := d.decode(args)
	c.Rules(d, decoded)
	return decoded, d.Found
}

// CheckArgs returns the problems of args with templates.
func (c Call) CheckArgs(args map[string]any) []cloud.Problem {
	_, problems := c.DecodeArgs(args, true)
	return problems
}

// Objects returns the elements of a decoded list of objects.
func Objects(list any) []map[string]any {
	elements, _ := list.([]any)
	out := make([]map[string]any, 0, len(elements))
	for _, element := range elements {
		object, _ := element.(map[string]any)
		out = append(out, object)
	}
	return out
}

// SetByServer is the message about a field that args may not set.
const SetByServer = "cannot be set in args"

// Decoder checks args and collects their problems.
type Decoder struct {
	Call Call
	// Templates reports whether texts may contain templates that are not rendered yet.
	Templates bool
	// Found are the problems so far.
	Found []cloud.Problem
}

// decode checks args against the fields and types of the call.
func (d *Decoder) decode(args map[string]any) map[string]any {
	allowed := make(map[string]any, len(args))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if reason, ok := d.Call.Reserved[name]; ok {
			d.Report([]any{name}, reason, SetByServer)
			continue
		}
		allowed[name] = args[name]
	}
	decoded, _ := d.object(nil, allowed, d.Call.Root).(map[string]any)
	return decoded
}

// Report adds a problem. Its message is the format with args filled in.
func (d *Decoder) Report(path []any, hint, format string, args ...any) {
	d.Found = append(d.Found, cloud.Problem{Path: slices.Clone(path), Message: fmt.Sprintf(format, args...),
		Hint: hint})
}

// ReportWritten is [Decoder.Report] for a problem that is an error only when a configuration is written.
func (d *Decoder) ReportWritten(path []any, hint, format string, args ...any) {
	d.Report(path, hint, format, args...)
	d.Found[len(d.Found)-1].WhenWritten = true
}

// value returns a value in the type of its field, or nil if it is absent or wrong.
func (d *Decoder) value(path []any, value any, typ string) any {
	switch {
	case len(path) > maxDepth:
		d.Report(path, "", "is nested too deeply")
		return nil
	case value == nil:
		return nil
	case strings.HasPrefix(typ, "[]"):
		return d.list(path, value, strings.TrimPrefix(typ, "[]"))
	case strings.HasPrefix(typ, "map[string]"):
		return d.anyNames(path, value, strings.TrimPrefix(typ, "map[string]"))
	case d.Call.Fields[typ] != nil:
		return d.object(path, value, typ)
	case typ != "string" && d.IsTemplate(value):
		return nil
	}
	return d.scalar(path, value, typ)
}

// IsTemplate reports whether a value is a text with a template that is not rendered yet.
func (d *Decoder) IsTemplate(value any) bool {
	text, ok := value.(string)
	return ok && d.Templates && strings.Contains(text, "{{")
}

func (d *Decoder) list(path []any, value any, typ string) any {
	list, ok := value.([]any)
	if !ok {
		d.Report(path, "", "want a list, have %s", describeValue(value))
		return nil
	}
	out := make([]any, len(list))
	for i, element := range list {
		if out[i] = d.value(append(path, i), element, typ); out[i] == nil && d.Call.Fields[typ] != nil {
			out[i] = map[string]any{}
		}
	}
	return out
}

func (d *Decoder) object(path []any, value any, typ string) any {
	object, ok := value.(map[string]any)
	if !ok {
		d.Report(path, "", "want an object, have %s", describeValue(value))
		return nil
	}
	fields, out := d.Call.Fields[typ], map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := append(path, name)
		fieldType, known := fields[name]
		if !known {
			names := slices.Sorted(maps.Keys(fields))
			hint := "see " + d.Call.Reference
			if len(names) <= 12 {
				hint = "there are " + strings.Join(names, ", ")
			}
			if similar := suggest.Nearest(name, names); similar != "" {
				hint = fmt.Sprintf("did you mean %q?", similar)
			}
			d.Report(at, hint, "%s has no such field", d.Call.Name)
			continue
		}
		if decoded := d.value(at, object[name], fieldType); decoded != nil {
			out[name] = decoded
		}
	}
	return out
}

func (d *Decoder) anyNames(path []any, value any, typ string) any {
	object, ok := value.(map[string]any)
	if !ok {
		d.Report(path, "", "want an object, have %s", describeValue(value))
		return nil
	}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if decoded := d.value(append(path, name), object[name], typ); decoded != nil {
			out[name] = decoded
		}
	}
	return out
}

func (d *Decoder) scalar(path []any, value any, typ string) any {
	switch typ {
	case "string":
		if text, ok := value.(string); ok {
			return text
		}
		d.Report(path, "", "want a text, have %s", describeValue(value))
	case "bool":
		switch value {
		case true, "true":
			return true
		case false, "false":
			return false
		}
		d.Report(path, "", "want true or false, have %s", describeValue(value))
	case "int32", "int64":
		n, ok := toInteger(value)
		if ok && (typ == "int64" || int64(int32(n)) == n) { //nolint:gosec // compared with the original
			return n
		}
		d.Report(path, "", "want a whole number, have %s", describeValue(value))
	case "int64 text":
		if n, ok := toInteger(value); ok {
			return strconv.FormatInt(n, 10)
		}
		d.Report(path, "", "want a whole number, have %s", describeValue(value))
	case "base64":
		text, ok := value.(string)
		if _, err := base64.StdEncoding.DecodeString(text); ok && err == nil {
			return text
		}
		d.Report(path, "", "want bytes in base64")
	case "float64":
		if n, ok := toNumber(value); ok {
			return n
		}
		d.Report(path, "", "want a number, have %s", describeValue(value))
	case "time":
		text, _ := value.(string)
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			return at
		}
		d.Report(path, "", "want a time such as 2030-01-02T15:04:05Z")
	}
	return nil
}

func toInteger(value any) (int64, bool) {
	switch v := value.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	case float64:
		n := int64(v)
		return n, math.Abs(v) < 1<<53 && float64(n) == v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil && strconv.FormatInt(n, 10) == v
	default:
		return 0, false
	}
}

func toNumber(value any) (float64, bool) {
	switch v := value.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case float64:
		return v, !math.IsNaN(v) && !math.IsInf(v, 0)
	case string:
		n, err := strconv.ParseFloat(v, 64)
		return n, err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
	default:
		return 0, false
	}
}

// describeValue describes a JSON value in words. It quotes short values.
func describeValue(value any) string {
	switch v := value.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		if len(v) <= 32 {
			return strconv.Quote(v)
		}
		return "a text"
	default:
		return fmt.Sprint(v)
	}
}
