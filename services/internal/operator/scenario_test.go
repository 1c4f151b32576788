package operator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// The scenario: "web" has one instance on each of the shards a and b, and is imported and scaled to three; "solo", of a
// alone, has none, and gets an individual machine, whose Node is drained when the machine goes.
var scenarioGroups = map[string]map[string]int{"a": {"web": 1, "solo": 0}, "b": {"web": 1}}

// play goes through the scenario. alive is called while something is waited for: it starts an operator again that has
// ended.
func (r *rig) play(alive func()) {
	r.t.Helper()
	await := func(what string, done func() error) {
		r.t.Helper()
		r.await(what, func() error { alive(); return done() })
	}
	r.imported(await)
	r.scaled(await)
	r.individual(await)
	await("the end", r.settled)
}

var errThere = errors.New("it is still there")

type awaiter func(what string, done func() error)

func (r *rig) get(name string, object client.Object) error {
	return r.kube.Get(r.t.Context(), types.NamespacedName{Namespace: r.namespace, Name: name}, object)
}

func (r *rig) create(object client.Object) {
	r.t.Helper()
	if err := r.kube.Create(r.t.Context(), object); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) imported(await awaiter) {
	r.t.Helper()
	await("the import", func() error {
		var web, solo clusterv1.MachinePool
		if err := all(r.get("web", &web), r.get("solo", &solo)); err != nil {
			return err
		}
		return all(equal("replicas of web", *web.Spec.Replicas, 2), equal("replicas of solo", *solo.Spec.Replicas, 0))
	})
}

func (r *rig) scaled(await awaiter) {
	r.t.Helper()
	var web clusterv1.MachinePool
	if err := r.get("web", &web); err != nil {
		r.t.Fatal(err)
	}
	before := web.DeepCopy()
	*web.Spec.Replicas = 3
	if err := r.kube.Patch(r.t.Context(), &web, client.MergeFrom(before)); err != nil {
		r.t.Fatal(err)
	}
	await("three instances of web", func() error {
		var pool v1beta1.NstanceMachinePool
		if err := r.get("web", &pool); err != nil {
			return err
		}
		if pool.Status.Replicas == nil {
			return fmt.Errorf("no status.replicas")
		}
		return all(equal("on a", r.alive("a", "web"), 2), equal("on b", r.alive("b", "web"), 1),
			equal("status.replicas", *pool.Status.Replicas, 3),
			equal("provider IDs", len(pool.Spec.ProviderIDList), 3))
	})
}

// node is the name of the Node of the individual machine: Nodes belong to no namespace.
func (r *rig) node() string { return r.namespace + "-node" }

func (r *rig) individual(await awaiter) {
	r.t.Helper()
	cluster := v1beta1.ClusterName(clusterID, tenant)
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "mine",
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
		Spec: clusterv1.MachineSpec{ClusterName: cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: new("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: "mine"}},
	}
	r.create(machine)
	r.create(&v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "mine",
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(machine,
				clusterv1.GroupVersion.WithKind("Machine"))}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "solo"}},
	})
	var mine v1beta1.NstanceMachine
	await("the individual machine", func() error {
		if err := r.get("mine", &mine); err != nil {
			return err
		}
		if mine.Spec.ProviderID == "" || mine.Status.Initialization.Provisioned == nil {
			return fmt.Errorf("not provisioned: %+v", mine.Status)
		}
		return equal("VMs", r.alive("a", "solo"), 1)
	})
	r.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.node()},
		Spec: corev1.NodeSpec{ProviderID: mine.Spec.ProviderID}})
	if err := r.kube.Delete(r.t.Context(), &mine); err != nil {
		r.t.Fatal(err)
	}
	await("the individual machine's end", func() error {
		if err := r.get("mine", &mine); !apierrors.IsNotFound(err) {
			return fmt.Errorf("NstanceMachine: %w, %+v", errors.Join(err, errThere), mine.Status)
		}
		var node corev1.Node
		if err := r.kube.Get(r.t.Context(), types.NamespacedName{Name: r.node()}, &node); !apierrors.IsNotFound(err) {
			return fmt.Errorf("node: %w, unschedulable %t", errors.Join(err, errThere), node.Spec.Unschedulable)
		}
		return equal("VMs", r.alive("a", "solo"), 0)
	})
	if err := r.kube.Delete(r.t.Context(), machine); client.IgnoreNotFound(err) != nil {
		r.t.Fatal(err)
	}
}

// settled checks that all is as it has to be in the end, with nothing that is there twice.
func (r *rig) settled() error {
	problems := all(
		equal("instances of web ever made", r.makings("web"), 3), equal("instances of solo ever made",
			r.makings("solo"), 1),
		equal("on a", r.alive("a", "web"), 2), equal("on b", r.alive("b", "web"), 1),
		equal("of solo", r.alive("a", "solo"), 0),
	)
	operators, err := r.state.ListOperators(r.t.Context(), tenant)
	problems = all(problems, err, equal("operators", len(operators), 1))
	have := map[string][]string{}
	for kind, list := range map[string]client.ObjectList{
		"Cluster": &clusterv1.ClusterList{}, "NstanceCluster": &v1beta1.NstanceClusterList{},
		"MachinePool":        &clusterv1.MachinePoolList{},
		"NstanceMachinePool": &v1beta1.NstanceMachinePoolList{}, "NstanceShardGroup": &v1beta1.NstanceShardGroupList{},
		"Machine":        &clusterv1.MachineList{},
		"NstanceMachine": &v1beta1.NstanceMachineList{}, "Secret": &corev1.SecretList{},
	} {
		if err := r.kube.List(r.t.Context(), list, client.InNamespace(r.namespace)); err != nil {
			return err
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, item := range items {
			name := item.(client.Object).GetName()
			if kind == "NstanceMachine" { // the name of a pool machine is its instance's
				name = item.(*v1beta1.NstanceMachine).Spec.GroupRef.Name
				problems = all(problems, poolMachine(item.(*v1beta1.NstanceMachine)))
			}
			have[kind] = append(have[kind], name)
		}
		slices.Sort(have[kind])
	}
	for kind, names := range map[string]string{
		"Cluster": "demo--default", "NstanceCluster": "demo--default", "MachinePool": "solo web",
		"NstanceMachinePool": "solo web",
		"NstanceShardGroup":  "solo--a web--a web--b", "Machine": "", "NstanceMachine": "web web web",
		"Secret": "demo--default-kubeconfig nstance-operator-cert nstance-operator-key nstance-operator-nonce",
	} {
		problems = all(problems, equal("objects of kind "+kind, strings.Join(have[kind], " "), names))
	}
	return problems
}

func poolMachine(m *v1beta1.NstanceMachine) error {
	return all(equal("the instance ID of "+m.Name, m.Spec.InstanceID, m.Name),
		equal(m.Name+" has a provider ID", m.Spec.ProviderID != "", true))
}
