package leader_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/rate"
)

// argsRenderer renders every request with the same args.
type argsRenderer struct {
	*shard
	args map[string]any
}

func (r argsRenderer) Images() map[string]string { return nil }

func (r argsRenderer) Render(ctx context.Context, group config.Group, rec record.Instance) (filegen.Machine, error) {
	m, err := r.shard.Render(ctx, group, rec)
	m.Args = r.args
	return m, err
}

// TestAlertsNameWhatTheAccountLacks runs a leader in accounts of the fake AWS in which it cannot make the group's VMs.
// The group's alert must contain the permission, the quota or the KMS key that the account lacks.
func TestAlertsNameWhatTheAccountLacks(t *testing.T) {
	const key = "arn:aws:kms:us-west-2:123456789012:key/1234abcd"
	const all = `{"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}`
	encrypted := []any{map[string]any{"DeviceName": "/dev/xvda",
		"Ebs": map[string]any{"Encrypted": true, "KmsKeyId": key}}}
	for _, test := range []struct {
		name, statements string
		limits           *rate.Limits
		args             map[string]any
		prepare          func(*fakeaws.Cloud)
		want             []string // in one alert
	}{
		{name: "denied", statements: all + `, {"Effect": "Deny", "Action": "ec2:CreateTags", "Resource": "*"}`,
			want: []string{"UnauthorizedOperation", "ec2:CreateTags"}},
		{name: "throttled", statements: all,
			limits: rate.Only(map[string]rate.Limit{"RunInstances": {Burst: 1, PerSecond: 0.001}}),
			want:   []string{"throttles", "RunInstances request bucket refill rate"}},
		{name: "quota-limited", statements: all, prepare: func(cloud *fakeaws.Cloud) {
			cloud.Faults().Fail(fault.Match{Service: "ec2", Action: "RunInstances"}, fault.Forever,
				http.StatusBadRequest, "VcpuLimitExceeded", "You have requested more vCPU capacity than your limit")
		}, want: []string{"VcpuLimitExceeded", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"}},
		{name: "KMS-encrypted, key not permitted", statements: all,
			args:    map[string]any{"BlockDeviceMappings": encrypted},
			prepare: func(cloud *fakeaws.Cloud) { cloud.EC2().AddKey(fake.Key{ARN: key}) },
			want:    []string{"ended before its agent registered", "may not use KmsKeyId " + key}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cloud, err := fakeaws.New(fakeaws.Config{Region: "us-west-2", Limits: test.limits})
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(cloud)
			cfg, err := aws.SDK(t.Context(), config.Provider{Region: cloud.Region()}, nil)
			if err != nil {
				t.Fatal(err)
			}
			cfg.BaseEndpoint = &server.URL
			as := func(access, secret, token string) sdk.Config {
				cfg := cfg.Copy()
				cfg.Credentials = credentials.NewStaticCredentialsProvider(access, secret, token)
				return cfg
			}
			access, secret := cloud.Credentials()
			root := as(access, secret, "")
			zone := cloud.Region() + "a"
			subnet := newSubnet(t, ec2.NewFromConfig(root), zone)
			newRole(t, iam.NewFromConfig(root), "servers", test.statements)
			provider, err := aws.New(aws.Config{Zone: zone,
				EC2: ec2.NewFromConfig(as(cloud.RoleCredentials("servers", "i-1")))})
			if err != nil {
				t.Fatal(err)
			}
			if test.prepare != nil {
				test.prepare(cloud)
			}
			args := map[string]any{"ImageId": cloud.EC2().AddImage(fake.AMI{Name: "base"})}
			for name, value := range test.args {
				args[name] = value
			}

			s := newShard(t, 0)
			s.Executor.Provider, s.Asker.Provider = provider, provider
			s.Executor.Renderer = argsRenderer{s, args}
			interval := config.Duration(100 * time.Millisecond)
			settings := (&config.Shard{Server: config.Server{GarbageCollection: config.GarbageCollection{
				Interval: &interval}}}).WithDefaults()
			s.State.Configure(settings, map[config.GroupKey]config.Group{workers: {GroupKey: workers, Static: true,
				Kind: "wrk", Template: "t", Size: 2, MaxSurge: 1, InstanceType: "t3.small",
				Subnets: []string{subnet}, InfraHash: "i1"}})
			ctx, cancel := context.WithCancel(t.Context())
			defer func() {
				cancel()
				s.wait()
				server.Close()
				if err := cloud.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := s.TakeOver(ctx); err != nil {
				t.Fatal(err)
			}
			s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
			s.env.Go("collect", func() { s.Collect(ctx) })
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				alerts := s.State.Standing(workers.Tenant)
				for _, alert := range alerts {
					if alert.Group == workers.Group && containsAll(alert.Message, test.want) {
						return
					}
				}
				if time.Now().After(end) {
					t.Fatalf("alerts %+v, want one of the group with %q", alerts, test.want)
				}
			}
		})
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// newSubnet makes a network with one subnet in a zone.
func newSubnet(t testing.TB, client *ec2.Client, zone string) (subnet string) {
	t.Helper()
	vpc, err := client.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: sdk.String("10.0.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	made, err := client.CreateSubnet(t.Context(), &ec2.CreateSubnetInput{VpcId: vpc.Vpc.VpcId,
		CidrBlock: sdk.String("10.0.0.0/20"), AvailabilityZone: &zone})
	if err != nil {
		t.Fatal(err)
	}
	return *made.Subnet.SubnetId
}

// newRole makes an IAM role for EC2 instances, with a policy that has the given statements.
func newRole(t *testing.T, client *iam.Client, name, statements string) {
	t.Helper()
	if _, err := client.CreateRole(t.Context(), &iam.CreateRoleInput{RoleName: &name,
		AssumeRolePolicyDocument: sdk.String(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
			"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutRolePolicy(t.Context(), &iam.PutRolePolicyInput{RoleName: &name, PolicyName: &name,
		PolicyDocument: sdk.String(`{"Version": "2012-10-17", "Statement": [` + statements + `]}`)}); err != nil {
		t.Fatal(err)
	}
}
