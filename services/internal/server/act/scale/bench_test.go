package scale

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// BenchmarkPass measures what a leader does every 15 s for 100 groups with 1,000 instances each, if no size changes.
func BenchmarkPass(b *testing.B) {
	const groups, instances = 100, 1000
	clock := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	now := func() time.Time { return clock }
	state := shardstate.New(shardstate.Options{Term: 1, Now: now, Wake: func() {}})
	least, down := 1, config.Duration(5*time.Minute)
	all := map[config.GroupKey]config.Group{}
	for i := range groups {
		key := config.GroupKey{Tenant: "default", Group: fmt.Sprint("g", i)}
		all[key] = config.Group{GroupKey: key, Static: true, Kind: "wrk", Template: "t", Size: instances, MaxSurge: 1,
			Scaling: &config.Scaling{Min: &least, Max: 2 * instances, Tolerance: "10%",
				Metrics: []config.ScalingMetric{{CPU: &config.ScalingShare{Target: "50%"}}},
				Up:      config.ScaleUp{MaxStep: "100%"}, Down: config.ScaleDown{Stabilization: &down, MaxStep: "25%"}}}
	}
	state.Configure((&config.Shard{}).WithDefaults(), all)
	made := uint64(0)
	for key := range all {
		for range instances {
			made++
			id, err := ident.NewID("wrk", clock, bytes.NewReader(binary.BigEndian.AppendUint64(nil, made)))
			if err != nil {
				b.Fatal(err)
			}
			state.PutRecord(record.Instance{ID: id, State: record.Registered, Revision: 1, Tenant: key.Tenant,
				Group: key.Group, Template: "t", Kind: "wrk", CreatedAt: clock, RegisteredAt: clock, ProviderID: "vm"},
				"token")
			stream, _ := state.Connected(id)
			state.Reported(id, stream, shardstate.Report{Healthy: true, Metrics: shardstate.Metrics{CPU: 0.5,
				MemoryTotal: 1}})
		}
	}
	scaler := &Scaler{State: state, Log: slog.New(slog.DiscardHandler), Env: tasks.Env{Now: now},
		Resize: func(_ context.Context, key config.GroupKey, size int) error {
			b.Fatalf("%s gets the size %d", key, size)
			return nil
		}}
	b.ReportAllocs()
	for b.Loop() {
		scaler.pass(b.Context())
	}
}
