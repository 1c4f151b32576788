package operator_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
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

// TestExternalWorkloadCluster sets NSTANCE_CAPI_ENDPOINT. The operator must then use the kubeconfig that the user
// provides, and must not change it.
func TestExternalWorkloadCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	k := kubernetes(t)
	deployment := newTestDeployment(t, k, "external", scenarioGroups)
	external := func(c *operator.Config) {
		c.Environment.Endpoint = settings.Endpoint{Host: "api.example.com", Port: 6443}
	}
	deployment.awaitEnd(deployment.start(external), "secret external/demo--default-kubeconfig is missing")
	text, err := os.ReadFile(k.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	deployment.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.namespace,
		Name: "demo--default-kubeconfig"},
		Data: map[string][]byte{"value": text}})
	p := deployment.start(external)
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

// TestFollowsItsConfiguration checks that the operator applies changes of its configuration file, and that a fatal
// error ends the operator.
func TestFollowsItsConfiguration(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	deployment := newTestDeployment(t, kubernetes(t), "configured", map[string]map[string]int{"a": {"web": 1},
		"b": {"web": 1}})
	b := deployment.shards["b"]
	delete(deployment.shards, "b")
	deployment.writeConfig()
	var nonce corev1.Secret
	if err := deployment.get("nstance-operator-nonce", &nonce); err != nil {
		t.Fatal(err)
	}
	if err := deployment.kube.Delete(t.Context(), &nonce); err != nil {
		t.Fatal(err)
	}
	deployment.awaitEnd(deployment.start(nil),
		"Secret configured/nstance-operator-nonce with a registration nonce is missing")
	deployment.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.namespace, Name: nonce.Name},
		Data: nonce.Data})
	deployment.awaitEnd(deployment.start(func(c *operator.Config) {
		c.Settings.Shards = map[string]settings.Endpoints{"a": {Registration: "127.0.0.1:1", Operator: "127.0.0.1:1"}}
	}), "no shard has registered the operator: shard a: ")

	p := deployment.start(nil)
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
	delete(deployment.shards, "a")
	deployment.writeConfig()
	deployment.await("the other shard", domains(1))
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(deployment.log.String(), "PRIVATE KEY") || strings.Contains(deployment.log.String(),
		string(nonce.Data["nonce.jwt"])) {
		t.Error("a secret is in the log")
	}
}
