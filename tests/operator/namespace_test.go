package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestNamespace deletes the operator's namespace before it runs nstance-operator uninstall. It recovers with the steps
// in the documentation. Then it runs nstance-operator uninstall, and deletes the namespace again.
func TestNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.restricted = true // The namespace contains the operator's role.
	l.settleServers(t)
	l.bootstrap(t)
	l.imported(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"recovery", l.testRecoverNamespace},
		{"uninstall", l.testUninstall},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason.
		}
	}
}

// testRecoverNamespace deletes the namespace while it has objects of all kinds and the server of the shard "west" is
// paused. Before that, the test kills the operator, because a real namespace also contains the operator's Deployment.
func (l *lab) testRecoverNamespace(t *testing.T) {
	l.dynamicPool(t, dynamic)
	l.machine(t, "single", "west")
	await(t, "everything runs", patience, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, dynamic, l.both(1, 1)), l.west.counts(ctx, machines, 1))
	})
	if err := l.scale(t.Context(), workers, 6); err != nil { // an override
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(3, 3))
	created := l.countCreations()
	proceed := l.hang(t, l.west)
	l.operators[len(l.operators)-1].Kill()
	l.kubectl(t, "delete", "namespace", namespace, "--wait=false")
	await(t, "the namespace does not end", patience, func(ctx context.Context) error {
		found := &corev1.Namespace{}
		if err := l.Client.Get(ctx, client.ObjectKey{Name: namespace}, found); err != nil {
			t.Fatal(err)
		}
		for _, c := range found.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", found.Status.Conditions)
	})
	proceed()
	await(t, "the instances still run", patience, func(ctx context.Context) error {
		return errors.Join(l.east.settled(ctx, dynamic, 1), l.west.settled(ctx, dynamic, 1))
	})

	l.runSteps(t, deletePage, "Recover a deleted namespace")
	await(t, "only the static groups are left", patience, func(ctx context.Context) error {
		return errors.Join(l.absent(ctx, &corev1.Namespace{}, client.ObjectKey{Name: namespace}), l.static(ctx),
			l.withoutGroup(ctx, dynamic, l.shards()...))
	})
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the deletion and recovery created %d instances, want none", n)
	}

	ca, nonce, err := l.east.bucket.credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.install(t.Context(), t, ca, nonce)
	l.bootstrap(t)
	l.imported(t)
}

// testUninstall runs nstance-operator uninstall with the operator's permissions, and then deletes the namespace. The
// command may skip the shard "west". It need not, because the shard answers.
func (l *lab) testUninstall(t *testing.T) {
	l.dynamicPool(t, dynamic)
	await(t, "the dynamic group runs", patience, func(ctx context.Context) error {
		return l.spread(ctx, dynamic, l.both(1, 1))
	})
	kept, created := l.ids(t, workers, l.shards()...), l.countCreations()
	cmd := exec.CommandContext(t.Context(), filepath.Join(l.bin, "nstance-operator"), "uninstall",
		"--config="+l.configFile(), "--timeout="+endsWithin.String(), "--skip-shards=west")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.operatorKubeconfig(), "NSTANCE_NAMESPACE="+namespace)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "nothing of Cluster "+clusterName+" is left") {
		t.Errorf("it wrote:\n%s", out)
	}
	if err := errors.Join(l.empty(t.Context()), l.static(t.Context()),
		l.withoutGroup(t.Context(), dynamic, l.shards()...)); err != nil {
		t.Error(err)
	}
	l.kubectl(t, "delete", "namespace", namespace, "--wait=false")
	await(t, "the namespace is gone", time.Minute, func(ctx context.Context) error {
		return l.absent(ctx, &corev1.Namespace{}, client.ObjectKey{Name: namespace})
	})
	l.unchanged(t, workers, kept, created)
}
