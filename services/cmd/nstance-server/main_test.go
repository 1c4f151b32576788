package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/keyring"
	keysources "github.com/nstance-kit/nstance/services/store/keyring/all"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	secrets "github.com/nstance-kit/nstance/services/store/secretstore/open"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
)

// hermetic sets environment variables so that this process uses a fake AWS, as if it ran on an EC2 instance in the fake
// AWS. It returns the fake AWS and an EC2 client of the instance's account.
func hermetic(t *testing.T, machine string) (*fakeaws.Cloud, *ec2.Client) {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(cloud)
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case machine == "":
			w.WriteHeader(http.StatusForbidden)
		case r.Method == http.MethodPut:
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
			_, _ = io.WriteString(w, "token")
		case strings.HasSuffix(r.URL.Path, "/instance-id"):
			_, _ = io.WriteString(w, machine)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(func() { api.Close(); metadata.Close() })
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	access, secret := cloud.Credentials()
	for name, value := range map[string]string{"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_ENDPOINT_URL":                  api.URL,
		"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.URL, "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret,
		"NSTANCE_ENCRYPTION_KEY": "thisisatest32bytekey123456789012"} {
		t.Setenv(name, value)
	}
	return cloud, ec2.NewFromConfig(sdk.Config{Region: "us-west-2", BaseEndpoint: &api.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
}

// shard returns a bucket with the configuration of a shard that has one group of two instances.
func shard(t *testing.T, subnet string) objstore.Store {
	t.Helper()
	port := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	text, err := json.Marshal(map[string]any{
		"cluster": map[string]any{"id": "test", "secrets": map[string]any{
			"encryption_key": map[string]any{"provider": "env"}}},
		"server": map[string]any{
			"shard": "a", "provider": map[string]any{"kind": "aws", "region": "us-west-2", "zone": "us-west-2a"},
			"subnet_pools": map[string]any{"p": []string{subnet}},
			"bind": map[string]any{"health_addr": port(), "election_addr": port(), "registration_addr": port(),
				"operator_addr": port(), "agent_addr": port()},
		},
		"images": map[string]any{"base": map[string]any{"provider": "aws", "owners": []string{"self"},
			"filters": []map[string]any{{"name": "name", "values": []string{"base-*"}}}}},
		"defaults": map[string]any{"userdata": map[string]any{"content": "#!/bin/sh\n# {{ .Nonce }}\n"},
			"args": map[string]any{"ImageId": "{{ .Image.base }}",
				"BlockDeviceMappings": []map[string]any{{"DeviceName": "/dev/xvda",
					"Ebs": map[string]any{"VolumeSize": "{{ .Vars.disk }}"}}}},
			"vars": map[string]string{"disk": "12"}},
		"templates": map[string]any{"t": map[string]any{"kind": "tst", "arch": "amd64", "subnet_pool": "p",
			"instance_type": "t3.small"}},
		"groups": map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 2}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	bucket := mem.New(mem.Options{})
	if _, err := bucket.Put(t.Context(), keys.Config("a"), text, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	return bucket
}

// lead runs a server until the server has created all wanted instances. It returns the instances and the lock that the
// server held.
func lead(t *testing.T, bucket objstore.Store, client *ec2.Client, want int) ([]types.Instance, record.Lock) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	log := new(strings.Builder) // Read only after the server has ended.
	go func() {
		done <- server.Run(ctx, server.Config{
			Options: server.Options{ID: "host", HostID: true, Shard: "a", CacheDir: t.TempDir(),
				HealthAddr: "127.0.0.1:0", Location: objstore.Location{Provider: "mem"}},
			Log: slog.New(slog.NewJSONHandler(log, nil)), Bucket: bucket, Clouds: clouds()})
	}()
	end := func() { stop(); <-done }
	for deadline := time.Now().Add(30 * time.Second); ; {
		out, err := client.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{Filters: []types.Filter{
			{Name: sdk.String("tag:nstance:cluster"), Values: []string{"test"}},
			{Name: sdk.String("instance-state-name"), Values: []string{"pending", "running"}}}})
		if err != nil {
			end()
			t.Fatal(err)
		}
		var instances []types.Instance
		for _, reservation := range out.Reservations {
			instances = append(instances, reservation.Instances...)
		}
		if len(instances) == want {
			object, err := bucket.Get(t.Context(), keys.Leader("a"))
			end()
			if err != nil {
				t.Fatal(err)
			}
			lock, err := record.DecodeLock(object.Body)
			if err != nil {
				t.Fatal(err)
			}
			return instances, lock
		}
		if time.Now().After(deadline) {
			end()
			t.Fatalf("%d instances, want %d; log:\n%s", len(instances), want, log)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestServesAShardInAWS(t *testing.T) {
	for name, tc := range map[string]struct{ machine, want string }{
		"on an instance": {"i-0123456789abcdef0", "i-0123456789abcdef0"},
		"elsewhere":      {"", "host"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud, client := hermetic(t, tc.machine)
			image := cloud.EC2().AddImage(fake.AMI{Name: "base-1"})
			vpc, err := client.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: sdk.String("10.0.0.0/16")})
			if err != nil {
				t.Fatal(err)
			}
			subnet, err := client.CreateSubnet(t.Context(), &ec2.CreateSubnetInput{VpcId: vpc.Vpc.VpcId,
				CidrBlock: sdk.String("10.0.0.0/20"), AvailabilityZone: sdk.String("us-west-2a")})
			if err != nil {
				t.Fatal(err)
			}
			bucket := shard(t, *subnet.Subnet.SubnetId)
			instances, lock := lead(t, bucket, client, 2)
			for _, i := range instances {
				if *i.ImageId != image || i.InstanceType != "t3.small" || *i.SubnetId != *subnet.Subnet.SubnetId ||
					i.MetadataOptions.HttpTokens != types.HttpTokensStateRequired {
					t.Errorf("instance %+v", i)
				}
			}
			if lock.LeaderID != tc.want || lock.Machine != tc.machine {
				t.Errorf("led by %q on machine %q, want %q on %q", lock.LeaderID, lock.Machine, tc.want, tc.machine)
			}
			before := []string{*instances[0].InstanceId, *instances[1].InstanceId}
			cloud.EC2().Kill(before[0])
			instances, lock = lead(t, bucket, client, 2)
			if lock.Term != 2 {
				t.Errorf("term %d", lock.Term)
			}
			for _, i := range instances {
				if *i.InstanceId == before[0] {
					t.Errorf("%s lives again", before[0])
				}
			}
		})
	}
}

// TestArgsAreValidated checks that --validate makes the provider check the args of templates.
func TestArgsAreValidated(t *testing.T) {
	bucket := shard(t, "subnet-1")
	object, err := bucket.Get(t.Context(), keys.Config("a"))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{`"ImageId"`: 0, `"ImageID"`: 1} {
		file := t.TempDir() + "/shard.jsonc"
		if err := os.WriteFile(file, []byte(strings.Replace(string(object.Body), `"ImageId"`, text, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
		var out, errOut strings.Builder
		if code := server.Validate(t.Context(), server.Options{ValidateFile: file}, &out,
			&errOut); code != want {
			t.Errorf("%s: exit %d: %s%s", text, code, out.String(), errOut.String())
		}
		if want == 1 && !strings.Contains(errOut.String(), `did you mean "ImageId"?`) {
			t.Errorf("error output: %s", errOut.String())
		}
	}
}

func TestHeirTimes(t *testing.T) {
	if got, err := heirTimes(heir); err != nil || got != (election.Options{}) {
		t.Errorf("this server is linked with %+v, %v", got, err)
	}
	want := election.Options{HeirLease: 9 * time.Second, HeirRenew: 3 * time.Second, HeirProbation: time.Second}
	if got, err := heirTimes("9s 3s 1s"); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"9s", "9s 3s 1s 1s", "9s 3s x"} {
		if got, err := heirTimes(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestNamesInConfigurations checks that a configuration may name all providers, object stores, secrets stores and key
// sources of this program, and no others.
func TestNamesInConfigurations(t *testing.T) {
	linked := []string{"mock"}
	for _, cloud := range clouds() {
		linked = append(linked, cloud.Name())
	}
	accepted := slices.DeleteFunc(config.CloudNames(), func(name string) bool {
		_, problems := config.Parse("", fmt.Appendf(nil, `{"server": {"provider": {"kind": %q}}}`, name))
		return slices.ContainsFunc(problems, func(p config.Problem) bool {
			return p.Path == "server.provider.kind"
		})
	})
	for _, test := range []struct {
		path             string
		accepted, linked []string
	}{
		{"server.provider.kind", accepted, linked},
		{"cluster.storage.provider", config.ObjectStoreNames(), open.Names()},
		{"cluster.secrets.provider", config.SecretsStoreNames(), secrets.Names()},
		{"cluster.secrets.encryption_key.provider", config.KeySourceNames(),
			keyring.Names(keysources.Sources(cloud.Access{}))},
	} {
		slices.Sort(test.accepted)
		slices.Sort(test.linked)
		if !slices.Equal(test.accepted, test.linked) {
			t.Errorf("%s: a configuration may name %q, and the program has %q", test.path, test.accepted, test.linked)
		}
	}
}
