package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/machine/networkd"
)

// network configures the links of the machine like systemd-networkd. Files that change take effect after `networkctl
// reload`.
type network struct {
	m *Manager

	mu    sync.Mutex
	files []*networkd.Network
	// links maps each device to its link. applied maps each device to the .network file that configured its link.
	links   map[string]networkd.Link
	applied map[string]*networkd.Network
}

// networkPath lists the directories of .network files. Of files with the same name, the first one counts.
var networkPath = []string{"/etc/systemd/network", "/run/systemd/network", "/usr/local/lib/systemd/network"}

// start writes the files that netplan generates at boot, and configures the links with which the machine starts.
func (n *network) start(links []networkd.Link) error {
	for file, text := range networkd.Netplan {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links, n.applied = map[string]networkd.Link{}, map[string]*networkd.Network{}
	errs := []error{n.load()}
	for _, l := range links {
		errs = append(errs, n.up(l))
	}
	return errors.Join(errs...)
}

// restart configures all links again, as at boot.
func (n *network) restart() error {
	n.mu.Lock()
	var links []networkd.Link
	var errs []error
	for device, l := range n.links {
		links = append(links, l)
		errs = append(errs, n.down(device))
	}
	n.mu.Unlock()
	return errors.Join(append(errs, n.start(links))...)
}

// down removes the configuration of a link. The link itself stays.
func (n *network) down(device string) error {
	file := n.applied[device]
	if file == nil {
		return nil
	}
	return n.ip(append(file.Down(), "-4 addr flush dev "+device, "-4 route flush dev "+device,
		"-6 addr flush dev "+device+" scope global", "-6 route flush dev "+device+" proto static",
		"-6 route flush dev "+device+" proto ra"))
}

// load reads the files. It skips files that it cannot read or parse, and returns their errors.
func (n *network) load() error {
	found := map[string]string{}
	for _, dir := range slices.Backward(networkPath) {
		files, err := filepath.Glob(filepath.Join(dir, "*.network"))
		if err != nil {
			return err
		}
		for _, f := range files {
			found[filepath.Base(f)] = f
		}
	}
	n.files = nil
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(found)) {
		file, err := readNetwork(found[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n.files = append(n.files, file)
	}
	return errors.Join(errs...)
}

// readNetwork reads a file as the user systemd-network, which may read only files that are readable for all.
func readNetwork(path string) (*networkd.Network, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&0o004 == 0 {
		return nil, fmt.Errorf("%s: permission denied for the user systemd-network", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return networkd.Parse(path, string(text))
}

// up configures a link.
func (n *network) up(l networkd.Link) error {
	n.links[l.Device] = l
	file := networkd.Find(n.files, l)
	if file == nil {
		n.m.journal.write("systemd-networkd", 0, l.Device+": no file matches")
		return nil
	}
	n.m.journal.write("systemd-networkd", 0, l.Device+": Configuring with "+file.Name)
	n.applied[l.Device] = file
	return n.ip(file.Up(l))
}

// added configures a link that was plugged in.
func (n *network) added(l networkd.Link) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up(l)
}

// removed forgets a link that was unplugged, and removes the link's routing rules.
func (n *network) removed(device string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	file := n.applied[device]
	delete(n.links, device)
	delete(n.applied, device)
	if file == nil {
		return nil
	}
	return n.ip(file.Down())
}

// reload reads the .network files again. If another file than before applies to a link, reload configures the link
// again.
func (n *network) reload() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	errs := []error{n.load()}
	for device, l := range n.links {
		old := n.applied[device]
		if file := networkd.Find(n.files, l); file == nil || old != nil && old.Name == file.Name {
			continue
		}
		errs = append(errs, n.down(device), n.up(l))
	}
	return errors.Join(errs...)
}

// ip runs commands of ip(8), which begin with their address family, -4 or -6.
func (n *network) ip(lines []string) error {
	for _, family := range []string{"-4", "-6"} {
		var batch strings.Builder
		for _, line := range lines {
			if command, ok := strings.CutPrefix(line, family+" "); ok {
				batch.WriteString(command + "\n")
			}
		}
		if batch.Len() == 0 {
			continue
		}
		const file = "/run/systemd/network/batch"
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), // A reboot empties /run.
			os.WriteFile(file, []byte(batch.String()), 0o600)); err != nil {
			return err
		}
		var out bytes.Buffer
		p, wait, err := n.m.capture(spec{Path: lookPath("ip"), Argv: []string{"ip", family, "-batch", file},
			Environment: list(n.m.environment()), Directory: "/", UMask: 0o022}, io.Discard, &out)
		if p == nil {
			return err
		}
		<-p.done
		wait()
		if err != nil || p.status != 0 {
			return errors.Join(err, fmt.Errorf("ip %s: exit code %d: %s\n%s", family, p.status.ExitStatus(),
				bytes.TrimSpace(out.Bytes()), batch.String()))
		}
	}
	return nil
}

// networkctl implements `networkctl reload`.
func (c *call) networkctl(args []string) error {
	if len(args) != 1 || args[0] != "reload" {
		return fmt.Errorf("networkctl %s is not supported", strings.Join(args, " "))
	}
	return c.m.network.reload()
}

// link handles a request of the runner after an interface was plugged in or unplugged.
func (m *Manager) link(r control.Request) error {
	if r.Program == control.LinkRemoved {
		return m.network.removed(r.Args[0])
	}
	var l networkd.Link
	if err := json.Unmarshal([]byte(r.Args[0]), &l); err != nil {
		return err
	}
	return m.network.added(l)
}
