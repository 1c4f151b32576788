package fault_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func TestTake(t *testing.T) {
	var s fault.Set
	s.Fail(fault.Match{Service: "ec2", Action: "RunInstances"}, 2, 400, "First", "one")
	s.Fail(fault.Match{Service: "ec2"}, 1, 400, "Second", "two")
	s.Delay(fault.Match{Role: "server"}, fault.Forever, time.Second)
	s.LoseAnswer(fault.Match{Action: "RunInstances", Role: "server"}, 1)

	code := func(e fault.Effect) string {
		if e.Err == nil {
			return ""
		}
		return e.Err.Code
	}
	for i, want := range []struct {
		service, action, role, code string
		delay                       time.Duration
		lost                        bool
	}{
		{"s3", "RunInstances", "", "", 0, false},
		{"ec2", "DescribeVpcs", "other", "Second", 0, false},
		{"ec2", "RunInstances", "server", "First", time.Second, true},
		{"ec2", "RunInstances", "server", "First", time.Second, false},
		{"ec2", "RunInstances", "server", "", time.Second, false},
		{"ec2", "DescribeVpcs", "", "", 0, false},
	} {
		if got := s.Take(want.service, want.action, want.role); code(got) != want.code || got.Delay != want.delay ||
			got.Lost != want.lost {
			t.Errorf("%d: got %+v, want %+v", i, got, want)
		}
	}
	if s.Pending() != 1 {
		t.Errorf("%d faults wait, not only the one for ever", s.Pending())
	}
	s.Clear()
	if got := s.Take("ec2", "RunInstances", "server"); got != (fault.Effect{}) || s.Pending() != 0 {
		t.Errorf("after Clear: %+v", got)
	}
}

func TestThrottle(t *testing.T) {
	for service, want := range map[string]wire.Error{
		"ec2":                  {Code: "RequestLimitExceeded", Status: 503},
		"s3":                   {Code: "SlowDown", Status: 503},
		"ssm":                  {Code: "ThrottlingException", Status: 400},
		"secretsmanager":       {Code: "ThrottlingException", Status: 400},
		"autoscaling":          {Code: "Throttling", Status: 400},
		"elasticloadbalancing": {Code: "Throttling", Status: 400},
	} {
		var s fault.Set
		s.Throttle(fault.Match{}, 1)
		if got := s.Take(service, "Any", "").Err; got == nil || got.Code != want.Code || got.Status != want.Status ||
			got.Message == "" {
			t.Errorf("%s: got %+v", service, got)
		}
	}
}

func TestCapacity(t *testing.T) {
	var s fault.Set
	if err := s.Capacity("t3.small", "us-west-2a", "subnet-1"); err != nil {
		t.Error(err)
	}
	s.NoCapacity("t3.small", "us-west-2a", "", "InsufficientInstanceCapacity")
	s.NoCapacity("", "", "subnet-2", "SpotMaxPriceTooLow")
	for _, c := range []struct {
		instanceType, zone, subnet, code string
		status                           int
	}{
		{"t3.small", "us-west-2a", "subnet-1", "InsufficientInstanceCapacity", 500},
		{"t3.small", "us-west-2b", "subnet-1", "", 0},
		{"t3.large", "us-west-2a", "subnet-1", "", 0},
		{"t3.large", "us-west-2b", "subnet-2", "SpotMaxPriceTooLow", 400},
	} {
		err := s.Capacity(c.instanceType, c.zone, c.subnet)
		var api *wire.Error
		if c.code == "" && err != nil || c.code != "" && (!errors.As(err, &api) || api.Code != c.code ||
			api.Status != c.status) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	s.SetLag(time.Minute)
	if s.Lag() != time.Minute {
		t.Errorf("lag %s", s.Lag())
	}
	s.Clear()
	if err := s.Capacity("t3.small", "us-west-2a", "subnet-1"); err != nil || s.Lag() != 0 {
		t.Error("Clear left something")
	}
}
