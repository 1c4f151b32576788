package gcp

import (
	"testing"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

func TestNumberOfLabels(t *testing.T) {
	labels, items, err := encodeTags(infra.Tags{Owner: infra.Owner{Cluster: "c", Shard: "s"}, Spot: true,
		CreatedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(labels) + len(items); n != contract.ServerLabels {
		t.Errorf("the server adds %d labels, and the checks of configurations count %d", n, contract.ServerLabels)
	}
}
