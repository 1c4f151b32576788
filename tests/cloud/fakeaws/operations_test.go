package fakeaws_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
)

// TestOperations checks that operations.txt lists exactly the operations that the fake implements.
func TestOperations(t *testing.T) {
	callers, err := fakeaws.CalledOperations()
	if err != nil {
		t.Fatal(err)
	}
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(callers)), cloud.Operations()); diff != "" {
		t.Errorf("operations of operations.txt (-), and operations implemented (+):\n%s", diff)
	}
}
