package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// applied is the name of a group that exists only in Kubernetes. Its MachinePool comes from a manifest.
const applied = "applied"

// TestUse changes a MachinePool's replicas as the cluster autoscaler does, and by applying manifests.
func TestUse(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	l.bootstrap(t)
	l.imported(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"documented", l.testDocumented},
		{"autoscaler", l.testAutoscaler},
		{"apply", l.testApply},
		{"MachineDeployment", l.testDeployment},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason.
		}
	}
}

// testAutoscaler scales down as the cluster autoscaler does. Exactly the instances of the drained nodes must be
// deleted. The test drains the newest nodes: a server that ignored the autoscaler's choice would delete the oldest
// ones.
func (l *lab) testAutoscaler(t *testing.T) {
	ctx := t.Context()
	l.runSteps(t, startPage, "Scale with the cluster autoscaler")
	for _, group := range []struct {
		name string
		size int
	}{{workers, 4}, {dynamic, 4}} {
		if group.name == dynamic {
			l.dynamicPool(t, dynamic)
			if err := l.scale(ctx, dynamic, group.size); err != nil {
				t.Fatal(err)
			}
		}
		await(t, group.name+" runs", patience, func(ctx context.Context) error {
			return errors.Join(l.poolRuns(ctx, group.name, group.size), l.joined(ctx, group.name, l.both(2, 2)))
		})
		east, west := l.ids(t, group.name, l.east), l.ids(t, group.name, l.west)
		made := l.made(group.name)
		drained := []string{east[1], west[1], west[0]}
		sizes := l.both(1, 0)
		for _, id := range drained {
			l.autoscalerRemoves(t, group.name, id)
		}
		await(t, "one of four is left", patience, func(ctx context.Context) error {
			return l.spread(ctx, group.name, sizes)
		})
		if left := l.ids(t, group.name, l.shards()...); !slices.Equal(left, east[:1]) {
			t.Errorf("%s: %v were drained, %v are left of %v and %v", group.name, drained, left, east, west)
		}
		if now := l.made(group.name); now != made {
			t.Errorf("%s: %d instances were created during the scale-down", group.name, now-made)
		}
		steady(t, "one of four", func(ctx context.Context) error { return l.spread(ctx, group.name, sizes) })
		l.deleteEmptyShardGroup(t, group.name, sizes, east[:1])
		if err := l.scale(ctx, group.name, 4); err != nil {
			t.Fatal(err)
		}
		l.restored(t, group.name, l.both(2, 2))
	}
	l.remove(t, "machinepool", dynamic)
	await(t, "the dynamic group is gone", patience, func(ctx context.Context) error {
		return l.withoutGroup(ctx, dynamic, l.shards()...)
	})
}

// deleteEmptyShardGroup deletes the NstanceShardGroup of the shard "west", which has no instance. The operator must
// create it again with the same share, and no instance may move.
func (l *lab) deleteEmptyShardGroup(t *testing.T, group string, sizes map[*shard]int, kept []string) {
	t.Helper()
	name, created := v1beta1.ShardGroupName(group, "west"), l.countCreations()
	before := &v1beta1.NstanceShardGroup{}
	if err := l.Client.Get(t.Context(), in(name), before); err != nil {
		t.Fatal(err)
	}
	l.remove(t, "nstanceshardgroup", name)
	await(t, name+" is created again", patience, func(ctx context.Context) error {
		return errors.Join(has(ctx, l, &v1beta1.NstanceShardGroup{}, name, func(g *v1beta1.NstanceShardGroup) error {
			if g.UID == before.UID || value(g.Spec.Size) != 0 {
				return fmt.Errorf("UID %s (before %s), size %d", g.UID, before.UID, value(g.Spec.Size))
			}
			return nil
		}), l.spread(ctx, group, sizes))
	})
	steady(t, "no instance moves", func(ctx context.Context) error { return l.spread(ctx, group, sizes) })
	l.unchanged(t, group, kept, created)
}

// autoscalerRemoves makes the calls of the cluster autoscaler and its provider clusterapi for one node. It taints the
// node, and finds the Machine by the node's provider ID. Then it marks the Machine for deletion and lowers the replicas
// by one.
func (l *lab) autoscalerRemoves(t *testing.T, pool, name string) {
	t.Helper()
	ctx := t.Context()
	var node corev1.Node
	// Other clients change Nodes and Machines too, so an update may conflict. The autoscaler then tries again.
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := l.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		node.Spec.Unschedulable = true
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler",
			Value: fmt.Sprint(time.Now().Unix()), Effect: corev1.TaintEffectNoSchedule})
		return l.Client.Update(ctx, &node)
	}); err != nil {
		t.Fatal(err)
	}
	mp := &clusterv1.MachinePool{}
	if err := l.Client.Get(ctx, in(pool), mp); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(mp.Spec.ProviderIDList, node.Spec.ProviderID) {
		t.Fatalf("MachinePool %s lists %v, not %s", pool, mp.Spec.ProviderIDList, node.Spec.ProviderID)
	}
	var machines clusterv1.MachineList
	if err := l.Client.List(ctx, &machines, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(machines.Items, func(m clusterv1.Machine) bool {
		return m.Spec.ProviderID == node.Spec.ProviderID
	})
	if at < 0 {
		t.Fatalf("no Machine has the provider ID %s", node.Spec.ProviderID)
	}
	machine := &machines.Items[at]
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := l.Client.Get(ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
			return err
		}
		if machine.Annotations == nil {
			machine.Annotations = map[string]string{}
		}
		machine.Annotations[clusterv1.DeleteMachineAnnotation] = time.Now().String()
		return l.Client.Update(ctx, machine)
	}); err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"replicas": *mp.Spec.Replicas - 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Client.SubResource("scale").Patch(ctx, mp, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// manifest is the MachinePool of the group "applied", as users keep it in Git. testApply fills in the lines of the
// replicas and of the autoscaler's annotations.
const manifest = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata:
  name: applied
  %s
spec:
  clusterName: ` + clusterName + `
  %s
  template:
    spec:
      clusterName: ` + clusterName + `
      bootstrap: {dataSecretName: ""}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: NstanceMachinePool, name: applied}
`

const limits = `annotations:
    cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size: "0"
    cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size: "10"`

// testApply checks which client owns the field for a MachinePool's replicas. The result must be as in the
// documentation.
func (l *lab) testApply(t *testing.T) {
	ctx := t.Context()
	l.create(ctx, t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(applied),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: applied, Shards: []string{"east", "west"}, Config: fromWorker}})
	apply := func(replicas, annotations string, flags ...string) error {
		file := filepath.Join(l.dir, "pool.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, manifest, annotations, replicas), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", l.Kubeconfig, "-n", namespace,
			"apply", "--server-side", "--field-manager=fleet", "-f", file}, flags...)...)
		cmd.Env = append(os.Environ(), "HOME="+l.dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	// replicas checks the number of replicas, and which client owns the field. If "owner" is "", it does not check the
	// owner, because the field has no owner after Cluster API has set it.
	replicas := func(want int32, owner string) {
		t.Helper()
		mp := &clusterv1.MachinePool{}
		if err := l.Client.Get(ctx, in(applied), mp); err != nil {
			t.Fatal(err)
		}
		var owners []string
		for _, f := range mp.ManagedFields {
			if strings.Contains(f.FieldsV1.GetRawString(), `"f:replicas":{}`) && f.Subresource != "status" {
				owners = append(owners, f.Manager+" "+string(f.Operation))
			}
		}
		if *mp.Spec.Replicas != want || owner != "" && !slices.Equal(owners, []string{owner}) {
			t.Errorf("%d replicas, owned by %q; want %d, owned by %q", *mp.Spec.Replicas, owners, want, owner)
		}
	}
	autoscaler := func(n int) {
		t.Helper()
		mp := &clusterv1.MachinePool{ObjectMeta: objectMeta(applied)}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))
		err := l.Client.SubResource("scale").Patch(ctx, mp, patch, client.FieldOwner("cluster-autoscaler"))
		if err != nil {
			t.Fatal(err)
		}
	}
	// If a manifest sets the replicas, the client that applies it owns the field. After the autoscaler has changed the
	// replicas, applying the manifest again fails with a conflict. A forced apply restores the number in the manifest.
	if err := apply("replicas: 2", ""); err != nil {
		t.Fatal(err)
	}
	replicas(2, "fleet Apply")
	autoscaler(3)
	replicas(3, "cluster-autoscaler Update")
	if err := apply("replicas: 2", ""); err == nil || !strings.Contains(err.Error(), "conflict") {
		t.Errorf("an old manifest: %v", err)
	}
	if err := apply("replicas: 2", "", "--force-conflicts"); err != nil {
		t.Error(err)
	}
	replicas(2, "fleet Apply")
	// If the next manifest has no replicas, the client no longer owns the field. The autoscaler's annotations make
	// Cluster API keep the present number.
	if err := apply("", limits); err != nil {
		t.Fatal(err)
	}
	replicas(2, "")
	autoscaler(3)
	if err := apply("", limits, "--force-conflicts"); err != nil {
		t.Fatal(err)
	}
	replicas(3, "")
	l.restored(t, applied, l.both(2, 1))
	// If the manifest has neither replicas nor annotations, Cluster API sets the replicas to 1.
	if err := errors.Join(apply("replicas: 3", "", "--force-conflicts"), apply("", "")); err != nil {
		t.Fatal(err)
	}
	replicas(1, "")
	l.remove(t, "machinepool", applied)
}
