package lab

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// Register runs the commands that register an operator, in the stack's directory. They are the nth block of shell
// commands on a page of docs/start. Instead of tofu they run the CLI of the stack. This host is not in the shard's
// network, so Register leaves out commands that call the leader. It returns the setting `servers` of nstance-admin.
func (s *Stack) Register(t T, page string, n int, replacements ...string) string {
	t.Helper()
	commands, asks, _ := strings.Cut(strings.NewReplacer(replacements...).Replace(Commands(t, page, n)),
		"nstance-admin status\n")
	if strings.TrimSpace(asks) != "nstance-admin instance list" {
		t.Fatalf("%s does not end with a look at the shard: %s%s", page, commands, asks)
	}
	s.home = t.TempDir()
	if err := os.Symlink(s.options.TerraformBinary, filepath.Join(s.home, "tofu")); err != nil {
		t.Fatal(err)
	}
	s.Shell(t, commands+`nstance-admin context show --output json >"$HOME/settings"`)
	text, err := os.ReadFile(filepath.Join(s.home, "settings"))
	if err != nil {
		t.Fatal(err)
	}
	var shown struct {
		Settings []struct{ Setting, Value string }
	}
	if err := json.Unmarshal(text, &shown); err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, one := range shown.Settings {
		settings[one.Setting] = one.Value
	}
	if _, err := os.Stat(filepath.Join(settings["identity-dir"], "identity.crt")); err != nil {
		t.Fatal(err)
	}
	return settings["servers"]
}

// Commands returns the nth block of shell commands on a page of docs/start.
func Commands(t T, page string, n int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), "docs", "start", page))
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Split(string(text), "```sh\n")
	if len(found) <= n {
		t.Fatalf("%s has %d blocks of shell commands", page, len(found)-1)
	}
	commands, _, _ := strings.Cut(found[n], "```")
	return commands
}

// Shell runs shell commands in the stack's directory, as the user of Register, and returns their output. The commands
// find the stack's CLI as tofu, nstance-admin, and the programs in the directories of path.
func (s *Stack) Shell(t T, commands string, path ...string) string {
	t.Helper()
	programs, err := Build()
	if err != nil {
		t.Fatal(err)
	}
	path = slices.Concat([]string{s.home, filepath.Join(programs.dir, "bin")}, path, []string{os.Getenv("PATH")})
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", commands)
	cmd.Dir = s.options.TerraformDir
	cmd.Env = append(os.Environ(), "HOME="+s.home, "XDG_CONFIG_HOME=", "PATH="+strings.Join(path, ":"))
	for name, value := range s.options.EnvVars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	return string(out)
}
