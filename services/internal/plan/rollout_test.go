package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/plan/plantest"
)

var update = flag.Bool("update", false, "write the golden transcripts anew")

// rollouts are played whole; their transcripts are under testdata.
var rollouts = []struct {
	name  string
	setup func(w *plantest.World)
	size  int // instances there at the start
	play  func(w *plantest.World)
	check func(t *testing.T, w *plantest.World)
}{
	{name: "scale-up-from-nothing", play: func(w *plantest.World) {
		w.Group.Size = 3
		w.Run(10 * time.Minute)
	}},
	{name: "scale-5-to-2-with-drain", size: 5, setup: drained, play: func(w *plantest.World) {
		w.Group.Size = 2
		w.Run(10 * time.Minute)
	}},
	{name: "scale-down-nobody-drains", size: 2, play: func(w *plantest.World) {
		w.Group.Size = 1
		w.Run(10 * time.Minute)
	}},
	{name: "scale-down-prefers-unhealthy-then-unregistered", size: 3, setup: undrained, play: func(w *plantest.World) {
		w.Boot = 4 * time.Minute
		w.Group.Size = 4
		w.Run(time.Minute)
		w.Note("the agent of i2 hangs; the size becomes 2 when it is silent and i4 still boots")
		w.CutOff(w.Named("i2"))
		w.Run(195 * time.Second)
		w.Group.Size = 2
		w.Run(5 * time.Minute)
	}},
	{name: "rotation-by-drift-of-3", size: 3, setup: drained, play: func(w *plantest.World) {
		w.Group.InfraHash = "v2"
		w.Run(20 * time.Minute)
	}},
	{name: "rotation-to-a-configuration-that-never-registers", size: 2, setup: undrained,
		play: func(w *plantest.World) {
			w.Group.InfraHash, w.Mute = "v2", true
			w.Run(12 * time.Minute)
			w.Note("a mended configuration")
			w.Group.InfraHash, w.Mute = "v3", false
			w.Run(15 * time.Minute)
		}},
	{name: "push-files", size: 2, play: func(w *plantest.World) {
		w.Group.RuntimeHash = "r2"
		w.Run(5 * time.Minute)
	}},
	{name: "load-balancers", setup: undrained, play: func(w *plantest.World) {
		w.Group.LoadBalancers = []string{"www"}
		w.Group.Size = 1
		w.Run(5 * time.Minute)
		w.Group.Size = 0
		w.Run(2 * time.Minute)
	}},
	{name: "vm-destroyed", size: 3, play: func(w *plantest.World) {
		w.Destroy(w.Named("i2"))
		w.Run(2 * time.Minute)
	}},
	{name: "vm-stopped-is-terminated", size: 1, play: func(w *plantest.World) {
		w.Stop(w.Named("i1"))
		w.Run(2 * time.Minute)
	}},
	{name: "stream-lost-but-it-runs", size: 2, play: func(w *plantest.World) {
		w.CutOff(w.Named("i1"))
		w.Run(30 * time.Second)
		w.Mend(w.Named("i1"))
		w.Run(10 * time.Minute)
	}},
	{name: "spot-notice", size: 2, play: func(w *plantest.World) {
		w.Notice(w.Named("i1"), 2*time.Minute)
		w.Run(10 * time.Minute)
	}},
	{name: "spot-notice-drained-in-time", size: 2, setup: drained, play: func(w *plantest.World) {
		w.Notice(w.Named("i1"), 2*time.Minute)
		w.Run(10 * time.Minute)
	}},
	{name: "power-off", size: 2, play: func(w *plantest.World) {
		w.PowerOff(w.Named("i1"), 10*time.Second)
		w.Run(5 * time.Minute)
	}},
	{name: "power-off-with-grace-goes-early", size: 2, setup: graceful, play: func(w *plantest.World) {
		w.PowerOff(w.Named("i1"), 5*time.Second)
		w.Run(5 * time.Minute)
	}},
	{name: "power-off-with-grace-never-goes", size: 2, setup: graceful, play: func(w *plantest.World) {
		w.PowerOff(w.Named("i1"), time.Hour)
		w.Run(5 * time.Minute)
	}},
	{name: "reboot", size: 2, play: func(w *plantest.World) {
		w.Restart(w.Named("i1"), true, 4*time.Minute)
		w.Run(10 * time.Minute)
	}},
	{name: "reboot-that-never-ends", size: 2, setup: undrained, play: func(w *plantest.World) {
		w.Restart(w.Named("i1"), true, 10*time.Hour)
		w.Run(10 * time.Minute)
	}},
	{name: "restart-of-the-agent", size: 2, play: func(w *plantest.World) {
		w.Restart(w.Named("i1"), false, 10*time.Second)
		w.Run(10 * time.Minute)
	}},
	{name: "group-of-one-unhealthy", size: 1, setup: drained, play: func(w *plantest.World) {
		w.CutOff(w.Named("i1"))
		w.Run(10 * time.Minute)
	}},
	{name: "group-of-one-unhealthy-and-its-replacement-never-registers", size: 1, setup: undrained,
		play: func(w *plantest.World) {
			w.Mute = true
			w.CutOff(w.Named("i1"))
			w.Run(30 * time.Minute)
			w.Note("the agent of i1 is back")
			w.Mend(w.Named("i1"))
			w.Run(10 * time.Minute)
		}, check: func(t *testing.T, w *plantest.World) {
			if n := w.Marked("unhealthy"); n != 0 {
				t.Errorf("the only instance was removed before its replacement was healthy")
			}
		}},
	{name: "partition-with-guard", size: 10, play: func(w *plantest.World) {
		for _, vm := range w.VMs[:6] {
			w.CutOff(vm)
		}
		w.Run(10 * time.Minute)
		w.Note("one of the silent is destroyed in truth")
		w.Destroy(w.VMs[0])
		w.Run(5 * time.Minute)
		w.Note("the network is mended")
		for _, vm := range w.VMs {
			w.Mend(vm)
		}
		w.Run(5 * time.Minute)
	}, check: func(t *testing.T, w *plantest.World) {
		if n := w.Marked("unhealthy"); n != 0 {
			t.Errorf("%d instances removed by a partition", n)
		}
	}},
	{name: "creates-refused", play: func(w *plantest.World) {
		w.Refuse = "no such subnet"
		w.Group.Size = 4
		w.Run(12 * time.Minute)
		w.Note("the subnet is there")
		w.Refuse = ""
		w.Run(10 * time.Minute)
	}},
	{name: "creates-that-never-register", setup: undrained, play: func(w *plantest.World) {
		w.Mute = true
		w.Group.Size = 2
		w.Run(20 * time.Minute)
	}},
	{name: "forced-expiry", size: 2, setup: undrained, play: func(w *plantest.World) {
		w.Settings.ForcedAge = time.Hour + time.Minute
		w.Run(10 * time.Minute)
	}},
	{name: "eligible-expiry-waits-for-health", size: 3, setup: undrained, play: func(w *plantest.World) {
		w.Settings.EligibleAge = time.Hour + 3*time.Minute
		w.CutOff(w.Named("i3"))
		w.Run(20 * time.Minute)
	}},
	{name: "group-deleted", size: 2, setup: drained, play: func(w *plantest.World) {
		w.Group.Static, w.Group.Deleted = false, true
		w.Run(5 * time.Minute)
	}, check: func(t *testing.T, w *plantest.World) {
		if !w.Forgotten {
			t.Error("the group was not forgotten")
		}
	}},
	{name: "leader-crashes-in-a-drain", size: 3, play: func(w *plantest.World) {
		w.Group.Size = 1
		w.Run(time.Minute)
		w.Note("the leader crashes")
		w.Crash(func() bool { return false })
		w.Run(10 * time.Minute)
	}},
	{name: "leader-crashes-with-half-the-marks-written", size: 5, setup: undrained, play: func(w *plantest.World) {
		w.Group.Size = 2
		w.Pass()
		n := 0
		w.Note("the leader crashes; one of three intents was written")
		w.Crash(func() bool { n++; return n == 2 })
		w.Run(5 * time.Minute)
	}},
	{name: "store-does-not-answer", size: 2, setup: undrained, play: func(w *plantest.World) {
		w.Broken = true
		w.Destroy(w.Named("i1"))
		w.Run(time.Minute)
		w.Note("the store is back")
		w.Broken = false
		w.Run(5 * time.Minute)
	}},
}

func drained(w *plantest.World)   { w.DrainAfter = 40 * time.Second }
func undrained(w *plantest.World) { w.Group.DrainTimeout = 0 }
func graceful(w *plantest.World)  { w.Settings.ShutdownGrace = 30 * time.Second }

func TestRollouts(t *testing.T) {
	for _, r := range rollouts {
		t.Run(r.name, func(t *testing.T) {
			w := plantest.New(1)
			if r.setup != nil {
				r.setup(w)
			}
			w.Group.Size = r.size
			for range r.size {
				w.Add()
			}
			w.Run(30 * time.Second)
			if got := w.Transcript(); got != "" {
				t.Fatalf("not quiet at the start:\n%s", got)
			}
			w.Begin()
			r.play(w)
			if err := w.Err(); err != nil {
				t.Errorf("%v\n%s", err, w.Transcript())
			}
			golden(t, r.name, w.Transcript())
			if r.check != nil {
				r.check(t, w)
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

// A thousand VMs of a group that vanish at once are replaced in one pass, after one question to the provider each that
// is shared.
func TestAThousandLostAtOnce(t *testing.T) {
	w := plantest.New(1)
	w.Group.Size = 1000
	for range 1000 {
		w.Add()
	}
	w.Run(30 * time.Second)
	w.Begin()
	for _, vm := range w.VMs {
		w.Destroy(vm)
	}
	w.Run(w.Ask + w.Write)
	creates, instants := 0, map[string]bool{}
	for line := range strings.Lines(w.Transcript()) {
		if fields := strings.Fields(line); fields[1] == "create" {
			creates++
			instants[fields[0]] = true
		}
	}
	if creates != 1000 || len(instants) != 1 || !instants["+50ms"] {
		t.Errorf("%d creates at %v, want 1000 at +50ms", creates, instants)
	}
	w.Run(10 * time.Minute)
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}
	if n := len(w.VMs); n != 1000 {
		t.Errorf("%d instances afterwards, want 1000", n)
	}
}
