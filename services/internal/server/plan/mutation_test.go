//go:build mutation

package plan

import (
	"os/exec"
	"strings"
	"testing"
)

// TestMutants runs the tests of the choice of a size with each mutant and expects a failure.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			overlay, err := m.edit.WriteOverlay(".", t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-short", "-run",
				"^(TestCurves|TestCurvesSettle|TestScale)$", ".")
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Error("no test failed")
			case !strings.Contains(string(out), "--- FAIL: Test"):
				t.Errorf("the tests did not run: %s", out)
			default:
				for line := range strings.Lines(string(out)) {
					if strings.HasPrefix(line, "--- FAIL") {
						t.Logf("found by %s", strings.TrimSpace(line))
					}
				}
			}
		})
	}
}
