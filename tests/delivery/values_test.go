package delivery

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestValuesFromTerraform applies the module kubernetes/operator, and gives its output to the chart. The attributes of
// the shards are those of the output `shard` of the module aws/shard, of which the operator needs two.
func TestValuesFromTerraform(t *testing.T) {
	tool(t, "helm") // Skips a short run.
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
	var manifest unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(values.ConfigMap), &manifest.Object); err != nil {
		t.Fatal(err)
	}
	if inside := field(manifest, "data", "values.yaml"); inside != values.Helm || manifest.GetKind() != "ConfigMap" ||
		manifest.GetName() != "nstance-operator-values" || manifest.GetNamespace() != "nstance-system" {
		t.Errorf("manifest %v", manifest.Object)
	}
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, []byte(values.Helm), 0o600); err != nil {
		t.Fatal(err)
	}
	found := map[string]any{}
	for _, object := range template(t, "-f", file) {
		if object.GetKind() == "ConfigMap" {
			for key, text := range field(object, "data").(map[string]any) {
				found[key] = text
			}
		}
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(found["config.yaml"].(string)), &config); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"cluster_id": "example", "tenant": "default", "shards": map[string]any{
		"west-a": map[string]any{"registration_addr": "10.0.0.1:8992", "operator_addr": "10.0.0.1:8993"},
		"west-b": map[string]any{"registration_addr": "[fd00::1]:8992", "operator_addr": "[fd00::1]:8993"}}}
	if diff := cmp.Diff(want, config); diff != "" || found["ca.crt"] != pem {
		t.Errorf("configuration: %s; CA %q", diff, found["ca.crt"])
	}
}
