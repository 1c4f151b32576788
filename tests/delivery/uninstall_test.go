package delivery

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// testUninstallHook runs `helm uninstall` with the hook, a Job that deletes the Cluster object. No kubelet runs, so the
// test itself runs the Job's program, with the Job's arguments, environment, files and service account. It then marks
// the Job as complete.
func (i *installed) testUninstallHook(t *testing.T) {
	const namespace = "hook"
	i.namespace(t, namespace)
	output(t, i.env, i.helm, "install", "nstance-operator", chart, "--namespace", namespace, "-f",
		filepath.Join(chart, "ci", "minimal.yaml"), "--set", "crds.install=false,uninstall.deleteCluster=true")
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "example--default",
		Labels:     map[string]string{clusterv1.ClusterNameLabel: "example--default"},
		Finalizers: []string{"example.com/hold"}}, Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
			Kind: "NstanceCluster", Name: "example--default"}}}
	if err := i.Client.Create(i.ctx, cluster); err != nil {
		t.Fatal(err)
	}

	uninstalled := make(chan error, 1)
	go func() {
		_, err := run(i.ctx, i.env, i.helm, "uninstall", "nstance-operator", "--namespace", namespace, "--timeout",
			"10m")
		uninstalled <- err
	}()
	job := &batchv1.Job{}
	i.await(t, "the hook's Job", func() error {
		return i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace, Name: "nstance-operator-uninstall"}, job)
	})
	process := i.runPod(t, namespace, &job.Spec.Template)
	i.await(t, "the deletion of the Cluster", func() error {
		if err := i.Client.Get(i.ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			t.Fatal(err)
		}
		if cluster.DeletionTimestamp.IsZero() {
			return fmt.Errorf("it is not deleted; the Job wrote:\n%s", kube.Tail(process.Log, 20))
		}
		return nil
	})
	i.await(t, "a report of what is left", func() error { return said(process, "left: 1 Clusters") })
	cluster.Finalizers = nil
	if err := i.Client.Update(i.ctx, cluster); err != nil {
		t.Fatal(err)
	}
	<-process.Ended()
	if err := said(process, "nothing of Cluster example--default is left"); err != nil || process.ExitCode() != 0 {
		t.Errorf("exit code %d: %v", process.ExitCode(), err)
	}
	i.completeJob(t, job)
	if err := <-uninstalled; err != nil {
		t.Error(err)
	}
}

// await repeats try until it returns no error, for at most five minutes.
func (i *installed) await(t *testing.T, what string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-i.ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// said returns an error unless the last 20 lines of a process's log contain the text.
func said(process *kube.Process, text string) error {
	if all := kube.Tail(process.Log, 20); !strings.Contains(all, text) {
		return fmt.Errorf("it wrote:\n%s", all)
	}
	return nil
}

// runPod starts the program of a pod on this machine. The pod must have the image of nstance-operator. The API server
// must admit the pod.
func (i *installed) runPod(t *testing.T, namespace string, template *corev1.PodTemplateSpec) *kube.Process {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "hook-",
		Labels: template.Labels}, Spec: template.Spec}
	if err := i.Client.Create(i.ctx, pod, client.DryRunAll); err != nil {
		t.Errorf("the pod is refused: %v", err)
	}
	container := template.Spec.Containers[0]
	if len(container.Command) > 0 { // The image's entry point is the program.
		t.Errorf("the pod runs %q instead of the image's entry point", container.Command)
	}
	dir := t.TempDir()
	settings := &corev1.ConfigMap{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace,
		Name: template.Spec.Volumes[0].ConfigMap.Name}, settings); err != nil {
		t.Fatal(err)
	}
	for _, item := range template.Spec.Volumes[0].ConfigMap.Items {
		if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(settings.Data[item.Key]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	account, err := i.ForServiceAccount(i.ctx, namespace, template.Spec.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"KUBECONFIG=" + filepath.Join(dir, "kubeconfig")}
	if err := kube.WriteKubeconfig(filepath.Join(dir, "kubeconfig"), account); err != nil {
		t.Fatal(err)
	}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil { // Its only source is the namespace.
			value = namespace
		}
		env = append(env, variable.Name+"="+value)
	}
	args := slices.Clone(container.Args)
	for n := range args {
		args[n] = strings.ReplaceAll(args[n], container.VolumeMounts[0].MountPath, dir)
	}
	process, err := kube.Run(dir, "hook", i.buildOperator(t), env, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return process
}

// completeJob writes the status of a Job that has succeeded. No controller of Jobs runs in this test.
func (i *installed) completeJob(t *testing.T, job *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
	for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind,
			Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now})
	}
	if err := i.Client.Status().Update(i.ctx, job); err != nil {
		t.Fatal(err)
	}
}
