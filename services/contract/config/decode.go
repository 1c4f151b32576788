package config

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/suggest"
)

const (
	// MaxSize is the maximum size of a document in bytes.
	MaxSize = 4 << 20
	// maxDepth is the maximum nesting depth of objects and lists.
	maxDepth = 64
	// maxProblems is how many problems of one document are listed. Further problems are only counted.
	maxProblems = 1000
	// maxInteger is the limit up to which every JSON reader represents integers exactly.
	maxInteger = 1 << 53
)

// finding is a problem without a known position in the file.
type finding struct {
	path    string
	message string
	hint    string
	warning bool
	ofCloud bool // found by a cloud's own check
	// whenWritten means that the finding is an error when a configuration is written. In a stored configuration it is a
	// warning, so that servers still accept it.
	whenWritten bool
	onKey       bool     // the field's name is wrong, not its value
	offset      int      // in the file, or -1 to look the path up
	depends     []string // paths without which the finding is meaningless
}

type member = hujson.ObjectMember

// decoder decodes one document into config types. It continues after an error, and records all positions.
type decoder struct {
	file   string
	src    []byte
	patch  bool // the document is a merge patch, in which null removes a member
	found  []finding
	keys   map[string]int // offsets of names, by path
	values map[string]int // offsets of values, by path
	lines  []int          // offsets of lines, computed when the first position is needed
	// tainted holds the paths of values that are unknown because of an error. Further findings about these values would
	// only repeat the error.
	tainted []string
}

// parse parses the document's syntax. ok is false if there is nothing to decode.
func (d *decoder) parse() (root hujson.Value, ok bool) {
	d.keys, d.values = map[string]int{}, map[string]int{}
	switch {
	case len(d.src) > MaxSize:
		d.add(0, "", "the document has %d bytes, at most %d are allowed", len(d.src), MaxSize)
		return root, false
	case !utf8.Valid(d.src):
		at := 0
		for at < len(d.src) {
			r, size := utf8.DecodeRune(d.src[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		d.add(at, "", "the document is not valid UTF-8")
		return root, false
	}
	if at := tooDeep(d.src); at >= 0 {
		d.add(at, "", "objects and lists are nested deeper than %d", maxDepth)
		return root, false
	}
	// The document may end with a line comment, so add a line break.
	root, err := hujson.Parse(append(slices.Clip(d.src), '\n'))
	if err != nil {
		d.syntax(err)
		return root, false
	}
	return root, true
}

var syntaxError = regexp.MustCompile(`(?s)^hujson: line (\d+), column (\d+): (.*)$`)

func (d *decoder) syntax(err error) {
	match := syntaxError.FindStringSubmatch(err.Error())
	if match == nil {
		d.add(0, "", "%v", err)
		return
	}
	line, _ := strconv.Atoi(match[1])
	col, _ := strconv.Atoi(match[2])
	at := 0
	for range line - 1 {
		_, rest, _ := bytes.Cut(d.src[at:], []byte("\n"))
		at = len(d.src) - len(rest)
	}
	message := match[3]
	if len(message) > 200 { // it may quote a literal of any length
		message = strings.ToValidUTF8(message[:200], "") + "…"
	}
	d.add(min(at+col-1, len(d.src)), "", "syntax error: %s", message)
}

// tooDeep returns the offset of the first bracket that is nested too deep, or -1 if there is none. It runs before the
// parser, because the parser is recursive.
func tooDeep(src []byte) int {
	depth := 0
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return i
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(src) && src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
		case '/':
			end := "*/"
			switch {
			case bytes.HasPrefix(src[i:], []byte("//")):
				end = "\n"
			case !bytes.HasPrefix(src[i:], []byte("/*")):
				continue
			}
			length := bytes.Index(src[i+2:], []byte(end))
			if length < 0 {
				return -1
			}
			i += length + len(end) + 1
		}
	}
	return -1
}

func (d *decoder) add(offset int, path, format string, args ...any) {
	d.found = append(d.found, finding{path: path, offset: offset, message: fmt.Sprintf(format, args...)})
}

// wrong reports a value of the wrong type.
func (d *decoder) wrong(v hujson.Value, path, want string) {
	d.tainted = append(d.tainted, path)
	have := map[hujson.Kind]string{'n': "null", 'f': "a truth value", 't': "a truth value", '"': "a text",
		'0': "a number", '{': "an object", '[': "a list"}[v.Value.Kind()]
	f := finding{path: path, offset: v.StartOffset, message: fmt.Sprintf("want %s, have %s", want, have)}
	switch literal, _ := v.Value.(hujson.Literal); {
	case v.Value.Kind() == 'n':
		f.hint = "leave the field out"
	case want == "an object" && strings.HasPrefix(path, "groups"):
		if at, err := SplitPath(path); err == nil && len(at) == 3 {
			tenant, name, ok := strings.Cut(fmt.Sprint(at[1]), "/")
			if !ok {
				tenant, name = ident.DefaultTenant, tenant
			}
			f.hint = "groups are below their tenant: " + JoinPath("groups", tenant, name)
		}
	case strings.HasPrefix(want, "a text") && literal != nil:
		f.hint = "put it in quotes: " + strconv.Quote(string(literal))
	case literal.Kind() == '"' && (want == "a whole number" || want == "true or false") &&
		json.Valid([]byte(literal.String())):
		f.hint = "leave the quotes out"
	}
	d.found = append(d.found, f)
}

// decode decodes a value into a target of a config type.
func (d *decoder) decode(v hujson.Value, path string, target reflect.Value, f field) {
	d.values[path] = v.StartOffset
	if u, ok := target.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(v, path, u)
		return
	}
	switch target.Kind() {
	case reflect.Pointer:
		if literal, ok := v.Value.(hujson.Literal); ok && f.empty && literal.String() == "" {
			return
		}
		target.Set(reflect.New(target.Type().Elem()))
		d.decode(v, path, target.Elem(), f)
	case reflect.Struct:
		d.object(v, path, target)
	case reflect.Map:
		d.mapping(v, path, target)
	case reflect.Slice:
		list, ok := v.Value.(*hujson.Array)
		if !ok {
			d.wrong(v, path, "a list")
			return
		}
		target.Set(reflect.MakeSlice(target.Type(), len(list.Elements), len(list.Elements)))
		for i, e := range list.Elements {
			d.decode(e, element(path, i), target.Index(i), field{})
		}
	case reflect.Interface:
		if value := d.tree(v, path); value != nil {
			target.Set(reflect.ValueOf(value))
		}
	default:
		d.scalar(v, path, target)
	}
}

func (d *decoder) text(v hujson.Value, path string, target encoding.TextUnmarshaler) {
	literal, ok := v.Value.(hujson.Literal)
	if !ok || literal.Kind() != '"' {
		d.wrong(v, path, `a text such as "30s"`)
		return
	}
	if err := target.UnmarshalText([]byte(literal.String())); err != nil {
		d.tainted = append(d.tainted, path)
		d.add(v.StartOffset, path, "%v", err)
	}
}

func (d *decoder) scalar(v hujson.Value, path string, target reflect.Value) {
	literal, _ := v.Value.(hujson.Literal)
	switch target.Kind() {
	case reflect.String:
		if literal.Kind() != '"' {
			d.wrong(v, path, "a text")
			return
		}
		target.SetString(literal.String())
	case reflect.Bool:
		if k := literal.Kind(); k != 't' && k != 'f' {
			d.wrong(v, path, "true or false")
			return
		}
		target.SetBool(literal.Bool())
	case reflect.Int:
		n, err := strconv.ParseInt(string(literal), 10, 32)
		if literal.Kind() != '0' || err != nil {
			d.integer(v, path)
			return
		}
		target.SetInt(n)
	case reflect.Uint64:
		n, err := strconv.ParseUint(string(literal), 10, 64)
		if literal.Kind() != '0' || err != nil {
			d.integer(v, path)
			return
		}
		target.SetUint(n)
	default:
		panic("config: no decoder for " + target.Type().String())
	}
}

func (d *decoder) integer(v hujson.Value, path string) {
	if v.Value.Kind() != '0' {
		d.wrong(v, path, "a whole number")
		return
	}
	d.tainted = append(d.tainted, path)
	d.add(v.StartOffset, path, "%.40s is not a whole number, or too large", v.Value)
}

// members calls f once for each name in an object. It reports a repeated name instead of calling f again.
func (d *decoder) members(v hujson.Value, path string, f func(name, path string, m member)) bool {
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		d.wrong(v, path, "an object")
		return false
	}
	seen := map[string]int{}
	for _, m := range object.Members {
		name := m.Name.Value.(hujson.Literal).String()
		at := ChildPath(path, name)
		if first, twice := seen[name]; twice {
			line, _ := d.position(first)
			d.add(m.Name.StartOffset, at, "the field is there twice, first in line %d", line)
			continue
		}
		seen[name] = m.Name.StartOffset
		d.keys[at] = m.Name.StartOffset
		f(name, at, m)
	}
	return true
}

func (d *decoder) object(v hujson.Value, path string, target reflect.Value) {
	fields := fieldsOf(target.Type())
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	d.members(v, path, func(name, at string, m member) {
		i := slices.Index(names, name)
		switch {
		case i < 0:
			d.unknown(v, m, path, name, names)
			return
		case d.isNull(m.Value):
			return
		}
		d.decode(m.Value, at, fields[i].in(target), fields[i])
	})
}

// unknown reports a field that the object's config type does not have.
func (d *decoder) unknown(object hujson.Value, m member, path, name string, names []string) {
	f := finding{path: ChildPath(path, name), offset: m.Name.StartOffset, message: "there is no such field"}
	if similar := suggest.Nearest(name, names); similar != "" {
		f.hint = fmt.Sprintf("did you mean %q?", similar)
		present := slices.ContainsFunc(object.Value.(*hujson.Object).Members, func(m member) bool {
			return m.Name.Value.(hujson.Literal).String() == similar
		})
		if !present {
			d.tainted = append(d.tainted, ChildPath(path, similar))
		}
	} else if len(names) > 0 {
		f.hint = "there are " + strings.Join(names, ", ")
	}
	d.found = append(d.found, f)
}

func (d *decoder) mapping(v hujson.Value, path string, target reflect.Value) {
	out := reflect.MakeMap(target.Type())
	tree := target.Type().Elem().Kind() == reflect.Interface // null is a value in args
	ok := d.members(v, path, func(name, at string, m member) {
		if !tree && d.isNull(m.Value) {
			return
		}
		value := reflect.New(target.Type().Elem()).Elem()
		d.decode(m.Value, at, value, field{})
		out.SetMapIndex(reflect.ValueOf(name), value)
	})
	if ok {
		target.Set(out)
	}
}

// tree decodes any JSON value to nil, bool, float64, string, []any or map[string]any.
func (d *decoder) tree(v hujson.Value, path string) any {
	d.values[path] = v.StartOffset
	switch value := v.Value.(type) {
	case *hujson.Object:
		out := make(map[string]any, len(value.Members))
		d.members(v, path, func(name, at string, m member) { out[name] = d.tree(m.Value, at) })
		return out
	case *hujson.Array:
		out := make([]any, len(value.Elements))
		for i, e := range value.Elements {
			out[i] = d.tree(e, element(path, i))
		}
		return out
	case hujson.Literal:
		switch value.Kind() {
		case '"':
			return value.String()
		case 't', 'f':
			return value.Bool()
		case '0':
			return d.number(v, path, string(value))
		}
	}
	return nil
}

func (d *decoder) number(v hujson.Value, path, text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	// Check the number, not how it is written. The encoder would write 1e16 as an integer, which Parse would refuse as
	// too large.
	if err != nil || math.Abs(n) >= maxInteger {
		d.tainted = append(d.tainted, path)
		d.found = append(d.found, finding{path: path, offset: v.StartOffset,
			message: fmt.Sprintf("%.40s is too large to be kept exactly", text), hint: "put it in quotes"})
	}
	return n
}

// position returns the line and column of an offset. Both count from 1, and the column counts characters.
func (d *decoder) position(offset int) (line, col int) {
	if d.lines == nil {
		d.lines = []int{0}
		for i, b := range d.src {
			if b == '\n' {
				d.lines = append(d.lines, i+1)
			}
		}
	}
	offset = min(offset, len(d.src))
	line, exact := slices.BinarySearch(d.lines, offset)
	if exact {
		line++
	}
	return line, utf8.RuneCount(d.src[d.lines[line-1]:offset]) + 1
}

// problems returns the decoder's findings and those in the list `more`, all with their positions. The findings in
// `more` are about decoded values.
func (d *decoder) problems(more []finding) Problems {
	found := append(d.found, d.relevant(more)...)
	for i, f := range found {
		if f.offset < 0 {
			found[i].offset = d.find(f.path, f.onKey)
		}
	}
	slices.SortStableFunc(found, func(a, b finding) int { return cmp.Compare(a.offset, b.offset) })
	if n := len(found) - maxProblems; n > 0 {
		found = found[:maxProblems+1]
		found[maxProblems] = finding{offset: found[maxProblems].offset,
			message: fmt.Sprintf("from here on there are %d problems more", n)}
	}
	var out Problems
	for _, f := range found {
		problem := f.problem()
		problem.File = d.file
		problem.Line, problem.Col = d.position(f.offset)
		out = append(out, problem)
	}
	return out
}

func (f finding) problem() Problem {
	return Problem{Path: f.path, Message: f.message, Hint: f.hint, Warning: f.warning}
}

// relevant removes findings from the list `more`. It removes those that are only consequences of an earlier error.
func (d *decoder) relevant(more []finding) []finding {
	if len(d.found) > maxProblems {
		return nil // enough problems; none of these would be listed in full
	}
	return slices.DeleteFunc(more, func(f finding) bool {
		return slices.ContainsFunc(d.tainted, func(t string) bool {
			return within(f.path, t) || (within(t, f.path) && !f.onKey) ||
				slices.ContainsFunc(f.depends, func(path string) bool { return within(path, t) })
		})
	})
}

// find returns the offset of the value at path. If there is no such value, it returns the offset of the nearest object
// around it. If onKey is set and path has a key in the document, find returns the offset of the key.
func (d *decoder) find(path string, onKey bool) int {
	if at, ok := d.keys[path]; ok && onKey {
		return at
	}
	for {
		if at, ok := d.values[path]; ok || path == "" {
			return at
		}
		path = parent(path)
	}
}

// sortedKeys returns the keys in sorted order. Every map is iterated with it, so that the order of problems is stable.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
