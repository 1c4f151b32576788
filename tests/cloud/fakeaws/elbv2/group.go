package elbv2

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// group is a target group of instances.
type group struct {
	arn         string
	created     time.Time
	in          createGroup // A repeated request with the same settings returns the same group.
	name        string
	protocol    string
	port        int
	vpc         string
	addressType string
	check       check
	attributes  map[string]string
	targets     map[key]*target
}

// check is the health check of a group.
type check struct {
	protocol, path, port, codes string
	interval, timeout           int // seconds
	healthy, unhealthy          int // Consecutive checks.
}

// matcher is the set of HTTP status codes of healthy targets.
type matcher struct {
	HttpCode string
}

type createGroup struct {
	Name, Protocol             string
	Port                       int
	VpcId, TargetType          string
	IpAddressType              string
	Tags                       []Tag
	HealthCheckEnabled         *bool
	HealthCheckProtocol        *string
	HealthCheckPath            *string
	HealthCheckPort            *string
	HealthCheckIntervalSeconds *int
	HealthCheckTimeoutSeconds  *int
	HealthyThresholdCount      *int
	UnhealthyThresholdCount    *int
	Matcher                    *matcher
}

func (s *Service) createTargetGroup(c *wire.Call) (any, error) {
	var in createGroup
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := checkName("target group", in.Name); err != nil {
		return nil, err
	}
	g := &group{
		arn: s.arn("targetgroup", in.Name, newID()), created: c.Now, in: in, name: in.Name, protocol: in.Protocol,
		port: in.Port, vpc: in.VpcId, addressType: in.IpAddressType, attributes: map[string]string{},
		targets: map[key]*target{},
	}
	if err := s.allowCreate(c, g.arn, g.arn, in.Tags, nil); err != nil {
		return nil, err
	}
	for _, old := range s.groups {
		if old.name != in.Name {
			continue
		}
		if reflect.DeepEqual(old.in, in) {
			return groupsAnswer{TargetGroups: []targetGroup{s.describeGroup(old)}}, nil
		}
		return nil, wire.Errorf(400, "DuplicateTargetGroupName",
			"A target group with the same name '%s' exists, but with different settings", in.Name)
	}
	if err := s.checkGroup(g); err != nil {
		return nil, err
	}
	if err := checkTags(in.Tags); err != nil {
		return nil, err
	}
	if err := g.setCheck(); err != nil {
		return nil, err
	}
	s.groups[g.arn] = g
	s.setTags(g.arn, in.Tags)
	return groupsAnswer{TargetGroups: []targetGroup{s.describeGroup(g)}}, nil
}

// checkGroup checks all settings of a target group except its health check, and sets defaults.
func (s *Service) checkGroup(g *group) error {
	if g.addressType == "" {
		g.addressType = "ipv4"
	}
	switch {
	case g.in.TargetType != "" && g.in.TargetType != "instance":
		return wire.Errorf(501, "NotImplemented", "fakeaws has no targets of type '%s'", g.in.TargetType)
	case !slices.Contains([]string{"TCP", "TLS", "UDP", "TCP_UDP"}, g.protocol):
		return invalid("Protocol '%s' must be one of TCP, TLS, UDP, TCP_UDP", g.protocol)
	case g.port < 1 || g.port > 65535:
		return invalid("Port '%d' must be between 1 and 65535", g.port)
	case g.vpc == "":
		return invalid("A VPC ID must be specified")
	case !s.cfg.Network.VPC(g.vpc):
		return invalid("The VPC ID '%s' is not found", g.vpc)
	case g.addressType != "ipv4" && g.addressType != "ipv6":
		return invalid("IP address type '%s' must be one of ipv4, ipv6", g.addressType)
	}
	return nil
}

// setCheck sets the health check of a new group. The request's settings override the defaults.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/network/target-group-health-checks.html
func (g *group) setCheck() error {
	n := check{protocol: "TCP", port: "traffic-port", interval: 30, timeout: 10, healthy: 5, unhealthy: 2}
	override(&n.protocol, g.in.HealthCheckProtocol)
	http := n.protocol == "HTTP" || n.protocol == "HTTPS"
	switch {
	case !http && n.protocol != "TCP":
		return invalid("Health check protocol '%s' must be one of HTTP, HTTPS, TCP", n.protocol)
	case !http && (g.in.HealthCheckPath != nil || g.in.Matcher != nil):
		return invalid("Health check path and matcher are not supported for health checks with protocol %s", n.protocol)
	case http:
		n.path, n.codes = "/", "200-399"
	}
	if n.protocol == "HTTP" {
		n.timeout = 6
	}
	override(&n.path, g.in.HealthCheckPath)
	override(&n.port, g.in.HealthCheckPort)
	override(&n.interval, g.in.HealthCheckIntervalSeconds)
	override(&n.timeout, g.in.HealthCheckTimeoutSeconds)
	override(&n.healthy, g.in.HealthyThresholdCount)
	override(&n.unhealthy, g.in.UnhealthyThresholdCount)
	if g.in.Matcher != nil {
		n.codes = g.in.Matcher.HttpCode
	}
	port, err := strconv.Atoi(n.port)
	switch {
	case g.in.HealthCheckEnabled != nil && !*g.in.HealthCheckEnabled:
		return wire.Errorf(400, "InvalidConfigurationRequest",
			"Health check enabled must be true for target groups with target type 'instance'")
	case http && (!strings.HasPrefix(n.path, "/") || len(n.path) > 1024):
		return invalid("Health check path '%s' must begin with a '/' character, and can be at most 1024 characters",
			n.path)
	case n.port != "traffic-port" && (err != nil || port < 1 || port > 65535):
		return invalid("Health check port '%s' must be 'traffic-port' or in the range 1-65535", n.port)
	case n.interval < 5 || n.interval > 300:
		return invalid("Health check interval '%d' must be in the range 5-300", n.interval)
	case n.timeout < 2 || n.timeout > 120:
		return invalid("Health check timeout '%d' must be in the range 2-120", n.timeout)
	case n.healthy < 2 || n.healthy > 10 || n.unhealthy < 2 || n.unhealthy > 10:
		return invalid("Health check thresholds '%d' and '%d' must be in the range 2-10", n.healthy, n.unhealthy)
	case http && n.codes == "":
		return invalid("The matcher must have HTTP codes")
	}
	g.check = n
	return nil
}

// override sets a value if the request has one.
func override[T any](value *T, requested *T) {
	if requested != nil {
		*value = *requested
	}
}

// targetGroup describes a group in answers.
type targetGroup struct {
	TargetGroupArn, TargetGroupName, Protocol string
	Port                                      int
	VpcId                                     string
	HealthCheckProtocol, HealthCheckPort      string
	HealthCheckEnabled                        bool
	HealthCheckIntervalSeconds                int
	HealthCheckTimeoutSeconds                 int
	HealthyThresholdCount                     int
	UnhealthyThresholdCount                   int
	HealthCheckPath                           string   `xml:",omitempty"`
	Matcher                                   *matcher `xml:",omitempty"`
	LoadBalancerArns                          []string `xml:"LoadBalancerArns>member"`
	TargetType                                string
	IpAddressType                             string
}

type groupsAnswer struct {
	TargetGroups []targetGroup `xml:"TargetGroups>member"`
	NextMarker   string        `xml:",omitempty"`
}

func (s *Service) describeGroup(g *group) targetGroup {
	out := targetGroup{
		TargetGroupArn: g.arn, TargetGroupName: g.name, Protocol: g.protocol, Port: g.port, VpcId: g.vpc,
		HealthCheckProtocol: g.check.protocol, HealthCheckPort: g.check.port, HealthCheckEnabled: true,
		HealthCheckIntervalSeconds: g.check.interval, HealthCheckTimeoutSeconds: g.check.timeout,
		HealthyThresholdCount: g.check.healthy, UnhealthyThresholdCount: g.check.unhealthy,
		HealthCheckPath: g.check.path, TargetType: "instance", IpAddressType: g.addressType,
	}
	if g.check.codes != "" {
		out.Matcher = &matcher{HttpCode: g.check.codes}
	}
	if b := s.balancerOf(g); b != nil {
		out.LoadBalancerArns = []string{b.arn}
	}
	return out
}

// changeGroup returns a group if the caller is allowed to change it.
func (s *Service) changeGroup(c *wire.Call, arn string) (*group, error) {
	if err := s.allow(c, arn, nil); err != nil {
		return nil, err
	}
	return s.group(arn)
}

func (s *Service) describeTargetGroups(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn, Marker string
		TargetGroupArns, Names  []string
		PageSize                int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	given := 0
	for _, is := range []bool{in.LoadBalancerArn != "", len(in.TargetGroupArns) > 0, len(in.Names) > 0} {
		if is {
			given++
		}
	}
	if given > 1 {
		return nil, invalid("Only one of load balancer ARN, target group ARNs and names can be specified")
	}
	all := inOrder(s.groups, func(g *group) (time.Time, string) { return g.created, g.arn })
	wanted := all
	if given > 0 {
		wanted = nil
	}
	if in.LoadBalancerArn != "" {
		b, err := s.balancer(in.LoadBalancerArn)
		if err != nil {
			return nil, err
		}
		wanted = slices.DeleteFunc(all, func(g *group) bool { return s.balancerOf(g) != b })
	}
	for _, arn := range in.TargetGroupArns {
		g, err := s.group(arn)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, g)
	}
	for _, name := range in.Names {
		i := slices.IndexFunc(all, func(g *group) bool { return g.name == name })
		if i < 0 {
			return nil, wire.Errorf(400, "TargetGroupNotFound", "One or more target groups not found")
		}
		wanted = append(wanted, all[i])
	}
	var out groupsAnswer
	var err error
	wanted, out.NextMarker, err = page(wanted, in.PageSize, in.Marker)
	for _, g := range wanted {
		out.TargetGroups = append(out.TargetGroups, s.describeGroup(g))
	}
	return out, err
}

func (s *Service) deleteTargetGroup(c *wire.Call) (any, error) {
	var in struct{ TargetGroupArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, in.TargetGroupArn, nil); err != nil {
		return nil, err
	}
	if err := s.checkARN(in.TargetGroupArn, "targetgroup"); err != nil {
		return nil, err
	}
	g, ok := s.groups[in.TargetGroupArn]
	if !ok {
		return nil, nil
	}
	if s.balancerOf(g) != nil {
		return nil, wire.Errorf(400, "ResourceInUse", "Target group '%s' is currently in use by a listener or a rule",
			g.arn)
	}
	delete(s.groups, g.arn)
	delete(s.tags, g.arn)
	return nil, nil
}

func (g *group) describeAttributes() attributesAnswer {
	defaults := map[string]string{}
	if strings.Contains(g.protocol, "UDP") {
		defaults["deregistration_delay.connection_termination.enabled"] = "true"
		defaults["target_health_state.unhealthy.connection_termination.enabled"] = "false"
	}
	return listAttributes(groupAttributes, g.attributes, defaults)
}

func (s *Service) modifyTargetGroupAttributes(c *wire.Call) (any, error) {
	var in struct {
		TargetGroupArn string
		Attributes     []Attribute
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.changeGroup(c, in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	if err := setAttributes(groupAttributes, g.attributes, in.Attributes); err != nil {
		return nil, err
	}
	return g.describeAttributes(), nil
}

func (s *Service) describeTargetGroupAttributes(c *wire.Call) (any, error) {
	var in struct{ TargetGroupArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	g, err := s.group(in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	return g.describeAttributes(), nil
}
