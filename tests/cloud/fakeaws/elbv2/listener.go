package elbv2

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// listener is one port of a load balancer.
type listener struct {
	arn      string
	created  time.Time
	balancer *balancer
	in       createListener
	group    *group
}

type certificate struct{ CertificateArn string }

// action forwards connections to one target group. A request may name the target group in TargetGroupArn or in
// ForwardConfig. The Terraform provider uses both fields.
type action struct {
	Type           string
	TargetGroupArn string         `xml:",omitempty"`
	ForwardConfig  *forwardConfig `xml:",omitempty"`
	Order          int            `xml:",omitempty"`
}

type forwardConfig struct {
	TargetGroups                []weightedGroup `xml:"TargetGroups>member"`
	TargetGroupStickinessConfig *struct{ Enabled bool }
}

type weightedGroup struct {
	TargetGroupArn string
	Weight         *int `xml:",omitempty"`
}

type createListener struct {
	LoadBalancerArn string
	Protocol        string
	Port            int
	SslPolicy       string
	Certificates    []certificate
	DefaultActions  []action
	Tags            []Tag
}

func (s *Service) createListener(c *wire.Call) (any, error) {
	var in createListener
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	// A listener's ARN is the ARN of its load balancer with another resource type and a random ID at the end.
	arn := strings.Replace(in.LoadBalancerArn, ":loadbalancer/", ":listener/", 1) + "/" + newID()
	if err := s.allowCreate(c, in.LoadBalancerArn, arn, in.Tags, policy.Context{
		"elasticloadbalancing:ListenerProtocol": {in.Protocol}}); err != nil {
		return nil, err
	}
	b, err := s.balancer(in.LoadBalancerArn)
	if err != nil {
		return nil, err
	}
	l := &listener{arn: arn, created: c.Now, balancer: b, in: in}
	for _, old := range s.listeners {
		if old.balancer != b || old.in.Port != in.Port {
			continue
		}
		if reflect.DeepEqual(old.in, in) {
			return listenersAnswer{Listeners: []listenerAnswer{describeListener(old)}}, nil
		}
		if overlap(old.in.Protocol, in.Protocol) {
			return nil, wire.Errorf(400, "DuplicateListener",
				"A listener already exists on this port for this load balancer '%s'", b.arn)
		}
	}
	if err := s.checkListener(l); err != nil {
		return nil, err
	}
	if err := checkTags(in.Tags); err != nil {
		return nil, err
	}
	s.listeners[l.arn] = l
	s.setTags(l.arn, in.Tags)
	return listenersAnswer{Listeners: []listenerAnswer{describeListener(l)}}, nil
}

// overlap reports whether two protocols conflict on one port. UDP and TCP do not.
func overlap(a, b string) bool {
	return (a == "UDP") == (b == "UDP") || a == "TCP_UDP" || b == "TCP_UDP"
}

// targetProtocols maps the protocol of a listener to the protocols of the target groups that it can forward to.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/network/load-balancer-listeners.html
var targetProtocols = map[string][]string{
	"TCP": {"TCP"}, "TLS": {"TLS", "TCP"}, "UDP": {"UDP", "TCP_UDP"}, "TCP_UDP": {"TCP_UDP"},
}

// checkListener checks a new listener and sets its target group.
func (s *Service) checkListener(l *listener) error {
	in, secure := &l.in, l.in.Protocol == "TLS"
	switch {
	case targetProtocols[in.Protocol] == nil:
		return wire.Errorf(400, "UnsupportedProtocol",
			"Listener protocol '%s' is not supported for load balancers of type network", in.Protocol)
	case in.Port < 1 || in.Port > 65535:
		return invalid("Listener port '%d' must be between 1 and 65535", in.Port)
	case secure && len(in.Certificates) != 1:
		return invalid("A certificate must be specified for TLS listeners")
	case secure && !strings.HasPrefix(in.Certificates[0].CertificateArn, "arn:aws:acm:"):
		return wire.Errorf(400, "CertificateNotFound", "Certificate '%s' not found", in.Certificates[0].CertificateArn)
	case secure && !strings.HasPrefix(in.SslPolicy, "ELBSecurityPolicy-"):
		return wire.Errorf(400, "SSLPolicyNotFound", "SSL policy '%s' not found", in.SslPolicy)
	case !secure && (len(in.Certificates) > 0 || in.SslPolicy != ""):
		return invalid("Certificates and a security policy can be specified only for HTTPS and TLS listeners")
	case len(in.DefaultActions) != 1:
		return invalid("Exactly one action must be specified")
	case in.DefaultActions[0].Type != "forward":
		return wire.Errorf(400, "InvalidLoadBalancerAction",
			"Actions of type '%s' are not supported for load balancers of type network", in.DefaultActions[0].Type)
	}
	arn, err := in.DefaultActions[0].target()
	if err != nil {
		return err
	}
	if l.group, err = s.group(arn); err != nil {
		return err
	}
	switch other := s.balancerOf(l.group); {
	case !slices.Contains(targetProtocols[in.Protocol], l.group.protocol):
		return wire.Errorf(400, "IncompatibleProtocols",
			"Target group '%s' with protocol %s cannot be used by a listener with protocol %s", arn, l.group.protocol,
			in.Protocol)
	case l.group.vpc != l.balancer.vpc:
		return wire.Errorf(400, "InvalidConfigurationRequest",
			"The following target groups are not in the load balancer VPC '%s': '%s'", l.balancer.vpc, arn)
	case other != nil && other != l.balancer:
		return wire.Errorf(400, "TargetGroupAssociationLimit",
			"The following target groups cannot be associated with more than one load balancer: %s", arn)
	}
	return nil
}

// target returns the ARN of the target group of a forward action.
func (a action) target() (string, error) {
	arn := a.TargetGroupArn
	if f := a.ForwardConfig; f != nil {
		if len(f.TargetGroups) != 1 || arn != "" && f.TargetGroups[0].TargetGroupArn != arn {
			return "", invalid("A forward action of a network load balancer must name exactly one target group")
		}
		arn = f.TargetGroups[0].TargetGroupArn
	}
	if arn == "" {
		return "", invalid("A target group ARN must be specified")
	}
	return arn, nil
}

// balancerOf returns the load balancer that forwards to the group, or nil. There is at most one.
func (s *Service) balancerOf(g *group) *balancer {
	for l := range maps.Values(s.listeners) {
		if l.group == g {
			return l.balancer
		}
	}
	return nil
}

type listenerAnswer struct {
	ListenerArn, LoadBalancerArn string
	Port                         int
	Protocol                     string
	Certificates                 []certificate `xml:"Certificates>member"`
	SslPolicy                    string        `xml:",omitempty"`
	DefaultActions               []action      `xml:"DefaultActions>member"`
}

type listenersAnswer struct {
	Listeners  []listenerAnswer `xml:"Listeners>member"`
	NextMarker string           `xml:",omitempty"`
}

// describeListener describes a listener with its target group in both TargetGroupArn and ForwardConfig, whichever of
// the two fields the request used.
func describeListener(l *listener) listenerAnswer {
	weight := 1
	return listenerAnswer{
		ListenerArn: l.arn, LoadBalancerArn: l.balancer.arn, Port: l.in.Port, Protocol: l.in.Protocol,
		SslPolicy: l.in.SslPolicy, Certificates: l.in.Certificates,
		DefaultActions: []action{{
			Type: "forward", TargetGroupArn: l.group.arn, Order: l.in.DefaultActions[0].Order,
			ForwardConfig: &forwardConfig{TargetGroups: []weightedGroup{{l.group.arn, &weight}},
				TargetGroupStickinessConfig: &struct{ Enabled bool }{}},
		}},
	}
}

func (s *Service) describeListeners(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn, Marker string
		ListenerArns            []string
		PageSize                int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	if (in.LoadBalancerArn == "") == (len(in.ListenerArns) == 0) {
		return nil, invalid("You must specify either listener ARNs or a load balancer ARN")
	}
	var wanted []*listener
	if in.LoadBalancerArn != "" {
		b, err := s.balancer(in.LoadBalancerArn)
		if err != nil {
			return nil, err
		}
		all := inOrder(s.listeners, func(l *listener) (time.Time, string) { return l.created, l.arn })
		wanted = slices.DeleteFunc(all, func(l *listener) bool { return l.balancer != b })
	}
	for _, arn := range in.ListenerArns {
		l, err := s.listener(arn)
		if err != nil {
			return nil, wire.Errorf(400, "ListenerNotFound", "One or more listeners not found")
		}
		wanted = append(wanted, l)
	}
	var out listenersAnswer
	var err error
	wanted, out.NextMarker, err = page(wanted, in.PageSize, in.Marker)
	for _, l := range wanted {
		out.Listeners = append(out.Listeners, describeListener(l))
	}
	return out, err
}

func (s *Service) deleteListener(c *wire.Call) (any, error) {
	var in struct{ ListenerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, in.ListenerArn, nil); err != nil {
		return nil, err
	}
	l, err := s.listener(in.ListenerArn)
	if err != nil {
		return nil, err
	}
	s.removeListener(l)
	return nil, nil
}

func (s *Service) removeListener(l *listener) {
	delete(s.listeners, l.arn)
	delete(s.tags, l.arn)
}

func (s *Service) describeListenerAttributes(c *wire.Call) (any, error) {
	var in struct{ ListenerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	l, err := s.listener(in.ListenerArn)
	if err != nil {
		return nil, err
	}
	var out attributesAnswer
	if l.in.Protocol == "TCP" {
		out.Attributes = []Attribute{{"tcp.idle_timeout.seconds", "350"}}
	}
	return out, nil
}
