package config

import (
	"fmt"
	"testing"
)

// many returns the golden config with n groups of its largest template.
func many(t testing.TB, n int) *Shard {
	s := mustParse(t, string(read(t, testdata+"/v1/config.jsonc")))
	for i := range n {
		s.Groups["prod"][fmt.Sprint("g", i)] = cloned(s.Groups["default"]["workers"])
	}
	return s
}

func BenchmarkParse1000Groups(b *testing.B) {
	src := Encode(many(b, 1000))
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, problems := Parse("f", src); len(problems) > 0 {
			b.Fatal(problems)
		}
	}
}

func BenchmarkMerge1000Groups(b *testing.B) {
	s := many(b, 1000)
	for b.Loop() {
		if merged, _ := s.Merged(Groups{}); len(merged) < 1000 {
			b.Fatal("groups are missing")
		}
	}
}
