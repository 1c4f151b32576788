package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
	testlibvirtd "github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

// TestServerVM makes a VM for a server with modules/libvirt/servers and a complete Debian. The server gets its secrets
// from a CD-ROM, leads, and takes the leader's address. The server has no libvirt host that could run VMs, so the group
// is empty.
func TestServerVM(t *testing.T) {
	if *debianFlag == "" {
		t.Log("run by hand, as scripts/libvirt.sh says: without hardware support, Debian boots for minutes")
		return
	}
	daemon := testlibvirtd.StartInNetwork(t)
	runShard(t, "scripts/libvirt.sh", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Minute, errors.New("timeout after 20 minutes"))
		defer cancel()
		machines := &libvirtd.Machines{}
		defer machines.Close()
		stack.Network = machines
		if _, err := stack.StartStore(ctx); err != nil {
			return err
		}
		shard := &libvirtShard{t: t, daemon: daemon, stack: stack}
		if err := shard.configureEmpty(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := shard.makeServerVM(); err != nil {
			return err
		}
		address := net.JoinHostPort(machines.Host(local.Leader), strconv.Itoa(stack.Ports.Health))
		if err := awaitAnswer(ctx, "http://"+address+"/leader"); err != nil {
			return err
		}
		shard.report("the server in a VM answers at the leader's address %s", address, began)
		return nil
	})
}

func (s *libvirtShard) configureEmpty(ctx context.Context) error {
	return s.stack.PutConfig(ctx, func(c *config.Shard) {
		libvirtd.Guest{URI: s.daemon.URI(), Leader: s.stack.Network.Host(local.Leader)}.Configure(c, "worker")
		spec := c.Groups[local.Tenant][group]
		spec.Size = new(int)
		c.Groups[local.Tenant][group] = spec
	})
}

func (s *libvirtShard) makeServerVM() error {
	for _, name := range []string{"vmlinuz", "initrd", "disk.qcow2"} {
		file := filepath.Join(*debianFlag, name)
		out, err := exec.CommandContext(s.t.Context(), "cp", file, s.daemon.Pool).CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
	}
	environment, secrets := map[string]string{}, s.t.TempDir()
	var secret []string
	for _, setting := range s.stack.Settings() {
		if name, value, _ := strings.Cut(setting, "="); strings.Contains(name, "KEY") {
			secret = append(secret, setting)
		} else {
			environment[name] = value
		}
	}
	err := os.WriteFile(filepath.Join(secrets, "secrets.env"), []byte(strings.Join(secret, "\n")+"\n"), 0o600)
	if err != nil {
		return err
	}
	s.daemon.AddCD(s.t, "secrets.iso", "nstance", secrets)
	s.daemon.Virsh(s.t, "pool-refresh", "default")
	script, err := s.serverScript(environment)
	if err != nil {
		return err
	}
	module := testlibvirtd.NewModule(s.t, s.daemon, ".")
	module.Configure(map[string]any{
		"servers":         map[string]any{"nstance-server-1": struct{}{}},
		"server_userdata": script,
		"image":           "disk.qcow2",
		"network":         map[string]string{"name": "a"},
		"secrets_iso":     "/var/lib/libvirt/images/secrets.iso",
		"domain_type":     "qemu",
		"vcpu":            1,
		"memory_mib":      *memoryFlag,
	})
	// The image has no boot loader, so QEMU loads the kernel itself.
	module.Write("main_override.tf", `resource "libvirt_domain" "server" {
  kernel  = "/var/lib/libvirt/images/vmlinuz"
  initrd  = "/var/lib/libvirt/images/initrd"
  cmdline = [{ root = "/dev/vda", console = "ttyS0" }]
}
`)
	return module.Run("apply", "-auto-approve")
}

// serverScript returns the boot script of a server, with the commands of modules/onprem/shard. The test uses the image
// of an agent. So the script must also create the user nstance-server, and download the server's program from this
// test.
func (s *libvirtShard) serverScript(environment map[string]string) (string, error) {
	program := filepath.Join(*binFlag, "nstance-server")
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(libvirtd.Gateway, "0"))
	if err != nil {
		return "", err
	}
	download := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, program) })}
	go func() { _ = download.Serve(listener) }()
	s.t.Cleanup(func() { _ = download.Close() })
	sum := sha256.Sum256(content)
	return bootscript.Server{Shard: local.Shard, Storage: "s3", Bucket: local.Bucket, Common: bootscript.Common{
		Binaries: map[string]bootscript.Binary{"amd64": {URL: "http://" + listener.Addr().String() + "/nstance-server",
			SHA256: hex.EncodeToString(sum[:])}},
		Environment: environment,
		CommandsBefore: []string{
			"useradd --system --user-group --no-create-home --shell /usr/sbin/nologin nstance-server",
			"mkdir -p /etc/systemd/system/nstance-server.service.d",
			"printf '[Service]\\nCapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW\\nAmbientCapabilities=CAP_NET_ADMIN " +
				"CAP_NET_RAW\\nRestrictAddressFamilies=AF_PACKET\\nEnvironmentFile=-/etc/nstance/secrets.env\\n' " +
				">/etc/systemd/system/nstance-server.service.d/20-onprem.conf",
			"install -d -m 755 /etc/nstance",
			"mount -o ro /dev/disk/by-label/nstance /mnt",
			"find /mnt -maxdepth 1 -type f " +
				"-exec install -m 600 -o nstance-server -g nstance-server -t /etc/nstance {} +",
			"umount /mnt",
		}}}.Script()
}
