package aws

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// TestInstanceOfBatch checks that the ID of an instance of a batch follows from its client token and its launch index,
// and that copied tags do not make an instance one of a batch.
func TestInstanceOfBatch(t *testing.T) {
	newBatch := func() ident.Batch {
		batch, err := ident.NewBatch("wrk", time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return batch
	}
	batch, other, single := newBatch(), newBatch(), request().Tags.Instance
	third, _ := batch.Member(3)
	for name, c := range map[string]struct {
		token, tag string
		index      int32
		want       ident.ID
	}{
		"of the batch":       {batch.String(), batch.String(), 3, third},
		"tag removed":        {batch.String(), "", 3, third},
		"tag of an instance": {batch.String(), single.String(), 3, single},
		"tag of another":     {batch.String(), other.String(), 3, ident.ID{}},
		"copied tag":         {"", batch.String(), 0, ident.ID{}},
		"single, copied tag": {single.String(), batch.String(), 0, ident.ID{}},
		"impossible index":   {batch.String(), batch.String(), ident.BatchSize, ident.ID{}},
		"negative index":     {batch.String(), batch.String(), -1, ident.ID{}},
		"single":             {single.String(), single.String(), 0, single},
	} {
		instance := types.Instance{ClientToken: &c.token, AmiLaunchIndex: &c.index}
		if c.tag != "" {
			instance.Tags = []types.Tag{{Key: ptr("nstance:instance-id"), Value: &c.tag}}
		}
		if vm := describe(instance); vm.Tags.Instance != c.want {
			t.Errorf("%s: instance %s, want %s", name, vm.Tags.Instance, c.want)
		}
	}
}
