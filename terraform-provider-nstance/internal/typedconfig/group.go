package typedconfig

import (
	"reflect"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// GroupAttributes returns the schema of one group. All attributes are optional; the resource marks the required ones.
func GroupAttributes() map[string]schema.Attribute {
	return builder{docs: docs()}.attributes(reflect.TypeFor[config.GroupSpec](), false)
}

// GroupReading is the result of [ReadGroup].
type GroupReading struct {
	Spec config.GroupSpec
	// Unknown lists the paths of values that Terraform does not know yet.
	Unknown   []string
	malformed config.Problems
}

// Known reports whether all values are known.
func (r GroupReading) Known() bool { return len(r.Unknown) == 0 }

// ReadGroup reads the attributes of [GroupAttributes] by name. It ignores other attributes.
func ReadGroup(attributes map[string]tftypes.Value) GroupReading {
	r, out := Reading{}, GroupReading{}
	r.fields(attributes, nil, reflect.ValueOf(&out.Spec).Elem())
	out.Unknown, out.malformed = r.Unknown, r.malformed
	return out
}

// Problems returns the mistakes that can be found without the configuration of the shard. The server validates the
// rest. If any value is unknown, Problems reports only values that cannot be parsed. Paths are relative to the group,
// see [GroupAttributePath].
func (r GroupReading) Problems() config.Problems {
	if len(r.malformed) > 0 || !r.Known() {
		return r.malformed
	}
	const tenant, name = "t", "g"
	text := config.EncodeGroups(config.Groups{Tenants: map[string]map[string]config.GroupSpec{tenant: {name: r.Spec}}})
	_, problems := config.ParseGroups("", text)
	for i, p := range problems {
		problems[i].Path = strings.TrimPrefix(strings.TrimPrefix(p.Path, tenant+"."+name), ".")
		problems[i].Line, problems[i].Col = 0, 0 // positions in the generated text mean nothing to the user
	}
	return problems
}

// WriteGroup returns a group's attributes by name, with their values. types has each attribute's type in the resource's
// schema. Fields that are not set become null.
func WriteGroup(spec config.GroupSpec, types map[string]tftypes.Type) map[string]tftypes.Value {
	return write(reflect.ValueOf(spec), types)
}

// GroupAttributePath returns the attribute of one group that contains problemPath. It returns an empty path if
// problemPath cannot be parsed.
func GroupAttributePath(problemPath string) path.Path {
	elements, err := config.SplitPath(problemPath)
	if err != nil {
		return path.Empty()
	}
	return walk(elements, reflect.TypeFor[config.GroupSpec](), path.Empty())
}
