//go:build mutation

package election

import (
	"os/exec"
	"strings"
	"testing"
)

// TestMutants runs the tests of this package with each mutant and expects a failure. The model and the simulation must
// find all mutants except those about writes with an unknown result. The latter must be found by other tests, because
// the model and the simulation would need luck to find them.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			overlay, err := m.edit.WriteOverlay(".", t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			var out []byte
			for _, effort := range []string{"-short", "-short=false"} { // the short mode finds most mutants
				cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", effort,
					"-failfast",
					"-timeout", "280s",
					"-run", "^(TestUnsettled.*|TestHeirModel|TestHeirSimulation|TestHeirTimes|TestHeirEnds)$", ".")
				if out, err = cmd.CombinedOutput(); err != nil {
					break
				}
			}
			switch {
			case err == nil:
				t.Error("no test failed")
			case !strings.Contains(string(out), "--- FAIL: Test"):
				t.Errorf("the tests did not run: %s", out)
			default:
				for line := range strings.Lines(string(out)) {
					if strings.Contains(line, "_test.go") && !strings.Contains(line, "all stories of") {
						t.Logf("found: %s", strings.TrimSpace(line))
						break
					}
				}
			}
		})
	}
}
