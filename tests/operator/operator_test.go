package operator

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const (
	clusterName = clusterID + "--" + tenant
	elect       = "--leader-elect"
)

// TestOperator runs its subtests one after the other on one cluster. Each subtest must restore the initial state: the
// groups have their initial sizes, and one operator leads.
func TestOperator(t *testing.T) {
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
		{"scale", l.testScale},
		{"static", l.testStatic},
		{"dynamic", l.testDynamic},
		{"new group", l.testNewGroup},
		{"drift", l.testDrift},
		{"paused", l.testPaused},
		{"machine", l.testMachine},
		{"on demand", l.testOnDemand},
		{"lost VM", l.testLostVM},
		{"spares", l.testSpares},
		{"sleeping spares", l.testSleepingSpares},
		{"drain", l.testDrain},
		{"deadline", l.testDeadline},
		{"drain by Cluster API", l.testDrainLimit},
		{"spot", l.testSpot},
		{"unreachable", l.testUnreachable},
		{"shards", l.testShards},
		{"typing error", l.testTypingError},
		{"hand-over", l.testHandOver},
		{"latency", l.testLatency},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason, or because of leftovers.
		}
	}
}

// settleServers waits until the shards have their configured groups. No operator runs yet.
func (l *lab) settleServers(t *testing.T) {
	t.Helper()
	await(t, "servers have made their static groups", patience, func(ctx context.Context) error {
		return errors.Join(l.east.settled(ctx, workers, 2), l.west.settled(ctx, workers, 2),
			l.east.settled(ctx, guarded, 1), l.east.settled(ctx, spot, 1),
			l.east.settled(ctx, machines, 0), l.west.settled(ctx, machines, 0))
	})
}

// bootstrap starts a new operator, which has nothing but the CA's certificate and a nonce. It does not elect a leader
// unless the test demands it: on a busy machine an operator that cannot renew its lease in time ends, and no Deployment
// starts it again here.
func (l *lab) bootstrap(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	nonce := &corev1.Secret{}
	if err := l.Client.Get(ctx, in("nstance-operator-nonce"), nonce); err != nil {
		t.Fatal(err)
	}
	if err := l.Client.Delete(ctx, nonce); err != nil {
		t.Fatal(err)
	}
	operator := l.operator(t)
	await(t, "the operator says that the nonce is missing", patience, func(ctx context.Context) error {
		return l.problem(ctx, "Secret "+namespace+"/nstance-operator-nonce with a registration nonce is missing")
	})
	l.create(ctx, t, &corev1.Secret{ObjectMeta: objectMeta("nstance-operator-nonce"), Data: nonce.Data})
	l.registered(t)
	if code := operator.ExitCode(); code >= 0 {
		t.Errorf("without a nonce the operator ended with code %d", code)
	}
}

// registered waits until the operator has stored its certificate and created the Cluster. Then it gives the Cluster a
// control plane.
func (l *lab) registered(t *testing.T) {
	t.Helper()
	await(t, "registered", patience, func(ctx context.Context) error {
		return errors.Join(
			has(ctx, l, &corev1.Secret{}, "nstance-operator-key", func(s *corev1.Secret) error {
				if len(s.Data["private.key"]) == 0 || len(s.Data["public.key"]) == 0 {
					return errors.New("the key's secret lacks a key")
				}
				return nil
			}),
			has(ctx, l, &corev1.Secret{}, "nstance-operator-cert", func(s *corev1.Secret) error {
				_, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"])
				return err
			}))
	})
	await(t, "Cluster made", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceCluster{}, clusterName, func(c *v1beta1.NstanceCluster) error {
			if c.Status.Initialization.Provisioned == nil || !*c.Status.Initialization.Provisioned {
				return errors.New("NstanceCluster is not provisioned")
			}
			return nil
		})
	})
	l.forgetNonce(t)
	l.controlPlane(t)
	l.kubeconfig(t)
}

// controlPlane gives the Cluster a control plane. Without one, Cluster API neither drains nor deletes Nodes.
func (l *lab) controlPlane(t *testing.T) {
	t.Helper()
	ref, err := l.StubControlPlane(t.Context(), namespace, "control-plane")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "control plane set", patience, func(ctx context.Context) error {
		cluster := &clusterv1.Cluster{}
		if err := l.Client.Get(ctx, in(clusterName), cluster); err != nil {
			return err
		}
		old := cluster.DeepCopy()
		cluster.Spec.ControlPlaneRef = ref
		return l.Client.Patch(ctx, cluster, client.MergeFrom(old))
	})
}

// kubeconfig checks the Secret in which the operator keeps a kubeconfig for Cluster API, and uses this kubeconfig.
func (l *lab) kubeconfig(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	await(t, "kubeconfig secret", patience, func(ctx context.Context) error {
		return l.Client.Get(ctx, in(clusterName+"-kubeconfig"), secret)
	})
	if secret.Type != "cluster.x-k8s.io/secret" || secret.Labels["cluster.x-k8s.io/cluster-name"] != clusterName {
		t.Errorf("the kubeconfig secret has type %s and labels %v", secret.Type, secret.Labels)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		t.Fatal(err)
	}
	workload, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := workload.List(t.Context(), &corev1.NodeList{}); err != nil {
		t.Errorf("with the kubeconfig: %v", err)
	}
	if err := workload.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("with the kubeconfig secrets can be read: %v", err)
	}
}

// imported checks that the existing groups have become pools and that their instances are unchanged.
func (l *lab) imported(t *testing.T) {
	t.Helper()
	before := l.ids(t, "", l.shards()...)
	await(t, "groups imported", patience, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, workers, l.both(2, 2)), l.spread(ctx, guarded, map[*shard]int{l.east: 1}),
			l.spread(ctx, spot, map[*shard]int{l.east: 1}))
	})
	await(t, "MachinePools Running", patience, func(ctx context.Context) error {
		return errors.Join(l.poolRuns(ctx, workers, 4), l.poolRuns(ctx, guarded, 1), l.poolRuns(ctx, spot, 1),
			l.poolRuns(ctx, machines, 0))
	})
	for group, shards := range map[string][]string{workers: {"east", "west"}, machines: {"east", "west"},
		guarded: {"east"}, spot: {"east"}} {
		if err := has(t.Context(), l, &v1beta1.NstanceMachinePool{}, group, func(p *v1beta1.NstanceMachinePool) error {
			if p.Spec.Group != group || !slices.Equal(p.Spec.Shards, shards) || p.Spec.Config != nil ||
				!p.Status.IsStatic {
				return fmt.Errorf("imported %s as %+v, static %t", group, p.Spec, p.Status.IsStatic)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if after := l.ids(t, "", l.shards()...); !slices.Equal(before, after) {
		t.Errorf("the import changed the instances from %v to %v", before, after)
	}
}

func (l *lab) both(east, west int) map[*shard]int { return map[*shard]int{l.east: east, l.west: west} }

// restored waits until a group has its configured sizes again.
func (l *lab) restored(t *testing.T, group string, sizes map[*shard]int) {
	t.Helper()
	await(t, group+" as it was", patience, func(ctx context.Context) error { return l.spread(ctx, group, sizes) })
}

// testScale changes the replicas of a MachinePool from 4 to 6, 5, 0 and 4 with the real kubectl.
func (l *lab) testScale(t *testing.T) {
	for _, step := range []struct{ replicas, east, west int }{{6, 3, 3}, {5, 3, 2}, {0, 0, 0}, {4, 2, 2}} {
		before := l.ids(t, workers, l.shards()...)
		l.kubectl(t, "-n", namespace, "scale", "machinepool", workers, fmt.Sprintf("--replicas=%d", step.replicas))
		await(t, fmt.Sprintf("%d replicas", step.replicas), patience, func(ctx context.Context) error {
			return l.spread(ctx, workers, l.both(step.east, step.west))
		})
		await(t, "MachinePool Running", patience, func(ctx context.Context) error {
			return l.poolRuns(ctx, workers, step.replicas)
		})
		after := l.ids(t, workers, l.shards()...)
		for _, id := range before {
			if step.replicas >= len(before) && !slices.Contains(after, id) {
				t.Errorf("scaling up replaced %s", id)
			}
			if !slices.Contains(after, id) {
				await(t, id+" left nothing behind", patience, func(ctx context.Context) error {
					return errors.Join(l.left(ctx, l.east, id), l.left(ctx, l.west, id))
				})
			}
		}
	}
}

// setConfig changes the config of a pool with a JSON merge patch. It then waits until the condition ConfigValid of the
// pool's part on a shard is false with the wanted message, or true if the message is "".
func (l *lab) setConfig(t *testing.T, pool, shard, patch, message string) {
	t.Helper()
	object := &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(pool)}
	if err := l.Client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"config":`+patch+`}}`))); err != nil {
		t.Fatal(err)
	}
	await(t, "ConfigValid after "+patch, patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceShardGroup{}, v1beta1.ShardGroupName(pool, shard),
			func(g *v1beta1.NstanceShardGroup) error {
				valid := meta.FindStatusCondition(g.Status.Conditions, v1beta1.ConfigValidCondition)
				if valid == nil || (valid.Status == metav1.ConditionTrue) != (message == "") ||
					!strings.HasPrefix(valid.Message, message) || valid.ObservedGeneration != g.Generation ||
					!reflect.DeepEqual(g.Spec.Config, object.Spec.Config) {
					return fmt.Errorf("condition %+v, config %v, want %q", valid, g.Spec.Config, message)
				}
				return nil
			})
	})
}

// testStatic checks that a user of Kubernetes cannot change what the shards' configuration defines for a static group.
// If the pool of the group is deleted, the operator must create it again.
func (l *lab) testStatic(t *testing.T) {
	ctx := t.Context()
	l.setConfig(t, guarded, "east", `{"template":"other"}`, "template: ")
	l.setConfig(t, guarded, "east", `{"template":"worker","subnet_pool":"other"}`, "subnet_pool: ")
	l.setConfig(t, guarded, "east", `null`, "")
	if err := l.scale(ctx, guarded, 2); err != nil {
		t.Fatal(err)
	}
	await(t, "an override", patience, func(ctx context.Context) error {
		return l.spread(ctx, guarded, map[*shard]int{l.east: 2})
	})
	old := &clusterv1.MachinePool{}
	if err := l.Client.Get(ctx, in(guarded), old); err != nil {
		t.Fatal(err)
	}
	l.kubectl(t, "-n", namespace, "delete", "machinepool", guarded, "--wait=false")
	// Cluster API may take 80 s to delete a MachinePool.
	await(t, "imported again at its configured size", 2*patience, func(ctx context.Context) error {
		if err := has(ctx, l, &clusterv1.MachinePool{}, guarded, func(p *clusterv1.MachinePool) error {
			if p.UID == old.UID || value(p.Spec.Replicas) != 1 {
				return fmt.Errorf("MachinePool has UID %s (before %s) and %d replicas", p.UID, old.UID,
					value(p.Spec.Replicas))
			}
			return nil
		}); err != nil {
			return err
		}
		return errors.Join(l.spread(ctx, guarded, map[*shard]int{l.east: 1}), l.poolRuns(ctx, guarded, 1))
	})
	if status, err := l.east.group(ctx, guarded); err != nil || !status.GetIsStatic() {
		t.Errorf("the group is %v, error %v", status, err)
	}
}

// testLostVM checks that a lost VM and its Node are replaced without a drain.
func (l *lab) testLostVM(t *testing.T) {
	id := l.one(t, workers, l.west)
	if err := l.west.kill(id); err != nil {
		t.Fatal(err)
	}
	took := await(t, "replaced, its Node gone", patience, func(ctx context.Context) error {
		return errors.Join(l.left(ctx, l.west, id), l.spread(ctx, workers, l.both(2, 2)))
	})
	if took > 50*time.Second {
		t.Errorf("took %s: that is as long as a drain may take", took)
	}
	await(t, "MachinePool Running", patience, func(ctx context.Context) error { return l.poolRuns(ctx, workers, 4) })
}

// testUnreachable checks a shard whose server is paused. The operator must report the shard within 35 s. It must not
// move the shard's instances to the other shard, and must continue to manage the other shard.
func (l *lab) testUnreachable(t *testing.T) {
	ctx := t.Context()
	server := l.west.server()
	if err := server.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Signal(syscall.SIGCONT) }() // The process may have ended.
	if err := l.scale(ctx, workers, 6); err != nil {
		t.Fatal(err)
	}
	await(t, "the other shard goes on", patience, func(ctx context.Context) error {
		return l.east.settled(ctx, workers, 3)
	})
	group := v1beta1.ShardGroupName(workers, "west")
	await(t, "ShardReachable is False", 35*time.Second, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceShardGroup{}, group, func(g *v1beta1.NstanceShardGroup) error {
			if value(g.Spec.Size) != 3 {
				return fmt.Errorf("its share became %d", value(g.Spec.Size))
			}
			return condition(g.Status.Conditions, v1beta1.ShardReachableCondition, "False")
		})
	})
	await(t, "the NstanceCluster says so", patience, func(ctx context.Context) error {
		return errors.Join(l.hasEvent(ctx, v1beta1.UnreachableReason, "NstanceCluster", clusterName),
			has(ctx, l, &v1beta1.NstanceCluster{}, clusterName, func(c *v1beta1.NstanceCluster) error {
				reachable := meta.FindStatusCondition(c.Status.Conditions, v1beta1.ShardsReachableCondition)
				if reachable == nil || reachable.Status != metav1.ConditionFalse ||
					!strings.Contains(reachable.Message, "west") || strings.Contains(reachable.Message, "east") {
					return fmt.Errorf("the condition is %v", reachable)
				}
				return nil
			}))
	})
	if err := has(ctx, l, &v1beta1.NstanceShardGroup{}, v1beta1.ShardGroupName(workers, "east"),
		func(g *v1beta1.NstanceShardGroup) error {
			return condition(g.Status.Conditions, v1beta1.ShardReachableCondition, "True")
		}); err != nil {
		t.Error(err)
	}
	if err := server.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "back, with its share", patience, func(ctx context.Context) error {
		if err := has(ctx, l, &v1beta1.NstanceShardGroup{}, group, func(g *v1beta1.NstanceShardGroup) error {
			return condition(g.Status.Conditions, v1beta1.ShardReachableCondition, "True")
		}); err != nil {
			return err
		}
		return l.spread(ctx, workers, l.both(3, 3))
	})
	if err := l.scale(ctx, workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}

// testHandOver runs two operators, a leader and a standby. When the leader is stopped or killed, the standby must
// continue the leader's work.
func (l *lab) testHandOver(t *testing.T) {
	ctx := t.Context()
	l.operators[len(l.operators)-1].Kill()
	first := l.operator(t, elect)
	await(t, "the first leads", patience, func(context.Context) error {
		if raw := tail(first.Log); !bytes.Contains(raw, []byte("Successfully acquired lease")) {
			return fmt.Errorf("its log does not say so:\n%s", raw)
		}
		return nil
	})
	second := l.operator(t, elect)
	l.notLeading(t, second.Log)
	if err := first.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := l.scale(ctx, workers, 5); err != nil {
		t.Fatal(err)
	}
	await(t, "the second goes on after SIGTERM", patience, func(ctx context.Context) error {
		return l.spread(ctx, workers, l.both(3, 2))
	})
	select {
	case <-first.Ended():
	default:
		t.Error("the first has not ended")
	}

	third := l.operator(t, elect)
	l.notLeading(t, third.Log)
	// The new leader must continue a drain that was in progress when the second operator was killed.
	id := l.one(t, workers, l.east)
	l.pod(ctx, t, "held", id, true)
	l.deleteInstance(t, l.east, id)
	await(t, "cordoned", patience, func(ctx context.Context) error { return l.cordoned(ctx, id) })
	second.Kill()
	if err := l.Client.Delete(ctx, budget("held")); err != nil {
		t.Fatal(err)
	}
	await(t, "the third drains it", 50*time.Second, func(ctx context.Context) error {
		return l.absent(ctx, &corev1.Pod{}, in("held"))
	})
	await(t, id+" left nothing behind", patience, func(ctx context.Context) error { return l.left(ctx, l.east, id) })
	if err := l.scale(ctx, workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
	select {
	case <-third.Ended():
		t.Error("the third has ended")
	default:
	}
}

// notLeading waits until the last lines of an operator's log mention the lease. This shows that the operator is a
// standby, which waits for the lease.
func (l *lab) notLeading(t *testing.T, log string) {
	t.Helper()
	await(t, "a standby waits", patience, func(context.Context) error {
		if raw := tail(log); !bytes.Contains(raw, []byte("lease")) {
			return fmt.Errorf("its log does not mention a lease:\n%s", raw)
		}
		return nil
	})
}

// testLatency measures the time from an accepted change of replicas in the API server to the shard's provider call.
func (l *lab) testLatency(t *testing.T) {
	const rounds = 8
	var took []time.Duration
	for range rounds {
		before := len(l.east.creations(workers))
		began := time.Now()
		if err := l.scale(t.Context(), workers, 5); err != nil {
			t.Fatal(err)
		}
		for deadline := began.Add(patience); len(l.east.creations(workers)) == before; {
			if time.Now().After(deadline) {
				t.Fatal("nothing was created")
			}
			<-time.After(time.Millisecond)
		}
		took = append(took, l.east.creations(workers)[before].GetAt().AsTime().Sub(began))
		quiet(t, "more", func(ctx context.Context) error { return l.spread(ctx, workers, l.both(3, 2)) })
		if err := l.scale(t.Context(), workers, 4); err != nil {
			t.Fatal(err)
		}
		// The measurement has ended with the provider call. But the next round must not begin before all instances are
		// ready.
		quiet(t, "back", func(ctx context.Context) error {
			return errors.Join(l.spread(ctx, workers, l.both(2, 2)), l.poolRuns(ctx, workers, 4))
		})
	}
	slices.Sort(took)
	t.Logf("scale to create call, %d rounds: p50 %s p99 %s (first %s)", rounds,
		took[rounds/2].Round(100*time.Microsecond), took[rounds-1].Round(100*time.Microsecond),
		took[0].Round(100*time.Microsecond))
	if took[rounds/2] > time.Second {
		t.Errorf("p50 is %s", took[rounds/2])
	}
	l.restored(t, workers, l.both(2, 2))
}
