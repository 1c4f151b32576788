// Package contexts describes the settings with which nstance-admin reaches a cluster. A setting is a flag, an
// environment variable and a field of a context. A context is a named set of settings in a file.
//
// Invariant: no setting is a secret. A key is named by its place, such as the path of a file.
package contexts

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/suggest"
)

// Setting is one setting. Its flag, such as storage-bucket, also gives the names of its environment variable,
// NSTANCE_ADMIN_STORAGE_BUCKET, and of its field, storage_bucket.
type Setting struct {
	Flag string
	// Of is the flag of the setting that this one details, such as the bucket of a prefix. A value of this setting
	// applies only if it comes from the same place as that setting's value, or from a place with precedence over it.
	Of    string
	check func(string) error
}

// Variable returns the name of the setting's environment variable.
func (s Setting) Variable() string { return Variable(s.Flag) }

// Field returns the name of the setting's field in a context.
func (s Setting) Field() string { return strings.ReplaceAll(s.Flag, "-", "_") }

// Variable returns the name of the environment variable that belongs to a flag.
func Variable(flag string) string {
	return "NSTANCE_ADMIN_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// all lists the settings in the order in which they are shown.
var all = []Setting{
	{Flag: "servers", check: parses(endpoints.Parse)},
	{Flag: "via", Of: "servers"},
	{Flag: "shard", check: ident.ValidateName},
	{Flag: "identity-dir"},
	{Flag: "storage-bucket"},
	{Flag: "storage-provider", Of: "storage-bucket", check: oneOf(config.ObjectStoreNames)},
	{Flag: "storage-prefix", Of: "storage-bucket"},
	{Flag: "storage-region", Of: "storage-bucket"},
	{Flag: "storage-endpoint", Of: "storage-bucket"},
	{Flag: "storage-path-style", Of: "storage-bucket", check: parses(strconv.ParseBool)},
	{Flag: "storage-profile", Of: "storage-bucket"},
	{Flag: "shard-storage", Of: "storage-bucket", check: parses(ParseShardStorage)},
	{Flag: "cluster-id", Of: "storage-bucket", check: ident.ValidateClusterName},
	{Flag: "secrets-provider", check: oneOf(config.SecretsStoreNames)},
	{Flag: "secrets-prefix", Of: "secrets-provider"},
	{Flag: "secrets-project", Of: "secrets-provider"},
	{Flag: "key-provider", check: oneOf(config.KeySourceNames)},
	{Flag: "key-source", Of: "key-provider"},
	{Flag: "old-key"},
}

// Settings returns all settings. A setting that details another one comes after it.
func Settings() []Setting { return slices.Clone(all) }

// Find returns the setting of a flag.
func Find(flag string) (Setting, bool) {
	i := slices.IndexFunc(all, func(s Setting) bool { return s.Flag == flag })
	if i < 0 {
		return Setting{}, false
	}
	return all[i], true
}

func parses[T any](parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		_, err := parse(text)
		return err
	}
}

func oneOf(names func() []string) func(string) error {
	return func(text string) error {
		if !slices.Contains(names(), text) {
			return fmt.Errorf("%q is none of %s%s", text, strings.Join(names(), ", "), didYouMean(text, names()))
		}
		return nil
	}
}

// didYouMean returns the end of a message that names the most similar name, or "".
func didYouMean(name string, names []string) string {
	if found := suggest.Nearest(name, names); found != "" {
		return fmt.Sprintf("; did you mean %q?", found)
	}
	return ""
}

// namePattern matches the name of a context. A name may also be the name of a file.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Context holds the values of settings by their fields.
type Context map[string]string

// File is a set of contexts, as in ~/.config/nstance/config.yaml.
type File struct {
	// Current is the name of the context in use. It may be empty.
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts,omitempty"`
}

// Parse reads a file in YAML or JSON, and checks each value. The error lists all problems, with the path of each.
func Parse(text []byte) (File, error) {
	var tree map[string]any
	if err := yaml.UnmarshalStrict(text, &tree); err != nil {
		return File{}, err
	}
	var p problems
	file := File{Contexts: map[string]Context{}}
	for name, value := range members(tree) {
		switch name {
		case "current":
			file.Current = p.text(name, value)
		case "contexts":
			for context, value := range members(p.object(name, value)) {
				path := name + "." + context
				if !namePattern.MatchString(context) {
					p.add(path, "a name has letters, digits, dots, dashes and underscores, at most 128, and begins "+
						"with a letter or digit")
				}
				file.Contexts[context] = p.context(path, p.object(path, value))
			}
		default:
			p.unknown(name, name, []string{"current", "contexts"})
		}
	}
	if _, ok := file.Contexts[file.Current]; file.Current != "" && !ok {
		p.add("current", "there is no context %q", file.Current)
	}
	return file, errors.Join(p...)
}

// Format returns the file as YAML.
func (f File) Format() ([]byte, error) { return yaml.Marshal(f) }

// members returns the members of an object in the order of their names.
func members(object map[string]any) func(yield func(string, any) bool) {
	return func(yield func(string, any) bool) {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if !yield(name, object[name]) {
				return
			}
		}
	}
}

type problems []error

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, fmt.Errorf(path+": "+format, args...))
}

func (p *problems) unknown(path, name string, names []string) {
	p.add(path, "there is no such field%s", didYouMean(name, names))
}

func (p *problems) object(path string, value any) map[string]any {
	object, ok := value.(map[string]any)
	if !ok && value != nil {
		p.add(path, "want an object")
	}
	return object
}

// text returns a text. A number or a Boolean is one too, because YAML needs no quotes.
func (p *problems) text(path string, value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	case bool, float64, int64:
		return fmt.Sprint(value)
	}
	p.add(path, "want a text")
	return ""
}

func (p *problems) context(path string, object map[string]any) Context {
	context := Context{}
	for name, value := range members(object) {
		path := path + "." + name
		i := slices.IndexFunc(all, func(s Setting) bool { return s.Field() == name })
		if i < 0 {
			var names []string
			for _, s := range all {
				names = append(names, s.Field())
			}
			p.unknown(path, name, names)
			continue
		}
		context[name] = p.text(path, value)
		if check := all[i].check; check != nil && context[name] != "" {
			if err := check(context[name]); err != nil {
				p.add(path, "%w", err)
			}
		}
	}
	return context
}

// Merge adds the contexts of another file. Its fields replace those of a context with the same name; an empty field
// removes one. Merge keeps the other fields, such as the identity's directory, and Current.
func (f *File) Merge(other File) {
	if f.Contexts == nil {
		f.Contexts = map[string]Context{}
	}
	for name, fields := range other.Contexts {
		merged := maps.Clone(f.Contexts[name])
		if merged == nil {
			merged = Context{}
		}
		for field, value := range fields {
			merged[field] = value
			if value == "" {
				delete(merged, field)
			}
		}
		f.Contexts[name] = merged
	}
}
