// Package support makes the bundle that a person attaches to a report about a fault, and decides what may be in it.
//
// Invariant: the bundle holds only texts that the tags of their types permit. A text without a tag is left out. A free
// text, such as an error, keeps only numbers, times, the words in words.txt, and names that other fields show.
package support

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
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
