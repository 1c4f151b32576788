package release

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/tests/cloud/machine"
)

// trial is a script for a machine with neither Go nor tofu nor terraform. UP and DOWN stand for commands of
// docs/start/install.md.
const trial = `#!/bin/sh
set -eux
PATH=/usr/bin:/bin:/usr/sbin:/sbin
if command -v go tofu terraform; then exit 1; fi
mkdir /srv/empty
cd /srv/empty
UP
ls -l
. temp/env
nstance-admin instance list
kill -9 "$(pgrep -o -f "$PWD/temp/bin/nstance-agent")"
while ! nstance-admin events --since 5m | grep -q lost; do sleep 0.1; done
nstance-admin group wait workers
./nstance-dev up
check_gone() {
	if ls -d temp || pgrep -f "$PWD/temp" || tmux has-session -t nstance-dev-agents; then exit 1; fi
}
DOWN
check_gone

# The same with tofu.
PATH=$PATH:/srv/tofu
./nstance-dev demo
./nstance-dev up
test -e temp/terraform/terraform.tfstate
./nstance-dev down
check_gone
`

// testTrial runs a cluster from the archive nstance-dev on a machine without Go and without a network.
func (d *dist) testTrial(t *testing.T) {
	page := string(read(t, filepath.Join(root, "docs/start/install.md")))
	_, section, _ := strings.Cut(page, "\n## Try it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```")
	if len(blocks) != 5 {
		t.Fatalf("%d blocks of commands on the page, want 2", len(blocks)/2)
	}
	command := strings.NewReplacer("sh\n", "", "curl -fsSLO https://github.com/nstance-kit/nstance/releases/download/"+
		version+"/", "cp -t . /srv/", "amd64", runtime.GOARCH)
	up, down := command.Replace(blocks[1]), command.Replace(blocks[3])
	if !strings.Contains(up, "cp -t . /srv/nstance-dev_") || !strings.Contains(down, "./nstance-dev down") {
		t.Fatalf("the commands of the page are\n%s%s", up, down)
	}
	base := t.TempDir()
	archive := "nstance-dev_" + number + "_linux_" + runtime.GOARCH + ".tar.gz"
	for name, content := range map[string][]byte{archive: read(t, filepath.Join(d.dir, archive)),
		"tofu/tofu": read(t, tool(t, "tofu"))} {
		path := filepath.Join(base, "srv", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runner, err := machine.New(machine.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runner.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := runner.Build(t.Context(), base, strings.NewReplacer("UP\n", up, "DOWN\n", down).Replace(trial),
		nil); err != nil {
		t.Fatal(err)
	}
	t.Log(runner.Logs("build-1"))
}
