package base_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/provider"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

func TestMain(m *testing.M) { acctest.Main(m) }

// state is the part of a state file that the tests read.
type state struct {
	Resources []struct {
		Type      string
		Instances []struct {
			SchemaVersion int64 `json:"schema_version"`
			Attributes    json.RawMessage
		}
	}
}

func readState(t *testing.T, path string) (s state) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestUpgradeEveryResource checks that every resource has the current schema version, and reads the states of earlier
// versions. The states are in testdata/v0. The state of a group is in this test, because a real one cannot be made
// without a server.
func TestUpgradeEveryResource(t *testing.T) {
	states := map[string]string{"nstance_group": `{"id": "dev-1/default/web", "name": "web", "shard": "dev-1",
		"tenant": "default", "template": "worker", "size": 3, "vars": {"greeting": "hello"}, "removed_attribute": 1}`}
	for _, r := range readState(t, "testdata/v0/state.json").Resources {
		if version := r.Instances[0].SchemaVersion; version != 0 {
			t.Errorf("the old state of %s has version %d", r.Type, version)
		}
		states[r.Type] = string(r.Instances[0].Attributes)
	}
	server, err := providerserver.NewProtocol6WithError(provider.New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for name, schema := range schemas.ResourceSchemas {
		if schema.Version != base.Version {
			t.Errorf("%s has schema version %d, want %d", name, schema.Version, base.Version)
		}
		text, ok := states[name]
		if name == "nstance_servers_ready" { // it did not exist in version 0
			continue
		}
		if !ok {
			t.Errorf("there is no old state of %s", name)
			continue
		}
		answer, err := server.UpgradeResourceState(t.Context(), &tfprotov6.UpgradeResourceStateRequest{TypeName: name,
			RawState: &tfprotov6.RawState{JSON: []byte(text)}})
		if err != nil || len(answer.Diagnostics) > 0 {
			t.Errorf("%s: %v, %+v", name, err, answer.Diagnostics)
			continue
		}
		if _, err := answer.UpgradedState.Unmarshal(schema.ValueType()); err != nil {
			t.Errorf("the upgraded state of %s: %v", name, err)
		}
	}
	answer, err := server.UpgradeResourceState(t.Context(), &tfprotov6.UpgradeResourceStateRequest{
		TypeName: "nstance_secret", RawState: &tfprotov6.RawState{JSON: []byte(`{"name": ["a"]}`)}})
	if err != nil || len(answer.Diagnostics) != 1 || !strings.Contains(answer.Diagnostics[0].Detail, "import") {
		t.Errorf("a state of another type: %v, %+v", err, answer)
	}
}

// TestAccUpgradeFromVersion0 plans and applies with the state and the bucket in testdata/v0. They were written by a
// provider whose schemas had no version.
func TestAccUpgradeFromVersion0(t *testing.T) {
	acctest.Acceptance(t)
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("testdata/v0", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	main := read("main.tf")
	cli := acctest.NewCLI(t, main)
	cli.Write(t, "key", read("key"))
	cli.Write(t, "terraform.tfstate", read("state.json"))
	if err := os.CopyFS(filepath.Join(cli.Dir, "bucket"), os.DirFS("testdata/v0/bucket")); err != nil {
		t.Fatal(err)
	}
	if out := cli.Run(t, "plan"); !strings.Contains(out, "No changes.") {
		t.Errorf("the plan of an unchanged configuration:\n%s", out)
	}
	changed := strings.NewReplacer("value_wo_version = 1", "value_wo_version = 2",
		"force_destroy = true", "force_destroy = false", `health_check_interval = "5s"`, `health_check_interval = "6s"`)
	cli.Write(t, "main.tf", changed.Replace(main))
	if out := cli.Run(t, "apply", "-auto-approve"); !strings.Contains(out, "0 added, 3 changed, 0 destroyed") {
		t.Errorf("the apply of three changes:\n%s", out)
	}
	for _, r := range readState(t, filepath.Join(cli.Dir, "terraform.tfstate")).Resources {
		if version := r.Instances[0].SchemaVersion; version != base.Version {
			t.Errorf("after apply, the state of %s has version %d", r.Type, version)
		}
	}
}
