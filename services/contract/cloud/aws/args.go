package aws

import (
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

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

const (
	// argsType is the name in argFields of args as a whole.
	argsType = "RunInstancesInput"
	// maxDepth bounds the nesting of args. The API has five levels.
	maxDepth = 16
)

// reserved are the fields of RunInstances that args may not set, each with the reason.
var reserved = map[string]string{
	"ClientToken":           "it is the instance's ID",
	"DisableApiTermination": "the server must be able to delete its instances",
	"DryRun":                "nothing would be created",
	"InstanceType":          "it is the group's instance_type",
	"MaxCount":              "every call creates one instance",
	"MinCount":              "every call creates one instance",
	"SubnetId":              reasonSubnet,
	"UserData":              "it is the template's userdata",
}

const (
	reasonSubnet = "it is taken from the group's subnet_pool"
	setByServer  = "cannot be set in args"
)

// DecodeArgs checks args against the fields and types of the RunInstances API and the server's own rules. It returns
// args with every value in the type of its field. Texts with numbers or booleans are converted, because templates yield
// only texts. Names are case-sensitive. A null counts as absent, because a merge uses null to unset a value.
//
// With templates, texts may still contain templates, as before rendering. The result omits a template in a field of a
// type other than text. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	d := argsDecoder{templates: templates}
	allowed := make(map[string]any, len(args))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if reason, ok := reserved[name]; ok {
			d.report([]any{name}, reason, setByServer)
			continue
		}
		allowed[name] = args[name]
	}
	decoded, _ := d.object(nil, allowed, argsType).(map[string]any)
	d.checkRules(decoded)
	return decoded, d.found
}

func checkArgs(args map[string]any) []cloud.Problem {
	_, problems := DecodeArgs(args, true)
	return problems
}

type argsDecoder struct {
	templates bool
	found     []cloud.Problem
}

func (d *argsDecoder) report(path []any, hint, format string, args ...any) {
	d.found = append(d.found, cloud.Problem{Path: slices.Clone(path), Message: fmt.Sprintf(format, args...),
		Hint: hint})
}

// value returns a value in the type of its field, or nil if it is absent or wrong.
func (d *argsDecoder) value(path []any, value any, typ string) any {
	switch {
	case len(path) > maxDepth:
		d.report(path, "", "is nested too deeply")
		return nil
	case value == nil:
		return nil
	case strings.HasPrefix(typ, "[]"):
		return d.list(path, value, strings.TrimPrefix(typ, "[]"))
	case argFields[typ] != nil:
		return d.object(path, value, typ)
	case typ != "string" && d.isTemplate(value):
		return nil
	}
	return d.scalar(path, value, typ)
}

func (d *argsDecoder) isTemplate(value any) bool {
	text, ok := value.(string)
	return ok && d.templates && strings.Contains(text, "{{")
}

func (d *argsDecoder) list(path []any, value any, typ string) any {
	list, ok := value.([]any)
	if !ok {
		d.report(path, "", "want a list, have %s", describeValue(value))
		return nil
	}
	out := make([]any, len(list))
	for i, element := range list {
		if out[i] = d.value(append(path, i), element, typ); out[i] == nil && argFields[typ] != nil {
			out[i] = map[string]any{}
		}
	}
	return out
}

func (d *argsDecoder) object(path []any, value any, typ string) any {
	object, ok := value.(map[string]any)
	if !ok {
		d.report(path, "", "want an object, have %s", describeValue(value))
		return nil
	}
	fields, out := argFields[typ], map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := append(path, name)
		fieldType, known := fields[name]
		if !known {
			names := slices.Sorted(maps.Keys(fields))
			hint := "see the request parameters of RunInstances in the EC2 API reference"
			if len(names) <= 12 {
				hint = "there are " + strings.Join(names, ", ")
			}
			if similar := suggest.Nearest(name, names); similar != "" {
				hint = fmt.Sprintf("did you mean %q?", similar)
			}
			d.report(at, hint, "RunInstances has no such field")
			continue
		}
		if decoded := d.value(at, object[name], fieldType); decoded != nil {
			out[name] = decoded
		}
	}
	return out
}

func (d *argsDecoder) scalar(path []any, value any, typ string) any {
	switch typ {
	case "string":
		if text, ok := value.(string); ok {
			return text
		}
		d.report(path, "", "want a text, have %s", describeValue(value))
	case "bool":
		switch value {
		case true, "true":
			return true
		case false, "false":
			return false
		}
		d.report(path, "", "want true or false, have %s", describeValue(value))
	case "int32", "int64":
		n, ok := toInteger(value)
		if ok && (typ == "int64" || int64(int32(n)) == n) { //nolint:gosec // compared with the original
			return n
		}
		d.report(path, "", "want a whole number, have %s", describeValue(value))
	case "float64":
		if n, ok := toNumber(value); ok {
			return n
		}
		d.report(path, "", "want a number, have %s", describeValue(value))
	case "time":
		text, _ := value.(string)
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			return at
		}
		d.report(path, "", "want a time such as 2030-01-02T15:04:05Z")
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
