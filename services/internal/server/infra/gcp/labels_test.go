package gcp

import (
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

func TestNumberOfLabels(t *testing.T) {
	id, err := ident.ParseID("knc06bgm7733st2576nx5jht4ecjw")
	if err != nil {
		t.Fatal(err)
	}
	labels, items, err := encodeTags(infra.Tags{Owner: infra.Owner{Cluster: "c", Shard: "s"}, Instance: id,
		Spot: true, CreatedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(labels) + len(items); n != contract.ServerLabels {
		t.Errorf("the server adds %d labels, and the checks of configurations count %d", n, contract.ServerLabels)
	}
}

// TestDamagedLabels checks that a VM with labels that somebody has changed keeps its instance, and that a warning names
// every label that cannot be read. Without its instance, the VM would be replaced.
func TestDamagedLabels(t *testing.T) {
	const name, other = "knc06bgm7733st2576nx5jht4ecjw", "knc06bgm7733st2576nx5jht4eckw"
	good := map[string]string{"nstance-instance-id": name, "nstance-term": "7"}
	for _, test := range []struct{ label, value, instance, warning string }{
		{"instance-id", name, name, ""},
		{"instance-id", other, other, ""},
		{"instance-id", "", name, "instance-id"},
		{"instance-id", "damaged", name, "instance-id"},
		{"term", "-1", name, "term"},
		{"created-at", "today", name, "created-at"},
	} {
		labels := maps.Clone(good)
		labels["nstance-"+test.label] = test.value
		tags, warning := decodeTags(&compute.Instance{Name: name, Labels: labels})
		if tags.Instance.String() != test.instance || (warning == "") != (test.warning == "") ||
			!strings.Contains(warning, test.warning) {
			t.Errorf("%s=%q: instance %s, warning %q", test.label, test.value, tags.Instance, warning)
		}
	}
}
