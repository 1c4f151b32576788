package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// testDeployment uses a MachineDeployment: it is created, scaled, loses a Machine, rolls to another template, and is
// deleted. Each Machine must have one instance.
func (l *lab) testDeployment(t *testing.T) {
	ctx := t.Context()
	const name, first, second = "deployed", "deployed-1", "deployed-2"
	for _, template := range []string{first, second} {
		l.create(ctx, t, &v1beta1.NstanceMachineTemplate{ObjectMeta: objectMeta(template),
			Spec: v1beta1.NstanceMachineTemplateSpec{Template: v1beta1.NstanceMachineTemplateResource{
				Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: machines},
					Vars: map[string]string{"template": template}}}}})
	}
	none, replicas, labels := "", int32(1), map[string]string{"app": name}
	l.create(ctx, t, &clusterv1.MachineDeployment{ObjectMeta: objectMeta(name), Spec: clusterv1.MachineDeploymentSpec{
		ClusterName: clusterName, Replicas: &replicas, Selector: metav1.LabelSelector{MatchLabels: labels},
		Template: clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: labels},
			Spec: clusterv1.MachineSpec{ClusterName: clusterName, Bootstrap: clusterv1.Bootstrap{DataSecretName: &none},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
					Kind: "NstanceMachineTemplate", Name: first}}}}})
	var ids []string
	run := func(what string, replicas int, template string) {
		t.Helper()
		await(t, what, endsWithin, func(ctx context.Context) (err error) {
			ids, err = l.deployed(ctx, labels, template)
			if len(ids) != replicas {
				err = errors.Join(err, fmt.Errorf("%d Machines, want %d", len(ids), replicas))
			}
			return errors.Join(err, l.settledMachines(ctx, ids))
		})
	}
	run("one Machine runs", 1, first)
	one := ids[0]
	l.kubectl(t, "-n", namespace, "scale", "machinedeployment", name, "--replicas=3")
	run("three Machines run", 3, first)
	if !slices.Contains(ids, one) {
		t.Errorf("scaling up replaced %s", one)
	}
	l.remove(t, "machine.cluster.x-k8s.io", l.machineOfInstance(t, labels, one))
	await(t, "the deleted Machine's instance is gone", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.left(ctx, l.east, one), l.left(ctx, l.west, one))
	})
	run("a deleted Machine is replaced", 3, first)
	old := ids
	l.kubectl(t, "-n", namespace, "patch", "machinedeployment", name, "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"template":{"spec":{"infrastructureRef":{"name":%q}}}}}`, second))
	run("all Machines have the other template", 3, second)
	if slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(old, id) }) {
		t.Errorf("instances %v before the roll, %v after it", old, ids)
	}
	l.remove(t, "machinedeployment", name)
	run("all is gone", 0, second)
}

// deployed returns the instances of the Machines with the labels. It returns an error unless all run and have the
// given template.
func (l *lab) deployed(ctx context.Context, labels map[string]string, template string) (ids []string, err error) {
	list := &clusterv1.MachineList{}
	if err := l.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels(labels)); err != nil {
		return nil, err
	}
	for _, machine := range list.Items {
		infra := &v1beta1.NstanceMachine{}
		if readErr := l.Client.Get(ctx, in(machine.Spec.InfrastructureRef.Name), infra); readErr != nil {
			return ids, readErr
		}
		ids = append(ids, infra.Status.InstanceID)
		err = errors.Join(err, l.machineRuns(ctx, machine.Name, infra.Status.InstanceID))
		if infra.Spec.Vars["template"] != template {
			err = errors.Join(err, fmt.Errorf("Machine %s has the template %s", machine.Name,
				infra.Spec.Vars["template"]))
		}
	}
	slices.Sort(ids)
	return ids, err
}

// settledMachines returns an error unless the group "machines" has exactly the given instances.
func (l *lab) settledMachines(ctx context.Context, want []string) error {
	var have []string
	for _, s := range l.shards() {
		instances, err := s.instances(ctx, machines)
		if err != nil {
			return err
		}
		for _, instance := range instances {
			have = append(have, instance.GetInstanceId())
		}
	}
	if slices.Sort(have); !slices.Equal(have, want) {
		return fmt.Errorf("instances %v, want %v", have, want)
	}
	return nil
}

// machineOfInstance returns the name of the Machine with the labels that has the given instance.
func (l *lab) machineOfInstance(t *testing.T, labels map[string]string, id string) string {
	t.Helper()
	list := &v1beta1.NstanceMachineList{}
	if err := l.Client.List(t.Context(), list, client.InNamespace(namespace),
		client.MatchingLabels(labels)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if owner := metav1.GetControllerOf(&list.Items[i]); owner != nil && list.Items[i].Status.InstanceID == id {
			return owner.Name
		}
	}
	t.Fatalf("instance %s has no Machine", id)
	return ""
}
