package elbv2_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/elbv2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// network fakes EC2. A resource exists if it is in one of the maps.
type network struct {
	subnets    map[string]elbv2.Subnet
	groups     map[string]string
	instances  map[string]elbv2.Instance
	interfaces map[string]elbv2.Interface
	made       int
	full       string // Subnet without free addresses.
}

func (n *network) VPC(id string) bool { return id == "vpc-1" || id == "vpc-2" }

func (n *network) Subnet(id string) (elbv2.Subnet, bool) {
	s, ok := n.subnets[id]
	return s, ok
}

func (n *network) SecurityGroup(id string) (string, bool) {
	vpc, ok := n.groups[id]
	return vpc, ok
}

func (n *network) Instance(id string) (elbv2.Instance, bool) {
	i, ok := n.instances[id]
	return i, ok
}

func (n *network) CreateInterface(i elbv2.Interface) (string, error) {
	if i.Subnet == n.full {
		return "", wire.Errorf(400, "InsufficientFreeAddressesInSubnet", "no room in %s", i.Subnet)
	}
	n.made++
	id := fmt.Sprint("eni-", n.made)
	n.interfaces[id] = i
	return id, nil
}

func (n *network) DeleteInterface(id string) { delete(n.interfaces, id) }

type asked struct {
	action, resource string
	conditions       policy.Context
}

// testService is the fake service with a test clock, and an SDK client that calls the fake over HTTP. It records the
// permissions that the service checks.
type testService struct {
	*elb.Client
	t       *testing.T
	service *elbv2.Service
	network *network
	lock    *sync.Mutex
	now     time.Time
	asked   []asked
	deny    string // A denied action.
}

func newTestService(t *testing.T) *testService {
	t.Helper()
	w := &testService{t: t, lock: new(sync.Mutex), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), network: &network{
		subnets: map[string]elbv2.Subnet{
			"subnet-a":  {VPC: "vpc-1", Zone: "us-west-2a", IPv6: true},
			"subnet-b":  {VPC: "vpc-1", Zone: "us-west-2b", IPv6: true},
			"subnet-a2": {VPC: "vpc-1", Zone: "us-west-2a"}, "subnet-c": {VPC: "vpc-1", Zone: "us-west-2c"},
			"subnet-x": {VPC: "vpc-2", Zone: "us-west-2b"},
		},
		groups: map[string]string{"sg-1": "vpc-1", "sg-2": "vpc-1", "sg-x": "vpc-2", "sg-default-vpc-1": "vpc-1"},
		instances: map[string]elbv2.Instance{
			"i-1": {State: "running", VPC: "vpc-1", Zone: "us-west-2a", Address: "10.0.0.1"},
			"i-2": {State: "running", VPC: "vpc-1", Zone: "us-west-2c", Address: "10.0.0.2"},
			"i-p": {State: "pending", VPC: "vpc-1", Zone: "us-west-2a"},
			"i-x": {State: "running", VPC: "vpc-2", Zone: "us-west-2a"},
		},
		interfaces: map[string]elbv2.Interface{},
	}}
	w.service = elbv2.New(elbv2.Config{Region: "us-west-2", Account: "123456789012", Network: w.network,
		Now: func() time.Time {
			return w.now
		}, Lock: w.lock})
	server := httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(server.Close)
	w.Client = elb.New(elb.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL),
		Credentials:      credentials.NewStaticCredentialsProvider("AKIAEXAMPLE", "secret", ""),
		RetryMaxAttempts: 1,
	})
	return w
}

func (s *testService) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := wire.ReadBody(rw, r)
	if err != nil {
		wire.WriteError(rw, s.service.Name(), "", err)
		return
	}
	c, err := wire.Parse(s.service.Name(), r, body)
	if err != nil {
		wire.WriteError(rw, s.service.Name(), c.RequestID, err)
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	c.Now, c.Region = s.now, "us-west-2"
	s.now = s.now.Add(time.Millisecond)
	before := len(s.asked)
	c.Authorize = func(action, resource string, conditions policy.Context) error {
		s.asked = append(s.asked, asked{action, resource, conditions})
		if action == s.deny {
			return wire.Errorf(403, "AccessDenied", "not %s on %s", action, resource)
		}
		return nil
	}
	operation, ok := s.service.Operations()[c.Action]
	if !ok {
		wire.WriteError(rw, c.Service, c.RequestID, wire.Unknown(c))
		return
	}
	answer, err := operation(c)
	if err == nil && len(s.asked) == before {
		err = fmt.Errorf("%s asked for no permission", c.Action)
	}
	if err == nil {
		body, err = wire.Encode(c, answer)
	}
	if err != nil {
		wire.WriteError(rw, c.Service, c.RequestID, err)
		return
	}
	wire.Write(rw, c, body)
}

func (s *testService) at(change func()) {
	s.lock.Lock()
	defer s.lock.Unlock()
	change()
}

func must[T any](out T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	var e smithy.APIError
	if !errors.As(err, &e) || e.ErrorCode() != code {
		t.Errorf("%s: error = %v, want %s", what, err, code)
	}
}

// lb creates a network load balancer in two zones.
func (s *testService) lb() types.LoadBalancer {
	s.t.Helper()
	return must(s.CreateLoadBalancer(s.t.Context(), &elb.CreateLoadBalancerInput{
		Name: aws.String("lb"), Type: types.LoadBalancerTypeEnumNetwork, Scheme: types.LoadBalancerSchemeEnumInternal,
		Subnets: []string{"subnet-b", "subnet-a"}, Tags: tags("Name", "lb"),
	}))(s.t).LoadBalancers[0]
}

// tg creates a target group with default settings.
func (s *testService) tg(name string) types.TargetGroup {
	s.t.Helper()
	return must(s.CreateTargetGroup(s.t.Context(), &elb.CreateTargetGroupInput{
		Name: aws.String(name), Protocol: types.ProtocolEnumTcp, Port: aws.Int32(6443), VpcId: aws.String("vpc-1"),
		Tags: tags("Name", name),
	}))(s.t).TargetGroups[0]
}

func (s *testService) listener(lb types.LoadBalancer, tg types.TargetGroup, port int32) types.Listener {
	s.t.Helper()
	return must(s.CreateListener(s.t.Context(), &elb.CreateListenerInput{
		LoadBalancerArn: lb.LoadBalancerArn, Protocol: types.ProtocolEnumTcp, Port: aws.Int32(port),
		DefaultActions: forward(tg),
	}))(s.t).Listeners[0]
}

func forward(tg types.TargetGroup) []types.Action {
	return []types.Action{{Type: types.ActionTypeEnumForward, TargetGroupArn: tg.TargetGroupArn}}
}

func tags(pairs ...string) []types.Tag {
	var out []types.Tag
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, types.Tag{Key: aws.String(pairs[i]), Value: aws.String(pairs[i+1])})
	}
	return out
}

func targets(ids ...string) []types.TargetDescription {
	var out []types.TargetDescription
	for _, id := range ids {
		out = append(out, types.TargetDescription{Id: aws.String(id)})
	}
	return out
}

// states returns the states of all targets of a group, such as "i-1:6443 unused Target.NotInUse".
func (s *testService) states(tg types.TargetGroup, ask ...types.TargetDescription) []string {
	s.t.Helper()
	out := must(s.DescribeTargetHealth(s.t.Context(), &elb.DescribeTargetHealthInput{TargetGroupArn: tg.TargetGroupArn,
		Targets: ask}))(s.t)
	var all []string
	for _, d := range out.TargetHealthDescriptions {
		text := fmt.Sprintf("%s:%d %s", aws.ToString(d.Target.Id), aws.ToInt32(d.Target.Port), d.TargetHealth.State)
		if d.TargetHealth.Reason != "" {
			text += " " + string(d.TargetHealth.Reason)
			if aws.ToString(d.TargetHealth.Description) == "" {
				s.t.Errorf("%s is not explained", text)
			}
		}
		all = append(all, text)
	}
	return all
}

func (s *testService) register(tg types.TargetGroup, ids ...string) {
	s.t.Helper()
	must(s.RegisterTargets(s.t.Context(), &elb.RegisterTargetsInput{TargetGroupArn: tg.TargetGroupArn,
		Targets: targets(ids...)}))(s.t)
}
