// Package fakeaws is a cloud of one account and one region for the real AWS SDK and the real Terraform provider: the composition of its services, who may call
// them, a record of what was called, and what is made to go wrong.
//
// Invariant: a call is answered only with a valid signature, and, when a role made it, only after the role's policies were asked. All state lies under one lock
// and one call is done at a time; S3 alone streams beside it.
package fakeaws

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/secretsmanager"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ssm"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/sts"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Account is the account that all of it belongs to.
const Account = "123456789012"

// Config is what a Cloud is made of. The zero value is a cloud in us-west-2 whose instances are records, without S3.
type Config struct {
	Region string   // "": us-west-2
	Zones  []string // nil: a, b and c of the region
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Cloud is the whole. Its methods may be called concurrently, and never by a handler.
type Cloud struct {
	cfg Config

	mu       sync.Mutex // all state of all services
	calls    []Call
	keys     keyring
	handlers map[string]map[string]wire.Handler // by service and action
	streams  map[string]wire.Streamer           // by service
	faults   fault.Set                          // has a lock of its own

	iam *iam.Service
}

// New makes a cloud with nothing in it.
func New(cfg Config) (*Cloud, error) {
	if cfg.Region == "" {
		cfg.Region = "us-west-2"
	}
	if cfg.Zones == nil {
		cfg.Zones = []string{cfg.Region + "a", cfg.Region + "b", cfg.Region + "c"}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Cloud{cfg: cfg, handlers: map[string]map[string]wire.Handler{}, streams: map[string]wire.Streamer{}, keys: newKeyring()}
	c.compose()
	return c, nil
}

// compose makes the services and connects them.
func (c *Cloud) compose() {
	c.iam = iam.New(Account)
	c.add(c.iam)
	c.add(sts.New(sts.Config{Role: c.iam.Role, Issue: c.issue}))
	c.add(ssm.New(c.cfg.Region, Account))
	c.add(secretsmanager.New(c.cfg.Region, Account, c.cfg.Now))
}

func (c *Cloud) add(s wire.Service) { c.handlers[s.Name()] = s.Operations() }

// Faults is where tests make calls fail.
func (c *Cloud) Faults() *fault.Set { return &c.faults }

// Region is the region's name.
func (c *Cloud) Region() string { return c.cfg.Region }

// Calls are all calls so far, in the order in which they were done.
func (c *Cloud) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Operations are the services' actions that this cloud can do, by signing name, sorted.
func (c *Cloud) Operations() map[string][]string {
	out := map[string][]string{}
	for service, handlers := range c.handlers {
		for action := range handlers {
			out[service] = append(out[service], action)
		}
		slices.Sort(out[service])
	}
	return out
}

// Close ends what runs.
func (c *Cloud) Close() error { return nil }
