package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/machine/boot"
	"github.com/nstance-kit/nstance/tests/cloud/machine/rootfs"
)

// Build runs a provisioning script as root on a copy of the directory tree "base". It returns the directory of the
// resulting tree. The script must begin with #!. It has no network access. Everything that the script writes becomes
// part of the tree, except files below /dev, /proc, /run, /sys and /tmp. If the script fails, the error contains its
// output.
func (r *Runner) Build(ctx context.Context, base, script string, environment map[string]string) (string, error) {
	r.mu.Lock()
	r.builds++
	name := fmt.Sprintf("build-%d", r.builds)
	r.mu.Unlock()
	tree := filepath.Join(r.Dir, "images", name)
	work := filepath.Join(r.Dir, "images", name+".work")
	for _, dir := range []string{tree, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", fmt.Errorf("build image: %w", err)
		}
	}
	defer os.RemoveAll(work) //nolint:errcheck // Close removes its like
	if base != "" {
		if out, err := exec.CommandContext(ctx, "cp", "-a", base+"/.", tree).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build image: copy the base: %w: %s", err, out)
		}
	}
	if err := r.provision(ctx, name, tree, work, script, environment); err != nil {
		return "", fmt.Errorf("build image: %w", errors.Join(err, os.RemoveAll(tree)))
	}
	return tree, nil
}

func (r *Runner) provision(ctx context.Context, name, tree, work, script string, environment map[string]string) error {
	ns, err := newNetns()
	if err != nil {
		return err
	}
	defer ns.close() //nolint:errcheck // a file descriptor of which only the closing matters
	if err := ns.ip("link set lo up"); err != nil {
		return err
	}
	log, err := os.OpenFile(r.logPath(name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	const machineID = "00000000000000000000000000000000"
	files := baseFiles("build", machineID)
	files["etc/hosts"] = "127.0.0.1 localhost\n"
	cmd, _, release, err := r.launch(boot.Config{
		Tree: rootfs.Tree{Upper: tree, Work: work, Files: files}, Hostname: "build",
		InstanceID: name, Userdata: []byte(script), Build: true, Environment: environment,
	}, ns, log)
	if err != nil {
		return err
	}
	defer release()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })() // The process may have ended already.
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("the script failed: %w\n%s", err, strings.TrimSpace(r.Logs(name)))
	}
	return nil
}
