// Package fakeaws is a fake AWS cloud with one account and one region. The real AWS SDK and the real Terraform provider
// can use it. It combines the services, authorizes and records calls, and injects faults.
//
// Invariant: a call without a valid signature is refused, except that S3 accepts calls without any signature. A role's
// call is answered only after the role's policies were evaluated. One lock protects all state. Calls run one at a time,
// except those to S3.
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
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/rate"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Account is the account that owns all resources.
const Account = "123456789012"

// Config configures a Cloud. The zero value is a cloud in us-west-2 without S3. No machines run its instances, and its
// targets are always healthy.
type Config struct {
	Region string   // "": us-west-2
	Zones  []string // nil: a, b and c of the region
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now

	// Machines creates the machines that run instances. The machines use api to call the cloud. Nil means that no
	// machines run the instances. The caller closes the machines after Close.
	Machines func(api http.Handler) (ec2.Machines, error)
	// S3 is the server behind the buckets. Nil means that there is no S3.
	S3 *s3.Backend
	// Probe runs the health checks of load balancers, one round every HealthEvery. A HealthEvery of 0 means 1 s. If
	// Probe is nil, running instances are healthy.
	Probe       elbv2.Probe
	HealthEvery time.Duration
	// ScalingEvery is the time between two checks of Auto Scaling's groups. 0 means Auto Scaling's own default.
	ScalingEvery time.Duration
	// GoogleKeys returns the certificates of the keys that sign Google's identity tokens, in PEM, by key ID. Nil means
	// that no role can be assumed with such a token.
	GoogleKeys func() (map[string]string, error)
	// Limits throttles the requests to EC2. Nil means no limits.
	Limits *rate.Limits
}

// Cloud is the fake cloud. Its methods may be called concurrently, but never by a handler.
type Cloud struct {
	cfg Config

	mu       sync.Mutex // protects all state of all services
	calls    []Call
	keys     keyring
	handlers map[string]map[string]wire.Handler // by service and action
	streams  map[string]wire.Streamer           // by service
	faults   fault.Set                          // has its own lock
	control  *policy.Document                   // nil: none

	iam         *iam.Service
	ec2         *ec2.Service
	elb         *elbv2.Service
	autoscaling *autoscaling.Service
	s3          *s3.Service // nil: none

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes an empty cloud. It runs until Close.
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

// Close ends the cloud's background work. It does not end instances: the creator of the machines closes them.
func (c *Cloud) Close() error {
	c.stop()
	c.running.Wait()
	if c.s3 != nil {
		c.s3.Close()
	}
	return nil
}

// Faults returns the set of injected faults. Tests add faults to it.
func (c *Cloud) Faults() *fault.Set { return &c.faults }

// Region returns the region's name.
func (c *Cloud) Region() string { return c.cfg.Region }

// EC2 returns the fake EC2, so that tests can control it. If a method of EC2 needs the cloud's lock, call the method in
// a function that you pass to [Cloud.Locked].
func (c *Cloud) EC2() *ec2.Service { return c.ec2 }

// Locked runs f with the cloud's lock held.
func (c *Cloud) Locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Calls returns all calls so far, in the order in which they were executed.
func (c *Cloud) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}
