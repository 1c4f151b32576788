package jsonpointer_test

import (
	"math"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/jsonpointer"
)

func TestNumber(t *testing.T) {
	const document = `{"a": {"b~/c": [1, 2.5, -3e2]}, "": 7, "text": "7", "yes": true, "none": null, "big": 1e999}`
	for _, test := range []struct {
		document, pointer string
		want              float64
		problem           string
	}{
		{document, "/a/b~0~1c/1", 2.5, ""},
		{document, "/a/b~0~1c/2", -300, ""},
		{document, "/", 7, ""},
		{" 12\n", "", 12, ""},
		{document, "/a/b~0~1c/3", 0, `the answer has no value at "/a/b~0~1c/3"`},
		{document, "/a/b~0~1c/01", 0, "no value"},
		{document, "/a/b~0~1c/-", 0, "no value"},
		{document, "/x/y", 0, `the answer has no value at "/x"`},
		{document, "/text", 0, `the value at "/text" is a text and not a number`},
		{document, "/text/0", 0, `the answer has no value at "/text/0"`},
		{document, "/yes", 0, "is true or false"},
		{document, "/none", 0, "is null"},
		{document, "/a", 0, "is an object"},
		{document, "/a/b~0~1c", 0, "is a list"},
		{document, "/big", 0, "is a number that is too large"},
		{document, "", 0, "the answer is an object"},
		{document, "a", 0, "is not a JSON pointer"},
		{document, "/~2", 0, "is not a JSON pointer"},
		{"<html>", "/a", 0, "is not JSON"},
		{"", "", 0, "is not JSON"},
		{"NaN", "", 0, "is not JSON"},
		{"1 2", "", 0, "text behind its JSON"},
		{strings.Repeat("[", 20000), "", 0, "is not JSON"},
	} {
		got, err := jsonpointer.Number([]byte(test.document), test.pointer)
		if got != test.want || (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(),
			test.problem) {
			t.Errorf("%q in %.80s: %v, %v; want %v, %q", test.pointer, test.document, got, err, test.want, test.problem)
		}
	}
}

// FuzzNumber checks that a document never yields something else than a finite number or an error.
func FuzzNumber(f *testing.F) {
	f.Add([]byte(`{"a": [1, "x"]}`), "/a/0")
	f.Add([]byte(`1e400`), "")
	f.Add([]byte(`{"~": 1}`), "/~0")
	f.Fuzz(func(t *testing.T, document []byte, pointer string) {
		n, err := jsonpointer.Number(document, pointer)
		if math.IsNaN(n) || math.IsInf(n, 0) || err != nil && n != 0 {
			t.Errorf("%v, %v", n, err)
		}
	})
}
