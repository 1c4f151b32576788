package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// noticedWithin is how long the operator may take to notice what another client has changed.
const noticedWithin = time.Minute

// TestReplaced damages, replaces and removes what the operator depends on while it runs. The operator must say what is
// wrong, keep running, and recover without a restart.
func TestReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	l.testFirstStart(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"CA", l.testReplacedCA},
		{"identity", l.testDamagedIdentity},
		{"kubeconfig", l.testReplacedKubeconfig},
		{"labels", l.testChangedLabels},
		{"right", l.testMissingRight},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason.
		}
	}
	if code := l.operators[0].ExitCode(); len(l.operators) != 1 || code >= 0 {
		t.Errorf("the operator ended with code %d", code)
	}
}

// problem returns an error unless the condition Ready of the NstanceCluster contains the text want. If want is empty,
// the condition must be true.
func (l *lab) problem(ctx context.Context, want string) error {
	return has(ctx, l, &v1beta1.NstanceCluster{}, clusterName, func(c *v1beta1.NstanceCluster) error {
		ready := meta.FindStatusCondition(c.Status.Conditions, v1beta1.ReadyCondition)
		if ready == nil || (ready.Status == metav1.ConditionTrue) != (want == "") || !strings.Contains(ready.Message,
			want) {
			return fmt.Errorf("condition %+v, want %q", ready, want)
		}
		return nil
	})
}

// testFirstStart starts the first operator while the server of the shard "west" does not answer. The groups are
// imported when it answers. Until then, conditions and an event name the shard.
func (l *lab) testFirstStart(t *testing.T) {
	proceed := l.hang(t, l.west)
	l.bootstrap(t)
	await(t, "the NstanceCluster names the shard that it waits for", patience, func(ctx context.Context) error {
		return errors.Join(l.hasEvent(ctx, v1beta1.UnreachableReason, "NstanceCluster", clusterName),
			has(ctx, l, &v1beta1.NstanceCluster{}, clusterName, func(c *v1beta1.NstanceCluster) error {
				reachable := meta.FindStatusCondition(c.Status.Conditions, v1beta1.ShardsReachableCondition)
				ready := meta.FindStatusCondition(c.Status.Conditions, v1beta1.ReadyCondition)
				if reachable == nil || reachable.Status != metav1.ConditionFalse || ready == nil ||
					!strings.Contains(ready.Message, "west") || strings.Contains(ready.Message, "east") {
					return fmt.Errorf("conditions %+v", c.Status.Conditions)
				}
				return nil
			}))
	})
	pools := &clusterv1.MachinePoolList{}
	if err := l.Client.List(t.Context(), pools); err != nil || len(pools.Items) > 0 {
		t.Errorf("%d MachinePools, error %v", len(pools.Items), err)
	}
	proceed()
	l.settleServers(t)
	l.imported(t)
}

// testReplacedCA replaces the CA in the ConfigMap by text that is no certificate, and then restores it.
func (l *lab) testReplacedCA(t *testing.T) {
	ctx := t.Context()
	ca := &corev1.ConfigMap{}
	if err := l.Client.Get(ctx, in("nstance-cluster-ca"), ca); err != nil {
		t.Fatal(err)
	}
	good := ca.Data["ca.crt"]
	for _, text := range []string{"damaged", good} {
		if err := l.Client.Patch(ctx, &corev1.ConfigMap{ObjectMeta: objectMeta(ca.Name)},
			client.RawPatch("application/merge-patch+json",
				fmt.Appendf(nil, `{"data":{"ca.crt":%q}}`, text))); err != nil {
			t.Fatal(err)
		}
		await(t, "noticed", noticedWithin, func(ctx context.Context) error {
			if text == good {
				return l.problem(ctx, "")
			}
			return errors.Join(l.problem(ctx, "ConfigMap "+namespace+"/nstance-cluster-ca, key ca.crt"),
				l.hasEvent(ctx, v1beta1.IdentityFailedReason, "NstanceCluster", clusterName))
		})
	}
}

// testDamagedIdentity replaces the contents of the Secrets with the operator's key and certificate.
func (l *lab) testDamagedIdentity(t *testing.T) {
	for _, name := range []string{"nstance-operator-key", "nstance-operator-cert"} {
		secret := &corev1.Secret{}
		if err := l.Client.Get(t.Context(), in(name), secret); err != nil {
			t.Fatal(err)
		}
		before := maps.Clone(secret.Data)
		for key := range secret.Data {
			secret.Data[key] = []byte("damaged")
		}
		if err := l.Client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		await(t, name+" is as before", noticedWithin, func(ctx context.Context) error {
			return errors.Join(l.hasEvent(ctx, v1beta1.SecretRestoredReason, "Secret", name),
				has(ctx, l, &corev1.Secret{}, name, func(s *corev1.Secret) error {
					if !maps.EqualFunc(s.Data, before, slices.Equal[[]byte]) {
						return errors.New("it has other values than before")
					}
					return nil
				}))
		})
	}
}

// testReplacedKubeconfig damages the Secret with Cluster API's kubeconfig. Then it deletes the ServiceAccount behind it
// and creates it again, so that the API server refuses the token.
func (l *lab) testReplacedKubeconfig(t *testing.T) {
	ctx := t.Context()
	name := clusterName + "-kubeconfig"
	secret := &corev1.Secret{}
	if err := l.Client.Get(ctx, in(name), secret); err != nil {
		t.Fatal(err)
	}
	secret.Data["value"] = []byte("damaged")
	if err := l.Client.Update(ctx, secret); err != nil {
		t.Fatal(err)
	}
	works := func(ctx context.Context, not string) (text string, err error) {
		err = has(ctx, l, &corev1.Secret{}, name, func(s *corev1.Secret) error {
			if text = string(s.Data["value"]); text == not {
				return errors.New("the kubeconfig is still the same")
			}
			config, err := clientcmd.RESTConfigFromKubeConfig(s.Data["value"])
			if err != nil {
				return err
			}
			workload, err := client.New(config, client.Options{})
			if err != nil {
				return err
			}
			return workload.List(ctx, &corev1.NodeList{})
		})
		return text, err
	}
	var text string
	await(t, "the damaged kubeconfig is written again", noticedWithin, func(ctx context.Context) (err error) {
		text, err = works(ctx, "damaged")
		return err
	})
	account := &corev1.ServiceAccount{ObjectMeta: objectMeta("nstance-capi-workload")}
	if err := l.Client.Delete(ctx, account); err != nil {
		t.Fatal(err)
	}
	l.create(ctx, t, &corev1.ServiceAccount{ObjectMeta: objectMeta(account.Name)})
	await(t, "the kubeconfig has a token of the new ServiceAccount", noticedWithin, func(ctx context.Context) error {
		_, err := works(ctx, text)
		return err
	})
	await(t, "the NstanceCluster is ready", noticedWithin, func(ctx context.Context) error {
		return l.problem(ctx, "")
	})
}

// testChangedLabels removes the labels and owners that the operator has set.
func (l *lab) testChangedLabels(t *testing.T) {
	id, group := l.one(t, workers, l.east), v1beta1.ShardGroupName(workers, "east")
	owned := func(o client.Object, want map[string]string) error {
		if !maps.Equal(o.GetLabels(), want) || len(o.GetOwnerReferences()) == 0 {
			return fmt.Errorf("labels %v, want %v; owners %v", o.GetLabels(), want, o.GetOwnerReferences())
		}
		return nil
	}
	machine, shardGroup := &v1beta1.NstanceMachine{}, &v1beta1.NstanceShardGroup{}
	if err := errors.Join(l.Client.Get(t.Context(), in(id), machine),
		l.Client.Get(t.Context(), in(group), shardGroup)); err != nil {
		t.Fatal(err)
	}
	strip := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":null}}`))
	stripOwners := client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"`+clusterv1.ClusterNameLabel+`":null},"ownerReferences":null}}`))
	if err := errors.Join(l.Client.Patch(t.Context(), machine.DeepCopy(), strip),
		l.Client.Patch(t.Context(), shardGroup.DeepCopy(), stripOwners)); err != nil {
		t.Fatal(err)
	}
	await(t, "labels and owners are as before", noticedWithin+20*time.Second, func(ctx context.Context) error {
		return errors.Join(has(ctx, l, &v1beta1.NstanceMachine{}, id, func(m *v1beta1.NstanceMachine) error {
			return owned(m, machine.Labels)
		}), has(ctx, l, &v1beta1.NstanceShardGroup{}, group, func(g *v1beta1.NstanceShardGroup) error {
			return owned(g, shardGroup.Labels)
		}))
	})
	l.restored(t, workers, l.both(2, 2))
}

// testMissingRight takes away the right to create Machines, and gives it back. Meanwhile, an event of the pod that
// waits for a machine must name the right.
func (l *lab) testMissingRight(t *testing.T) {
	ctx := t.Context()
	role := &rbacv1.Role{}
	if err := l.Client.Get(ctx, in("nstance-operator"), role); err != nil {
		t.Fatal(err)
	}
	taken := false
	l.restricted = true
	for i := range role.Rules {
		if rule := &role.Rules[i]; slices.Contains(rule.Resources, "machines") {
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == "create" })
			taken = true
		}
	}
	if err := l.Client.Update(ctx, role); err != nil || !taken {
		t.Fatalf("taken %t, error %v", taken, err)
	}
	pod := requestingPod("waiting")
	l.create(ctx, t, pod)
	await(t, "an event of the pod names the right", patience, func(ctx context.Context) error {
		return l.hasNote(ctx, "Pod", pod.Name, "machines.cluster.x-k8s.io", "is forbidden")
	})
	l.permit(t)
	var node string
	await(t, "the pod runs", patience, func(ctx context.Context) error { return l.runs(ctx, pod, &node) })
	l.removePods(t, pod)
}

// hasNote returns an error unless a warning event about the object contains all the texts.
func (l *lab) hasNote(ctx context.Context, kind, name string, texts ...string) error {
	list := &corev1.EventList{}
	if err := l.Client.List(ctx, list); err != nil {
		return err
	}
	var notes []string
	for _, event := range list.Items {
		if event.InvolvedObject.Kind != kind || event.InvolvedObject.Name != name ||
			event.Type != corev1.EventTypeWarning {
			continue
		}
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(event.Message, text) }) {
			return nil
		}
		notes = append(notes, event.Message)
	}
	return fmt.Errorf("events %q about %s %s, want %q", notes, kind, name, texts)
}
