package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// TestPools makes the mistakes that users make with pools and the operator's Secrets.
func TestPools(t *testing.T) {
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
		{"orphan", l.testOrphan},
		{"secrets", l.testSecrets},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason.
		}
	}
}

// testOrphan creates a Machine as Cluster API does for an NstanceMachine that is deleted at the same time.
func (l *lab) testOrphan(t *testing.T) {
	const orphan = "wrk01k1bnbb2we2dbk3cgk8v7tz41"
	none, pool := "", &clusterv1.MachinePool{}
	if err := l.Client.Get(t.Context(), in(workers), pool); err != nil {
		t.Fatal(err)
	}
	machine := &clusterv1.Machine{ObjectMeta: objectMeta(orphan), Spec: clusterv1.MachineSpec{ClusterName: clusterName,
		Bootstrap: clusterv1.Bootstrap{DataSecretName: &none}, InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: v1beta1.GroupVersion.Group, Kind: "NstanceMachine", Name: orphan}}}
	machine.Labels = map[string]string{clusterv1.MachinePoolNameLabel: workers, clusterv1.ClusterNameLabel: clusterName}
	machine.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pool,
		clusterv1.GroupVersion.WithKind("MachinePool"))}
	l.create(t.Context(), t, machine)
	took := await(t, "the Machine without instance is gone", patience, func(ctx context.Context) error {
		return l.gone(ctx, &clusterv1.Machine{}, in(orphan))
	})
	if took < 55*time.Second {
		t.Errorf("it was deleted after %s, want a minute", took)
	}
	await(t, "an event says why", patience, func(ctx context.Context) error {
		return l.hasEvent(ctx, v1beta1.InstanceGoneReason, "Machine", orphan)
	})
	l.restored(t, workers, l.both(2, 2))
}

// testSecrets deletes the Secrets of the operator's identity. The restarted operator uses what was written again.
func (l *lab) testSecrets(t *testing.T) {
	names := []string{"nstance-operator-key", "nstance-operator-cert"}
	before := map[string]map[string][]byte{}
	for _, name := range names {
		secret := &corev1.Secret{}
		if err := l.Client.Get(t.Context(), in(name), secret); err != nil {
			t.Fatal(err)
		}
		before[name] = secret.Data
		l.remove(t, "secret", name)
	}
	await(t, "the Secrets are back", patience, func(ctx context.Context) (err error) {
		for _, name := range names {
			err = errors.Join(err, has(ctx, l, &corev1.Secret{}, name, func(s *corev1.Secret) error {
				if !maps.EqualFunc(s.Data, before[name], func(a, b []byte) bool { return string(a) == string(b) }) {
					return fmt.Errorf("secret %s has other values than before", name)
				}
				return nil
			}), l.hasEvent(ctx, v1beta1.SecretRestoredReason, "Secret", name))
		}
		return err
	})
	l.operators[len(l.operators)-1].Kill()
	l.operator(t, elect)
	if err := l.scale(t.Context(), workers, 6); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(3, 3))
	if err := l.scale(t.Context(), workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}

// hasEvent returns an error unless there is an event of this reason about the object.
func (l *lab) hasEvent(ctx context.Context, reason, kind, name string) error {
	list := &eventsv1.EventList{}
	if err := l.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, event := range list.Items {
		if event.Reason == reason && event.Regarding.Kind == kind && event.Regarding.Name == name {
			return nil
		}
	}
	return fmt.Errorf("no event %s about %s %s", reason, kind, name)
}
