package lab

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"google.golang.org/grpc"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/elbv2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/rate"
	s3front "github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
	"github.com/nstance-kit/nstance/tests/cloud/machine"
)

// These are the images of the lab, for the architecture of this host. The server does not start on BadServerAMI.
const (
	ServerAMI    = "ami-0000000000000000a"
	AgentAMI     = "ami-0000000000000000b"
	BadServerAMI = "ami-0000000000000000c"
)

// scaling is the time between two evaluations of the Auto Scaling groups. It is shorter than on AWS to speed up the
// tests.
const scaling = 500 * time.Millisecond

// Lab is one cloud. At first it contains only the images.
type Lab struct {
	Cloud     *fakeaws.Cloud
	Machines  *machine.Runner
	Endpoint  string
	StateKey  string // the KMS key that a bucket's policy demands; may be empty
	cliConfig string
	logs      string // the directory of the machines' logs
}

// Options are for a cloud beside another one.
type Options struct {
	// CLIConfig is the path of a CLI configuration with the providers of both clouds. Default: one for this cloud only.
	CLIConfig string
	// Front returns the handler that answers the machines' requests. Default: this cloud only.
	Front func(http.Handler) http.Handler
	// GoogleKeys is that of [fakeaws.Config].
	GoogleKeys func() (map[string]string, error)
	// Environment is added to the environment of the machines.
	Environment map[string]string
}

// New starts a cloud that ends with the test. If the test fails, New's cleanup logs the output of the machines.
func New(t *testing.T) *Lab {
	t.Helper()
	return NewWith(t, Options{Front: func(aws http.Handler) http.Handler { return aws }})
}

// NewWith is like New, with options.
func NewWith(t *testing.T, options Options) *Lab {
	t.Helper()
	programs, err := Build()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{cliConfig: options.CLIConfig}
	if l.cliConfig == "" {
		if l.cliConfig, err = awsConfig(); err != nil {
			t.Fatal(err)
		}
	}
	environment := map[string]string{"AWS_ENDPOINT_URL": "http://169.254.170.1", "AWS_S3_USE_PATH_STYLE": "true"}
	maps.Copy(environment, options.Environment)
	versitygw, err := Run(t.Context(), "scripts/tool.sh", "versitygw")
	if err != nil {
		t.Fatal(err)
	}
	backend, stop, err := s3front.Start(context.WithoutCancel(t.Context()), t.TempDir(), versitygw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop() })
	dir := t.TempDir()
	l.logs = filepath.Join(dir, "logs")
	l.Cloud, err = fakeaws.New(fakeaws.Config{
		S3: &backend, ScalingEvery: scaling, Probe: l.probe, Log: slog.New(slog.DiscardHandler),
		Limits: rate.Documented(), GoogleKeys: options.GoogleKeys,
		Machines: func(api http.Handler) (ec2.Machines, error) {
			var err error
			l.Machines, err = machine.New(machine.Config{
				Dir: dir, API: options.Front(api), Images: map[string]string{ServerAMI: programs.ServerImage,
					AgentAMI: programs.AgentImage, BadServerAMI: programs.BadServerImage},
				Environment: environment,
			})
			return l.Machines, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Cloud.Close(); err != nil {
			t.Error(err)
		}
		LogOutput(t, l.logs)
		if err := l.Machines.Close(); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(l.Cloud)
	t.Cleanup(server.Close)
	l.Endpoint = server.URL
	for ami, role := range map[string]string{ServerAMI: "server", AgentAMI: "agent", BadServerAMI: "bad-server"} {
		l.Cloud.EC2().AddImage(ec2.AMI{ID: ami, Name: "nstance-" + role + "-1.0.0-amd64-20261121000000", Arch: "x86_64",
			Created: time.Now().Add(-time.Hour)})
	}
	return l
}

// awsConfig returns the path of a CLI configuration with the AWS provider. All labs of a process share it.
var awsConfig = sync.OnceValues(func() (string, error) {
	programs, err := Build()
	if err != nil {
		return "", err
	}
	return programs.CLIConfig("--mirror")
})

// probe runs a load balancer's health check from the VPC.
func (l *Lab) probe(ctx context.Context, target elbv2.Target) bool {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return l.Machines.DialVPC(ctx, target.VPC, network, address)
	}
	address := net.JoinHostPort(target.Address, strconv.Itoa(target.Port))
	if target.Protocol == "TCP" {
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+target.Path, http.NoBody)
	if err != nil {
		return false
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode >= 200 && resp.StatusCode < 400
}

// Key returns the encryption key with the given ARN or name. It reads the key in the same way as the servers.
func (l *Lab) Key(t *testing.T, provider, id string) string {
	t.Helper()
	if provider == "aws-parameter-store" {
		out, err := ssm.NewFromConfig(l.Config()).GetParameter(t.Context(),
			&ssm.GetParameterInput{Name: &id, WithDecryption: awssdk.Bool(true)})
		if err != nil {
			t.Fatal(err)
		}
		return awssdk.ToString(out.Parameter.Value)
	}
	out, err := secretsmanager.NewFromConfig(l.Config()).GetSecretValue(t.Context(),
		&secretsmanager.GetSecretValueInput{SecretId: &id})
	if err != nil {
		t.Fatal(err)
	}
	return awssdk.ToString(out.SecretString)
}

// Logs returns the journals of all machines so far, by file name. A journal has the lines of the machine's console and
// the output of all services.
func (l *Lab) Logs(t *testing.T) map[string][]byte {
	t.Helper()
	return readLogs(t, l.logs)
}

func readLogs(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	logs := map[string][]byte{}
	for _, entry := range entries {
		if logs[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Error(err)
		}
	}
	return logs
}

// LogOutput logs the last 12 KiB of each machine's log if the test has failed. The logs are in the directory dir.
func LogOutput(t *testing.T, dir string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	logs := readLogs(t, dir)
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		const most = 12 << 10
		t.Logf("--- %s\n%s", name, logs[name][max(0, len(logs[name])-most):])
	}
}

// Environment returns the variables that make a CLI use this cloud, with the credentials of the account.
func (l *Lab) Environment() map[string]string {
	access, secret := l.Cloud.Credentials()
	return map[string]string{
		"AWS_ENDPOINT_URL": l.Endpoint, "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret,
		"AWS_REGION": l.Cloud.Region(), "AWS_S3_USE_PATH_STYLE": "true",
		"AWS_EC2_METADATA_DISABLED": "true", "TF_CLI_CONFIG_FILE": l.cliConfig, "CHECKPOINT_DISABLE": "1",
		"TF_IN_AUTOMATION": "1",
	}
}

// Stack is [NewStack] for this cloud, without an override file. Resources that still exist at the end of the test end
// with the cloud.
func (l *Lab) Stack(t T, cli, example string, vars map[string]any) *Stack {
	t.Helper()
	return l.StackWith(t, cli, example, vars, "")
}

// StackWith is like Stack, with an override file.
func (l *Lab) StackWith(t T, cli, example string, vars map[string]any, override string) *Stack {
	t.Helper()
	return NewStack(t, cli, example, vars, override, l.Environment())
}

// Config returns an SDK configuration with the credentials of the account itself instead of a role.
func (l *Lab) Config() awssdk.Config {
	access, secret := l.Cloud.Credentials()
	return awssdk.Config{Region: l.Cloud.Region(), BaseEndpoint: awssdk.String(l.Endpoint),
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")}
}

// State gives access to the documents of a shard in a bucket, like the access of nstance-admin. "key" is the encryption
// key.
func (l *Lab) State(t *testing.T, bucket, cluster, shard, key string) *clusterstate.State {
	t.Helper()
	store := l.store(t, bucket)
	return clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: cluster, ShardID: shard,
		Secrets: SecretsInBucket(t, store, cluster, key)})
}

// Objects returns all objects of a bucket, by key, as a reader of the bucket sees them.
func (l *Lab) Objects(t *testing.T, bucket string) map[string][]byte {
	t.Helper()
	store := l.store(t, bucket)
	entries, err := store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, entry := range entries {
		object, err := store.Get(t.Context(), entry.Key)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) { // it was deleted since the list
			t.Fatal(err)
		}
		all[entry.Key] = object.Body
	}
	return all
}

func (l *Lab) store(t *testing.T, bucket string) objstore.Store {
	t.Helper()
	access, secret := l.Cloud.Credentials()
	store, err := s3.New(t.Context(), objstore.Location{Bucket: bucket, Region: l.Cloud.Region(),
		Endpoint: l.Endpoint, PathStyle: true, Encrypt: true, KMSKeyID: l.StateKey},
		credentials.NewStaticCredentialsProvider(access, secret, ""))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// SecretsInBucket gives access to the secrets of a cluster that are in a bucket. The bucket may be in any cloud.
func SecretsInBucket(t *testing.T, store objstore.Store, cluster, key string) secretstore.Store {
	t.Helper()
	current, err := keyring.Parse([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return secretstore.NewObjects(secretstore.Options{Bucket: store, Cluster: cluster,
		Ring: keyring.Ring{Current: current}, Rand: rand.Reader})
}

// Operator registers a new operator. The operator connects to the shard's leader from the shard's network.
func (l *Lab) Operator(t *testing.T, state *clusterstate.State, cluster, vpc,
	host string) nstancev1.OperatorServiceClient {
	t.Helper()
	return NewOperator(t, state, cluster, host, func(ctx context.Context, network, address string) (net.Conn, error) {
		return l.Machines.DialVPC(ctx, vpc, network, address)
	})
}

// DialVPC returns a function that connects from a VPC.
func (l *Lab) DialVPC(vpc string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return l.Machines.DialVPC(ctx, vpc, network, address)
	}
}

// NewOperator connects to the leader at host as a new operator. dial connects from the shard's network.
func NewOperator(t *testing.T, state *clusterstate.State, cluster, host string,
	dial func(ctx context.Context, network, address string) (net.Conn, error)) nstancev1.OperatorServiceClient {
	t.Helper()
	identity, err := local.Identity(t.Context(), state, "")
	if err != nil {
		t.Fatal(err)
	}
	return ConnectOperator(t, identity, host, dial)
}

// ConnectOperator connects to the leader at host as an operator that has registered in the cluster.
func ConnectOperator(t *testing.T, identity operatorclient.Identity, host string,
	dial func(ctx context.Context, network, address string) (net.Conn, error)) nstancev1.OperatorServiceClient {
	t.Helper()
	client := operatorclient.New(operatorclient.Options{Addresses: []string{net.JoinHostPort(host, "8993")},
		TLS: func() (*tls.Config, error) {
			config, err := identity.Config("", time.Now)
			if err == nil {
				config.VerifyConnection = nil // the shard is not known here
			}
			return config, err
		},
		Dial: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dial(ctx, "tcp", address)
		})}})
	t.Cleanup(client.Close)
	return client.API()
}

// KeepRefreshing makes the leader look for a new configuration every second instead of every three minutes, until the
// test ends. If "each" is not nil, KeepRefreshing also calls it every second.
func KeepRefreshing(t *testing.T, operator nstancev1.OperatorServiceClient, each func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ticker := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				one, done := context.WithTimeout(ctx, 5*time.Second)
				_, _ = operator.RefreshConfig(one, &nstancev1.RefreshConfigRequest{}) // There may be no leader.
				done()
				if each != nil {
					each(ctx)
				}
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// Instances returns the instances that are not terminated. If cluster is not "", it returns only that cluster's VMs.
func (l *Lab) Instances(cluster string) (alive []ec2.InstanceView) {
	l.Cloud.Locked(func() {
		for _, instance := range l.Cloud.EC2().Instances() {
			if instance.State != "terminated" && (cluster == "" || l.Cloud.EC2().Tags(
				instance.ID)["nstance:cluster"] == cluster && l.Cloud.EC2().Tags(
				instance.ID)["nstance:instance-id"] != "") {
				alive = append(alive, instance)
			}
		}
	})
	return alive
}

// Targets returns the states of all targets of all target groups.
func (l *Lab) Targets(t *testing.T) (states []string) {
	t.Helper()
	client := elasticloadbalancingv2.NewFromConfig(l.Config())
	groups, err := client.DescribeTargetGroups(t.Context(), &elasticloadbalancingv2.DescribeTargetGroupsInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups.TargetGroups {
		health, err := client.DescribeTargetHealth(t.Context(), &elasticloadbalancingv2.DescribeTargetHealthInput{
			TargetGroupArn: group.TargetGroupArn})
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range health.TargetHealthDescriptions {
			states = append(states, string(target.TargetHealth.State))
		}
	}
	return states
}
