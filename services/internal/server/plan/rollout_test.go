package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

var update = flag.Bool("update", false, "rewrite the golden transcripts")

// script is a test that plays a sequence of events. The expected transcript is in the directory testdata.
type script struct {
	name  string
	setup func(f *plantest.Fleet)
	size  int // number of instances at the start
	play  func(f *plantest.Fleet)
	check func(t *testing.T, f *plantest.Fleet)
}

// rollouts lists tests of rollouts.
var rollouts = []script{
	{name: "scale-up-from-nothing", play: func(f *plantest.Fleet) {
		f.Group.Size = 3
		f.Run(10 * time.Minute)
	}},
	{name: "scale-5-to-2-with-drain", size: 5, setup: drained, play: func(f *plantest.Fleet) {
		f.Group.Size = 2
		f.Run(10 * time.Minute)
	}},
	{name: "scale-down-without-drain-acknowledgement", size: 2, play: func(f *plantest.Fleet) {
		f.Group.Size = 1
		f.Run(10 * time.Minute)
	}},
	{name: "scale-down-prefers-unhealthy-then-unregistered", size: 3, setup: undrained, play: func(f *plantest.Fleet) {
		f.Boot = 4 * time.Minute
		f.Group.Size = 4
		f.Run(time.Minute)
		f.Note("the agent of i2 hangs; the size becomes 2 when it is silent and i4 still boots")
		f.CutOff(f.Named("i2"))
		f.Run(195 * time.Second)
		f.Group.Size = 2
		f.Run(5 * time.Minute)
	}},
	{name: "flapping-instance-is-replaced", size: 2, setup: undrained, play: flapper},
	{name: "rotation-by-drift-of-3", size: 3, setup: drained, play: func(f *plantest.Fleet) {
		f.Group.InfraHash = "v2"
		f.Run(20 * time.Minute)
	}},
	{name: "rotation-to-a-configuration-that-never-registers", size: 2, setup: undrained,
		play: func(f *plantest.Fleet) {
			f.Group.InfraHash, f.Mute = "v2", true
			f.Run(12 * time.Minute)
			f.Note("a corrected configuration")
			f.Group.InfraHash, f.Mute = "v3", false
			f.Run(15 * time.Minute)
		}},
	{name: "rotation-in-waves-of-2-after-a-canary", size: 5, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.MaxSurge = 2
		f.Group.Rollout = config.Rollout{Canary: 1, BakeTime: config.Duration(10 * time.Minute)}
		f.Group.InfraHash = "v2"
		f.Run(30 * time.Minute)
	}},
	{name: "rotation-that-is-paused-and-resumed-by-the-next-leader", size: 3, setup: undrained,
		play: func(f *plantest.Fleet) {
			f.Group.InfraHash = "v2"
			f.Run(10 * time.Second)
			f.Note("paused while the first replacement boots")
			f.Group.Rollout.Paused = true
			f.Run(10 * time.Minute)
			f.Note("the leader crashes")
			f.Crash(func() bool { return false })
			f.Run(10 * time.Minute)
			f.Note("a VM is destroyed: it is replaced during the pause")
			f.Destroy(f.Named("i2"))
			f.Run(10 * time.Minute)
			f.Note("resumed")
			f.Group.Rollout.Paused = false
			f.Run(10 * time.Minute)
		}},
	{name: "rotation-halted-by-its-canary", size: 3, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Rollout = config.Rollout{Canary: 1, HaltOnFailures: 2}
		f.Group.InfraHash, f.Mute = "v2", true
		f.Run(30 * time.Minute)
		f.Note("a corrected configuration")
		f.Group.InfraHash, f.Mute = "v3", false
		f.Run(10 * time.Minute)
	}},
	{name: "rotation-that-deletes-2-of-6-first", size: 6, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Rollout.MaxUnavailable = 2
		f.Group.InfraHash = "v2"
		f.Run(20 * time.Minute)
	}},
	{name: "rotation-in-windows", size: 3, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Windows = []config.Window{window("Mon-Sun 09:00-09:01 Europe/Berlin")}
		f.Group.InfraHash = "v2"
		f.Run(7 * time.Hour)
		f.Note("a VM is destroyed: it is replaced outside the windows")
		f.Destroy(f.Named("i2"))
		f.Run(26 * time.Hour)
	}},
	{name: "rotation-with-2-an-hour", size: 5, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.MaxPerHour = 2
		f.Run(2 * time.Hour) // until those of the start are old enough
		f.Group.MaxSurge, f.Group.InfraHash = 5, "v2"
		f.Run(30 * time.Minute)
		f.Note("the leader crashes: the next one knows how many were replaced")
		f.Crash(func() bool { return false })
		f.Run(3 * time.Hour)
	}},
	{name: "sizes-by-schedule", size: 1, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Schedules = []config.SizeSchedule{{Cron: "0 7 * * *", Zone: time.UTC, Size: 3},
			{Cron: "0 19 * * *", Zone: time.UTC, Size: 1}}
		f.Run(24 * time.Hour)
	}},
	{name: "protected-from-drift-and-a-smaller-size", size: 3, setup: undrained, play: func(f *plantest.Fleet) {
		f.Note("i1 is protected; a new configuration, then a smaller size")
		f.Group.Protected = []ident.ID{f.Named("i1").ID}
		f.Group.InfraHash = "v2"
		f.Run(10 * time.Minute)
		f.Group.Size = 1
		f.Run(5 * time.Minute)
		f.Note("size 0: i1 stays")
		f.Group.Size = 0
		f.Run(5 * time.Minute)
		f.Note("size 1, and i1 is destroyed: it is replaced")
		f.Group.Size = 1
		f.Destroy(f.Named("i1"))
		f.Run(5 * time.Minute)
	}},
	{name: "push-files", size: 2, play: func(f *plantest.Fleet) {
		f.Group.RuntimeHash = "r2"
		f.Run(5 * time.Minute)
	}},
	{name: "load-balancers", setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.LoadBalancers = []string{"www"}
		f.Group.Size = 1
		f.Run(5 * time.Minute)
		f.Group.Size = 0
		f.Run(2 * time.Minute)
	}},
	{name: "vm-destroyed", size: 3, play: func(f *plantest.Fleet) {
		f.Destroy(f.Named("i2"))
		f.Run(2 * time.Minute)
	}},
	{name: "vm-stopped-is-terminated", size: 1, play: func(f *plantest.Fleet) {
		f.Stop(f.Named("i1"))
		f.Run(2 * time.Minute)
	}},
	{name: "stream-lost-but-it-runs", size: 2, play: func(f *plantest.Fleet) {
		f.CutOff(f.Named("i1"))
		f.Run(30 * time.Second)
		f.Mend(f.Named("i1"))
		f.Run(10 * time.Minute)
	}},
	{name: "spot-notice", size: 2, play: func(f *plantest.Fleet) {
		f.Notice(f.Named("i1"), 2*time.Minute)
		f.Run(10 * time.Minute)
	}},
	{name: "spot-notice-drained-in-time", size: 2, setup: drained, play: func(f *plantest.Fleet) {
		f.Notice(f.Named("i1"), 2*time.Minute)
		f.Run(10 * time.Minute)
	}},
	{name: "recommendation-replaced-first", size: 3, setup: advised, play: func(f *plantest.Fleet) {
		f.Recommend(f.Named("i1"), true)
		f.Recommend(f.Named("i2"), true)
		f.Run(10 * time.Minute)
	}},
	{name: "recommendation-without-capacity-then-an-interruption", size: 3, setup: advised,
		play: func(f *plantest.Fleet) {
			f.NoSpot = true
			f.Recommend(f.Named("i1"), true)
			f.Run(time.Minute)
			f.Notice(f.Named("i2"), 2*time.Minute)
			f.Run(10 * time.Second)
			f.NoSpot = false
			f.Run(10 * time.Minute)
		}},
	{name: "maintenance-waits-for-a-window", size: 2, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Windows = []config.Window{window("Mon-Sun 02:00-03:00 UTC")}
		f.Maintain(f.Named("i1"), "system-reboot", 24*time.Hour)
		f.Run(4 * time.Hour)
	}},
	{name: "maintenance-of-4-before-the-window", size: 4, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Windows = []config.Window{window("Mon-Sun 22:00-23:00 UTC")}
		for _, vm := range f.VMs {
			f.Maintain(vm, "instance-retirement", time.Hour)
		}
		f.Run(time.Hour)
	}},
	{name: "maintenance-withdrawn", size: 2, play: func(f *plantest.Fleet) {
		f.Maintain(f.Named("i1"), "system-reboot", time.Hour)
		f.Run(10 * time.Second)
		f.Maintain(f.Named("i1"), "", 0)
		f.Run(10 * time.Minute)
	}},
	{name: "notice-shortens-a-drain", size: 2, play: func(f *plantest.Fleet) {
		f.Group.Size = 1
		f.Run(10 * time.Second)
		f.Notice(f.Named("i1"), 30*time.Second)
		f.Run(2 * time.Minute)
	}},
	{name: "power-off", size: 2, play: func(f *plantest.Fleet) {
		f.PowerOff(f.Named("i1"), 10*time.Second)
		f.Run(5 * time.Minute)
	}},
	{name: "power-off-with-grace-goes-early", size: 2, setup: graceful, play: func(f *plantest.Fleet) {
		f.PowerOff(f.Named("i1"), 5*time.Second)
		f.Run(5 * time.Minute)
	}},
	{name: "power-off-with-grace-never-goes", size: 2, setup: graceful, play: func(f *plantest.Fleet) {
		f.PowerOff(f.Named("i1"), time.Hour)
		f.Run(5 * time.Minute)
	}},
	{name: "reboot", size: 2, play: func(f *plantest.Fleet) {
		f.Restart(f.Named("i1"), true, 4*time.Minute)
		f.Run(10 * time.Minute)
	}},
	{name: "reboot-that-never-ends", size: 2, setup: undrained, play: func(f *plantest.Fleet) {
		f.Restart(f.Named("i1"), true, 10*time.Hour)
		f.Run(10 * time.Minute)
	}},
	{name: "restart-of-the-agent", size: 2, play: func(f *plantest.Fleet) {
		f.Restart(f.Named("i1"), false, 10*time.Second)
		f.Run(10 * time.Minute)
	}},
	{name: "group-of-one-unhealthy", size: 1, setup: drained, play: func(f *plantest.Fleet) {
		f.CutOff(f.Named("i1"))
		f.Run(10 * time.Minute)
	}},
	{name: "group-of-one-unhealthy-and-its-replacement-never-registers", size: 1, setup: undrained,
		play: func(f *plantest.Fleet) {
			f.Mute = true
			f.CutOff(f.Named("i1"))
			f.Run(30 * time.Minute)
			f.Note("the agent of i1 is back")
			f.Mend(f.Named("i1"))
			f.Run(10 * time.Minute)
		}, check: func(t *testing.T, f *plantest.Fleet) {
			if n := f.Marked("unhealthy"); n != 0 {
				t.Errorf("the only instance was removed before its replacement was healthy")
			}
		}},
	{name: "spot-instances-with-fallback-and-return", setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Purchase = config.Purchase{SpotPercent: 50, OnDemandBase: 1, Fallback: config.FallbackOnDemand,
			ReturnToSpot: config.Duration(time.Hour)}
		f.Group.Size = 5
		f.Run(10 * time.Minute)
		f.Note("%s; the spot instances are reclaimed, and there is no spot capacity", f.Bought())
		f.NoSpot = true
		for _, vm := range f.VMs {
			if vm.Spot {
				f.Notice(vm, 2*time.Minute)
			}
		}
		f.Run(10 * time.Minute)
		f.Note("%s; after an hour a spot instance is tried once and refused", f.Bought())
		f.Run(90 * time.Minute)
		f.Note("%s; there is spot capacity again", f.Bought())
		f.NoSpot = false
		f.Run(2 * time.Hour)
		f.Note("%s; the size becomes 3", f.Bought())
		f.Group.Size = 3
		f.Run(10 * time.Minute)
		f.Note("%s", f.Bought())
	}},
	{name: "scale-down-keeps-the-base-on-demand", setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Purchase = config.Purchase{SpotPercent: 100, OnDemandBase: 1}
		f.Group.Size = 4
		f.Run(10 * time.Minute)
		f.Note("%s; i1 is destroyed, and the size becomes 2 while its replacement boots", f.Bought())
		f.Destroy(f.Named("i1"))
		f.Run(10 * time.Second)
		f.Group.Size = 2
		f.Run(5 * time.Minute)
		f.Note("%s; the size becomes 4, and the spot instances get a new configuration in a paused rollout", f.Bought())
		f.Group.Size = 4
		f.Run(5 * time.Minute)
		f.Group.InfraHash, f.Group.Rollout.Paused = "v2", true
		for _, vm := range f.VMs {
			if vm.Spot {
				f.Notice(vm, time.Minute)
			}
		}
		f.Run(5 * time.Minute)
		f.Note("%s; the size becomes 2", f.Bought())
		f.Group.Size = 2
		f.Run(5 * time.Minute)
		f.Note("%s", f.Bought())
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if want := "1 spot instances and 1 others"; f.Bought() != want {
			t.Errorf("%s, want %s", f.Bought(), want)
		}
	}},
	{name: "spot-instances-without-fallback", setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Purchase = config.Purchase{SpotPercent: 100, OnDemandBase: 1}
		f.Group.Size, f.NoSpot = 2, true
		f.Run(2 * time.Minute)
		f.Note("%s; there is spot capacity again", f.Bought())
		f.NoSpot = false
		f.Run(10 * time.Minute)
		f.Note("%s", f.Bought())
	}},
	{name: "partition-with-guard", size: 10, play: func(f *plantest.Fleet) {
		for _, vm := range f.VMs[:6] {
			f.CutOff(vm)
		}
		f.Run(10 * time.Minute)
		f.Note("one of the silent is destroyed in truth")
		f.Destroy(f.VMs[0])
		f.Run(5 * time.Minute)
		f.Note("the network is repaired")
		for _, vm := range f.VMs {
			f.Mend(vm)
		}
		f.Run(5 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if n := f.Marked("unhealthy"); n != 0 {
			t.Errorf("%d instances removed by a partition", n)
		}
	}},
	{name: "partition-that-ends-for-one-after-the-other", size: 10, setup: undrained, play: func(f *plantest.Fleet) {
		cut := slices.Clone(f.VMs[:6])
		for _, vm := range cut {
			f.CutOff(vm)
		}
		f.Run(10 * time.Minute)
		for _, vm := range cut[:5] {
			f.Note("%s is back", vm.Name)
			f.Mend(vm)
			f.Run(20 * time.Second)
		}
		f.Note("i6 is not")
		f.Run(10 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if n := f.Marked(plan.CauseUnhealthy); n != 1 || !strings.Contains(f.Transcript(), "forget i6") {
			t.Errorf("%d instances were removed for their silence, want only i6", n)
		}
	}},
	{name: "health-check-fails-on-one", size: 3, setup: drained, play: func(f *plantest.Fleet) {
		f.Named("i1").Fails = plantest.Failure
		f.Run(10 * time.Minute)
	}},
	{name: "health-check-fails-everywhere", size: 10, play: func(f *plantest.Fleet) {
		for _, vm := range append([]*plantest.VM(nil), f.VMs...) {
			vm.Fails = plantest.Failure
			f.Run(time.Second)
		}
		f.Fails = func(*plantest.VM) string { return plantest.Failure }
		f.Run(30 * time.Minute)
		f.Note("the health check passes again")
		f.Fails = nil
		for _, vm := range f.VMs {
			vm.Fails = ""
		}
		f.Run(10 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if n := f.Marked(plan.CauseHealthCheck); n != 0 {
			t.Errorf("%d instances removed although the check fails on the new ones too", n)
		}
	}},
	{name: "health-check-never-passes-in-a-group-of-one", size: 1, setup: undrained, play: func(f *plantest.Fleet) {
		f.Fails = func(*plantest.VM) string { return plantest.Failure }
		f.Run(20 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if f.VMs[0].Name != "i1" || f.VMs[0].State != record.Registered {
			t.Error("the only instance was removed before its replacement was healthy")
		}
	}},
	{name: "load-balancer-refuses-one", size: 3, setup: drained, play: func(f *plantest.Fleet) {
		f.AskBalancers()
		f.Run(time.Minute)
		f.NoAnswer = true
		f.Named("i1").Refused = plantest.Refusal
		f.Note("the load balancer does not answer, and calls i1 unhealthy")
		f.Run(10 * time.Minute)
		f.NoAnswer = false
		f.Note("it answers")
		f.Run(10 * time.Minute)
	}},
	{name: "load-balancer-refuses-all", size: 10, setup: undrained, play: func(f *plantest.Fleet) {
		f.AskBalancers()
		f.Run(time.Minute)
		for _, vm := range slices.Clone(f.VMs) {
			vm.Refused = plantest.Refusal
			f.Run(4 * time.Second)
		}
		f.Refuses = func(*plantest.VM) string { return plantest.Refusal }
		f.Run(30 * time.Minute)
		f.Note("it calls them healthy again")
		f.Refuses = nil
		for _, vm := range f.VMs {
			vm.Refused = ""
		}
		f.Run(10 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if n := f.Marked(plan.CauseLoadBalancer); n != 0 || len(f.VMs) != 10 {
			t.Errorf("%d instances removed although all are unhealthy, %d are left", n, len(f.VMs))
		}
	}},
	{name: "load-balancer-never-calls-the-new-one-healthy", size: 1, setup: undrained, play: func(f *plantest.Fleet) {
		f.AskBalancers()
		f.Run(time.Minute)
		f.Refuses = func(vm *plantest.VM) string {
			if vm.Name == "i1" {
				return ""
			}
			return plantest.Refusal
		}
		f.Group.InfraHash = "v2"
		f.Run(15 * time.Minute)
		f.Note("a new leader")
		f.Crash(func() bool { return true })
		f.Run(15 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if f.VMs[0].Name != "i1" || f.VMs[0].State != record.Registered {
			t.Error("the instance that serves was removed before its replacement was healthy in the load balancer")
		}
	}},
	{name: "rotation-to-a-newer-image", size: 3, setup: func(f *plantest.Fleet) {
		undrained(f)
		f.Image = "image-1"
	}, play: func(f *plantest.Fleet) {
		f.Image = "image-2"
		f.Note("a newer image; on_image_change is off")
		f.Run(10 * time.Minute)
		f.Group.Rollout = config.Rollout{OnImageChange: true, Canary: 1, BakeTime: config.Duration(5 * time.Minute)}
		f.Note("on_image_change")
		f.Run(20 * time.Minute)
		f.Image = ""
		f.Note("a leader that has found no image yet")
		f.Run(10 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		for _, vm := range f.VMs {
			if vm.Image != "image-2" {
				t.Errorf("%s has %q", vm.Name, vm.Image)
			}
		}
	}},
	{name: "rotation-halted-by-a-health-check", size: 5, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Rollout = config.Rollout{Canary: 1, HaltOnFailures: 1}
		f.Group.InfraHash = "v2"
		f.Fails = func(vm *plantest.VM) string {
			if vm.InfraHash == "v2" {
				return plantest.Failure
			}
			return ""
		}
		f.Run(time.Hour)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if n := former(f); n != 5 || len(f.VMs) != 5 {
			t.Errorf("%d instances with the former configuration are left, %d in all; want 5", n, len(f.VMs))
		}
	}},
	{name: "creates-refused", play: func(f *plantest.Fleet) {
		f.Refuse = "no such subnet"
		f.Group.Size = 4
		f.Run(12 * time.Minute)
		f.Note("the subnet is there")
		f.Refuse = ""
		f.Run(10 * time.Minute)
	}},
	{name: "preserved-instances-of-3", size: 3, setup: keeping(1, time.Hour), play: func(f *plantest.Fleet) {
		f.Named("i1").Fails = plantest.Failure
		f.Run(10 * time.Minute)
		f.Note("i1 recovers, and i2 fails")
		f.Named("i1").Fails = ""
		f.Named("i2").Fails = plantest.Failure
		f.Run(20 * time.Minute)
		f.Note("another leader")
		f.Crash(func() bool { return false })
		f.Run(40 * time.Minute)
		f.Note("i3 fails, and later it is released")
		f.Named("i3").Fails = plantest.Failure
		f.Run(10 * time.Minute)
		f.Release(f.Named("i3"))
		f.Run(10 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if n := f.Marked(plan.CausePreserved); n != 1 {
			t.Errorf("%d preserved instances were deleted after their time, want 1", n)
		}
	}},
	{name: "preserved-instance-that-never-registers", setup: keeping(1, 24*time.Hour), play: func(f *plantest.Fleet) {
		f.Mute = true
		f.Group.Size = 2
		f.Run(12 * time.Minute)
		f.Note("new agents register")
		f.Mute = false
		f.Run(10 * time.Minute)
		f.Note("the VM of the preserved instance stops")
		for _, vm := range f.VMs {
			if !vm.PreservedAt.IsZero() {
				f.Stop(vm)
			}
		}
		f.Run(10 * time.Minute)
	}},
	{name: "creates-that-never-register", setup: undrained, play: func(f *plantest.Fleet) {
		f.Mute = true
		f.Group.Size = 2
		f.Run(20 * time.Minute)
	}},
	{name: "forced-expiry", size: 2, setup: undrained, play: func(f *plantest.Fleet) {
		f.Settings.ForcedAge = time.Hour + time.Minute
		f.Run(10 * time.Minute)
	}},
	{name: "eligible-expiry-waits-for-health", size: 3, setup: undrained, play: func(f *plantest.Fleet) {
		f.Settings.EligibleAge = time.Hour + 3*time.Minute
		f.CutOff(f.Named("i3"))
		f.Run(20 * time.Minute)
	}},
	{name: "group-deleted", size: 2, setup: drained, play: func(f *plantest.Fleet) {
		f.Group.Static, f.Group.Deleted = false, true
		f.Run(5 * time.Minute)
	}, check: func(t *testing.T, f *plantest.Fleet) {
		if !f.Forgotten {
			t.Error("the group was not forgotten")
		}
	}},
	{name: "leader-crashes-in-a-drain", size: 3, play: func(f *plantest.Fleet) {
		f.Group.Size = 1
		f.Run(time.Minute)
		f.Note("the leader crashes")
		f.Crash(func() bool { return false })
		f.Run(10 * time.Minute)
	}},
	{name: "leader-crashes-with-half-the-marks-written", size: 5, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Size = 2
		f.Pass()
		n := 0
		f.Note("the leader crashes; one of three intents was written")
		f.Crash(func() bool { n++; return n == 2 })
		f.Run(5 * time.Minute)
	}},
	{name: "store-does-not-answer", size: 2, setup: undrained, play: func(f *plantest.Fleet) {
		f.Broken = true
		f.Destroy(f.Named("i1"))
		f.Run(time.Minute)
		f.Note("the store is back")
		f.Broken = false
		f.Run(5 * time.Minute)
	}},
}

// flapper lets the instance i1 be silent long enough for a replacement, and recover before the replacement has booted.
func flapper(f *plantest.Fleet) {
	f.Boot = 2 * time.Minute
	f.Note("the network of i1 fails")
	f.CutOff(f.Named("i1"))
	f.Run(200 * time.Second)
	f.Note("the network of i1 is back")
	f.Mend(f.Named("i1"))
	f.Run(20 * time.Minute)
}

func drained(f *plantest.Fleet)   { f.DrainAfter = 40 * time.Second }
func undrained(f *plantest.Fleet) { f.Group.DrainTimeout = 0 }
func graceful(f *plantest.Fleet)  { f.Settings.ShutdownGrace = 30 * time.Second }

func TestRollouts(t *testing.T) { play(t, rollouts) }

func play(t *testing.T, scripts []script) {
	for _, r := range scripts {
		t.Run(r.name, func(t *testing.T) {
			f := plantest.New(1)
			if r.setup != nil {
				r.setup(f)
			}
			f.Group.Size = r.size
			for range r.size {
				f.Add()
			}
			f.Run(30 * time.Second)
			if got := f.Transcript(); got != "" {
				t.Fatalf("not quiet at the start:\n%s", got)
			}
			f.Begin()
			r.play(f)
			if err := f.Err(); err != nil {
				t.Errorf("%v\n%s", err, f.Transcript())
			}
			golden(t, r.name, f.Transcript())
			if r.check != nil {
				r.check(t, f)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the transcript differs from %s (-want +got):\n%s", file, diff)
	}
}

// TestDrainsTakeTheTimeOfTheirParticipants measures how long rolling ten instances and a scale-down take, depending on
// who takes part in drains (rule 27).
func TestDrainsTakeTheTimeOfTheirParticipants(t *testing.T) {
	takes := func(d time.Duration) func(*plantest.Fleet) { return func(f *plantest.Fleet) { f.DrainAfter = d } }
	hook := func(f *plantest.Fleet) {
		f.DrainAfter, f.HookAfter = 0, 15*time.Second
		f.Group.Drain = &config.DrainHook{Exec: []string{"drain"}}
	}
	for name, c := range map[string]struct {
		setup       func(*plantest.Fleet)
		roll, scale time.Duration
	}{
		"nobody":                        {takes(0), 6 * time.Minute, 5 * time.Second},
		"a hook of 15 s":                {hook, 8*time.Minute + 30*time.Second, 20 * time.Second},
		"an operator that takes 15 s":   {takes(15 * time.Second), 8*time.Minute + 30*time.Second, 20 * time.Second},
		"an operator that never drains": {takes(-1), time.Hour, 5*time.Minute + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f := plantest.New(1)
			c.setup(f)
			// until runs the fleet until the condition holds for the VMs that run.
			until := func(most time.Duration, done func(running []*plantest.VM) bool) time.Duration {
				for began := f.Now; ; f.Run(time.Second) {
					running := slices.DeleteFunc(slices.Clone(f.VMs), func(vm *plantest.VM) bool {
						return vm.Truth != plan.ProviderRunning || !vm.TerminateRequested.IsZero()
					})
					if took := f.Now.Sub(began); done(running) || took > most {
						return took
					}
				}
			}
			f.Group.Size = 10
			for range 10 {
				f.Add()
			}
			f.Run(30 * time.Second)
			f.Group.InfraHash = "v2"
			took := until(c.roll, func(running []*plantest.VM) bool {
				return len(running) == 10 && !slices.ContainsFunc(running, func(vm *plantest.VM) bool {
					return vm.InfraHash != "v2"
				})
			})
			t.Logf("a roll of ten takes %v", took)
			if took > c.roll {
				t.Errorf("a roll of ten takes more than %v", c.roll)
			}
			f.Group.Size = 5
			f.Run(10 * time.Minute)
			f.Group.Size = 2
			took = until(c.scale, func(running []*plantest.VM) bool { return len(running) == 2 })
			t.Logf("scaling from 5 to 2 takes %v", took)
			if took > c.scale {
				t.Errorf("scaling from 5 to 2 takes more than %v", c.scale)
			}
			if err := f.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDrainSurvivesLeaders kills the leader at every moment of a drain in which an operator and a hook take part, with
// and without what it was writing. The VM must have its time, and must end.
func TestDrainSurvivesLeaders(t *testing.T) {
	for _, landed := range []bool{false, true} {
		for at := time.Duration(0); at < 40*time.Second; at += 500 * time.Millisecond {
			f := plantest.New(1)
			f.DrainAfter, f.HookAfter = 10*time.Second, 20*time.Second
			f.Group.Drain = &config.DrainHook{Exec: []string{"drain"}}
			f.Group.DrainTimeout = config.Duration(2 * time.Minute)
			f.Group.Size = 3
			for range 3 {
				f.Add()
			}
			f.Run(2 * time.Minute)
			f.Begin()
			all := slices.Clone(f.VMs)
			f.Group.Size = 2
			announced := map[*plantest.VM]time.Time{}
			watch := func(d time.Duration) {
				for end := f.Now.Add(d); f.Now.Before(end); f.Run(500 * time.Millisecond) {
					for _, vm := range all {
						if vm.Announced && announced[vm].IsZero() {
							announced[vm] = f.Now
						}
						first := announced[vm]
						early := first.IsZero() || f.Now.Before(first.Add(f.HookAfter-time.Second))
						if !vm.TerminateRequested.IsZero() && early {
							t.Fatalf("a crash after %v, landed %t: %s ends, its drain began at %v:\n%s", at, landed,
								vm.Name,
								first, f.Transcript())
						}
					}
				}
			}
			watch(at)
			f.Note("the leader crashes")
			f.Crash(func() bool { return landed })
			watch(10 * time.Minute)
			if runs("v1", 2)(t, f); f.Err() != nil || len(announced) != 1 {
				t.Errorf("%d drains, %v", len(announced), f.Err())
			}
			if t.Failed() {
				t.Fatalf("a crash after %v, landed %t:\n%s", at, landed, f.Transcript())
			}
		}
	}
}
