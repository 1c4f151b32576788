package operator

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// orderedKinds maps the letters in deletionOrders to kinds of objects that a user can delete. For each kind it has the
// names of the objects that the test deletes.
var orderedKinds = map[rune]struct {
	kind  string
	names []string
}{
	'C': {"cluster", []string{clusterName}},
	'I': {"nstancecluster", []string{clusterName}},
	'M': {"machinepool", []string{dynamic, workers}},
	'P': {"nstancemachinepool", []string{dynamic, workers}},
	'G': {"nstanceshardgroup", []string{v1beta1.ShardGroupName(dynamic, "west"),
		v1beta1.ShardGroupName(workers, "west")}},
}

// For each pair of kinds, deletionOrders has an order in which the first kind is deleted before the second.
var deletionOrders = []string{"CPGMI", "IMGPC"}

// TestEveryKindIsDeletedBeforeEveryOther checks that the orders of TestDeletionOrders cover all pairs.
func TestEveryKindIsDeletedBeforeEveryOther(t *testing.T) {
	for first := range orderedKinds {
		for second := range orderedKinds {
			if first != second && !slices.ContainsFunc(deletionOrders, func(order string) bool {
				return strings.IndexRune(order, first) < strings.IndexRune(order, second)
			}) {
				t.Errorf("no order deletes %s before %s", orderedKinds[first].kind, orderedKinds[second].kind)
			}
		}
	}
}

// TestDeletionOrders deletes the Cluster and its parts in different orders while a shard hangs. Then it deletes the
// CRDs of Nstance. All objects must be gone within a minute after the shard answers again, and no deletion may create
// an instance.
func TestDeletionOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	l.bootstrap(t)
	l.imported(t)
	for _, order := range deletionOrders {
		if !t.Run(order, func(t *testing.T) { l.testDeletionOrder(t, order) }) {
			return // Later parts would fail for the same reason.
		}
	}
	t.Run("definitions", l.testDeleteDefinitions)
}

func (l *lab) testDeletionOrder(t *testing.T, order string) {
	l.dynamicPool(t, dynamic)
	await(t, "the dynamic group runs", patience, func(ctx context.Context) error {
		return l.spread(ctx, dynamic, l.both(1, 1))
	})
	kept, created := l.ids(t, workers, l.shards()...), l.countCreations()
	proceed := l.hang(t, l.west)
	for _, letter := range order {
		for _, name := range orderedKinds[letter].names {
			l.remove(t, orderedKinds[letter].kind, name)
		}
		<-time.After(time.Second) // The controllers react before the next deletion.
	}
	await(t, "east has done its part", patience, func(ctx context.Context) error {
		return l.withoutGroup(ctx, dynamic, l.east)
	})
	proceed()
	await(t, "everything has ended", time.Minute, func(ctx context.Context) error {
		return errors.Join(l.empty(ctx), l.static(ctx), l.withoutGroup(ctx, dynamic, l.shards()...))
	})
	steady(t, "it stays so", l.empty)
	l.unchanged(t, workers, kept, created)
	// The operator notices a new Cluster immediately, but reads the ConfigMap that records the deletion only every 10
	// s.
	l.create(t.Context(), t, &clusterv1.Cluster{ObjectMeta: objectMeta(clusterName), Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
			Kind: "NstanceCluster", Name: clusterName}}})
	l.recreated(t)
	l.unchanged(t, workers, kept, created)
}

// testDeleteDefinitions deletes Nstance's CRDs, which deletes all objects of their kinds. Meanwhile, the server of the
// shard "west" is paused. Then the test installs the CRDs again.
func (l *lab) testDeleteDefinitions(t *testing.T) {
	l.dynamicPool(t, dynamic)
	await(t, "the dynamic group runs", patience, func(ctx context.Context) error {
		return l.spread(ctx, dynamic, l.both(1, 1))
	})
	kept, created := l.ids(t, workers, l.shards()...), l.countCreations()
	proceed := l.hang(t, l.west)
	ours := client.MatchingLabels{"cluster.x-k8s.io/provider": "infrastructure-nstance"}
	l.kubectl(t, "delete", "crd", "-l", "cluster.x-k8s.io/provider=infrastructure-nstance", "--wait=false")
	await(t, "east has done its part", patience, func(ctx context.Context) error {
		return l.withoutGroup(ctx, dynamic, l.east)
	})
	proceed()
	await(t, "no definition and only static groups are left", time.Minute, func(ctx context.Context) error {
		var list apiextensionsv1.CustomResourceDefinitionList
		if err := l.Client.List(ctx, &list, ours); err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return errors.New(list.Items[0].Name + " is left")
		}
		return errors.Join(l.static(ctx), l.withoutGroup(ctx, dynamic, l.shards()...))
	})
	l.unchanged(t, workers, kept, created)
	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	l.kubectl(t, "apply", "--server-side", "-k", filepath.Join(root, "config", "crd"))
	l.operators[len(l.operators)-1].Kill() // Its watches wait up to half a minute before they try again.
	l.operator(t)
	l.recreated(t)
	l.unchanged(t, workers, kept, created)
}
