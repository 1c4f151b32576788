package delivery

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	bases    = "../../services/operator/kustomize"
	examples = "../../examples/flux"
	argocd   = "../../examples/argocd"
)

// tool returns the path of a pinned tool and builds it if necessary.
func tool(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs tools that are built for tests")
	}
	return strings.TrimSpace(string(output(t, nil, "../../scripts/tool.sh", name)))
}

// output runs a program with additional environment variables and returns its standard output.
func output(t *testing.T, env []string, program string, args ...string) []byte {
	t.Helper()
	out, err := run(t.Context(), env, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func run(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stderr.Bytes(),
			out)
	}
	return out, nil
}

// kubeVersion returns the version of the tests' API server. By default, the pinned helm assumes Kubernetes 1.20, which
// the chart refuses.
func kubeVersion(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../tools/kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`k8s.io/kubernetes (v[0-9.]+)`).FindSubmatch(raw)
	if match == nil {
		t.Fatal("no version of k8s.io/kubernetes")
	}
	return string(match[1])
}

func template(t *testing.T, args ...string) []unstructured.Unstructured {
	t.Helper()
	args = append([]string{"template", "nstance-operator", chart, "--kube-version", kubeVersion(t), "--namespace",
		"nstance-system"}, args...)
	return objects(t, output(t, nil, tool(t, "helm"), args...))
}

func kustomize(t *testing.T, dir string) []unstructured.Unstructured {
	t.Helper()
	return objects(t, output(t, nil, "kubectl", "kustomize", dir))
}

func objects(t *testing.T, raw []byte) (found []unstructured.Unstructured) {
	t.Helper()
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))); ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			found = append(found, object)
		}
	}
}

func find(t *testing.T, all []unstructured.Unstructured, kind, name string) unstructured.Unstructured {
	t.Helper()
	for _, object := range all {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return unstructured.Unstructured{}
}

// field returns a field of an object, or nil if it is absent.
func field(object unstructured.Unstructured, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(object.Object, path...)
	return value
}

// TestChartAndBasesAgree checks that the chart and the bases run the same pod with the same permissions.
func TestChartAndBasesAgree(t *testing.T) {
	fromChart := template(t, "-f", filepath.Join(chart, "ci", "minimal.yaml"))
	fromBases := kustomize(t, filepath.Join(bases, "default"))

	pod := func(all []unstructured.Unstructured) any {
		object := find(t, all, "Deployment", "nstance-operator")
		spec, _ := field(object, "spec", "template", "spec").(map[string]any)
		containers, _ := spec["containers"].([]any)
		if len(containers) != 1 {
			t.Fatalf("%d containers", len(containers))
		}
		return spec
	}
	if diff := cmp.Diff(pod(fromChart), pod(fromBases)); diff != "" {
		t.Errorf("pods differ (-chart +bases):\n%s", diff)
	}

	rules := func(all []unstructured.Unstructured) map[string]any {
		found := map[string]any{}
		for _, object := range all {
			if kind := object.GetKind(); kind == "ClusterRole" || kind == "Role" {
				name := strings.TrimPrefix(object.GetName(), "nstance-system-")
				rules, _ := object.Object["rules"].([]any)
				// TestRightsToSecrets checks these rules. The bases do not know the Secrets' names.
				found[kind+" "+name] = slices.DeleteFunc(rules, func(rule any) bool {
					one, _ := rule.(map[string]any)
					return fmt.Sprint(one["resources"]) == "[secrets]"
				})
			}
		}
		return found
	}
	if diff := cmp.Diff(rules(fromChart), rules(fromBases)); diff != "" {
		t.Errorf("rights differ (-chart +bases):\n%s", diff)
	}
	if len(rules(fromChart)) < 2 {
		t.Errorf("rights: %v", rules(fromChart))
	}

	definitions := func(all []unstructured.Unstructured) map[string]any {
		found := map[string]any{}
		for _, object := range all {
			if object.GetKind() == "CustomResourceDefinition" {
				if got := object.GetLabels()["cluster.x-k8s.io/v1beta2"]; got != "v1beta1" {
					t.Errorf("%s: label of the contract is %q", object.GetName(), got)
				}
				found[object.GetName()] = object.Object["spec"]
			}
		}
		return found
	}
	if diff := cmp.Diff(definitions(fromChart), definitions(fromBases)); diff != "" {
		t.Errorf("definitions differ (-chart +bases):\n%s", diff)
	}
	if len(definitions(fromChart)) < 5 {
		t.Errorf("%d definitions", len(definitions(fromChart)))
	}

	for name, all := range map[string][]unstructured.Unstructured{"chart": fromChart, "bases": fromBases} {
		for _, object := range all {
			if got := object.GetLabels()["cluster.x-k8s.io/provider"]; got != "infrastructure-nstance" {
				t.Errorf("%s: %s %s has label cluster.x-k8s.io/provider %q, which clusterctl looks for", name,
					object.GetKind(), object.GetName(), got)
			}
		}
	}
}

// TestRightsToSecrets checks that the operator may read and write only its own Secrets, if the installation method knows
// their names: the chart does unless the user makes the ConfigMap, and clusterctl does.
func TestRightsToSecrets(t *testing.T) {
	limited := func(names ...string) []string {
		return []string{"[create] []", fmt.Sprintf("[get update] %s", names)}
	}
	minimal := filepath.Join(chart, "ci", "minimal.yaml")
	own := []string{"nstance-operator-cert", "nstance-operator-key", "nstance-operator-nonce"}
	for _, tt := range []struct {
		name    string
		objects []unstructured.Unstructured
		want    []string
	}{
		{"chart", template(t, "-f", minimal), limited(append(own, "example--default-kubeconfig")...)},
		{"chart without on-demand pods", template(t, "-f", minimal, "--set", "onDemandPods.enabled=false"),
			limited(append(own, "example--default-kubeconfig")...)},
		{"chart with other names", template(t, "-f", filepath.Join(chart, "ci", "full.yaml")),
			limited("team-a-cert", "team-a-key", "team-a-nonce", "example--team-a-kubeconfig")},
		{"chart with the user's ConfigMap", template(t, "-f", minimal, "--set", "existingConfigMap=mine"),
			[]string{"[create get update] []"}},
		{"clusterctl", objects(t, read(t, "../../services/operator/clusterctl/infrastructure-components.yaml")),
			limited(append(own, "${NSTANCE_CLUSTER_ID}--${NSTANCE_TENANT:=default}-kubeconfig")...)},
		{"bases", kustomize(t, filepath.Join(bases, "default")), []string{"[create get update] []"}},
	} {
		var got []string
		for _, object := range tt.objects {
			rules, _ := object.Object["rules"].([]any)
			for _, one := range rules {
				rule, _ := one.(map[string]any)
				if resources, _, _ := unstructured.NestedStringSlice(rule, "resources"); slices.Contains(resources,
					"secrets") {
					names, _, _ := unstructured.NestedStringSlice(rule, "resourceNames")
					got = append(got, fmt.Sprint(rule["verbs"], " ", names))
				}
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestRightsFollowOnDemandPods checks that the rights to change pods, to read their Nodes again and to create Machines
// are granted exactly if pods can request machines, and that nothing else differs.
func TestRightsFollowOnDemandPods(t *testing.T) {
	minimal := filepath.Join(chart, "ci", "minimal.yaml")
	without := t.TempDir()
	absolute, err := filepath.Abs(bases)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(without, absolute)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(without, "kustomization.yaml"), fmt.Appendf(nil,
		"resources: [%[1]s/default]\ncomponents: [%[1]s/components/without-on-demand]\n", relative),
		0o600); err != nil {
		t.Fatal(err)
	}
	extra := []string{"cluster.x-k8s.io machines create", " nodes get", " pods patch"}
	for name, sides := range map[string][2][]unstructured.Unstructured{
		"chart": {template(t, "-f", minimal), template(t, "-f", minimal, "--set", "onDemandPods.enabled=false")},
		"bases": {kustomize(t, filepath.Join(bases, "default")), kustomize(t, without)},
	} {
		with, without := rights(sides[0]), rights(sides[1])
		var lost []string
		for right := range with {
			if !without[right] {
				lost = append(lost, right)
			}
		}
		slices.Sort(lost)
		slices.Sort(extra)
		if diff := cmp.Diff(extra, lost); diff != "" || len(without) != len(with)-len(lost) || len(without) < 20 {
			t.Errorf("%s: %d rights with on-demand pods, %d without them; they lack (-want +got):\n%s", name, len(with),
				len(without), diff)
		}
		for i, want := range []bool{false, true} {
			text := fmt.Sprint(field(find(t, sides[i], "Deployment", "nstance-operator"), "spec", "template", "spec"))
			if strings.Contains(text, "--on-demand-pods=false") != want {
				t.Errorf("%s %d: the flag is set: %t, want %t", name, i, !want, want)
			}
		}
	}
}

// rights returns what the operator's roles permit, as group, resource and verb.
func rights(all []unstructured.Unstructured) map[string]bool {
	found := map[string]bool{}
	for _, object := range all {
		if kind := object.GetKind(); kind != "ClusterRole" && kind != "Role" ||
			strings.HasSuffix(object.GetName(), "-workload") {
			continue
		}
		rules, _ := object.Object["rules"].([]any)
		for _, one := range rules {
			rule, _ := one.(map[string]any)
			groups, _, _ := unstructured.NestedStringSlice(rule, "apiGroups")
			resources, _, _ := unstructured.NestedStringSlice(rule, "resources")
			verbs, _, _ := unstructured.NestedStringSlice(rule, "verbs")
			for _, group := range groups {
				for _, resource := range resources {
					for _, verb := range verbs {
						found[group+" "+resource+" "+verb] = true
					}
				}
			}
		}
	}
	return found
}

// TestBasesInAnotherNamespace builds the bases for another namespace. No object may still refer to nstance-system.
func TestBasesInAnotherNamespace(t *testing.T) {
	dir := t.TempDir()
	example, err := filepath.Abs(filepath.Join(bases, "example"))
	if err != nil {
		t.Fatal(err)
	}
	// kustomize accepts only a relative path.
	if example, err = filepath.Rel(dir, example); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("namespace: elsewhere\nresources: ["+
		example+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "helm") // Skips a short run.
	moved := output(t, nil, "kubectl", "kustomize", dir)
	for number, line := range strings.Split(string(moved), "\n") {
		if strings.Contains(line, "nstance-system") {
			t.Errorf("line %d is still about nstance-system: %s", number+1, line)
		}
	}
	if !strings.Contains(string(moved), "namespace: elsewhere") {
		t.Error("nothing was moved")
	}
}

// TestBindingsLead checks that every binding refers to an existing role and an existing account, and that every role is
// bound.
func TestBindingsLead(t *testing.T) {
	for name, all := range map[string][]unstructured.Unstructured{
		"chart":      template(t, "-f", filepath.Join(chart, "ci", "full.yaml")),
		"bases":      kustomize(t, filepath.Join(bases, "example")),
		"clusterctl": objects(t, read(t, "../../services/operator/clusterctl/infrastructure-components.yaml")),
	} {
		there := map[string]bool{}
		bound := map[string]bool{}
		for _, object := range all {
			there[object.GetKind()+" "+object.GetName()] = true
		}
		for _, object := range all {
			if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
				continue
			}
			role := fmt.Sprint(field(object, "roleRef", "kind"), " ", field(object, "roleRef", "name"))
			if !there[role] {
				t.Errorf("%s: %s %s is to %s, which is not there", name, object.GetKind(), object.GetName(), role)
			}
			bound[role] = true
			subjects, _ := field(object, "subjects").([]any)
			for _, subject := range subjects {
				subject, _ := subject.(map[string]any)
				if account := fmt.Sprint(subject["kind"], " ", subject["name"]); !there[account] ||
					subject["namespace"] != "nstance-system" {
					t.Errorf("%s: %s %s is for %v", name, object.GetKind(), object.GetName(), subject)
				}
			}
		}
		for key := range there {
			if (strings.HasPrefix(key, "Role ") || strings.HasPrefix(key, "ClusterRole ")) && !bound[key] {
				t.Errorf("%s: %s is bound to no subject", name, key)
			}
		}
	}
}

// TestPodsAreRestricted checks that with each installation method, containers have only the necessary privileges.
func TestPodsAreRestricted(t *testing.T) {
	for name, all := range map[string][]unstructured.Unstructured{
		"minimal":  template(t, "-f", filepath.Join(chart, "ci", "minimal.yaml")),
		"full":     template(t, "-f", filepath.Join(chart, "ci", "full.yaml")),
		"external": template(t, "-f", filepath.Join(chart, "ci", "external.yaml")),
		"bases":    kustomize(t, filepath.Join(bases, "example")),
	} {
		pods := 0
		for _, object := range all {
			spec, found, _ := unstructured.NestedMap(object.Object, "spec", "template", "spec")
			if !found || object.GetKind() != "Deployment" && object.GetKind() != "Job" {
				continue
			}
			pods++
			security, _ := spec["securityContext"].(map[string]any)
			if security["runAsNonRoot"] != true || !cmp.Equal(security["seccompProfile"],
				map[string]any{"type": "RuntimeDefault"}) {
				t.Errorf("%s: pod security %v", name, security)
			}
			for _, container := range spec["containers"].([]any) {
				security, _ := container.(map[string]any)["securityContext"].(map[string]any)
				want := map[string]any{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
					"capabilities": map[string]any{"drop": []any{"ALL"}}}
				if diff := cmp.Diff(want, security); diff != "" {
					t.Errorf("%s: container security (-want +got):\n%s", name, diff)
				}
			}
		}
		if want := map[string]int{"full": 2}[name]; pods != max(want, 1) { // the hook and the operator
			t.Errorf("%s: %d Deployments and Jobs", name, pods)
		}
	}
}

// TestUninstallHook checks that uninstalling the chart deletes the Cluster object only if uninstall.deleteCluster is
// set. The Job that deletes the Cluster must have the operator's account, command and configuration.
func TestUninstallHook(t *testing.T) {
	minimal := filepath.Join(chart, "ci", "minimal.yaml")
	for _, object := range template(t, "-f", minimal) {
		if object.GetKind() == "Job" {
			t.Errorf("by default the chart has Job %s", object.GetName())
		}
	}
	all := template(t, "-f", minimal, "--set", "uninstall.deleteCluster=true")
	job, operator := find(t, all, "Job", "nstance-operator-uninstall"), find(t, all, "Deployment", "nstance-operator")
	if hook := job.GetAnnotations()["helm.sh/hook"]; hook != "pre-delete" {
		t.Errorf("hook %q", hook)
	}
	account := []string{"spec", "template", "spec", "serviceAccountName"}
	if got, want := field(job, account...), field(operator, account...); got != want {
		t.Errorf("account %v, want %v", got, want)
	}
	container, ok := field(job, "spec", "template", "spec", "containers").([]any)[0].(map[string]any)
	if !ok || len(container["args"].([]any)) < 2 || container["args"].([]any)[0] != "uninstall" ||
		container["args"].([]any)[1] != "--config=/etc/nstance/operator/config.yaml" {
		t.Errorf("container %v", container)
	}
}

// TestShardsDoNotRestart checks that a new list of shards does not restart the operator's pod. A new cluster ID or a
// new tenant must restart it.
func TestShardsDoNotRestart(t *testing.T) {
	minimal := filepath.Join(chart, "ci", "minimal.yaml")
	pod := func(args ...string) any {
		return field(find(t, template(t, append([]string{"-f", minimal}, args...)...), "Deployment",
			"nstance-operator"), "spec", "template")
	}
	before := pod()
	if diff := cmp.Diff(before, pod("--set", "config.shards.b.registration_addr=b:1", "--set",
		"config.shards.b.operator_addr=b:2")); diff != "" {
		t.Errorf("another shard changes the pod:\n%s", diff)
	}
	for _, set := range []string{"config.tenant=other", "config.cluster_id=other"} {
		if cmp.Equal(before, pod("--set", set)) {
			t.Errorf("%s does not change the pod", set)
		}
	}
}

// TestFluxValuesFit checks that the chart accepts the values in the HelmReleases of the Flux examples.
func TestFluxValuesFit(t *testing.T) {
	for _, environment := range []string{"staging", "production"} {
		all := kustomize(t, filepath.Join(examples, "operator", environment))
		values := field(find(t, all, "HelmRelease", "nstance-operator"), "spec", "values")
		raw, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		rendered := template(t, "-f", path)
		config := fmt.Sprint(field(find(t, rendered, "ConfigMap", "nstance-operator-config"), "data", "config.yaml"))
		if !strings.Contains(config, `cluster_id: "`+environment+`"`) {
			t.Errorf("%s: configuration is\n%s", environment, config)
		}
		if slices.ContainsFunc(rendered, func(o unstructured.Unstructured) bool {
			return o.GetKind() == "CustomResourceDefinition"
		}) {
			t.Errorf("%s: the release has definitions, which have a separate Kustomization", environment)
		}
		authority := find(t, all, "ConfigMap", "nstance-cluster-ca")
		if !strings.Contains(fmt.Sprint(field(authority, "data", "ca.crt")), "BEGIN CERTIFICATE") {
			t.Errorf("%s: no certificate", environment)
		}
		// The objects in Flux's health checks must be among the rendered objects.
		clusters := kustomize(t, filepath.Join(examples, "clusters", environment))
		checks, _ := field(find(t, clusters, "Kustomization", "nstance-operator"), "spec", "healthChecks").([]any)
		made := append(slices.Clone(all), rendered...)
		for _, check := range checks {
			check, _ := check.(map[string]any)
			find(t, made, fmt.Sprint(check["kind"]), fmt.Sprint(check["name"]))
		}
		if len(checks) < 2 {
			t.Errorf("%s: health checks %v", environment, checks)
		}
		// If a Kustomization depends on a second one, the second one must be among the rendered objects. The exception
		// is cert-manager, which the user installs according to the README.
		for _, object := range clusters {
			after, _ := field(object, "spec", "dependsOn").([]any)
			for _, other := range after {
				if name := fmt.Sprint(other.(map[string]any)["name"]); name != "cert-manager" {
					find(t, clusters, "Kustomization", name)
				}
			}
		}
	}
}

// TestArgoValuesFit renders the chart with the values of the Applications, as Argo CD does. The name of the Application
// becomes the name of the release.
func TestArgoValuesFit(t *testing.T) {
	for _, environment := range []string{"staging", "production"} {
		application := find(t, kustomize(t, filepath.Join(argocd, environment)), "Application", "nstance-operator")
		raw, err := yaml.Marshal(field(application, "spec", "source", "helm", "valuesObject"))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		rendered := template(t, "-f", path)
		config := fmt.Sprint(field(find(t, rendered, "ConfigMap", "nstance-operator-config"), "data", "config.yaml"))
		if !strings.Contains(config, `cluster_id: "`+environment+`"`) {
			t.Errorf("%s: configuration is\n%s", environment, config)
		}
		authority := find(t, rendered, "ConfigMap", "nstance-cluster-ca")
		if !strings.Contains(fmt.Sprint(field(authority, "data", "ca.crt")), "BEGIN CERTIFICATE") {
			t.Errorf("%s: no certificate", environment)
		}
		definitions := 0
		for _, object := range rendered {
			if object.GetKind() == "CustomResourceDefinition" {
				definitions++
				// By this annotation Argo CD keeps it.
				if got := object.GetAnnotations()["helm.sh/resource-policy"]; got != "keep" {
					t.Errorf("%s: the policy of %s is %q", environment, object.GetName(), got)
				}
			}
			// Argo CD knows other hooks of Helm, but not those before a deletion.
			if hook := object.GetAnnotations()["helm.sh/hook"]; hook != "" {
				t.Errorf("%s: %s %s is a hook: %s", environment, object.GetKind(), object.GetName(), hook)
			}
		}
		if definitions < 5 {
			t.Errorf("%s: %d definitions", environment, definitions)
		}
	}
}

// TestVersionsAgree checks that the chart, the bases, the examples and other files name the same version of the
// operator.
func TestVersionsAgree(t *testing.T) {
	var about struct {
		Version    string `json:"version"`
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(read(t, filepath.Join(chart, "Chart.yaml")), &about); err != nil {
		t.Fatal(err)
	}
	if about.Version != about.AppVersion || about.Version == "" {
		t.Errorf("chart %s is of application %s", about.Version, about.AppVersion)
	}
	for path, want := range map[string]string{
		filepath.Join(bases, "base", "kustomization.yaml"):         "newTag: " + about.Version + "\n",
		filepath.Join(examples, "operator", "base", "source.yaml"): "tag: " + about.Version + "\n",
		filepath.Join(examples, "clusters", "base", "source.yaml"): "tag: v" + about.Version + "\n",
		"../../examples/kubernetes-node/nstance-server.yaml": "nstance-server:" + about.Version +
			"\n",
		filepath.Join(argocd, "base", "operator.yaml"):                      "targetRevision: " + about.Version + "\n",
		"../../services/operator/clusterctl/infrastructure-components.yaml": "nstance-operator:" + about.Version + "\n",
		"../../docs/start/kubernetes.md": "nstance-operator-" + about.Version +
			".tgz",
	} {
		if !bytes.Contains(read(t, path), []byte(want)) {
			t.Errorf("%s has no %q", path, want)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
