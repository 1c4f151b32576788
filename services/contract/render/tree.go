package render

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// maxDepth is how deep a tree of values may be.
const maxDepth = 100

// Tree renders every text inside a JSON-like value: nil, bool, string, numbers, []any and map[string]any. Keys are not
// templates. The result shares no maps or slices with the tree. The limits apply to the output of all texts together.
func Tree(name string, tree any, d Data) (any, error) { return walk(name, tree, 0, d, newBudget()) }

// JSON renders a document whose texts are templates. The result is indented JSON with a newline at the end.
func JSON(name string, tree any, d Data) ([]byte, error) {
	value, err := Tree(name, tree, d)
	if err != nil {
		return nil, err
	}
	out, err := encodeJSON(value, "  ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(out) > MaxOutput {
		return nil, fmt.Errorf("%s: the document is longer than %d bytes: %w", name, MaxOutput, ErrTooLarge)
	}
	return out, nil
}

// walk renders a tree. An error contains the path of the element that caused it, such as Parent.key[3].
func walk(name string, tree any, depth int, d Data, b *budget) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: nested deeper than %d", name, maxDepth)
	}
	switch v := tree.(type) {
	case string:
		return textWith(name, v, d, b)
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			value, err := walk(name+"."+key, v[key], depth+1, d, b)
			if err != nil {
				return nil, err
			}
			out[key] = value
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			value, err := walk(name+"["+strconv.Itoa(i)+"]", v[i], depth+1, d, b)
			if err != nil {
				return nil, err
			}
			out[i] = value
		}
		return out, nil
	case nil, bool, float64, int, int64:
		return v, nil
	default:
		return nil, fmt.Errorf("%s: a %T is not a JSON value", name, v)
	}
}
