// Package fakeaws is a cloud of one account and one region for the real AWS SDK and the real Terraform provider: the
// composition of its services, who may call them, a record of what was called, and what is made to go wrong.
//
// Invariant: a call is answered only with a valid signature, and, when a role made it, only after the role's policies
// were asked. All state lies under one lock and one call is done at a time; S3 alone streams beside it.
package fakeaws

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/autoscaling"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/elbv2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Account is the account that all of it belongs to.
const Account = "123456789012"

// Config is what a Cloud is made of. The zero value is a cloud in us-west-2 whose instances are records and whose
// targets are healthy, without S3.
type Config struct {
	Region string   // "": us-west-2
	Zones  []string // nil: a, b and c of the region
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now

	// Machines makes what runs instances; api is the cloud, as machines reach it. nil: instances are records. The
	// caller closes what he made, after Close.
	Machines func(api http.Handler) (ec2.Machines, error)
	// S3 is the server behind the buckets. nil: there is no S3.
	S3 *s3.Backend
	// Probe answers the health checks of load balancers, one round each HealthEvery (0: a second). nil: instances that
	// run are healthy.
	Probe       elbv2.Probe
	HealthEvery time.Duration
	// ScalingEvery is how often Auto Scaling looks at its groups. 0: its own default.
	ScalingEvery time.Duration
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

	iam         *iam.Service
	ec2         *ec2.Service
	elb         *elbv2.Service
	autoscaling *autoscaling.Service
	s3          *s3.Service // nil: none

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes a cloud with nothing in it. It runs until Close.
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
	if cfg.HealthEvery == 0 {
		cfg.HealthEvery = time.Second
	}
	c := &Cloud{cfg: cfg, handlers: map[string]map[string]wire.Handler{}, streams: map[string]wire.Streamer{},
		keys: newKeyring()}
	if err := c.compose(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.running.Go(func() { c.autoscaling.Run(ctx) })
	if cfg.Probe != nil {
		c.running.Go(func() { c.elb.Run(ctx, cfg.HealthEvery) })
	}
	return c, nil
}

// Close ends what runs by itself. It does not end instances: who made the machines does.
func (c *Cloud) Close() error {
	c.stop()
	c.running.Wait()
	if c.s3 != nil {
		c.s3.Close()
	}
	return nil
}

// Faults is where tests make calls fail.
func (c *Cloud) Faults() *fault.Set { return &c.faults }

// Region is the region's name.
func (c *Cloud) Region() string { return c.cfg.Region }

// EC2 is for its levers. Those that want the cloud's lock are called inside Locked.
func (c *Cloud) EC2() *ec2.Service { return c.ec2 }

// Locked runs f while nothing else happens in the cloud.
func (c *Cloud) Locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Calls are all calls so far, in the order in which they were done.
func (c *Cloud) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}
