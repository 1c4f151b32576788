package config

import (
	"reflect"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// cloud reports the problems that a cloud's own check found in the object at path.
func (c *checker) cloud(path string, problems []cloud.Problem) {
	for _, problem := range problems {
		f := c.add(path+joinBelow(join(problem.Path)), "%s", problem.Message)
		f.hint, f.ofCloud = problem.Hint, true
	}
}

// cloudFields checks the cloud-specific fields of the object at path. provider is the object's cloud. cloudFields
// reports each field that is set and belongs to another cloud. It checks the provider's own fields by the provider's
// rules. kind is server.leader_network.kind; it is empty for other objects.
func (c *checker) cloudFields(v reflect.Value, path, provider, kind string) {
	if provider == "" {
		return // reported elsewhere
	}
	for _, f := range fieldsOf(v.Type()) {
		if f.cloud == "" {
			continue
		}
		at, value := ChildPath(path, f.name), f.in(v)
		switch {
		case f.cloud != provider && !isZero(value):
			c.add(at, "is for provider %s only", f.cloud)
		case f.cloud == provider && f.cloudRequired && isZero(value):
			c.add(at, "is required for provider %s", provider)
		}
		if list, ok := value.Interface().([]string); ok {
			c.distinct(list, at)
		}
	}
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !f.Anonymous || cloudOf(f.Type) != provider {
			continue
		}
		if checker, ok := v.FieldByIndex(f.Index).Interface().(cloud.Checker); ok {
			c.cloud(path, checker.Check(kind))
		}
	}
}

// args checks the arguments at path by the rules of the shard's provider.
func (c *checker) args(args map[string]any, path string) {
	if check := blockOf(c.s.Server.Provider.Kind).CheckArgs; check != nil {
		c.cloud(path, check(args))
	}
}
