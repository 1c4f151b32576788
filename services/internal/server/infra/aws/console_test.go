package aws_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

// fakeMachines starts machines that run no programs. The console of each machine shows the text in the field text.
type fakeMachines struct{ text string }

func (m fakeMachines) Start(fake.MachineSpec) (fake.Machine, error) { return m, nil }
func (fakeMachines) Stop()                                          {}
func (fakeMachines) Sleep(bool) error                               { return nil }
func (fakeMachines) Wake() error                                    { return nil }
func (fakeMachines) Plug(fake.NIC) error                            { return nil }
func (fakeMachines) Unplug(string) error                            { return nil }
func (m fakeMachines) Console() []byte                              { return []byte(m.text) }

func TestConsoles(t *testing.T) {
	cloud, err := fakeaws.New(fakeaws.Config{Machines: func(http.Handler) (fake.Machines, error) {
		return fakeMachines{"booting\r\nunknown flag: --x\r\n"}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(cloud)
	t.Cleanup(func() {
		server.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	access, secret := cloud.Credentials()
	for name, value := range map[string]string{"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": access,
		"AWS_SECRET_ACCESS_KEY": secret} {
		t.Setenv(name, value)
	}
	client := ec2.New(ec2.Options{Region: "us-west-2", BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
	vpc, err := client.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: sdk.String("10.0.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := client.CreateSubnet(t.Context(), &ec2.CreateSubnetInput{VpcId: vpc.Vpc.VpcId,
		CidrBlock: sdk.String("10.0.0.0/20"), AvailabilityZone: sdk.String("us-west-2a")})
	if err != nil {
		t.Fatal(err)
	}
	image := cloud.EC2().AddImage(fake.AMI{Name: "base", Arch: "x86_64"})
	// t2.micro has no Nitro hypervisor.
	var want []infra.Console
	for shard, kinds := range map[string][]types.InstanceType{"us-a": {"t3.micro", "t2.micro"}, "us-b": {"t3.micro"}} {
		for _, kind := range kinds {
			out, err := client.RunInstances(t.Context(), &ec2.RunInstancesInput{ImageId: &image, InstanceType: kind,
				SubnetId: subnet.Subnet.SubnetId, MinCount: sdk.Int32(1), MaxCount: sdk.Int32(1),
				TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
					Tags: []types.Tag{
						{Key: sdk.String("nstance:cluster"), Value: sdk.String("example")},
						{Key: sdk.String("nstance:server"), Value: sdk.String(shard)}}}}})
			if err != nil {
				t.Fatal(err)
			}
			if shard == "us-a" {
				want = append(want, infra.Console{Machine: *out.Instances[0].InstanceId, State: "running",
					Output: "booting\r\nunknown flag: --x\r\n"})
			}
		}
	}
	var shard config.Shard
	shard.Cluster.ID, shard.Server.Shard, shard.Server.Provider.Region = "example", "us-a", "us-west-2"
	got, err := aws.Cloud().Consoles(t.Context(), &shard)
	if err != nil {
		t.Fatal(err)
	}
	byMachine := func(list []infra.Console) map[string]infra.Console {
		all := map[string]infra.Console{}
		for _, c := range list {
			all[c.Machine] = c
		}
		return all
	}
	if diff := cmp.Diff(byMachine(want), byMachine(got)); diff != "" {
		t.Errorf("consoles (-want +got):\n%s", diff)
	}
	cloud.Faults().Fail(fault.Match{Action: "GetConsoleOutput"}, 1, http.StatusForbidden, "UnauthorizedOperation", "no")
	if got, err := aws.Cloud().Consoles(t.Context(), &shard); !strings.Contains(fmt.Sprint(err),
		"UnauthorizedOperation") {
		t.Errorf("where EC2 refuses the latest output: %v, %v", got, err)
	}
}
