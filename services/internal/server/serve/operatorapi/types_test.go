package operatorapi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// TestGetInstanceType checks that the provider describes each type once. The server also remembers which types the
// provider does not know. It does not remember failed requests.
func TestGetInstanceType(t *testing.T) {
	w := newTestShard(t)
	get := func(name string) (*nstancev1.GetInstanceTypeResponse, error) {
		return w.GetInstanceType(t.Context(), &nstancev1.GetInstanceTypeRequest{InstanceType: name})
	}
	w.provide(func(context.Context, mock.Call) mock.Outcome {
		return mock.Outcome{Err: infra.Errorf(infra.Throttled, "describe", "slow down")}
	})
	_, err := get("small")
	wants(t, "throttled", err, codes.Unavailable, "slow down")
	w.provide(nil)
	calls := w.provider.Count(mock.DescribeType)
	for range 3 {
		if size, err := get("small"); err != nil || size.GetCpus() != 2 || size.GetMemoryMib() != 4096 {
			t.Fatalf("%v, %v", size, err)
		}
		_, err := get("none")
		wants(t, "unknown", err, codes.NotFound, "instance_type: ", "none")
	}
	if n := w.provider.Count(mock.DescribeType) - calls; n != 2 {
		t.Errorf("%d calls for two types", n)
	}
	_, err = get("")
	wants(t, "no type", err, codes.InvalidArgument, "instance_type: ")
}
