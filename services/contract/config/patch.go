package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/tailscale/hujson"
)

// MaxPatch is the maximum size of a patch in bytes.
const MaxPatch = 96 << 10

// Patch is a JSON merge patch (RFC 7396) of a [GroupSpec]: a member with a value sets a field, a member with null
// removes the group's own value, and other fields stay. The zero value changes nothing.
type Patch struct{ tree map[string]any }

// ParsePatch parses a patch, which is JSON with comments and trailing commas. It is as strict as [Parse]: it reports
// unknown and repeated fields, wrong types, and fields that only the server sets. It does not need the group. The
// patch changes nothing if there are errors.
func ParsePatch(filename string, src []byte) (Patch, Problems) {
	d := &decoder{file: filename, src: src, patch: true}
	if len(src) > MaxPatch {
		d.add(0, "", "the group has %d bytes, at most %d are allowed", len(src), MaxPatch)
		return Patch{}, d.problems(nil)
	}
	root, ok := d.parse()
	if !ok {
		return Patch{}, d.problems(nil)
	}
	d.decode(root, "", reflect.ValueOf(&GroupSpec{}).Elem(), field{})
	for _, name := range serverFields {
		if at, set := d.keys[name]; set {
			d.add(at, name, "only the server sets this field")
		}
	}
	if problems := d.problems(nil); len(problems.Errors()) > 0 {
		return Patch{}, problems
	}
	tree, _ := (&decoder{src: src, keys: map[string]int{}, values: map[string]int{}}).tree(root, "").(map[string]any)
	for _, name := range sortedKeys(tree) {
		if name != "args" && name != "vars" && hasControl(tree[name]) {
			d.add(d.keys[name], name, "holds control characters")
		}
	}
	if problems := d.problems(nil); len(problems) > 0 {
		return Patch{}, problems
	}
	return Patch{tree}, nil
}

// hasControl reports whether a text in a JSON value has control characters.
func hasControl(value any) bool {
	for _, leaf := range leaves(value, "") {
		text, _ := leaf.(string)
		if strings.ContainsFunc(text, func(r rune) bool {
			return unicode.IsControl(r) || r == unicode.ReplacementChar
		}) {
			return true
		}
	}
	return false
}

// ParseGroup parses one group, which is JSON with comments and trailing commas, as strictly as [ParseGroups].
func ParseGroup(filename string, src []byte) (GroupSpec, Problems) {
	return parseAs(&decoder{file: filename, src: src}, groupProblems)
}

// PatchOf returns the patch that sets every field which is set in want, except those that only the server sets.
func PatchOf(want GroupSpec) Patch {
	p, _ := PatchBetween(GroupSpec{}, want) // without null in the args of have, nothing can fail
	return p
}

// PatchBetween returns the patch that makes want out of have. Fields that only the server sets are left out. The error
// names an argument that is null, because a patch cannot set one to null.
func PatchBetween(have, want GroupSpec) (Patch, error) {
	if at := nullIn(want.Args, "args"); at != "" {
		return Patch{}, fmt.Errorf("%s: is null, which a change of a group cannot set: leave it out", at)
	}
	return Patch{Difference(ownTree(have), ownTree(want))}, nil
}

// nullIn returns the path of the first member of an object that is null, or "".
func nullIn(tree map[string]any, path string) string {
	for _, name := range sortedKeys(tree) {
		at := ChildPath(path, name)
		if tree[name] == nil {
			return at
		}
		if below, ok := tree[name].(map[string]any); ok {
			if found := nullIn(below, at); found != "" {
				return found
			}
		}
	}
	return ""
}

// ownTree returns a group as a JSON object, without the fields that only the server sets.
func ownTree(spec GroupSpec) map[string]any {
	tree := treeOf(spec)
	for _, name := range serverFields {
		delete(tree, name)
	}
	return tree
}

func treeOf(spec GroupSpec) map[string]any {
	var tree map[string]any
	_ = json.Unmarshal(marshal(spec), &tree) // an object was encoded
	return tree
}

// Difference returns the JSON merge patch (RFC 7396) that makes the object want out of have.
func Difference(have, want map[string]any) map[string]any {
	out := map[string]any{}
	for name := range have {
		if _, wanted := want[name]; !wanted {
			out[name] = nil
		}
	}
	for name, value := range want {
		old, had := have[name]
		from, wasObject := old.(map[string]any)
		to, isObject := value.(map[string]any)
		switch {
		case had && wasObject && isObject:
			if below := Difference(from, to); len(below) > 0 {
				out[name] = below
			}
		case !had || !reflect.DeepEqual(old, value):
			out[name] = value
		}
	}
	return out
}

// Empty reports whether the patch changes nothing.
func (p Patch) Empty() bool { return len(p.tree) == 0 }

// Fields returns the names of the group's fields that the patch sets or removes, sorted.
func (p Patch) Fields() []string { return sortedKeys(p.tree) }

// Paths returns the paths of the values that the patch sets, and of those that it removes, each sorted.
func (p Patch) Paths() (set, removed []string) {
	var visit func(tree map[string]any, path string)
	visit = func(tree map[string]any, path string) {
		for _, name := range sortedKeys(tree) {
			at := ChildPath(path, name)
			if below, ok := tree[name].(map[string]any); ok {
				visit(below, at)
			} else if tree[name] == nil {
				removed = append(removed, at)
			} else {
				set = append(set, at)
			}
		}
	}
	visit(p.tree, "")
	return set, removed
}

// JSON returns the patch as a JSON object.
func (p Patch) JSON() string {
	if p.tree == nil {
		return "{}"
	}
	return string(bytes.TrimSpace(encode(p.tree, "")))
}

// Apply returns the group after the patch, which [CheckUpsert] has to check. spec is not changed. Removing a value that
// the group does not have is no error.
func (p Patch) Apply(spec GroupSpec) (GroupSpec, error) {
	src := marshal(MergePatch(treeOf(spec), p.tree))
	if len(src) > MaxPatch {
		return GroupSpec{}, Problems{{Message: fmt.Sprintf("the group would have %d bytes, at most %d are allowed",
			len(src), MaxPatch)}}
	}
	out, problems := parseAs(&decoder{src: src}, func(GroupSpec) []finding { return nil })
	return out, problems.withoutPositions().Err()
}

// MergePatch applies a JSON merge patch to an object, as RFC 7396 describes. It may change target.
func MergePatch(target, patch map[string]any) map[string]any {
	for name, value := range patch {
		change, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(target, name)
		case isObject:
			below, _ := target[name].(map[string]any)
			if below == nil {
				below = map[string]any{}
			}
			target[name] = MergePatch(below, change)
		default:
			target[name] = value
		}
	}
	return target
}

// withoutPositions returns the problems without positions in a document that the user has not written.
func (ps Problems) withoutPositions() Problems {
	out := slices.Clone(ps)
	for i := range out {
		out[i].File, out[i].Line, out[i].Col = "", 0, 0
	}
	return out
}

// Set returns the patch with a further field. The path is that of a [Problem], such as rollout.canary. The text is the
// value of a field that is a text; for another field, it is JSON. Check the result with [ParsePatch].
func (p Patch) Set(path, text string) (Patch, error) {
	names, err := memberNames(path)
	if err != nil {
		return p, err
	}
	return p.with(names, valueFor(reflect.TypeFor[GroupSpec](), names, text)), nil
}

// Unset returns the patch that also removes the group's own value of the field at path.
func (p Patch) Unset(path string) (Patch, error) {
	names, err := memberNames(path)
	if err != nil {
		return p, err
	}
	return p.with(names, nil), nil
}

// memberNames splits a path of object members.
func memberNames(path string) ([]string, error) {
	elements, err := SplitPath(path)
	if err != nil {
		return nil, err
	}
	if len(elements) == 0 {
		return nil, errors.New("the name of the field is missing")
	}
	names := make([]string, len(elements))
	for i, element := range elements {
		name, ok := element.(string)
		if !ok {
			return nil, fmt.Errorf("%s: an element of a list cannot be changed alone: set the whole list %s", path,
				JoinPath(elements[:i]...))
		}
		names[i] = name
	}
	return names, nil
}

// with returns a copy of the patch with a value at the given members.
func (p Patch) with(names []string, value any) Patch {
	tree := cloned(p.tree)
	if tree == nil {
		tree = map[string]any{}
	}
	at := tree
	for _, name := range names[:len(names)-1] {
		below, ok := at[name].(map[string]any)
		if !ok {
			below = map[string]any{}
			at[name] = below
		}
		at = below
	}
	at[names[len(names)-1]] = value
	return Patch{tree}
}

// valueFor decodes the text of a value for the field with the given names below a type. A text that does not fit the
// field stays a text, so that [ParsePatch] reports it.
func valueFor(typ reflect.Type, names []string, text string) any {
	elements := make([]any, len(names))
	for i, name := range names {
		elements[i] = name
	}
	reached := 0
	for n, below := range typesAlong(typ, elements) {
		reached, typ = n, below
	}
	if reached < len(names) && typ.Kind() != reflect.Interface || typ.Kind() == reflect.String ||
		reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return text
	}
	value, problems := ParseTree("", []byte(text))
	if len(problems) > 0 || value == nil {
		return text
	}
	return value
}

// operatorFields are the paths of a static group that operators may change. Every other field needs a change of the
// shard's configuration.
var operatorFields = []string{"size", "instance_type", "vars", "rollout.paused", "rollout.revision"}

// OperatorFields returns the paths of a static group that operators may change.
func OperatorFields() []string { return slices.Clone(operatorFields) }

// Restricted returns the paths that the patch sets although a static group does not allow it. Removing a value is
// allowed, because a static group has only values that are allowed.
func (p Patch) Restricted() []string { return restrictedPaths(p.tree, "") }

func restrictedPaths(tree map[string]any, path string) (out []string) {
	for _, name := range sortedKeys(tree) {
		at := ChildPath(path, name)
		below, isObject := tree[name].(map[string]any)
		partly := slices.ContainsFunc(operatorFields, func(f string) bool { return strings.HasPrefix(f, at+".") })
		switch {
		case tree[name] == nil, slices.Contains(operatorFields, at):
		case isObject && partly:
			out = append(out, restrictedPaths(below, at)...)
		default:
			out = append(out, at)
		}
	}
	return out
}

// isNull reports whether a member of a patch removes a value.
func (d *decoder) isNull(v hujson.Value) bool { return d.patch && v.Value.Kind() == 'n' }

// ParseDynamic parses a group that an operator describes outside of the shard's configuration, such as with Terraform.
// src is JSON in which the fields at the paths `unknown` are missing, because their values are not known yet. The
// problems have no positions. They leave out what the unknown fields may change, and what only the shard's server can
// check. The group is the zero value if src cannot be decoded.
func ParseDynamic(src []byte, unknown ...string) (GroupSpec, Problems) {
	patch, problems := ParsePatch("", src)
	if len(problems) > 0 {
		return GroupSpec{}, problems.withoutPositions()
	}
	spec, err := patch.Apply(GroupSpec{})
	if errors.As(err, &problems) {
		return GroupSpec{}, problems
	}
	c := checker{found: groupProblems(spec)}
	if spec.Template == "" {
		c.add("template", "is required")
	}
	known := &decoder{tainted: unknown}
	return spec, (&checker{found: known.relevant(c.found)}).problems()
}

// groupProblems returns the problems of a group that can be found without its shard.
func groupProblems(spec GroupSpec) []finding {
	c := checker{}
	c.fields(reflect.ValueOf(spec), "")
	c.group(spec, "")
	return c.found
}
