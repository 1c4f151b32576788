package autoscaling

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// processes are what a group does by itself and can be told to leave. https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html
var processes = []string{
	"AZRebalance", "AddToLoadBalancer", "AlarmNotification", "HealthCheck", "InstanceRefresh", "Launch",
	"ReplaceUnhealthy", "ScheduledActions", "Terminate",
}

// groupMetrics are what EnableMetricsCollection takes. https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_EnableMetricsCollection.html
var groupMetrics = []string{
	"GroupAndWarmPoolDesiredCapacity", "GroupAndWarmPoolTotalCapacity", "GroupDesiredCapacity",
	"GroupInServiceCapacity", "GroupInServiceInstances", "GroupMaxSize",
	"GroupMinSize", "GroupPendingCapacity", "GroupPendingInstances", "GroupStandbyCapacity", "GroupStandbyInstances",
	"GroupTerminatingCapacity",
	"GroupTerminatingInstances", "GroupTotalCapacity", "GroupTotalInstances", "WarmPoolDesiredCapacity",
	"WarmPoolMinSize", "WarmPoolPendingCapacity",
	"WarmPoolTerminatingCapacity", "WarmPoolTotalCapacity", "WarmPoolWarmedCapacity",
}

func (s *Service) processOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"SuspendProcesses":         s.suspendProcesses,
		"ResumeProcesses":          s.resumeProcesses,
		"EnableMetricsCollection":  s.enableMetrics,
		"DisableMetricsCollection": s.disableMetrics,
		"DescribeWarmPool":         s.describeWarmPool,
		"DescribePolicies":         s.describePolicies,
	}
}

func (s *Service) suspendProcesses(c *wire.Call) (any, error) {
	return s.setProcesses(c, func(g *group, name string) {
		g.suspended[name] = "User suspended at " + s.now().UTC().Format("2006-01-02T15:04:05Z")
	})
}

func (s *Service) resumeProcesses(c *wire.Call) (any, error) {
	return s.setProcesses(c, func(g *group, name string) { delete(g.suspended, name) })
}

// setProcesses does something to the processes that a request names, to all when it names none.
func (s *Service) setProcesses(c *wire.Call, do func(g *group, name string)) (any, error) {
	var in struct {
		AutoScalingGroupName string
		ScalingProcesses     []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	for _, name := range in.ScalingProcesses {
		if !slices.Contains(processes, name) {
			return nil, invalid("Invalid scaling process type: %s", name)
		}
	}
	if len(in.ScalingProcesses) == 0 {
		in.ScalingProcesses = processes
	}
	for _, name := range in.ScalingProcesses {
		do(g, name)
	}
	s.reconcile()
	return nil, nil
}

func (s *Service) enableMetrics(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		Granularity          string
		Metrics              []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	if in.Granularity != "1Minute" {
		return nil, invalid("Valid metric granularities are: [1Minute].")
	}
	if len(in.Metrics) == 0 {
		in.Metrics = groupMetrics
	}
	for _, m := range in.Metrics {
		if !slices.Contains(groupMetrics, m) {
			return nil, invalid("Invalid metric: %s", m)
		}
	}
	g.metrics = slices.Compact(slices.Sorted(slices.Values(append(g.metrics, in.Metrics...))))
	return nil, nil
}

func (s *Service) disableMetrics(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		Metrics              []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	g.metrics = slices.DeleteFunc(g.metrics, func(m string) bool {
		return len(in.Metrics) == 0 || slices.Contains(in.Metrics, m)
	})
	return nil, nil
}

// describeWarmPool: no group here has one.
func (s *Service) describeWarmPool(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		MaxRecords           *int
		NextToken            string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	_, err := s.group(in.AutoScalingGroupName)
	return nil, err
}

// describePolicies: no group here has a scaling policy.
func (s *Service) describePolicies(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		MaxRecords           *int
		NextToken            string
		PolicyNames          []string
		PolicyTypes          []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	return nil, allowAny(c)
}
