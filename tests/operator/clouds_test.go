package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
	"github.com/nstance-kit/nstance/tests/kube"
)

// portable is the name of a subnet pool of both shards, on AWS and on Google Cloud. The MachinePool has the same name.
const portable = "portable"

// TestClouds splits one MachinePool over a shard on AWS and a shard on Google Cloud. The subnet pool has the same name
// on both clouds. When Google Cloud has no capacity, the user moves that part of the pool to AWS. The operator has only
// the rights that it needs without on-demand pods.
func TestClouds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	guests := hosts{dir: t.TempDir(), agent: filepath.Join(os.Getenv(binVariable), "nstance-agent")}
	aws, east := onAWS(t, guests)
	gcp, west := onGoogleCloud(t, guests)
	l := newLabOf(t, east, west)
	l.flags = []string{"--on-demand-pods=false"}
	l.kubectl(t, "apply", "-f", filepath.Join(l.root, "services", "operator", "kustomize", "components",
		"without-on-demand", "role.yaml"))
	l.bootstrap(t)
	ctx := t.Context()
	l.create(ctx, t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(portable),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: portable, Shards: []string{"east", "west"},
			Config: &apiextensionsv1.JSON{Raw: []byte(`{"template":"worker","subnet_pool":"` + portable + `"}`)}}})
	l.create(ctx, t, referringPool(portable, portable, 4))
	running := func(what string, onAWS, onGCP int, check func(context.Context) error) {
		t.Helper()
		await(t, what, patience, func(ctx context.Context) error {
			if a, g := runningOnAWS(aws), runningOnGoogleCloud(gcp); a != onAWS || g != onGCP {
				return fmt.Errorf("%d run on AWS, %d on Google Cloud", a, g)
			}
			return check(ctx)
		})
	}
	running("half on each cloud", 2, 2, func(ctx context.Context) error {
		return l.spread(ctx, portable, l.both(2, 2))
	})

	gcp.Compute.Fail(compute.Fault{Type: "insert", Collection: "instances", Failure: compute.Stockout()})
	if err := l.scale(ctx, portable, 6); err != nil {
		t.Fatal(err)
	}
	await(t, "the pool names the cloud without capacity", patience, func(ctx context.Context) error {
		return errors.Join(l.east.settled(ctx, portable, 3), has(ctx, l, &v1beta1.NstanceShardGroup{},
			v1beta1.ShardGroupName(portable, "west"), func(g *v1beta1.NstanceShardGroup) error {
				if text := fmt.Sprint(g.Status.Conditions); !strings.Contains(text, "ZONE_RESOURCE_POOL_EXHAUSTED") {
					return errors.New(text)
				}
				return nil
			}))
	})
	l.kubectl(t, "-n", namespace, "patch", "nstancemachinepool", portable, "--type=merge", "-p",
		`{"spec":{"shards":["east"]}}`)
	// The server of the shard on Google Cloud notices within a minute that the VMs are gone.
	running("all on AWS", 6, 0, func(ctx context.Context) error {
		return errors.Join(l.east.settled(ctx, portable, 6), l.joined(ctx, portable, map[*shard]int{l.east: 6}))
	})
}

// onCloud returns a function that adapts the example's configuration to a cloud. The servers must not check the
// addresses of agents: the agents register from the loopback address, which no instance has in the cloud.
func onCloud(kind, region, zone, subnet, instanceType string, args map[string]any) func(*config.Shard) {
	return func(c *config.Shard) {
		unchecked := false
		c.Server.Provider = config.Provider{Kind: kind, Region: region, Zone: zone}
		c.Server.CheckRegistrationAddress = &unchecked
		c.Server.SubnetPools = map[string][]string{portable: {subnet}}
		template := c.Templates["worker"]
		template.SubnetPool, template.InstanceType, template.Args = portable, instanceType, args
		template.Tenants = []string{tenant}
		c.Templates["worker"] = template
		c.Groups = nil
	}
}

// onAWS makes a fake AWS with a subnet and an image. It returns the fake, and the setup of a shard that uses it.
func onAWS(t *testing.T, guests hosts) (*fakeaws.Cloud, setup) {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{Machines: func(http.Handler) (ec2.Machines, error) { return guests, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cloud.Close() })
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	access, secret := cloud.Credentials()
	client := awsec2.NewFromConfig(awssdk.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
		Credentials: awscredentials.NewStaticCredentialsProvider(access, secret, "")})
	block, zone := "10.0.0.0/16", cloud.Region()+"a"
	vpc, err := client.CreateVpc(t.Context(), &awsec2.CreateVpcInput{CidrBlock: &block})
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := client.CreateSubnet(t.Context(), &awsec2.CreateSubnetInput{VpcId: vpc.Vpc.VpcId, CidrBlock: &block,
		AvailabilityZone: &zone})
	if err != nil {
		t.Fatal(err)
	}
	image := cloud.EC2().AddImage(ec2.AMI{Name: "agent", Arch: "x86_64", Created: time.Now().Add(-time.Hour)})
	return cloud, setup{change: onCloud("aws", cloud.Region(), zone, awssdk.ToString(subnet.Subnet.SubnetId),
		"t3.small", map[string]any{"ImageId": image}),
		env: []string{"AWS_ENDPOINT_URL=" + server.URL, "AWS_ACCESS_KEY_ID=" + access,
			"AWS_SECRET_ACCESS_KEY=" + secret, "AWS_REGION=" + cloud.Region(), "AWS_EC2_METADATA_DISABLED=true"}}
}

func runningOnAWS(cloud *fakeaws.Cloud) (n int) {
	for _, instance := range cloud.EC2().Instances() {
		if instance.State == "running" {
			n++
		}
	}
	return n
}

// onGoogleCloud is like onAWS, for Google Cloud.
func onGoogleCloud(t *testing.T, guests hosts) (*fakegcp.Cloud, setup) {
	t.Helper()
	const region, zone = "us-central1", "us-central1-a"
	cloud, err := fakegcp.New(zone)
	if err != nil {
		t.Fatal(err)
	}
	cloud.Compute.Machines = googleHosts{guests}
	cloud.Compute.SetDelay("delete", time.Second) // instead of a minute
	cloud.Compute.AddImage(fakegcp.Project, "agent-1", "agent")
	cloud.Compute.Do(func() {
		cloud.Compute.Put("projects/"+fakegcp.Project+"/regions/"+region+"/subnetworks/workers",
			map[string]any{"ipCidrRange": "10.1.0.0/20"})
	})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	env := []string{"GOOGLE_APPLICATION_CREDENTIALS=" + credentials.Write(t, fakegcp.Project)}
	for name, value := range fakegcp.Environment(server.URL) {
		env = append(env, name+"="+value)
	}
	return cloud, setup{env: env, change: onCloud("gcp", region, zone, "workers", "e2-small", map[string]any{
		"disks": []any{map[string]any{"initializeParams": map[string]any{
			"sourceImage": "projects/" + fakegcp.Project + "/global/images/agent-1"}}}})}
}

func runningOnGoogleCloud(cloud *fakegcp.Cloud) (n int) {
	for _, instance := range cloud.Compute.Instances() {
		if instance.Body["status"] == "RUNNING" {
			n++
		}
	}
	return n
}

// hosts runs the boot scripts of instances on this machine, each in a directory and with a real agent.
type hosts struct{ dir, agent string }

// guest is the agent of one instance.
type guest struct{ *kube.Process }

func (h hosts) boot(id string, script []byte) (guest, error) {
	dir := filepath.Join(h.dir, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return guest{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "boot"), script, 0o700); err != nil {
		return guest{}, err
	}
	env := append(os.Environ(), "NSTANCE_VM_DIR="+dir, "NSTANCE_ENV_FILE="+filepath.Join(dir, "agent.env"),
		"NSTANCE_IDENTITY_DIR="+filepath.Join(dir, "identity"), "NSTANCE_KEYS_DIR="+filepath.Join(dir, "keys"),
		"NSTANCE_RECV_DIR="+filepath.Join(dir, "recv"), "NSTANCE_PROVIDER=none", "NSTANCE_INSTANCE_HOSTNAME="+id,
		"NSTANCE_INSTANCE_FQDN="+id, "NSTANCE_INSTANCE_IPV4=127.0.0.1")
	process, err := kube.Run(dir, "agent", "/bin/sh", env, "-c",
		`"$NSTANCE_VM_DIR/boot" && set -a && . "$NSTANCE_ENV_FILE" && set +a && exec "$0"`, h.agent)
	return guest{process}, err
}

// Start implements [ec2.Machines].
func (h hosts) Start(spec contract.Spec) (contract.Machine, error) {
	return h.boot(spec.ID, spec.Userdata)
}

// Stop implements [ec2.Machine] and [compute.Machine].
func (g guest) Stop() { g.Kill() }

// Sleep implements [ec2.Machine].
func (guest) Sleep(bool) error { return errors.ErrUnsupported }

// Wake implements [ec2.Machine].
func (guest) Wake() error { return errors.ErrUnsupported }

// Plug implements [ec2.Machine].
func (guest) Plug(contract.NIC) error { return errors.ErrUnsupported }

// Unplug implements [ec2.Machine].
func (guest) Unplug(string) error { return errors.ErrUnsupported }

// Console implements [ec2.Machine].
func (guest) Console() []byte { return nil }

// googleHosts are hosts for instances of Google Cloud.
type googleHosts struct{ hosts }

// googleGuest is a guest on Google Cloud.
type googleGuest struct{ guest }

// Start implements [compute.Machines].
func (h googleHosts) Start(i compute.Instance) (compute.Machine, error) {
	made, err := h.boot(fmt.Sprint(i.Body["name"]), []byte(i.Metadata()["startup-script"]))
	return googleGuest{made}, err
}

// Changed implements [compute.Machine].
func (googleGuest) Changed() {}

// Console implements [compute.Machine].
func (googleGuest) Console() string { return "" }
