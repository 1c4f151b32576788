package lab

import (
	"slices"
	"testing"

	"github.com/nstance-kit/nstance/tests/cloudtest/account"
)

// Inventory returns all resources of all services, sorted. After a destroy it lists what would cost money or obstruct
// later stacks.
func (l *Lab) Inventory(t *testing.T) (found []string) {
	t.Helper()
	all, err := account.NewAWS(l.Config()).Inventory(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range all {
		found = append(found, resource.String())
	}
	slices.Sort(found)
	return found
}
