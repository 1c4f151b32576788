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
	arn          string
	created      time.Time
	balancer     *balancer
	in           createListener // as of a load balancer
	protocol     string
	port         int
	sslPolicy    string
	certificates []Certificate // the default one first
	alpn         []string
	actions      []Action
	attributes   map[string]string
}

// Certificate names a server certificate.
type Certificate struct {
	CertificateArn string
	IsDefault      *bool `xml:",omitempty"`
}

type createListener struct {
	LoadBalancerArn string
	Protocol        string
	Port            int
	SslPolicy       string
	Certificates    []Certificate
	AlpnPolicy      []string
	DefaultActions  []Action
	Tags            []Tag
}

func (s *Service) listenerOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateListener":               s.createListener,
		"DescribeListeners":            s.describeListeners,
		"ModifyListener":               s.modifyListener,
		"DeleteListener":               s.deleteListener,
		"DescribeListenerAttributes":   s.describeListenerAttributes,
		"ModifyListenerAttributes":     s.modifyListenerAttributes,
		"AddListenerCertificates":      s.addListenerCertificates,
		"RemoveListenerCertificates":   s.removeListenerCertificates,
		"DescribeListenerCertificates": s.describeListenerCertificates,
	}
}

func (s *Service) createListener(c *wire.Call) (any, error) {
	var in createListener
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	// The ARN of the new listener is that of its load balancer with another word and one more part.
	arn := strings.Replace(in.LoadBalancerArn, ":loadbalancer/", ":listener/", 1) + "/" + newID()
	if err := s.allowCreate(c, in.LoadBalancerArn, arn, in.Tags, policy.Context{
		"elasticloadbalancing:ListenerProtocol": {in.Protocol}}); err != nil {
		return nil, err
	}
	b, err := s.balancer(in.LoadBalancerArn)
	if err != nil {
		return nil, err
	}
	l := &listener{
		arn: arn, created: c.Now, balancer: b, in: in, protocol: in.Protocol, port: in.Port, sslPolicy: in.SslPolicy,
		certificates: in.Certificates, alpn: in.AlpnPolicy, actions: in.DefaultActions, attributes: map[string]string{},
	}
	for _, old := range s.listeners {
		if old.balancer != b || old.port != l.port {
			continue
		}
		if reflect.DeepEqual(old.in, in) {
			return listenersAnswer{Listeners: []listenerAnswer{describeListener(old)}}, nil
		}
		if overlap(old.protocol, l.protocol) {
			return nil,
				wire.Errorf(400, "DuplicateListener",
					"A listener already exists on this port for this load balancer '%s'", b.arn)
		}
	}
	if err := s.checkListener(l); err != nil {
		return nil, err
	}
	if err := checkTags(nil, in.Tags); err != nil {
		return nil, err
	}
	s.listeners[l.arn] = l
	s.setTags(l.arn, in.Tags)
	return listenersAnswer{Listeners: []listenerAnswer{describeListener(l)}}, nil
}

// overlap says whether two protocols cannot share a port: UDP and TCP can.
func overlap(a, b string) bool {
	return (a == "UDP") == (b == "UDP") || a == "TCP_UDP" || b == "TCP_UDP"
}

// protocolsOf are those that a load balancer's listeners can have, and for each those of the target groups it can
// forward to.
var protocolsOf = map[string]map[string]string{
	typeApplication: {"HTTP": groupOfApplication, "HTTPS": groupOfApplication},
	typeNetwork: {
		"TCP": "TCP", "TLS": "TLS TCP", "UDP": "UDP TCP_UDP", "TCP_UDP": "TCP_UDP", "QUIC": "QUIC TCP_QUIC",
		"TCP_QUIC": "TCP_QUIC",
	},
}

// checkListener checks all of a listener, new or changed, and fills in defaults.
func (s *Service) checkListener(l *listener) error {
	to, ok := protocolsOf[l.balancer.kind][l.protocol]
	secure := l.protocol == "HTTPS" || l.protocol == "TLS"
	switch {
	case !ok:
		return wire.Errorf(400, "UnsupportedProtocol",
			"Listener protocol '%s' is not supported for load balancers of type %s", l.protocol, l.balancer.kind)
	case l.port < 1 || l.port > 65535:
		return invalid("Listener port '%d' must be between 1 and 65535", l.port)
	case secure && len(l.certificates) != 1:
		return invalid("A certificate must be specified for %s listeners", l.protocol)
	case !secure && (len(l.certificates) > 0 || l.sslPolicy != ""):
		return invalid("Certificates and a security policy can be specified only for HTTPS and TLS listeners")
	case len(l.alpn) > 0 && l.protocol != "TLS":
		return invalid("An ALPN policy can be specified only for TLS listeners")
	}
	if secure && l.sslPolicy == "" {
		l.sslPolicy = "ELBSecurityPolicy-2016-08"
	}
	if secure && !slices.Contains(sslPolicies, l.sslPolicy) {
		return wire.Errorf(400, "SSLPolicyNotFound", "SSL policy '%s' not found", l.sslPolicy)
	}
	if err := checkCertificates(l.certificates); err != nil {
		return err
	}
	if err := s.checkActions(l, l.actions, to); err != nil {
		return err
	}
	if l.balancer.kind == typeNetwork && l.actions[0].Type != "forward" {
		return wire.Errorf(400, "InvalidLoadBalancerAction",
			"Actions of type '%s' are not supported for load balancers of type network", l.actions[0].Type)
	}
	return nil
}

// checkCertificates knows no certificates: any ARN of ACM or IAM is one.
func checkCertificates(certificates []Certificate) error {
	for _, cert := range certificates {
		if !strings.HasPrefix(cert.CertificateArn, "arn:aws:acm:") && !strings.HasPrefix(cert.CertificateArn,
			"arn:aws:iam:") {
			return wire.Errorf(400, "CertificateNotFound", "Certificate '%s' not found", cert.CertificateArn)
		}
	}
	return nil
}

type listenerAnswer struct {
	ListenerArn, LoadBalancerArn string
	Port                         int
	Protocol                     string
	Certificates                 []Certificate `xml:"Certificates>member"`
	SslPolicy                    string        `xml:",omitempty"`
	AlpnPolicy                   []string      `xml:"AlpnPolicy>member"`
	DefaultActions               []Action      `xml:"DefaultActions>member"`
	MutualAuthentication         *struct{ Mode string }
}

type listenersAnswer struct {
	Listeners  []listenerAnswer `xml:"Listeners>member"`
	NextMarker string           `xml:",omitempty"`
}

func describeListener(l *listener) listenerAnswer {
	out := listenerAnswer{
		ListenerArn: l.arn, LoadBalancerArn: l.balancer.arn, Port: l.port, Protocol: l.protocol, SslPolicy: l.sslPolicy,
		AlpnPolicy:     l.alpn,
		DefaultActions: describeActions(l.actions),
	}
	if len(l.certificates) > 0 {
		// the others are told by DescribeListenerCertificates
		out.Certificates = []Certificate{{CertificateArn: l.certificates[0].CertificateArn}}
	}
	if l.protocol == "HTTPS" {
		out.MutualAuthentication = &struct{ Mode string }{"off"}
	}
	return out
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
		wanted = s.listenersOf(b)
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

func (s *Service) listenersOf(b *balancer) []*listener {
	all := inOrder(s.listeners, func(l *listener) (time.Time, string) { return l.created, l.arn })
	return slices.DeleteFunc(all, func(l *listener) bool { return l.balancer != b })
}

// changeListener finds a listener that the caller may do the call's action on.
func (s *Service) changeListener(c *wire.Call, arn string, conditions policy.Context) (*listener, error) {
	if err := s.allow(c, arn, conditions); err != nil {
		return nil, err
	}
	return s.listener(arn)
}

func (s *Service) modifyListener(c *wire.Call) (any, error) {
	var in struct {
		ListenerArn, Protocol, SslPolicy string
		Port                             int
		Certificates                     []Certificate
		AlpnPolicy                       []string
		DefaultActions                   []Action
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	var conditions policy.Context
	if in.Protocol != "" {
		conditions = policy.Context{"elasticloadbalancing:ListenerProtocol": {in.Protocol}}
	}
	l, err := s.changeListener(c, in.ListenerArn, conditions)
	if err != nil {
		return nil, err
	}
	n := *l
	extra := l.certificates[min(1, len(l.certificates)):] // the default one is changed here, the others are not
	n.certificates = l.certificates[:len(l.certificates)-len(extra)]
	if in.Protocol != "" {
		n.protocol = in.Protocol
		if n.protocol != "HTTPS" && n.protocol != "TLS" {
			n.certificates, n.sslPolicy, extra = nil, "", nil
		}
	}
	if in.Port != 0 {
		n.port = in.Port
	}
	if in.SslPolicy != "" {
		n.sslPolicy = in.SslPolicy
	}
	if len(in.Certificates) > 0 {
		n.certificates = in.Certificates
	}
	if in.AlpnPolicy != nil {
		n.alpn = in.AlpnPolicy
	}
	if len(in.DefaultActions) > 0 {
		n.actions = in.DefaultActions
	}
	for _, other := range s.listenersOf(l.balancer) {
		if other != l && other.port == n.port && overlap(other.protocol, n.protocol) {
			return nil,
				wire.Errorf(400, "DuplicateListener",
					"A listener already exists on this port for this load balancer '%s'", l.balancer.arn)
		}
	}
	if err := s.checkListener(&n); err != nil {
		return nil, err
	}
	n.certificates = append(slices.Clone(n.certificates), extra...)
	*l = n
	return listenersAnswer{Listeners: []listenerAnswer{describeListener(l)}}, nil
}

func (s *Service) deleteListener(c *wire.Call) (any, error) {
	var in struct{ ListenerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	l, err := s.changeListener(c, in.ListenerArn, nil)
	if err != nil {
		return nil, err
	}
	s.forgetListener(l)
	return nil, nil
}

// forgetListener removes a listener with its rules.
func (s *Service) forgetListener(l *listener) {
	for _, r := range slices.Collect(maps.Values(s.rules)) {
		if r.listener == l {
			delete(s.rules, r.arn)
			delete(s.tags, r.arn)
		}
	}
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
	return list(listenerAttributes, l.protocol, l.attributes, nil), nil
}

func (s *Service) modifyListenerAttributes(c *wire.Call) (any, error) {
	var in struct {
		ListenerArn string
		Attributes  []Attribute
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	l, err := s.changeListener(c, in.ListenerArn, nil)
	if err != nil {
		return nil, err
	}
	if err := setAttributes(listenerAttributes, l.protocol, l.attributes, in.Attributes); err != nil {
		return nil, err
	}
	return list(listenerAttributes, l.protocol, l.attributes, nil), nil
}

type certificatesRequest struct {
	ListenerArn  string
	Certificates []Certificate
}

type certificatesAnswer struct {
	Certificates []Certificate `xml:"Certificates>member"`
	NextMarker   string        `xml:",omitempty"`
}

func (s *Service) addListenerCertificates(c *wire.Call) (any, error) {
	var in certificatesRequest
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	l, err := s.changeListener(c, in.ListenerArn, nil)
	if err != nil {
		return nil, err
	}
	if l.protocol != "HTTPS" && l.protocol != "TLS" {
		return nil, invalid("Certificates can be added only to HTTPS and TLS listeners")
	}
	if err := checkCertificates(in.Certificates); err != nil {
		return nil, err
	}
	all := slices.Clone(l.certificates)
	for _, cert := range in.Certificates {
		if !slices.ContainsFunc(all, func(old Certificate) bool { return old.CertificateArn == cert.CertificateArn }) {
			all = append(all, Certificate{CertificateArn: cert.CertificateArn})
		}
	}
	l.certificates = all
	return certificatesAnswer{Certificates: in.Certificates}, nil
}

func (s *Service) removeListenerCertificates(c *wire.Call) (any, error) {
	var in certificatesRequest
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	l, err := s.changeListener(c, in.ListenerArn, nil)
	if err != nil {
		return nil, err
	}
	for _, cert := range in.Certificates {
		if len(l.certificates) > 0 && l.certificates[0].CertificateArn == cert.CertificateArn {
			return nil, wire.Errorf(400, "OperationNotPermitted", "Default certificate cannot be removed")
		}
	}
	l.certificates = slices.DeleteFunc(slices.Clone(l.certificates), func(have Certificate) bool {
		return slices.ContainsFunc(in.Certificates, func(cert Certificate) bool {
			return cert.CertificateArn == have.CertificateArn
		})
	})
	return nil, nil
}

func (s *Service) describeListenerCertificates(c *wire.Call) (any, error) {
	var in struct {
		ListenerArn, Marker string
		PageSize            int
	}
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
	var out certificatesAnswer
	for i, cert := range l.certificates {
		first := i == 0
		out.Certificates = append(out.Certificates, Certificate{CertificateArn: cert.CertificateArn, IsDefault: &first})
	}
	out.Certificates, out.NextMarker, err = page(out.Certificates, in.PageSize, in.Marker)
	return out, err
}
