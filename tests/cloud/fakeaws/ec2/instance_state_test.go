package ec2

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func (f *testRegion) terminate(ids ...string) []types.InstanceStateChange {
	f.Helper()
	return must(f.client.TerminateInstances(f.Context(), &sdk.TerminateInstancesInput{InstanceIds: ids}))(
		f.T).TerminatingInstances
}

func TestStates(t *testing.T) {
	w := newTestRegion(t, nil)
	w.service.SetTimes(time.Second, time.Second)
	id := *w.run(nil).InstanceId
	if got := w.describe(id).State.Name; got != types.InstanceStateNamePending {
		t.Fatalf("before the boot time: %s", got)
	}
	w.sleep(time.Second)
	if got := w.describe(id).State.Name; got != types.InstanceStateNameRunning {
		t.Fatalf("after the boot time: %s", got)
	}
	w.terminate(id)
	w.sleep(time.Second)
	again := w.terminate(id)[0]
	if again.PreviousState.Name != types.InstanceStateNameTerminated ||
		again.CurrentState.Name != types.InstanceStateNameTerminated {
		t.Errorf("terminating a terminated one: %s to %s", again.PreviousState.Name, again.CurrentState.Name)
	}
	got := w.describe(id)
	if got.State.Name != types.InstanceStateNameTerminated || got.PrivateIpAddress != nil || got.VpcId != nil ||
		len(got.NetworkInterfaces) != 0 || *got.StateReason.Code != "Client.UserInitiatedShutdown" ||
		*got.StateTransitionReason != "User initiated (2026-03-04 05:06:08 UTC)" {
		t.Errorf("terminated: %+v", got)
	}
	w.sleep(59 * time.Minute)
	w.describe(id)
	w.sleep(time.Minute)
	if _, err := w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{InstanceIds: []string{id}}); code(
		t, err) != "InvalidInstanceID.NotFound" {
		t.Errorf("an hour later: %v", err)
	}
}

func TestTerminateSeveral(t *testing.T) {
	w := newTestRegion(t, nil)
	a := *w.run(nil).InstanceId
	protected := *w.run(func(in *sdk.RunInstancesInput) { in.DisableApiTermination = aws.Bool(true) }).InstanceId
	_, err := w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{InstanceIds: []string{a,
		"i-00000000000000000"}})
	if code(t, err) != "InvalidInstanceID.NotFound" {
		t.Errorf("one that does not exist: %v", err)
	}
	if _, err = w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{
		InstanceIds: []string{"node"}}); code(t, err) != "InvalidInstanceID.Malformed" {
		t.Errorf("no ID: %v", err)
	}
	if got := w.describe(a).State.Name; got != types.InstanceStateNameRunning {
		t.Errorf("a refused call left it %s", got)
	}
	if _, err = w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{InstanceIds: []string{a,
		protected}}); code(t, err) != "OperationNotPermitted" {
		t.Errorf("a protected one: %v", err)
	}
	if got := w.describe(a).State.Name; got != types.InstanceStateNameRunning {
		t.Errorf("a refused call left it %s", got)
	}
}

func TestFilters(t *testing.T) {
	w := newTestRegion(t, nil)
	tagged := func(key, value string) func(in *sdk.RunInstancesInput) {
		return func(in *sdk.RunInstancesInput) {
			in.ClientToken = aws.String(key + value)
			in.TagSpecifications = []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
				Tags: []types.Tag{{Key: &key, Value: &value}}}}
		}
	}
	a, b := *w.run(tagged("nstance:shard", "a")).InstanceId, *w.run(tagged("nstance:shard", "b")).InstanceId
	c := *w.run(nil).InstanceId
	w.terminate(c)
	eni := *w.describe(b).NetworkInterfaces[0].NetworkInterfaceId
	cases := map[string]struct {
		name   string
		values []string
		want   []string
	}{
		"tag":        {"tag:nstance:shard", []string{"a"}, []string{a}},
		"wildcard":   {"tag:nstance:shard", []string{"*"}, []string{a, b}},
		"tag key":    {"tag-key", []string{"nstance:*"}, []string{a, b}},
		"state":      {"instance-state-name", []string{"terminated", "stopped"}, []string{c}},
		"token":      {"client-token", []string{"nstance:sharda"}, []string{a}},
		"interface":  {"network-interface.network-interface-id", []string{eni}, []string{b}},
		"subnet":     {"subnet-id", []string{w.subnetA}, []string{a, b}},
		"other zone": {"availability-zone", []string{"us-west-2b"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out := must(w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
				Filters: []types.Filter{{Name: &tc.name, Values: tc.values}}}))(t)
			var got []string
			for _, r := range out.Reservations {
				for _, i := range r.Instances {
					got = append(got, *i.InstanceId)
				}
			}
			slices.Sort(got)
			slices.Sort(tc.want)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
		Filters: []types.Filter{{Name: aws.String("colour"), Values: []string{"red"}}}}); code(t,
		err) != "InvalidParameterValue" {
		t.Errorf("a filter that there is not: %v", err)
	}
	w.faults.SetLag(time.Minute)
	w.sleep(time.Minute)
	d := *w.run(nil).InstanceId
	if _, err := w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{InstanceIds: []string{d}}); code(t,
		err) != "InvalidInstanceID.NotFound" {
		t.Errorf("a new object is visible immediately: %v", err)
	}
	w.sleep(time.Minute)
	w.describe(d)
}

func TestSpot(t *testing.T) {
	w := newTestRegion(t, nil)
	spot := func(in *sdk.RunInstancesInput) {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot}
		in.TagSpecifications = []types.TagSpecification{{ResourceType: types.ResourceTypeSpotInstancesRequest,
			Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}}
	}
	i := w.run(spot)
	if i.InstanceLifecycle != types.InstanceLifecycleTypeSpot || i.SpotInstanceRequestId == nil {
		t.Errorf("a spot instance: %+v", i)
	}
	if text, ok := w.service.Metadata(*i.InstanceId, "spot/instance-action"); ok {
		t.Errorf("a notice before there is one: %s", text)
	}
	at := w.clock().Add(2 * time.Minute)
	if !w.service.Interrupt(*i.InstanceId, at) {
		t.Fatal("not interrupted")
	}
	want := `{"action":"terminate","time":"` + at.Format("2006-01-02T15:04:05Z") + `"}`
	if text, _ := w.service.Metadata(*i.InstanceId, "spot/instance-action"); text != want {
		t.Errorf("the notice: %s", text)
	}
	if text, _ := w.service.Metadata(*i.InstanceId, "spot/termination-time"); text != at.Format(
		"2006-01-02T15:04:05Z") {
		t.Errorf("the time: %s", text)
	}
	w.sleep(2 * time.Minute)
	w.describe(*i.InstanceId) // this call applies the interruption, the next its end
	got := w.describe(*i.InstanceId)
	if got.State.Name != types.InstanceStateNameTerminated ||
		*got.StateReason.Code != "Server.SpotInstanceTermination" || !strings.HasPrefix(*got.StateTransitionReason,
		"Service initiated") {
		t.Errorf("after the interruption: %s %v", got.State.Name, got.StateReason)
	}
	if w.service.Interrupt(*w.run(nil).InstanceId, at) {
		t.Error("an on-demand instance was interrupted")
	}
}

// machines is a fake [Machines] that records the machines it has started.
type machines struct {
	mu      sync.Mutex
	started []*machine
	fail    error
}

type machine struct {
	spec    MachineSpec
	mu      sync.Mutex
	stops   int
	plugged map[string]NIC
	stopped chan struct{}
	console []byte
	power   []string
	fail    error         // of Sleep and Wake
	hold    chan struct{} // Stop blocks on it if it is not nil
}

func (m *machines) Start(spec MachineSpec) (Machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	one := &machine{spec: spec, plugged: map[string]NIC{}, stopped: make(chan struct{}, 8)}
	m.started = append(m.started, one)
	return one, nil
}

func (m *machine) Stop() {
	if m.hold != nil {
		<-m.hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stops++
	m.stopped <- struct{}{}
}

func (m *machine) Console() []byte { return m.console }

func (m *machine) Sleep(memory bool) error {
	if memory {
		return m.asleep("suspended")
	}
	return m.asleep("off")
}

func (m *machine) Wake() error { return m.asleep("on") }

func (m *machine) asleep(how string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.power = append(m.power, how)
	return m.fail
}

func (m *machine) Plug(nic NIC) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plugged[nic.MAC] = nic
	return nil
}

func (m *machine) Unplug(mac string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.plugged, mac)
	return nil
}

// eventually waits until an instance is in a state, because machines stop in the background.
func (f *testRegion) eventually(id string, want types.InstanceStateName) types.Instance {
	f.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		got := f.describe(id)
		if got.State.Name == want {
			return got
		}
		select {
		case <-deadline:
			f.Fatalf("%s is %s and not %s", id, got.State.Name, want)
		case <-tick.C:
		}
	}
}

func TestMachines(t *testing.T) {
	real := &machines{}
	w := newTestRegion(t, real)
	id := *w.run(func(in *sdk.RunInstancesInput) {
		in.UserData = encode("#!/bin/sh\necho hello\n")
		in.MetadataOptions = &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired,
			HttpPutResponseHopLimit: aws.Int32(3)}
	}).InstanceId
	if len(real.started) != 1 {
		t.Fatalf("%d machines", len(real.started))
	}
	m := real.started[0]
	nic := *w.describe(id).NetworkInterfaces[0].MacAddress
	if m.spec.ID != id || string(m.spec.Userdata) != "#!/bin/sh\necho hello\n" || m.spec.Image != w.amd ||
		m.spec.Primary.MAC != nic {
		t.Errorf("the machine: %+v", m.spec)
	}
	if got := m.spec.Primary.Addresses[0].String(); got != "10.0.1.4/24" {
		t.Errorf("its address %s has not the prefix length of the VPC", got)
	}
	if m.spec.Hostname != "ip-10-0-1-4" || !strings.HasPrefix(m.spec.DMI["product_uuid"], "ec2") {
		t.Errorf("the machine: %q, %v", m.spec.Hostname, m.spec.DMI)
	}
	ask := func(method, path, header, value string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.Header.Set(header, value)
		answer := httptest.NewRecorder()
		m.spec.Metadata.ServeHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	if code, _ := ask(http.MethodGet, "/latest/meta-data/instance-id", "X-None", ""); code != http.StatusUnauthorized {
		t.Errorf("metadata without a token: %d", code)
	}
	_, token := ask(http.MethodPut, "/latest/api/token", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
	if _, text := ask(http.MethodGet, "/latest/meta-data/instance-id", "X-Aws-Ec2-Metadata-Token", token); text != id {
		t.Errorf("its metadata: %q", text)
	}
	w.eventually(id, types.InstanceStateNameRunning)

	// Plug and unplug a network interface.
	eni := must(w.client.CreateNetworkInterface(t.Context(), &sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA}))(
		t).NetworkInterface
	attachment := must(w.client.AttachNetworkInterface(t.Context(), &sdk.AttachNetworkInterfaceInput{InstanceId: &id,
		NetworkInterfaceId: eni.NetworkInterfaceId, DeviceIndex: aws.Int32(1)}))(t)
	if got, ok := m.plugged[*eni.MacAddress]; !ok || got.Index != 1 || got.VPC != w.vpc {
		t.Errorf("plugged: %+v", m.plugged)
	}
	must(w.client.DetachNetworkInterface(t.Context(), &sdk.DetachNetworkInterfaceInput{
		AttachmentId: attachment.AttachmentId}))(t)
	if len(m.plugged) != 0 {
		t.Errorf("still plugged: %+v", m.plugged)
	}

	// The instance is shutting down for exactly as long as the machine takes to stop.
	m.hold = make(chan struct{})
	w.terminate(id)
	if got := w.describe(id).State.Name; got != types.InstanceStateNameShuttingDown {
		t.Errorf("while the machine stops: %s", got)
	}
	close(m.hold)
	w.eventually(id, types.InstanceStateNameTerminated)
	if m.stops != 1 {
		t.Errorf("stopped %d times", m.stops)
	}
}

func (m *machines) count() []*machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.started)
}

func TestPowerOff(t *testing.T) {
	real := &machines{}
	w := newTestRegion(t, real)
	stops := *w.run(nil).InstanceId
	ends := *w.run(func(in *sdk.RunInstancesInput) {
		in.InstanceInitiatedShutdownBehavior = types.ShutdownBehaviorTerminate
	}).InstanceId
	w.describe(stops)
	for _, m := range real.count() {
		m.spec.Exited()
	}
	if got := w.eventually(stops,
		types.InstanceStateNameStopped); *got.StateReason.Code != "Client.InstanceInitiatedShutdown" {
		t.Errorf("the reason: %s", *got.StateReason.Code)
	}
	w.eventually(ends, types.InstanceStateNameTerminated)

	killed := *w.run(nil).InstanceId
	w.service.Kill(killed)
	if got := w.describe(killed); got.State.Name != types.InstanceStateNameTerminated || real.count()[2].stops != 1 {
		t.Errorf("killed: %s, stopped %d times", got.State.Name, real.count()[2].stops)
	}
}

func TestMachineThatDoesNotStart(t *testing.T) {
	w := newTestRegion(t, &machines{fail: errors.New("no namespaces")})
	id := *w.run(nil).InstanceId
	if got := w.eventually(id, types.InstanceStateNameTerminated); *got.StateReason.Code != "Server.InternalError" {
		t.Errorf("the reason: %s", *got.StateReason.Code)
	}
}
