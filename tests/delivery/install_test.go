package delivery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// TestInstall installs the operator with each method into one real API server, and then checks the pod, the CRDs and
// the permissions.
func TestInstall(t *testing.T) {
	helm := tool(t, "helm")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cluster, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CoreCRDs: true,
		CRDs: []string{foreignDefinitions(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	i := &installed{Cluster: cluster, ctx: ctx, helm: helm, env: []string{"KUBECONFIG=" + cluster.Kubeconfig,
		"HELM_CACHE_HOME=" + t.TempDir()}}
	// The subtests run in sequence, because they share the CRDs.
	t.Run("Helm", i.testHelm)
	t.Run("Operator", i.testOperator)
	t.Run("Terraform", i.testTerraform)
	t.Run("Uninstall", i.testUninstallHook)
	t.Run("Bases", i.testBases)
	t.Run("Clusterctl", i.testClusterctl)
	t.Run("Flux", i.testFlux)
	t.Run("ArgoCD", i.testArgoCD)
	t.Run("ServerOnANode", i.testServerOnANode)
}

// foreignDefinitions generates the CRDs of Flux and Prometheus from their Go types, and copies that of Argo CD. It
// returns their directory.
func foreignDefinitions(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	generate := tool(t, "controller-gen")
	args := []string{"-c", `cd definitions && GOWORK=off exec "$@"`, "sh", generate,
		"crd:crdVersions=v1,allowDangerousTypes=true", "output:crd:dir=" + dir}
	for _, path := range []string{
		"github.com/fluxcd/helm-controller/api/v2", "github.com/fluxcd/kustomize-controller/api/v1",
		"github.com/fluxcd/source-controller/api/v1",
		"github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1",
	} {
		args = append(args, "paths="+path)
	}
	output(t, nil, "sh", args...)
	const module = "github.com/argoproj/argo-cd/v3"
	output(t, nil, "go", "-C", "../tools/argo-cd", "mod", "download", module)
	source := strings.TrimSpace(string(output(t, nil, "go", "-C", "../tools/argo-cd", "list", "-m", "-f", "{{.Dir}}",
		module)))
	if err := os.WriteFile(filepath.Join(dir, "argocd.yaml"), read(t, filepath.Join(source,
		"manifests/crds/application-crd.yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

type installed struct {
	*kube.Cluster
	ctx  context.Context
	helm string
	env  []string
}

// namespace creates a namespace with the pod security level "restricted", the strictest one. The API server refuses
// pods that violate the level.
func (i *installed) namespace(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := i.Client.Create(i.ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func (i *installed) testHelm(t *testing.T) {
	i.namespace(t, "nstance-system")
	minimal := filepath.Join(chart, "ci", "minimal.yaml")
	notes := string(output(t, i.env, i.helm, "install", "nstance-operator", chart, "--namespace", "nstance-system",
		"-f", minimal))
	for _, want := range []string{"cluster example, tenant default", "create configmap nstance-cluster-ca",
		"create secret generic nstance-operator-nonce"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q:\n%s", want, notes)
		}
	}
	i.checkPod(t, "nstance-system", "nstance-operator")
	i.checkDefinitions(t)
	i.checkRights(t, "nstance-system", "nstance-capi-workload", "nstance-operator", "default")

	// If the Secret and the ConfigMap exist, the chart's notes must not tell the user to create them.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "nstance-system", Name: "nstance-operator-nonce"},
		StringData: map[string]string{"nonce.jwt": "x"}}
	authority := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "nstance-system",
		Name: "nstance-cluster-ca"}, Data: map[string]string{"ca.crt": "x"}}
	for _, object := range []client.Object{secret, authority} {
		if err := i.Client.Create(i.ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	notes = string(output(t, i.env, i.helm, "upgrade", "nstance-operator", chart, "--namespace", "nstance-system", "-f",
		minimal,
		"--set", "config.shards.b.registration_addr=b:1", "--set", "config.shards.b.operator_addr=b:2", "--set",
		"replicas=2"))
	if strings.Contains(notes, "create secret") || strings.Contains(notes, "create configmap") {
		t.Errorf("the notes ask for what is there:\n%s", notes)
	}
	config := &corev1.ConfigMap{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: "nstance-system", Name: "nstance-operator-config"},
		config); err != nil || !strings.Contains(config.Data["config.yaml"], "b:2") {
		t.Errorf("configuration after the upgrade: %q, %v", config.Data["config.yaml"], err)
	}

	// A second operator, for another tenant, can be installed beside the first one. It is installed with every option
	// of the chart.
	i.namespace(t, "team-a")
	output(t, i.env, i.helm, "install", "nstance-operator", chart, "--namespace", "team-a", "-f",
		filepath.Join(chart, "ci", "full.yaml"), "--set", "crds.install=false")
	i.checkPod(t, "team-a", "nstance-operator")
	i.checkRights(t, "team-a", "team-a-capi", "team-a", "team-a")
	// The uninstall hook is a Job. No controller runs Jobs in this test, so the hook must be skipped.
	output(t, i.env, i.helm, "uninstall", "nstance-operator", "--namespace", "team-a", "--no-hooks")

	// Machines and pools must remain after the operator is uninstalled.
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: "nstance-system", Name: "workers"},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []string{"a"},
			Config: &apiextensionsv1.JSON{Raw: []byte(`{"template":"worker"}`)}}}
	if err := i.Client.Create(i.ctx, pool); err != nil {
		t.Fatal(err)
	}
	output(t, i.env, i.helm, "uninstall", "nstance-operator", "--namespace", "nstance-system")
	if err := i.Client.Get(i.ctx, client.ObjectKeyFromObject(pool), pool); err != nil || pool.DeletionTimestamp != nil {
		t.Errorf("pool after the release was uninstalled: %v, deleted at %v", err, pool.DeletionTimestamp)
	}
	i.checkDefinitions(t)
	var roles rbacv1.ClusterRoleList
	if err := i.Client.List(i.ctx, &roles, client.MatchingLabels{"app.kubernetes.io/part-of": "nstance"}); err != nil ||
		len(roles.Items) > 0 {
		t.Errorf("cluster roles are left: %v, %v", roles.Items, err)
	}
	// The chart can be installed again while objects of the earlier installation exist.
	output(t, i.env, i.helm, "install", "nstance-operator", chart, "--namespace", "nstance-system", "-f", minimal)
	output(t, i.env, i.helm, "uninstall", "nstance-operator", "--namespace", "nstance-system")
	if err := i.Client.Delete(i.ctx, pool); err != nil {
		t.Error(err)
	}
}

func (i *installed) testBases(t *testing.T) {
	output(t, i.env, "kubectl", "apply", "--server-side", "--force-conflicts", "--validate=strict", "-k",
		filepath.Join(bases, "example"))
	i.checkPod(t, "nstance-system", "nstance-operator")
	i.checkDefinitions(t)
	i.checkRights(t, "nstance-system", "nstance-capi-workload", "nstance-operator", "default")
	deployment := &appsv1.Deployment{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: "nstance-system", Name: "nstance-operator"},
		deployment); err != nil || *deployment.Spec.Replicas != 2 {
		t.Errorf("replicas %v, %v", deployment.Spec.Replicas, err)
	}
	// After the bases are applied, another apply must not change anything.
	diff, err := run(i.ctx, i.env, "kubectl", "diff", "--server-side", "--force-conflicts", "-k",
		filepath.Join(bases, "example"))
	if err != nil {
		t.Errorf("a second application would change something: %v\n%s", err, diff)
	}
	i.remove(t)
}

// remove deletes the objects of the kustomize bases, except the CRDs and the namespace. No namespace controller runs in
// this test, so a namespace cannot be deleted.
func (i *installed) remove(t *testing.T) {
	t.Helper()
	output(t, i.env, "kubectl", "-n", "nstance-system", "delete", "--ignore-not-found", "--wait=false",
		"deployments,roles,rolebindings,configmaps", "-l", "app.kubernetes.io/part-of=nstance")
	output(t, i.env, "kubectl", "delete", "--ignore-not-found", "clusterroles,clusterrolebindings", "-l",
		"app.kubernetes.io/part-of=nstance")
}

func (i *installed) testClusterctl(t *testing.T) {
	clusterctl := tool(t, "clusterctl")
	version := "v" + i.version(t)
	dir := filepath.Join(t.TempDir(), "infrastructure-nstance", version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"metadata.yaml", "infrastructure-components.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), read(t, filepath.Join("../../services/operator/clusterctl",
			name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(t.TempDir(), "clusterctl.yaml")
	text := fmt.Sprintf("providers:\n  - name: nstance\n    type: InfrastructureProvider\n    url: %s\n",
		filepath.Join(dir, "infrastructure-components.yaml"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(slices.Clone(i.env), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "XDG_CONFIG_HOME="+t.TempDir(),
		"NSTANCE_CLUSTER_ID=example", "NSTANCE_TENANT=team-a",
		`NSTANCE_SHARDS={"a": {"registration_addr": "10.0.0.1:8992", "operator_addr": "10.0.0.1:8993"}}`,
		"NSTANCE_CAPI_ENDPOINT=https://10.0.0.2:6443")
	components := filepath.Join(t.TempDir(), "components.yaml")
	if err := os.WriteFile(components, output(t, env, clusterctl, "generate", "provider", "--infrastructure",
		"nstance:"+version, "--config", config), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, i.env, "kubectl", "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", components)
	i.checkPod(t, "nstance-system", "nstance-operator")
	i.checkDefinitions(t)
	i.checkRights(t, "nstance-system", "nstance-capi-workload", "nstance-operator", "team-a")

	settings := &corev1.ConfigMap{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: "nstance-system", Name: "nstance-operator-config"},
		settings); err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Cluster string                       `json:"cluster_id"`
		Tenant  string                       `json:"tenant"`
		Shards  map[string]map[string]string `json:"shards"`
	}
	if err := yaml.UnmarshalStrict([]byte(settings.Data["config.yaml"]), &parsed); err != nil ||
		parsed.Cluster != "example" || parsed.Tenant != "team-a" ||
		parsed.Shards["a"]["operator_addr"] != "10.0.0.1:8993" {
		t.Errorf("configuration %+v, %v", parsed, err)
	}
	deployment := &appsv1.Deployment{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: "nstance-system", Name: "nstance-operator"},
		deployment); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(deployment.Spec.Template.Spec.Containers[0].Env,
		corev1.EnvVar{Name: "NSTANCE_CAPI_ENDPOINT", Value: "https://10.0.0.2:6443"}) {
		t.Errorf("environment %v", deployment.Spec.Template.Spec.Containers[0].Env)
	}
	i.remove(t)
}

func (i *installed) version(t *testing.T) string {
	t.Helper()
	var about struct {
		Version string `json:"version"`
	}
	if err := yaml.Unmarshal(read(t, filepath.Join(chart, "Chart.yaml")), &about); err != nil {
		t.Fatal(err)
	}
	return about.Version
}

// testFlux checks that the API server accepts every object of the Flux examples. No controller for these objects runs.
func (i *installed) testFlux(t *testing.T) {
	i.namespace(t, "flux-system")
	i.namespace(t, "capi-operator-system")
	for _, pattern := range []string{"clusters/*", "operator/*", "pools/*", "infrastructure/*/operator"} {
		dirs, err := filepath.Glob(filepath.Join(examples, pattern))
		if err != nil || len(dirs) == 0 {
			t.Fatalf("%s: %v, %v", pattern, dirs, err)
		}
		for _, dir := range dirs {
			output(t, i.env, "kubectl", "apply", "--server-side", "--force-conflicts", "--validate=strict",
				"--dry-run=server", "-k", dir)
		}
	}
	// A server-side dry run must also detect a misspelled field.
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	text := strings.Replace(string(read(t, filepath.Join(examples, "operator/base/release.yaml"))), "interval:",
		"intervall:", 1)
	if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(i.ctx, i.env, "kubectl", "-n", "nstance-system", "apply", "--server-side", "--validate=strict",
		"--dry-run=server", "-f", bad); err == nil {
		t.Error("a misspelt field was taken")
	}
}

// testArgoCD checks that the API server accepts the Applications of the example. Argo CD does not run.
func (i *installed) testArgoCD(t *testing.T) {
	i.namespace(t, "argocd")
	for _, environment := range []string{"staging", "production"} {
		output(t, i.env, "kubectl", "apply", "--server-side", "--validate=strict", "--dry-run=server", "-k",
			filepath.Join(argocd, environment))
	}
}

// testServerOnANode applies the example of a server on a Kubernetes node. The API server must admit its pod.
func (i *installed) testServerOnANode(t *testing.T) {
	output(t, i.env, "kubectl", "apply", "--server-side", "--validate=strict", "-f",
		"../../examples/kubernetes-node/nstance-server.yaml")
	set := &appsv1.DaemonSet{}
	key := client.ObjectKey{Namespace: "nstance-servers", Name: "nstance-server-us-west-2a"}
	if err := i.Client.Get(i.ctx, key, set); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, GenerateName: key.Name + "-",
		Labels: set.Spec.Template.Labels}, Spec: set.Spec.Template.Spec}
	// The controller manager makes the account, and does not run here.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "default"}}
	if err := i.Client.Create(i.ctx, account); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if err := i.Client.Create(i.ctx, pod, client.DryRunAll); err != nil {
		t.Errorf("its pod is refused: %v", err)
	}
}

// checkPod creates the Deployment's pod. Its service account must exist, and the strictest pod security must admit it.
func (i *installed) checkPod(t *testing.T, namespace, name string) {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace, Name: name}, deployment); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: name + "-",
		Labels: deployment.Spec.Template.Labels}, Spec: deployment.Spec.Template.Spec}
	if err := i.Client.Create(i.ctx, pod, client.DryRunAll); err != nil {
		t.Errorf("its pod is refused: %v", err)
	}
}

// checkDefinitions waits until every CRD of Nstance is established.
func (i *installed) checkDefinitions(t *testing.T) {
	t.Helper()
	for {
		var list apiextensionsv1.CustomResourceDefinitionList
		if err := i.Client.List(i.ctx, &list,
			client.MatchingLabels{"cluster.x-k8s.io/provider": "infrastructure-nstance"}); err != nil {
			t.Fatal(err)
		}
		established := 0
		for _, definition := range list.Items {
			if definition.Labels["cluster.x-k8s.io/v1beta2"] != "v1beta1" {
				t.Fatalf("%s has labels %v", definition.Name, definition.Labels)
			}
			for _, condition := range definition.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					established++
				}
			}
		}
		if established == 5 && len(list.Items) == 5 {
			return
		}
		select {
		case <-i.ctx.Done():
			t.Fatalf("%d of %d definitions are established", established, len(list.Items))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

const (
	capi  = "cluster.x-k8s.io"
	infra = "infrastructure.cluster.x-k8s.io"
)

// right is a request that an account may make, written as arguments of `kubectl auth can-i`. An empty namespace means
// the operator's namespace. The values "other" and "all" mean another namespace and all namespaces.
type right struct{ verbs, group, resource, name, namespace string }

// The operator's account and the account for Cluster API must have exactly these rights. The rights come from the
// documentation and not from the roles, because the roles are under test.
var (
	operatorMay = []right{
		{"get", "", "configmaps", "CA", ""},
		{"get", "", "secrets", "SECRETS-nonce", ""},
		{"create", "", "secrets", "", ""},
		{"get update", "", "secrets", "SECRETS-cert", ""},
		{"get update", "", "secrets", "SECRETS-key", ""},
		{"get update", "", "secrets", "example--TENANT-kubeconfig", ""},
		{"get create update", "coordination.k8s.io", "leases", "nstance-operator-leader-election", ""},
		{"create", "", "serviceaccounts/token", "WORKLOAD", ""},
		{"get list watch create patch delete", capi, "clusters", "", ""}, // nstance-operator uninstall deletes it
		{"get list watch create patch delete", capi, "machines", "", ""},
		{"list watch create patch", capi, "machinepools", "", ""},
		{"get list watch create patch", infra, "nstanceclusters", "", ""},
		{"get list watch create patch", infra, "nstancemachinepools", "", ""},
		{"list watch create patch delete", infra, "nstanceshardgroups", "", ""},
		{"get list watch create patch delete", infra, "nstancemachines", "", ""},
		{"list watch", infra, "nstancemachinetemplates", "", ""},
		{"patch", infra, "nstanceclusters/status", "", ""},
		{"patch", infra, "nstancemachinepools/status", "", ""},
		{"patch", infra, "nstanceshardgroups/status", "", ""},
		{"patch", infra, "nstancemachines/status", "", ""},
		{"patch", infra, "nstancemachinetemplates/status", "", ""},
		{"get list watch patch delete", "", "nodes", "", "all"},
		{"get list watch patch", "", "pods", "", "all"},
		{"create", "", "pods/eviction", "", "all"},
		{"get", "apps", "daemonsets", "", "all"},
		{"create patch", "events.k8s.io", "events", "", ""},
	}
	operatorMayNot = []right{
		{"get list watch", "", "secrets", "", "other"},
		{"delete patch", "", "secrets", "", ""},
		{"get list", "", "configmaps", "", "other"},
		{"create", "", "serviceaccounts/token", "default", ""},
		{"create", "", "serviceaccounts/token", "WORKLOAD", "other"},
		{"create", "", "pods", "", "all"},
		{"create", "", "pods/exec", "", "all"},
		{"create", "", "nodes", "", "all"},
		{"create update delete", "apps", "deployments", "", ""},
		{"create", "rbac.authorization.k8s.io", "clusterrolebindings", "", "all"},
		{"escalate bind", "rbac.authorization.k8s.io", "clusterroles", "", "all"},
		{"impersonate", "", "serviceaccounts", "", "all"},
		{"create delete", "apiextensions.k8s.io", "customresourcedefinitions", "", "all"},
		{"delete", capi, "machines", "", "other"},
		{"delete", infra, "nstancemachines", "", "other"},
		{"*", "*", "*", "", "all"},
	}
	workloadMay = []right{
		{"get list watch patch delete", "", "nodes", "", "all"},
		{"get list watch", "", "pods", "", "all"},
		{"create", "", "pods/eviction", "", "all"},
		{"list watch", "", "namespaces", "", "all"},
		{"get", "apps", "daemonsets", "", "all"},
		{"list watch", "storage.k8s.io", "volumeattachments", "", "all"},
	}
	workloadMayNot = []right{
		{"get list", "", "secrets", "", "all"},
		{"get", "", "secrets", "", ""},
		{"create delete", "", "pods", "", "all"},
		{"get list", infra, "nstancemachines", "", ""},
		{"create", "", "serviceaccounts/token", "", ""},
	}
)

// checkRights asks the API server for the permissions of the two service accounts. The name of the account for Cluster
// API is workload, and the names of the operator's own Secrets begin with secrets.
func (i *installed) checkRights(t *testing.T, namespace, workload, secrets, tenant string) {
	t.Helper()
	names := strings.NewReplacer("WORKLOAD", workload, "SECRETS", secrets, "TENANT", tenant, "CA", "nstance-cluster-ca")
	for _, account := range []struct {
		name        string
		may, mayNot []right
	}{{"nstance-operator", operatorMay, operatorMayNot}, {workload, workloadMay, workloadMayNot}} {
		config, err := i.ForServiceAccount(i.ctx, namespace, account.name)
		if err != nil {
			t.Fatal(err)
		}
		as, err := client.New(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range []struct {
			rights []right
			want   bool
		}{{account.may, true}, {account.mayNot, false}} {
			for _, r := range list.rights {
				for verb := range strings.FieldsSeq(r.verbs) {
					if got := i.can(t, as, r, verb, namespace, names.Replace(r.name)); got != list.want {
						t.Errorf("%s/%s may %s %s/%s %q in %q: %v, want %v", namespace, account.name, verb, r.group,
							r.resource, r.name, r.namespace, got, list.want)
					}
				}
			}
		}
	}
}

func (i *installed) can(t *testing.T, as client.Client, r right, verb, namespace, name string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(r.resource, "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: verb, Group: r.group, Resource: resource,
		Subresource: subresource, Namespace: namespace, Name: name}
	switch r.namespace {
	case "all":
		attributes.Namespace = ""
	case "other":
		attributes.Namespace = "default"
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: attributes}}
	if err := as.Create(i.ctx, review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}
