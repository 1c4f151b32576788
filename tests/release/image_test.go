package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
)

// container is a script that runs a program in the file system $1 as a kubelet would run it: a read-only root, memory at
// the cache directory $2, the user 65532 without capabilities.
const container = `set -eu
root=$1 cache=$2
shift 2
mkdir -p "$root/proc" "$root$cache"
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o uid=65532,gid=65532 tmpfs "$root$cache"
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs chroot --userspec=65532:65532 --groups= "$root" "$@"
`

// testImage runs the server's image as examples/kubernetes-node describes it, for a shard of a fake AWS. The server must
// lead, restart for a new configuration, and stop cleanly.
func (d *dist) testImage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	stack, environment := d.startCloud(ctx, t)
	pod := podOfServer(t)
	program := pod.Containers[0]
	if user := pod.SecurityContext.RunAsUser; user == nil || *user != 65532 ||
		!*program.SecurityContext.ReadOnlyRootFilesystem {
		t.Fatalf("the pod of the example does not run as this test runs it: %+v", pod.SecurityContext)
	}
	image, entrypoint := unpackImage(t, filepath.Join(d.dir, "nstance-server_"+number+"_oci.tar"))
	args := []string{"--mount", "--propagation", "private", "sh", "-c", container, "sh", image,
		program.VolumeMounts[0].MountPath, entrypoint}
	health := strings.TrimPrefix(stack.URL(1, ""), "http://")
	for _, arg := range program.Args {
		args = append(args, strings.NewReplacer("us-west-2a", local.Shard, "my-bucket", local.Bucket, "0.0.0.0:8990",
			health).Replace(arg))
	}
	cmd := exec.CommandContext(ctx, "unshare", args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = environment
	for _, variable := range program.Env {
		if variable.Name != "AWS_REGION" {
			cmd.Env = append(cmd.Env, variable.Name+"="+variable.Value)
		}
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := awaitLeader(ctx, stack, 1); err != nil {
		cancel()
		t.Fatalf("%v, %v\n%s", err, <-ended, log.String())
	}
	if err := changeConfiguration(ctx, stack, filepath.Join(stack.Dir, "operator")); err != nil {
		t.Error(err)
	}
	if err := awaitLeader(ctx, stack, 2); err != nil {
		t.Errorf("after another configuration: %v", err)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) || !strings.Contains(log.String(),
		"server stopped") {
		t.Errorf("%v\n%s", err, log.String())
	}
}

// startCloud starts a fake AWS and an object store with the configuration of a shard without instances. It returns the
// environment of the shard's servers.
func (d *dist) startCloud(ctx context.Context, t *testing.T) (*local.Stack, []string) {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(cloud)
	t.Cleanup(func() {
		api.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	access, secret := cloud.Credentials()
	client := ec2.New(ec2.Options{Region: "us-west-2", BaseEndpoint: &api.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
	vpc, err := client.CreateVpc(ctx, &ec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := client.CreateSubnet(ctx, &ec2.CreateSubnetInput{VpcId: vpc.Vpc.VpcId,
		CidrBlock: aws.String("10.0.0.0/17"), AvailabilityZone: aws.String("us-west-2a")})
	if err != nil {
		t.Fatal(err)
	}
	image := cloud.EC2().AddImage(fake.AMI{Name: "base"})

	archive := "nstance-dev_" + number + "_linux_" + runtime.GOARCH
	unpacked := t.TempDir()
	output(t, nil, "tar", "-xzf", filepath.Join(d.dir, archive+".tar.gz"), "-C", unpacked)
	ports, release, err := local.ReservePorts(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	stack, err := local.New(local.Options{Root: filepath.Join(unpacked, archive), Bin: filepath.Join(unpacked, archive),
		Dir: t.TempDir(), Ports: ports, Servers: 1, AccessKey: access})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.KillAll(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	if _, err := stack.StartStore(ctx); err != nil {
		t.Fatal(err)
	}
	if err := stack.PutConfig(ctx, func(c *config.Shard) {
		c.Server.Provider = config.Provider{Kind: "aws", Region: "us-west-2", Zone: "us-west-2a"}
		c.Server.SubnetPools = map[string][]string{"local": {*subnet.Subnet.SubnetId}}
		c.Defaults.Args = map[string]any{"ImageId": image}
		for name, template := range c.Templates {
			template.InstanceType = "t4g.nano"
			c.Templates[name] = template
		}
		c.Groups = nil
	}); err != nil {
		t.Fatal(err)
	}
	environment := append(stack.Settings(), "AWS_EC2_METADATA_DISABLED=true", "AWS_ENDPOINT_URL_EC2="+api.URL,
		"AWS_SECRET_ACCESS_KEY="+secret, "PATH=/usr/bin:/bin:/usr/sbin:/sbin")
	return stack, environment
}

// podOfServer returns the pod of the example for Kubernetes nodes.
func podOfServer(t *testing.T) *corev1.PodSpec {
	t.Helper()
	text := string(read(t, filepath.Join(root, "examples/kubernetes-node/nstance-server.yaml")))
	_, document, _ := strings.Cut(text, "\n---\n")
	set := &appsv1.DaemonSet{}
	if err := yaml.UnmarshalStrict([]byte(document), set); err != nil {
		t.Fatal(err)
	}
	return &set.Spec.Template.Spec
}

// changeConfiguration changes the configuration so that the leader has to restart, and makes the leader read it.
func changeConfiguration(ctx context.Context, stack *local.Stack, identity string) error {
	state, err := stack.State(ctx)
	if err != nil {
		return err
	}
	body, token, err := state.ReadConfig(ctx, local.Shard)
	if err != nil {
		return err
	}
	shard, problems := config.Parse(local.Shard, body)
	if len(problems) > 0 {
		return problems
	}
	shard.Server.Bind.Election = strings.Replace(shard.Server.Bind.Election, "127.0.0.1", "127.0.0.2", 1)
	if _, err := state.WriteConfig(ctx, local.Shard, config.Encode(shard), token); err != nil {
		return err
	}
	operator, err := stack.ConnectAs(ctx, identity)
	if err != nil {
		return err
	}
	defer operator.Close()
	_, err = operator.Refresh(ctx)
	return err
}

// awaitLeader waits until the server leads in a term.
func awaitLeader(ctx context.Context, stack *local.Stack, term int) error {
	want, last := fmt.Sprintf("leader term=%d", term), ""
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, stack.URL(1, "/leader"), nil)
		if err != nil {
			return err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if last = string(body); strings.HasPrefix(last, want) {
				return nil
			}
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return errors.Join(err, errors.New("the last answer was "+last))
		}
	}
}

// unpackImage unpacks the image of this platform from an OCI archive. It returns the directory of the file system and
// the image's entrypoint.
func unpackImage(t *testing.T, archive string) (dir, entrypoint string) {
	t.Helper()
	layout := t.TempDir()
	output(t, nil, "tar", "-xf", archive, "-C", layout)
	type descriptor struct {
		Digest, MediaType string
		Platform          struct{ Architecture string }
	}
	blob := func(d descriptor) string {
		return filepath.Join(layout, "blobs", strings.Replace(d.Digest, ":", "/", 1))
	}
	var index, images struct{ Manifests []descriptor }
	decode(t, filepath.Join(layout, "index.json"), &index)
	decode(t, blob(index.Manifests[0]), &images)
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, image := range images.Manifests {
		if image.Platform.Architecture != runtime.GOARCH {
			continue
		}
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		decode(t, blob(image), &manifest)
		for _, layer := range manifest.Layers {
			output(t, nil, "tar", "-xf", blob(layer), "-C", dir)
		}
		var settings struct {
			Config struct{ Entrypoint []string }
		}
		if err := json.Unmarshal(read(t, blob(manifest.Config)), &settings); err != nil {
			t.Fatal(err)
		}
		return dir, settings.Config.Entrypoint[0]
	}
	t.Fatalf("%s has no image for %s", archive, runtime.GOARCH)
	return "", ""
}
