package admin

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleettest"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

func TestDoctor(t *testing.T) {
	b := newBucket(t, "file")
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	state := clusterstate.New(clusterstate.Options{Cluster: b.store, Shard: b.store, ShardID: "dev-1"})
	doctor := func(code int, wants ...string) {
		t.Helper()
		stdout, stderr, got := b.run(t, b.args("doctor", "--shard", "dev-1")...)
		for _, want := range wants {
			if got != code || !strings.Contains(stdout, want) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s%s", got, code, want, stdout, stderr)
			}
		}
	}
	doctor(exitFailure, "valid", "no server has led the shard", "read the consoles", "no machine has reported")
	b.fails(t, exitUsage, "--shard", b.args("doctor")...)

	report := record.ServerReport{Schema: record.ServerReportSchema, Generation: "a", Machine: "i-1",
		Problem: "connection refused", ReportedAt: fleettest.Now}
	lock := record.Lock{LeaderID: "server-1", Incarnation: "i", Term: 7, Revision: 1,
		LeaseMS: 10_000, RenewMS: 1_000, RenewedAt: fleettest.Now}
	write := func() {
		t.Helper()
		body, err := record.EncodeLock(lock)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.Put(t.Context(), keys.Leader("dev-1"), body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		if err := state.WriteServerReport(t.Context(), report); err != nil {
			t.Fatal(err)
		}
		lock.Revision++
	}
	write()
	doctor(exitFailure, "server-1 leads in term 7", "i-1 did not become ready", "connection refused")
	report.Problem = ""
	write()
	doctor(exitOK, "server-1 leads in term 7", "i-1 became ready")
	b.later = time.Hour
	doctor(exitFailure, "renewed the lock 1h0m0s ago")
	lock.Released = true
	write()
	doctor(exitFailure, "server-1 has released the lock")
}

func TestDoctorShowsConsoles(t *testing.T) {
	b := newBucket(t, "file")
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	var out strings.Builder
	a := newApp("1", Environment{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
		Now: func() time.Time { return fleettest.Now }, Clouds: []infra.Cloud{{
			Config: cloud.Block{Name: "tmux"},
			Consoles: func(context.Context, *config.Shard) ([]infra.Console, error) {
				return []infra.Console{{Machine: "i-1", State: "terminated",
					Output: "booting\r\nunknown flag: --x\r\n"},
					{Machine: "i-2", State: "pending"}}, nil
			},
		}}})
	cmd := a.command()
	cmd.SetArgs(b.args("doctor", "--shard", "dev-1", "--lines", "1"))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.HasSuffix(out.String(),
		"\nConsole of i-1 (terminated):\n  unknown flag: --x\n\nConsole of i-2 (pending):\n"+
			"  (none yet: a cloud may need minutes)\n") {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
