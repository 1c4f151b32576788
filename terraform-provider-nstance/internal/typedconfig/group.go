package typedconfig

import (
	"reflect"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// GroupAttributes returns the schema of one group. Whether an attribute may be left out is for the resource to say.
func GroupAttributes() map[string]schema.Attribute {
	return builder{docs: docs()}.attributes(reflect.TypeFor[config.GroupSpec](), false)
}

// GroupReading is what attribute values say of one group.
type GroupReading struct {
	Spec config.GroupSpec
	// Unknown are the paths of values that Terraform does not know yet.
	Unknown   []string
	malformed config.Problems
}

// Known reports whether nothing is unknown.
func (r GroupReading) Known() bool { return len(r.Unknown) == 0 }

// ReadGroup reads the attributes of [GroupAttributes], by name; others are ignored.
func ReadGroup(attributes map[string]tftypes.Value) GroupReading {
	r, out := Reading{}, GroupReading{}
	r.fields(attributes, nil, reflect.ValueOf(&out.Spec).Elem())
	out.Unknown, out.malformed = r.Unknown, r.malformed
	return out
}

// Problems returns what is wrong with the group by itself: the rest is for the server to say, which knows the shard's
// configuration. Of a group that is not all known, it is only what cannot be read. Paths begin at the group, see
// [GroupAttributePath].
func (r GroupReading) Problems() config.Problems {
	if len(r.malformed) > 0 || !r.Known() {
		return r.malformed
	}
	const tenant, name = "t", "g"
	text := config.EncodeGroups(config.Groups{Tenants: map[string]map[string]config.GroupSpec{tenant: {name: r.Spec}}})
	_, problems := config.ParseGroups("", text)
	for i, p := range problems {
		problems[i].Path = strings.TrimPrefix(strings.TrimPrefix(p.Path, tenant+"."+name), ".")
		problems[i].Line, problems[i].Col = 0, 0 // of a document that nobody has seen
	}
	return problems
}

// WriteGroup returns the values of the attributes of [GroupAttributes], by name. Types are those of the resource's
// schema. What is not set is null.
func WriteGroup(spec config.GroupSpec, types map[string]tftypes.Type) map[string]tftypes.Value {
	return write(reflect.ValueOf(spec), types)
}

// GroupAttributePath returns the attribute of one group in which a problem's path lies.
func GroupAttributePath(problemPath string) path.Path {
	elements, err := config.SplitPath(problemPath)
	if err != nil {
		return path.Empty()
	}
	return walk(elements, reflect.TypeFor[config.GroupSpec](), path.Empty())
}
