package shards

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	// typeTimeout is the timeout of one request to a shard for a type's size.
	typeTimeout = 5 * time.Second
	// askAgain is the time after which a shard is asked again if it gave no size. A size stays in use, because types do
	// not change.
	askAgain = time.Minute
	// maxCPUs and maxMiB are the largest values that are accepted in a shard's answer.
	maxCPUs, maxMiB = 1 << 16, 1 << 30
)

// Types asks shards for the capacity of instance types and remembers the answers. It is safe for concurrent use.
//
// The cluster autoscaler trusts the capacity when it decides whether a pod fits on a machine that does not exist yet.
// If there is none for a type, the autoscaler cannot scale a group of this type up from zero. Everything else works.
type Types struct {
	Now func() time.Time

	mu    sync.Mutex
	asked map[typeKey]typeAnswer
}

type typeKey struct{ shard, instanceType string }

type typeAnswer struct {
	capacity corev1.ResourceList
	known    bool
	at       time.Time
}

// Capacity returns the CPUs and the memory of an instance type, as the shard's provider describes it: the whole memory
// of the machine, including the part that kernel and firmware reserve. It returns nil if the provider does not know the
// type. If the shard has not answered yet, known is false. Capacity waits at most five seconds for the answer.
func (t *Types) Capacity(ctx context.Context, shard Shard, instanceType string) (_ corev1.ResourceList, known bool) {
	if instanceType == "" {
		return nil, true
	}
	key := typeKey{shard.ID(), instanceType}
	t.mu.Lock()
	a, asked := t.asked[key]
	t.mu.Unlock()
	if !shard.State().Reachable || asked && (a.capacity != nil || t.Now().Sub(a.at) < askAgain) {
		return a.capacity, a.known
	}
	ctx, cancel := context.WithTimeout(ctx, typeTimeout)
	defer cancel()
	size, err := shard.API().GetInstanceType(ctx, &nstancev1.GetInstanceTypeRequest{InstanceType: instanceType})
	a = typeAnswer{at: t.Now()}
	switch cpus, mib := int64(size.GetCpus()), size.GetMemoryMib(); {
	case err == nil && cpus > 0 && cpus <= maxCPUs && mib > 0 && mib <= maxMiB:
		a.known, a.capacity = true, corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(cpus, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(mib)<<20, resource.BinarySI),
		}
	default:
		switch status.Code(err) {
		case codes.OK, codes.NotFound, codes.InvalidArgument, codes.Unimplemented:
			a.known = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == nil {
		t.asked = map[typeKey]typeAnswer{}
	}
	t.asked[key] = a
	return a.capacity, a.known
}
