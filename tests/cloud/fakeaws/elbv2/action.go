package elbv2

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Action is what a listener or rule does with a request.
type Action struct {
	Type                string
	TargetGroupArn      string               `xml:",omitempty"`
	ForwardConfig       *ForwardConfig       `xml:",omitempty"`
	RedirectConfig      *RedirectConfig      `xml:",omitempty"`
	FixedResponseConfig *FixedResponseConfig `xml:",omitempty"`
	Order               int                  `xml:",omitempty"`
}

// ForwardConfig sends requests to target groups.
type ForwardConfig struct {
	TargetGroups                []WeightedGroup `xml:"TargetGroups>member"`
	TargetGroupStickinessConfig *Stickiness     `xml:",omitempty"`
}

// WeightedGroup is a target group and its share of the requests.
type WeightedGroup struct {
	TargetGroupArn string
	Weight         *int `xml:",omitempty"`
}

// Stickiness keeps a client at a target group.
type Stickiness struct {
	Enabled         *bool `xml:",omitempty"`
	DurationSeconds *int  `xml:",omitempty"`
}

// RedirectConfig sends the client elsewhere.
type RedirectConfig struct {
	Protocol   string `xml:",omitempty"`
	Port       string `xml:",omitempty"`
	Host       string `xml:",omitempty"`
	Path       string `xml:",omitempty"`
	Query      string `xml:",omitempty"`
	StatusCode string
}

// FixedResponseConfig answers at once.
type FixedResponseConfig struct {
	StatusCode  string
	ContentType string `xml:",omitempty"`
	MessageBody string `xml:",omitempty"`
}

// targets are the ARNs of the target groups that an action forwards to.
func (a Action) targets() []string {
	if a.ForwardConfig == nil {
		if a.TargetGroupArn == "" {
			return nil
		}
		return []string{a.TargetGroupArn}
	}
	var arns []string
	for _, g := range a.ForwardConfig.TargetGroups {
		arns = append(arns, g.TargetGroupArn)
	}
	return arns
}

// checkActions checks the actions of a listener or one of its rules. to are the protocols of target groups that the
// listener can forward to.
func (s *Service) checkActions(l *listener, actions []Action, to string) error {
	if len(actions) != 1 {
		// authentication, which would come before it, is not known here
		return invalid("Exactly one action must be specified")
	}
	a := actions[0]
	switch a.Type {
	case "forward":
		return s.checkForward(l, a, to)
	case "redirect":
		if a.RedirectConfig == nil || !slices.Contains([]string{"HTTP_301", "HTTP_302"}, a.RedirectConfig.StatusCode) {
			return invalid("A redirect action must specify a configuration with status code HTTP_301 or HTTP_302")
		}
	case "fixed-response":
		f := a.FixedResponseConfig
		if f == nil || len(f.StatusCode) != 3 || !strings.ContainsAny(f.StatusCode[:1], "245") {
			return invalid("A fixed-response action must specify a configuration with status code 2XX, 4XX or 5XX")
		}
	default:
		return wire.Errorf(400, "InvalidLoadBalancerAction", "Action type '%s' is not supported", a.Type)
	}
	return nil
}

func (s *Service) checkForward(l *listener, a Action, to string) error {
	arns := a.targets()
	if len(arns) == 0 {
		return invalid("A target group ARN must be specified")
	}
	if a.TargetGroupArn != "" && !slices.Equal(arns, []string{a.TargetGroupArn}) {
		return invalid("You cannot specify both a target group ARN and a forward configuration that differs from it")
	}
	for _, arn := range arns {
		g, err := s.group(arn)
		if err != nil {
			return err
		}
		if !slices.Contains(strings.Fields(to), g.protocol) {
			return wire.Errorf(400, "IncompatibleProtocols",
				"Target group '%s' with protocol %s cannot be used by a listener with protocol %s", arn, g.protocol,
				l.protocol)
		}
		if g.vpc != l.balancer.vpc {
			return wire.Errorf(400, "InvalidConfigurationRequest",
				"The following target groups are not in the load balancer VPC '%s': '%s'", l.balancer.vpc, arn)
		}
		if other := s.balancerOf(g); other != nil && other != l.balancer {
			return wire.Errorf(400, "TargetGroupAssociationLimit",
				"The following target groups cannot be associated with more than one load balancer: %s", arn)
		}
	}
	return nil
}

// balancerOf is the load balancer whose listeners or rules forward to the group, nil when none does: at most one can.
func (s *Service) balancerOf(g *group) *balancer {
	forwards := func(actions []Action) bool {
		return slices.ContainsFunc(actions, func(a Action) bool { return slices.Contains(a.targets(), g.arn) })
	}
	for l := range maps.Values(s.listeners) {
		if forwards(l.actions) {
			return l.balancer
		}
	}
	for r := range maps.Values(s.rules) {
		if forwards(r.actions) {
			return r.listener.balancer
		}
	}
	return nil
}

// describeActions tells actions as AWS does: a forward to one target group is told in both forms, whichever was used.
func describeActions(actions []Action) []Action {
	out := slices.Clone(actions)
	for i, a := range out {
		arns := a.targets()
		if a.Type != "forward" {
			if r := a.RedirectConfig; r != nil {
				full := *r
				orDefault(&full.Protocol, "#{protocol}")
				orDefault(&full.Port, "#{port}")
				orDefault(&full.Host, "#{host}")
				orDefault(&full.Path, "/#{path}")
				orDefault(&full.Query, "#{query}")
				out[i].RedirectConfig = &full
			}
			continue
		}
		if len(arns) == 1 {
			out[i].TargetGroupArn = arns[0]
		}
		forward := ForwardConfig{}
		if a.ForwardConfig != nil {
			forward = *a.ForwardConfig
			forward.TargetGroups = slices.Clone(forward.TargetGroups)
		} else {
			forward.TargetGroups = []WeightedGroup{{TargetGroupArn: a.TargetGroupArn}}
		}
		one, off := 1, false
		for j := range forward.TargetGroups {
			if forward.TargetGroups[j].Weight == nil {
				forward.TargetGroups[j].Weight = &one
			}
		}
		if forward.TargetGroupStickinessConfig == nil {
			forward.TargetGroupStickinessConfig = &Stickiness{Enabled: &off}
		}
		out[i].ForwardConfig = &forward
	}
	return out
}

func orDefault(to *string, value string) {
	if *to == "" {
		*to = value
	}
}
