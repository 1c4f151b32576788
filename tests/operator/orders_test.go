package operator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// TestDeletionOrders deletes the Cluster and its parts in different orders while a shard hangs. Everything must end
// within a minute after the shard answers, and no deletion may create an instance.
func TestDeletionOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	l.bootstrap(t)
	l.imported(t)
	type object struct{ kind, name string }
	cluster, infra := object{"cluster", clusterName}, object{"nstancecluster", clusterName}
	machinePool, pool := object{"machinepool", dynamic}, object{"nstancemachinepool", dynamic}
	group := object{"nstanceshardgroup", v1beta1.ShardGroupName(dynamic, "west")}
	staticMachinePool, staticPool := object{"machinepool", workers}, object{"nstancemachinepool", workers}
	staticGroup := object{"nstanceshardgroup", v1beta1.ShardGroupName(workers, "west")}
	for _, order := range [][]object{
		{infra, cluster},
		{machinePool, staticMachinePool, cluster},
		{pool, staticPool, cluster, infra},
		{group, staticGroup, pool, machinePool, cluster},
		{cluster, infra, staticMachinePool, machinePool, group},
	} {
		var name []string
		for _, o := range order {
			name = append(name, o.kind)
		}
		if !t.Run(strings.Join(name, ", "), func(t *testing.T) {
			l.dynamicPool(t, dynamic)
			await(t, "the dynamic group runs", patience, func(ctx context.Context) error {
				return l.spread(ctx, dynamic, l.both(1, 1))
			})
			kept, created := l.ids(t, workers, l.shards()...), l.countCreations()
			proceed := l.hang(t, l.west)
			for _, o := range order {
				l.remove(t, o.kind, o.name)
				<-time.After(2 * time.Second) // The controllers react before the next deletion.
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
			l.kubectl(t, "-n", namespace, "annotate", "configmap", deleted, v1beta1.RecreateAnnotation+"=true")
			l.recreated(t)
			l.unchanged(t, workers, kept, created)
		}) {
			return // Later parts would fail for the same reason.
		}
	}
}
