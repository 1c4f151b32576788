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

// scenarioGroups are the groups of the scenario and their sizes. "web" has one instance on each of the shards a and b.
// The scenario imports "web" and scales it to three. "solo" is on shard a only and has no instances. The scenario adds
// an individual machine to it, drains the machine and deletes it.
var scenarioGroups = map[string]map[string]int{"a": {"web": 1, "solo": 0}, "b": {"web": 1}}

// runScenario runs the scenario. It calls alive while it waits, so that alive can restart an operator that has ended.
func (deployment *testDeployment) runScenario(alive func()) {
	deployment.t.Helper()
	await := func(what string, done func() error) {
		deployment.t.Helper()
		deployment.await(what, func() error { alive(); return done() })
	}
	deployment.checkImport(await)
	deployment.checkScaling(await)
	deployment.checkIndividualMachine(await)
	await("the end", deployment.checkFinalState)
}

var errThere = errors.New("the object still exists")

type awaiter func(what string, done func() error)

func (deployment *testDeployment) get(name string, object client.Object) error {
	return deployment.kube.Get(deployment.t.Context(), types.NamespacedName{Namespace: deployment.namespace,
		Name: name}, object)
}

func (deployment *testDeployment) create(object client.Object) {
	deployment.t.Helper()
	if err := deployment.kube.Create(deployment.t.Context(), object); err != nil {
		deployment.t.Fatal(err)
	}
}

func (deployment *testDeployment) checkImport(await awaiter) {
	deployment.t.Helper()
	await("the import", func() error {
		var web, solo clusterv1.MachinePool
		if err := all(deployment.get("web", &web), deployment.get("solo", &solo)); err != nil {
			return err
		}
		return all(equal("replicas of web", *web.Spec.Replicas, 2), equal("replicas of solo", *solo.Spec.Replicas, 0))
	})
}

func (deployment *testDeployment) checkScaling(await awaiter) {
	deployment.t.Helper()
	var web clusterv1.MachinePool
	if err := deployment.get("web", &web); err != nil {
		deployment.t.Fatal(err)
	}
	before := web.DeepCopy()
	*web.Spec.Replicas = 3
	if err := deployment.kube.Patch(deployment.t.Context(), &web, client.MergeFrom(before)); err != nil {
		deployment.t.Fatal(err)
	}
	await("three instances of web", func() error {
		var pool v1beta1.NstanceMachinePool
		if err := deployment.get("web", &pool); err != nil {
			return err
		}
		if pool.Status.Replicas == nil {
			return fmt.Errorf("no status.replicas")
		}
		return all(equal("on a", deployment.runningVMs("a", "web"), 2),
			equal("on b", deployment.runningVMs("b", "web"), 1),
			equal("status.replicas", *pool.Status.Replicas, 3),
			equal("provider IDs", len(pool.Spec.ProviderIDList), 3))
	})
}

// node returns the name of the individual machine's Node. It is unique, because Nodes have no namespace.
func (deployment *testDeployment) node() string { return deployment.namespace + "-node" }

func (deployment *testDeployment) checkIndividualMachine(await awaiter) {
	deployment.t.Helper()
	cluster := v1beta1.ClusterName(clusterID, tenant)
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: deployment.namespace, Name: "mine",
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
		Spec: clusterv1.MachineSpec{ClusterName: cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: new("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: "mine"}},
	}
	deployment.create(machine)
	deployment.create(&v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: deployment.namespace, Name: "mine",
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(machine,
				clusterv1.GroupVersion.WithKind("Machine"))}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "solo"}},
	})
	var mine v1beta1.NstanceMachine
	await("the individual machine", func() error {
		if err := deployment.get("mine", &mine); err != nil {
			return err
		}
		if mine.Spec.ProviderID == "" || mine.Status.Initialization.Provisioned == nil {
			return fmt.Errorf("not provisioned: %+v", mine.Status)
		}
		return equal("VMs", deployment.runningVMs("a", "solo"), 1)
	})
	deployment.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: deployment.node()},
		Spec: corev1.NodeSpec{ProviderID: mine.Spec.ProviderID}})
	if err := deployment.kube.Delete(deployment.t.Context(), &mine); err != nil {
		deployment.t.Fatal(err)
	}
	await("the individual machine's end", func() error {
		if err := deployment.get("mine", &mine); !apierrors.IsNotFound(err) {
			return fmt.Errorf("NstanceMachine: %w, %+v", errors.Join(err, errThere), mine.Status)
		}
		var node corev1.Node
		if err := deployment.kube.Get(deployment.t.Context(), types.NamespacedName{Name: deployment.node()},
			&node); !apierrors.IsNotFound(err) {
			return fmt.Errorf("node: %w, unschedulable %t", errors.Join(err, errThere), node.Spec.Unschedulable)
		}
		return equal("VMs", deployment.runningVMs("a", "solo"), 0)
	})
	if err := deployment.kube.Delete(deployment.t.Context(), machine); client.IgnoreNotFound(err) != nil {
		deployment.t.Fatal(err)
	}
}

// checkFinalState checks the final state: nothing is missing and nothing exists twice.
func (deployment *testDeployment) checkFinalState() error {
	problems := all(
		equal("instances of web ever made", deployment.requestedVMs("web"), 3), equal("instances of solo ever made",
			deployment.requestedVMs("solo"), 1),
		equal("on a", deployment.runningVMs("a", "web"), 2), equal("on b", deployment.runningVMs("b", "web"), 1),
		equal("of solo", deployment.runningVMs("a", "solo"), 0),
	)
	operators, err := deployment.state.ListOperators(deployment.t.Context(), tenant)
	problems = all(problems, err, equal("operators", len(operators), 1))
	have := map[string][]string{}
	for kind, list := range map[string]client.ObjectList{
		"Cluster": &clusterv1.ClusterList{}, "NstanceCluster": &v1beta1.NstanceClusterList{},
		"MachinePool":        &clusterv1.MachinePoolList{},
		"NstanceMachinePool": &v1beta1.NstanceMachinePoolList{}, "NstanceShardGroup": &v1beta1.NstanceShardGroupList{},
		"Machine":        &clusterv1.MachineList{},
		"NstanceMachine": &v1beta1.NstanceMachineList{}, "Secret": &corev1.SecretList{},
	} {
		if err := deployment.kube.List(deployment.t.Context(), list, client.InNamespace(
			deployment.namespace)); err != nil {
			return err
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, item := range items {
			name := item.(client.Object).GetName()
			if kind == "NstanceMachine" { // compare by group, as the name is a random instance ID
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
