package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// kindSteps are the documented steps that prepare a cluster of the tool kind for an operator on the developer's
// machine. The first step installs the CRDs. No step creates a ServiceAccount.
const kindSteps = `
kubectl apply -k config/crd/
kubectl create configmap nstance-cluster-ca \
--from-file=ca.crt=temp/dev-s3/cluster/ca.crt
mkdir -p temp/operator
kind get kubeconfig --name nstance-dev > temp/operator/kubeconfig
make nstance-admin
NONCE_JWT=$(AWS_ACCESS_KEY_ID=dev \
AWS_SECRET_ACCESS_KEY=dev \
AWS_ENDPOINT_URL=http://localhost:8989 \
AWS_S3_USE_PATH_STYLE=true \
NSTANCE_ENCRYPTION_KEY=thisisatest32bytekey123456789012 \
./bin/nstance-admin cluster nonce \
--cluster-id example-cluster \
--storage-bucket dev \
--key-provider env \
--output \
-)
kubectl create secret generic nstance-operator-nonce \
--from-literal=nonce.jwt="$NONCE_JWT"
`

// kindTools are shell functions that replace two commands in kindSteps. "kind" prints the kubeconfig of the lab's
// cluster. "make" builds an nstance-admin that prints a nonce of the lab.
const kindTools = `
kind() { cat "$LAB_KUBECONFIG"; }
make() { mkdir -p bin && printf '#!/bin/sh\nprintf %%s "$LAB_NONCE"\n' >bin/nstance-admin && chmod +x bin/nstance-admin; }
`

// TestKindSteps follows the steps for a kind cluster literally. The operator works with the administrator's kubeconfig
// in the namespace default, as `make dev-operator` starts it.
func TestKindSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	ctx := t.Context()
	// newLab made these objects for an operator that runs in the cluster. They are deleted here, because a cluster of
	// the tool kind does not have them.
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "nstance-operator-workload"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "nstance-operator-workload"}},
		&corev1.ServiceAccount{ObjectMeta: objectMeta("nstance-capi-workload")},
	} {
		if err := l.Client.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	ca, nonce, err := l.east.bucket.credentials(ctx)
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(l.dir, "kind")
	if err := errors.Join(os.MkdirAll(filepath.Join(work, "temp", "dev-s3", "cluster"), 0o700),
		os.WriteFile(filepath.Join(work, "temp", "dev-s3", "cluster", "ca.crt"), ca, 0o600),
		os.Symlink(filepath.Join(root, "config"), filepath.Join(work, "config"))); err != nil {
		t.Fatal(err)
	}
	steps := exec.CommandContext(ctx, "bash", "-euc", kindTools+kindSteps)
	steps.Dir = work
	steps.Env = append(os.Environ(), "HOME="+l.dir, "KUBECONFIG="+l.Kubeconfig, "LAB_KUBECONFIG="+l.Kubeconfig,
		"LAB_NONCE="+nonce)
	if out, err := steps.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	env := append(slices.Clone(os.Environ()), "KUBECONFIG="+filepath.Join(work, "temp", "operator", "kubeconfig"),
		"NSTANCE_NAMESPACE=default")
	process, err := kube.Run(l.dir, "operator-kind", filepath.Join(l.bin, "nstance-operator"), env,
		"--config="+l.configFile(), "--health-probe-bind-address=0", "--disable-webhooks")
	if err != nil {
		t.Fatal(err)
	}
	l.operators = append(l.operators, process)
	key := client.ObjectKey{Namespace: "default", Name: clusterName}
	await(t, "NstanceCluster is ready", patience, func(ctx context.Context) error {
		c := &v1beta1.NstanceCluster{}
		if err := l.Client.Get(ctx, key, c); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(c.Status.Conditions, v1beta1.ReadyCondition); ready == nil ||
			ready.Status != metav1.ConditionTrue {
			return fmt.Errorf("condition Ready is %+v", ready)
		}
		return nil
	})
	// Cluster API's core connects to the cluster with the kubeconfig that the operator makes.
	await(t, "Cluster API is connected", patience, func(ctx context.Context) error {
		c := &clusterv1.Cluster{}
		if err := l.Client.Get(ctx, key, c); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ClusterRemoteConnectionProbeCondition) {
			return fmt.Errorf("conditions %+v", c.Status.Conditions)
		}
		return nil
	})
	await(t, "pools imported", patience, func(ctx context.Context) error {
		return l.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: workers}, &clusterv1.MachinePool{})
	})
}
