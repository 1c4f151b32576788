package acctest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

// TestAccExamplesOfDocs checks that the examples in the documentation are valid.
func TestAccExamplesOfDocs(t *testing.T) {
	acctest.Acceptance(t)
	const root = "../../examples"
	files, err := filepath.Glob(root + "/*/*/*.tf")
	if err != nil || len(files) != 18 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	config, err := os.ReadFile("../../../examples/config-tmux.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, root+"/provider/provider.tf") {
		name := strings.TrimPrefix(filepath.Dir(file), root+"/")
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cli := acctest.NewCLI(t, string(content))
		if name == "provider" {
			cli.Write(t, "versions.tf", "")
		}
		for _, document := range []string{"us-west-2a.jsonc", "us-west-2b.jsonc", "common.jsonc"} {
			cli.Write(t, document, string(config))
		}
		if out, err := cli.Try("validate"); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if out, err := cli.Try("fmt", "-check"); err != nil {
			t.Errorf("%s is not formatted: %s", name, out)
		}
	}
}
