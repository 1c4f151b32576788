package gcp

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"google.golang.org/api/option"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

// both answers the requests of the machines of one cloud to that cloud and to AWS. While cut is set, AWS cannot be
// reached.
type both struct {
	google, aws http.Handler
	cut         atomic.Bool
}

// ServeHTTP implements http.Handler.
func (b *both) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isAWS := strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") || r.URL.Path == "/"
	switch {
	case !isAWS:
		b.google.ServeHTTP(w, r)
	case b.cut.Load():
		panic(http.ErrAbortHandler) // closes the connection
	default:
		b.aws.ServeHTTP(w, r)
	}
}

func googleKeys() (keys map[string]string, err error) {
	answer := httptest.NewRecorder()
	credentials.IdentityKeys(answer, nil)
	return keys, json.Unmarshal(answer.Body.Bytes(), &keys)
}

// cutFlag is how long AWS cannot be reached. The shards report health every 2 s instead of every 60 s, so 20 s have as
// many reports as ten minutes.
var cutFlag = flag.Duration("cut", 20*time.Second, "how long the test of two clouds cuts the connections with AWS")

// zone is that of the shard on Google Cloud.
const zone = "us-west1-a"

// twoClouds starts both clouds. The machines of each cloud reach the other cloud. front answers those of Google Cloud.
func twoClouds(t *testing.T) (l *lab.Lab, c *cloud, front *both) {
	t.Helper()
	config, err := cliConfig()
	must(t, err)
	const api = "http://169.254.170.1"
	google := fakegcp.Environment(api)
	delete(google, "GOOGLE_CLOUD_PROJECT") // machines on AWS have no project
	onAWS := &both{}
	l = lab.NewWith(t, lab.Options{CLIConfig: config, GoogleKeys: googleKeys, Environment: google,
		Front: func(aws http.Handler) http.Handler { onAWS.aws = aws; return onAWS }})
	front = &both{aws: l.Cloud}
	c = newCloudWith(t, func(google http.Handler) http.Handler { front.google = google; return front },
		map[string]string{"AWS_ENDPOINT_URL": api, "AWS_S3_USE_PATH_STYLE": "true"}, zone)
	onAWS.google, c.AWS = c.Cloud, l.Cloud
	return l, c, front
}

// applyBoth applies the example multi-cloud.
func applyBoth(t *testing.T, l *lab.Lab, c *cloud, cluster, override string) *lab.Stack {
	t.Helper()
	environment := l.Environment()
	maps.Copy(environment, c.environment)
	stack := lab.NewStack(t, cli(t, ""), "multi-cloud", map[string]any{"cluster": cluster, "force_destroy": true,
		"google_zone": zone, "worker_count": 1, "server_ready_timeout": 40,
		"aws_server_image": lab.ServerAMI, "aws_worker_image": lab.AgentAMI,
		"google_worker_image": images + "nstance-agent-amd64-1",
		"config":              map[string]any{"server": server}}, override, environment)
	stack.Apply(t)
	return stack
}

// googlePrimary is an override file of the example. It moves the cluster's bucket and the encryption key to Google
// Cloud.
const googlePrimary = `
module "cluster" {
  primary = module.google_cluster.primary
}

module "google_cluster" {
  primary        = null
  encryption_key = { source = "projects/` + fakegcp.Project + `/secrets/key" }
}

module "federation" {
  source  = "../../modules/gcp/federation"
  cluster = module.google_cluster.cluster
  shards  = { (var.aws_zone) = { role_arn = module.aws_account.account.servers[var.aws_zone].role_arn } }
}

module "aws_shard" {
  identity = module.federation.identities[var.aws_zone]
}

module "google_shard" {
  identity = null
}

module "operator" {
  ca_certificate_pem = module.google_cluster.ca_certificate_pem
}

data "nstance_admin_context" "this" {
  storage        = module.google_cluster.primary.storage
  shard_storage  = { (var.aws_zone) = module.cluster.storage }
  encryption_key = module.google_cluster.encryption_key
}

output "encryption_key" {
  value = module.google_cluster.encryption_key
}
`

// googleFirst applies the example multi-cloud with the cluster's bucket on Google Cloud. The servers on AWS reach it
// and the encryption key by the role of their VM.
func googleFirst(t *testing.T, _ *scenario.Ledger) {
	l, c, _ := twoClouds(t)
	c.makeKey(t)
	beforeAWS, beforeGoogle := l.Inventory(t), c.Inventory()
	stack := applyBoth(t, l, c, "east", googlePrimary)
	var buckets map[string]string
	var shards map[string]struct{ ID string }
	stack.Output(t, "buckets", &buckets)
	stack.Output(t, "shards", &shards)
	access, secret := l.Cloud.Credentials()
	own, err := s3.New(t.Context(), objstore.Location{Bucket: buckets["cluster"], Region: l.Cloud.Region(),
		Endpoint: l.Endpoint, PathStyle: true}, awscredentials.NewStaticCredentialsProvider(access, secret, ""))
	must(t, err)
	shared, err := gcs.New(t.Context(), buckets["google"], option.WithHTTPClient(c.client()),
		option.WithEndpoint(c.server.URL+"/storage/v1/"))
	must(t, err)
	secrets := lab.SecretsInBucket(t, shared, "east", key)
	for _, one := range []struct {
		id    string
		store objstore.Store
	}{{shards["aws"].ID, own}, {zone, shared}} {
		state := clusterstate.New(clusterstate.Options{Cluster: shared, Shard: one.store, ClusterID: "east",
			ShardID: one.id, Secrets: secrets})
		lab.Eventually(t, scenario.Soon, "the VM of shard "+one.id+" registers", func() string {
			return atLeast(t, state, 1)
		})
	}
	if found, err := own.List(t.Context(), "cluster/"); err != nil || len(found) > 0 {
		t.Errorf("the bucket of the shard on AWS has objects of the cluster: %v, %v", found, err)
	}
	scenario.Converged(t, stack)
	stack.Destroy(t)
	if now := c.Inventory(); !slices.Equal(now, beforeGoogle) {
		t.Errorf("after destroy Google Cloud has %v, want %v", now, beforeGoogle)
	}
	if now := l.Inventory(t); !slices.Equal(now, beforeAWS) {
		t.Errorf("after destroy AWS has %v, want %v", now, beforeAWS)
	}
}

// atLeast returns "" if at least n instances of a shard have registered, and otherwise how many have.
func atLeast(t *testing.T, state *clusterstate.State, n int) string {
	t.Helper()
	registered := 0
	if err := state.LoadInstances(t.Context(), func(i record.Instance, _ objstore.Token) {
		if i.State == record.Registered {
			registered++
		}
	}); err != nil {
		return err.Error()
	}
	if registered < n {
		return fmt.Sprintf("%d have registered", registered)
	}
	return ""
}

// multiCloud applies the example multi-cloud: a shard on AWS, whose bucket is also that of the cluster, and a shard on
// Google Cloud. The servers on Google Cloud reach the cluster's bucket and the encryption key by the identity token of
// their VM.
func multiCloud(t *testing.T, _ *scenario.Ledger) {
	l, c, front := twoClouds(t)
	office := newOffice(t, c)
	beforeAWS, beforeGoogle := l.Inventory(t), c.Inventory()
	stack := applyBoth(t, l, c, "wide", "")
	var shards map[string]struct {
		ID       string
		LeaderIP string `json:"leader_ipv4"`
	}
	var buckets map[string]string
	var key struct{ Provider, Source string }
	stack.Output(t, "shards", &shards)
	stack.Output(t, "buckets", &buckets)
	stack.Output(t, "encryption_key", &key)
	admin := stack.Register(t, "multi-cloud.md", 2)
	for _, want := range []string{shards["aws"].ID + "=" + shards["aws"].LeaderIP + ":8993",
		zone + "=" + shards["google"].LeaderIP + ":8993"} {
		if !strings.Contains(admin, want) {
			t.Errorf("the page's commands set the servers %q, without %s", admin, want)
		}
	}

	// The shards share the CA, the secrets and the operators, which are in the cluster's bucket only.
	aws := l.State(t, buckets["cluster"], "wide", shards["aws"].ID, l.Key(t, key.Provider, key.Source))
	access, secret := l.Cloud.Credentials()
	shared, err := s3.New(t.Context(), objstore.Location{Bucket: buckets["cluster"], Region: l.Cloud.Region(),
		Endpoint: l.Endpoint, PathStyle: true}, awscredentials.NewStaticCredentialsProvider(access, secret, ""))
	must(t, err)
	own, err := gcs.New(t.Context(), buckets["google"], option.WithHTTPClient(c.client()),
		option.WithEndpoint(c.server.URL+"/storage/v1/"))
	must(t, err)
	west := clusterstate.New(clusterstate.Options{Cluster: shared, Shard: own, ClusterID: "wide", ShardID: zone,
		Secrets: lab.SecretsInBucket(t, shared, "wide", l.Key(t, key.Provider, key.Source))})
	google := &scenario.Shard{Cloud: shard{c, zone}, Fake: shard{c, zone}, LeaderIP: shards["google"].LeaderIP,
		State: west}
	google.Healthy(t)
	google.Settled(t, 1, nil)
	if found, err := own.List(t.Context(), "cluster/"); err != nil || len(found) > 0 {
		t.Errorf("the bucket of the shard on Google Cloud has objects of the cluster: %v, %v", found, err)
	}
	lab.Eventually(t, scenario.Soon, "the VM on AWS registers", func() string { return atLeast(t, aws, 1) })
	scenario.Converged(t, stack)

	// One operator, installed with the commands of the page, runs one MachinePool on both clouds.
	bin := office.await(t)
	toAWS := office.connect(t, shards["aws"].LeaderIP, l.DialVPC(l.Instances("wide")[0].VPC))
	office.connect(t, google.LeaderIP, google.Dial)
	lists := stack.Shell(t, "office nstance-admin status\noffice nstance-admin instance list", bin)
	if !strings.Contains(lists, shards["aws"].ID) || !strings.Contains(lists, zone) {
		t.Errorf("with one context nstance-admin shows %s", lists)
	}
	stack.Shell(t, lab.Commands(t, "multi-cloud.md", 3), bin)
	stopOperator := office.runOperator(t)
	stack.Shell(t, "sed -i 's/example--default/wide--default/' pool.yaml", bin)
	commands := strings.Split(lab.Commands(t, "multi-cloud.md", 4), "\n")
	stack.Shell(t, commands[0], bin)
	onAWS := func() int { return len(l.Instances("wide")) - 1 } // without that of the group workers
	spread := func(aws, gcp int) func() string {
		return func() string {
			if a, g := onAWS(), len(google.Workers())-1; a != aws || g != gcp {
				return fmt.Sprintf("the pool has %d VMs on AWS and %d on Google Cloud", a, g)
			}
			return office.poolHas(t, aws, gcp)
		}
	}
	lab.Eventually(t, 2*scenario.Soon, "half of the pool on each cloud", spread(1, 1))
	stack.Shell(t, commands[1], bin)
	lab.Eventually(t, scenario.Soon, "half of the larger pool on each cloud", spread(2, 2))
	t.Log(stack.Shell(t, commands[2], bin))

	// AWS cannot be reached from Google Cloud and from the operator. The leader on Google Cloud works on, and replaces
	// nothing.
	keptOnAWS := l.Instances("wide")
	kept, servers := google.Workers(), google.Servers()
	front.cut.Store(true)
	toAWS.cut()
	for began := time.Now(); time.Since(began) < *cutFlag; {
		if now := google.Workers(); !slices.Equal(now, kept) {
			t.Fatalf("without AWS the VMs on Google Cloud are %v, want %v as before", now, kept)
		}
		if now := google.Servers(); !slices.Equal(now, servers) {
			t.Fatalf("without AWS the servers on Google Cloud are %v, want %v as before", now, servers)
		}
		if wrong := google.Health(google.Dial); wrong != "" {
			t.Errorf("without AWS the leader on Google Cloud is not healthy: %s", wrong)
		}
		<-time.After(time.Second)
	}
	// The operator says which shard it cannot reach, and changes the part of the other one.
	lab.Eventually(t, scenario.Soon, "the pool names the shard that cannot be reached", func() string {
		return office.unreachable(t, shards["aws"].ID)
	})
	stack.Shell(t, "kubectl -n nstance-system scale machinepool pool --replicas 6", bin)
	lab.Eventually(t, scenario.Soon, "the part on Google Cloud grows without AWS", func() string {
		if now := google.Workers(); len(now) != 4 {
			return fmt.Sprint(now)
		}
		return ""
	})
	// A VM that is lost now is replaced, and the new one registers when AWS can be reached again.
	google.Kill(kept[0])
	lab.Eventually(t, scenario.Soon, "the lost VM is replaced without AWS", func() string {
		if now := google.Workers(); len(now) != 4 || slices.Contains(now, kept[0]) {
			return fmt.Sprint(now)
		}
		return ""
	})
	if now := l.Instances("wide"); !slices.EqualFunc(now, keptOnAWS, func(a, b ec2.InstanceView) bool {
		return a.ID == b.ID
	}) {
		t.Errorf("the VMs on AWS are %v, want %v as before", now, keptOnAWS)
	}
	front.cut.Store(false)
	toAWS.mend()
	google.Settled(t, 4, kept[:1])
	lab.Eventually(t, scenario.Soon, "half of the pool on each cloud again", spread(3, 3))
	stack.Shell(t, "kubectl -n nstance-system delete machinepool pool", bin)
	lab.Eventually(t, scenario.Soon, "the deletion of the pool deletes its VMs on both clouds", func() string {
		if a, g := onAWS(), len(google.Workers())-1; a > 0 || g > 0 {
			return fmt.Sprintf("%d on AWS and %d on Google Cloud", a, g)
		}
		return ""
	})
	stopOperator()

	stack.Destroy(t)
	if now := c.Inventory(); !slices.Equal(now, beforeGoogle) {
		t.Errorf("after destroy Google Cloud has %v, want %v", now, beforeGoogle)
	}
	if now := l.Inventory(t); !slices.Equal(now, beforeAWS) {
		t.Errorf("after destroy AWS has %v, want %v", now, beforeAWS)
	}
	exchanged := false
	for _, call := range l.Cloud.Calls() {
		exchanged = exchanged || call.Action == "AssumeRoleWithWebIdentity" && call.Code == ""
	}
	if !exchanged {
		t.Error("no server exchanged an identity token")
	}
}
