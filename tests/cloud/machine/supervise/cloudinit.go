package supervise

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	cloudInit    = "cloud-init"
	seedDir      = "/var/lib/cloud"
	outputLog    = "/var/log/cloud-init-output.log"
	userdataSize = 16 << 20 // Bytes, after decompression.
)

// Script returns the script in the user data. It decompresses the user data if necessary. cloud-init also accepts other
// formats than scripts. These are an error, because this package does not implement them. Without user data Script
// returns nil. https://docs.cloud-init.io/en/latest/explanation/format.html
func Script(userdata []byte) ([]byte, error) {
	if bytes.HasPrefix(userdata, []byte("\x1f\x8b")) {
		r, err := gzip.NewReader(bytes.NewReader(userdata))
		if err != nil {
			return nil, fmt.Errorf("unpack user data: %w", err)
		}
		if userdata, err = io.ReadAll(io.LimitReader(r, userdataSize+1)); err != nil {
			return nil, fmt.Errorf("unpack user data: %w", err)
		}
		if len(userdata) > userdataSize {
			return nil, errors.New("unpack user data: too large")
		}
	}
	if len(userdata) == 0 || bytes.HasPrefix(userdata, []byte("#!")) {
		return userdata, nil
	}
	line, _, _ := bytes.Cut(userdata, []byte("\n"))
	return nil,
		fmt.Errorf("user data that begins with %q is not run by these machines: only scripts that begin with #! are",
			line[:min(len(line), 60)])
}

// cloudInit runs the boot script like cloud-init's module scripts-user: as root, in /, with output to a log file and to
// the console. It reports whether the script succeeded.
func (m *Manager) cloudInit() (bool, error) {
	instance := filepath.Join(seedDir, "instances", m.InstanceID)
	path := filepath.Join(instance, "scripts", "part-001")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	if err := os.Symlink(instance, filepath.Join(seedDir, "instance")); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(instance, "user-data.txt"), m.Userdata, 0o600); err != nil {
		return false, err
	}
	script, err := Script(m.Userdata)
	if err != nil {
		return false, err
	}
	ok := true
	if len(script) > 0 {
		if err := os.WriteFile(path, script, 0o700); err != nil {
			return false, err
		}
		if ok, err = m.runScript(path); err != nil {
			return false, err
		}
	}
	finished := fmt.Sprintf("%s - finished\n", time.Now().UTC().Format(time.RFC1123Z))
	return ok, os.WriteFile(filepath.Join(instance, "boot-finished"), []byte(finished), 0o644)
}

func (m *Manager) runScript(path string) (bool, error) {
	out, err := os.OpenFile(outputLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return false, err
	}
	environment := m.environment()
	environment["INVOCATION_ID"] = newID()
	s := spec{Path: path, Argv: []string{path}, Environment: list(environment), Directory: "/", UMask: 0o022}
	p, ended, err := m.launch(cloudInit, s, out)
	if p == nil {
		return false, errors.Join(err, out.Close())
	}
	go func() {
		<-ended // Services that the script left running may hold it open.
		_ = out.Close()
	}()
	<-p.done
	switch {
	case err != nil:
		return false, fmt.Errorf("run %s: %w", path, err)
	case p.status != 0:
		how := "exit code " + strconv.Itoa(p.status.ExitStatus())
		if p.status.Signaled() {
			how = "signal " + signalName(p.status.Signal())
		}
		return false, fmt.Errorf("failed to run module scripts-user: the script ended with %s", how)
	}
	m.journal.write(cloudInit, p.pid, "the script ended well")
	return true, nil
}

// build runs the provisioning script and returns its exit code.
func (m *Manager) build() (int, error) {
	const path = "/tmp/provision"
	if err := os.WriteFile(path, m.Userdata, 0o700); err != nil {
		return 1, err
	}
	environment := m.environment()
	environment["HOME"] = "/root"
	p, ended, err := m.launch("build", spec{Path: path, Argv: []string{path}, Environment: list(environment),
		Directory: "/", UMask: 0o022}, nil)
	if p == nil {
		return 1, err
	}
	<-p.done
	m.shutdown("poweroff-force")
	<-ended
	if p.status.Signaled() {
		return 128 + int(p.status.Signal()), err
	}
	return p.status.ExitStatus(), err
}
