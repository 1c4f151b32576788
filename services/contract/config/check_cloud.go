package config

import (
	"reflect"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// cloud reports the problems that a cloud's own check found in the object at path.
func (c *checker) cloud(path string, problems []cloud.Problem) {
	for _, problem := range problems {
		f := c.add(path+joinBelow(JoinPath(problem.Path...)), "%s", problem.Message)
		f.hint, f.ofCloud, f.whenWritten = problem.Hint, true, problem.WhenWritten
	}
}

// cloudFields checks those fields of the object at path that only some clouds have. provider is the object's cloud.
// cloudFields reports a field of another cloud if the field is set. It checks the fields of the object's own cloud by
// that cloud's rules. kind is server.leader_network.kind, or "" for other objects.
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
			c.add(at, "is for provider %s only", providerOf(f.cloud, path))
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

// providerOf returns the value of the field "provider" that makes the object at path belong to a cloud.
func providerOf(name, path string) string {
	if path == identityPath {
		return storesOf(name)
	}
	return name
}

// args checks the arguments at path by the rules of the shard's provider.
func (c *checker) args(args map[string]any, path string) {
	if check := blockOf(c.s.Server.Provider.Kind).CheckArgs; check != nil {
		c.cloud(path, check(args))
	}
}

// typesOfCloud checks the instance types of the template or group at path by the rules of the shard's provider.
func (c *checker) typesOfCloud(name string, others []string, path string) {
	check := blockOf(c.s.Server.Provider.Kind).CheckInstanceType
	if check == nil {
		return
	}
	c.byCloud(ChildPath(path, "instance_type"), name, check)
	for i, other := range others {
		c.byCloud(element(ChildPath(path, "instance_types"), i), other, check)
	}
}

// byCloud reports the error of a cloud's own check of a value. Empty values are reported elsewhere.
func (c *checker) byCloud(path, value string, check func(string) error) {
	if value == "" || check == nil {
		return
	}
	if err := check(value); err != nil {
		f := c.add(path, "%v", err)
		f.ofCloud, f.whenWritten = true, true
	}
}
