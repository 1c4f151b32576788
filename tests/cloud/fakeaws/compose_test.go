package fakeaws_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	scaling "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	elbtypes "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fakeec2 "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	fakes3 "github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
)

func must[T any](out T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// until waits until the function `reached` returns true. It fails the test after 10 s.
func until(t *testing.T, what string, reached func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !reached() {
		select {
		case <-deadline:
			t.Fatalf("not within ten seconds: %s", what)
		case <-ticker.C:
		}
	}
}

// profile makes an instance profile for a role that [testCloud.allow] made. Both have the same name.
func (c *testCloud) profile(t *testing.T, role string) {
	t.Helper()
	client := iam.NewFromConfig(c.root())
	must(client.CreateInstanceProfile(t.Context(), &iam.CreateInstanceProfileInput{InstanceProfileName: &role}))(t)
	must(client.AddRoleToInstanceProfile(t.Context(), &iam.AddRoleToInstanceProfileInput{InstanceProfileName: &role,
		RoleName: &role}))(t)
}

// subnet makes a VPC and a subnet in it.
func (c *testCloud) subnet(t *testing.T) (vpc, subnet string) {
	t.Helper()
	client := ec2.NewFromConfig(c.root())
	vpc = *must(client.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")}))(t).Vpc.VpcId
	made := must(client.CreateSubnet(t.Context(), &ec2.CreateSubnetInput{VpcId: &vpc,
		CidrBlock: aws.String("10.0.1.0/24"), AvailabilityZone: aws.String("us-west-2a")}))(t)
	return vpc, *made.Subnet.SubnetId
}

func TestInstanceProfile(t *testing.T) {
	w := newTestCloud(t)
	// The role may create tags only in calls that it makes from an EC2 instance.
	w.allow(t, "server",
		`{"Effect":"Allow","Action":"ec2:CreateTags","Resource":"*","Condition":{"ArnEquals":{"ec2:SourceInstanceARN":"arn:aws:ec2:us-west-2:123456789012:instance/*"}}}`,
		`{"Effect":"Allow","Action":"ec2:DescribeInstances","Resource":"*"}`)
	w.profile(t, "server")
	_, subnet := w.subnet(t)
	image := w.EC2().AddImage(fakeec2.AMI{Name: "server"})
	root := ec2.NewFromConfig(w.root())
	run := &ec2.RunInstancesInput{
		ImageId: &image, InstanceType: ec2types.InstanceTypeT3Small, MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		SubnetId:           &subnet,
		IamInstanceProfile: &ec2types.IamInstanceProfileSpecification{Name: aws.String("server")},
	}
	id := *must(root.RunInstances(t.Context(), run))(t).Instances[0].InstanceId
	metadata := func() (key struct{ AccessKeyId, SecretAccessKey, Token string }) {
		text, ok := w.EC2().Metadata(id, "iam/security-credentials/server")
		if !ok {
			t.Fatal("the metadata have no credentials")
		}
		if err := json.Unmarshal([]byte(text), &key); err != nil {
			t.Fatal(err)
		}
		return key
	}
	key := metadata()
	config := w.config(key.AccessKeyId, key.SecretAccessKey, key.Token)
	if who := must(sts.NewFromConfig(config).GetCallerIdentity(t.Context(), nil))(
		t); *who.Arn != "arn:aws:sts::123456789012:assumed-role/server/"+id {
		t.Errorf("the instance is %s", *who.Arn)
	}
	server := ec2.NewFromConfig(config)
	must(server.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{id}}))(t)
	tag := &ec2.CreateTagsInput{Resources: []string{id}, Tags: []ec2types.Tag{{Key: aws.String("a"),
		Value: aws.String("b")}}}
	must(server.CreateTags(t.Context(), tag))(t)
	_, err := ec2.NewFromConfig(w.role("server", "laptop")).CreateTags(t.Context(), tag)
	wantCode(t, err, "UnauthorizedOperation")
	_, err = server.RunInstances(t.Context(), run)
	wantCode(t, err, "UnauthorizedOperation")

	if again := metadata(); again != key {
		t.Error("the instance got other credentials while the old ones were good")
	}
	w.ExpireSessions("server")
	_, err = server.DescribeInstances(t.Context(), nil)
	wantCode(t, err, "RequestExpired")
	key = metadata()
	must(ec2.NewFromConfig(w.config(key.AccessKeyId, key.SecretAccessKey, key.Token)).DescribeInstances(t.Context(),
		nil))(t)
}

// TestScalingBehindBalancer checks that a load balancer finds an instance that Auto Scaling launched.
func TestScalingBehindBalancer(t *testing.T) {
	w := newTestCloud(t)
	vpc, subnet := w.subnet(t)
	image := w.EC2().AddImage(fakeec2.AMI{Name: "server"})
	c := w.root()
	balancers, groups, machines := elb.NewFromConfig(c), autoscaling.NewFromConfig(c), ec2.NewFromConfig(c)
	targets := must(balancers.CreateTargetGroup(t.Context(), &elb.CreateTargetGroupInput{
		Name: aws.String("servers"), Protocol: elbtypes.ProtocolEnumTcp, Port: aws.Int32(8992), VpcId: &vpc,
		TargetType: elbtypes.TargetTypeEnumInstance,
	}))(t).TargetGroups[0].TargetGroupArn
	balancer := must(balancers.CreateLoadBalancer(t.Context(), &elb.CreateLoadBalancerInput{
		Name: aws.String("front"), Type: elbtypes.LoadBalancerTypeEnumNetwork,
		Scheme: elbtypes.LoadBalancerSchemeEnumInternal, Subnets: []string{subnet},
	}))(t).LoadBalancers[0].LoadBalancerArn
	must(balancers.CreateListener(t.Context(), &elb.CreateListenerInput{
		LoadBalancerArn: balancer, Port: aws.Int32(8992), Protocol: elbtypes.ProtocolEnumTcp,
		DefaultActions: []elbtypes.Action{{Type: elbtypes.ActionTypeEnumForward, TargetGroupArn: targets}},
	}))(t)
	template := must(machines.CreateLaunchTemplate(t.Context(), &ec2.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("server"), LaunchTemplateData: &ec2types.RequestLaunchTemplateData{
			ImageId: &image, InstanceType: ec2types.InstanceTypeT3Small},
	}))(t).LaunchTemplate
	must(groups.CreateAutoScalingGroup(t.Context(), &autoscaling.CreateAutoScalingGroupInput{
		AutoScalingGroupName: aws.String("servers"), MinSize: aws.Int32(0), MaxSize: aws.Int32(2),
		DesiredCapacity: aws.Int32(1), VPCZoneIdentifier: &subnet,
		LaunchTemplate: &scaling.LaunchTemplateSpecification{LaunchTemplateId: template.LaunchTemplateId,
			Version: aws.String("$Latest")}, TargetGroupARNs: []string{*targets},
	}))(t)
	until(t, "a healthy target", func() bool {
		health := must(balancers.DescribeTargetHealth(t.Context(), &elb.DescribeTargetHealthInput{
			TargetGroupArn: targets}))(t).TargetHealthDescriptions
		return len(health) == 1 && health[0].TargetHealth.State == elbtypes.TargetHealthStateEnumHealthy
	})
	must(groups.UpdateAutoScalingGroup(t.Context(), &autoscaling.UpdateAutoScalingGroupInput{
		AutoScalingGroupName: aws.String("servers"), DesiredCapacity: aws.Int32(0)}))(t)
	until(t, "no member, and a target that drains", func() bool {
		group := must(groups.DescribeAutoScalingGroups(t.Context(), nil))(t).AutoScalingGroups[0]
		health := must(balancers.DescribeTargetHealth(t.Context(), &elb.DescribeTargetHealthInput{
			TargetGroupArn: targets}))(t).TargetHealthDescriptions
		return len(group.Instances) == 0 && len(health) == 1 &&
			health[0].TargetHealth.State == elbtypes.TargetHealthStateEnumDraining
	})
}

func TestBucket(t *testing.T) {
	if testing.Short() {
		t.Log("the real S3 server is left out of a short run")
		return
	}
	gateway := os.Getenv("NSTANCE_VERSITYGW")
	if gateway == "" {
		gateway = strings.TrimSpace(string(must(exec.CommandContext(t.Context(), "../../../scripts/tool.sh",
			"versitygw").Output())(t)))
	}
	backend, stop, err := fakes3.Start(t.Context(), t.TempDir(), gateway)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop() })
	w := newTestCloud(t, func(c *fakeaws.Config) { c.S3 = &backend })
	pathStyle := func(o *s3.Options) { o.UsePathStyle = true }
	root := s3.NewFromConfig(w.root(), pathStyle)
	must(root.CreateBucket(t.Context(), &s3.CreateBucketInput{
		Bucket: aws.String("nstance"), CreateBucketConfiguration: &s3types.CreateBucketConfiguration{
			LocationConstraint: s3types.BucketLocationConstraintUsWest2},
	}))(t)
	w.allow(t, "server",
		`{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject"],"Resource":"arn:aws:s3:::nstance/shard/*"}`)
	server := s3.NewFromConfig(w.role("server", "s1"), pathStyle)
	put := func(key string) error {
		_, err := server.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("nstance"), Key: &key,
			Body: strings.NewReader("{}"), IfNoneMatch: aws.String("*")})
		return err
	}
	if err := put("shard/a/leader.json"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, put("shard/a/leader.json"), "PreconditionFailed")
	wantCode(t, put("config/a.jsonc"), "AccessDenied")

	policy := `{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::nstance","arn:aws:s3:::nstance/*"],"Condition":{"Bool":{"aws:SecureTransport":"false"}}},
		{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::nstance/shard/b/*"}]}`
	must(root.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: aws.String("nstance"), Policy: &policy}))(t)
	must(server.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("nstance"),
		Key: aws.String("shard/a/leader.json")}))(t)
	wantCode(t, put("shard/b/leader.json"), "AccessDenied")
}
