// Package jsonpointer finds a number in a JSON document by a JSON pointer (RFC 6901).
package jsonpointer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ErrSyntax means that a text is not a JSON pointer.
var ErrSyntax = errors.New(`is not a JSON pointer such as "/queue/waiting"`)

// Parse splits a JSON pointer into its names. The pointer "", which has none, is that of the whole document.
func Parse(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		return nil, ErrSyntax
	}
	names := strings.Split(rest, "/")
	for i, name := range names {
		for at := 0; at < len(name); at++ {
			if name[at] == '~' && (at+1 == len(name) || name[at+1] != '0' && name[at+1] != '1') {
				return nil, ErrSyntax
			}
		}
		names[i] = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
	}
	return names, nil
}

// Number returns the number at a pointer in a document. The error is a sentence about "the answer", which quotes
// nothing of the document. The caller limits the size of the document.
func Number(document []byte, pointer string) (float64, error) {
	names, err := Parse(pointer)
	if err != nil {
		return 0, err
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return 0, errors.New("the answer is not JSON")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return 0, errors.New("the answer has text behind its JSON")
	}
	for i, name := range names {
		var found bool
		switch within := value.(type) {
		case map[string]any:
			value, found = within[name]
		case []any:
			// RFC 6901 has no leading zeros, and no signs.
			if n, err := strconv.Atoi(name); err == nil && strconv.Itoa(n) == name && n >= 0 && n < len(within) {
				value, found = within[n], true
			}
		}
		if !found {
			missing := strings.Join(strings.Split(pointer, "/")[:i+2], "/")
			return 0, fmt.Errorf("the answer has no value at %q", missing)
		}
	}
	where := "the answer"
	if pointer != "" {
		where = fmt.Sprintf("the value at %q", pointer)
	}
	switch v := value.(type) {
	case json.Number:
		number, err := v.Float64()
		if err != nil {
			return 0, fmt.Errorf("%s is a number that is too large", where)
		}
		return number, nil
	case string:
		return 0, fmt.Errorf("%s is a text and not a number", where)
	case bool:
		return 0, fmt.Errorf("%s is true or false and not a number", where)
	case map[string]any:
		return 0, fmt.Errorf("%s is an object and not a number", where)
	case []any:
		return 0, fmt.Errorf("%s is a list and not a number", where)
	}
	return 0, fmt.Errorf("%s is null and not a number", where)
}
