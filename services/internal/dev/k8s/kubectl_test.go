package k8s

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKubectl runs the real kubectl with common commands.
func TestKubectl(t *testing.T) {
	if testing.Short() {
		t.Log("left out of a short run: it runs kubectl many times")
		return
	}
	t.Parallel()
	binary, err := exec.LookPath("kubectl")
	if err != nil {
		t.Fatal(
			"kubectl is not on PATH and this test needs it: https://kubernetes.io/docs/tasks/tools, or run with -short")
	}
	dir, home := t.TempDir(), t.TempDir()
	addr, _ := start(t, dir)
	kubeconfig := filepath.Join(home, "kubeconfig")
	put(t, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: dev-k8s
contexts: [{name: dev-k8s, context: {cluster: dev-k8s, user: dev, namespace: default}}]
clusters: [{name: dev-k8s, cluster: {server: "http://%s"}}]
users: [{name: dev, user: {}}]
`, addr), kubeconfig)
	editor := filepath.Join(home, "editor")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG="+kubeconfig, "KUBE_EDITOR="+editor)
		return cmd
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := command(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	contains := func(text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in\n%s", part, text)
			}
		}
	}
	manifest := filepath.Join(home, "all.yaml")
	document := `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata: {name: workers}
spec: {clusterName: c, replicas: 2, gone: later}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: NstanceMachinePool
metadata: {name: workers, labels: {a: b}}
spec: {group: workers, shards: [dev-1, dev-2]}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {providerID: "tmux://n1"}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: one, image: a}, {name: two, image: b}]}
`
	put(t, document, manifest)
	contains(kubectl("apply", "-f", manifest), "machinepool.cluster.x-k8s.io/workers created", "pod/web created")
	contains(kubectl("apply", "-f", manifest), "machinepool.cluster.x-k8s.io/workers unchanged", "pod/web unchanged")
	// The new manifest omits one field, and changes the number of replicas and the image of the first container. The
	// second container must remain.
	put(t, strings.NewReplacer(", gone: later", "", "replicas: 2", "replicas: 3", "image: a",
		"image: z").Replace(document), manifest)
	contains(kubectl("apply", "-f", manifest), "machinepool.cluster.x-k8s.io/workers configured", "node/n1 unchanged",
		"pod/web configured")
	contains(kubectl("get", "pod", "web", "-o", "jsonpath={.spec.containers[*].image}"), "z b")
	if out := kubectl("get", "mp", "workers", "-o", "yaml"); strings.Contains(out, "later") &&
		!strings.Contains(out, "last-applied") {
		t.Errorf("the field is still there:\n%s", out)
	}
	contains(kubectl("apply", "-f", manifest, "--dry-run=server"), "(server dry run)")
	contains(kubectl("get", "mp,nmp,nodes"), "machinepool.cluster.x-k8s.io/workers", "node/n1")
	contains(kubectl("get", "cluster-api"), "machinepool.cluster.x-k8s.io/workers",
		"nstancemachinepool.infrastructure.cluster.x-k8s.io/workers")
	contains(kubectl("get", "nmp", "-l", "a=b"), "workers")

	contains(kubectl("scale", "machinepool", "workers", "--replicas", "5"), "scaled")
	contains(kubectl("get", "mp", "workers", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"), "5 3")
	if out, err := command("scale", "machinepool", "workers", "--current-replicas", "7", "--replicas",
		"9").CombinedOutput(); err == nil {
		t.Errorf("scaled from a number that it did not have: %s", out)
	}
	if err := os.WriteFile(editor,
		[]byte("#!/bin/sh\nsed 's/clusterName: c/clusterName: edited/' \"$1\" >\"$1.new\" && cat \"$1.new\" >\"$1\"\n"),
		0o700); err != nil { //nolint:gosec // a script
		t.Fatal(err)
	}
	contains(kubectl("edit", "mp", "workers"), "edited")
	contains(kubectl("get", "mp", "workers", "-o", "jsonpath={.spec.clusterName}"), "edited")

	kubectl("patch", "mp", "workers", "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	wait := command("wait", "mp/workers", "--for=condition=Ready", "--timeout=20s")
	var output strings.Builder
	wait.Stdout, wait.Stderr = &output, &output
	if err := wait.Start(); err != nil {
		t.Fatal(err)
	}
	kubectl("patch", "mp", "workers", "--subresource=status", "--type=json", "-p",
		`[{"op":"replace","path":"/status/conditions/0/status","value":"True"}]`)
	if err := wait.Wait(); err != nil {
		t.Errorf("wait: %v\n%s", err, output.String())
	}
	contains(kubectl("describe", "mp", "workers"), "Cluster Name:  edited")
	contains(kubectl("describe", "node", "n1"), "tmux://n1", "default", "web")

	// kubectl sends Secrets, ConfigMaps and ServiceAccounts as protobuf.
	kubectl("create", "secret", "generic", "s", "--from-literal=x=y")
	kubectl("create", "configmap", "m", "--from-literal=x=y")
	kubectl("create", "serviceaccount", "a")
	contains(kubectl("create", "token", "a"), "dev-k8s.default.a.")
	contains(kubectl("get", "secret", "s", "-o", "jsonpath={.data.x}"), "eQ==")
	kubectl("label", "node", "n1", "x=y")
	kubectl("annotate", "node", "n1", "x=y")
	contains(kubectl("cordon", "n1"), "cordoned")
	contains(kubectl("drain", "n1", "--force"), "evicting pod default/web", "drained")
	contains(kubectl("get", "node", "n1", "-o", "jsonpath={.spec.unschedulable}"), "true")

	// A deletion waits for finalizers.
	kubectl("patch", "mp", "workers", "--type=merge", "-p", `{"metadata":{"finalizers":["x.example/y"]}}`)
	remove := command("delete", "mp", "workers", "--timeout=20s")
	if err := remove.Start(); err != nil {
		t.Fatal(err)
	}
	kubectl("wait", "mp/workers", "--for=jsonpath={.metadata.deletionTimestamp}", "--timeout=20s")
	deletion := command("wait", "mp/workers", "--for=delete", "--timeout=20s")
	if err := deletion.Start(); err != nil {
		t.Fatal(err)
	}
	kubectl("patch", "mp", "workers", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	if err := remove.Wait(); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := deletion.Wait(); err != nil {
		t.Errorf("wait for the deletion: %v", err)
	}
	contains(kubectl("delete", "nmp,node", "--all"), `"workers" deleted`, `"n1" deleted`)
	if out, err := command("apply", "--server-side", "-f", manifest).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "server-side apply") {
		t.Errorf("apply on the server: %v\n%s", err, out)
	}
}
