package highwater_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/highwater"
)

func TestMarks(t *testing.T) {
	var m highwater.Marks
	if m.Encode() != "" || m.Highest("a") != 0 {
		t.Errorf("empty marks: %q, %d", m.Encode(), m.Highest("a"))
	}
	m.Raise("a", 5)
	m.Raise("a", 3)
	if got := m.Highest("a"); got != 5 {
		t.Errorf("the mark is %d, want 5", got)
	}
	if err := m.Observe("a", 5, 4); !errors.Is(err, highwater.ErrRolledBack) {
		t.Errorf("version 4 after version 5: %v", err)
	}
	if err := m.Observe("a", 5, 5); err != nil {
		t.Errorf("the same version again: %v", err)
	}
	if err := m.Observe("a", 5, 7); err != nil || m.Highest("a") != 7 {
		t.Errorf("version 7 after version 5: %v, mark %d", err, m.Highest("a"))
	}
}

func TestEncodedMarksAreMerged(t *testing.T) {
	first, second := highwater.Marks{Scope: "example"}, highwater.Marks{Scope: "example"}
	first.Raise("cluster/ca.crt", 1_790_000_000_000)
	first.Raise("both", 3)
	second.Raise("both", 4)
	second.Raise("other", 1)
	if err := second.Merge(first.Encode()); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]uint64{"cluster/ca.crt": 1_790_000_000_000, "both": 4, "other": 1, "none": 0} {
		if got := second.Highest(key); got != want {
			t.Errorf("the mark of %s is %d, want %d", key, got, want)
		}
	}
	encoded := second.Encode()
	if len(encoded) != 56 { // 3 marks of 14 bytes in base64
		t.Errorf("three marks take %d bytes", len(encoded))
	}
	if err := first.Merge(encoded); err != nil || first.Encode() != encoded {
		t.Errorf("equal marks have the texts %q and %q, %v", first.Encode(), encoded, err)
	}
}

// TestMarksOfAnotherCluster checks that a shard can move to another cluster, even if the objects of that cluster have
// lower versions.
func TestMarksOfAnotherCluster(t *testing.T) {
	former, next := highwater.Marks{Scope: "former"}, highwater.Marks{Scope: "next"}
	former.Raise("cluster/ca.crt", 9)
	if err := next.Merge(former.Encode()); err != nil {
		t.Fatal(err)
	}
	if got := next.Highest("cluster/ca.crt"); got != 0 {
		t.Errorf("the mark is %d, want none", got)
	}
}

// TestManyMarks checks that the marks with the highest versions are kept.
func TestManyMarks(t *testing.T) {
	var m, read highwater.Marks
	for i := range uint64(600) {
		m.Raise(fmt.Sprint(i), i+1)
	}
	if err := read.Merge(m.Encode()); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(600) {
		want := i + 1
		if i < 600-512 {
			want = 0
		}
		if got := read.Highest(fmt.Sprint(i)); got != want {
			t.Errorf("the mark of %d is %d, want %d", i, got, want)
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	var good highwater.Marks
	good.Raise("a", highwater.MaxVersion+1)
	if err := highwater.Validate(good.Encode()); err != nil {
		t.Errorf("a version above all versions: %v", err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"other characters":     {"!", "illegal base64"},
		"part of a mark":       {"AAAA", "multiple of 14"},
		"an impossible number": {strings.Repeat("/", 56), "version"},
		"too many":             {strings.Repeat("A", 56*171), "at most 512"},
	} {
		m := highwater.Marks{}
		if err := m.Merge(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := highwater.Validate(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Validate returns %v, want %q", name, err, c.want)
		}
		if m.Encode() != "" {
			t.Errorf("%s: marks were raised", name)
		}
	}
}

func FuzzMerge(f *testing.F) {
	var m highwater.Marks
	m.Raise("a", 1)
	m.Raise("b", highwater.MaxVersion)
	f.Add(m.Encode())
	f.Add("")
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		var read, again highwater.Marks
		if err := read.Merge(text); err != nil {
			return
		}
		if err := again.Merge(read.Encode()); err != nil || again.Encode() != read.Encode() {
			t.Errorf("%q is encoded as %q and %q, %v", text, read.Encode(), again.Encode(), err)
		}
	})
}
