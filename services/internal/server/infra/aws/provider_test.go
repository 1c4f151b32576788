package aws_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	elbtypes "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/google/go-cmp/cmp"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra/infratest"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

func fakeAMI(name string) fake.AMI { return fake.AMI{Name: name} }

// translated replaces the type and subnet in each request of the conformance suite with names that the test cloud
// knows.
type translated struct {
	*aws.Provider
	names map[string]string
}

func (p translated) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	req.InstanceType, req.Subnet = p.names[req.InstanceType], p.names[req.Subnet]
	return p.Provider.Create(ctx, req)
}

func (p translated) CreateBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	req.VM.InstanceType, req.VM.Subnet = p.names[req.VM.InstanceType], p.names[req.VM.Subnet]
	return p.Provider.CreateBatch(ctx, req)
}

func TestConformance(t *testing.T) {
	infratest.Run(t, func(t *testing.T) infratest.Harness {
		r := newTestCloud(t)
		names := map[string]string{"small": "t3.small", "large": "t3.large", "subnet-a": r.a, "subnet-b": r.b}
		open := func() infra.Provider { return translated{r.open(nil), names} }
		first := translated{r.open(nil), names}
		return infratest.Harness{
			Provider: first,
			Balance: func(t *testing.T) (string, func(*testing.T, infra.VM, bool)) {
				arn := r.balancer(t)
				first.Configure(shardWith(arn))
				return "web", func(t *testing.T, vm infra.VM, healthy bool) { r.setHealth(t, arn, vm, healthy) }
			},
			Delay:  delay,
			Kill:   func(_ *testing.T, vm infra.VM) { r.cloud.EC2().Kill(vm.ProviderID) },
			Settle: func(*testing.T) { r.cloud.EC2().Settle() },
			Adapt:  func(req *infra.CreateRequest) { req.Args = r.hibernatable() },
			Reopen: func(*testing.T) infra.Provider { return open() },
			// A t3.small has two vCPUs. A limit of 0 would mean that there is none.
			Room:    func(_ *testing.T, vms int) { r.cloud.EC2().SetLimits(max(vms*2, 1), 0) },
			Sleeps:  contract.Block.Sleeps,
			Disks:   r.disks,
			Unknown: "i-0123456789abcdef0",
			// The values of tags are XML text, so EC2 accepts all characters except control characters. It may drop
			// leading and trailing spaces.
			OddTags: []string{"", "grüße-世界-🙂", `a "b" 'c' \d`, "$(reboot) `x` ${HOME} #{pane_id} %d % <&>",
				"a=b,c:d;e/f@g+h", "-f", "~", "*", strings.Repeat("ü", 256)},
		}
	})
}

func TestUntaggableIsRefused(t *testing.T) {
	r := newTestCloud(t)
	req := r.request()
	req.Tags.Group = "line\nbreak"
	_, err := r.open(nil).Create(t.Context(), req)
	wantClass(t, "control characters", err, infra.Invalid, "nstance:group")
	if n := r.calls("RunInstances"); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestInstanceIsAsAskedFor(t *testing.T) {
	r := newTestCloud(t)
	req := r.request()
	req.Args["BlockDeviceMappings"] = []any{map[string]any{"DeviceName": "/dev/xvda",
		"Ebs": map[string]any{"VolumeSize": "20", "VolumeType": "gp3"}}}
	req.Args["MetadataOptions"] = map[string]any{"HttpPutResponseHopLimit": float64(2)}
	req.Args["TagSpecifications"] = []any{map[string]any{"ResourceType": "instance",
		"Tags": []any{map[string]any{"Key": "team", "Value": "a"}}}}
	vm, err := r.open(nil).Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	i := r.instance(vm.ProviderID)
	if m := i.MetadataOptions; m.HttpTokens != types.HttpTokensStateRequired || *m.HttpPutResponseHopLimit != 2 ||
		m.HttpEndpoint != types.InstanceMetadataEndpointStateEnabled {
		t.Errorf("metadata options %+v", m)
	}
	if *i.SubnetId != r.a || i.InstanceType != "t3.small" || *i.ClientToken != req.Tags.Instance.String() ||
		vm.IPv4 != *i.PrivateIpAddress || vm.Hostname != *i.PrivateDnsName {
		t.Errorf("asked for %+v, got %+v, told %+v", req, i, vm)
	}
	tags, err := r.root.DescribeTags(t.Context(), &ec2.DescribeTagsInput{
		Filters: []types.Filter{{Name: sdk.String("key"), Values: []string{"nstance:instance-id"}}}})
	if err != nil {
		t.Fatal(err)
	}
	var tagged []string
	for _, tag := range tags.Tags {
		if *tag.Value == req.Tags.Instance.String() {
			tagged = append(tagged, string(tag.ResourceType))
		}
	}
	slices.Sort(tagged)
	if diff := cmp.Diff([]string{"instance", "network-interface", "volume"}, tagged); diff != "" {
		t.Errorf("tagged (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(i.Tags, func(tag types.Tag) bool { return *tag.Key == "team" && *tag.Value == "a" }) {
		t.Errorf("tags %v", i.Tags)
	}
}

// TestTimeOfAnyClock creates an instance at a time with a monotonic clock and a time zone, and repeats the request.
func TestTimeOfAnyClock(t *testing.T) {
	r := newTestCloud(t)
	p, req := r.open(nil), r.request()
	req.Tags.CreatedAt = time.Now().In(time.FixedZone("there", 3600))
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := p.Create(t.Context(), req); err != nil || again.ProviderID != vm.ProviderID {
		t.Errorf("the repeat made %s, %v, want %s", again.ProviderID, err, vm.ProviderID)
	}
}

func TestInterfacesOfArgs(t *testing.T) {
	r := newTestCloud(t)
	req := r.request()
	req.Args["NetworkInterfaces"] = []any{map[string]any{"DeviceIndex": float64(0), "DeleteOnTermination": true}}
	vm, err := r.open(nil).Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if i := r.instance(vm.ProviderID); *i.SubnetId != r.a {
		t.Errorf("in subnet %s, want %s", *i.SubnetId, r.a)
	}
}

func TestWrongArgsMakeNoCall(t *testing.T) {
	r := newTestCloud(t)
	req := r.request()
	req.Args["SecurityGroupIDs"] = []any{"sg-1"}
	_, err := r.open(nil).Create(t.Context(), req)
	wantClass(t, "unknown field", err, infra.Invalid, "args.SecurityGroupIDs", `did you mean "SecurityGroupIds"?`)
	for what, change := range map[string]func(*infra.CreateRequest){
		"no type":   func(req *infra.CreateRequest) { req.InstanceType = "" },
		"no subnet": func(req *infra.CreateRequest) { req.Subnet = "" },
		"no image":  func(req *infra.CreateRequest) { req.Args = nil },
	} {
		req := r.request()
		change(&req)
		_, err := r.open(nil).Create(t.Context(), req)
		wantClass(t, what, err, infra.Invalid)
	}
	if n := r.calls("RunInstances"); n != 0 {
		t.Errorf("%d calls", n)
	}
	req = r.request()
	req.Args["ImageId"] = "ami-0123456789abcdef0"
	_, err = r.open(nil).Create(t.Context(), req)
	wantClass(t, "missing image", err, infra.Invalid, "InvalidAMIID.NotFound", "ami-0123456789abcdef0")
}

func TestSpot(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	req := r.request()
	req.Args["InstanceMarketOptions"] = map[string]any{"MarketType": "spot"}
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if i := r.instance(vm.ProviderID); i.InstanceLifecycle != types.InstanceLifecycleTypeSpot {
		t.Errorf("lifecycle %q", i.InstanceLifecycle)
	}
	if !r.cloud.EC2().Interrupt(vm.ProviderID, r.now()) {
		t.Fatal("it is no living spot instance")
	}
	vm, err = p.Get(t.Context(), vm.ProviderID)
	if err == nil && vm.State == infra.Deleting {
		vm, err = p.Get(t.Context(), vm.ProviderID)
	}
	if err != nil || vm.State != infra.Deleted || !strings.Contains(strings.ToLower(vm.EndReason), "spot") {
		t.Errorf("after its interruption: %+v, %v", vm, err)
	}
}

// TestPurchasedAsSpot creates an instance with Tags.Spot. EC2 must make a spot instance. The instance's tag must show a
// later leader that it is a spot instance.
func TestPurchasedAsSpot(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	req := r.request()
	req.Tags.Spot = true
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if i := r.instance(vm.ProviderID); i.InstanceLifecycle != types.InstanceLifecycleTypeSpot || !vm.Tags.Spot {
		t.Errorf("lifecycle %q, tags %+v", i.InstanceLifecycle, vm.Tags)
	}
	if other := r.create(p); other.Tags.Spot || r.instance(other.ProviderID).InstanceLifecycle != "" {
		t.Errorf("an instance that was bought on demand: %+v", other)
	}
}

func TestListReadsEveryPage(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(func(cfg *aws.Config) { cfg.PageSize = 5 })
	want := map[string]bool{}
	for range 12 {
		want[r.create(p).ProviderID] = true
	}
	vms, err := p.List(t.Context(), infra.Owner{Cluster: cluster, Shard: shard})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, vm := range vms {
		got[vm.ProviderID] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(vms) != 12 {
		t.Errorf("%d VMs (-made +listed):\n%s", len(vms), diff)
	}
	if n := r.calls("DescribeInstances"); n < 3 {
		t.Errorf("%d calls for 12 instances, 5 a page", n)
	}
	r.cloud.Faults().Fail(fault.Match{Action: "DescribeInstances"}, fault.Forever, http.StatusInternalServerError,
		"InternalError", "injected")
	if vms, err := p.List(t.Context(), infra.Owner{Cluster: cluster, Shard: shard}); infra.ClassOf(
		err) != infra.Indeterminate || vms != nil {
		t.Errorf("a list that failed: %v, %v", vms, err)
	}
}

// TestCapacity checks that missing capacity is reported after a single attempt, so that another type can be tried.
func TestCapacity(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	for _, code := range []string{"InsufficientInstanceCapacity", "MaxSpotInstanceCountExceeded", "SpotMaxPriceTooLow",
		"InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported"} {
		r.cloud.Faults().Clear()
		r.cloud.Faults().NoCapacity("t3.small", zone, r.a, code)
		before := r.calls("RunInstances")
		_, err := p.Create(t.Context(), r.request())
		wantClass(t, code, err, infra.Capacity, code)
		if n := r.calls("RunInstances") - before; n != 1 {
			t.Errorf("%s: %d attempts", code, n)
		}
		other := r.request()
		other.InstanceType = "t3.large"
		if _, err := p.Create(t.Context(), other); err != nil {
			t.Errorf("%s: another type: %v", code, err)
		}
		other = r.request()
		other.Subnet = r.b
		if _, err := p.Create(t.Context(), other); err != nil {
			t.Errorf("%s: another subnet: %v", code, err)
		}
	}
}

func TestLostAnswersMakeNoSecondInstance(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	lost := fault.Match{Service: "ec2", Action: "RunInstances"}
	r.cloud.Faults().LoseAnswer(lost, 1)
	first, err := p.Create(t.Context(), r.request())
	if err != nil {
		t.Fatalf("one lost answer: %v", err)
	}
	r.cloud.Faults().LoseAnswer(lost, fault.Forever)
	req := r.request()
	_, err = p.Create(t.Context(), req)
	wantClass(t, "all answers lost", err, infra.Indeterminate)
	r.cloud.Faults().Clear()
	second, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	found, err := p.FindByInstance(t.Context(), infra.Owner{Cluster: cluster, Shard: shard}, req.Tags.Instance)
	if err != nil || found.ProviderID != second.ProviderID {
		t.Errorf("found %+v, %v, want %s", found, err, second.ProviderID)
	}
	vms, err := p.List(t.Context(), infra.Owner{Cluster: cluster, Shard: shard})
	if err != nil || len(vms) != 2 || first.ProviderID == second.ProviderID {
		t.Errorf("%d VMs (%v), want 2", len(vms), err)
	}
}

func TestThrottlingIsCounted(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	r.cloud.Faults().Throttle(fault.Match{Service: "ec2", Action: "RunInstances"}, 1)
	_, err := p.Create(t.Context(), r.request())
	wantClass(t, "throttled once", err, infra.Throttled, "RequestLimitExceeded")
	r.create(p)
	if n := r.throttles("RunInstances"); n != 1 {
		t.Errorf("%d attempts counted as throttled, want 1", n)
	}
	r.cloud.Faults().Throttle(fault.Match{Service: "ec2", Action: "RunInstances"}, fault.Forever)
	_, err = p.Create(t.Context(), r.request())
	wantClass(t, "throttled throughout", err, infra.Throttled, "RequestLimitExceeded")
	began := time.Now()
	if _, err := p.List(t.Context(), infra.Owner{Cluster: cluster, Shard: shard}); err != nil ||
		time.Since(began) > 5*time.Second {
		t.Errorf("a list beside throttled creates took %s: %v", time.Since(began), err)
	}
}

func TestNotAllowed(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	vm := r.create(p)
	r.cloud.ExpireSessions(role)
	_, err := p.Create(t.Context(), r.request())
	wantClass(t, "expired credentials", err, infra.Denied)
	_, err = p.Get(t.Context(), vm.ProviderID)
	wantClass(t, "expired credentials", err, infra.Denied)
	err = p.Delete(t.Context(), vm)
	wantClass(t, "expired credentials", err, infra.Denied)
}

// TestDeleteOfAGoneInstanceWithTagPolicy deletes an instance that is gone, with a role that may terminate only
// instances with a tag. For an instance that is gone, EC2 then answers that the call is not allowed.
func TestDeleteOfAGoneInstanceWithTagPolicy(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	terminated, there := r.create(p), r.create(p)
	r.cloud.EC2().Kill(terminated.ProviderID)
	r.cloud.Faults().Fail(fault.Match{Action: "TerminateInstances"}, 3, http.StatusForbidden, "UnauthorizedOperation",
		"injected")
	if err := p.Delete(t.Context(), terminated); err != nil {
		t.Errorf("terminated: %v", err)
	}
	if err := p.Delete(t.Context(), infra.VM{ProviderID: "i-0123456789abcdef0"}); err != nil {
		t.Errorf("unknown: %v", err)
	}
	wantClass(t, "there", p.Delete(t.Context(), there), infra.Denied, "UnauthorizedOperation")
}

// ending is an EC2 where another caller terminates the instance just before TerminateInstances, which is then denied.
type ending struct {
	aws.EC2
	before func()
}

func (e ending) TerminateInstances(ctx context.Context, in *ec2.TerminateInstancesInput, o ...func(*ec2.Options)) (
	*ec2.TerminateInstancesOutput, error) {
	e.before()
	return e.EC2.TerminateInstances(ctx, in, o...)
}

func TestDeleteOfAnEndingInstanceWithTagPolicy(t *testing.T) {
	r := newTestCloud(t)
	var before func()
	p := r.open(func(cfg *aws.Config) { cfg.EC2 = ending{cfg.EC2, func() { before() }} })
	killed, terminated := r.create(p), r.create(p)
	r.cloud.EC2().Settle()
	denied := func() {
		r.cloud.Faults().Fail(fault.Match{Action: "TerminateInstances"}, 1, http.StatusForbidden,
			"UnauthorizedOperation", "injected")
	}
	before = func() { denied(); r.cloud.EC2().Kill(killed.ProviderID) }
	if err := p.Delete(t.Context(), killed); err != nil {
		t.Errorf("terminated: %v", err)
	}
	before = func() {
		denied()
		r.cloud.Faults().Fail(fault.Match{Action: "DescribeInstances"}, 1, http.StatusBadRequest,
			"InvalidInstanceID.NotFound", "injected")
	}
	if err := p.Delete(t.Context(), terminated); err != nil {
		t.Errorf("not found: %v", err)
	}
	before = func() {
		r.cloud.Faults().Fail(fault.Match{Action: "TerminateInstances"}, 1, http.StatusBadRequest,
			"InvalidInstanceID.NotFound", "injected")
	}
	if err := p.Delete(t.Context(), terminated); err != nil {
		t.Errorf("gone meanwhile: %v", err)
	}
	before = func() {
		denied()
		r.cloud.Faults().Fail(fault.Match{Action: "DescribeInstances"}, 1, http.StatusForbidden,
			"UnauthorizedOperation", "injected")
	}
	wantClass(t, "not known", p.Delete(t.Context(), terminated), infra.Denied)
}

func TestDescribeType(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	for name, want := range map[string]infra.InstanceType{"t3.small": {CPUs: 2, MemoryMiB: 2048},
		"m7g.4xlarge": {CPUs: 16, MemoryMiB: 65536}} {
		if size, err := p.DescribeType(t.Context(), name); err != nil || size != want {
			t.Errorf("%s: %+v, %v", name, size, err)
		}
	}
	_, err := p.DescribeType(t.Context(), "z9.none")
	wantClass(t, "unknown type", err, infra.Invalid, "z9.none")
}

func TestSubnets(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	small := r.subnet(zone, "10.0.48.0/28") // 16 addresses, of which AWS reserves 5
	subnets := []string{r.a, small, r.foreign, "subnet-0123456789abcdef0"}
	room, err := p.HasRoom(t.Context(), subnets)
	if diff := cmp.Diff(map[string]bool{r.a: true, small: true, r.foreign: false, subnets[3]: false},
		room); diff != "" || err != nil {
		t.Errorf("room (%v) (-want +got):\n%s", err, diff)
	}
	req := r.request()
	req.Subnet = small
	if _, err := p.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	before := r.calls("DescribeSubnets")
	if room, err = p.HasRoom(t.Context(), subnets[:2]); err != nil || !room[small] ||
		r.calls("DescribeSubnets") != before {
		t.Errorf("asked again immediately: %v, %v, %d calls", room, err, r.calls("DescribeSubnets")-before)
	}
	r.clock.Add(int64(time.Minute))
	if room, err = p.HasRoom(t.Context(), subnets[:2]); err != nil || room[small] || !room[r.a] {
		t.Errorf("with ten addresses left: %v, %v", room, err)
	}
	if room, err = p.HasRoom(t.Context(), []string{r.b}); err != nil || !room[r.b] {
		t.Errorf("another subnet: %v, %v", room, err)
	}
	verify := func(subnets ...string) error {
		return p.Verify(t.Context(), &config.Shard{Server: config.Server{
			SubnetPools: map[string][]string{"p": subnets}}})
	}
	if err := verify(r.a, r.b); err != nil {
		t.Errorf("good subnets: %v", err)
	}
	wantClass(t, "missing subnet", verify(r.a, subnets[3]), infra.NotFound, subnets[3])
	wantClass(t, "subnet of another zone", verify(r.a, r.foreign), infra.Invalid, r.foreign+" is in us-west-2b", zone)
	runs := r.calls("RunInstances")
	req = r.request()
	req.Subnet = r.foreign
	_, err = p.Create(t.Context(), req)
	wantClass(t, "create in another zone", err, infra.Invalid, "not in zone "+zone)
	if n := r.calls("RunInstances"); n != runs {
		t.Error("it was asked for")
	}
	_, err = r.open(nil).Create(t.Context(), req) // this provider has not described subnets yet
	wantClass(t, "create in another zone, unknown", err, infra.Invalid)
	// Create instances until the subnet is full. EC2 itself must refuse the last create.
	for {
		req := r.request()
		req.Subnet = small
		if _, err = p.Create(t.Context(), req); err != nil {
			break
		}
	}
	wantClass(t, "full subnet", err, infra.Capacity, "InsufficientFreeAddressesInSubnet")
}

func TestLoadBalancers(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	access, secret := r.cloud.Credentials()
	client := elbv2.NewFromConfig(sdk.Config{Region: region, BaseEndpoint: &r.url,
		Credentials: sdk.CredentialsProviderFunc(func(context.Context) (sdk.Credentials, error) {
			return sdk.Credentials{AccessKeyID: access, SecretAccessKey: secret}, nil
		})})
	group := func(name string) string {
		out, err := client.CreateTargetGroup(t.Context(), &elbv2.CreateTargetGroupInput{Name: &name, VpcId: &r.vpc,
			Protocol: elbtypes.ProtocolEnumTcp, Port: sdk.Int32(6443)})
		if err != nil {
			t.Fatal(err)
		}
		return *out.TargetGroups[0].TargetGroupArn
	}
	one, two := group("one"), group("two")
	targets := func(arn string) (ids []string) {
		out, err := client.DescribeTargetHealth(t.Context(), &elbv2.DescribeTargetHealthInput{TargetGroupArn: &arn})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range out.TargetHealthDescriptions {
			if d.TargetHealth.State != elbtypes.TargetHealthStateEnumDraining {
				ids = append(ids, *d.Target.Id)
			}
		}
		return ids
	}
	configure := func(arns ...string) {
		balancer := config.LoadBalancer{Provider: "aws"}
		balancer.TargetGroupARNs = arns
		p.Configure(&config.Shard{LoadBalancers: map[string]config.LoadBalancer{"api": balancer}})
	}
	vm := r.create(p)
	wantClass(t, "unknown load balancer", p.Register(t.Context(), "api", vm), infra.Invalid, "no such load balancer")
	configure(one, two)
	for range 2 {
		if err := p.Register(t.Context(), "api", vm); err != nil {
			t.Fatal(err)
		}
	}
	for _, arn := range []string{one, two} {
		if got := targets(arn); !slices.Equal(got, []string{vm.ProviderID}) {
			t.Errorf("%s has %v", arn, got)
		}
	}
	for range 2 {
		if err := p.Deregister(t.Context(), "api", vm); err != nil {
			t.Fatal(err)
		}
	}
	for _, arn := range []string{one, two} {
		if got := targets(arn); len(got) != 0 {
			t.Errorf("%s still has %v", arn, got)
		}
	}
	missing := strings.Replace(one, "/one/", "/gone/", 1)
	configure(missing, two)
	wantClass(t, "a target group that is gone", p.Register(t.Context(), "api", vm), infra.NotFound, missing)
	if got := targets(two); !slices.Equal(got, []string{vm.ProviderID}) {
		t.Errorf("the other has %v", got)
	}
	if err := p.Deregister(t.Context(), "api", vm); err != nil {
		t.Errorf("deregister from one that is gone: %v", err)
	}
	if got := targets(two); len(got) != 0 {
		t.Errorf("the other still has %v", got)
	}
	if err := p.Deregister(t.Context(), "none", vm); err != nil {
		t.Errorf("deregister from a load balancer that the configuration has no more: %v", err)
	}
	if err := p.Deregister(t.Context(), "api", infra.VM{}); err != nil {
		t.Errorf("deregister a VM that never was: %v", err)
	}
}

func TestImages(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(func(cfg *aws.Config) { cfg.PageSize = 5 })
	at := func(day int) time.Time { return time.Date(2029, 1, day, 0, 0, 0, 0, time.UTC) }
	ids := map[string]string{}
	for name, day := range map[string]int{"debian-12-b": 3, "debian-12-a": 5, "debian-12-c": 4, "other-1": 9} {
		ids[name] = r.cloud.EC2().AddImage(fake.AMI{Name: name, Created: at(day)})
	}
	for i := range 12 {
		r.cloud.EC2().AddImage(fake.AMI{Name: "filler-" + string(rune('a'+i)), Created: at(1)})
	}
	r.cloud.EC2().AddImage(fake.AMI{Name: "debian-12-z", Created: at(20), State: "pending"})
	r.cloud.EC2().AddImage(fake.AMI{Name: "debian-12-x", Created: at(21), Owner: "999999999999"})
	query := infra.ImageQuery{Owners: []string{"self"}, Filters: map[string][]string{"name": {"debian-12-*"}},
		Sort: "creation-date", Newest: true}
	for name, tc := range map[string]struct {
		change func(q *infra.ImageQuery)
		want   string
	}{
		"newest":        {func(*infra.ImageQuery) {}, "debian-12-a"},
		"oldest":        {func(q *infra.ImageQuery) { q.Newest = false }, "debian-12-b"},
		"last by name":  {func(q *infra.ImageQuery) { q.Sort = "name" }, "debian-12-c"},
		"first by name": {func(q *infra.ImageQuery) { q.Sort, q.Newest = "name", false }, "debian-12-a"},
		"two names": {func(q *infra.ImageQuery) {
			q.Filters = map[string][]string{"name": {"debian-12-b", "other-*"}}
		}, "other-1"},
		"two filters": {func(q *infra.ImageQuery) {
			q.Filters = map[string][]string{"name": {"debian-*"}, "architecture": {"x86_64"}}
		}, "debian-12-a"},
		"by ID alone": {func(q *infra.ImageQuery) {
			*q = infra.ImageQuery{Filters: map[string][]string{"image-id": {ids["other-1"]}}, Newest: true}
		}, "other-1"},
		"through pages": {func(q *infra.ImageQuery) { q.Filters = nil }, "other-1"},
		"account by ID": {func(q *infra.ImageQuery) { q.Owners = []string{"123456789012"} }, "debian-12-a"},
		"said available": {func(q *infra.ImageQuery) {
			q.Filters = map[string][]string{"name": {"debian-*"}, "state": {"available"}}
		}, "debian-12-a"},
	} {
		q := query
		tc.change(&q)
		if name == "through pages" {
			r.cloud.EC2().SetImageState(r.image, "deregistered") // this image was made today
		}
		if id, err := p.Resolve(t.Context(), q); err != nil || id != ids[tc.want] {
			t.Errorf("%s: %s, %v, want %s", name, id, err, ids[tc.want])
		}
	}
	query.Filters = map[string][]string{"name": {"gone-*"}}
	_, err := p.Resolve(t.Context(), query)
	wantClass(t, "no image", err, infra.NotFound, "owned by self; name = gone-*")
	query.Owners = nil
	_, err = p.Resolve(t.Context(), query)
	wantClass(t, "anybody's image", err, infra.Invalid, "owners")
}

// machines starts instances that act as servers, and makes an interface for the leader.
func (r *testCloud) machines(n int) (ids []string, eni string, addr netip.Addr) {
	r.t.Helper()
	for range n {
		out, err := r.root.RunInstances(r.t.Context(), &ec2.RunInstancesInput{ImageId: &r.image,
			InstanceType: "t3.small", SubnetId: &r.b, MinCount: sdk.Int32(1), MaxCount: sdk.Int32(1)})
		if err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, *out.Instances[0].InstanceId)
	}
	out, err := r.root.CreateNetworkInterface(r.t.Context(), &ec2.CreateNetworkInterfaceInput{SubnetId: &r.b,
		PrivateIpAddress: sdk.String("10.0.16.100")})
	if err != nil {
		r.t.Fatal(err)
	}
	return ids, *out.NetworkInterface.NetworkInterfaceId, netip.MustParseAddr("10.0.16.100")
}

func TestLeaderAddressMovesOn(t *testing.T) {
	r := newTestCloud(t)
	ids, eni, addr := r.machines(3)
	r.cloud.EC2().SetAttaching(50 * time.Millisecond)
	provider := func(machine string) *aws.Provider {
		return r.open(func(cfg *aws.Config) {
			cfg.Network, cfg.Answers = aws.Network{Interface: eni, Addresses: []netip.Addr{addr}}, r.here(eni, machine)
		})
	}
	holder := func() string {
		out, err := r.root.DescribeNetworkInterfaces(t.Context(), &ec2.DescribeNetworkInterfacesInput{
			NetworkInterfaceIds: []string{eni}})
		if err != nil {
			t.Fatal(err)
		}
		if a := out.NetworkInterfaces[0].Attachment; a != nil {
			return *a.InstanceId
		}
		return ""
	}
	first, second, third := provider(ids[0]), provider(ids[1]), provider(ids[2])
	acquire := func(p *aws.Provider, id string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := p.Acquire(ctx, id); err != nil {
			t.Fatal(err)
		}
		if h := holder(); h != id {
			t.Fatalf("held by %q, want %s", h, id)
		}
	}
	acquire(first, ids[0])
	before := r.calls("AttachNetworkInterface")
	acquire(first, ids[0])
	if n := r.calls("AttachNetworkInterface"); n != before {
		t.Error("what it had was attached again")
	}
	acquire(second, ids[1]) // from a live machine
	if err := first.Release(t.Context(), ids[0]); err != nil || holder() != ids[1] {
		t.Errorf("released by who does not have it: %v, held by %q", err, holder())
	}
	r.cloud.EC2().Kill(ids[1])
	acquire(third, ids[2]) // from a dead machine
	if state, err := third.MachineState(t.Context(), ids[1]); state != infra.Deleted || err != nil {
		t.Errorf("the dead holder's machine is %q, %v", state, err)
	}
	if state, err := third.MachineState(t.Context(), ids[2]); state != infra.Running || err != nil {
		t.Errorf("the holder's machine is %q, %v", state, err)
	}
	_, err := third.MachineState(t.Context(), "i-0123456789abcdef0")
	wantClass(t, "unknown machine", err, infra.NotFound)
	if err := third.Release(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	acquire(first, ids[0])

	foreign, err := r.root.CreateNetworkInterface(t.Context(), &ec2.CreateNetworkInterfaceInput{SubnetId: &r.foreign})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]struct {
		class   infra.Class
		message string
	}{
		*foreign.NetworkInterface.NetworkInterfaceId: {infra.Invalid, "is in us-west-2b"},
		"eni-0123456789abcdef0":                      {infra.NotFound, "there is no eni-0123456789abcdef0"},
	} {
		p := r.open(func(cfg *aws.Config) { cfg.Network = aws.Network{Interface: id, Addresses: []netip.Addr{addr}} })
		wantClass(t, id, p.Acquire(t.Context(), ids[0]), want.class, want.message)
	}
}

// TestBurst checks that many concurrent creates make one instance each.
func TestBurst(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	const n = 40
	var failed atomic.Int32
	var all sync.WaitGroup
	for range n {
		req := r.request()
		all.Go(func() {
			if _, err := p.Create(t.Context(), req); err != nil {
				failed.Add(1)
				t.Error(err)
			}
		})
	}
	all.Wait()
	vms, err := p.List(t.Context(), infra.Owner{Cluster: cluster, Shard: shard})
	if err != nil || len(vms) != n {
		t.Errorf("%d instances (%v), %d failed", len(vms), err, failed.Load())
	}
}

func TestMachineID(t *testing.T) {
	imds := func(answer string, version1 bool) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/latest/api/token" && r.Method == http.MethodPut && !version1:
				w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
				_, _ = w.Write([]byte("token"))
			case r.URL.Path == "/latest/meta-data/instance-id" && (version1 ||
				r.Header.Get("X-Aws-Ec2-Metadata-Token") == "token"):
				_, _ = w.Write([]byte(answer))
			default:
				w.WriteHeader(http.StatusForbidden)
			}
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	ask := func(url string) (string, error) {
		t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
		cfg, err := aws.SDK(t.Context(), config.Provider{Region: region}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return aws.MachineID(t.Context(), aws.NewIMDS(cfg))
	}
	if id, err := ask(imds("i-0123456789abcdef0", false)); id != "i-0123456789abcdef0" || err != nil {
		t.Errorf("got %q, %v", id, err)
	}
	if id, err := ask(imds("<html>", false)); err == nil {
		t.Errorf("a page was taken for the ID %q", id)
	}
	if id, err := ask(imds("i-0123456789abcdef0", true)); err == nil {
		t.Errorf("version 1 was asked and answered %q", id)
	}
	began := time.Now()
	if id, err := ask("http://127.0.0.1:1"); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("where there is no service: %q, %v after %s", id, err, time.Since(began))
	}
}
