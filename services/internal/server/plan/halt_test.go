package plan_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
)

// rollingBack sets up a group that returns to its good configuration after one failure. Instances with the
// configuration v2, or with the files r2, fail their health check.
func rollingBack(f *plantest.Fleet) {
	undrained(f)
	f.Group.Rollout = config.Rollout{HaltOnFailures: 1, OnHalt: config.OnHaltRollback,
		BakeTime: config.Duration(10 * time.Minute)}
	f.Fails = func(vm *plantest.VM) string {
		if vm.InfraHash == "v2" || vm.FilesSent == "r2" {
			return plantest.Failure
		}
		return ""
	}
}

// halts lists tests of halted rollouts (rules 70 to 72).
var halts = []script{
	{name: "rollback-after-the-first-failure", size: 3, setup: rollingBack, play: func(f *plantest.Fleet) {
		f.Run(15 * time.Minute)
		f.Note("a configuration that fails")
		f.Group.InfraHash = "v2"
		f.Run(30 * time.Minute)
		f.Note("a larger size: new instances have the good configuration")
		f.Group.Size = 4
		f.Run(10 * time.Minute)
		f.Note("a corrected configuration")
		f.Group.InfraHash = "v3"
		f.Run(30 * time.Minute)
	}, check: runs("v3", 4)},
	{name: "rollback-when-all-instances-fail-later", size: 3, setup: rollingBack, play: func(f *plantest.Fleet) {
		f.Run(15 * time.Minute)
		fails := f.Fails
		f.Fails = nil
		f.Note("a configuration that works at first")
		f.Group.InfraHash = "v2"
		f.Run(8 * time.Minute)
		f.Note("all instances fail: the unhealthy guard does not keep them")
		f.Fails = fails
		f.Run(time.Hour)
	}, check: runs("v1", 3)},
	{name: "rollback-of-instances-that-are-healthy", size: 3, setup: func(f *plantest.Fleet) {
		rollingBack(f)
		f.Fails = func(vm *plantest.VM) string {
			if vm.Name == "i6" {
				return plantest.Failure
			}
			return ""
		}
	}, play: func(f *plantest.Fleet) {
		f.Run(15 * time.Minute)
		f.Note("a configuration of which the third instance fails")
		f.Group.InfraHash = "v2"
		f.Run(20 * time.Minute)
	}, check: runs("v1", 3)},
	{name: "rollback-of-files", size: 3, setup: rollingBack, play: func(f *plantest.Fleet) {
		f.Run(15 * time.Minute)
		f.Note("files with which the health check fails")
		f.Group.RuntimeHash = "r2"
		f.Run(20 * time.Minute)
	}, check: runs("v1", 3)},
	{name: "rollback-of-an-image", size: 2, setup: func(f *plantest.Fleet) {
		rollingBack(f)
		f.Group.Rollout.OnImageChange, f.Image = true, "A"
		f.Fails = func(vm *plantest.VM) string {
			if vm.Image == "B" {
				return plantest.Failure
			}
			return ""
		}
	}, play: func(f *plantest.Fleet) {
		f.Run(15 * time.Minute)
		f.Note("an image that fails")
		f.Image = "B"
		f.Run(20 * time.Minute)
		f.Note("another image")
		f.Image = "C"
		f.Run(10 * time.Minute)
	}, check: runs("v1", 2)},
	{name: "rollback-to-a-configuration-that-fails-too", size: 3, setup: rollingBack, play: func(f *plantest.Fleet) {
		f.Run(15 * time.Minute)
		fails := f.Fails
		f.Fails = nil
		f.Group.InfraHash = "v2"
		f.Run(8 * time.Minute)
		f.Note("v2 fails, and so do new instances of v1")
		f.Fails = fails
		f.Mute = true
		f.Run(time.Hour)
		f.Note("resumed, and nothing fails any more")
		f.Mute, f.Fails = false, nil
		f.Resume()
		f.Run(time.Hour)
	}, check: runs("v2", 3)},
	{name: "rollback-without-a-good-configuration", size: 3, setup: rollingBack, play: func(f *plantest.Fleet) {
		f.Group.InfraHash = "v2"
		f.Run(time.Hour)
	}, check: runs("v1", 3)},
	{name: "halt-that-the-next-leader-keeps", size: 3, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Rollout = config.Rollout{HaltOnFailures: 1}
		f.Group.InfraHash, f.Mute = "v2", true
		f.Run(6 * time.Minute)
		f.Note("the leader crashes")
		f.Mute = false
		f.Crash(func() bool { return false })
		f.Run(20 * time.Minute)
		f.Note("resumed")
		f.Resume()
		f.Run(20 * time.Minute)
	}, check: runs("v2", 3)},
	{name: "halt-that-ends-when-all-instances-are-well", size: 2, setup: undrained, play: func(f *plantest.Fleet) {
		f.Group.Rollout = config.Rollout{HaltOnFailures: 1}
		f.Group.InfraHash, f.Mute = "v2", true
		f.Run(6 * time.Minute)
		f.Note("the VMs are destroyed, and their replacements are well")
		f.Mute = false
		f.Destroy(f.Named("i1"))
		f.Destroy(f.Named("i2"))
		f.Run(20 * time.Minute)
	}, check: runs("v2", 2)},
}

// runs returns a check that a group has a number of healthy instances with a configuration, and no others.
func runs(infra string, size int) func(*testing.T, *plantest.Fleet) {
	return func(t *testing.T, f *plantest.Fleet) {
		t.Helper()
		running := f.Running()
		for _, vm := range f.VMs {
			if vm.InfraHash != infra || vm.RuntimeHash != running.RuntimeHash || !vm.Healthy {
				t.Errorf("%s has %s and %s, healthy %t", vm.Name, vm.InfraHash, vm.RuntimeHash, vm.Healthy)
			}
		}
		if len(f.VMs) != size {
			t.Errorf("%d instances, want %d", len(f.VMs), size)
		}
	}
}

func TestHalts(t *testing.T) { play(t, halts) }

// TestRollbackSurvivesLeaders kills the leader at every moment of a rollback, with and without what it was writing. The
// group must end with good instances only, and with the halt in force.
func TestRollbackSurvivesLeaders(t *testing.T) {
	step := 7 * time.Second
	if testing.Short() {
		step = 41 * time.Second
	}
	for _, landed := range []bool{false, true} {
		for at := time.Duration(0); at < 22*time.Minute; at += step {
			f := plantest.New(1)
			rollingBack(f)
			f.Group.Size = 3
			for range 3 {
				f.Add()
			}
			f.Run(16 * time.Minute)
			f.Begin()
			f.Group.InfraHash = "v2"
			f.Run(at)
			f.Note("the leader crashes")
			f.Crash(func() bool { return landed })
			f.Run(40 * time.Minute)
			runs("v1", 3)(t, f)
			if running := f.Running(); !running.RolledBack() || f.Err() != nil {
				t.Errorf("the group is not rolled back, %v", f.Err())
			}
			if t.Failed() {
				t.Fatalf("a crash after %v, landed %t:\n%s", at, landed, f.Transcript())
			}
		}
	}
}
