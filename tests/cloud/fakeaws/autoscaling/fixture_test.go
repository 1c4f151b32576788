package autoscaling

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	sdkec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// targets is a fake of the load balancers' target groups.
type targets struct {
	groups map[string]map[string]string // ARN to instance ID to health
}

func (t *targets) Exists(arn string) bool { return t.groups[arn] != nil }

func (t *targets) Register(arn, id string) error {
	t.groups[arn][id] = "healthy"
	return nil
}

func (t *targets) Deregister(arn, id string) { delete(t.groups[arn], id) }

func (t *targets) Health(arn, id string) string { return t.groups[arn][id] }

// asked is one permission check that a call made.
type asked struct {
	action, resource string
	context          policy.Context
}

// testAccount is EC2 and Auto Scaling with a common test clock. Tests call it with the real SDK.
type testAccount struct {
	*testing.T
	ec2     *ec2.Service
	service *Service
	targets *targets
	client  *sdk.Client
	vms     *sdkec2.Client
	faults  *fault.Set
	lock    sync.Mutex

	mu    sync.Mutex
	now   time.Time
	asked []asked
	deny  func(asked) bool

	subnets  []string
	template string
}

const targetGroup = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/t/1"

func newTestAccount(t *testing.T) *testAccount {
	t.Helper()
	w := &testAccount{T: t, faults: &fault.Set{}, now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		targets: &targets{groups: map[string]map[string]string{targetGroup: {}}}}
	zones := []string{"us-west-2a", "us-west-2b"}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.ec2 = ec2.New(ec2.Config{Region: "us-west-2", Account: "123456789012", Zones: zones, Now: w.clock, Lock: &w.lock,
		Faults: w.faults, Log: log})
	w.service = New(Config{Region: "us-west-2", Account: "123456789012", Zones: zones, EC2: w.ec2, Targets: w.targets,
		Now: w.clock, Lock: &w.lock, Log: log})
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	keys := credentials.NewStaticCredentialsProvider("AKIA", "secret", "")
	w.client = sdk.New(sdk.Options{Region: "us-west-2", BaseEndpoint: aws.String(server.URL + "/autoscaling"),
		Credentials: keys, Retryer: aws.NopRetryer{}})
	w.vms = sdkec2.New(sdkec2.Options{Region: "us-west-2", BaseEndpoint: aws.String(server.URL + "/ec2"),
		Credentials: keys, Retryer: aws.NopRetryer{}})
	vpc := must(w.vms.CreateVpc(t.Context(), &sdkec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")}))(t).Vpc.VpcId
	for n, zone := range zones {
		block := []string{"10.0.1.0/24", "10.0.2.0/24"}[n]
		w.subnets = append(w.subnets, *must(w.vms.CreateSubnet(t.Context(),
			&sdkec2.CreateSubnetInput{VpcId: vpc, CidrBlock: &block, AvailabilityZone: &zone}))(t).Subnet.SubnetId)
	}
	image := w.ec2.AddImage(ec2.AMI{Name: "server"})
	w.template = *must(w.vms.CreateLaunchTemplate(t.Context(),
		&sdkec2.CreateLaunchTemplateInput{LaunchTemplateName: aws.String("server"),
			LaunchTemplateData: &ec2types.RequestLaunchTemplateData{
				ImageId: &image, InstanceType: ec2types.InstanceTypeT3Micro,
				IamInstanceProfile: &ec2types.LaunchTemplateIamInstanceProfileSpecificationRequest{
					Name: aws.String("server")},
				TagSpecifications: []ec2types.LaunchTemplateTagSpecificationRequest{
					{ResourceType: ec2types.ResourceTypeInstance, Tags: []ec2types.Tag{{Key: aws.String("from"),
						Value: aws.String("template")}}}},
			}}))(t).LaunchTemplate.LaunchTemplateId
	w.asked = nil
	return w
}

// clock never returns the same time twice, like real clocks.
func (f *testAccount) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(time.Microsecond)
	return f.now
}

func (f *testAccount) sleep(d time.Duration) {
	f.mu.Lock()
	f.now = f.now.Add(d)
	f.mu.Unlock()
	f.service.Reconcile()
}

// ServeHTTP decodes, authorizes and answers calls to EC2 and Auto Scaling, as the whole fake AWS does. The test decides
// which permissions are denied.
func (f *testAccount) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	service, operations := "autoscaling", f.service.Operations()
	if r.URL.Path[:4] == "/ec2" {
		service, operations = "ec2", f.ec2.Operations()
	}
	answer, c, err := f.call(rw, r, service, operations)
	if err != nil {
		wire.WriteError(rw, service, "request", err)
		return
	}
	wire.Write(rw, c, answer)
}

func (f *testAccount) call(rw http.ResponseWriter, r *http.Request, service string,
	operations map[string]wire.Handler) ([]byte, *wire.Call, error) {
	body, err := wire.ReadBody(rw, r)
	if err != nil {
		return nil, nil, err
	}
	c, err := wire.Parse(service, r, body)
	if err != nil {
		return nil, nil, err
	}
	c.Region, c.Now, c.Principal = "us-west-2", f.clock(), wire.Principal{ARN: "arn:aws:iam::123456789012:root",
		Account: "123456789012"}
	c.Authorize = func(action, resource string, conditions policy.Context) error {
		a := asked{action, resource, conditions}
		f.asked = append(f.asked, a)
		if f.deny != nil && f.deny(a) {
			return wire.Errorf(http.StatusForbidden, "AccessDenied", "You are not authorized to perform %s", action)
		}
		return nil
	}
	if operations[c.Action] == nil {
		return nil, nil, wire.Unknown(c)
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	answer, err := operations[c.Action](c)
	if err != nil {
		return nil, nil, err
	}
	out, err := wire.Encode(c, answer)
	return out, c, err
}

func must[V any](v V, err error) func(t *testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// code returns the AWS error code of a call's error, or "" if err is nil.
func code(t *testing.T, err error) string {
	t.Helper()
	var api smithy.APIError
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &api):
		t.Fatalf("not an error of the API: %v", err)
	}
	return api.ErrorCode()
}

// create makes the group "servers".
func (f *testAccount) create(change func(in *sdk.CreateAutoScalingGroupInput)) {
	f.Helper()
	must(f.client.CreateAutoScalingGroup(f.Context(), f.input(change)))(f.T)
}

func (f *testAccount) input(change func(in *sdk.CreateAutoScalingGroupInput)) *sdk.CreateAutoScalingGroupInput {
	in := &sdk.CreateAutoScalingGroupInput{
		AutoScalingGroupName: aws.String("servers"), MinSize: aws.Int32(0), MaxSize: aws.Int32(4),
		DesiredCapacity:   aws.Int32(1),
		VPCZoneIdentifier: aws.String(f.subnets[0] + "," + f.subnets[1]),
		LaunchTemplate:    &types.LaunchTemplateSpecification{LaunchTemplateId: &f.template},
	}
	if change != nil {
		change(in)
	}
	return in
}

func (f *testAccount) group() types.AutoScalingGroup {
	f.Helper()
	out := must(f.client.DescribeAutoScalingGroups(f.Context(), &sdk.DescribeAutoScalingGroupsInput{
		AutoScalingGroupNames: []string{"servers"}}))(f.T)
	if len(out.AutoScalingGroups) != 1 {
		f.Fatalf("%d groups", len(out.AutoScalingGroups))
	}
	return out.AutoScalingGroups[0]
}

// inService returns the IDs of the group's instances that are in service, sorted.
func (f *testAccount) inService() []string {
	f.Helper()
	var out []string
	for _, i := range f.group().Instances {
		if i.LifecycleState == types.LifecycleStateInService {
			out = append(out, *i.InstanceId)
		}
	}
	slices.Sort(out)
	return out
}

func (f *testAccount) resize(n int32) {
	f.Helper()
	must(f.client.UpdateAutoScalingGroup(f.Context(), &sdk.UpdateAutoScalingGroupInput{
		AutoScalingGroupName: aws.String("servers"), DesiredCapacity: &n}))(f.T)
}

func (f *testAccount) instance(id string) ec2types.Instance {
	f.Helper()
	return must(f.vms.DescribeInstances(f.Context(), &sdkec2.DescribeInstancesInput{InstanceIds: []string{id}}))(
		f.T).Reservations[0].Instances[0]
}

func (f *testAccount) activities() []types.Activity {
	f.Helper()
	return must(f.client.DescribeScalingActivities(f.Context(), &sdk.DescribeScalingActivitiesInput{
		AutoScalingGroupName: aws.String("servers")}))(f.T).Activities
}
