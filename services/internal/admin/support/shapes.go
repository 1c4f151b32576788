package support

import (
	"encoding"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// treatments are the values of the tag support of a field in Go, and of the option support of a field in a message. A
// text without a tag is left out. Numbers, booleans, times, and texts with a list of allowed values need no tag.
var treatments = map[string]*treatment{"plain": plain, "words": words, "origin": origin, "present": present,
	"hidden": leftOut}

// shapeOf returns the shape of a document with a type of Go.
func shapeOf(typ reflect.Type) shape {
	s := shape{}
	s.addType("", typ, nil)
	return s
}

// addType adds the fields of a type to the shape. `tagged` is the treatment of the field that has the type, or nil.
func (s shape) addType(path string, typ reflect.Type, tagged *treatment) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	below := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	if m, ok := reflect.Zero(typ).Interface().(interface {
		Descriptor() protoreflect.MessageDescriptor
	}); ok {
		s.addMessage(path, m.Descriptor())
		return
	}
	switch kind := typ.Kind(); {
	case typ == reflect.TypeFor[config.Groups]():
		s[below("$version")], s[below("$term")], s[below("$revision")] = plain, plain, plain
		s.addType(below("*.*"), reflect.TypeFor[config.GroupSpec](), nil)
	case reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextMarshaler]()) || kind != reflect.String &&
		kind != reflect.Interface && kind != reflect.Map && kind != reflect.Slice && kind != reflect.Struct:
		s[path] = plain // a number, a boolean, a time or a duration
	case kind == reflect.Slice && tagged != nil && tagged != plain:
		s[path] = tagged
	case kind == reflect.Map || kind == reflect.Slice:
		s.addType(below("*"), typ.Elem(), tagged)
	case kind == reflect.Struct:
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			treatment := treatments[f.Tag.Get("support")]
			if treatment == nil && strings.Contains(f.Tag.Get("rule"), "enum=") {
				treatment = plain
			}
			s.addType(below(name), f.Type, treatment)
		}
	case tagged != nil:
		s[path] = tagged
	}
}

// addMessage adds the fields of a message to the shape.
func (s shape) addMessage(path string, message protoreflect.MessageDescriptor) {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		tag := proto.GetExtension(field.Options(), nstancev1.E_Support).(string)
		at := strings.TrimPrefix(path+"."+fleet.JSONName(field), ".")
		if field.IsList() {
			at += ".*"
		}
		switch kind := field.Kind(); {
		case fleet.JSONName(field) == "":
		case fleet.IsMessage(field):
			s.addMessage(at, field.Message())
		case tag == "settings":
			s.addType(at, reflect.TypeFor[config.GroupSpec](), nil)
		case treatments[tag] != nil:
			s[at] = treatments[tag]
		case kind != protoreflect.StringKind && kind != protoreflect.BytesKind && !field.IsMap():
			s[at] = plain
		}
	}
}
