package aws

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// ours are the fields of RunInstances that args may not name: what the instance is asked for besides is decided
// elsewhere.
var ours = map[string]string{
	"ClientToken":           "it is the instance's ID",
	"DisableApiTermination": "the server must be able to delete its instances",
	"DryRun":                "nothing would be made",
	"InstanceType":          "it is the group's instance_type",
	"MaxCount":              "every call makes one instance",
	"MinCount":              "every call makes one instance",
	"SubnetId":              "it is taken from the group's subnet_pool",
	"UserData":              "it is the template's userdata",
}

// ValidateArgs checks `args` as they are before rendering: texts that hold templates are taken for what their field
// wants. All problems are reported, each with its path from args on.
func ValidateArgs(args map[string]any) config.Problems {
	var in ec2.RunInstancesInput
	return append(decodeArgs(args, &in, true), checkArgs(&in, true)...)
}

// decodeArgs puts args, a JSON tree in the vocabulary of the RunInstances API, into a request. It is strict: names are
// case-sensitive, and one that the API does not have is an error. Templates yield texts only, so a text that is a
// number or a boolean is taken where the API has one of these. lenient: texts may still be templates.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
func decodeArgs(args map[string]any, in *ec2.RunInstancesInput, lenient bool) config.Problems {
	d := argsDecoder{lenient: lenient}
	allowed := make(map[string]any, len(args))
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if why, refused := ours[name]; refused {
			d.complain("args."+name, why, "is not for args to say")
			continue
		}
		allowed[name] = args[name]
	}
	d.decode("args", allowed, reflect.ValueOf(in).Elem())
	return d.found
}

type argsDecoder struct {
	lenient bool
	found   config.Problems
}

func (d *argsDecoder) complain(path, hint, format string, args ...any) {
	d.found = append(d.found, config.Problem{Path: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

var timeType = reflect.TypeFor[time.Time]()

// maxDepth bounds the nesting of args. The API has five levels.
const maxDepth = 16

func (d *argsDecoder) decode(path string, value any, target reflect.Value) {
	if strings.Count(path, ".") > maxDepth {
		d.complain(path, "", "is nested too deeply")
		return
	}
	if value == nil {
		return // as if it were not there: a merge unsets a value so
	}
	if target.Kind() == reflect.Pointer {
		fresh := reflect.New(target.Type().Elem())
		before := len(d.found)
		if d.decode(path, value, fresh.Elem()); len(d.found) == before && !d.template(value, target.Type().Elem()) {
			target.Set(fresh)
		}
		return
	}
	switch {
	case target.Type() == timeType:
		d.time(path, value, target)
	case target.Kind() == reflect.Struct:
		d.object(path, value, target)
	case target.Kind() == reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			d.complain(path, "", "want a list, have %s", kindOf(value))
			return
		}
		out := reflect.MakeSlice(target.Type(), len(list), len(list))
		for i, element := range list {
			d.decode(fmt.Sprintf("%s[%d]", path, i), element, out.Index(i))
		}
		target.Set(out)
	default:
		d.scalar(path, value, target)
	}
}

// template reports whether a value is a template in the place of something other than text, which nothing can be said
// of before it is rendered.
func (d *argsDecoder) template(value any, want reflect.Type) bool {
	text, ok := value.(string)
	return ok && d.lenient && strings.Contains(text, "{{") && want.Kind() != reflect.String
}

func (d *argsDecoder) object(path string, value any, target reflect.Value) {
	object, ok := value.(map[string]any)
	if !ok {
		d.complain(path, "", "want an object, have %s", kindOf(value))
		return
	}
	var names []string
	for field := range target.Type().Fields() {
		if field.IsExported() {
			names = append(names, field.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := config.ChildPath(path, name)
		if !slices.Contains(names, name) {
			hint := "there are " + strings.Join(names, ", ")
			if similar := config.Nearest(name, names); similar != "" {
				hint = fmt.Sprintf("did you mean %q?", similar)
			}
			d.complain(at, hint, "RunInstances has no such field")
			continue
		}
		d.decode(at, object[name], target.FieldByName(name))
	}
}

func (d *argsDecoder) time(path string, value any, target reflect.Value) {
	if d.template(value, timeType) {
		return
	}
	text, ok := value.(string)
	at, err := time.Parse(time.RFC3339, text)
	if !ok || err != nil {
		d.complain(path, "", "want a time as in 2030-01-02T15:04:05Z")
		return
	}
	target.Set(reflect.ValueOf(at))
}

func (d *argsDecoder) scalar(path string, value any, target reflect.Value) {
	if d.template(value, target.Type()) {
		return
	}
	switch target.Kind() {
	case reflect.String:
		text, ok := value.(string)
		if !ok {
			d.complain(path, "", "want a text, have %s", kindOf(value))
			return
		}
		target.SetString(text)
	case reflect.Bool:
		switch value {
		case true, "true":
			target.SetBool(true)
		case false, "false":
			target.SetBool(false)
		default:
			d.complain(path, "", "want true or false, have %s", kindOf(value))
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		n, ok := integer(value)
		if !ok || target.OverflowInt(n) {
			d.complain(path, "", "want a whole number, have %s", kindOf(value))
			return
		}
		target.SetInt(n)
	case reflect.Float32, reflect.Float64:
		n, ok := number(value)
		if !ok || target.OverflowFloat(n) {
			d.complain(path, "", "want a number, have %s", kindOf(value))
			return
		}
		target.SetFloat(n)
	default:
		d.complain(path, "", "cannot be set: this server does not know %s", target.Type())
	}
}

func integer(value any) (int64, bool) {
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

func number(value any) (float64, bool) {
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

// kindOf says what a JSON value is, and what it says if that is short.
func kindOf(value any) string {
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

// checkArgs says what of decoded args would undo what the provider is for. lenient: texts may still be templates.
func checkArgs(in *ec2.RunInstancesInput, lenient bool) (found config.Problems) {
	complain := func(path, hint, format string, args ...any) {
		found = append(found, config.Problem{Path: "args." + path, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	other := func(text, want string) bool {
		return text != "" && text != want && !(lenient && strings.Contains(text, "{{"))
	}
	if m := in.MetadataOptions; m != nil {
		if required := types.HttpTokensStateRequired; other(string(m.HttpTokens), string(required)) {
			complain("MetadataOptions.HttpTokens", "instances must not answer version 1 of the metadata service",
				"is always %q", required)
		}
		if enabled := types.InstanceMetadataEndpointStateEnabled; other(string(m.HttpEndpoint), string(enabled)) {
			complain("MetadataOptions.HttpEndpoint", "the agent hears of interruptions from there", "is always %q",
				enabled)
		}
	}
	if m := in.InstanceMarketOptions; m != nil && m.SpotOptions != nil {
		const at = "InstanceMarketOptions.SpotOptions."
		if other(string(m.SpotOptions.SpotInstanceType), string(types.SpotInstanceTypeOneTime)) {
			complain(at+"SpotInstanceType", "a persistent request would bring an instance back after its end",
				"is always %q", types.SpotInstanceTypeOneTime)
		}
		if terminate := types.InstanceInterruptionBehaviorTerminate; other(
			string(m.SpotOptions.InstanceInterruptionBehavior), string(terminate)) {
			complain(at+"InstanceInterruptionBehavior", "all else takes a persistent request", "is always %q",
				terminate)
		}
	}
	primary := primaryInterface(in.NetworkInterfaces)
	for i, n := range in.NetworkInterfaces {
		at := fmt.Sprintf("NetworkInterfaces[%d].", i)
		if i == primary && n.SubnetId != nil {
			complain(at+"SubnetId", ours["SubnetId"], "is not for args to say")
		}
		if n.NetworkInterfaceId != nil {
			complain(at+"NetworkInterfaceId", "", "only one instance could have an interface that exists already")
		}
	}
	if len(in.NetworkInterfaces) > 0 {
		if primary < 0 {
			complain("NetworkInterfaces", "", "none has DeviceIndex 0")
		}
		if len(in.SecurityGroupIds) > 0 || len(in.SecurityGroups) > 0 {
			complain("SecurityGroupIds", "put them into NetworkInterfaces[0].Groups",
				"cannot be beside NetworkInterfaces")
		}
	}
	if p := in.Placement; p != nil && (p.AvailabilityZone != nil || p.AvailabilityZoneId != nil) {
		complain("Placement", "", "the zone is the shard's, server.provider.zone")
	}
	for i, spec := range in.TagSpecifications {
		at := fmt.Sprintf("TagSpecifications[%d]", i)
		if spec.ResourceType == "" {
			complain(at+".ResourceType", "", "is missing")
		}
		for j, tag := range spec.Tags {
			if err := checkTag(deref(tag.Key), deref(tag.Value)); err != nil {
				complain(fmt.Sprintf("%s.Tags[%d]", at, j), "", "%v", err)
			}
			if strings.HasPrefix(deref(tag.Key), tagPrefix) {
				complain(fmt.Sprintf("%s.Tags[%d].Key", at, j), "", "tags that begin with %s are the server's",
					tagPrefix)
			}
		}
	}
	return found
}

// primaryInterface finds the interface of device index 0: the one that says so, else a first one that says nothing. -1
// if there is none.
func primaryInterface(list []types.InstanceNetworkInterfaceSpecification) int {
	i := slices.IndexFunc(list, func(n types.InstanceNetworkInterfaceSpecification) bool {
		return n.DeviceIndex != nil && *n.DeviceIndex == 0
	})
	if i < 0 && len(list) > 0 && list[0].DeviceIndex == nil {
		return 0
	}
	return i
}

// deref returns what a pointer points to, the zero value for nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
