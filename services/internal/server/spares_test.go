package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// cut ends a leader at a call of its provider: before the call takes effect, or after that and before its answer.
type cut struct {
	kind  mock.Kind
	after bool
}

func (c cut) String() string { return fmt.Sprintf("%s, after its effect: %t", c.kind, c.after) }

// TestLeaderDiesWhileSpareSleepsOrWakes ends the leader between the record of a decision and the provider's call, and
// between the call and its answer. The next leader must put the same VM to sleep, or wake it, and replace none.
func TestLeaderDiesWhileSpareSleepsOrWakes(t *testing.T) {
	for _, at := range []cut{{mock.Sleep, false}, {mock.Sleep, true}, {mock.Wake, false}, {mock.Wake, true}} {
		t.Run(at.String(), func(t *testing.T) { dieAt(t, at) })
	}
}

func dieAt(t *testing.T, at cut) {
	r := newTestShard(t)
	f := newCheckedFleet(r)
	reached, dead := make(chan struct{}), make(chan struct{})
	die := sync.OnceFunc(func() { close(dead) })
	defer die()
	var once sync.Once
	stopAt := func(c mock.Call, after bool) (dies bool) {
		if c.Kind == at.kind && after == at.after {
			once.Do(func() {
				dies = true
				close(reached)
				<-dead
			})
		}
		return dies
	}
	r.provider = mock.New(mock.Config{Now: time.Now,
		Script: func(_ context.Context, c mock.Call) mock.Outcome {
			if c.Kind == mock.Create {
				f.boot(c)
			}
			if stopAt(c, false) {
				return mock.Outcome{Err: errors.New("the leader has ended")}
			}
			return mock.Outcome{}
		},
		Yield: func(_ context.Context, c mock.Call) { stopAt(c, true) }})
	configure := func(size int) {
		r.configure(func(doc map[string]any) {
			doc["server"].(map[string]any)["check_registration_address"] = false
			doc["server"].(map[string]any)["health_check_interval"] = "1s"
			doc["defaults"] = map[string]any{"userdata": map[string]any{
				"content": "{{ .Nonce }}\n{{ .Cluster.CACert }}"}}
			doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": size,
				"drain_timeout": "0s", "spares": map[string]any{"count": 1, "state": config.SparesStopped}}}}
		})
	}
	vms := func(matches func(infra.VM) bool) (ids []string) {
		for _, vm := range r.provider.VMs() {
			if matches(vm) {
				ids = append(ids, vm.ProviderID)
			}
		}
		return ids
	}
	spares := func(vm infra.VM) bool { return vm.Tags.Spare }
	asleep := func(vm infra.VM) bool { return vm.Tags.Spare && vm.State == infra.Stopped }
	awaitRest := func(p *run) {
		t.Helper()
		p.await("rest", func() bool {
			leading := p.server.leading.Load()
			if leading == nil {
				return false
			}
			state := leading.leader.State
			// A spare is woken once the leader has seen that its VM sleeps. Until then, a lack is filled by a new VM.
			seen := slices.ContainsFunc(r.provider.VMs(), func(vm infra.VM) bool {
				view, _ := state.Instance(vm.Tags.Instance)
				return asleep(vm) && view.Plan.Asleep() && view.Plan.Provider.Value == plan.ProviderStopped
			})
			view, ok := state.GroupView(config.GroupKey{Tenant: "default", Group: "g"})
			return ok && view.Wait.Resting && seen
		})
	}
	configure(1)
	p := r.start(testKey)
	if at.kind == mock.Wake {
		awaitRest(p)
		configure(2)
		if _, _, err := p.server.manager.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.await("the call", func() bool {
		select {
		case <-reached:
			return true
		default:
			return false
		}
	})
	spare := vms(spares)[0] // the pool is refilled later, and VMs are in the order of their creation
	p.stop()
	die()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}

	p = r.start(testKey)
	if at.kind == mock.Sleep {
		p.await("the spare to sleep", func() bool { return slices.Equal(vms(asleep), []string{spare}) })
	} else {
		p.await("the spare to serve, and another to sleep", func() bool {
			awake, pool := vms(spares), vms(asleep)
			return len(awake) == 2 && awake[0] == spare && len(pool) == 1 && pool[0] != spare
		})
	}
	awaitRest(p)
	want := map[mock.Kind]int{mock.Sleep: 2, mock.Wake: 3}[at.kind]
	if n, there := r.provider.Count(mock.Create), len(r.provider.VMs()); int(n) != want || there != want {
		t.Errorf("%d VMs were created, and %d are there, want %d", n, there, want)
	}
}
