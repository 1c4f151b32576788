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

// ends waits until an operator has ended by itself, and checks why.
func (r *rig) ends(p *process, want string) {
	r.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		r.t.Fatal("the operator does not end")
	}
	if p.err == nil || !strings.Contains(p.err.Error(), want) {
		r.t.Errorf("it ended with %v, want %q", p.err, want)
	}
}

func elected(c *operator.Config) { c.Options.LeaderElect = true }

// Of two operators one works. When it stops, the other goes on at once; one that loses the Lease ends.
func TestLeaderElection(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	r := newRig(t, kubernetes(t), "elected", scenarioGroups)
	first := r.start(elected)
	r.imported(r.await)
	second := r.start(func(c *operator.Config) { elected(c); c.Environment.JSON = true })
	holder := func() string {
		var lease coordinationv1.Lease
		if err := r.get("nstance-operator-leader-election", &lease); err != nil {
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
	r.await("the second leader", func() error {
		if now := holder(); now == led || now == "" {
			return fmt.Errorf("%q holds the lease", now)
		}
		return nil
	})
	if took := time.Since(stopped); took > 10*time.Second {
		t.Errorf("the lease was not released: it took %s", took)
	}
	r.scaled(r.await)
	if n := strings.Count(r.log.String(), "The operator is registered"); n != 1 {
		t.Errorf("%d registrations", n)
	}

	// Somebody takes the Lease away.
	var lease coordinationv1.Lease
	if err := r.get("nstance-operator-leader-election", &lease); err != nil {
		t.Fatal(err)
	}
	before := lease.DeepCopy()
	*lease.Spec.HolderIdentity = "somebody else"
	now := metav1.NewMicroTime(time.Now())
	lease.Spec.RenewTime = &now
	if err := r.kube.Patch(t.Context(), &lease, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	r.ends(second, "leader election lost")
}

// With NSTANCE_CAPI_ENDPOINT, Nodes and Pods are where the admin's kubeconfig leads, and the operator leaves that
// alone.
func TestExternalWorkloadCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	k := kubernetes(t)
	r := newRig(t, k, "external", scenarioGroups)
	external := func(c *operator.Config) {
		c.Environment.Endpoint = settings.Endpoint{Host: "api.example.com", Port: 6443}
	}
	r.ends(r.start(external), "secret external/demo--default-kubeconfig is missing")
	text, err := os.ReadFile(k.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "demo--default-kubeconfig"},
		Data: map[string][]byte{"value": text}})
	p := r.start(external)
	r.play(func() {
		if p.ended() {
			t.Fatalf("the operator has ended: %v", p.err)
		}
	})
	var cluster clusterv1.Cluster
	var secret corev1.Secret
	if err := all(r.get("demo--default", &cluster), r.get("demo--default-kubeconfig", &secret)); err != nil {
		t.Fatal(err)
	}
	if cluster.Spec.ControlPlaneEndpoint.Host != "api.example.com" || string(secret.Data["value"]) != string(text) {
		t.Errorf("endpoint %v", cluster.Spec.ControlPlaneEndpoint)
	}
}

// The configuration file is followed, and what cannot succeed ends the operator.
func TestFollowsItsConfiguration(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	r := newRig(t, kubernetes(t), "configured", map[string]map[string]int{"a": {"web": 1}, "b": {"web": 1}})
	b := r.shards["b"]
	delete(r.shards, "b")
	r.writeConfig()
	var nonce corev1.Secret
	if err := r.get("nstance-operator-nonce", &nonce); err != nil {
		t.Fatal(err)
	}
	if err := r.kube.Delete(t.Context(), &nonce); err != nil {
		t.Fatal(err)
	}
	r.ends(r.start(nil), "Secret configured/nstance-operator-nonce with a registration nonce is missing")
	r.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: nonce.Name}, Data: nonce.Data})
	r.ends(r.start(func(c *operator.Config) {
		c.Settings.Shards = map[string]settings.Endpoints{"a": {Registration: "127.0.0.1:1", Operator: "127.0.0.1:1"}}
	}), "no shard has registered the operator: shard a: ")

	p := r.start(nil)
	domains := func(want int) func() error {
		return func() error {
			if p.ended() {
				t.Fatalf("the operator has ended: %v", p.err)
			}
			var infra v1beta1.NstanceCluster
			if err := r.get("demo--default", &infra); err != nil {
				return err
			}
			return equal("failure domains", len(infra.Status.FailureDomains), want)
		}
	}
	r.await("one shard", domains(1))
	r.shards["b"] = b
	r.writeConfig()
	r.await("both shards", domains(2))
	if err := os.WriteFile(r.file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.await("the refusal", func() error {
		return equal("refused", strings.Contains(r.log.String(), "The configuration file is refused"), true)
	})
	delete(r.shards, "a")
	r.writeConfig()
	r.await("the other shard", domains(1))
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(r.log.String(), "PRIVATE KEY") || strings.Contains(r.log.String(),
		string(nonce.Data["nonce.jwt"])) {
		t.Error("a secret is in the log")
	}
}
