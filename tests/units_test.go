package tests

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestUnitsRestartWithoutLimit checks every systemd unit of the repository: those of images, boot scripts, modules and
// documents. A unit that systemd restarts must say how often. systemd's default is five starts in ten seconds, after
// which it leaves the unit stopped for good.
func TestUnitsRestartWithoutLimit(t *testing.T) {
	list, err := exec.Command("git", "-C", "..", "grep", "-lF", "[Unit]", "--", ":!*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range strings.Fields(string(list)) {
		text, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, unit := range strings.Split(string(text), "[Unit]")[1:] {
			if !strings.Contains(unit, "\nRestart=") {
				continue
			}
			checked++
			head, _, _ := strings.Cut(unit, "[Service]")
			if !strings.Contains(head, "\nStartLimitIntervalSec=") {
				t.Errorf("%s: the unit with %q has Restart= without StartLimitIntervalSec= in [Unit]", name,
					strings.TrimSpace(strings.SplitN(strings.TrimSpace(unit), "\n", 2)[0]))
			}
		}
	}
	if checked < 6 {
		t.Errorf("%d units, want at least those of the images, the boot scripts and the page", checked)
	}
}
