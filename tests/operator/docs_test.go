package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/tests/kube"
)

// These pages of the documentation are about Kubernetes. Tests run the commands on them.
const (
	deletePage    = "how-to/delete-a-cluster.md"
	karpenterPage = "how-to/migrate-from-karpenter.md"
	onDemandPage  = "how-to/on-demand-pods.md"
	sparesPage    = "how-to/spares-in-kubernetes.md"
	startPage     = "start/kubernetes.md"
)

// documented maps pages to their sections with shell commands. For each section it has the name of the test.
var documented = map[string]map[string]struct {
	test string
	// "instead" describes what the test does in place of the commands in the section. If it is empty, the test runs the
	// commands literally.
	instead string
}{
	deletePage: {
		"Delete the Cluster": {test: "TestDelete"},
		"Uninstall the operator, or delete its namespace": {"TestNamespace",
			"runs nstance-operator uninstall outside of a pod"},
		"Recover a deleted namespace":    {test: "TestNamespace"},
		"When the deletion does not end": {test: "TestDelete"},
		"Create the Cluster again":       {test: "TestDelete"},
	},
	karpenterPage: {
		"Move": {test: "TestUse"},
	},
	onDemandPage: {
		"See what a pod waits for": {test: "TestUse"},
	},
	sparesPage: {
		"Register Nodes with a taint": {"TestOperator", "simulates kubelets that register with the taint"},
		"See them":                    {test: "TestOperator"},
		"What the operator changes":   {test: "TestOperator"},
	},
	startPage: {
		"Choose a scenario":                 {test: "TestUse"},
		"Prepare the CA and the nonce":      {"TestOperator", "creates the same objects from a directory"},
		"Helm":                              {"TestInstall", "installs with values of the tests and of Terraform"},
		"Kustomize":                         {"TestInstall", "applies the example"},
		"clusterctl":                        {"TestInstall", "renders with clusterctl and applies the result"},
		"Check the installation":            {"TestInstall", "reads the Deployment; no kubelet runs its pod"},
		"Scale with the cluster autoscaler": {test: "TestUse"},
		"One pool on two clouds":            {"TestClouds", "updates the same field with a client"},
		"Uninstall":                         {"TestInstall", "runs the hook that does the same"},
	},
}

var (
	heading   = regexp.MustCompile(`(?m)^##+ (.*)$`)
	testNames = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestDocumentedCommands checks that the table "documented" has every section with shell commands. The test of the
// section must exist and must run the section's commands. If "instead" is set, the test need not run the commands.
func TestDocumentedCommands(t *testing.T) {
	var source strings.Builder
	for _, pattern := range []string{"*_test.go", "../delivery/*_test.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			source.Write(tail(path))
		}
	}
	var tests []string
	for _, match := range testNames.FindAllStringSubmatch(source.String(), -1) {
		tests = append(tests, match[1])
	}
	for page, sections := range documented {
		text := string(tail(filepath.Join("..", "..", "docs", page)))
		var found []string
		for _, at := range heading.FindAllStringSubmatchIndex(text, -1) {
			body := text[at[1]:]
			if next := heading.FindStringIndex(body); next != nil {
				body = body[:next[0]]
			}
			if strings.Contains(body, "```sh") {
				found = append(found, text[at[2]:at[3]])
			}
		}
		slices.Sort(found)
		if listed := slices.Sorted(maps.Keys(sections)); !slices.Equal(found, listed) {
			t.Errorf("%s has commands in the sections %q; the table lists %q", page, found, listed)
		}
		for name, one := range sections {
			if !slices.Contains(tests, one.test) {
				t.Errorf("%s: %s: there is no %s", page, name, one.test)
			}
			if one.instead == "" && !strings.Contains(source.String(), fmt.Sprintf(`Page, %q`, name)) {
				t.Errorf("%s: %s: no test runs its commands", page, name)
			}
		}
	}
}

// section returns a section of a page below docs.
func section(t *testing.T, page, name string) string {
	t.Helper()
	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := strings.Cut(string(text), "\n## "+name+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, name)
	}
	body, _, _ = strings.Cut(body, "\n## ")
	return body
}

// blocks returns the code blocks of a language, joined.
func blocks(text, language string) string {
	var all strings.Builder
	for i, block := range strings.Split(text, "```") {
		if code, is := strings.CutPrefix(block, language+"\n"); i%2 == 1 && is {
			all.WriteString(code)
		}
	}
	return all.String()
}

// runSteps runs the shell commands in a section of a page, with the real kubectl and nstance-admin. It replaces the
// names of the page's Cluster and group by those of this test. The argument "others" has further names and what
// replaces them.
func (l *lab) runSteps(t *testing.T, page, name string, others ...string) {
	t.Helper()
	identity := filepath.Join(l.dir, "admin")
	names := strings.NewReplacer(append(others, "example-cluster--default", clusterName, "GROUP", workers)...)
	env := append(os.Environ(), "HOME="+l.dir, "KUBECONFIG="+l.Kubeconfig, "NSTANCE_ENCRYPTION_KEY="+encryptionKey,
		"PATH="+l.bin+string(os.PathListSeparator)+os.Getenv("PATH"), "NSTANCE_ADMIN_IDENTITY_DIR="+identity,
		fmt.Sprintf("NSTANCE_ADMIN_SERVERS=east=%s,west=%s", address(l.east.ports[3]), address(l.west.ports[3])))
	for _, command := range []string{
		"[ -e " + identity + " ] || nstance-admin cluster register-operator --cluster-id " + clusterID +
			" --storage-provider file --storage-bucket " + l.east.bucket.dir + " --output-dir " + identity,
		names.Replace(blocks(section(t, page, name), "sh")),
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", command)
		cmd.Env, cmd.Dir = env, l.dir
		out, err := cmd.CombinedOutput()
		t.Logf("%s\n%s", command, out)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// testDocumented runs what the pages for users say about on-demand pods and external clusters.
func (l *lab) testDocumented(t *testing.T) {
	manifest := filepath.Join(l.dir, "train.yaml")
	text := strings.ReplaceAll(blocks(section(t, onDemandPage, "Request a machine"), "yaml"), "group: gpu",
		"group: "+machines)
	if err := errors.Join(os.WriteFile(manifest, []byte(text), 0o600),
		os.WriteFile(filepath.Join(l.dir, "workload.kubeconfig"), tail(l.operatorKubeconfig()), 0o600)); err != nil {
		t.Fatal(err)
	}
	l.kubectl(t, "apply", "--server-side", "--validate=strict", "-n", "default", "-f", manifest)
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "default", "train"
	await(t, "the pod of the page runs", patience, func(ctx context.Context) error {
		if err := l.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s: %+v", pod.Status.Phase, pod.Status.Conditions)
		}
		return l.belongs(ctx, pod.Spec.NodeName, pod)
	})
	l.runSteps(t, onDemandPage, "See what a pod waits for")
	l.removePods(t, pod)
	l.runSteps(t, startPage, "Choose a scenario")
	l.runSteps(t, karpenterPage, "Move")
	await(t, "three instances run", patience, func(ctx context.Context) error { return l.poolRuns(ctx, workers, 3) })
	if err := l.scale(t.Context(), workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}
