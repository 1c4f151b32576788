// Package gcp makes VMs from Compute Engine instances. It is the only package that changes anything in Google Cloud.
//
// Invariants: the instance ID is the VM's name, and the UUID in the instance ID is the requestId of every insert. The
// requestId of a bulkInsert is the UUID in the first ID of its batch. So each instance ID has at most one VM at a time.
// Google remembers a requestId for about an hour. If a request may be older than that, the provider first reads the log
// of operations, so that it never makes a second VM. VMs are addressed by their numeric IDs, which are not reused. The
// package makes only the calls that [Calls] lists.
package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// Config configures a Provider.
type Config struct {
	Project, Zone string
	// Network is the leader's address. The zero value means that there is none.
	Network Network
	Log     *slog.Logger

	// Access holds the client and its credentials.
	Access googlecloud.Access
	// Throttled, if set, is called for each API call that Google refuses because the project makes too many calls. Its
	// argument is the name of the API call.
	Throttled func(call string)

	// Now and Sleep replace the clock. nil means the real clock.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
	// Answers returns nil if addr is an address of this machine, and otherwise an error. nil means infra.Answers.
	// Google's guest agent adds a local route for an alias address. It does not add the address to an interface, so the
	// default checks whether this machine can listen on the address.
	Answers func(ctx context.Context, addr netip.Addr) error
}

// Network describes the leader's address. Each new leader moves the address to its own machine.
type Network struct {
	Kind    string // of the contract: alias or load_balancer
	Range   string // kind alias: the secondary range, or "" for the primary one
	Address netip.Addr
}

// Provider implements infra.Provider and its optional capabilities.
type Provider struct {
	cfg  Config
	api  client
	keys *signingKeys

	mu     sync.Mutex
	groups map[string]contract.InstanceGroup // by the load balancer's name; replaced as a whole, never modified
}

var (
	_ infra.Provider        = (*Provider)(nil)
	_ infra.LeaderNetwork   = (*Provider)(nil)
	_ infra.MachineEvidence = (*Provider)(nil)
	_ infra.SubnetCapacity  = (*Provider)(nil)
	_ infra.LoadBalancers   = (*Provider)(nil)
	_ infra.Images          = (*Provider)(nil)
	_ infra.InstanceTypes   = (*Provider)(nil)
	_ infra.VMConsoles      = (*Provider)(nil)
	_ infra.UserdataRemover = (*Provider)(nil)
	_ infra.Configurer      = (*Provider)(nil)
	_ infra.Attestor        = (*Provider)(nil)
	_ infra.Verifier        = (*Provider)(nil)
	_ infra.Sleeper         = (*Provider)(nil)
	_ infra.Batch           = (*Provider)(nil)

	_ infra.LoadBalancerHealth  = (*Provider)(nil)
	_ infra.DeregistrationDelay = (*Provider)(nil)
)

// New makes a provider. It sends no requests.
func New(ctx context.Context, cfg Config) (*Provider, error) {
	if cfg.Project == "" {
		return nil, googlecloud.ErrNoProject
	}
	if cfg.Zone == "" {
		return nil, errors.New("gcp provider: no zone")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sleep == nil {
		cfg.Sleep = tasks.Sleep
	}
	if cfg.Answers == nil {
		cfg.Answers = infra.Answers
	}
	api, err := newClient(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Provider{cfg: cfg, api: api, keys: &signingKeys{client: cfg.httpClient(), now: cfg.Now}}, nil
}

// open makes the provider of a shard.
func open(ctx context.Context, env infra.Env) (infra.Provider, error) {
	access, err := googlecloud.Open(ctx, cloud.Federation{})
	if err != nil {
		return nil, err
	}
	provider := env.Shard.Server.Provider
	cfg := Config{Project: access.Project, Zone: provider.Zone, Log: env.Log, Access: access, Throttled: env.Throttled}
	if project := provider.Options[contract.OptionProject]; project != "" {
		cfg.Project = project
	}
	if network := env.Shard.Server.LeaderNetwork; network != nil {
		cfg.Network = Network{Kind: network.Kind, Range: network.SecondaryRange}
		if cfg.Network.Kind == contract.LeaderAlias {
			if cfg.Network.Address, err = netip.ParseAddr(network.IPv4); err != nil {
				return nil, fmt.Errorf("server.leader_network.ipv4: %w", err)
			}
		}
	}
	return New(ctx, cfg)
}

// Configure implements infra.Configurer. It stores the instance group of each load balancer.
func (p *Provider) Configure(shard *config.Shard) {
	groups := map[string]contract.InstanceGroup{}
	for name, lb := range shard.LoadBalancers {
		if lb.Provider == contract.Name {
			groups[name] = lb.InstanceGroup
		}
	}
	p.mu.Lock()
	p.groups = groups
	p.mu.Unlock()
}

// Verify implements infra.Verifier. Every subnet and instance group must exist.
func (p *Provider) Verify(ctx context.Context, shard *config.Shard) error {
	const what = "check the configuration"
	for _, subnet := range infra.Subnets(shard) {
		path := p.subnetPath(subnet)
		if region := pathPart(path, "regions"); region != p.region() {
			return refused(what, "server.subnet_pools: %s is in region %s, the shard is in %s", subnet, region,
				p.region())
		}
		if _, err := p.api.getSubnet(ctx, path); err != nil {
			return p.classify(what, "server.subnet_pools: "+subnet, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shard.LoadBalancers)) {
		lb := shard.LoadBalancers[name]
		if lb.Provider != contract.Name {
			continue
		}
		if _, err := p.api.groupMembers(ctx, lb.InstanceGroupName); err != nil {
			return p.classify(what, "load_balancers."+name, err)
		}
	}
	return nil
}

// region returns the region of the shard's zone.
func (p *Provider) region() string { return regionOf(p.cfg.Zone) }

func regionOf(zone string) string { return zone[:strings.LastIndexByte(zone, '-')] }

// subnetPath returns the path of a subnet. The parameter is its name, path or URL.
func (p *Provider) subnetPath(subnet string) string {
	if i := strings.Index(subnet, "projects/"); i >= 0 {
		return subnet[i:]
	}
	if strings.HasPrefix(subnet, "regions/") {
		return "projects/" + p.cfg.Project + "/" + subnet
	}
	return "projects/" + p.cfg.Project + "/regions/" + p.region() + "/subnetworks/" + subnet
}

// pathPart returns the part of a path after the name of a collection, such as the region after "regions".
func pathPart(path, collection string) string {
	parts := strings.Split(path, "/")
	if i := slices.Index(parts, collection); i >= 0 && i+1 < len(parts) {
		return parts[i+1]
	}
	return ""
}

// httpClient returns a client that records whether it sent a request, so that the provider can recognize an error that
// occurred before any request.
func (cfg Config) httpClient() *http.Client {
	if cfg.Access.Client != nil {
		return cfg.Access.Client
	}
	return &http.Client{Transport: googlecloud.Record(http.DefaultTransport)}
}
