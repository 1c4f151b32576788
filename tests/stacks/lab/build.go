package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nstance-kit/nstance/tests/cloud/machine"
)

// Programs are the programs and images of a stack. They are built once per test process.
type Programs struct {
	// ServerImage and AgentImage are directory trees made by images/packer/provision.sh. BadServerImage is like
	// ServerImage, but nstance-server cannot start.
	ServerImage, BadServerImage, AgentImage string

	dir string
}

var programs = sync.OnceValues(build)

// Root returns the root directory of the repository: the nearest parent of the working directory that has a go.mod.
// It panics if there is none.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	panic("lab: the working directory is outside the repository")
}

// Build builds the programs on the first call and returns them.
func Build() (Programs, error) { return programs() }

// Discard removes the files that Build created.
func Discard() error {
	p, err := programs()
	return errors.Join(err, os.RemoveAll(p.dir))
}

func build() (p Programs, err error) {
	if p.dir, err = os.MkdirTemp("", "nstance-stacks-"); err != nil {
		return p, err
	}
	ctx := context.Background()
	bin := filepath.Join(p.dir, "bin")
	if _, err := Run(ctx, "go", "build", "-tags", "grpcnotrace", "-o", bin+"/", "./services/cmd/nstance-server",
		"./services/cmd/nstance-agent", "./services/cmd/nstance-admin", "./terraform-provider-nstance"); err != nil {
		return p, err
	}
	if err = p.buildImages(ctx, bin, filepath.Join(p.dir, "images")); err != nil {
		return p, err
	}
	return p, nil
}

// CLIConfig returns the path of a CLI configuration with this repository's provider and the provider of a cloud. The
// parameter source is the option of scripts/tf-env.sh for the cloud's provider: --mirror or --google.
func (p Programs) CLIConfig(source string) (path string, err error) {
	return Run(context.Background(), "scripts/tf-env.sh", source, filepath.Join(p.dir, "bin",
		"terraform-provider-nstance"), filepath.Join(p.dir, "terraform.rc"))
}

// buildImages builds the images of servers and agents with the script that Packer runs. It also builds a faulty image
// on which nstance-server cannot start.
func (p *Programs) buildImages(ctx context.Context, bin, dir string) (err error) {
	runner, err := machine.New(machine.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	base := filepath.Join(dir, "base")
	if err := os.CopyFS(filepath.Join(base, "srv", "provision"), os.DirFS(filepath.Join(Root(), "images",
		"packer"))); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(base, "srv", "provision", "bin"), os.DirFS(bin)); err != nil {
		return err
	}
	build := func(role string) (string, error) {
		return runner.Build(ctx, base, "#!/bin/sh\nexec sh /srv/provision/provision.sh\n", map[string]string{
			"NSTANCE_ROLE": role, "NSTANCE_PLATFORM": "none", "NSTANCE_BINARY": "/srv/provision/bin/nstance-" + role,
		})
	}
	if p.ServerImage, err = build("server"); err != nil {
		return err
	}
	const spoil = "#!/bin/sh\nexec sed -i '/^ExecStart=/s/$/ --unknown-flag/' " +
		"/etc/systemd/system/nstance-server.service\n"
	if p.BadServerImage, err = runner.Build(ctx, p.ServerImage, spoil, nil); err != nil {
		return err
	}
	p.AgentImage, err = build("agent")
	return err
}

// Tofu returns the path of tofu, which scripts/tool.sh builds if it is not on PATH.
func Tofu(ctx context.Context) (path string, err error) { return Run(ctx, "scripts/tool.sh", "tofu") }

// Run runs a command in the repository and returns its output without the last line break.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	if strings.ContainsRune(name, '/') && !filepath.IsAbs(name) {
		name = filepath.Join(Root(), name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = Root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
