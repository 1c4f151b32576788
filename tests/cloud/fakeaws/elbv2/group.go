package elbv2

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// group is one target group.
type group struct {
	arn        string
	created    time.Time
	in         createGroup // as of a load balancer
	name       string
	protocol   string
	version    string // of HTTP
	port       int
	vpc        string
	kind       string // of targets: instance or ip
	addresses  string
	check      check
	attributes map[string]string
	targets    map[key]*target
}

// check is how targets are found healthy.
type check struct {
	protocol, path, port, codes, grpc string
	interval, timeout                 int // seconds
	healthy, unhealthy                int // times
}

// matcher are the answers that mean healthy.
type matcher struct {
	HttpCode string `xml:",omitempty"`
	GrpcCode string `xml:",omitempty"`
}

// checkParameters are those of CreateTargetGroup and ModifyTargetGroup about health checks.
type checkParameters struct {
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

type createGroup struct {
	Name, Protocol, ProtocolVersion string
	Port                            int
	VpcId, TargetType               string
	IpAddressType                   string
	Tags                            []Tag
	checkParameters
}

func (s *Service) groupOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateTargetGroup":             s.createTargetGroup,
		"ModifyTargetGroup":             s.modifyTargetGroup,
		"DescribeTargetGroups":          s.describeTargetGroups,
		"DeleteTargetGroup":             s.deleteTargetGroup,
		"ModifyTargetGroupAttributes":   s.modifyTargetGroupAttributes,
		"DescribeTargetGroupAttributes": s.describeTargetGroupAttributes,
	}
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
		port: in.Port, vpc: in.VpcId, kind: in.TargetType,
		addresses: in.IpAddressType, version: in.ProtocolVersion, attributes: map[string]string{},
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
		return nil,
			wire.Errorf(400, "DuplicateTargetGroupName",
				"A target group with the same name '%s' exists, but with different settings", in.Name)
	}
	if err := s.checkGroup(g); err != nil {
		return nil, err
	}
	if err := checkTags(nil, in.Tags); err != nil {
		return nil, err
	}
	if err := g.setCheck(in.checkParameters, true); err != nil {
		return nil, err
	}
	s.groups[g.arn] = g
	s.setTags(g.arn, in.Tags)
	return groupsAnswer{TargetGroups: []targetGroup{s.describeGroup(g)}}, nil
}

// checkGroup checks everything but health checks, and fills in defaults.
func (s *Service) checkGroup(g *group) error {
	if g.kind == "" {
		g.kind = "instance"
	}
	if g.addresses == "" {
		g.addresses = "ipv4"
	}
	web := slices.Contains(strings.Fields(groupOfApplication), g.protocol)
	if web && g.version == "" {
		g.version = "HTTP1"
	}
	switch {
	case g.kind != "instance" && g.kind != "ip":
		return wire.Errorf(501, "NotImplemented", "fakeaws has no targets of type '%s'", g.kind)
	case !web && !slices.Contains(strings.Fields(groupOfNetwork), g.protocol):
		return invalid("Protocol '%s' must be one of HTTP, HTTPS, TCP, TLS, UDP, TCP_UDP, QUIC, TCP_QUIC", g.protocol)
	case g.version != "" && (!web || !slices.Contains([]string{"HTTP1", "HTTP2", "GRPC"}, g.version)):
		return invalid("Protocol version '%s' is not one that protocol %s can have", g.version, g.protocol)
	case g.port < 1 || g.port > 65535:
		return invalid("Port '%d' must be between 1 and 65535", g.port)
	case g.vpc == "":
		return invalid("A VPC ID must be specified")
	case !s.cfg.Network.VPC(g.vpc):
		return invalid("The VPC ID '%s' is not found", g.vpc)
	case g.addresses != "ipv4" && g.addresses != "ipv6":
		return invalid("IP address type '%s' must be one of ipv4, ipv6", g.addresses)
	}
	return nil
}

// setCheck changes what is asked for; a new group gets the documented defaults first.
func (g *group) setCheck(p checkParameters, fresh bool) error {
	n := g.check
	web := slices.Contains(strings.Fields(groupOfApplication), g.protocol)
	if fresh {
		n = check{protocol: "TCP", port: "traffic-port", interval: 30, healthy: 5, unhealthy: 2}
		if web {
			n.protocol = "HTTP"
		}
	}
	put(&n.protocol, p.HealthCheckProtocol)
	http := n.protocol == "HTTP" || n.protocol == "HTTPS"
	if !http && n.protocol != "TCP" {
		return invalid("Health check protocol '%s' must be one of HTTP, HTTPS, TCP", n.protocol)
	}
	if web && !http {
		return invalid("Health check protocol '%s' is not supported for target groups with protocol %s", n.protocol,
			g.protocol)
	}
	if fresh {
		n.timeout = 10
		if n.protocol == "HTTP" {
			n.timeout = 6
		}
		if web {
			// "the default is 5 seconds if the target type is instance or ip": health checks for Application Load
			// Balancer target groups
			n.timeout = 5
		}
	}
	switch {
	case !http:
		if p.HealthCheckPath != nil || p.Matcher != nil {
			return invalid("Health check path and matcher are not supported for health checks with protocol %s",
				n.protocol)
		}
		n.path, n.codes, n.grpc = "", "", ""
	case n.path == "":
		n.path, n.codes = "/", "200-399"
		if web {
			n.codes = "200"
		}
		if g.version == "GRPC" {
			n.path, n.codes, n.grpc = "/AWS.ALB/healthcheck", "", "12"
		}
	}
	put(&n.path, p.HealthCheckPath)
	put(&n.port, p.HealthCheckPort)
	put(&n.interval, p.HealthCheckIntervalSeconds)
	put(&n.timeout, p.HealthCheckTimeoutSeconds)
	put(&n.healthy, p.HealthyThresholdCount)
	put(&n.unhealthy, p.UnhealthyThresholdCount)
	if p.Matcher != nil {
		n.codes, n.grpc = p.Matcher.HttpCode, p.Matcher.GrpcCode
	}
	port, err := strconv.Atoi(n.port)
	switch {
	case p.HealthCheckEnabled != nil && !*p.HealthCheckEnabled:
		return wire.Errorf(400, "InvalidConfigurationRequest",
			"Health check enabled must be true for target groups with target type '%s'", g.kind)
	case http && (!strings.HasPrefix(n.path, "/") || len(n.path) > 1024):
		return invalid("Health check path '%s' must begin with a '/' character, and can be at most 1024 characters",
			n.path)
	case n.port != "traffic-port" && (err != nil || port < 1 || port > 65535):
		return invalid("Health check port '%s' must be 'traffic-port' or in the range 1-65535", n.port)
	case n.interval < 5 || n.interval > 300:
		return invalid("Health check interval '%d' must be in the range 5-300", n.interval)
	case n.timeout < 2 || n.timeout > 120:
		return invalid("Health check timeout '%d' must be in the range 2-120", n.timeout)
	case web && n.timeout >= n.interval:
		return invalid("Health check interval must be greater than the timeout")
	case n.healthy < 2 || n.healthy > 10 || n.unhealthy < 2 || n.unhealthy > 10:
		return invalid("Health check thresholds '%d' and '%d' must be in the range 2-10", n.healthy, n.unhealthy)
	case http && (n.codes == "") == (n.grpc == ""):
		return invalid("The matcher must have either HTTP codes or gRPC codes")
	}
	g.check = n
	return nil
}

func put[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// targetGroup is one as answers tell it.
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
	ProtocolVersion                           string `xml:",omitempty"`
	IpAddressType                             string
}

type groupsAnswer struct {
	TargetGroups []targetGroup `xml:"TargetGroups>member"`
	NextMarker   string        `xml:",omitempty"`
}

func (s *Service) describeGroup(g *group) targetGroup {
	out := targetGroup{
		TargetGroupArn: g.arn, TargetGroupName: g.name, Protocol: g.protocol, Port: g.port, VpcId: g.vpc,
		HealthCheckProtocol: g.check.protocol,
		HealthCheckPort:     g.check.port, HealthCheckEnabled: true, HealthCheckIntervalSeconds: g.check.interval,
		HealthCheckTimeoutSeconds: g.check.timeout,
		HealthyThresholdCount:     g.check.healthy, UnhealthyThresholdCount: g.check.unhealthy,
		HealthCheckPath: g.check.path, TargetType: g.kind,
		ProtocolVersion: g.version, IpAddressType: g.addresses,
	}
	if g.check.codes != "" || g.check.grpc != "" {
		out.Matcher = &matcher{HttpCode: g.check.codes, GrpcCode: g.check.grpc}
	}
	if b := s.balancerOf(g); b != nil {
		out.LoadBalancerArns = []string{b.arn}
	}
	return out
}

func (s *Service) modifyTargetGroup(c *wire.Call) (any, error) {
	var in struct {
		TargetGroupArn string
		checkParameters
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.changeGroup(c, in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	if err := g.setCheck(in.checkParameters, false); err != nil {
		return nil, err
	}
	return groupsAnswer{TargetGroups: []targetGroup{s.describeGroup(g)}}, nil
}

// changeGroup finds a target group that the caller may do the call's action on.
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
	if g.kind == "ip" && (g.protocol == "TCP" || g.protocol == "TLS") {
		defaults["preserve_client_ip.enabled"] = "false"
	}
	return list(groupAttributes, g.protocol, g.attributes, defaults)
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
	if strings.Contains(g.protocol, "UDP") && value(in.Attributes, "preserve_client_ip.enabled") == "false" {
		return nil,
			wire.Errorf(400, "InvalidConfigurationRequest",
				"Client IP preservation cannot be disabled for target groups with protocol %s", g.protocol)
	}
	if err := setAttributes(groupAttributes, g.protocol, g.attributes, in.Attributes); err != nil {
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
