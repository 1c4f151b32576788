// Package aws makes VMs from Amazon EC2 instances. It is the only package that changes anything in AWS.
//
// Invariants: the instance ID is the client token of every create attempt, so there is at most one VM per instance ID.
// VMs that are created together have their batch as the client token, and their launch indexes say which IDs of the
// batch they have.
// The package makes only the calls that [Calls] lists.
package aws

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Config configures a Provider.
type Config struct {
	// Zone is the shard's availability zone. The provider makes VMs only there.
	Zone string
	// Network is the network interface that each new leader attaches to its machine. It is the zero value if there is
	// no such interface.
	Network Network
	Log     *slog.Logger

	EC2 EC2
	ELB ELB

	// PageSize is the page size of lists, 5 to 1000. 0 means 1000.
	PageSize int32
	// Now and Sleep replace the clock. nil means the real clock.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
	// Answers returns nil if an address belongs to this machine, can be used, and has a route for its replies. If the
	// field Answers is nil, the provider asks the kernel of this machine for these facts.
	Answers func(ctx context.Context, addr netip.Addr) error
}

// Network is a network interface with addresses that follow the leader.
type Network struct {
	Interface string // eni-…
	Addresses []netip.Addr
}

// Provider implements infra.Provider and all of its optional capabilities.
type Provider struct {
	cfg   Config
	rates rates

	mu        sync.Mutex
	balancers map[string][]string // ARNs of target groups, by name; replaced as a whole, never modified
	subnets   map[string]subnet   // replaced as a whole, never modified
	subnetsAt time.Time
	signers   []*x509.Certificate    // of identity documents; replaced as a whole, never modified
	region    string                 // of the shard
	keys      map[[2]string][]string // KMS keys of the latest request, by tenant and group
}

var (
	_ infra.Provider        = (*Provider)(nil)
	_ infra.LeaderNetwork   = (*Provider)(nil)
	_ infra.MachineEvidence = (*Provider)(nil)
	_ infra.SubnetCapacity  = (*Provider)(nil)
	_ infra.LoadBalancers   = (*Provider)(nil)
	_ infra.Images          = (*Provider)(nil)
	_ infra.Configurer      = (*Provider)(nil)
	_ infra.Attestor        = (*Provider)(nil)
	_ infra.Verifier        = (*Provider)(nil)
	_ infra.Batch           = (*Provider)(nil)
	_ infra.Sleeper         = (*Provider)(nil)

	_ infra.LoadBalancerHealth     = (*Provider)(nil)
	_ infra.LoadBalancerMembership = (*Provider)(nil)
	_ infra.DeregistrationDelay    = (*Provider)(nil)
)

// New makes a provider with the given clients. It sends no requests.
func New(cfg Config) (*Provider, error) {
	if cfg.Zone == "" {
		return nil, errors.New("aws provider: no zone")
	}
	if len(cfg.Network.Addresses) > 0 && cfg.Network.Interface == "" {
		return nil,
			errors.New(
				"aws provider: server.leader_network has an address but no interface_id: the address follows the " +
					"leader as an address of " +
					"a network interface (eni-…), say which")
	}
	cfg.PageSize = cmp.Or(cfg.PageSize, 1000)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sleep == nil {
		cfg.Sleep = tasks.Sleep
	}
	if cfg.Answers == nil {
		cfg.Answers = answers
	}
	return &Provider{cfg: cfg, rates: newRates()}, nil
}

// Open makes a provider with the SDK's clients for a shard's configuration. It sends no requests.
func Open(cfg sdk.Config, shard *config.Shard, log *slog.Logger) (*Provider, error) {
	network, err := networkOf(shard)
	if err != nil {
		return nil, err
	}
	return New(Config{Zone: shard.Server.Provider.Zone, Network: network, Log: log, EC2: ec2.NewFromConfig(cfg),
		ELB: elbv2.NewFromConfig(cfg)})
}

func networkOf(shard *config.Shard) (Network, error) {
	network := shard.Server.LeaderNetwork
	if network == nil {
		return Network{}, nil
	}
	out := Network{Interface: network.InterfaceID}
	for field, text := range map[string]string{"ipv4": network.IPv4, "ipv6": network.IPv6} {
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return Network{}, fmt.Errorf("server.leader_network.%s: %w", field, err)
		}
		out.Addresses = append(out.Addresses, addr)
	}
	slices.SortFunc(out.Addresses, netip.Addr.Compare)
	return out, nil
}

// Configure implements infra.Configurer. It stores the target groups of each load balancer, and how an agent must prove
// on which VM it runs.
func (p *Provider) Configure(shard *config.Shard) {
	balancers := map[string][]string{}
	for name, lb := range shard.LoadBalancers {
		if lb.Provider == contract.Name {
			balancers[name] = slices.Clone(lb.TargetGroupARNs)
		}
	}
	var signers []*x509.Certificate
	if a := shard.Server.Attestation; a != nil {
		signers, _ = a.Signers() // validated; without certificates no proof is valid
	}
	p.mu.Lock()
	p.balancers, p.signers, p.region = balancers, signers, shard.Server.Provider.Region
	p.mu.Unlock()
}

// Verify implements infra.Verifier. Every subnet must exist (else NotFound) and be in the shard's zone (else Invalid).
// The instance types of groups whose spares are suspended must be able to hibernate (else Invalid).
func (p *Provider) Verify(ctx context.Context, shard *config.Shard) error {
	if err := p.checkSubnets(ctx, infra.Subnets(shard)); err != nil {
		return err
	}
	return p.checkHibernation(ctx, shard)
}
