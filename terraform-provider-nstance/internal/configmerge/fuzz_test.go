package configmerge

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// FuzzMerged checks that each value in the result comes from the patch if the patch has that value, and else from the
// document. Merging the same patch again must change nothing.
func FuzzMerged(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a": {"b": 1, "c": [1]}, /* c */}`, `{"a": {"b": null, "d": "<&>"}}`}, {`{}`, `{}`},
		{`{"a": 1}`, `{"a": {"b": 2}}`}, {`{"a": {"b": 2}}`, `{"a": 1}`},
		{`[]`, `{}`}, {`{}`, `null`}, {`{"a": 1, "a": 2}`, `{}`}, {`{`, ``},
		{`{"": {"": 1e-7}}`, `{"\u2028": "\u2028"}`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, document, patch string) {
		text, wrong := merged([]string{document, patch})
		if wrong != nil {
			if text != "" || wrong.FunctionArgument == nil || *wrong.FunctionArgument < 0 ||
				*wrong.FunctionArgument > 1 || wrong.Text == "" {
				t.Errorf("%q, %v", text, wrong)
			}
			return
		}
		out, problems := config.ParseTree("merged", []byte(text))
		below, _ := config.ParseTree("document", []byte(document))
		over, _ := config.ParseTree("patch", []byte(patch))
		if problems != nil {
			t.Fatalf("%v\n%s", problems, text)
		}
		holds(t, below, over, out)
		if again, wrong := merged([]string{text, patch}); wrong != nil || again != text {
			t.Errorf("merged again: %v\n%s", wrong, cmp.Diff(text, again))
		}
	})
}

// holds checks that each value in `out` comes from `over`, or from `below` if `over` lacks it. It compares nested
// objects in the same way.
func holds(t *testing.T, below, over, out any) {
	t.Helper()
	b, under := below.(map[string]any)
	o, patched := over.(map[string]any)
	got, isObject := out.(map[string]any)
	if !under || !patched || !isObject {
		if diff := cmp.Diff(over, out); diff != "" {
			t.Error(diff)
		}
		return
	}
	for name, value := range got {
		fromBelow, inBelow := b[name]
		fromOver, inOver := o[name]
		switch {
		case inBelow && inOver:
			holds(t, fromBelow, fromOver, value)
		case inBelow && !cmp.Equal(fromBelow, value), inOver && !cmp.Equal(fromOver, value), !inBelow && !inOver:
			t.Errorf("%q is %v of %v and %v", name, value, fromBelow, fromOver)
		}
	}
	for _, from := range []map[string]any{b, o} {
		for name := range from {
			if _, ok := got[name]; !ok {
				t.Errorf("%q is gone", name)
			}
		}
	}
}
