package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root returns the repository's root directory. It searches upwards from the working directory, which `go test` sets to
// the package's directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "tool.sh")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no directory above this one has scripts/tool.sh")
		}
		dir = parent
	}
}

// Tool returns the path of a pinned program. It builds the program first if necessary, which takes minutes.
func Tool(ctx context.Context, name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return output(ctx, root, filepath.Join(root, "scripts", "tool.sh"), name)
}

// ModuleDir returns the directory of a module in Go's module cache. The module has the version that the tool is built
// with.
func ModuleDir(ctx context.Context, tool, module string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return output(ctx, filepath.Join(root, "tests", "tools", tool), "go", "list", "-m", "-f", "{{.Dir}}", module)
}

func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	text := strings.TrimSpace(string(out))
	if err == nil && text == "" {
		err = errors.New("it printed nothing")
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return text, nil
}

// Prepare builds the programs that a cluster with these options needs, and does every other step that needs a network.
func Prepare(ctx context.Context, o Options) error {
	for name, wanted := range map[string]bool{"etcd": true, "kube-apiserver": true,
		"kube-controller-manager": o.ControllerManager, "kube-scheduler": o.Scheduler,
		"kwok": o.Kwok, "capi-core": o.CAPI} {
		if !wanted {
			continue
		}
		if _, err := Tool(ctx, name); err != nil {
			return err
		}
	}
	for tool, module := range map[string]string{"kwok": "sigs.k8s.io/kwok", "cluster-api": "sigs.k8s.io/cluster-api"} {
		if _, err := ModuleDir(ctx, tool, module); err != nil {
			return err
		}
	}
	return nil
}
