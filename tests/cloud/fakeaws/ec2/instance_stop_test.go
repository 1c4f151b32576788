package ec2

import (
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func (f *testRegion) stop(hibernate bool, ids ...string) ([]types.InstanceStateChange, error) {
	out, err := f.client.StopInstances(f.Context(), &sdk.StopInstancesInput{InstanceIds: ids, Hibernate: &hibernate})
	if err != nil {
		return nil, err
	}
	return out.StoppingInstances, nil
}

func (f *testRegion) start(ids ...string) ([]types.InstanceStateChange, error) {
	out, err := f.client.StartInstances(f.Context(), &sdk.StartInstancesInput{InstanceIds: ids})
	if err != nil {
		return nil, err
	}
	return out.StartingInstances, nil
}

// wantState checks the state of an instance.
func (f *testRegion) wantState(when, id string, want types.InstanceStateName) types.Instance {
	f.Helper()
	got := f.describe(id)
	if got.State.Name != want {
		f.Errorf("%s: %s, want %s", when, got.State.Name, want)
	}
	return got
}

func hibernating(in *sdk.RunInstancesInput) {
	in.HibernationOptions = &types.HibernationOptionsRequest{Configured: aws.Bool(true)}
	in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"),
		Ebs: &types.EbsBlockDevice{Encrypted: aws.Bool(true)}}}
}

func TestStopAndStart(t *testing.T) {
	for name, hibernate := range map[string]bool{"stop": false, "hibernate": true} {
		t.Run(name, func(t *testing.T) {
			w := newTestRegion(t, nil)
			w.service.SetTimes(time.Second, time.Second)
			launched := w.run(hibernating)
			id := *launched.InstanceId
			if _, err := w.stop(hibernate, id); code(t, err) != "IncorrectInstanceState" {
				t.Errorf("stop of a pending one: %v", err)
			}
			w.sleep(time.Second)
			w.wantState("after the boot time", id, types.InstanceStateNameRunning)
			for range 2 {
				if _, err := w.start(id); err != nil {
					t.Errorf("start of a running one: %v", err)
				}
				if _, err := w.stop(hibernate, id); err != nil {
					t.Fatal(err)
				}
				if _, err := w.stop(hibernate, id); err != nil {
					t.Errorf("stop of a stopping one: %v", err)
				}
				if _, err := w.start(id); code(t, err) != "IncorrectInstanceState" {
					t.Errorf("start of a stopping one: %v", err)
				}
				w.sleep(time.Second)
				stopped := w.wantState("after the stop time", id, types.InstanceStateNameStopped)
				want := "Client.UserInitiatedShutdown"
				if hibernate {
					want = "Client.UserInitiatedHibernate"
				}
				if *stopped.StateReason.Code != want || len(stopped.BlockDeviceMappings) != 1 {
					t.Errorf("stopped: %+v", stopped)
				}
				changed, err := w.start(id)
				if err != nil || changed[0].PreviousState.Name != types.InstanceStateNameStopped ||
					changed[0].CurrentState.Name != types.InstanceStateNamePending {
					t.Fatalf("start: %+v, %v", changed, err)
				}
				w.wantState("started", id, types.InstanceStateNamePending)
				w.sleep(time.Second)
				running := w.wantState("running again", id, types.InstanceStateNameRunning)
				if running.StateReason != nil || !running.LaunchTime.After(*launched.LaunchTime) {
					t.Errorf("running: %+v", running)
				}
			}
			w.terminate(id)
			w.sleep(time.Second)
			w.wantState("terminated", id, types.InstanceStateNameTerminated)
			for _, call := range []func() error{
				func() error { _, err := w.start(id); return err },
				func() error { _, err := w.stop(hibernate, id); return err },
			} {
				if err := call(); code(t, err) != "IncorrectInstanceState" {
					t.Errorf("terminated: %v", err)
				}
			}
		})
	}
}

// TestRefusedStopChangesNothing checks that a call changes no instance if EC2 refuses one of its instances.
func TestRefusedStopChangesNothing(t *testing.T) {
	w := newTestRegion(t, nil)
	fine := *w.run(hibernating).InstanceId
	plain := *w.run(nil).InstanceId
	protected := *w.run(func(in *sdk.RunInstancesInput) { in.DisableApiStop = aws.Bool(true) }).InstanceId
	spot := *w.run(func(in *sdk.RunInstancesInput) {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot}
	}).InstanceId
	for _, c := range []struct {
		id, want  string
		hibernate bool
	}{
		{plain, "UnsupportedHibernationConfiguration", true}, {protected, "OperationNotPermitted", false},
		{spot, "UnsupportedOperation", false}, {"i-00000000000000000", "InvalidInstanceID.NotFound", false},
	} {
		if _, err := w.stop(c.hibernate, fine, c.id); code(t, err) != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
		w.wantState("after "+c.want, fine, types.InstanceStateNameRunning)
	}
	w.service.SetLimits(4, 0) // of a t3.micro, two
	if _, err := w.stop(false, fine, plain); err != nil {
		t.Fatal(err)
	}
	w.describe(fine)
	if _, err := w.start(fine, plain); code(t, err) != "VcpuLimitExceeded" {
		t.Errorf("more than the quota: %v", err)
	}
	w.wantState("without room", plain, types.InstanceStateNameStopped)
	if _, err := w.start(fine); err != nil {
		t.Errorf("within the quota: %v", err)
	}
}

// TestMachinesSleep checks that the machine of an instance sleeps while the instance is stopped, and is stopped when
// the instance is terminated.
func TestMachinesSleep(t *testing.T) {
	real := &machines{}
	w := newTestRegion(t, real)
	id := *w.run(hibernating).InstanceId
	w.eventually(id, types.InstanceStateNameRunning)
	for _, hibernate := range []bool{false, true} {
		if _, err := w.stop(hibernate, id); err != nil {
			t.Fatal(err)
		}
		w.eventually(id, types.InstanceStateNameStopped)
		if _, err := w.start(id); err != nil {
			t.Fatal(err)
		}
		w.eventually(id, types.InstanceStateNameRunning)
	}
	if _, err := w.stop(false, id); err != nil {
		t.Fatal(err)
	}
	w.eventually(id, types.InstanceStateNameStopped)
	w.terminate(id)
	w.eventually(id, types.InstanceStateNameTerminated)
	m := real.started[0]
	if diff := cmp.Diff([]string{"off", "on", "suspended", "on", "off"}, m.power); diff != "" || m.stops != 1 ||
		len(real.started) != 1 {
		t.Errorf("%d machines, stopped %d times, power (-want +got):\n%s", len(real.started), m.stops, diff)
	}
}

// TestMachineThatCannotSleep checks that an instance stops although its machine does not fall asleep.
func TestMachineThatCannotSleep(t *testing.T) {
	real := &machines{}
	w := newTestRegion(t, real)
	id := *w.run(nil).InstanceId
	w.eventually(id, types.InstanceStateNameRunning)
	real.started[0].fail = errors.New("injected")
	if _, err := w.stop(false, id); err != nil {
		t.Fatal(err)
	}
	w.eventually(id, types.InstanceStateNameStopped)
	if real.started[0].stops != 1 {
		t.Error("the machine runs")
	}
}
