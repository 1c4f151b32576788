package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// acquireTimeout limits one attempt to acquire the address. Google moves an alias address within a minute. After a
// time-out, the caller must try again.
const acquireTimeout = 90 * time.Second

// Acquire implements infra.LeaderNetwork. If Network.Kind is load_balancer, it does nothing, because the load
// balancer's health check finds the leader. If the kind is alias, it removes the address from the machine that has it,
// and adds it to the first interface of this machine. It returns when this machine can use the address. If this machine
// already has the address, Acquire makes only one call.
//
// Only the leader may call Acquire. The removal is necessary, because a machine keeps its alias address even while it
// is stopped.
func (p *Provider) Acquire(ctx context.Context, machineID string) error {
	if p.cfg.Network.Kind == contract.LeaderLoadBalancer {
		return nil
	}
	what := "take " + p.cfg.Network.Address.String()
	if err := p.checkNetwork(machineID); err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	var last error // the latest error other than the end of ctx
	for tries := 1; ; tries++ {
		done, err := p.stepToAddress(ctx, what, machineID)
		if done || err != nil && !passing(err) {
			return err
		}
		if ctx.Err() == nil {
			last = err
		}
		if sleepErr := p.cfg.Sleep(ctx, reconnect.Backoff(soonest, latest, tries)); sleepErr != nil {
			return infra.Wrap(infra.Indeterminate, what, errors.Join(sleepErr, last))
		}
	}
}

// stepToAddress takes the next step towards acquiring the address. If it fails, and the function passing returns true
// for the error, the caller may try again.
func (p *Provider) stepToAddress(ctx context.Context, what, machineID string) (done bool, err error) {
	self, err := p.api.get(ctx, machineID)
	if err != nil {
		return false, p.classify(what, "instances.get", err)
	}
	if len(self.NetworkInterfaces) == 0 {
		return false, refused(what, "instance %s has no network interface", self.Name)
	}
	if p.holds(self.NetworkInterfaces[0]) {
		if err := p.cfg.Answers(ctx, p.cfg.Network.Address); err != nil {
			return false, infra.Errorf(infra.Indeterminate, what, "it is an alias of this machine: %w", err)
		}
		return true, nil
	}
	if err := p.clearHolder(ctx, what, machineID); err != nil {
		return false, err
	}
	nic := self.NetworkInterfaces[0]
	alias := &compute.AliasIpRange{IpCidrRange: netip.PrefixFrom(p.cfg.Network.Address, 32).String(),
		SubnetworkRangeName: p.cfg.Network.Range}
	return false, p.setAliases(ctx, what, self.Name, nic, append(slices.Clone(nic.AliasIpRanges), alias))
}

// clearHolder removes the leader's address from all machines of the zone except the machine with the ID machineID.
func (p *Provider) clearHolder(ctx context.Context, what, machineID string) error {
	all, err := p.api.list(ctx, "")
	if err != nil {
		return p.classify(what, "instances.list", err)
	}
	for _, in := range all {
		id := strconv.FormatUint(in.Id, 10)
		for _, nic := range in.NetworkInterfaces {
			if id == machineID || !p.holds(nic) {
				continue
			}
			p.cfg.Log.Info("taking the leader's alias address from its holder", "address", p.cfg.Network.Address,
				"holder", in.Name, "id", id, "status", in.Status)
			err := p.setAliases(ctx, what, in.Name, nic, p.without(nic))
			if err != nil && infra.ClassOf(err) != infra.NotFound {
				return err
			}
		}
	}
	return nil
}

// holds reports whether an interface has the leader's address.
func (p *Provider) holds(nic *compute.NetworkInterface) bool {
	return len(p.without(nic)) < len(nic.AliasIpRanges)
}

// without returns the alias ranges of an interface, without the leader's address.
func (p *Provider) without(nic *compute.NetworkInterface) []*compute.AliasIpRange {
	return slices.DeleteFunc(slices.Clone(nic.AliasIpRanges), func(a *compute.AliasIpRange) bool {
		text, _, _ := strings.Cut(a.IpCidrRange, "/")
		return text == p.cfg.Network.Address.String()
	})
}

// setAliases replaces the alias ranges of a machine's interface and waits for the change. An empty list removes all
// ranges. The call identifies the machine by its name, because IAM conditions compare names. If a new machine has got
// this name since the caller read nic, the call fails, because the new machine's interface has another fingerprint.
func (p *Provider) setAliases(ctx context.Context, what, name string, nic *compute.NetworkInterface,
	aliases []*compute.AliasIpRange) error {
	err := p.api.updateInterface(ctx, name, &compute.NetworkInterface{Name: nic.Name, Fingerprint: nic.Fingerprint,
		AliasIpRanges: aliases, ForceSendFields: []string{"AliasIpRanges"}})
	return p.classify(what, "instances.updateNetworkInterface", err)
}

// passing reports whether an error is temporary, so that the caller should try again. Examples: another server has just
// taken the address, or a change of the interface is in progress.
func passing(err error) bool {
	if code := codeOf(err); code == "IP_IN_USE_BY_ANOTHER_RESOURCE" || code == "resourceNotReady" ||
		code == "RESOURCE_NOT_READY" || googlecloud.StatusOf(err) == http.StatusPreconditionFailed {
		return true
	}
	class := infra.ClassOf(err)
	return class == infra.Throttled || class == infra.Indeterminate
}

// Release implements infra.LeaderNetwork.
func (p *Provider) Release(ctx context.Context, machineID string) error {
	if p.cfg.Network.Kind == contract.LeaderLoadBalancer {
		return nil
	}
	what := "give up " + p.cfg.Network.Address.String()
	if err := p.checkNetwork(machineID); err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	self, err := p.api.get(ctx, machineID)
	if err != nil {
		return p.classify(what, "instances.get", err)
	}
	for _, nic := range self.NetworkInterfaces {
		if !p.holds(nic) {
			continue
		}
		// A stale fingerprint means that another server has already changed this machine's interface, to take the
		// address.
		if err := p.setAliases(ctx, what, self.Name, nic, p.without(nic)); err != nil && !passing(err) {
			return err
		}
	}
	return nil
}

func (p *Provider) checkNetwork(machineID string) error {
	switch {
	case !p.cfg.Network.Address.IsValid():
		return errors.New("server.leader_network.ipv4 is not set")
	case !numericID.MatchString(machineID):
		return fmt.Errorf("this machine's ID is %s: the metadata server does not answer",
			cmp.Or(machineID, "not known"))
	}
	return nil
}
