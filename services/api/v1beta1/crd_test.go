package v1beta1_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

const instance = "wrk06efr4k8wwgh7bn9fvax2h5xj8"

func pool() *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{Spec: v1beta1.NstanceMachinePoolSpec{Group: "workers",
		Shards: []string{"use1-az1", "use1-az2"}, Config: &apiextensionsv1.JSON{
			Raw: []byte(`{"template":"worker","rollout":{"canary":1},"args":{"list":[1,{"a":"b"}]}}`)}}}
}

func shardGroup() *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{Spec: v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: "use1-az1",
		Size: ptr.To[int32](0)}}
}

func machine() *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"},
		Vars: map[string]string{"a": "1"}}}
}

// chosen returns a machine with a shard, an instance ID and a provider ID.
func chosen() *v1beta1.NstanceMachine {
	m := machine()
	m.Spec.Shard, m.Spec.InstanceID, m.Spec.ProviderID = "use1-az1", instance, "aws:///use1-az1/i-1"
	return m
}

func template() *v1beta1.NstanceMachineTemplate {
	return &v1beta1.NstanceMachineTemplate{Spec: v1beta1.NstanceMachineTemplateSpec{
		Template: v1beta1.NstanceMachineTemplateResource{Spec: machine().Spec}}}
}

// TestCRDSchema checks the CRDs and their CEL rules on a real API server. The server must accept the valid writes, and
// refuse the others with the expected errors.
func TestCRDSchema(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cluster, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CRDs: []string{"../../../config/crd"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)

	for name, test := range map[string]struct {
		object client.Object
		change string // JSON merge patch of the created object; "" tests the creation
		want   string // part of the error; "" if the write is accepted
	}{
		"pool": {object: pool()},
		"pool without config": {object: with(pool(), func(p *v1beta1.NstanceMachinePool) {
			p.Spec.Config = nil
		})},
		"pool with a config that is no object": {object: with(pool(), func(p *v1beta1.NstanceMachinePool) {
			p.Spec.Config.Raw = []byte(`"worker"`)
		}), want: "spec.config"},
		"pool without shards": {object: with(pool(), func(p *v1beta1.NstanceMachinePool) {
			p.Spec.Shards = nil
		}), want: "spec.shards"},
		"pool with a shard twice": {object: with(pool(), func(p *v1beta1.NstanceMachinePool) {
			p.Spec.Shards = []string{"a", "a"}
		}),
			want: "spec.shards[1]: Duplicate value"},
		"group with two dashes": {object: with(pool(), func(p *v1beta1.NstanceMachinePool) {
			p.Spec.Group = "a--b"
		}), want: "spec.group"},
		"pool's group": {object: pool(), change: `{"spec":{"group":"other"}}`,
			want: "group is immutable: create another pool"},
		"pool's config": {object: pool(), change: `{"spec":{"config":{"rollout":null,"a":{"b":[]}}}}`},
		"pool's shards": {object: pool(), change: `{"spec":{"shards":["use1-az2"]}}`},

		"shard group": {object: shardGroup()},
		"shard group without size": {object: with(shardGroup(), func(g *v1beta1.NstanceShardGroup) {
			g.Spec.Size = nil
		}), want: "spec.size"},
		"shard group's size":            {object: shardGroup(), change: `{"spec":{"size":3}}`},
		"shard group's size below zero": {object: shardGroup(), change: `{"spec":{"size":-1}}`, want: "spec.size"},
		"shard group's shard": {object: shardGroup(), change: `{"spec":{"shard":"other"}}`,
			want: "shard is immutable"},

		"machine": {object: machine()},
		"machine without group": {object: with(machine(), func(m *v1beta1.NstanceMachine) {
			m.Spec.GroupRef.Name = ""
		}), want: "spec.groupRef"},
		"machine gets shard and ID": {object: machine(), change: `{"spec":{"shard":"use1-az2","instanceID":"` +
			instance + `"}}`},
		"machine, wrong instance ID": {object: machine(), change: `{"spec":{"instanceID":"i-1"}}`,
			want: "spec.instanceID"},
		"machine's group": {object: machine(), change: `{"spec":{"groupRef":{"name":"other"}}}`,
			want: "groupRef is immutable"},
		"machine's type, early": {object: machine(), change: `{"spec":{"instanceType":"m8g.large","vars":null}}`},
		"machine's type": {object: chosen(), change: `{"spec":{"instanceType":"m8g.large"}}`,
			want: "instanceType is immutable once the instance has an ID"},
		"machine's vars": {object: chosen(), change: `{"spec":{"vars":{"a":"2"}}}`,
			want: "vars are immutable once the instance has an ID"},
		"machine's shard": {object: chosen(), change: `{"spec":{"shard":"other"}}`,
			want: "shard is immutable once the instance has an ID"},
		"machine's instance ID": {object: chosen(), change: `{"spec":{"instanceID":null}}`,
			want: "instanceID is immutable once set"},
		"machine's provider ID": {object: chosen(), change: `{"spec":{"providerID":null}}`,
			want: "providerID is immutable once set"},

		"template": {object: template()},
		"template with an instance": {object: with(template(), func(o *v1beta1.NstanceMachineTemplate) {
			o.Spec.Template.Spec.InstanceID = instance
		}),
			want: "instanceID and providerID belong to one machine"},
		"template's spec": {object: template(), change: `{"spec":{"template":{"spec":{"instanceType":"m8g.large"}}}}`,
			want: "template.spec is immutable"},
		"template's labels": {object: template(), change: `{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`},

		"cluster": {object: &v1beta1.NstanceCluster{}},
		"cluster with endpoint": {object: &v1beta1.NstanceCluster{},
			change: `{"spec":{"controlPlaneEndpoint":{"host":"10.0.0.1","port":6443}}}`},
		"cluster, wrong port": {object: &v1beta1.NstanceCluster{},
			change: `{"spec":{"controlPlaneEndpoint":{"host":"10.0.0.1","port":70000}}}`, want: "port"},
	} {
		t.Run(name, func(t *testing.T) {
			o := test.object
			o.SetName(strings.ToLower(strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(name)))
			o.SetNamespace("default")
			err := cluster.Client.Create(ctx, o)
			if test.change != "" {
				if err != nil {
					t.Fatal(err)
				}
				err = cluster.Client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(test.change)))
			}
			if test.want == "" && err != nil {
				t.Error(err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want one about %q", err, test.want)
			}
		})
	}
	t.Run("config is kept as it was written", func(t *testing.T) {
		got := pool()
		if err := cluster.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "pool"}, got); err != nil {
			t.Fatal(err)
		}
		want := `{"args":{"list":[1,{"a":"b"}]},"rollout":{"canary":1},"template":"worker"}`
		if got.Spec.Config == nil || string(got.Spec.Config.Raw) != want {
			t.Errorf("config: %s, want %s", got.Spec.Config, want)
		}
	})
	t.Run("status is kept as it was written", func(t *testing.T) { roundTrip(ctx, t, cluster.Client) })
}

// roundTrip writes the status of a shard group and reads it back. No value may be lost, although the CRD has no schema
// for the status field "config".
func roundTrip(ctx context.Context, t *testing.T, c client.Client) {
	t.Helper()
	g := shardGroup()
	g.Name, g.Namespace = "round-trip", "default"
	if err := c.Create(ctx, g); err != nil {
		t.Fatal(err)
	}
	status := `{"config":{"args":{"list":[1,{"a":null}]},"size":2},"actualSize":0,"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"","lastTransitionTime":"2026-07-28T10:00:00Z"}]}`
	if err := c.Status().Patch(ctx, g, client.RawPatch("application/merge-patch+json",
		[]byte(`{"status":`+status+`}`))); err != nil {
		t.Fatal(err)
	}
	got := &v1beta1.NstanceShardGroup{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(g), got); err != nil {
		t.Fatal(err)
	}
	if got.Status.Config == nil || !strings.Contains(string(got.Status.Config.Raw), `"args":{"list":[1,{`) {
		t.Errorf("config: %s", got.Status.Config)
	}
	if got.Status.ActualSize == nil || *got.Status.ActualSize != 0 || len(got.Status.Conditions) != 1 {
		raw, err := json.Marshal(got.Status)
		t.Errorf("status: %s", errors.Join(err, errors.New(string(raw))))
	}
}

func with[O client.Object](o O, change func(O)) O {
	change(o)
	return o
}

// TestScheme checks that every kind and its list are registered, and that conditions can be set and copied.
func TestScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster, pool, group, machine, template := &v1beta1.NstanceCluster{}, pool(), shardGroup(), machine(), template()
	for o, conditions := range map[client.Object]*[]metav1.Condition{cluster: &cluster.Status.Conditions,
		pool: &pool.Status.Conditions, group: &group.Status.Conditions, machine: &machine.Status.Conditions,
		template: &template.Status.Conditions} {
		kind, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List")); err != nil {
			t.Error(err)
		}
		*conditions = []metav1.Condition{{Type: v1beta1.ReadyCondition}}
		if !equality.Semantic.DeepEqual(o.DeepCopyObject(), o) {
			t.Errorf("%s: a copy has lost the conditions", kind.Kind)
		}
	}
}

func TestNames(t *testing.T) {
	if got := v1beta1.ShardGroupName("workers", "use1-az1"); got != "workers--use1-az1" {
		t.Error(got)
	}
	if got := v1beta1.ClusterName("prod", "default"); got != "prod--default" {
		t.Error(got)
	}
}
