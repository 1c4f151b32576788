package mock_test

import (
	"context"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

func sleepy(t *testing.T) infra.CreateRequest {
	t.Helper()
	req := request(t)
	req.Sleep = config.SparesStopped
	return req
}

func TestSleepChangesWithTheClock(t *testing.T) {
	clock := newClock()
	p := mock.New(mock.Config{Now: clock.Now, Boot: 10 * time.Second, FallAsleep: 5 * time.Second,
		WakeUp: 3 * time.Second})
	req := sleepy(t)
	vm := create(t, p, req)
	step := func(d time.Duration, want infra.State) {
		t.Helper()
		clock.Sleep(t.Context(), d)
		wantState(t, p, req.Tags.Instance, want)
	}
	wantClass(t, p.Sleep(t.Context(), vm, req.Sleep), infra.Conflict)
	step(10*time.Second, infra.Running)
	wantClass(t, p.Sleep(t.Context(), vm, config.SparesSuspended), infra.Invalid)
	wantClass(t, p.Sleep(t.Context(), vm, req.Sleep), "")
	wantClass(t, p.Wake(t.Context(), vm), infra.Conflict)
	step(4*time.Second, infra.Stopping)
	step(time.Second, infra.Stopped)
	wantClass(t, p.Wake(t.Context(), vm), "")
	wantClass(t, p.Sleep(t.Context(), vm, req.Sleep), infra.Conflict)
	step(2*time.Second, infra.Pending)
	step(time.Second, infra.Running)
}

func TestOnlyVMsMadeToSleepSleep(t *testing.T) {
	p := mock.New(mock.Config{Now: newClock().Now})
	awake := create(t, p, request(t))
	wantClass(t, p.Sleep(t.Context(), awake, config.SparesStopped), infra.Invalid)
	wantClass(t, p.Sleep(t.Context(), awake, ""), infra.Invalid)
	if err := p.Kill(awake.ProviderID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, p.Wake(t.Context(), awake), infra.Invalid)
	odd := request(t)
	odd.Sleep = "hibernated"
	_, err := p.Create(t.Context(), odd)
	wantClass(t, err, infra.Invalid)
}

func TestStuckVMStaysUntilItIsSet(t *testing.T) {
	p := mock.New(mock.Config{Now: newClock().Now,
		Script: func(_ context.Context, call mock.Call) mock.Outcome {
			return mock.Outcome{Stuck: call.Kind == mock.Wake}
		}})
	req := sleepy(t)
	vm := create(t, p, req)
	wantClass(t, p.Sleep(t.Context(), vm, req.Sleep), "")
	wantClass(t, p.Wake(t.Context(), vm), "")
	wantState(t, p, req.Tags.Instance, infra.Pending)
	if err := p.SetState(vm.ProviderID, infra.Stopped); err != nil {
		t.Fatal(err)
	}
	wantClass(t, p.Wake(t.Context(), vm), "")
	if err := p.SetState(vm.ProviderID, infra.Running); err != nil {
		t.Fatal(err)
	}
	wantClass(t, p.Sleep(t.Context(), vm, req.Sleep), "")
}

func TestSleepingVMGivesItsRoomAway(t *testing.T) {
	p := mock.New(mock.Config{Now: newClock().Now})
	p.SetCapacity(mock.Place{}, 1)
	req := sleepy(t)
	vm := create(t, p, req)
	wantClass(t, p.Sleep(t.Context(), vm, req.Sleep), "")
	other := create(t, p, request(t))
	wantClass(t, p.Wake(t.Context(), vm), infra.Capacity)
	wantClass(t, p.Delete(t.Context(), other), "")
	wantClass(t, p.Wake(t.Context(), vm), "")
	_, err := p.Create(t.Context(), request(t))
	wantClass(t, err, infra.Capacity)
}
