package machine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/boot"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/machine/networkd"
	"github.com/nstance-kit/nstance/tests/cloud/machine/rootfs"
)

// These addresses exist inside every machine.
const (
	metadataAddress = "169.254.169.254"
	apiAddress      = "169.254.170.1"
	resolverAddress = "169.254.169.253"
)

// Instance is one machine. Its methods may be called concurrently.
type Instance struct {
	runner *Runner
	spec   contract.Spec
	tree   string
	// booted is closed when init listens, or when it is certain that init never will. dead is closed when all processes
	// and the namespace of the machine have ended.
	booted, dead chan struct{}

	// mu is held while the machine changes: while it boots, while an interface is plugged or unplugged, and while it
	// ends.
	mu      sync.Mutex
	ns      *netns
	cmd     *exec.Cmd
	ports   map[string]*port // By MAC address.
	local   []netip.Addr     // Those of SetLocal.
	servers []*http.Server
	release func()

	// "pulled" is true after Stop. The mutex named state guards it. The mutex is never held during a blocking call.
	state  sync.Mutex
	pulled bool
}

var _ contract.Machine = (*Instance)(nil)

// Ended reports whether all processes and the namespace of the machine have ended.
func (i *Instance) Ended() bool {
	select {
	case <-i.dead:
		return true
	default:
		return false
	}
}

// Dead returns a channel that is closed when all processes and the namespace of the machine have ended.
func (i *Instance) Dead() <-chan struct{} { return i.dead }

// LogPath returns the path, on the host, of the file that receives the output of the machine's console, boot script and
// services. The file remains after the machine has ended.
func (i *Instance) LogPath() string { return i.runner.logPath(i.spec.ID) }

// consoleLine matches the lines of a machine's log that the machine's console shows. They come from the console itself,
// from systemd or from the boot script.
var consoleLine = regexp.MustCompile(`^\S+ (?:console|systemd|cloud-init)\[\d+\]: (.*)$`)

// Console implements contract.Machine.
func (i *Instance) Console() []byte {
	log, err := os.ReadFile(i.LogPath())
	if err != nil {
		i.runner.Log.Error("A console cannot be read", "id", i.spec.ID, "error", err)
		return nil
	}
	var out []byte
	for line := range bytes.Lines(log) {
		if match := consoleLine.FindSubmatch(bytes.TrimRight(line, "\n")); match != nil {
			out = append(append(out, match[1]...), "\r\n"...)
		}
	}
	return out
}

// boot starts the machine and waits for its end. The caller must hold mu. boot releases it.
func (i *Instance) boot() {
	log, err := os.OpenFile(i.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	var ready <-chan struct{}
	if err == nil {
		if ready, err = i.make(log); err != nil {
			fmt.Fprintf(log, "The machine cannot be made: %v\n", err)
		}
		_ = log.Close() // The machine holds its own copy.
	}
	i.mu.Unlock()
	if err != nil {
		i.runner.Log.Error("A machine cannot be made", "id", i.spec.ID, "error", err)
		close(i.booted)
	} else {
		go func() {
			<-ready
			close(i.booted)
		}()
		err = i.cmd.Wait()
	}
	i.mu.Lock()
	i.clear()
	i.mu.Unlock()
	i.state.Lock()
	pulled := i.pulled
	i.state.Unlock()
	close(i.dead)
	if !pulled {
		i.runner.Log.Info("Machine ended without a stop request", "id", i.spec.ID, "status", fmt.Sprint(err))
		if i.spec.Exited != nil {
			i.spec.Exited()
		}
	}
}

// make creates the machine's namespace, metadata service and first process. ready is closed when init listens.
func (i *Instance) make(log *os.File) (ready <-chan struct{}, err error) {
	if i.ns, err = newNetns(); err != nil {
		return nil, err
	}
	if err := i.ns.set(settings); err != nil {
		return nil, err
	}
	// The routes below make the addresses local without assigning them to an interface. Programs that list the
	// addresses of interfaces then see the same list as on a VM of a cloud.
	lines := []string{"link set lo up"}
	for _, a := range []string{metadataAddress, apiAddress, resolverAddress} {
		lines = append(lines, "route add local "+a+"/32 dev lo")
	}
	if err := i.ns.ip(lines...); err != nil {
		return nil, err
	}
	if err := i.plug(i.spec.Primary); err != nil {
		return nil, err
	}
	if i.spec.Metadata != nil {
		if err := i.serve(metadataAddress, i.spec.Metadata); err != nil {
			return nil, err
		}
	}
	if i.runner.API != nil {
		if err := i.serve(apiAddress, i.runner.API); err != nil {
			return nil, err
		}
	}
	hostname := cmp.Or(i.spec.Hostname, i.spec.ID)
	digest := sha256.Sum256([]byte(i.spec.ID))
	i.cmd, ready, i.release, err = i.runner.launch(boot.Config{
		Tree: rootfs.Tree{Layers: []string{i.tree}, Files: i.identity(hostname, hex.EncodeToString(digest[:16])),
			DMI: i.spec.DMI},
		Hostname:   hostname,
		InstanceID: i.spec.ID, Userdata: i.spec.Userdata, Environment: i.runner.Environment,
		Links: []networkd.Link{i.ports[i.spec.Primary.MAC].link()},
	}, i.ns, log)
	return ready, err
}

// serve runs an HTTP server inside the machine, on port 80 of the given address.
func (i *Instance) serve(address string, handler http.Handler) error {
	var listener net.Listener
	err := i.ns.do(func() (err error) {
		listener, err = net.Listen("tcp4", address+":80") //nolint:noctx // it does not wait for anything
		return err
	})
	if err != nil {
		return fmt.Errorf("listen inside of the machine: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	i.servers = append(i.servers, server)
	go func() { _ = server.Serve(listener) }() // Ends with the machine.
	return nil
}

// clear removes the parts of the machine that are not processes: HTTP servers, ports and the namespace.
func (i *Instance) clear() {
	var errs []error
	for _, s := range i.servers {
		errs = append(errs, s.Close())
	}
	for _, p := range i.ports {
		errs = append(errs, p.vpc.remove(p))
	}
	i.ports = map[string]*port{}
	if i.release != nil {
		i.release()
	}
	if i.ns != nil {
		errs = append(errs, i.ns.close())
		i.ns = nil
	}
	if err := errors.Join(errs...); err != nil {
		i.runner.Log.Error("Something of a machine stays", "id", i.spec.ID, "error", err)
	}
}

// Stop implements [contract.Machine].
func (i *Instance) Stop() {
	i.state.Lock()
	i.pulled = true
	i.state.Unlock()
	i.mu.Lock()
	if i.cmd != nil && i.cmd.Process != nil {
		_ = i.cmd.Process.Kill() // The process may have ended already.
	}
	i.mu.Unlock()
	<-i.dead
}

// sleepTime limits how long a machine takes to fall asleep or to begin to wake. systemd gives services 90 s to end.
const sleepTime = 2 * time.Minute

// Sleep implements [contract.Machine].
func (i *Instance) Sleep(memory bool) error {
	how := control.ShutDown
	if memory {
		how = control.Freeze
	}
	err := i.order(control.Sleep, how)
	if err == nil {
		err = i.connect(false)
	}
	if err != nil {
		return fmt.Errorf("put %s to sleep: %w", i.spec.ID, err)
	}
	return nil
}

// Wake implements [contract.Machine]. It does not wait until the machine has booted.
func (i *Instance) Wake() error {
	err := i.connect(true)
	if err == nil {
		err = i.order(control.Wake)
	}
	if err != nil {
		return fmt.Errorf("wake %s: %w", i.spec.ID, err)
	}
	return nil
}

// order sends a request about sleep to init.
func (i *Instance) order(program string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), sleepTime)
	defer cancel()
	_, err := i.exec(ctx, control.Request{Program: program, Args: args})
	return err
}

// connect connects the machine's interfaces to their networks, or disconnects them.
func (i *Instance) connect(up bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ns == nil {
		return errors.New("the machine has ended")
	}
	for _, p := range i.ports {
		if err := p.vpc.connect(p, up); err != nil {
			return err
		}
	}
	return nil
}

// plugTime limits how long a running machine takes to configure an interface.
const plugTime = 30 * time.Second

// Plug implements [contract.Machine]. It returns when the machine has configured the interface, or has found no
// .network file that matches it.
func (i *Instance) Plug(nic contract.NIC) error {
	ctx, cancel := context.WithTimeout(context.Background(), plugTime)
	defer cancel()
	if err := i.wait(ctx); err != nil {
		return fmt.Errorf("plug %s into %s: %w", nic.MAC, i.spec.ID, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ns == nil {
		return fmt.Errorf("plug %s: the machine %s has ended", nic.MAC, i.spec.ID)
	}
	for _, p := range i.ports {
		if p.nic.Index == nic.Index {
			return fmt.Errorf("plug %s: the machine %s has an interface %d already", nic.MAC, i.spec.ID, nic.Index)
		}
	}
	if err := i.plug(nic); err != nil {
		return err
	}
	p := i.ports[nic.MAC]
	link, err := json.Marshal(p.link())
	if err != nil {
		return err
	}
	if err := i.report(ctx, control.LinkAdded, string(link)); err != nil {
		return err
	}
	return p.announce(i.ns)
}

// report tells the machine that an interface was added or removed. If the machine's configuration is wrong, report
// returns no error. Instead the machine's journal contains the error, as on a real machine.
func (i *Instance) report(ctx context.Context, what, link string) error {
	var failure *ExitError
	if _, err := i.exec(ctx, control.Request{Program: what, Args: []string{link}}); errors.As(err, &failure) {
		i.runner.Log.Error("A machine cannot configure an interface", "id", i.spec.ID, "error", err)
	} else if err != nil {
		return fmt.Errorf("%s of the machine %s: %w", what, i.spec.ID, err)
	}
	return nil
}

// plug adds an interface to the machine's namespace.
func (i *Instance) plug(nic contract.NIC) error {
	if _, ok := i.ports[nic.MAC]; ok {
		return fmt.Errorf("plug %s: the machine %s has it already", nic.MAC, i.spec.ID)
	}
	if _, err := net.ParseMAC(nic.MAC); err != nil {
		return fmt.Errorf("plug: %w", err)
	}
	v, err := i.runner.network(nic.VPC)
	if err != nil {
		return err
	}
	p, err := v.plug(i.ns, nic)
	if err != nil {
		return err
	}
	i.ports[nic.MAC] = p
	return nil
}

// Unplug implements [contract.Machine].
func (i *Instance) Unplug(mac string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	p, ok := i.ports[mac]
	if !ok {
		return fmt.Errorf("unplug %s: the machine %s does not have it", mac, i.spec.ID)
	}
	delete(i.ports, mac)
	if err := p.vpc.remove(p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), plugTime)
	defer cancel()
	return i.report(ctx, control.LinkRemoved, p.device())
}
