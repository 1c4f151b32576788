package shardstate_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// TestReportsTouchOnlyWhatChanges checks that a report marks its group as dirty only if the report may change the next
// plan. Most messages that a leader receives are reports.
func TestReportsTouchOnlyWhatChanges(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.forget()
	stream, ok := p.Connected(id)
	if !ok {
		t.Fatal("not ours to hear")
	}
	// The leader ignores the silence of instances until the first agent connects. That connection therefore affects all
	// groups.
	p.wantDirty(t, "first stream", others, workers)
	steps := []struct {
		name   string
		report shardstate.Report
		dirty  bool
		events []shardstate.InstanceEventType
	}{
		{"first", shardstate.Report{Healthy: true, RuntimeHash: "r1"}, true,
			[]shardstate.InstanceEventType{shardstate.EventHealthy}},
		{"the same", shardstate.Report{Healthy: true, RuntimeHash: "r1"}, false, nil},
		{"other metrics", shardstate.Report{Healthy: true, RuntimeHash: "r1", Metrics: shardstate.Metrics{CPU: 1}},
			false, nil},
		{"other files", shardstate.Report{Healthy: true, RuntimeHash: "r1",
			Files: []shardstate.FileState{{Name: "a", Error: "disk full"}}}, true, nil},
		{"files unchanged", shardstate.Report{Healthy: true, RuntimeHash: "r1"}, false, nil},
		{"unhealthy", shardstate.Report{RuntimeHash: "r1", Message: "no"}, true,
			[]shardstate.InstanceEventType{shardstate.EventUnhealthy}},
		{"healthy again", shardstate.Report{Healthy: true, RuntimeHash: "r1"}, true,
			[]shardstate.InstanceEventType{shardstate.EventHealthy}},
		{"other configuration", shardstate.Report{Healthy: true, RuntimeHash: "r2"}, true, nil},
		{"recommended", shardstate.Report{Healthy: true, RuntimeHash: "r2", Recommendation: new(true)}, true,
			[]shardstate.InstanceEventType{shardstate.EventRecommendation}},
		{"the agent does not know", shardstate.Report{Healthy: true, RuntimeHash: "r2"}, false, nil},
		{"no longer recommended, maintenance", shardstate.Report{Healthy: true, RuntimeHash: "r2",
			Recommendation: new(false), Maintenance: &plan.Maintenance{Kind: "system-reboot"}}, true,
			[]shardstate.InstanceEventType{shardstate.EventRecommendation, shardstate.EventMaintenance}},
		{"maintenance withdrawn", shardstate.Report{Healthy: true, RuntimeHash: "r2",
			Maintenance: &plan.Maintenance{}}, true, []shardstate.InstanceEventType{shardstate.EventMaintenance}},
		{"notice", shardstate.Report{Healthy: true, RuntimeHash: "r2", Notice: true}, true,
			[]shardstate.InstanceEventType{shardstate.EventNotice}},
		{"a notice stays", shardstate.Report{Healthy: true, RuntimeHash: "r2"}, false, nil},
		{"powering off", shardstate.Report{Healthy: true, RuntimeHash: "r2", Stopping: plan.PowerOff}, true,
			[]shardstate.InstanceEventType{shardstate.EventNotice}},
		{"powering off still", shardstate.Report{Healthy: true, RuntimeHash: "r2", Stopping: plan.PowerOff},
			false, nil},
		{"it was cancelled, and reboots", shardstate.Report{Healthy: true, RuntimeHash: "r2",
			Stopping: plan.Reboot}, true, []shardstate.InstanceEventType{shardstate.EventNotice}},
		{"back", shardstate.Report{Healthy: true, RuntimeHash: "r2"}, true, nil},
	}
	for _, step := range steps {
		p.now = p.now.Add(time.Second)
		p.wakes = 0
		if !p.Reported(id, stream, step.report) {
			t.Fatalf("%s: refused", step.name)
		}
		if step.dirty {
			p.wantDirty(t, step.name, workers)
		} else {
			p.wantDirty(t, step.name)
			if p.wakes != 0 {
				t.Errorf("%s: the loop is woken without need", step.name)
			}
		}
		p.wantEvents(t, step.name, step.events...)
		if got := p.planned(t, id); got.LastReport != p.now {
			t.Errorf("%s: the last report is of %v", step.name, got.LastReport)
		}
	}
	if report := p.lastReport(id); len(report.Files) != 1 || report.Files[0].Error != "disk full" {
		t.Errorf("last report %+v: unchanged files are forgotten", report)
	}
	if got := p.planned(t, id); !got.FilesFailed || !got.Notice || !got.PowerOffAt.IsZero() ||
		!got.RestartingAt.IsZero() {
		t.Errorf("%+v", got)
	}
}

// TestRepeatedReports checks a report that repeats the previous one. The State must store the new measurements, keep
// the files and keys, and mark no group as dirty. When the agent no longer announces a reboot, the State must forget
// the reboot.
func TestRepeatedReports(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	stream, _ := p.Connected(id)
	p.Reported(id, stream, shardstate.Report{Healthy: true, RuntimeHash: "r1",
		Files: []shardstate.FileState{{Name: "a"}}, Keys: []shardstate.KeyState{{Name: "k"}}})
	p.forget()
	p.now = p.now.Add(time.Second)
	want := p.planned(t, id)
	want.LastReport = p.now
	same := shardstate.Report{Healthy: true, RuntimeHash: "r1", Message: "well"}
	same.Metrics.CPU = 0.5
	if !p.Reported(id, stream, same) {
		t.Error("a repeated report was not accepted")
	}
	if got := p.planned(t, id); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := p.lastReport(id); got.Message != "well" || got.Metrics.CPU != 0.5 || len(got.Files) != 1 ||
		len(got.Keys) != 1 {
		t.Errorf("last report %+v", got)
	}
	p.wantDirty(t, "a repeated report")
	if p.wakes != 0 {
		t.Error("a repeated report wakes the planner")
	}
	for name, why := range map[string]plan.Stopping{"powering off": plan.PowerOff,
		"a reboot": plan.Reboot, "a restart": plan.Restart} {
		p.Reported(id, stream, shardstate.Report{Healthy: true, RuntimeHash: "r1", Stopping: why})
		p.Reported(id, stream, same)
		if got := p.planned(t, id); !got.PowerOffAt.IsZero() || !got.RestartingAt.IsZero() || got.Reboot {
			t.Errorf("after %s: %+v", name, got)
		}
	}
}

func TestNewerStreamReplacesOlder(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	first, _ := p.Connected(id)
	second, _ := p.Connected(id)
	if first == second {
		t.Fatal("two streams have one number")
	}
	p.forget()
	if p.Reported(id, first, shardstate.Report{Healthy: true}) {
		t.Error("the older stream still speaks")
	}
	p.Disconnected(id, first, "replaced")
	p.wantDirty(t, "the older stream closed")
	p.wantEvents(t, "the older stream closed")
	if !p.planned(t, id).Connected {
		t.Error("the end of the older stream ended the newer")
	}
	p.Disconnected(id, second, "reset")
	p.wantDirty(t, "the newer stream closed", workers)
	p.wantEvents(t, "the newer stream closed", shardstate.EventLost)
	if got := p.planned(t, id); got.Connected || got.LostAt != p.now {
		t.Errorf("%+v", got)
	}
	p.Disconnected(id, second, "twice")
	p.wantEvents(t, "closed twice")
}

func TestReportsOfUnknownInstancesAreIgnored(t *testing.T) {
	p := newPicture(t)
	id := p.newID(t)
	if _, ok := p.Connected(id); ok {
		t.Error("a stranger connects")
	}
	if p.Reported(id, 0, shardstate.Report{}) {
		t.Error("a stranger reports")
	}
	p.put(id, workers, record.Registered)
	stream, _ := p.Connected(id)
	p.put(id, workers, record.Deleted)
	p.forget()
	if p.Reported(id, stream, shardstate.Report{Healthy: true}) {
		t.Error("the dead report")
	}
	p.Disconnected(id, stream, "end")
	p.wantEvents(t, "a dead instance's stream")
}

// TestStreamEndOfADeletedInstanceIsNoLoss checks that the State publishes no event when the stream of an instance that
// is being deleted ends.
func TestStreamEndOfADeletedInstanceIsNoLoss(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	stream, _ := p.Connected(id)
	p.put(id, workers, record.Deleting)
	p.forget()
	p.Disconnected(id, stream, "end")
	p.wantDirty(t, "its stream closed", workers)
	p.wantEvents(t, "its stream closed")
}

// TestNewStreamReceivesAllFiles checks that the leader sends all files again on a new stream. The agent may not have
// received the files that were sent on the previous stream.
func TestNewStreamReceivesAllFiles(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	stream, _ := p.Connected(id)
	p.FilesSent(id, "r2")
	if got := p.planned(t, id).FilesSent; got != "r2" {
		t.Fatalf("files sent %q", got)
	}
	p.Disconnected(id, stream, "reset")
	if _, ok := p.Connected(id); !ok || p.planned(t, id).FilesSent != "" {
		t.Error("what was sent on the older stream counts for the newer")
	}
}

// TestRecovery checks that a group's backoff ends when one of its instances becomes healthy.
func TestRecovery(t *testing.T) {
	p := newPicture(t)
	p.CreateFailed(workers, "no room")
	p.CreateFailed(workers, "no room") // in parallel
	s, _ := p.Snapshot(workers, nil)
	if s.Backoff.Failures != 1 || s.Backoff.Reason != "no room" {
		t.Fatalf("back-off %+v", s.Backoff)
	}
	p.now = s.Backoff.Until(workers)
	p.CreateFailed(workers, "still none")
	if s, _ = p.Snapshot(workers, nil); s.Backoff.Failures != 2 || s.Backoff.Reason != "still none" {
		t.Fatalf("back-off %+v", s.Backoff)
	}
	id := p.serving(t)
	stream, _ := p.Connected(id)
	p.Reported(id, stream, shardstate.Report{})
	if s, _ = p.Snapshot(workers, nil); s.Backoff.Failures != 2 {
		t.Errorf("an unhealthy instance ended the back-off")
	}
	p.Reported(id, stream, shardstate.Report{Healthy: true})
	if s, _ = p.Snapshot(workers, nil); s.Backoff != (plan.Backoff{}) {
		t.Errorf("back-off %+v", s.Backoff)
	}
}
