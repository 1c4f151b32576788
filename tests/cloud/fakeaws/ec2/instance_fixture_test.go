package ec2

import (
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// asked is one permission that a call asked for.
type asked struct {
	action, resource string
	context          policy.Context
}

// testRegion is a fake region with a network, images and a test clock. Tests use it through a real SDK client.
type testRegion struct {
	*testing.T
	service *Service
	client  *sdk.Client
	faults  *fault.Set
	lock    sync.Mutex

	mu    sync.Mutex
	now   time.Time
	asked []asked
	deny  func(asked) bool

	vpc, subnetA, subnetB, group string
	amd, arm                     string
}

func newTestRegion(t *testing.T, machines Machines) *testRegion {
	t.Helper()
	w := &testRegion{T: t, faults: &fault.Set{}, now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	w.service = New(Config{
		Region: "us-west-2", Account: "123456789012", Zones: []string{"us-west-2a", "us-west-2b", "us-west-2c"},
		Now: w.clock, Machines: machines, Lock: &w.lock, Faults: w.faults,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	server := httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(server.Close)
	w.client = sdk.New(sdk.Options{
		Region: "us-west-2", BaseEndpoint: &server.URL, Credentials: credentials.NewStaticCredentialsProvider("AKIA",
			"secret", ""), Retryer: aws.NopRetryer{},
	})
	vpc := must(w.client.CreateVpc(t.Context(), &sdk.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16"),
		AmazonProvidedIpv6CidrBlock: aws.Bool(true)}))(t)
	w.vpc = *vpc.Vpc.VpcId
	w.subnetA = w.addSubnet("10.0.1.0/24", "us-west-2a")
	w.subnetB = w.addSubnet("10.0.2.0/24", "us-west-2b")
	group := must(w.client.CreateSecurityGroup(t.Context(), &sdk.CreateSecurityGroupInput{
		GroupName: aws.String("nodes"), Description: aws.String("of nodes"), VpcId: &w.vpc}))(t)
	w.group = *group.GroupId
	w.amd = w.service.AddImage(AMI{Name: "agent-amd64-1", Arch: "x86_64", Created: w.now.Add(-time.Hour),
		Tags: map[string]string{"role": "agent"}})
	w.arm = w.service.AddImage(AMI{Name: "agent-arm64-1", Arch: "arm64", Created: w.now.Add(-time.Hour), IMDSv2: true})
	w.asked = nil
	return w
}

func (f *testRegion) addSubnet(block, zone string) string {
	f.Helper()
	return *must(f.client.CreateSubnet(f.Context(), &sdk.CreateSubnetInput{VpcId: &f.vpc, CidrBlock: &block,
		AvailabilityZone: &zone}))(f.T).Subnet.SubnetId
}

func (f *testRegion) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *testRegion) sleep(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// serve decodes, authorizes and answers a call, like the complete fake AWS. The test decides which permissions are
// denied.
func (f *testRegion) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := wire.ReadBody(rw, r)
	if err != nil {
		wire.WriteError(rw, "ec2", "request", err)
		return
	}
	c, err := wire.Parse("ec2", r, body)
	if err != nil {
		wire.WriteError(rw, "ec2", "request", err)
		return
	}
	c.Region, c.Now, c.Principal = "us-west-2", f.clock(), wire.Principal{ARN: "arn:aws:iam::123456789012:root",
		Account: "123456789012"}
	c.Authorize = func(action, resource string, conditions policy.Context) error {
		a := asked{action, resource, conditions}
		f.asked = append(f.asked, a)
		if f.deny != nil && f.deny(a) {
			return wire.Errorf(http.StatusForbidden, "UnauthorizedOperation",
				"You are not authorized to perform this operation.")
		}
		return nil
	}
	handler := f.service.Operations()[c.Action]
	if handler == nil {
		wire.WriteError(rw, "ec2", c.RequestID, wire.Unknown(c))
		return
	}
	f.lock.Lock()
	answer, err := handler(c)
	f.lock.Unlock()
	var out []byte
	if err == nil {
		out, err = wire.Encode(c, answer)
	}
	if err != nil {
		wire.WriteError(rw, "ec2", c.RequestID, err)
		return
	}
	wire.Write(rw, c, out)
}

// must returns the result of a call that must succeed.
func must[V any](v V, err error) func(t *testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// code returns the AWS error code of a call's error, "" for none.
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

// input returns a valid launch request.
func (f *testRegion) input() *sdk.RunInstancesInput {
	return &sdk.RunInstancesInput{
		ImageId: &f.amd, InstanceType: types.InstanceTypeT3Micro, SubnetId: &f.subnetA, MinCount: aws.Int32(1),
		MaxCount:         aws.Int32(1),
		SecurityGroupIds: []string{f.group},
	}
}

func (f *testRegion) run(change func(in *sdk.RunInstancesInput)) types.Instance {
	f.Helper()
	in := f.input()
	if change != nil {
		change(in)
	}
	return must(f.client.RunInstances(f.Context(), in))(f.T).Instances[0]
}

func (f *testRegion) describe(id string) types.Instance {
	f.Helper()
	out := must(f.client.DescribeInstances(f.Context(), &sdk.DescribeInstancesInput{InstanceIds: []string{id}}))(f.T)
	return out.Reservations[0].Instances[0]
}

func encode(text string) *string { return aws.String(base64.StdEncoding.EncodeToString([]byte(text))) }
