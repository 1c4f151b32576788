package ident_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestBatch(t *testing.T) {
	batch, err := ident.NewBatch("wrk", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[ident.ID]bool{}
	for n := range ident.BatchSize {
		id, ok := batch.Member(n)
		if !ok || seen[id] || id.Batch() != batch || !batch.Has(id) || id.Prefix() != "wrk" {
			t.Fatalf("member %d is %s, %t", n, id, ok)
		}
		seen[id] = true
		if parsed, err := ident.ParseID(id.String()); err != nil || parsed != id {
			t.Fatalf("member %d: %v", n, err)
		}
		if parsed, err := ident.ParseStorageID(id.Storage()); err != nil || parsed != id {
			t.Fatalf("member %d: %v", n, err)
		}
	}
	for _, n := range []int{-1, ident.BatchSize} {
		if id, ok := batch.Member(n); ok {
			t.Errorf("member %d is %s", n, id)
		}
	}
	if parsed, err := ident.ParseBatch(batch.String()); err != nil || parsed != batch {
		t.Errorf("ParseBatch(%q) = %v, %v", batch, parsed, err)
	}
	if first, _ := batch.Member(0); first != batch.First() {
		t.Errorf("first is %s, not %s", batch.First(), first)
	}
	other, err := ident.NewBatch("wrk", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if other == batch || other.Has(batch.First()) {
		t.Errorf("%s and %s are one batch", batch, other)
	}
}

func TestNoBatch(t *testing.T) {
	var none ident.Batch
	if _, ok := none.Member(0); ok || !none.IsZero() || none.String() != "" || none.Has(ident.ID{}) {
		t.Error("the zero batch has members")
	}
	batch, err := ident.NewBatch("wrk", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	second, _ := batch.Member(1)
	for _, text := range []string{"", "+", batch.First().String(), second.String() + "+", batch.String() + "+",
		strings.ToUpper(batch.String()), "wrk+"} {
		if parsed, err := ident.ParseBatch(text); err == nil {
			t.Errorf("ParseBatch(%q) = %s", text, parsed)
		}
	}
	if _, err := ident.ParseID(batch.String()); err == nil {
		t.Errorf("%s is an ID", batch)
	}
}
