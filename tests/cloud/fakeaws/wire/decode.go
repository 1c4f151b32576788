package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxDepth bounds the number of parts of a parameter's name. No AWS parameter has that many.
const maxDepth = 24

// Decode sets the fields of a struct from query parameters. into points to the struct. The parameter of a field has the
// field's name, or the name in its tag `query:"Name"`. Embedded structs are read in place. Lists are read in EC2's form
// (X.1, X.1.Y) and in the query protocol's form (X.member.1.Y). Maps are read as X.entry.1.key and .value. Fields may
// be strings, integers, floats, bools, time.Time, []byte (base64), structs, slices, map[string]string, and pointers to
// them. Pointers stay nil when the parameter is absent.
//
// If the struct has no field for a parameter, the error is UnknownParameter. If a value does not parse, the error is
// InvalidParameterValue.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html
func Decode(form url.Values, into any) error {
	root := &node{}
	for name, values := range form {
		if len(values) != 1 {
			return Errorf(http.StatusBadRequest, "InvalidParameterCombination", "The parameter %s appears %d times",
				name, len(values))
		}
		if err := root.put(name, values[0]); err != nil {
			return err
		}
	}
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic("wire: Decode needs a pointer to a struct")
	}
	return root.decode("", v.Elem())
}

// node is one part of a parameter's name. Names are split at their dots. sub holds the nodes for the next part.
type node struct {
	value *string
	sub   map[string]*node
}

func (n *node) put(name, value string) error {
	parts := strings.Split(name, ".")
	if len(parts) > maxDepth {
		return Errorf(http.StatusBadRequest, "MalformedQueryString", "The parameter %.100s has too many parts", name)
	}
	for _, p := range parts {
		if p == "" {
			return Errorf(http.StatusBadRequest, "MalformedQueryString", "The parameter name %.100q has an empty part",
				name)
		}
		if n.sub == nil {
			n.sub = map[string]*node{}
		}
		if n.sub[p] == nil {
			n.sub[p] = &node{}
		}
		n = n.sub[p]
	}
	n.value = &value
	return nil
}

func (n *node) decode(name string, v reflect.Value) error {
	switch {
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return n.decode(name, v.Elem())
	case v.Type() == reflect.TypeFor[time.Time](), v.Type() == reflect.TypeFor[[]byte]():
		return n.scalar(name, v)
	case v.Kind() == reflect.Struct:
		return n.structure(name, v)
	case v.Kind() == reflect.Slice:
		return n.list(name, v)
	case v.Kind() == reflect.Map:
		return n.entries(name, v)
	default:
		return n.scalar(name, v)
	}
}

func (n *node) structure(name string, v reflect.Value) error {
	if n.value != nil {
		return Errorf(http.StatusBadRequest, "InvalidParameterValue",
			"The parameter %s is a structure and has no value of its own", name)
	}
	left := maps.Clone(n.sub)
	if err := fill(name, v, left); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(left)) {
		return Errorf(http.StatusBadRequest, "UnknownParameter", "The parameter %s is not recognized", join(name, k))
	}
	return nil
}

// fill sets v's fields from a map of parameters. It removes each parameter that it has used.
func fill(name string, v reflect.Value, left map[string]*node) error {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		key, tagged := field.Tag.Lookup("query")
		if field.Anonymous && !tagged {
			if err := fill(name, v.Field(i), left); err != nil {
				return err
			}
			continue
		}
		if !field.IsExported() || key == "-" {
			continue
		}
		if !tagged {
			key = field.Name
		}
		s, ok := left[key]
		if !ok {
			continue
		}
		delete(left, key)
		if err := s.decode(join(name, key), v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// items returns a list's members in the order of their numbers. An empty value means an empty list, because clients of
// the query protocol send empty lists in this form.
func (n *node) items(name, wrapper string) ([]*node, error) {
	if n.value != nil {
		if *n.value == "" && len(n.sub) == 0 {
			return nil, nil
		}
		return nil, Errorf(http.StatusBadRequest, "InvalidParameterValue", "The parameter %s is a list", name)
	}
	if inner := n.sub[wrapper]; inner != nil && len(n.sub) == 1 {
		return inner.items(join(name, wrapper), "")
	}
	numbers := make([]int, 0, len(n.sub))
	for k := range n.sub {
		number, err := strconv.Atoi(k)
		if err != nil || number < 1 || strconv.Itoa(number) != k {
			return nil, Errorf(http.StatusBadRequest, "UnknownParameter", "The parameter %s is not recognized",
				join(name, k))
		}
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	items := make([]*node, 0, len(numbers))
	for _, number := range numbers {
		items = append(items, n.sub[strconv.Itoa(number)])
	}
	return items, nil
}

func (n *node) list(name string, v reflect.Value) error {
	items, err := n.items(name, "member")
	if err != nil {
		return err
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		if err := item.decode(join(name, strconv.Itoa(i+1)), v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) entries(name string, v reflect.Value) error {
	items, err := n.items(name, "entry")
	if err != nil {
		return err
	}
	out := make(map[string]string, len(items))
	for i, item := range items {
		var entry struct {
			Key   string `query:"key"`
			Value string `query:"value"`
		}
		if err := item.decode(join(name, strconv.Itoa(i+1)), reflect.ValueOf(&entry).Elem()); err != nil {
			return err
		}
		out[entry.Key] = entry.Value
	}
	v.Set(reflect.ValueOf(out).Convert(v.Type()))
	return nil
}

func (n *node) scalar(name string, v reflect.Value) error {
	if n.value == nil || n.sub != nil {
		return Errorf(http.StatusBadRequest, "InvalidParameterValue", "The parameter %s is a single value", name)
	}
	text := *n.value
	var err error
	switch v.Interface().(type) {
	case time.Time:
		var t time.Time
		t, err = time.Parse(time.RFC3339Nano, text)
		v.Set(reflect.ValueOf(t))
	case []byte:
		var b []byte
		b, err = base64.StdEncoding.DecodeString(text)
		v.SetBytes(b)
	default:
		err = setBasic(v, text)
	}
	if err != nil {
		return Errorf(http.StatusBadRequest, "InvalidParameterValue", "Value (%.100s) for parameter %s is invalid",
			text, name)
	}
	return nil
}

func setBasic(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return strconv.ErrSyntax
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int32, reflect.Int64:
		number, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return err
		}
		v.SetInt(number)
	case reflect.Float64:
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		v.SetFloat(number)
	default:
		panic("wire: Decode into a " + v.Type().String())
	}
	return nil
}

// decodeJSON reads one JSON object. Anything after it is an error.
func decodeJSON(body []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return Errorf(http.StatusBadRequest, "SerializationException", "%v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Errorf(http.StatusBadRequest, "SerializationException", "there is more after the request")
	}
	return nil
}

func join(name, part string) string {
	if name == "" {
		return part
	}
	return name + "." + part
}
