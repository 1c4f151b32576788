package operator_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator"
)

// awaitEnd waits until an operator ends and checks its error.
func (deployment *testDeployment) awaitEnd(p *process, want string) {
	deployment.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		deployment.t.Fatal("the operator does not end")
	}
	if p.err == nil || !strings.Contains(p.err.Error(), want) {
		deployment.t.Errorf("the operator ended with %v, want %q", p.err, want)
	}
}

func elected(c *operator.Config) { c.Options.LeaderElect = true }

// TestLeaderElection checks that a standby takes over immediately after the leader stops, and that an operator ends
// when it loses the Lease.
func TestLeaderElection(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	deployment := newTestDeployment(t, kubernetes(t), "elected", scenarioGroups)
	first := deployment.start(elected)
	deployment.checkImport(deployment.await)
	second := deployment.start(func(c *operator.Config) { elected(c); c.Environment.JSON = true })
	holder := func() string {
		var lease coordinationv1.Lease
		if err := deployment.get("nstance-operator-leader-election", &lease); err != nil {
			t.Fatal(err)
		}
		return *lease.Spec.HolderIdentity
	}
	led := holder()
	if first.ended() || second.ended() {
		t.Fatalf("ended: %v, %v", first.err, second.err)
	}
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	stopped := time.Now()
	deployment.await("the second leader", func() error {
		if now := holder(); now == led || now == "" {
			return fmt.Errorf("%q holds the lease", now)
		}
		return nil
	})
	if took := time.Since(stopped); took > 10*time.Second {
		t.Errorf("the lease was not released: it took %s", took)
	}
	deployment.checkScaling(deployment.await)
	if n := strings.Count(deployment.log.String(), "registered the operator"); n != 1 {
		t.Errorf("%d registrations, want 1", n)
	}

	// Another client takes the Lease.
	var lease coordinationv1.Lease
	if err := deployment.get("nstance-operator-leader-election", &lease); err != nil {
		t.Fatal(err)
	}
	before := lease.DeepCopy()
	*lease.Spec.HolderIdentity = "somebody else"
	now := metav1.NewMicroTime(time.Now())
	lease.Spec.RenewTime = &now
	if err := deployment.kube.Patch(t.Context(), &lease, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	deployment.awaitEnd(second, "leader election lost")
}

// TestExternalWorkloadCluster sets NSTANCE_CAPI_ENDPOINT. The operator must then wait for the kubeconfig that the user
// provides, use it without a restart, and not change it.
func TestExternalWorkloadCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	k := kubernetes(t)
	deployment := newTestDeployment(t, k, "external", scenarioGroups)
	external := func(c *operator.Config) {
		c.Environment.Endpoint = clusterv1.APIEndpoint{Host: "api.example.com", Port: 6443}
	}
	p := deployment.start(external)
	waits := func(reason string) {
		t.Helper()
		deployment.await(reason, func() error {
			if p.ended() {
				t.Fatalf("the operator has ended: %v", p.err)
			}
			var infra v1beta1.NstanceCluster
			if err := deployment.get("demo--default", &infra); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ReadyCondition)
			if ready == nil || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, reason) {
				return fmt.Errorf("condition %+v", ready)
			}
			return nil
		})
	}
	waits("Secret external/demo--default-kubeconfig is missing")
	text, err := os.ReadFile(k.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	deployment.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.namespace,
		Name: "demo--default-kubeconfig"}, Data: map[string][]byte{"value": []byte("damaged")}})
	waits("the text is not a kubeconfig")
	deployment.edit("demo--default-kubeconfig", &corev1.Secret{}, func(o client.Object) {
		o.(*corev1.Secret).Data["value"] = text
	})
	deployment.runScenario(func() {
		if p.ended() {
			t.Fatalf("the operator has ended: %v", p.err)
		}
	})
	var cluster clusterv1.Cluster
	var secret corev1.Secret
	if err := all(deployment.get("demo--default", &cluster), deployment.get("demo--default-kubeconfig",
		&secret)); err != nil {
		t.Fatal(err)
	}
	if cluster.Spec.ControlPlaneEndpoint.Host != "api.example.com" || string(secret.Data["value"]) != string(text) {
		t.Errorf("endpoint %v", cluster.Spec.ControlPlaneEndpoint)
	}
}

// edit changes an object. object is an empty object of its type.
func (deployment *testDeployment) edit(name string, object client.Object, change func(client.Object)) {
	deployment.t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := deployment.get(name, object); err != nil {
			return err
		}
		change(object)
		return deployment.kube.Update(deployment.t.Context(), object)
	}); err != nil {
		deployment.t.Fatal(err)
	}
}

// awaitProblem waits until the NstanceCluster is not ready and its condition contains the text want. If want is empty,
// it waits until the NstanceCluster is ready.
func (deployment *testDeployment) awaitProblem(p *process, want string) {
	deployment.t.Helper()
	deployment.await("problem "+want, func() error {
		if p.ended() {
			deployment.t.Fatalf("the operator has ended: %v", p.err)
		}
		var infra v1beta1.NstanceCluster
		if err := deployment.get("demo--default", &infra); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ReadyCondition)
		if ready == nil || (ready.Status == metav1.ConditionTrue) != (want == "") ||
			!strings.Contains(ready.Message, want) {
			return fmt.Errorf("condition %+v, want %q", ready, want)
		}
		return nil
	})
}

// TestFollowsItsConfiguration checks that the operator applies changes of its configuration file, its CA and its nonce
// without a restart, and reports what is wrong with them.
func TestFollowsItsConfiguration(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	deployment := newTestDeployment(t, kubernetes(t), "configured", map[string]map[string]int{"a": {"web": 1},
		"b": {"web": 1}})
	b := deployment.shards["b"]
	delete(deployment.shards, "b")
	deployment.writeConfig()
	// The operator waits for the nonce and for a shard that registers it. The NstanceCluster says what it waits for.
	var nonce corev1.Secret
	if err := deployment.get("nstance-operator-nonce", &nonce); err != nil {
		t.Fatal(err)
	}
	if err := deployment.kube.Delete(t.Context(), &nonce); err != nil {
		t.Fatal(err)
	}
	p := deployment.start(nil)
	deployment.awaitProblem(p,
		"Secret configured/nstance-operator-nonce with a registration nonce is missing")
	deployment.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.namespace, Name: nonce.Name},
		Data: map[string][]byte{"nonce.jwt": []byte("a.b.c")}})
	deployment.awaitProblem(p, "no shard has registered the operator: shard a: ")
	deployment.edit(nonce.Name, &corev1.Secret{}, func(object client.Object) {
		object.(*corev1.Secret).Data["nonce.jwt"] = append(nonce.Data["nonce.jwt"], "\r\n"...)
	})
	deployment.awaitProblem(p, "")

	domains := func(want int) func() error {
		return func() error {
			if p.ended() {
				t.Fatalf("the operator has ended: %v", p.err)
			}
			var infra v1beta1.NstanceCluster
			if err := deployment.get("demo--default", &infra); err != nil {
				return err
			}
			return equal("failure domains", len(infra.Status.FailureDomains), want)
		}
	}
	deployment.await("one shard", domains(1))
	deployment.shards["b"] = b
	deployment.writeConfig()
	deployment.await("both shards", domains(2))
	if err := os.WriteFile(deployment.file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	deployment.await("the refusal", func() error {
		return equal("refused", strings.Contains(deployment.log.String(), "the configuration file is invalid"), true)
	})
	deployment.awaitProblem(p, deployment.file)
	delete(deployment.shards, "a")
	deployment.writeConfig()
	deployment.await("the other shard", domains(1))
	deployment.awaitProblem(p, "")

	// A damaged CA is reported. A CA with other line ends is not.
	var ca string
	setCA := func(change func(text string) string) {
		deployment.edit("nstance-cluster-ca", &corev1.ConfigMap{}, func(object client.Object) {
			m := object.(*corev1.ConfigMap)
			if ca == "" {
				ca = m.Data["ca.crt"]
			}
			m.Data = map[string]string{"ca.crt": change(ca)}
		})
	}
	setCA(func(text string) string { return text[:40] })
	deployment.awaitProblem(p, "ConfigMap configured/nstance-cluster-ca, key ca.crt")
	setCA(func(text string) string { return strings.TrimSpace(strings.ReplaceAll(text, "\n", "\r\n")) })
	deployment.awaitProblem(p, "")
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(deployment.log.String(), "PRIVATE KEY") || strings.Contains(deployment.log.String(),
		string(nonce.Data["nonce.jwt"])) {
		t.Error("a secret is in the log")
	}
}
