package autoscaling

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Transitions at which a hook can make an instance wait.
const (
	launching = "autoscaling:EC2_INSTANCE_LAUNCHING"
	ending    = "autoscaling:EC2_INSTANCE_TERMINATING"
)

// hook is a lifecycle hook. https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html
type hook struct {
	AutoScalingGroupName  string
	DefaultResult         string
	GlobalTimeout         int
	HeartbeatTimeout      int
	LifecycleHookName     string
	LifecycleTransition   string
	NotificationMetadata  string `xml:",omitempty"`
	NotificationTargetARN string `xml:",omitempty"`
	RoleARN               string `xml:",omitempty"`
}

type hookSpec struct {
	DefaultResult         *string
	HeartbeatTimeout      *int
	LifecycleHookName     string
	LifecycleTransition   string
	NotificationMetadata  string
	NotificationTargetARN string
	RoleARN               string
}

func (spec hookSpec) hook() (*hook, error) {
	h := &hook{
		DefaultResult: orElse(spec.DefaultResult, "ABANDON"), HeartbeatTimeout: orElse(spec.HeartbeatTimeout, 3600),
		LifecycleHookName:   spec.LifecycleHookName,
		LifecycleTransition: spec.LifecycleTransition, NotificationMetadata: spec.NotificationMetadata,
		NotificationTargetARN: spec.NotificationTargetARN, RoleARN: spec.RoleARN,
	}
	h.GlobalTimeout = min(h.HeartbeatTimeout*100, 172800)
	switch {
	case h.LifecycleHookName == "":
		return nil, invalid("The lifecycle hook needs a name")
	case h.LifecycleTransition != launching && h.LifecycleTransition != ending:
		return nil, invalid("Invalid lifecycle transition: '%s'", h.LifecycleTransition)
	case h.DefaultResult != "CONTINUE" && h.DefaultResult != "ABANDON":
		return nil, invalid("Valid values for the default result are CONTINUE and ABANDON")
	case h.HeartbeatTimeout < 30 || h.HeartbeatTimeout > 7200:
		return nil, invalid("The heartbeat timeout must be between 30 and 7200 seconds")
	}
	return h, nil
}

func (h *hook) timeout() time.Duration { return time.Duration(h.HeartbeatTimeout) * time.Second }

// hookFor returns the group's hook at a transition, or nil if it has none. If a group has several hooks at the
// transition, AWS waits for all of them, but this fake waits only for the first.
func (g *group) hookFor(transition string) *hook {
	if g.deleting {
		return nil
	}
	for _, h := range g.hooks {
		if h.LifecycleTransition == transition {
			return h
		}
	}
	return nil
}

func (s *Service) putHook(c *wire.Call) (any, error) {
	var in struct {
		hookSpec
		AutoScalingGroupName string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	if old := slices.IndexFunc(g.hooks, func(h *hook) bool {
		return h.LifecycleHookName == in.LifecycleHookName
	}); old >= 0 && in.LifecycleTransition == "" {
		in.LifecycleTransition = g.hooks[old].LifecycleTransition
	}
	h, err := in.hook()
	if err != nil {
		return nil, err
	}
	g.hooks = slices.DeleteFunc(g.hooks, func(old *hook) bool { return old.LifecycleHookName == h.LifecycleHookName })
	if slices.ContainsFunc(g.hooks, func(old *hook) bool { return old.LifecycleTransition == h.LifecycleTransition }) {
		return nil, invalid("The fake knows one lifecycle hook for each transition")
	}
	h.AutoScalingGroupName = g.name
	g.hooks = append(g.hooks, h)
	return nil, nil
}

func (s *Service) deleteHook(c *wire.Call) (any, error) {
	var in struct{ AutoScalingGroupName, LifecycleHookName string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	before := len(g.hooks)
	g.hooks = slices.DeleteFunc(g.hooks, func(h *hook) bool { return h.LifecycleHookName == in.LifecycleHookName })
	if len(g.hooks) == before {
		return nil, invalid("No Lifecycle Hook found with name: %s", in.LifecycleHookName)
	}
	for _, m := range g.members { // members that wait for the hook continue
		if m.hook != nil && m.hook.LifecycleHookName == in.LifecycleHookName {
			m.wait = s.now()
		}
	}
	s.reconcile()
	return nil, nil
}

func (s *Service) describeHooks(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		LifecycleHookNames   []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	g, err := s.group(in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	var out struct {
		Hooks []hook `xml:"LifecycleHooks>member"`
	}
	for _, h := range g.hooks {
		if len(in.LifecycleHookNames) == 0 || slices.Contains(in.LifecycleHookNames, h.LifecycleHookName) {
			x := *h
			x.AutoScalingGroupName = g.name
			out.Hooks = append(out.Hooks, x)
		}
	}
	return out, nil
}

// waiting returns the member with the given instance ID. It returns an error unless that member waits for the hook with
// the given name.
func (s *Service) waiting(g *group, name, instance string) (*member, error) {
	for _, m := range g.members {
		if m.id == instance && m.hook != nil && m.hook.LifecycleHookName == name {
			return m, nil
		}
	}
	return nil, invalid("No active Lifecycle Action found with instance ID %s", instance)
}

type actionInput struct {
	AutoScalingGroupName  string
	InstanceId            string
	LifecycleActionResult string
	LifecycleActionToken  *string
	LifecycleHookName     string
}

func (s *Service) completeAction(c *wire.Call) (any, error) {
	var in actionInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	if in.LifecycleActionToken != nil {
		return nil, invalid("The fake knows no tokens of lifecycle actions: name the instance")
	}
	m, err := s.waiting(g, in.LifecycleHookName, in.InstanceId)
	if err != nil {
		return nil, err
	}
	switch {
	case in.LifecycleActionResult != "CONTINUE" && in.LifecycleActionResult != "ABANDON":
		return nil, invalid("Valid values for the result are CONTINUE and ABANDON")
	case in.LifecycleActionResult == "ABANDON" && m.state == pendingWait:
		s.retire(g, m, "instance was terminated because its lifecycle action was abandoned.")
	default:
		m.hook = nil
	}
	s.reconcile()
	return nil, nil
}
