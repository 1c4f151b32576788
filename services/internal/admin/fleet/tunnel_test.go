package fleet_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// needs returns the path of a program. CI installs it; other machines may lack it.
func needs(t *testing.T, program, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + program)
	}
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("%s is not installed: apt-get install %s", program, pkg)
		}
		t.Fatal(err)
	}
	return path
}

// freePort returns a port that nothing uses.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// runs starts a program that ends with the test, and waits until it listens.
func runs(t *testing.T, addr, path string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s: %v", path, err)
		default:
		}
	}
	t.Fatalf("%s does not listen at %s", path, addr)
}

// through returns the error of a call of the shard "a" at an address, through a way; nil: it answered.
func through(t *testing.T, dir, server, way string) *fleet.Error {
	t.Helper()
	servers, err := endpoints.Parse("a=" + server)
	if err != nil {
		t.Fatal(err)
	}
	via, err := tunnel.Parse("a=" + way)
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Options{Servers: servers, Via: via, IdentityDir: dir, Timeout: time.Minute,
		Now: fleettest.Clock, Rand: fleettest.Rand(9)})
	defer f.Close()
	return fleet.Call(t.Context(), f, []string{"a"}, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})[0].Err
}

// wants fails the test unless an error has a message and a hint.
func wants(t *testing.T, err *fleet.Error, message, hint string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Message, message) || !strings.Contains(err.Hint, hint) {
		t.Errorf("%+v, want %q and %q", err, message, hint)
	}
}

// TestViaForwardedPort calls a leader through ports that a real socat forwards. The name in the server's certificate is
// that of the address in --servers, which cannot be reached.
func TestViaForwardedPort(t *testing.T) {
	socat := needs(t, "socat", "socat")
	c := fleettest.NewCluster(t, "example")
	dir := c.Identity(t, "prod", fleettest.Now, month)
	const leader = "leader.example.invalid:8993"
	forward := func(to string) string {
		port := freePort(t)
		runs(t, "127.0.0.1:"+port, socat, "TCP-LISTEN:"+port+",bind=127.0.0.1,fork,reuseaddr", "TCP:"+to)
		return "127.0.0.1:" + port
	}
	own, _ := c.Serve(t, "a", workers(), "leader.example.invalid")
	if err := through(t, dir, leader, forward(own)); err != nil {
		t.Error(err)
	}
	other, _ := c.Serve(t, "b", workers(), "leader.example.invalid")
	wants(t, through(t, dir, leader, forward(other)), "a server of shard b, want shard a, via 127.0.0.1:",
		"check --via")
	standby, _ := c.Serve(t, "a", workers(), "standby.example.invalid")
	wants(t, through(t, dir, leader, forward(standby)),
		"leader.example.invalid:8993: x509: certificate is valid for standby.example.invalid", "check --via")
	foreign, _ := fleettest.NewCluster(t, "other").Serve(t, "a", workers(), "leader.example.invalid")
	wants(t, through(t, dir, leader, forward(foreign)), "the server's certificate is not from the CA", "right cluster")
	wants(t, through(t, dir, leader, forward("127.0.0.1:1")), ", via 127.0.0.1:", "")
	wants(t, through(t, dir, leader, "127.0.0.1:1"), "via 127.0.0.1:1: dial tcp", "forwards this port")
}

// sshServer starts a real sshd of this user that accepts one key, and writes a configuration of ssh with the hosts
// "bastion" and, without the key, "stranger". The ssh on PATH uses it. sshServer returns a function that reads the log.
func sshServer(t *testing.T) (log func() string) {
	t.Helper()
	sshd, ssh, keygen := needs(t, "sshd", "openssh-server"), needs(t, "ssh", "openssh-client"),
		needs(t, "ssh-keygen", "openssh-client")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	// sshd refuses keys in a directory that others may write, such as that of a test in /tmp, unless told otherwise.
	dir, port := t.TempDir(), freePort(t)
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"host", "user", "other"} {
		if out, err := exec.CommandContext(t.Context(), keygen, "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	file("authorized", read("user.pub"), 0o600)
	file("known", fmt.Sprintf("[127.0.0.1]:%s %s", port, read("host.pub")), 0o600)
	server := file("sshd_config", fmt.Sprintf(`Port %[2]s
ListenAddress 127.0.0.1
HostKey %[1]s/host
AuthorizedKeysFile %[1]s/authorized
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
LogLevel VERBOSE
`, dir, port), 0o600)
	client := file("ssh_config", fmt.Sprintf(`Host bastion stranger
  HostName 127.0.0.1
  Port %[2]s
  User %[3]s
  UserKnownHostsFile %[1]s/known
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  IdentitiesOnly yes
  IdentityAgent none
  BatchMode yes
Host bastion
  IdentityFile %[1]s/user
Host stranger
  IdentityFile %[1]s/other
`, dir, port, me.Username), 0o600)
	if me.Uid == "0" { // as root, sshd needs its directory of privilege separation
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runs(t, "127.0.0.1:"+port, sshd, "-D", "-f", server, "-E", filepath.Join(dir, "log"))
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	file("bin/ssh", fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", ssh, client), 0o700)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return func() string { return read("log") }
}

// TestViaSSH calls a leader through a real SSH server. The name in the server's certificate is that of the address in
// --servers.
func TestViaSSH(t *testing.T) {
	log := sshServer(t)
	c := fleettest.NewCluster(t, "example")
	dir := c.Identity(t, "prod", fleettest.Now, month)
	at := func(addr string) string { return strings.Replace(addr, "127.0.0.1", "localhost", 1) }
	own, _ := c.Serve(t, "a", workers(), "localhost")
	if err := through(t, dir, at(own), "ssh:bastion"); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log(), "Accepted publickey") {
		t.Errorf("nobody came through the SSH server:\n%s", log())
	}
	other, _ := c.Serve(t, "b", workers(), "localhost")
	wants(t, through(t, dir, at(other), "ssh:bastion"), "a server of shard b, want shard a, via ssh:bastion", "--via")
	wants(t, through(t, dir, own, "ssh:bastion"), "x509: ", "check --via")
	wants(t, through(t, dir, "localhost:1", "ssh:bastion"), "via ssh:bastion: ssh: exit status 255: ", "ssh HOST")
	wants(t, through(t, dir, at(own), "ssh:stranger"), "Permission denied (publickey)", "ssh HOST")
}
