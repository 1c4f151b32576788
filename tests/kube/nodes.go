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

// AliveLabel marks Nodes with a running machine. kwok simulates the kubelets of only these Nodes.
const AliveLabel = "kube-test.nstance.dev/alive"

const (
	// nodeLease is how long a kubelet's lease is valid. nodeGrace is how long Kubernetes waits for a Node that does not
	// report.
	nodeLease = 4 * time.Second
	nodeGrace = 6 * time.Second
)

// Nodes simulates the kubelets of instances. When the agent of an instance has registered, the instance gets a Node
// with the instance's name. When the VM is gone or sleeps, the Node becomes NotReady but remains, as in a cluster
// without a cloud controller. When the VM of a spare is woken, its Node becomes ready again. A Node that was deleted is
// not created again, because a real kubelet creates its Node only at its start.
type Nodes struct {
	Client client.Client
	// Taints returns the taints that the kubelet of an instance gives its Node. If Taints is nil, Nodes get none.
	Taints func(*nstancev1.InstanceStatus) []corev1.Taint
	// Failed receives each error. The failed step is retried.
	Failed func(error)

	mu   sync.Mutex
	made map[string]bool // False if the VM is gone.
}

// Follow keeps the Nodes up to date with the instances of the shards until ctx ends, whichever server leads a shard. It
// does not change the Nodes of a shard that does not answer.
func (n *Nodes) Follow(ctx context.Context, shards ...nstancev1.OperatorServiceClient) {
	var all sync.WaitGroup
	for _, shard := range shards {
		all.Go(func() { n.followShard(ctx, shard) })
	}
	all.Wait()
}

func (n *Nodes) followShard(ctx context.Context, shard nstancev1.OperatorServiceClient) {
	changed := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			// The error can be ignored: this loop starts another watch, and the code below lists the instances every
			// second.
			_ = watch(ctx, shard, changed)
			pause(ctx, 200*time.Millisecond)
		}
	}()
	known := map[string]bool{}
	for ctx.Err() == nil {
		if err := n.updateNodes(ctx, shard, known); err != nil && ctx.Err() == nil && n.Failed != nil {
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

// watch sends a value to the channel changed after each event of an instance.
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

// updateNodes updates the Nodes of one shard. "known" has the VMs of the shard that got a Node in earlier calls.
func (n *Nodes) updateNodes(ctx context.Context, shard nstancev1.OperatorServiceClient, known map[string]bool) error {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := shard.ListInstances(call, &nstancev1.ListInstancesRequest{})
	if err != nil {
		return fmt.Errorf("list instances: %w", err)
	}
	joined, left, woken := changes(known, list.GetInstances())
	var errs []error
	for _, instance := range joined {
		if err := n.join(ctx, instance); err != nil {
			errs = append(errs, err)
			continue
		}
		known[instance.GetInstanceId()] = true
	}
	for alive, names := range map[bool][]string{false: left, true: woken} {
		for _, name := range names {
			if err := n.setKubelet(ctx, name, alive); err != nil {
				errs = append(errs, err)
				continue
			}
			known[name] = alive
		}
	}
	return errors.Join(errs...)
}

// changes compares the instances with the VMs in "known", which got a Node earlier. It returns the instances that need
// a Node, the names of the VMs that are gone or sleep, and those of the former spares that have woken.
func changes(known map[string]bool, instances []*nstancev1.InstanceStatus) (joined []*nstancev1.InstanceStatus,
	left, woken []string) {
	runs := map[string]bool{}
	for _, instance := range instances {
		id := instance.GetInstanceId()
		if !boots(instance) {
			continue
		}
		runs[id] = true
		switch alive, made := known[id]; {
		case !made && instance.GetRegisteredAt() != nil:
			joined = append(joined, instance)
		case made && !alive && (instance.GetSpare() || instance.GetPromotedAt() != nil):
			woken = append(woken, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		if known[id] && !runs[id] {
			left = append(left, id)
		}
	}
	return joined, left, woken
}

// boots reports whether an instance's machine runs or is about to run. It also checks that the instance is not deleted,
// because the provider state in its record may be minutes old.
func boots(instance *nstancev1.InstanceStatus) bool {
	state := instance.GetProviderState()
	return (state == "running" || state == "pending") && instance.GetProviderId() != "" &&
		instance.GetState() != "deleted"
}

// join creates a Node, as a kubelet does when it starts.
func (n *Nodes) join(ctx context.Context, instance *nstancev1.InstanceStatus) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := instance.GetInstanceId()
	if _, ok := n.made[id]; ok {
		return nil
	}
	object := node(instance)
	if n.Taints != nil {
		object.Spec.Taints = n.Taints(instance)
	}
	if err := n.Client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
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
		// Cluster API copies the kubelet's version from a Node to its Machine, and rejects an invalid version. If the
		// Node had no version, kwok would set a version.
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"}},
	}
}

// setKubelet stops the simulated kubelet of a Node, so that kwok no longer keeps the Node ready, or starts it again.
func (n *Nodes) setKubelet(ctx context.Context, name string, alive bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made[name] = alive
	node, label := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, "null"
	if alive {
		label = `"true"`
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, AliveLabel, label)
	return client.IgnoreNotFound(n.Client.Patch(ctx, node, client.RawPatch("application/merge-patch+json", patch)))
}
