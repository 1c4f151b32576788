package aws_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fakeelb "github.com/nstance-kit/nstance/tests/cloud/fakeaws/elbv2"
)

const (
	region  = "us-west-2"
	zone    = "us-west-2a"
	role    = "nstance-server"
	cluster = "c1"
	shard   = "s1"
)

// testCloud is a cloud with a network and a role. The role may make only the calls that the provider lists.
type testCloud struct {
	t     testing.TB
	cloud *fakeaws.Cloud
	url   string
	root  *ec2.Client // with the permissions of Terraform
	clock atomic.Int64

	vpc, a, b, foreign string // subnets: a and b are in the shard's zone, foreign is in another zone
	image              string

	throttled sync.Map // names of throttled calls
	unhealthy sync.Map // IDs of instances that fail the health checks of load balancers
}

func newTestCloud(t testing.TB) *testCloud {
	t.Helper()
	r := &testCloud{t: t}
	var err error
	if r.cloud, err = fakeaws.New(fakeaws.Config{Now: r.now, HealthEvery: 10 * time.Millisecond,
		Probe: func(_ context.Context, target fakeelb.Target) bool {
			_, unhealthy := r.unhealthy.Load(target.ID)
			return !unhealthy
		}}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.cloud)
	t.Cleanup(func() {
		server.Close()
		if err := r.cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	r.url = server.URL
	access, secret := r.cloud.Credentials()
	r.root = ec2.NewFromConfig(sdk.Config{Region: region, BaseEndpoint: &r.url,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
	r.allow()

	vpc, err := r.root.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: sdk.String("10.0.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	r.vpc = *vpc.Vpc.VpcId
	r.a, r.b, r.foreign = r.subnet(zone, "10.0.0.0/20"), r.subnet(zone, "10.0.16.0/20"),
		r.subnet("us-west-2b", "10.0.32.0/20")
	r.image = r.cloud.EC2().AddImage(fakeAMI("base-1"))
	return r
}

func (r *testCloud) now() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) }

func (r *testCloud) subnet(zone, block string) string {
	r.t.Helper()
	out, err := r.root.CreateSubnet(r.t.Context(), &ec2.CreateSubnetInput{VpcId: &r.vpc, CidrBlock: &block,
		AvailabilityZone: &zone})
	if err != nil {
		r.t.Fatal(err)
	}
	return *out.Subnet.SubnetId
}

// allow creates the server's role, with the permissions listed in Calls.
func (r *testCloud) allow() {
	r.t.Helper()
	var actions []string
	for _, call := range aws.Calls {
		actions = append(actions, call.Actions...)
	}
	r.grant(role, fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["%s"],"Resource":"*"}]}`,
		strings.Join(actions, `","`)))
}

// grant creates a role with a policy.
func (r *testCloud) grant(role, policy string) {
	r.t.Helper()
	access, secret := r.cloud.Credentials()
	client, ctx := iam.NewFromConfig(sdk.Config{Region: region, BaseEndpoint: &r.url,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")}), r.t.Context()
	trust := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`
	if _, err := client.CreateRole(ctx, &iam.CreateRoleInput{RoleName: &role,
		AssumeRolePolicyDocument: &trust}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := client.PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: &role, PolicyName: sdk.String("calls"),
		PolicyDocument: &policy}); err != nil {
		r.t.Fatal(err)
	}
}

// sdk returns the configuration of the server's clients.
func (r *testCloud) sdk() sdk.Config {
	r.t.Helper()
	cfg, err := aws.SDK(r.t.Context(), config.Provider{Region: region}, func(call string) {
		n, _ := r.throttled.LoadOrStore(call, new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.BaseEndpoint = &r.url
	access, secret, token := r.cloud.RoleCredentials(role, "i-0123456789abcdef0")
	cfg.Credentials = credentials.NewStaticCredentialsProvider(access, secret, token)
	return cfg
}

func (r *testCloud) throttles(call string) int32 {
	n, ok := r.throttled.Load(call)
	if !ok {
		return 0
	}
	return n.(*atomic.Int32).Load()
}

// open makes a provider. change may modify its configuration.
func (r *testCloud) open(change func(cfg *aws.Config)) *aws.Provider {
	r.t.Helper()
	clients := r.sdk()
	cfg := aws.Config{Zone: zone, EC2: ec2.NewFromConfig(clients), ELB: elbv2.NewFromConfig(clients), Now: r.now}
	if change != nil {
		change(&cfg)
	}
	p, err := aws.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// request makes a request for a new instance.
func (r *testCloud) request() infra.CreateRequest {
	r.t.Helper()
	id, err := ident.NewID("tst", time.Now(), strings.NewReader(newRandom()))
	if err != nil {
		r.t.Fatal(err)
	}
	return infra.CreateRequest{
		Tags: infra.Tags{Owner: infra.Owner{Cluster: cluster, Shard: shard}, Tenant: "default", Instance: id, Term: 1,
			Group: "g", Template: "t", Kind: "tst",
			CreatedAt: time.Now().UTC().Truncate(time.Millisecond)},
		InstanceType: "t3.small", Subnet: r.a, Args: map[string]any{"ImageId": r.image},
		Userdata: []byte("#!/bin/sh\n"),
	}
}

var sequence atomic.Int64

// newRandom returns eight bytes that no other call returns.
func newRandom() string { return fmt.Sprintf("%08d", sequence.Add(1)) }

func (r *testCloud) create(p infra.Provider) infra.VM {
	r.t.Helper()
	vm, err := p.Create(r.t.Context(), r.request())
	if err != nil {
		r.t.Fatal(err)
	}
	return vm
}

// instance calls DescribeInstances for an instance. It uses the permissions of the account, not those of the server's
// role.
func (r *testCloud) instance(id string) types.Instance {
	r.t.Helper()
	out, err := r.root.DescribeInstances(r.t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	if err != nil {
		r.t.Fatal(err)
	}
	return out.Reservations[0].Instances[0]
}

// calls returns how many times the server's role has called an action.
func (r *testCloud) calls(action string) (n int) {
	for _, call := range r.cloud.Calls() {
		if call.Principal.Role == role && call.Action == action {
			n++
		}
	}
	return n
}

// wantClass checks an error's class and text.
func wantClass(t *testing.T, what string, err error, class infra.Class, parts ...string) {
	t.Helper()
	if infra.ClassOf(err) != class {
		t.Errorf("%s: got error %v of class %q, want class %q", what, err, infra.ClassOf(err), class)
	}
	for _, w := range parts {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%s: error %v does not speak of %q", what, err, w)
		}
	}
}

// here returns a function that checks that an address belongs to the machine. All addresses of the network interface
// eni belong to a machine while eni is attached to it.
func (r *testCloud) here(eni, machine string) func(context.Context, netip.Addr) error {
	return func(ctx context.Context, addr netip.Addr) error {
		out, err := r.root.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{
			NetworkInterfaceIds: []string{eni}})
		if err != nil {
			return err
		}
		n := out.NetworkInterfaces[0]
		has := slices.ContainsFunc(n.PrivateIpAddresses, func(a types.NetworkInterfacePrivateIpAddress) bool {
			return *a.PrivateIpAddress == addr.String()
		})
		if !has || n.Attachment == nil || *n.Attachment.InstanceId != machine {
			return fmt.Errorf("%s is not here", addr)
		}
		return nil
	}
}

// TestMain hides the machine's own AWS settings from the tests.
func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "AWS_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	os.Exit(m.Run())
}
