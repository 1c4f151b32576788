package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// AliveLabel marks Nodes whose machine runs: kwok plays the kubelets of those alone.
const AliveLabel = "kube-test.nstance.dev/alive"

const (
	// nodeLease is for how long a kubelet's lease holds, nodeGrace how long Kubernetes waits for a Node that does not
	// report.
	nodeLease = 4 * time.Second
	nodeGrace = 6 * time.Second
)

// Nodes plays the kubelets of instances: each has a Node named like it from when its agent has registered. It removes
// none: when the VM has gone, the Node becomes NotReady, as in a cluster without a cloud controller. Nor does it make
// one twice: a kubelet registers when it starts.
type Nodes struct {
	Client client.Client
	// Failed is told what went wrong and will be tried again.
	Failed func(error)

	mu   sync.Mutex
	made map[string]bool // false: its VM is gone
}

// Follow watches the instances of shards until ctx ends, whoever leads those. A shard that does not answer has the VMs
// that it last had.
func (n *Nodes) Follow(ctx context.Context, shards ...nstancev1.OperatorServiceClient) {
	var all sync.WaitGroup
	for _, shard := range shards {
		all.Go(func() { n.follow(ctx, shard) })
	}
	all.Wait()
}

func (n *Nodes) follow(ctx context.Context, shard nstancev1.OperatorServiceClient) {
	changed := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			// a stream's end is no news, and a look at the list is due every second in any case
			_ = watch(ctx, shard, changed)
			pause(ctx, 200*time.Millisecond)
		}
	}()
	known := map[string]bool{}
	for ctx.Err() == nil {
		if err := n.look(ctx, shard, known); err != nil && ctx.Err() == nil && n.Failed != nil {
			n.Failed(err)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(time.Second):
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// watch says on changed that something happened to an instance.
func watch(ctx context.Context, shard nstancev1.OperatorServiceClient, changed chan<- struct{}) error {
	stream, err := shard.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// look makes the Nodes of a shard as they should be. known are the VMs of this shard that had a Node.
func (n *Nodes) look(ctx context.Context, shard nstancev1.OperatorServiceClient, known map[string]bool) error {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := shard.ListInstances(call, &nstancev1.ListInstancesRequest{})
	if err != nil {
		return fmt.Errorf("list instances: %w", err)
	}
	joined, left := changes(known, list.GetInstances())
	var errs []error
	for _, instance := range joined {
		if err := n.join(ctx, instance); err != nil {
			errs = append(errs, err)
			continue
		}
		known[instance.GetInstanceId()] = true
	}
	for _, name := range left {
		if err := n.leave(ctx, name); err != nil {
			errs = append(errs, err)
			continue
		}
		known[name] = false
	}
	return errors.Join(errs...)
}

// changes says which instances need a Node, and whose machine has gone, by what is known and what there is.
func changes(known map[string]bool, instances []*nstancev1.InstanceStatus) (joined []*nstancev1.InstanceStatus,
	left []string) {
	runs := map[string]bool{}
	for _, instance := range instances {
		id := instance.GetInstanceId()
		if !boots(instance) {
			continue
		}
		runs[id] = true
		if _, made := known[id]; !made && instance.GetRegisteredAt() != nil {
			joined = append(joined, instance)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		if known[id] && !runs[id] {
			left = append(left, id)
		}
	}
	return joined, left
}

// boots reports whether an instance's machine runs, or is about to: a provider that said so last is not asked again for
// minutes.
func boots(instance *nstancev1.InstanceStatus) bool {
	state := instance.GetProviderState()
	return (state == "running" || state == "pending") && instance.GetProviderId() != "" &&
		instance.GetState() != "deleted"
}

// join makes a Node, as a kubelet does when it starts.
func (n *Nodes) join(ctx context.Context, instance *nstancev1.InstanceStatus) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := instance.GetInstanceId()
	if _, ok := n.made[id]; ok {
		return nil
	}
	if err := n.Client.Create(ctx, node(instance)); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make node %s: %w", id, err)
	}
	if n.made == nil {
		n.made = map[string]bool{}
	}
	n.made[id] = true
	return nil
}

func node(instance *nstancev1.InstanceStatus) *corev1.Node {
	id := instance.GetInstanceId()
	labels := map[string]string{AliveLabel: "true", corev1.LabelHostname: id, corev1.LabelOSStable: "linux",
		corev1.LabelArchStable: "amd64"}
	for label, value := range map[string]string{corev1.LabelInstanceTypeStable: instance.GetInstanceType(),
		corev1.LabelTopologyZone:   instance.GetZone(),
		corev1.LabelTopologyRegion: instance.GetRegion()} {
		if value != "" {
			labels[label] = value
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: labels, Annotations: map[string]string{
			"kwok.x-k8s.io/node": "fake"}},
		Spec: corev1.NodeSpec{ProviderID: instance.GetProviderId()},
		// Cluster API copies it to Machines, and refuses what is no version. kwok would say its own.
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"}},
	}
}

// leave ends the kubelet of a Node: kwok keeps it ready no longer.
func (n *Nodes) leave(ctx context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made[name] = false
	gone := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, AliveLabel)
	return client.IgnoreNotFound(n.Client.Patch(ctx, gone, client.RawPatch("application/merge-patch+json", patch)))
}
