package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/lead/layer2"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

// changeCloud changes the cloud of the testShard's server.
func (r *testShard) changeCloud(change func(*infra.Cloud)) {
	r.set = func(cfg *Config) { change(&cfg.Clouds[0]) }
}

// metric returns one line of the metrics.
func (p *run) metric(name string) string {
	resp, err := http.Get("http://" + p.testShard.ports[0] + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func TestLeaderInterfaceMustAgree(t *testing.T) {
	at := func(id string) *config.LeaderNetwork {
		network := &config.LeaderNetwork{IPv4: "10.0.0.9"}
		network.InterfaceID = id
		return network
	}
	for name, tc := range map[string]struct {
		flag    string
		network *config.LeaderNetwork
		err     string
	}{
		"no flag":      {"", at("eni-1"), ""},
		"neither":      {"", nil, ""},
		"same":         {"eni-1", at("eni-1"), ""},
		"ARN":          {"arn:aws:ec2:us-west-2:123456789012:network-interface/eni-1", at("eni-1"), ""},
		"ARN of China": {"arn:aws-cn:ec2:cn-north-1:123456789012:network-interface/eni-1", at("eni-1"), ""},
		"other": {"eni-2", at("eni-1"),
			`interface_id: is "eni-1", this server's --leader-interface is "eni-2"`},
		"other ARN": {"arn:aws:ec2:us-west-2:123456789012:network-interface/eni-12", at("eni-1"),
			"interface_id"},
		"ARN of an instance": {"arn:aws:ec2:us-west-2:123456789012:instance/eni-1", at("eni-1"), "interface_id"},
		"flag only":          {"eni-1", nil, "server.leader_network: is missing"},
		"no interface":       {"eni-1", at(""), "interface_id"},
	} {
		s := &server{opts: Options{Shard: "a", LeaderInterface: tc.flag}}
		err := s.checkFlags(&config.Shard{Server: config.Server{Shard: "a", LeaderNetwork: tc.network}})
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: got %v, want %q", name, err, tc.err)
		}
	}
}

// TestOtherLeaderInterfaceIsNotReady checks that a server with a wrong --leader-interface does not use the
// configuration.
func TestOtherLeaderInterfaceIsNotReady(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	r.set = func(cfg *Config) { cfg.Options.LeaderInterface = "eni-1" }
	p := r.start(testKey)
	p.awaitReason("server.leader_network: is missing")
	if n := r.running(); n != 0 {
		t.Errorf("%d VMs run", n)
	}
}

func TestServerIDDefaultsToTheMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		machine infra.Machine
		hostID  bool
		want    string
	}{
		"machine's":         {infra.Machine{ID: "i-0123", Named: true}, true, "i-0123"},
		"given":             {infra.Machine{ID: "i-0123", Named: true}, false, "s"},
		"machine unknown":   {infra.Machine{Named: true}, true, "s"},
		"machine not named": {infra.Machine{ID: "boot-7"}, true, "s"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestShard(t)
			r.configure(nil)
			r.changeCloud(func(c *infra.Cloud) {
				c.Identity = func(context.Context, infra.Env) (infra.Machine, error) { return tc.machine, nil }
			})
			with := r.set
			r.set = func(cfg *Config) { with(cfg); cfg.Options.HostID = tc.hostID }
			p := r.start(testKey)
			p.await("two VMs", func() bool { return r.running() == 2 })
			lock, err := r.bucket.Get(t.Context(), keys.Leader("a"))
			if err != nil {
				t.Fatal(err)
			}
			if l, err := record.DecodeLock(lock.Body); err != nil || l.LeaderID != tc.want ||
				l.Machine != tc.machine.ID {
				t.Errorf("the lock is held by %q on machine %q (%v), want %q", l.LeaderID, l.Machine, err, tc.want)
			}
		})
	}
}

func TestThrottlingIsCounted(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	r.changeCloud(func(c *infra.Cloud) {
		c.Open = func(_ context.Context, env infra.Env) (infra.Provider, error) {
			env.Throttled("RunInstances")
			env.Throttled("RunInstances")
			return r.provider, nil
		}
	})
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	if n := p.metric(`nstance_provider_throttled_total{call="RunInstances",cluster="test",shard="a"}`); n != "2" {
		t.Errorf("counted %q, want 2", n)
	}
}

// verifier is a provider that counts the calls of Configure. Its method Verify returns the error that `trouble`
// contains.
type verifier struct {
	infra.Provider
	configured *atomic.Int32
	trouble    *atomic.Pointer[error]
}

func (v verifier) Configure(shard *config.Shard) {
	if shard.Server.Shard == "a" && shard.Server.RequestTimeout != nil {
		v.configured.Add(1)
	}
}

func (v verifier) Verify(context.Context, *config.Shard) error { return *v.trouble.Load() }

func TestProviderIsConfiguredAndVerifies(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	var configured atomic.Int32
	var trouble atomic.Pointer[error]
	say := func(err error) { trouble.Store(&err) }
	say(infra.Errorf(infra.Invalid, "check", "subnet s is in zone-b"))
	r.changeCloud(func(c *infra.Cloud) {
		c.Open = func(context.Context, infra.Env) (infra.Provider, error) {
			return verifier{r.provider, &configured, &trouble}, nil
		}
	})
	p := r.start(testKey)
	p.awaitReason("subnet s is in zone-b")
	if n := r.running(); n != 0 || configured.Load() == 0 {
		t.Errorf("%d VMs run, configured %d times", n, configured.Load())
	}
	_ = p.end()
	say(errors.New("no answer"))
	p = r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	p.await("an event", func() bool {
		return p.metric(`nstance_alerts_total{cluster="test",kind="provider_config",shard="a"}`) == "1"
	})
	if !strings.Contains(p.log.String(), "configuration not verified") {
		t.Error("the log does not say so")
	}
}

// refusingProvider refuses configurations with the argument Bad.
type refusingProvider struct{ infra.Provider }

func (refusingProvider) Verify(_ context.Context, shard *config.Shard) error {
	if _, ok := shard.Defaults.Args["Bad"]; ok {
		return infra.Errorf(infra.Invalid, "check", "defaults.args.Bad: there is no such field")
	}
	return nil
}

// refuseBadArgs makes the mock provider refuse the argument Bad, and gives the server a key source for file keys.
func refuseBadArgs(cfg *Config) {
	open := cfg.Clouds[0].Open
	cfg.Clouds[0].Open = func(ctx context.Context, env infra.Env) (infra.Provider, error) {
		provider, err := open(ctx, env)
		return refusingProvider{provider}, err
	}
	cfg.KeySources = append(cfg.KeySources, keyring.Source{Name: config.FileKeySource,
		Read: func(context.Context, config.KeySource) ([]byte, error) {
			return []byte("other is a key of 32 bytes too.."), nil
		}})
}

// TestOpenAddress checks which means a server uses to move the shard's fixed address.
func TestOpenAddress(t *testing.T) {
	provider := &mock.Provider{}
	for name, test := range map[string]struct {
		network *config.LeaderNetwork
		want    infra.LeaderNetwork
		every   time.Duration
	}{
		"none":         {},
		"the provider": {&config.LeaderNetwork{IPv4: "10.0.0.9"}, provider, leader.AddressCheck},
		"this machine": {&config.LeaderNetwork{IPv4: "10.0.0.9", Kind: "arp"}, &layer2.Address{}, layer2.Interval},
	} {
		own := ownMachine{Provider: provider}
		err := own.openAddress(test.network)
		if err != nil && strings.Contains(err.Error(), "CAP_NET_ADMIN") && name == "this machine" {
			continue // this process has no such capability, and may not get the address
		}
		if err != nil || reflect.TypeOf(own.address) != reflect.TypeOf(test.want) ||
			own.addressInterval != test.every {
			t.Errorf("%s: %T every %v, %v", name, own.address, own.addressInterval, err)
		}
	}
}
