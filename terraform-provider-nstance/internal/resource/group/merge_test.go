package group

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestConflicts checks for every field of a group: a field that another client changed is a conflict only if the plan
// changes it too, to another value.
func TestConflicts(t *testing.T) {
	typ := reflect.TypeFor[config.GroupSpec]()
	for i := range typ.NumField() {
		field := typ.Field(i)
		first, second := sample(field.Type, 1), sample(field.Type, 2)
		with := func(v reflect.Value) config.GroupSpec {
			spec := config.GroupSpec{}
			reflect.ValueOf(&spec).Elem().Field(i).Set(v)
			return spec
		}
		none, one, two := config.GroupSpec{}, with(first), with(second)
		if got := conflicts(none, none, one); len(got) > 0 {
			t.Errorf("%s changed only by another client: conflict in %v", field.Name, got)
		}
		if got := conflicts(none, one, none); len(got) > 0 {
			t.Errorf("%s changed only by the plan: conflict in %v", field.Name, got)
		}
		if got := conflicts(none, one, one); len(got) > 0 {
			t.Errorf("%s changed by both to the same value: conflict in %v", field.Name, got)
		}
		if got := conflicts(none, one, two); len(got) != 1 && field.Type.Kind() != reflect.Bool {
			t.Errorf("%s changed by both: conflicts %v", field.Name, got)
		}
		if got := merged(none, none, one); !reflect.DeepEqual(got, one) {
			t.Errorf("%s: the change of another client is lost: %+v", field.Name, got)
		}
		if got := merged(one, two, one); !reflect.DeepEqual(got, two) {
			t.Errorf("%s: the change of the plan is lost: %+v", field.Name, got)
		}
	}
	size := 3
	have, now, want := config.GroupSpec{Template: "a"}, config.GroupSpec{Template: "a", Size: &size},
		config.GroupSpec{Template: "b"}
	if got := merged(have, want, now); got.Template != "b" || got.Size != &size {
		t.Errorf("merged %+v", got)
	}
	if got := conflicts(have, want, config.GroupSpec{Template: "c"}); !slices.Equal(got, []string{"template"}) {
		t.Errorf("conflicts %v", got)
	}
}

// sample returns a value of a type. Another n gives another value.
func sample(typ reflect.Type, n int) reflect.Value {
	v := reflect.New(typ).Elem()
	switch typ.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(typ.Elem()))
		v.Elem().Set(sample(typ.Elem(), n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.String:
		v.SetString([]string{"", "one", "two"}[n])
	case reflect.Bool:
		v.SetBool(n == 1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(typ, n, n))
		for i := range n {
			v.Index(i).Set(sample(typ.Elem(), n))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(typ))
		v.SetMapIndex(sample(typ.Key(), 1), sample(typ.Elem(), n))
	case reflect.Interface:
		v.Set(reflect.ValueOf(float64(n)))
	case reflect.Struct:
		for i := range typ.NumField() {
			v.Field(i).Set(sample(typ.Field(i).Type, n))
		}
	}
	return v
}
