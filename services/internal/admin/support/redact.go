// Package support makes the bundle that a person attaches to a report about a fault, and decides what may be in it.
//
// Invariant: the bundle holds only texts that the tags of their types permit. A text without a tag is left out. A free
// text, such as an error, keeps only numbers, times, the words in words.txt, and names that other fields show.
package support

import (
	_ "embed"
	"encoding"
	"encoding/json"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// hidden replaces values that the bundle must not contain.
const hidden = "[redacted]"

// treatment is the way in which the bundle shows one kind of field. show takes a JSON value and returns what the bundle
// shows of that value.
type treatment struct {
	show func(r *redactor, v any) any
}

var (
	// plain is for numbers, booleans, times, and names that are no secrets.
	plain = &treatment{showPlain}
	// words is for texts. The bundle shows only their harmless words.
	words = &treatment{showWords}
	// origin is the treatment for URLs. The bundle shows only their scheme, host and port.
	origin = &treatment{showOrigin}
	// present is for fields of which the bundle shows only that they are set.
	present = &treatment{showPresence}
	// leftOut is for fields of which the bundle shows nothing. Fields without a treatment are left out too.
	leftOut = &treatment{func(*redactor, any) any { return nil }}
)

// shape lists the fields of a document that the bundle shows. Keys are paths: names joined by dots, where * stands for
// every field of an object and every position of a list. The bundle shows the field names that a * matches.
type shape map[string]*treatment

// redactor removes from documents the values that their shapes do not show. It first collects the hidden values of all
// documents, because a text may quote what another document hides.
type redactor struct {
	names  map[string]bool // that fields of documents show
	values map[string]bool // that fields of documents hide

	hider *strings.Replacer // of the values
}

func newRedactor() *redactor { return &redactor{names: map[string]bool{}, values: map[string]bool{}} }

var (
	plainText = regexp.MustCompile(`^[A-Za-z0-9$][A-Za-z0-9 ._:/*+%,()=-]{0,199}$`)
	nameText  = regexp.MustCompile(`^[A-Za-z0-9$][A-Za-z0-9._/-]{0,127}$`)
)

func showPlain(_ *redactor, v any) any {
	switch v := v.(type) {
	case nil, bool, json.Number:
		return v
	case string:
		if v == "" || plainText.MatchString(v) {
			return v
		}
	}
	return hidden
}

func showWords(r *redactor, v any) any {
	if text, ok := v.(string); ok {
		return r.wordsOf(text)
	}
	return hidden
}

func showOrigin(_ *redactor, v any) any {
	text, _ := v.(string)
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || !nameText.MatchString(strings.ReplaceAll(u.Host, ":", "-")) {
		return hidden
	}
	return u.Scheme + "://" + u.Host
}

func showPresence(_ *redactor, v any) any {
	if v == nil || v == "" {
		return v
	}
	return hidden
}

// prefixes returns the paths of all objects and lists that contain a field of the shape.
func (s shape) prefixes() map[string]bool {
	out := map[string]bool{}
	for path := range s {
		for i := range path {
			if path[i] == '.' {
				out[path[:i]] = true
			}
		}
	}
	return out
}

// walk returns a copy of a tree in which the function `leaf` has replaced or removed each value. leaf gets the value
// and its treatment. The treatment is nil if the shape does not list the value. walk calls the function `name` for each
// field name that matches a * in the shape.
func (s shape) walk(tree any, leaf func(t *treatment, v any) (any, bool), name func(string)) any {
	prefixes := s.prefixes()
	var visit func(path string, v any) (any, bool)
	child := func(path, key string) (next string, free bool) {
		literal := strings.TrimPrefix(path+"."+key, ".")
		if s[literal] != nil || prefixes[literal] {
			return literal, false
		}
		return strings.TrimPrefix(path+".*", "."), true
	}
	visit = func(path string, v any) (any, bool) {
		if t := s[path]; t != nil {
			return leaf(t, v)
		}
		switch v := v.(type) {
		case map[string]any:
			out := map[string]any{}
			for key, value := range v {
				next, free := child(path, key)
				shown := key
				if free {
					if !nameText.MatchString(key) {
						shown = hidden
					} else if s[next] != nil || prefixes[next] {
						name(key)
					}
				}
				if result, ok := visit(next, value); ok {
					out[shown] = result
				}
			}
			return out, len(out) > 0
		case []any:
			out := []any{}
			for _, value := range v {
				if result, ok := visit(strings.TrimPrefix(path+".*", "."), value); ok {
					out = append(out, result)
				}
			}
			return out, len(out) > 0
		}
		return leaf(nil, v)
	}
	out, _ := visit("", tree)
	return out
}

// learn notes the names that a document shows and the values that it hides.
func (r *redactor) learn(s shape, tree any) {
	r.hider = nil
	s.walk(tree, func(t *treatment, v any) (any, bool) {
		switch text, _ := v.(string); t {
		case words:
		case plain:
			if plain.show(r, v) == hidden {
				r.learnHidden(v)
			} else if nameText.MatchString(text) {
				r.names[text] = true
			}
		default:
			r.learnHidden(v)
		}
		return nil, false
	}, func(name string) { r.names[name] = true })
}

// minHidden is the least length of a hidden value that is removed from texts.
const minHidden = 4

// learnHidden notes all texts and numbers in a hidden tree, and each line of a text separately. It skips IP addresses,
// which are no secrets.
func (r *redactor) learnHidden(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, value := range v {
			r.learnHidden(value)
		}
	case []any:
		for _, value := range v {
			r.learnHidden(value)
		}
	case json.Number:
		r.learnHidden(v.String())
	case string:
		for _, text := range append(strings.Split(v, "\n"), v) {
			text = strings.TrimSpace(text)
			if _, err := netip.ParseAddr(text); err != nil && len(text) >= minHidden {
				r.values[text] = true
			}
		}
	}
}

// redact returns what the bundle shows of a document.
func (r *redactor) redact(s shape, tree any) any {
	return s.walk(tree, func(t *treatment, v any) (any, bool) {
		if t == nil || t == leftOut {
			return nil, false
		}
		return t.show(r, v), true
	}, func(string) {})
}

// hideValues removes from a text all values that documents hide.
func (r *redactor) hideValues(text string) string {
	if r.hider == nil {
		var values []string
		for value := range r.values {
			if !r.names[value] {
				values = append(values, value)
			}
		}
		slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) }) // the longest match wins
		var pairs []string
		for _, value := range values {
			pairs = append(pairs, value, hidden)
		}
		r.hider = strings.NewReplacer(pairs...)
	}
	return r.hider.Replace(text)
}

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

// wordList has the words of Nstance's documents and messages. TestWords writes it.
//
//go:embed words.txt
var wordList string

var vocabulary = sync.OnceValue(func() map[string]bool {
	words := map[string]bool{}
	for word := range strings.FieldsSeq(wordList) {
		words[word] = true
	}
	return words
})

// maxDigits is the largest number of digits that one piece of a text may show, unless the piece is a time, an address
// or an ID.
const maxDigits = 12

// maxText is the greatest length of a text in bytes. The rest is cut off.
const maxText = 4 << 10

var (
	// labelled matches the name of a secret and the rest of its line.
	labelled = regexp.MustCompile(`(?i)((?:passw(?:or)?d|passphrase|pwd|secret|token|nonce|credentials?|authorization|` +
		`bearer|(?:api|access|private|secret)[-_ ]?key(?:[-_ ]?id)?)["']?\s*[:=]\s*)\S.*`)
	// piece matches the text between spaces, quotes, brackets and commas.
	piece   = regexp.MustCompile("[^\\s,;()\\[\\]{}<>\"'`]+")
	joint   = regexp.MustCompile(`[./:_|=-]+`)
	amount  = regexp.MustCompile(`^-?[0-9]{1,6}(\.[0-9]{1,6})?(ns|µs|ms|s|m|h|d|%|B|KB|MB|GB|KiB|MiB|GiB)?$`)
	digits  = regexp.MustCompile(`[0-9]`)
	version = regexp.MustCompile(`^v?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$`)
	// capital matches the boundary before a word that starts with a capital letter.
	capital = regexp.MustCompile(`([A-Z])([A-Z][a-z])|([a-z])([A-Z])`)
	repeats = regexp.MustCompile(`\[redacted\](?:[\s,;:/=.()"'-]*\[redacted\])+`)
)

// wordsOf hides every piece of a text that is not known to be harmless.
func (r *redactor) wordsOf(text string) string {
	if text = r.hideValues(text); len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " …"
	}
	text = labelled.ReplaceAllString(text, "${1}"+hidden)
	text = piece.ReplaceAllStringFunc(text, func(p string) string {
		if p == "redacted" || r.harmless(p) {
			return p
		}
		return hidden
	})
	return repeats.ReplaceAllString(text, hidden)
}

// harmless reports whether a piece of a text consists of words, numbers, times, addresses, and names that the bundle
// shows.
func (r *redactor) harmless(p string) bool {
	core := strings.Trim(p, ".:!?…=-|/")
	if core == "" || r.names[core] || r.names[p] {
		return true
	}
	if _, err := ident.ParseID(core); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(core); err == nil {
		return true
	}
	if _, err := netip.ParseAddrPort(core); err == nil {
		return true
	}
	if _, err := time.Parse(time.RFC3339, core); err == nil {
		return true
	}
	if d, err := time.ParseDuration(core); err == nil && len(core) <= 16 && d.String() == core {
		return true
	}
	if version.MatchString(core) {
		return true
	}
	if len(digits.FindAllString(core, -1)) > maxDigits {
		return false
	}
	for _, segment := range joint.Split(core, -1) {
		if segment != "" && !r.names[segment] && !amount.MatchString(segment) && !isWords(segment) {
			return false
		}
	}
	return true
}

// isWords reports whether a text is a known word, or consists of known words that begin with capital letters.
func isWords(text string) bool {
	known := vocabulary()
	if known[strings.ToLower(text)] {
		return true
	}
	parts := strings.Fields(capital.ReplaceAllString(text, "$1$3 $2$4"))
	for _, word := range parts {
		if !known[strings.ToLower(word)] {
			return false
		}
	}
	return len(parts) > 1
}
