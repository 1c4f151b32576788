package delivery

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// testTerraform applies the module kubernetes/operator and installs the chart with the module's output: the Helm
// values, and the ConfigMap that Flux reads. The module's input has two shards. One has the attributes of the output
// `shard` of aws/shard. The other has only the two attributes that the operator needs.
func (i *installed) testTerraform(t *testing.T) {
	const namespace = "terraform"
	terraform, err := exec.LookPath("terraform")
	if err != nil {
		terraform = tool(t, "tofu")
	}
	module, err := filepath.Abs("../../modules/kubernetes/operator")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
	root := map[string]any{
		"module": map[string]any{"operator": map[string]any{"source": module, "cluster_id": "example",
			"ca_certificate_pem": pem, "shards": map[string]any{
				"west-a": map[string]any{"id": "west-a", "zone": "us-west-2a", "registration_addr": "10.0.0.1:8992",
					"operator_addr": "10.0.0.1:8993", "agent_addr": "10.0.0.1:8994"},
				"west-b": map[string]any{"registration_addr": "[fd00::1]:8992", "operator_addr": "[fd00::1]:8993"}}}},
		"output": map[string]any{"operator_values": map[string]any{"value": "${module.operator.operator_values}"}},
	}
	text, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.tf.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, nil, terraform, "-chdir="+dir, "init", "-input=false")
	output(t, nil, terraform, "-chdir="+dir, "apply", "-input=false", "-auto-approve")
	var values struct {
		Helm      string `json:"helm_values"`
		ConfigMap string `json:"config_map"`
	}
	if err := json.Unmarshal(output(t, nil, terraform, "-chdir="+dir, "output", "-json", "operator_values"),
		&values); err != nil {
		t.Fatal(err)
	}
	i.namespace(t, namespace)
	i.namespace(t, "nstance-system")
	manifest, file := filepath.Join(dir, "manifest.yaml"), filepath.Join(dir, "values.yaml")
	if err := errors.Join(os.WriteFile(manifest, []byte(values.ConfigMap), 0o600),
		os.WriteFile(file, []byte(values.Helm), 0o600)); err != nil {
		t.Fatal(err)
	}
	output(t, i.env, "kubectl", "apply", "--server-side", "--validate=strict", "-f", manifest)
	read := func(at, name, key string) string {
		object := &corev1.ConfigMap{}
		if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: at, Name: name}, object); err != nil {
			t.Fatal(err)
		}
		return object.Data[key]
	}
	if inside := read("nstance-system", "nstance-operator-values", "values.yaml"); inside != values.Helm {
		t.Errorf("the manifest has the values %q", inside)
	}
	output(t, i.env, i.helm, "install", "nstance-operator", chart, "--namespace", namespace, "-f", file, "--set",
		"crds.install=false,image.registry=registry.example.com")
	i.checkPod(t, namespace, "nstance-operator")
	var config map[string]any
	if err := yaml.Unmarshal([]byte(read(namespace, "nstance-operator-config", "config.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"cluster_id": "example", "tenant": "default", "shards": map[string]any{
		"west-a": map[string]any{"registration_addr": "10.0.0.1:8992", "operator_addr": "10.0.0.1:8993"},
		"west-b": map[string]any{"registration_addr": "[fd00::1]:8992", "operator_addr": "[fd00::1]:8993"}}}
	if diff, ca := cmp.Diff(want, config), read(namespace, "nstance-cluster-ca", "ca.crt"); diff != "" || ca != pem {
		t.Errorf("configuration: %s; CA %q", diff, ca)
	}
	output(t, i.env, i.helm, "uninstall", "nstance-operator", "--namespace", namespace)
}
