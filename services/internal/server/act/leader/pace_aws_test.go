package leader_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/rate"
)

// awsRenderer renders requests for the fake EC2.
type awsRenderer struct {
	*shard
	image string
}

func (r awsRenderer) Images() map[string]string { return nil }

func (r awsRenderer) Render(ctx context.Context, group config.Group, rec record.Instance) (filegen.Machine, error) {
	m, err := r.shard.Render(ctx, group, rec)
	m.Args = map[string]any{"ImageId": r.image}
	return m, err
}

func (r awsRenderer) RenderBatch(ctx context.Context, group config.Group, rec record.Instance, _ ident.Batch) (
	filegen.Machine, bool, error) {
	m, err := r.Render(ctx, group, rec)
	m.Hostname = ""
	return m, true, err
}

// BenchmarkMassReplacement measures how long a leader needs to request missing VMs from EC2 through the AWS SDK, in real
// time. With EC2's documented rates, 100 single requests take at least 47.5 s. The buckets have tokens for 5 requests
// and 1,000 instances, and get 2 of each kind per second.
func BenchmarkMassReplacement(b *testing.B) {
	b.Run("single/100", func(b *testing.B) { massReplacement(b, 100, 0) })
	for _, missing := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("batches/%d", missing), func(b *testing.B) {
			massReplacement(b, missing, execute.SmallestBatch)
		})
	}
}

func massReplacement(b *testing.B, missing, smallestBatch int) {
	for b.Loop() {
		cloud, err := fakeaws.New(fakeaws.Config{Limits: rate.Documented()})
		if err != nil {
			b.Fatal(err)
		}
		server := httptest.NewServer(cloud)
		cfg, err := aws.SDK(b.Context(), config.Provider{Region: cloud.Region()}, nil)
		if err != nil {
			b.Fatal(err)
		}
		access, secret := cloud.Credentials()
		cfg.BaseEndpoint, cfg.Credentials = &server.URL, credentials.NewStaticCredentialsProvider(access, secret, "")
		client, zone := ec2.NewFromConfig(cfg), cloud.Region()+"a"
		subnet := newSubnet(b, client, zone)
		provider, err := aws.New(aws.Config{Zone: zone, EC2: ec2.NewFromConfig(cfg)})
		if err != nil {
			b.Fatal(err)
		}
		s := newShard(b, 0)
		s.Executor.Batches = func() int { return smallestBatch }
		s.Executor.Provider, s.Executor.Renderer = provider, awsRenderer{s,
			cloud.EC2().AddImage(fake.AMI{Name: "base"})}
		g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Size: missing, MaxSurge: 1,
			InstanceType: "t3.small", Subnets: []string{subnet}, InfraHash: "i1"}
		ctx, cancel := context.WithCancel(b.Context())
		began := time.Now()
		s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		created, asked := 0, 0
		for ; created < missing; time.Sleep(20 * time.Millisecond) {
			created, asked = 0, 0
			for _, call := range cloud.Calls() {
				if call.Action == "RunInstances" {
					asked++
				}
			}
			snapshot, _ := s.State.Snapshot(workers, nil)
			for _, instance := range snapshot.Instances {
				if instance.ProviderID != "" {
					created++
				}
			}
		}
		b.ReportMetric(time.Since(began).Seconds(), "all-s")
		b.ReportMetric(float64(asked), "requests")
		b.ReportMetric(0, "ns/op")
		cancel()
		s.wait()
		server.Close()
		if err := cloud.Close(); err != nil {
			b.Error(err)
		}
	}
}
