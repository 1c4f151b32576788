package suggest_test

import (
	"testing"

	"github.com/nstance-kit/nstance/services/contract/suggest"
)

func TestNearest(t *testing.T) {
	names := []string{"group", "instance", "kind", "since", "--ü"}
	for name, want := range map[string]string{"gruop": "group", "GROUP": "group",
		"istnance": "instance", "knid": "kind", "sinec": "since", "x": "", "": "", "-ü-": ""} {
		if got := suggest.Nearest(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
