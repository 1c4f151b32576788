package release

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
)

// install is a script for the administrator of a machine. It installs the packages and checks their contents.
const install = `#!/bin/sh
set -eu
rmdir /etc/nstance # every machine of the tests has it
dpkg --install /srv/nstance-server.deb /srv/nstance-agent.deb
for unit in nstance-server nstance-server-health nstance-agent; do
	test "$(stat -c '%U %a' /usr/lib/systemd/system/$unit.service)" = "root 644"
done
systemd-analyze verify --man=no /usr/lib/systemd/system/nstance-server.service /usr/lib/systemd/system/nstance-server-health.service \
	/usr/lib/systemd/system/nstance-agent.service
test "$(stat -c '%U %a' /etc/nstance)" = "root 700"
test "$(stat -c '%U %a' /opt/nstance-agent/identity)" = "root 700"
test "$(stat -c '%U %a' /usr/bin/nstance-server)" = "root 755"
getent passwd nstance-server | grep -q ':/nonexistent:/usr/sbin/nologin$'
tar -xzf /srv/nstance.tar.gz --strip-components=1 -C /usr/local/bin --wildcards '*/nstance-admin'
`

// boot is a boot script. It makes a cluster whose bucket is a directory, and starts the server of the cluster's shard
// with the unit in the package.
const boot = `#!/bin/sh
set -eu
install -d -o nstance-server -g nstance-server -m 0700 /var/cache/nstance-server
export NSTANCE_ENCRYPTION_KEY=thisisatest32bytekey123456789012
bucket="--storage-provider file --storage-bucket /var/cache/nstance-server/bucket"
mkdir /var/cache/nstance-server/bucket
nstance-admin cluster init --cluster-id example-cluster $bucket
nstance-admin config push $bucket /srv/config.jsonc
chown -R nstance-server:nstance-server /var/cache/nstance-server
cat >/etc/nstance/server.env <<END
NSTANCE_SERVER_ARGS="--shard dev-1 --storage file --bucket /var/cache/nstance-server/bucket --cachedir /var/cache/nstance-server/cache"
NSTANCE_ENCRYPTION_KEY=$NSTANCE_ENCRYPTION_KEY
END
mkdir -p /run/systemd/system # by this the packages know that systemd runs
systemctl enable nstance-server
systemctl start --no-block nstance-server
`

// testPackages installs the .deb packages on a machine, boots it, and waits until its server leads. Then it upgrades
// and removes the package.
func (d *dist) testPackages(t *testing.T) {
	base := filepath.Join(t.TempDir(), "srv")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	arch := runtime.GOARCH
	config := strings.NewReplacer(`"command": "air -c scripts/air/agent.toml"`,
		`"dir": "/var/cache/nstance-server/agents"`, `"nodes_dir": "temp/dev-k8s/nodes",`, "", `"size": 2`, `"size": 0`,
	).Replace(string(read(t, filepath.Join(root, "examples/config-tmux.jsonc"))))
	for name, content := range map[string][]byte{
		"nstance-server.deb": read(t, filepath.Join(d.dir, "nstance-server_"+number+"-1_"+arch+".deb")),
		"nstance-agent.deb":  read(t, filepath.Join(d.dir, "nstance-agent_"+number+"-1_"+arch+".deb")),
		"nstance.tar.gz":     read(t, filepath.Join(d.dir, "nstance_"+number+"_linux_"+arch+".tar.gz")),
		"config.jsonc":       []byte(config),
	} {
		if err := os.WriteFile(filepath.Join(base, name), content, 0o755); err != nil {
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
	tree, err := runner.Build(t.Context(), filepath.Dir(base), install, nil)
	if err != nil {
		t.Fatal(err)
	}
	runner.AddImage("installed", tree)
	const id = "server"
	if _, err := runner.Start(contract.Spec{ID: id, Userdata: []byte(boot), Image: "installed", Hostname: id,
		Primary: contract.NIC{MAC: "02:00:00:00:00:05", VPC: "vpc", SourceDestCheck: true,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machine:\n%s", runner.Logs(id))
		}
	})
	eventually := func(command, want string) {
		t.Helper()
		var out string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
			if out, err = runner.Exec(id, "sh", "-c", command); err == nil && strings.Contains(out, want) {
				return
			}
		}
		t.Fatalf("%s: %q, %v; want %q", command, out, err, want)
	}
	eventually("journalctl -u nstance-server -o cat", "serving as leader")
	eventually("systemctl is-active nstance-server", "active")
	eventually("stat -c %U /proc/$(systemctl show -p MainPID --value nstance-server)", "nstance-server")
	// An upgrade restarts the server.
	eventually("systemctl show -p MainPID nstance-server >/tmp/before && dpkg --install /srv/nstance-server.deb",
		"Setting up")
	eventually("systemctl show -p MainPID nstance-server | cmp -s - /tmp/before || echo another", "another")
	eventually("systemctl is-active nstance-server", "active")
	eventually("dpkg --remove nstance-server", "Removing")
	eventually("pgrep -x nstance-server || echo none", "none")
	eventually("test -e /usr/lib/systemd/system/nstance-server.service || echo gone", "gone")
}
