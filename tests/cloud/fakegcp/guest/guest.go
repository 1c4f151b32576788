// Package guest boots a real machine for each instance of the fake Google Cloud. It gives each machine a metadata
// server. It also gives the machines their addresses, as Google's network and guest agent do.
//
// Invariant: packets for an alias address go to the instance that has it. Packets for a load balancer's address go
// unchanged to an instance that passes the load balancer's health check.
package guest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	"github.com/nstance-kit/nstance/tests/cloud/machine"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
)

// metadataAddress is the address of the metadata server. Images of Google Cloud have this address and its name in
// /etc/hosts.
var metadataAddress = netip.MustParseAddr("169.254.169.254")

// dmi is what the firmware of every VM reports.
var dmi = map[string]string{"sys_vendor": "Google", "product_name": "Google Compute Engine", "bios_vendor": "Google",
	"board_vendor": "Google", "board_name": "Google Compute Engine"}

const (
	// checkEvery is the time between two health checks. It is shorter than on Google Cloud to speed up the tests.
	checkEvery = 250 * time.Millisecond
	// unhealthyAfter is the number of failed checks in a row after which an instance is unhealthy.
	unhealthyAfter = 3
)

// Options configure Machines.
type Options struct {
	Compute *compute.Compute
	Runner  *machine.Runner
	// Number is the project's number.
	Number string
	// UniqueID returns the number of a service account.
	UniqueID func(email string) string
	Log      *slog.Logger
}

// Machines implements [compute.Machines]. Its methods may be called concurrently.
type Machines struct {
	Options

	mu       sync.Mutex
	failures map[string]int // failed checks in a row, by check; instances without an entry were not checked
	routed   map[string]netip.Addr
	guests   map[uint64]*guest // by the number of their instance
}

// New returns the machines of a fake cloud and connects the cloud to them. Call [Machines.Run]: while it runs, health
// checks and operations make progress.
func New(o Options) *Machines {
	m := &Machines{Options: o, failures: map[string]int{}, routed: map[string]netip.Addr{},
		guests: map[uint64]*guest{}}
	o.Compute.Machines, o.Compute.Healthy = m, m.healthy
	return m
}

// guest is the machine of one instance.
type guest struct {
	*Machines
	*machine.Instance

	metadata *metadata

	mu      sync.Mutex // held while the addresses change, and while the machine falls asleep or wakes
	aliases []netip.Addr
	sleeps  bool
}

// ID returns the name of an instance's machine. It is the number of the instance, because a later instance may get the
// same name.
func ID(number uint64) string { return strconv.FormatUint(number, 10) }

// Start implements [compute.Machines].
func (m *Machines) Start(i compute.Instance) (compute.Machine, error) {
	nic := i.Interface()
	address, err := netip.ParseAddr(rest.Text(nic, "networkIP"))
	if err != nil {
		return nil, fmt.Errorf("address of %s: %w", i.Name, err)
	}
	bits, err := m.subnetBits(rest.Text(nic, "subnetwork"))
	if err != nil {
		return nil, err
	}
	if old, ok := m.Runner.Machine(ID(i.ID)); ok { // an instance that was stopped
		<-old.Dead()
	}
	g := &guest{Machines: m, metadata: newMetadata(m.Number, m.UniqueID, i)}
	started, err := m.Runner.Start(contract.Spec{
		ID: ID(i.ID), Hostname: i.Name, Userdata: []byte(i.Metadata()["startup-script"]), Image: i.Image, DMI: dmi,
		Hosts: map[string]netip.Addr{"metadata.google.internal": metadataAddress},
		Primary: contract.NIC{MAC: mac(address), VPC: i.Network(),
			Addresses: []netip.Prefix{netip.PrefixFrom(address, bits)}},
		Metadata: g.metadata,
		Exited:   func() { m.Compute.Ended(i) },
	})
	if err != nil {
		return nil, err
	}
	g.Instance = started.(*machine.Instance) //nolint:forcetypeassert // the runner has no others
	m.mu.Lock()
	m.guests[i.ID] = g
	m.mu.Unlock()
	return g, nil
}

// mac returns the MAC address that Compute Engine derives from an IPv4 address.
func mac(address netip.Addr) string {
	b := address.As4()
	return net.HardwareAddr{0x42, 0x01, b[0], b[1], b[2], b[3]}.String()
}

func (m *Machines) subnetBits(link string) (bits int, err error) {
	err = fmt.Errorf("there is no subnet %s", link)
	m.Compute.Do(func() {
		if subnet := m.Compute.Find(link); subnet != nil {
			var prefix netip.Prefix
			prefix, err = netip.ParsePrefix(rest.Text(subnet.Body, "ipCidrRange"))
			bits = prefix.Bits()
		}
	})
	return bits, err
}

// Changed implements [compute.Machine].
func (g *guest) Changed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, ok := g.Compute.Instance(g.metadata.view().ID)
	if !ok {
		return
	}
	g.metadata.set(i)
	if err := g.sleep(i.Stopped, i.Suspended); err != nil {
		g.Log.Error("a machine did not sleep or wake", "instance", i.Name, "error", err)
	}
	if g.sleeps {
		return
	}
	nic := i.Interface()
	var local, aliases []netip.Addr
	for _, text := range compute.Aliases(nic) {
		if p, err := netip.ParsePrefix(text); err == nil {
			aliases = append(aliases, p.Addr())
		}
	}
	local = append(local, aliases...)
	for _, text := range i.Forwarded {
		if a, err := netip.ParseAddr(text); err == nil {
			local = append(local, a)
		}
	}
	if err := g.SetLocal(local); err != nil {
		g.Log.Error("local addresses were not set", "instance", i.Name, "error", err)
	}
	own, err := netip.ParseAddr(rest.Text(nic, "networkIP"))
	if err != nil {
		return
	}
	for _, a := range aliases {
		g.route(i.Network(), a, own)
	}
	for _, a := range g.aliases {
		if !slices.Contains(aliases, a) {
			g.unroute(i.Network(), a, own)
		}
	}
	g.aliases = aliases
}

// sleep lets the machine sleep or wake. The caller holds g.mu.
func (g *guest) sleep(stopped, suspended bool) error {
	sleeps := stopped || suspended
	if g.sleeps == sleeps {
		return nil
	}
	g.sleeps = sleeps
	if sleeps {
		return g.Instance.Sleep(suspended)
	}
	return g.Instance.Wake()
}

// Console implements [compute.Machine].
func (g *guest) Console() string { return string(g.Instance.Console()) }

// Stop implements [compute.Machine].
func (g *guest) Stop() { g.Instance.Stop() }

// route sends packets for an address to a machine. unroute removes this route, but not a later route to another
// machine.
func (m *Machines) route(vpc string, address, via netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setRoute(vpc, address, via)
}

func (m *Machines) unroute(vpc string, address, via netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.routed[vpc+" "+address.String()] == via {
		m.setRoute(vpc, address, netip.Addr{})
	}
}

func (m *Machines) setRoute(vpc string, address, via netip.Addr) {
	key := vpc + " " + address.String()
	if m.routed[key] == via {
		return
	}
	if err := m.Runner.SetRoute(vpc, address, via); err != nil {
		m.Log.Error("a route was not set", "address", address, "via", via, "error", err)
		return
	}
	m.routed[key] = via
}

// Run makes the health checks and lets operations end, until ctx ends.
func (m *Machines) Run(ctx context.Context) {
	for ticker := time.NewTicker(checkEvery); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
			m.check(ctx)
		}
	}
}

// check makes all health checks, and sends packets for the load balancers' addresses to healthy instances.
func (m *Machines) check(ctx context.Context) {
	checks := m.Compute.HealthChecks()
	var wg sync.WaitGroup
	for _, c := range checks {
		wg.Go(func() {
			ok := m.probe(ctx, c)
			m.mu.Lock()
			defer m.mu.Unlock()
			failures, known := m.failures[checkName(c)]
			switch {
			case ok:
				failures = 0
			case !known:
				failures = unhealthyAfter // until the first success
			default:
				failures++
			}
			m.failures[checkName(c)] = failures
		})
	}
	wg.Wait()
	m.forward(checks)
}

// forward tells instances that their load balancer addresses have changed. It also routes each load balancer address to
// an instance that passes the load balancer's health check.
func (m *Machines) forward(checks []compute.HealthCheck) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range checks {
		if g := m.guests[c.Instance.ID]; g != nil && !slices.Equal(g.metadata.view().Forwarded, c.Instance.Forwarded) {
			go g.Changed()
		}
		address, err := netip.ParseAddr(c.Forwarded)
		own, err2 := netip.ParseAddr(rest.Text(c.Instance.Interface(), "networkIP"))
		if err == nil && err2 == nil && m.failures[checkName(c)] == 0 {
			m.setRoute(c.Instance.Network(), address, own)
		}
	}
}

func checkName(c compute.HealthCheck) string { return fmt.Sprint(c.Instance.ID, " ", c.Forwarded) }

// healthy answers a health check with the result of the latest probes of the instance.
func (m *Machines) healthy(i compute.Instance, forwarded string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	failures, known := m.failures[checkName(compute.HealthCheck{Instance: i, Forwarded: forwarded})]
	return known && failures < unhealthyAfter
}

// probe runs one health check of an instance, from the instance's network, and reports whether it succeeds.
func (m *Machines) probe(ctx context.Context, c compute.HealthCheck) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	dial := func(ctx context.Context, kind, address string) (net.Conn, error) {
		return m.Runner.DialVPC(ctx, c.Instance.Network(), kind, address)
	}
	address := net.JoinHostPort(rest.Text(c.Instance.Interface(), "networkIP"), strconv.Itoa(c.Port))
	if c.Path == "" {
		conn, err := dial(ctx, "tcp", address)
		return err == nil && conn.Close() == nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+c.Path, http.NoBody)
	if err != nil {
		return false
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Do(req)
	return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}
