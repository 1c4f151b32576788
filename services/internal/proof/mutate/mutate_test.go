package mutate

import (
	"strings"
	"testing"
)

const source = `package p

const wait = 30 * time.Second

func (t *T[K]) first(now int) int {
	if now > t.limit && t.on { // reason
		t.count++
		t.limit = now
	}
	return t.limit
}

func second(a []int) int {
	switch {
	case len(a) > 3:
		a[0] = 1
		return a[0]
	}
	return a[0]
}
`

func TestApplyEdit(t *testing.T) {
	for name, tc := range map[string]struct {
		edit Edit
		want string // in the changed source, or in the error
	}{
		"operand":       {Edit{In: "T.first", Find: "n > l && o", Replace: "o"}, "if t.on {"},
		"by field name": {Edit{In: "T.first", Find: "r.count++", Replace: ""}, "{ // reason\n\n\t\tt.limit = now"},
		"statements": {Edit{In: "T.first", Find: "r.count++\nr.limit = n", Replace: "r.limit = -n"},
			"t.limit = -now"},
		"same letter twice": {Edit{In: "second", Find: "x[0] = 1\nreturn x[0]", Replace: "return x[1]"},
			"return a[1]"},
		"constant":           {Edit{In: "wait", Find: "n * time.Second", Replace: "0 * n"}, "wait = 0 * 30"},
		"missing function":   {Edit{In: "first", Find: "x", Replace: "y"}, "no such function"},
		"missing expression": {Edit{In: "second", Find: "x > 4", Replace: ""}, "occurs 0 times"},
		"ambiguous":          {Edit{In: "second", Find: "return x[0]", Replace: "return 0"}, "occurs 2 times"},
		"not Go":             {Edit{In: "second", Find: "if {", Replace: ""}, "pattern"},
		"result not Go":      {Edit{In: "second", Find: "x > 3", Replace: ")"}, "replace by"},
		"no change":          {Edit{In: "second", Find: "x > 3", Replace: "x > 3"}, "changes nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			changed, err := tc.edit.apply([]byte(source))
			got := string(changed)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %s (%v), want %q", changed, err, tc.want)
			}
		})
	}
}
