package group

import (
	"reflect"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// conflicts returns the fields that the plan changes and that another client changed to another value since the plan
// was made. The plan changes `have` to `want`; the server has `now`. The specs must be canonical.
func conflicts(have, want, now config.GroupSpec) (names []string) {
	eachField(have, want, now, func(name string, have, want, now reflect.Value) {
		if !equal(want, have) && !equal(now, have) && !equal(now, want) {
			names = append(names, name)
		}
	})
	return names
}

// merged returns now with the changes of the plan, from have to want.
func merged(have, want, now config.GroupSpec) config.GroupSpec {
	out := now
	to := reflect.ValueOf(&out).Elem()
	i := 0
	eachField(have, want, now, func(_ string, have, want, _ reflect.Value) {
		if !equal(want, have) {
			to.Field(i).Set(want)
		}
		i++
	})
	return out
}

func eachField(have, want, now config.GroupSpec, do func(name string, have, want, now reflect.Value)) {
	a, b, c := reflect.ValueOf(have), reflect.ValueOf(want), reflect.ValueOf(now)
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		do(name, a.Field(i), b.Field(i), c.Field(i))
	}
}

func equal(a, b reflect.Value) bool { return reflect.DeepEqual(a.Interface(), b.Interface()) }
