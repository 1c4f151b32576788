package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/tests/kube"
)

// testDrift checks that Kubernetes decides the size of a group: if another client changes the size on a shard, the
// operator changes it back.
func (l *lab) testDrift(t *testing.T) {
	ctx := t.Context()
	if _, err := l.east.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: workers, Patch: `{"size": 4}`,
		MustExist: true}); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}

// testPaused checks that changes to a paused pool do not reach the shards until it is unpaused.
func (l *lab) testPaused(t *testing.T) {
	ctx := t.Context()
	l.kubectl(t, "-n", namespace, "annotate", "nstancemachinepool", workers, clusterv1.PausedAnnotation+"=")
	await(t, "paused", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceMachinePool{}, workers, func(p *v1beta1.NstanceMachinePool) error {
			return condition(p.Status.Conditions, v1beta1.PausedCondition, "True")
		})
	})
	if err := l.scale(ctx, workers, 5); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 3*time.Second; <-time.After(200 * time.Millisecond) {
		for _, s := range l.shards() {
			if err := s.settled(ctx, workers, 2); err != nil {
				t.Fatalf("changed while paused: %v", err)
			}
		}
	}
	l.kubectl(t, "-n", namespace, "annotate", "nstancemachinepool", workers, clusterv1.PausedAnnotation+"-")
	l.restored(t, workers, l.both(3, 2))
	if err := l.scale(ctx, workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}

// testNewGroup adds a group to the configuration of one shard, as `tofu apply` does. It checks that the group becomes a
// pool. A later change of the pool must not create the group on other shards.
func (l *lab) testNewGroup(t *testing.T) {
	const later = "later"
	ctx := t.Context()
	state, err := l.west.bucket.state("west")
	if err != nil {
		t.Fatal(err)
	}
	body, token, err := state.ReadConfig(ctx, "west")
	if err != nil {
		t.Fatal(err)
	}
	c, problems := config.Parse("west", body)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	c.Groups[tenant][later] = config.GroupSpec{Template: "worker", Size: number(1)}
	if _, err := state.WriteConfig(ctx, "west", config.Encode(c), token); err != nil {
		t.Fatal(err)
	}
	answer, err := l.west.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
	if err != nil || answer.GetResult() != nstancev1.RefreshResult_REFRESH_RESULT_UPDATED {
		t.Fatalf("refreshed: %v, error %v", answer, err)
	}
	await(t, "imported", patience, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, later, map[*shard]int{l.west: 1}), l.poolRuns(ctx, later, 1))
	})
	if err := l.scale(ctx, later, 0); err != nil {
		t.Fatal(err)
	}
	l.restored(t, later, map[*shard]int{l.west: 0})
}

// testDynamic checks that a pool created in Kubernetes becomes a group on its shards. When the pool is deleted, the
// group and all its instances are deleted.
func (l *lab) testDynamic(t *testing.T) {
	const made = "made"
	ctx := t.Context()
	l.create(ctx, t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(made),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: made, Shards: []string{"west", "east"}, Config: fromWorker}})
	none, replicas := "", int32(1)
	l.create(ctx, t, &clusterv1.MachinePool{ObjectMeta: objectMeta(made),
		Spec: clusterv1.MachinePoolSpec{ClusterName: clusterName, Replicas: &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{ClusterName: clusterName,
				Bootstrap: clusterv1.Bootstrap{DataSecretName: &none},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
					Kind: "NstanceMachinePool", Name: made}}}}})
	await(t, "the remainder on the shard that is listed first", patience, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, made, l.both(0, 1)), l.poolRuns(ctx, made, 1))
	})
	l.setConfig(t, made, "west", `{"rollout":{"canry":1}}`,
		`rollout.canry: there is no such field (did you mean "canary"?)`)
	// The setting of another client stays.
	if _, err := l.west.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: made,
		Patch: `{"rollout":{"paused":true}}`}); err != nil {
		t.Fatal(err)
	}
	l.setConfig(t, made, "west", `{"rollout":{"canry":null,"canary":1,"bake_time":"60s"},"max_unhealthy":"3"}`, "")
	l.setConfig(t, made, "west", `{"rollout":{"canary":null}}`, "")
	if group, err := l.west.group(ctx, made); err != nil || !group.GetPaused() || group.GetSpecJson() !=
		`{"template":"worker","size":1,"max_unhealthy":"3","rollout":{"paused":true,"bake_time":"1m"}}` {
		t.Errorf("group %s, error %v", group.GetSpecJson(), err)
	}
	id := l.one(t, made, l.west)
	l.kubectl(t, "-n", namespace, "delete", "machinepool", made, "--wait=false")
	await(t, "gone with its instances", patience, func(ctx context.Context) error {
		for _, s := range l.shards() {
			if group, err := s.group(ctx, made); err == nil {
				return fmt.Errorf("%s still has %v", s.id, group)
			}
		}
		return errors.Join(l.left(ctx, l.west, id), l.absent(ctx, &clusterv1.MachinePool{}, in(made)),
			l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(made)),
			l.absent(ctx, &v1beta1.NstanceShardGroup{}, in(v1beta1.ShardGroupName(made, "east"))),
			l.absent(ctx, &v1beta1.NstanceShardGroup{}, in(v1beta1.ShardGroupName(made, "west"))))
	})
}

// testShards removes a shard from the operator's configuration file, and later adds it again. The operator must not
// change the removed shard. It must manage the shard again after the addition.
func (l *lab) testShards(t *testing.T) {
	all, err := os.ReadFile(l.configFile())
	if err != nil {
		t.Fatal(err)
	}
	one := fmt.Sprintf(
		"cluster_id: %s\ntenant: %s\nshards:\n  east:\n    registration_addr: %q\n    operator_addr: %q\n", clusterID,
		tenant,
		address(l.east.ports[2]), address(l.east.ports[3]))
	if err := os.WriteFile(l.configFile(), []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	group := v1beta1.ShardGroupName(workers, "west")
	await(t, "a shard has left", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceShardGroup{}, group, func(g *v1beta1.NstanceShardGroup) error {
			return condition(g.Status.Conditions, v1beta1.ShardReachableCondition, "False")
		})
	})
	if err := l.scale(t.Context(), workers, 6); err != nil {
		t.Fatal(err)
	}
	await(t, "the other goes on", patience, func(ctx context.Context) error { return l.east.settled(ctx, workers, 3) })
	if err := l.west.settled(t.Context(), workers, 2); err != nil {
		t.Errorf("the shard that has left was changed: %v", err)
	}
	if err := os.WriteFile(l.configFile(), all, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "it is back", patience, func(ctx context.Context) error { return l.spread(ctx, workers, l.both(3, 3)) })
	if err := l.scale(t.Context(), workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}

// forgetNonce deletes the nonce, which the operator does not need once it has a certificate.
func (l *lab) forgetNonce(t *testing.T) {
	t.Helper()
	if err := l.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: objectMeta(
		"nstance-operator-nonce")}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

// testTypingError puts shard names with typing errors into a pool. No shard may lose an instance. Once the admission
// policy is installed, the API server must refuse such names.
func (l *lab) testTypingError(t *testing.T) {
	before := l.ids(t, workers, l.shards()...)
	change := func(ctx context.Context, shards string) error {
		pool := &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(workers)}
		return l.Client.Patch(ctx, pool, client.RawPatch("application/merge-patch+json",
			fmt.Appendf(nil, `{"spec":{"shards":[%s]}}`, shards)))
	}
	for _, shards := range []string{`"east","wset"`, `"east","west","north"`, `"esat"`} {
		if err := change(t.Context(), shards); err != nil {
			t.Fatal(err)
		}
		await(t, "the condition names the shard in "+shards, patience, func(ctx context.Context) error {
			return has(ctx, l, &v1beta1.NstanceMachinePool{}, workers, func(p *v1beta1.NstanceMachinePool) error {
				ready := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ReadyCondition)
				if ready == nil || ready.Reason != v1beta1.UnknownShardReason ||
					ready.ObservedGeneration != p.Generation {
					return fmt.Errorf("condition %+v, generation %d", ready, p.Generation)
				}
				return nil
			})
		})
		steady(t, "all instances stay", func(ctx context.Context) error {
			if after := l.ids(t, workers, l.shards()...); !slices.Equal(before, after) {
				return fmt.Errorf("instances %v, before %v", after, before)
			}
			return l.spread(ctx, workers, l.both(2, 2))
		})
	}
	if err := change(t.Context(), `"east","west"`); err != nil {
		t.Fatal(err)
	}
	await(t, "the pool is ready", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceMachinePool{}, workers, func(p *v1beta1.NstanceMachinePool) error {
			return condition(p.Status.Conditions, v1beta1.ReadyCondition, "True")
		})
	})
	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Cluster.Create(t.Context(), filepath.Join(root, "services", "operator", "kustomize", "base",
		"admission.yaml")); err != nil {
		t.Fatal(err)
	}
	await(t, "a typing error is refused", patience, func(ctx context.Context) error {
		err := change(ctx, `"east","wset"`)
		if err == nil {
			return errors.Join(errors.New("it was accepted"), change(ctx, `"east","west"`))
		}
		if !strings.Contains(err.Error(), "not in the operator's configuration: wset; it has east, west") {
			return err
		}
		return nil
	})
	l.restored(t, workers, l.both(2, 2))
}
