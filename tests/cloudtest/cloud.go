package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	contract "github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
	keysources "github.com/nstance-kit/nstance/services/store/keyring/all"
	"github.com/nstance-kit/nstance/services/store/objstore"
	objects "github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secrets "github.com/nstance-kit/nstance/services/store/secretstore/open"
	"github.com/nstance-kit/nstance/tests/cloudtest/account"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

// price is one part of what a run costs.
type price struct {
	part string
	hour float64 // list price in US dollars for an hour of the run
	once float64 // or for the whole run
}

// target is the cloud, account and place of a run.
type target struct {
	account.Account

	region   string
	arches   []string // the first one is the default
	machines func(arch string) []string
	example  string // in examples/
	args     string // arguments with which the VMs roll
	prices   []price
	vars     func(r *record) map[string]any
	// images are further arguments of scripts/image.sh.
	images func(r *record) []string
	// bucket returns where the cluster's bucket is, and secrets where its secrets are.
	bucket func(r *record, name string) objstore.Location
	// sealed means that the cluster's secrets are in the bucket, sealed with an encryption key.
	sealed bool
	// makes names what a run creates.
	makes string
	// login tells the user how to get credentials.
	login string
}

// namePattern is the form of a run's name, which is the cluster's. The prefix keeps a clean-up away from other
// clusters.
var namePattern = regexp.MustCompile(`^ct-[a-z0-9]{4,12}$`)

// newName returns a name that no other run has.
func newName() string { return "ct-" + strings.ToLower(rand.Text()[:8]) }

// targets are the clouds, by name.
var targets = map[string]func(ctx context.Context, o options) (*target, error){"aws": onAWS, "gcp": onGCP}

func onAWS(ctx context.Context, o options) (*target, error) {
	if o.region == "" {
		return nil, errors.New("REGION is missing, such as REGION=us-west-2")
	}
	loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(o.region))
	if err != nil {
		return nil, fmt.Errorf("read the configuration of AWS: %w", err)
	}
	if endpoint := os.Getenv("AWS_ENDPOINT_URL"); endpoint != "" {
		loaded.BaseEndpoint = &endpoint
	}
	return &target{Account: account.NewAWS(loaded), region: o.region, arches: []string{"arm64", "amd64"},
		machines: awsMachines,
		sealed:   true, example: "aws/single-shard", args: `{"Monitoring": {"Enabled": true}}`,
		makes: "a VPC with a NAT gateway and an Elastic IP, a bucket, a secret, two IAM roles, at most 3 servers " +
			"(nano) and 4 VMs (small)",
		login: "set AWS_PROFILE, or run `aws configure` or `aws sso login`",
		prices: []price{{"NAT gateway and its address", 0.05, 0}, {"servers", 0.0126, 0}, {"VMs", 0.0504, 0},
			{"disks", 0.006, 0}, {"requests, secret and images", 0, 0.04}},
		images: func(r *record) []string { return []string{"-var", "aws_region=" + r.Region} },
		bucket: func(r *record, name string) objstore.Location {
			return objstore.Location{Provider: "s3", Bucket: name, Region: r.Region}
		},
		vars: func(r *record) map[string]any {
			machines := awsMachines(r.Arch)
			return map[string]any{"region": r.Region, "zone": r.Zone, "server_arch": r.Arch, "worker_arch": r.Arch,
				"server_instance_type": machines[0], "worker_instance_types": machines[1:],
				"server_ami": r.Images["server"], "agent_ami": r.Images["agent"],
				"tags": map[string]any{account.Tag: r.Name}}
		},
	}, nil
}

func onGCP(ctx context.Context, o options) (*target, error) {
	if o.region == "" {
		return nil, errors.New("REGION is missing, such as REGION=us-central1")
	}
	const login = "run `gcloud auth application-default login`"
	access, err := googlecloud.Open(ctx, cloud.Federation{})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, login)
	}
	project := cmp.Or(os.Getenv("GOOGLE_PROJECT"), o.account, access.Project)
	if project == "" {
		return nil, errors.New("the project is not known: set GOOGLE_PROJECT=my-project")
	}
	to, err := account.NewGCP(ctx, access, project, o.region)
	if err != nil {
		return nil, err
	}
	machines := []string{"e2-micro", "e2-small"}
	return &target{Account: to, region: o.region, arches: []string{"amd64"},
		machines: func(string) []string { return machines },
		example:  "gcp/single-shard", args: `{"labels": {"rolled": "yes"}}`, login: login,
		makes: "a VPC with Cloud NAT, an internal load balancer, a bucket, some secrets, a service account, custom " +
			"roles and their bindings, at most 3 servers (e2-micro) and 4 VMs (e2-small)",
		prices: []price{{"forwarding rule", 0.025, 0}, {"Cloud NAT", 0.01, 0}, {"servers", 0.025, 0}, {"VMs", 0.067, 0},
			{"disks", 0.004, 0}, {"requests, secrets and images", 0, 0.04}},
		images: func(r *record) []string {
			return []string{"-var", "gcp_project=" + r.Account, "-var", "gcp_zone=" + r.Zone}
		},
		bucket: func(_ *record, name string) objstore.Location {
			return objstore.Location{Provider: "gcs", Bucket: name}
		},
		vars: func(r *record) map[string]any {
			return map[string]any{"project": r.Account, "region": r.Region, "zone": r.Zone,
				"server_instance_type": machines[0], "worker_instance_types": machines[1:],
				"server_image": r.Images["server"], "agent_image": r.Images["agent"],
				// Two servers always have this address: it must not change when the standby joins.
				"leader_kind": "load_balancer", "labels": map[string]any{account.Tag: r.Name}}
		},
	}, nil
}

// awsMachines returns the instance types of the servers and of the VMs.
func awsMachines(arch string) []string {
	if arch == "amd64" {
		return []string{"t3.nano", "t3.small"}
	}
	return []string{"t4g.nano", "t4g.small"}
}

// vars returns the variables of a run's stack.
func (r *record) vars(t *target) map[string]any {
	vars := t.vars(r)
	vars["cluster"], vars["force_destroy"], vars["worker_count"] = r.Name, true, 1
	config := scenario.Hooked()
	config["server"] = map[string]any{"health_check_interval": "5s", "default_drain_timeout": "5s",
		"garbage_collection": map[string]any{"interval": "10s"}} // sooner than by default
	vars["config"] = config
	return vars
}

// state opens the documents of the run's shard with the outputs of its stack.
func (r *record) state(t lab.T, to *target, stack *lab.Stack) *clusterstate.State {
	t.Helper()
	var bucket string
	var key struct{ Provider, Source string }
	stack.Output(t, "bucket", &bucket)
	if to.sealed {
		stack.Output(t, "encryption_key", &key)
	}
	at := to.bucket(r, bucket)
	store, err := objects.Open(t.Context(), at)
	if err != nil {
		t.Fatal(fmt.Errorf("open the bucket %s: %w", bucket, err))
	}
	settings := contract.Secrets{Provider: "google-secret-manager", Prefix: "nstance-" + r.Name + "-",
		ProjectID: r.Account}
	if to.sealed {
		settings = contract.Secrets{Provider: contract.ObjectStorage,
			EncryptionKey: &contract.KeySource{Provider: key.Provider, Source: key.Source}}
	}
	ring, err := keyring.Load(t.Context(), settings, keysources.Sources(cloud.Access{Region: r.Region}))
	if err != nil {
		t.Fatal(fmt.Errorf("read the encryption key: %w", err))
	}
	kept, err := secrets.Open(t.Context(), settings, secretstore.Options{Bucket: store, Cluster: r.Name, Ring: ring,
		Rand: rand.Reader, Access: cloud.Access{Region: r.Region}})
	if err != nil {
		t.Fatal(fmt.Errorf("open the secrets: %w", err))
	}
	return clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: r.Name, ShardID: r.Zone,
		Secrets: kept})
}
