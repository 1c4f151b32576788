package fakeaws

import (
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/autoscaling"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/elbv2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/secretsmanager"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ssm"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/sts"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// compose makes the services and connects them.
func (c *Cloud) compose() error {
	region, now := c.cfg.Region, c.cfg.Now
	c.iam = iam.New(Account)
	c.add(c.iam)
	c.add(sts.New(sts.Config{GoogleKeys: c.cfg.GoogleKeys, Role: c.iam.Role,
		Issue: func(role, session string, length time.Duration) sts.Credentials {
			made := c.issue(role, session, length)
			return sts.Credentials{AccessKeyId: made.Access, SecretAccessKey: made.Secret, SessionToken: made.Token,
				Expiration: wire.Time{Time: made.Expires}}
		}}))
	c.add(ssm.New(region, Account))
	c.add(secretsmanager.New(region, Account, now))

	var machines ec2.Machines
	if c.cfg.Machines != nil {
		var err error
		if machines, err = c.cfg.Machines(c); err != nil {
			return fmt.Errorf("make machines: %w", err)
		}
	}
	c.ec2 = ec2.New(ec2.Config{
		Region: region, Account: Account, Zones: c.cfg.Zones, Now: now, Machines: machines, Log: c.cfg.Log, Lock: &c.mu,
		Faults: &c.faults,
	})
	c.ec2.SetIdentity(identity{c})
	c.add(c.ec2)
	c.elb = elbv2.New(elbv2.Config{Region: region, Account: Account, Network: network{c.ec2}, Now: now, Lock: &c.mu,
		Probe: c.cfg.Probe})
	c.add(c.elb)
	c.autoscaling = autoscaling.New(autoscaling.Config{
		Region: region, Account: Account, Zones: c.cfg.Zones, EC2: c.ec2, Targets: targets{c.elb}, Now: now,
		Lock: &c.mu, Log: c.cfg.Log, Every: c.cfg.ScalingEvery,
	})
	c.add(c.autoscaling)

	if c.cfg.S3 == nil {
		return nil
	}
	var err error
	if c.s3, err = s3.New(s3.Config{Region: region, Account: Account, Backend: *c.cfg.S3}); err != nil {
		return fmt.Errorf("make S3: %w", err)
	}
	c.streams[c.s3.Name()] = c.s3
	return nil
}

func (c *Cloud) add(s wire.Service) { c.handlers[s.Name()] = s.Operations() }

// identity implements the interface through which EC2 uses IAM.
type identity struct{ c *Cloud }

func (i identity) InstanceProfile(nameOrARN string) (ec2.Profile, bool) {
	p, ok := i.c.iam.Profile(nameOrARN)
	role, _ := i.c.iam.Role(p.Role)
	return ec2.Profile{ARN: p.ARN, ID: p.ID, Name: p.Name, RoleName: role.Name, RoleARN: role.ARN}, ok
}

func (i identity) RoleCredentials(role, session string) ec2.Credentials {
	return i.c.profileCredentials(role, session)
}

// network implements the interface through which load balancers use EC2.
type network struct{ *ec2.Service }

func (n network) Subnet(id string) (elbv2.Subnet, bool) {
	s, ok := n.Service.Subnet(id)
	return elbv2.Subnet{VPC: s.VPC, Zone: s.Zone, IPv6: s.IPv6.IsValid()}, ok
}

func (n network) Instance(id string) (elbv2.Instance, bool) {
	i, ok := n.Service.Instance(id)
	out := elbv2.Instance{State: i.State, VPC: i.VPC, Zone: i.Zone}
	if address := i.PrivateIP; address.IsValid() {
		out.Address = address.String()
	} else if i.IPv6.IsValid() {
		out.Address = i.IPv6.String()
	}
	return out, ok
}

func (n network) CreateInterface(i elbv2.Interface) (string, error) {
	spec := ec2.InterfaceSpec{Subnet: i.Subnet, Description: i.Description, Type: "network_load_balancer",
		Groups: i.Groups, Requester: "amazon-elb"}
	if i.IPv6 {
		spec.IPv6Count = 1
	}
	made, err := n.Service.CreateInterface(spec)
	if err != nil {
		return "", err
	}
	return made.ID(), nil
}

// targets implements the interface through which Auto Scaling uses target groups.
type targets struct{ *elbv2.Service }

// Deregister removes a target. A group or a target that does not exist is not an error.
func (t targets) Deregister(groupARN, instanceID string) {
	_ = t.Service.Deregister(groupARN, instanceID)
}
