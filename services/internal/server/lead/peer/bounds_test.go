package peer

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestEveryTextOfAMessageIsBounded replaces each text and each list of each message between servers, one at a time, by
// one that is much too large but fits into a frame. Each such message is refused.
func TestEveryTextOfAMessageIsBounded(t *testing.T) {
	kinds, checked := map[string]bool{}, 0
	for name, message := range messages() {
		var whole map[string]any
		if err := json.Unmarshal(encode(t, message), &whole); err != nil {
			t.Fatal(err)
		}
		for kind := range whole {
			kinds[kind] = true
		}
		oversized(whole, "", func(path string) {
			checked++
			text, err := json.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > maxFrame {
				t.Fatalf("a frame of %d bytes", len(text))
			}
			if _, err := decode(text); err == nil {
				t.Errorf("%s with a huge %s is accepted", name, path)
			} else if text := fmt.Sprint(err); len(text) > 2048 {
				t.Errorf("%s with a huge %s: %.300s", name, path, text)
			}
		})
	}
	if n := reflect.TypeFor[frame]().NumField(); len(kinds) != n || checked < 20 {
		t.Errorf("%d of %d kinds of messages, %d texts were checked", len(kinds), n, checked)
	}
}

// oversized calls yield while one text or list in the value is much too large, for each of them.
func oversized(value any, path string, yield func(path string)) {
	replaced := func(old any, set func(any), path string) {
		switch old.(type) {
		case string:
			set(strings.Repeat("x", 50<<10))
		case []any:
			set(strings.Split(strings.Repeat("x", 10_000), ""))
		default:
			return
		}
		yield(path)
		set(old)
	}
	switch value := value.(type) {
	case map[string]any:
		for key, old := range value {
			replaced(old, func(v any) { value[key] = v }, path+"."+key)
			oversized(old, path+"."+key, yield)
		}
	case []any:
		for i, old := range value {
			at := fmt.Sprintf("%s[%d]", path, i)
			replaced(old, func(v any) { value[i] = v }, at)
			oversized(old, at, yield)
		}
	}
}
