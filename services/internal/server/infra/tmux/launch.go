package tmux

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/tmux"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

const (
	consoleLog      = "console.log"
	userdataMax     = 1 << 20
	loopback        = "127.0.0.1"
	gzipMagic       = "\x1f\x8b"
	environmentFile = "agent.env"
	bootMark        = "booted"
)

// userdata is a boot script and its interpreter.
type userdata struct {
	script      []byte
	interpreter []string // from the script's first line
}

// parseUserdata decodes userdata in the same way as clouds and cloud-init: plain or gzip, with or without base64.
func parseUserdata(raw []byte) (u userdata, err error) {
	text := raw
	if !bytes.HasPrefix(text, []byte("#")) && !bytes.HasPrefix(text, []byte(gzipMagic)) {
		if text, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw))); err != nil {
			return u, errors.New("userdata is neither a script (#!) nor base64 nor gzip")
		}
	}
	if bytes.HasPrefix(text, []byte(gzipMagic)) {
		r, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return u, fmt.Errorf("userdata: %w", err)
		}
		if text, err = io.ReadAll(io.LimitReader(r, userdataMax+1)); err != nil {
			return u, fmt.Errorf("userdata: %w", err)
		}
	}
	if len(text) > userdataMax {
		return u, fmt.Errorf("userdata is longer than %d bytes", userdataMax)
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	shebang, ok := strings.CutPrefix(strings.TrimSuffix(string(first), "\r"), "#!")
	if !ok {
		return u, errors.New("userdata is no script: the tmux provider runs what starts with #! only")
	}
	// Like execve(2), pass at most one argument to the interpreter.
	u.interpreter = strings.SplitN(strings.TrimSpace(shebang), " ", 2)
	if !filepath.IsAbs(u.interpreter[0]) {
		return u, fmt.Errorf("userdata: the interpreter %q is no absolute path", u.interpreter[0])
	}
	u.script = text
	return u, nil
}

// machineEnv returns the environment of a VM's boot script. The agent gets all of these variables except NSTANCE_VM_DIR
// and NSTANCE_ENV_FILE. The args may add variables.
func machineEnv(dir string, d document, args map[string]any) (map[string]string, error) {
	env := map[string]string{
		"NSTANCE_VM_DIR":            dir,
		"NSTANCE_ENV_FILE":          filepath.Join(dir, environmentFile),
		"NSTANCE_INSTANCE_ID":       d.Instance.String(),
		"NSTANCE_INSTANCE_KIND":     d.Instance.Prefix(),
		"NSTANCE_INSTANCE_HOSTNAME": d.Hostname,
		"NSTANCE_INSTANCE_FQDN":     d.Hostname,
		"NSTANCE_INSTANCE_IPV4":     loopback,
		"NSTANCE_IDENTITY_DIR":      filepath.Join(dir, "identity"),
		"NSTANCE_KEYS_DIR":          filepath.Join(dir, "keys"),
		"NSTANCE_RECV_DIR":          filepath.Join(dir, "recv"),
		"NSTANCE_PROVIDER":          "none",
		// Here, the agent's process is the whole machine. So when the agent gets SIGTERM, the machine counts as
		// powering off.
		"NSTANCE_POWER_OFF_ON_SIGTERM": "true",
	}
	extra, problems := contract.ParseArgs(args)
	if len(problems) > 0 {
		return nil, fmt.Errorf("args: %v", problems)
	}
	maps.Copy(env, extra)
	return env, nil
}

// bootScript returns the script that the window runs. The script does the work of cloud-init and then execs the agent,
// so that the window's process is the machine.
func bootScript(dir string, env map[string]string, u *userdata, run string) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/bin/sh")
	line("# Made by the tmux provider of nstance-server: boots one machine, once.")
	line("set -u")
	line("cd %s || exit 1", quote(dir))
	// A machine starts only once, even if a repeated create call opens a second window.
	line("mkdir %s 2>/dev/null || { echo 'nstance: this machine was started before'; exit 1; }", bootMark)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		line("export %s=%s", name, quote(env[name]))
	}
	if u != nil {
		line("echo 'nstance: running userdata'")
		for _, arg := range u.interpreter {
			fmt.Fprintf(&b, "%s ", quote(arg))
		}
		line(`%s || { echo "nstance: userdata failed with status $?: no agent is started"; exit 1; }`,
			quote(filepath.Join(dir, "userdata")))
	}
	// Read the agent's variables from a file, as systemd's EnvironmentFile= does on a real VM.
	line(`if [ -r "$NSTANCE_ENV_FILE" ]; then set -a; . "$NSTANCE_ENV_FILE"; set +a; fi`)
	line("unset NSTANCE_VM_DIR NSTANCE_ENV_FILE # the boot's alone")
	line("echo 'nstance: starting the agent'")
	line("%s", run)
	return []byte(b.String())
}

// prepare creates, in the VM's directory, the files that the VM's window runs. Repeated calls are safe. It fails with a
// refusal if the request is invalid.
func (p *Provider) prepare(d document, req infra.CreateRequest) error {
	dir := p.state.vmDir(d.Instance)
	env, err := machineEnv(dir, d, req.Args)
	if err != nil {
		return &refusal{infra.Invalid, err}
	}
	var script *userdata
	if len(bytes.TrimSpace(req.Userdata)) > 0 {
		u, err := parseUserdata(req.Userdata)
		if err != nil {
			return &refusal{infra.Invalid, err}
		}
		script = &u
	}
	run := "exec " + quote(p.options.Agent)
	if p.options.Command != "" {
		run = fmt.Sprintf("cd %s && exec sh -c %s", quote(p.workDir), quote(p.options.Command))
	}
	switch req.Sleep {
	case "":
	case config.SparesSuspended:
		run = "(" + run + ")\nexit $?" // the window's process waits: see sleep.go
	default:
		return &refusal{infra.Invalid, fmt.Errorf("VMs cannot sleep as %q", req.Sleep)}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if script != nil {
		if err := os.WriteFile(filepath.Join(dir, "userdata"), script.script, 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "boot.sh"), bootScript(dir, env, script, run), 0o600); err != nil {
		return err
	}
	// Create the log here with mode 0600. The process that writes the log opens it later, with the user's umask.
	return os.WriteFile(filepath.Join(dir, consoleLog), nil, 0o600)
}

func (p *Provider) nodePath(id ident.ID) string {
	return filepath.Join(p.options.NodesDir, id.String()+".json")
}

// writeNode registers the VM as a ready Node of dev-k8s, if NodesDir is set. The Node has the fields that dev-k8s and
// the operator read.
// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
func (p *Provider) writeNode(d document) error {
	if p.options.NodesDir == "" {
		return nil
	}
	if err := os.MkdirAll(p.options.NodesDir, 0o755); err != nil {
		return err
	}
	at := d.LaunchedAt.Truncate(time.Second) // Kubernetes times have a resolution of one second
	name := d.Instance.String()
	type object = map[string]any
	n := object{"apiVersion": "v1", "kind": "Node",
		"metadata": object{"name": name, "uid": d.Instance.Storage()[:36], "creationTimestamp": at,
			"labels": object{"kubernetes.io/hostname": d.Hostname}},
		"spec": object{"providerID": providerID(d.Instance)},
		"status": object{
			"conditions": []object{{"type": "Ready", "status": "True", "reason": "KubeletReady",
				"lastHeartbeatTime": at, "lastTransitionTime": at}},
			"addresses": []object{{"type": "InternalIP", "address": loopback},
				{"type": "Hostname", "address": d.Hostname}},
		}}
	raw, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(p.nodePath(d.Instance), append(raw, '\n'), 0o644)
}

// removeNode removes the Node that writeNode wrote.
func (p *Provider) removeNode(id ident.ID) error {
	if p.options.NodesDir == "" {
		return nil
	}
	if err := os.Remove(p.nodePath(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
