package ec2

import "reflect"

// replaceFields returns a copy of base. Each field that is set in the parameter "over" replaces the same field of the
// copy.
func replaceFields[T any](base, over T) T {
	replaceIn(reflect.ValueOf(&base).Elem(), reflect.ValueOf(over), false)
	return base
}

// overlayFields is like replaceFields, but changes base in place. If base and over both have a structure, it merges the
// two structures field by field.
func overlayFields(base *launchData, over launchData) {
	replaceIn(reflect.ValueOf(base).Elem(), reflect.ValueOf(over), true)
}

func replaceIn(into, from reflect.Value, deep bool) {
	for i := range into.NumField() {
		a, b := into.Field(i), from.Field(i)
		switch {
		case into.Type().Field(i).Anonymous:
			replaceIn(a, b, deep)
		case b.IsZero():
		case deep && b.Kind() == reflect.Pointer && b.Elem().Kind() == reflect.Struct && !a.IsNil():
			joined := reflect.New(a.Elem().Type())
			joined.Elem().Set(a.Elem()) // a copy, so that the template does not change
			replaceIn(joined.Elem(), b.Elem(), deep)
			a.Set(joined)
		default:
			a.Set(b)
		}
	}
}
