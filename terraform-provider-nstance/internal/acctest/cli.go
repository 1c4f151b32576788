package acctest

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
)

// CLI runs Terraform or OpenTofu in its own directory with the provider's local binary.
type CLI struct {
	Dir    string
	binary string
	env    []string
}

// workspace creates the directory that the tests of a package share. It holds the provider's binary and a CLI
// configuration that prevents network access.
var workspace = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "nstance-provider-") })

var provided = sync.OnceValues(func() (string, error) {
	dir, err := workspace()
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", dir+"/",
		"github.com/nstance-kit/nstance/terraform-provider-nstance").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the provider: %w\n%s", err, out)
	}
	return filepath.Join(dir, "terraform-provider-nstance"), nil
})

// Main runs a package's tests.
func Main(m *testing.M) {
	if os.Getenv(resource.EnvTfAcc) == "" {
		os.Exit(m.Run())
	}
	code := 1
	dir, err := workspace()
	if err == nil {
		err = hermeticCLI(dir)
	}
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// hermeticCLI configures the CLIs to install providers only from an empty directory, so that they download nothing.
func hermeticCLI(dir string) error {
	mirror, file := filepath.Join(dir, "mirror"), filepath.Join(dir, "cli.rc")
	text := fmt.Sprintf(
		"disable_checkpoint = true\nprovider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", mirror)
	return errors.Join(os.Mkdir(mirror, 0o700), os.WriteFile(file, []byte(text), 0o600),
		os.Setenv("TF_CLI_CONFIG_FILE", file))
}

// Acceptance skips a test if the environment variable TF_ACC is not set. The plugin framework does the same in its
// acceptance tests.
func Acceptance(t *testing.T) {
	t.Helper()
	if os.Getenv(resource.EnvTfAcc) == "" {
		t.Skipf("Acceptance tests skipped unless env '%s' set", resource.EnvTfAcc)
	}
}

// NewCLI returns a CLI in a new directory whose main.tf has the content `main`.
func NewCLI(t *testing.T, main string) *CLI {
	t.Helper()
	path, err := provided()
	if err != nil {
		t.Fatal(err)
	}
	c := &CLI{Dir: t.TempDir()}
	c.Write(t, "versions.tf", `terraform {
  required_providers {
    nstance = { source = "registry.terraform.io/nstance-kit/nstance" }
  }
}
`)
	c.Write(t, "main.tf", main)
	c.use(t, path)
	return c
}

// NewCLIOf returns a CLI in a copy of dir, a directory with a configuration.
func NewCLIOf(t *testing.T, dir string) *CLI {
	t.Helper()
	c := NewCLI(t, "")
	c.Dir = filepath.Join(c.Dir, "copy")
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root(t), dir, "*.t*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no configuration in %s: %v", dir, err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path) // follows a symbolic link
		if err != nil {
			t.Fatal(err)
		}
		c.Write(t, filepath.Base(path), string(content))
	}
	return c
}

func (c *CLI) use(t *testing.T, provider string) {
	t.Helper()
	var err error
	if c.binary = os.Getenv("TF_ACC_TERRAFORM_PATH"); c.binary == "" {
		if c.binary, err = exec.LookPath("terraform"); err != nil {
			t.Fatal("set TF_ACC_TERRAFORM_PATH to terraform or tofu: ", err)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root(t), "scripts/tf-env.sh"), provider,
		filepath.Join(c.Dir, "cli.rc")).CombinedOutput()
	if err != nil {
		t.Fatalf("tf-env.sh: %v\n%s", err, out)
	}
	c.env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(c.Dir, "cli.rc"), "TF_IN_AUTOMATION=1",
		"CHECKPOINT_DISABLE=1", "TF_CLI_ARGS=-no-color")
	c.env = slices.DeleteFunc(c.env, func(s string) bool {
		return strings.HasPrefix(s, "TF_ACC") || strings.HasPrefix(s, "TF_REATTACH")
	})
}

// Write writes a file in the working directory.
func (c *CLI) Write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Setenv sets an environment variable for the CLI.
func (c *CLI) Setenv(name, value string) { c.env = append(c.env, name+"="+value) }

// Try runs one command and returns its combined output.
func (c *CLI) Try(args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), c.binary, args...)
	cmd.Dir, cmd.Env = c.Dir, c.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// Run is like Try, but fails the test if the command fails.
func (c *CLI) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.Try(args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(c.binary), strings.Join(args, " "), err, out)
	}
	return out
}

// Texts returns the contents of the files in the working directory that could contain a secret. It unpacks plans, and
// skips configurations and the CLI's own files.
func (c *CLI) Texts(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(c.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if slices.Contains([]string{".tf", ".rc"}, filepath.Ext(name)) {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(content)
		if strings.HasPrefix(out[name], "PK") {
			out[name] = unzip(t, path)
		}
	}
	return out
}

// unzip returns the concatenated contents of all files in an archive.
func unzip(t testing.TB, path string) string {
	t.Helper()
	archive, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = archive.Close() }()
	var out strings.Builder
	for _, file := range archive.File {
		content, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&out, content); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
