package config

import (
	"encoding"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
)

// field is a field of a config type, as described by its tags. Fields of embedded structs count as fields of the outer
// type, as in encoding/json. Their Index has more than one element.
type field struct {
	reflect.StructField
	name     string   // in JSON
	cloud    string   // the cloud that the field belongs to, or "" for all clouds
	doc      string   // key in fieldDocs
	fallback string   // the default's text form, or "" if there is none
	enum     []string // allowed values of a string, or nil for any value

	required, positive, nonnegative, empty bool
	// cloudRequired means that the field belongs to a cloud, and must be set in every object of that cloud.
	cloudRequired bool
}

// in returns the value of the field in a struct.
func (f field) in(v reflect.Value) reflect.Value { return v.FieldByIndex(f.Index) }

// fieldCache caches the results of describeFields by type.
var fieldCache sync.Map

// fieldsOf returns the fields of a config struct in order. The caller must not modify the result.
func fieldsOf(typ reflect.Type) []field {
	if known, ok := fieldCache.Load(typ); ok {
		return known.([]field) //nolint:forcetypeassert // nothing else is stored
	}
	fields := describeFields(typ)
	fieldCache.Store(typ, fields)
	return fields
}

func describeFields(typ reflect.Type) []field {
	var out []field
	for _, f := range reflect.VisibleFields(typ) {
		if f.Anonymous {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, field{StructField: f, name: name, fallback: f.Tag.Get("default"),
			doc: typ.Name() + "." + f.Name})
		field := &out[len(out)-1]
		if depth := len(f.Index) - 1; depth > 0 {
			owner := typ.FieldByIndex(f.Index[:depth]).Type
			field.cloud, field.doc = cloudOf(owner), owner.String()+"."+f.Name
		}
		for rule := range strings.SplitSeq(f.Tag.Get("rule"), ",") {
			key, value, _ := strings.Cut(rule, "=")
			switch key {
			case "required":
				field.required = true
			case "positive":
				field.positive = true
			case "nonnegative":
				field.nonnegative = true
			case "empty":
				field.empty = true
			case "enum":
				field.enum = enumValues(value)
			}
		}
		if field.cloud != "" {
			field.required, field.cloudRequired = false, field.required
		}
	}
	return out
}

// fallbackValue returns the field's default. ok is false if the field has no default. fallbackValue panics if the
// default in the struct tag is malformed.
func (f field) fallbackValue() (value reflect.Value, ok bool) {
	if f.fallback == "" {
		return reflect.Value{}, false
	}
	typ := f.Type
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	target := reflect.New(typ)
	var err error
	switch u, isText := target.Interface().(encoding.TextUnmarshaler); {
	case isText:
		err = u.UnmarshalText([]byte(f.fallback))
	case typ.Kind() == reflect.String:
		target.Elem().SetString(f.fallback)
	case typ.Kind() == reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(f.fallback)
		target.Elem().SetBool(b)
	case typ.Kind() == reflect.Int:
		var n int
		n, err = strconv.Atoi(f.fallback)
		target.Elem().SetInt(int64(n))
	}
	if err != nil {
		panic("config: default of " + f.Name + ": " + err.Error())
	}
	if f.Type.Kind() == reflect.Pointer {
		return target, true
	}
	return target.Elem(), true
}

// isZero reports whether a value equals the value of a missing field. Empty maps and lists count as zero.
func isZero(v reflect.Value) bool {
	if k := v.Kind(); k == reflect.Map || k == reflect.Slice {
		return v.Len() == 0
	}
	return v.IsZero()
}

// clone copies a value and everything that it refers to.
func clone(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(clone(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			out.Set(clone(v.Elem()))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return v
		}
		for i := range v.NumField() {
			out.Field(i).Set(clone(v.Field(i)))
		}
	case reflect.Map:
		if !v.IsNil() {
			out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for key, value := range v.Seq2() {
				out.SetMapIndex(key, clone(value))
			}
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(clone(v.Index(i)))
			}
		}
	default:
		out.Set(v)
	}
	return out
}

// cloned is clone for typed values. A value may hold only times, decoded JSON, and the types of this package, which
// have no unexported fields and no cycles.
func cloned[T any](v T) T {
	var out T
	reflect.ValueOf(&out).Elem().Set(clone(reflect.ValueOf(&v).Elem()))
	return out
}

// withFields returns a T in which the fields that "from" has too are set to its values, if wanted returns true for
// their names. The values are shared.
func withFields[T any](from any, wanted func(name string) bool) (out T) {
	source, target := reflect.ValueOf(from), reflect.ValueOf(&out).Elem()
	for _, f := range fieldsOf(target.Type()) {
		for _, g := range fieldsOf(source.Type()) {
			if f.name == g.name && f.Type == g.Type && wanted(f.name) {
				f.in(target).Set(g.in(source))
			}
		}
	}
	return out
}

// eachField calls f for every field of the config structs in v. f may set the field, so v must be settable.
func eachField(v reflect.Value, f func(field, reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachField(v.Elem(), f)
		}
	case reflect.Struct:
		for _, field := range fieldsOf(v.Type()) {
			f(field, field.in(v))
			eachField(field.in(v), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachField(v.Index(i), f)
		}
	case reflect.Map:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Map || k == reflect.Slice {
			for key, value := range v.Seq2() {
				changed := reflect.New(value.Type()).Elem()
				changed.Set(value)
				eachField(changed, f)
				v.SetMapIndex(key, changed)
			}
		}
	}
}
