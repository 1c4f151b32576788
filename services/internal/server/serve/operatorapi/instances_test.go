package operatorapi_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

func (f *testShard) status(t testing.TB, id ident.ID) *nstancev1.InstanceStatus {
	t.Helper()
	answer, err := f.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id.String()})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetInstance()
}

func (f *testShard) create(id, group string) (*nstancev1.InstanceStatus, error) {
	answer, err := f.CreateInstance(context.Background(), &nstancev1.CreateInstanceRequest{Group: group,
		InstanceId: id})
	return answer.GetInstance(), err
}

func TestInstanceStatus(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 2)
	id := ids[0]
	fresh := w.status(t, id)
	if fresh.GetState() != "created" || fresh.GetHealth() != "unregistered" || fresh.GetProviderId() == "" ||
		fresh.GetProviderState() != "running" ||
		fresh.GetGroup() != "fleet" || fresh.GetTemplate() != "worker" || fresh.GetKind() != "knd" ||
		fresh.GetOnDemand() || fresh.GetInstanceType() != "small" ||
		fresh.GetSubnetId() != "s" || fresh.GetTerm() != 3 || fresh.GetZone() != "z" || fresh.GetRegion() != "r" ||
		fresh.GetMetrics() != nil ||
		!fresh.GetCreatedAt().AsTime().Equal(w.Clock.Now()) || fresh.GetRegisteredAt() != nil ||
		fresh.GetDeletedAt() != nil {
		t.Errorf("%v", fresh)
	}
	group, _ := w.leader.State.GroupView(groupKey("prod", "fleet"))
	w.register(t, id, shardstate.Report{Healthy: true, Message: "all is well", Version: "v1",
		RuntimeHash: group.RuntimeHash,
		Metrics: shardstate.Metrics{CPU: 0.5, MemoryUsed: 1, MemoryTotal: 2, ReceiveRate: 3, TransmitRate: -1,
			ConntrackEntries: 4, ConntrackMax: 5}})
	now := w.status(t, id)
	if now.GetState() != "registered" || now.GetHealth() != "healthy" || now.GetHealthMessage() != "all is well" ||
		now.GetAgentVersion() != "v1" ||
		now.GetIpv4() != "10.0.0.7" || now.GetLastReportAt() == nil || now.GetCertificateNotAfter() == nil ||
		now.GetInfraDrift() || now.GetRuntimeDrift() {
		t.Errorf("%v", now)
	}
	if m := now.GetMetrics(); m.GetCpu() != 0.5 || m.GetMemoryTotalBytes() != 2 || m.GetNetworkReceiveRate() != 3 ||
		m.NetworkTransmitRate != nil || m.GetConntrackLimit() != 5 {
		t.Errorf("%v", m)
	}
	if g := w.group(t, "fleet"); g.GetActualSize() != 2 || g.GetHealthy() != 1 {
		t.Errorf("%v", g)
	}
	for _, filter := range []string{"", "fleet"} {
		list, err := w.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{Group: filter})
		if err != nil || len(list.GetInstances()) != 2 ||
			list.GetInstances()[0].GetInstanceId() >= list.GetInstances()[1].GetInstanceId() {
			t.Errorf("group %q: %v, %v", filter, list, err)
		}
	}
	list, err := w.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{Group: "static"})
	if err != nil || len(list.GetInstances()) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	for filter, code := range map[string]codes.Code{"none": codes.NotFound, "NONE": codes.InvalidArgument,
		"theirs": codes.NotFound} {
		_, err := w.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{Group: filter})
		wants(t, "list "+filter, err, code, "group: ")
	}
	for text, code := range map[string]codes.Code{"": codes.InvalidArgument, "knd": codes.InvalidArgument,
		w.NewID(t, "knd").String(): codes.NotFound} {
		_, err := w.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: text})
		wants(t, "status of "+text, err, code, "instance_id: ")
	}
}

// TestScalingNumbers checks that the status of an instance has the numbers by which its group is scaled.
func TestScalingNumbers(t *testing.T) {
	vm := &config.ScalingVM{Name: "inflight", Port: 9100, Path: "/metrics", Metric: "inflight", Target: 100}
	view := shardstate.InstanceView{Scaling: []config.ScalingMetric{{CPU: &config.ScalingShare{Target: "60%"}},
		{VM: vm}, {URL: &config.ScalingURL{Target: 5}}}}
	view.Report.Metrics = shardstate.Metrics{CPU: 0.5, MemoryTotal: 1,
		VM: []shardstate.VMNumber{{ID: vm.ID(), Problem: "connection refused"}}}
	got := operatorapi.ScalingNumbers(&view)
	want := []*nstancev1.ScalingMetric{{Name: "cpu", Target: 60, Value: new(50.0)},
		{Name: "inflight", Target: 100, Problem: "connection refused"}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// TestUnsettled checks that calls about an earlier leader's reservation fail with Unavailable until the leader knows
// whether the instance has a VM.
func TestUnsettled(t *testing.T) {
	w := newTestShard(t)
	id, theirs := w.NewID(t, "knd"), w.NewID(t, "knd")
	w.leader.State.AddLeftover(shardstate.Reservation{Record: record.Instance{ID: id, State: record.Reserved,
		Tenant: "prod"}})
	w.leader.State.AddLeftover(shardstate.Reservation{Record: record.Instance{ID: theirs, State: record.Reserved,
		Tenant: "rival"}})
	_, err := w.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id.String()})
	wants(t, "status", err, codes.Unavailable, "reserved by an earlier leader")
	_, err = w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id.String()})
	wants(t, "delete", err, codes.Unavailable, "reserved by an earlier leader")
	_, err = w.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: theirs.String()})
	wants(t, "another tenant's", err, codes.NotFound, "instance_id: ")
}

func TestCreateInstance(t *testing.T) {
	w := newTestShard(t)
	events := live(t, w)
	id := w.NewID(t, "knd")
	req := &nstancev1.CreateInstanceRequest{Group: "static", InstanceId: id.String(), InstanceType: "huge",
		Vars: map[string]string{"role": "one-off"}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			answer, err := w.CreateInstance(context.Background(), req)
			if i := answer.GetInstance(); err != nil || i.GetInstanceId() != id.String() || !i.GetOnDemand() ||
				i.GetState() != "created" || i.GetInstanceType() != "huge" {
				t.Errorf("%v, %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := w.provider.Count(mock.Create); n != 1 {
		t.Errorf("%d create calls", n)
	}
	creating := events.await("creation", ofType(nstancev1.InstanceEvent_TYPE_CREATING))
	if creating.GetInstance().GetInstanceId() != id.String() || !creating.GetAt().AsTime().Equal(w.Clock.Now()) ||
		creating.GetReplaces() != "" {
		t.Errorf("%v", creating)
	}
	if rec, _, err := w.state.GetInstance(t.Context(), "prod", id); err != nil || rec.Vars["role"] != "one-off" ||
		rec.State != record.Created {
		t.Errorf("%+v, %v", rec, err)
	}
	// An on-demand instance does not count towards the group's size, and is not replaced.
	if g := w.group(t, "static"); g.GetActualSize() != 0 || len(g.GetInstanceIds()) != 1 {
		t.Errorf("%v", g)
	}
	// Without an ID, each call creates an instance.
	first, err1 := w.create("", "static")
	second, err2 := w.create("", "static")
	if err1 != nil || err2 != nil || first.GetInstanceId() == second.GetInstanceId() || first.GetKind() != "knd" {
		t.Errorf("%v, %v, %v, %v", first, err1, second, err2)
	}
}

func TestCreateInstanceRefusals(t *testing.T) {
	w := newTestShard(t)
	theirs := w.NewID(t, "knd")
	if _, err := w.rival(t).CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "theirs",
		InstanceId: theirs.String()}); err != nil {
		t.Fatal(err)
	}
	managed := w.grow(t, "fleet", 1)[0]
	dead := w.NewID(t, "knd")
	if _, err := w.create(dead.String(), "static"); err != nil {
		t.Fatal(err)
	}
	events := live(t, w)
	if _, err := w.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{
		InstanceId: dead.String()}); err != nil {
		t.Fatal(err)
	}
	if err := w.provider.Terminate(w.status(t, dead).GetProviderId()); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(time.Second)
	w.awaitListing(events, "its end", ofType(nstancev1.InstanceEvent_TYPE_DELETED))

	old := w.NewID(t, "knd")
	w.Clock.Advance(365 * 24 * time.Hour / 12)
	w.OperatorServiceClient = w.dial(t, w.Certificate(t, authority.Identity{Role: authority.RoleOperator,
		Cluster: w.Name,
		Tenant:  "prod", ID: w.id}, w.key)) // the first certificate has expired
	at := w.Clock.Now().Add(time.Hour)
	future, err := ident.NewID("knd", at, strings.NewReader(strings.Repeat("x", 64)))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		req   *nstancev1.CreateInstanceRequest
		code  codes.Code
		parts []string
	}{
		"no group":      {&nstancev1.CreateInstanceRequest{}, codes.InvalidArgument, []string{"group: "}},
		"unknown group": {&nstancev1.CreateInstanceRequest{Group: "none"}, codes.NotFound, []string{"group: "}},
		"their group":   {&nstancev1.CreateInstanceRequest{Group: "theirs"}, codes.NotFound, []string{"group: "}},
		"bad ID": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: "knd1"}, codes.InvalidArgument,
			[]string{"instance_id: "}},
		"other kind": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: w.NewID(t, "knq").String()},
			codes.InvalidArgument, []string{"instance_id: ", "knq"}},
		"operator's ID": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: w.NewID(t, "opr").String()},
			codes.InvalidArgument, []string{"instance_id: "}},
		"their ID": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: theirs.String()},
			codes.AlreadyExists, []string{"instance_id: "}},
		"managed": {&nstancev1.CreateInstanceRequest{Group: "fleet", InstanceId: managed.String()},
			codes.AlreadyExists, []string{"instance_id: "}},
		"other group": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: managed.String()},
			codes.AlreadyExists, []string{"instance_id: "}},
		"dead": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: dead.String()},
			codes.AlreadyExists, []string{"instance_id: "}},
		"old": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: old.String()},
			codes.AlreadyExists, []string{"instance_id: "}},
		"future": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceId: future.String()},
			codes.InvalidArgument, []string{"instance_id: ", "clock"}},
		"bad type": {&nstancev1.CreateInstanceRequest{Group: "static", InstanceType: "a\nb"},
			codes.InvalidArgument, []string{"instance_type: "}},
		"bad vars": {&nstancev1.CreateInstanceRequest{Group: "static", Vars: map[string]string{"": "x"}},
			codes.InvalidArgument, []string{"vars: "}},
	} {
		before := w.provider.Count(mock.Create)
		_, err := w.CreateInstance(t.Context(), test.req)
		wants(t, name, err, test.code, test.parts...)
		if w.provider.Count(mock.Create) != before {
			t.Errorf("%s: the provider was asked", name)
		}
	}
}

func TestCreateInstanceOutlivesItsClient(t *testing.T) {
	w := newTestShard(t)
	entered, release := make(chan struct{}), make(chan struct{})
	w.provide(func(_ context.Context, call mock.Call) mock.Outcome {
		if call.Kind == mock.Create {
			close(entered)
			<-release
		}
		return mock.Outcome{}
	})
	id := w.NewID(t, "knd").String()
	left := make(chan struct{}, 1) // the server has seen that the client disconnected
	client := w.dialTo(t, w.serve(t, authority.RoleOperator, grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			defer func() { left <- struct{}{} }()
			return handler(ctx, req)
		})), w.cert)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := client.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{Group: "static", InstanceId: id})
		failed <- err
	}()
	<-entered
	cancel()
	wants(t, "the client that left", <-failed, codes.Canceled)
	<-left
	again := make(chan error, 1)
	go func() {
		made, err := w.create(id, "static")
		if err == nil && (made.GetState() != "created" || made.GetProviderId() == "") {
			err = fmt.Errorf("made %v", made)
		}
		again <- err
	}()
	close(release)
	if err := <-again; err != nil {
		t.Error(err)
	}
	if n := w.provider.Count(mock.Create); n != 1 {
		t.Errorf("%d create calls", n)
	}
}

func TestCreateInstanceRefusedByTheProvider(t *testing.T) {
	w := newTestShard(t)
	w.provider.SetCapacity(mock.Place{}, 0)
	id := w.NewID(t, "knd").String()
	_, err := w.create(id, "static")
	wants(t, "no room", err, codes.ResourceExhausted, "capacity")
	w.provider.SetCapacity(mock.Place{}, -1)
	w.provide(func(_ context.Context, call mock.Call) mock.Outcome {
		return mock.Outcome{Err: infra.Errorf(infra.Denied, "create", "not yours")}
	})
	w.Clock.Advance(5 * time.Minute) // the remembered lack of capacity has expired
	_, err = w.create("", "static")
	wants(t, "denied", err, codes.FailedPrecondition, "not yours")
}

// TestCreateInstanceOnceThereIsRoom checks that CreateInstance does not call the provider while a placement is known to
// be full, and that a later call with the same instance ID creates the instance.
func TestCreateInstanceOnceThereIsRoom(t *testing.T) {
	w := newTestShard(t)
	w.provider.SetCapacity(mock.Place{}, 0)
	_, err := w.create("", "static")
	wants(t, "no room", err, codes.ResourceExhausted)
	w.provider.SetCapacity(mock.Place{}, -1)
	id := w.NewID(t, "knd").String()
	_, err = w.create(id, "static")
	wants(t, "no room lately", err, codes.ResourceExhausted, "lately")
	if n := w.provider.Count(mock.Create); n != 1 {
		t.Errorf("%d create calls", n)
	}
	w.Clock.Advance(5 * time.Minute)
	made, err := w.create(id, "static")
	if err != nil || made.GetInstanceId() != id || made.GetState() != "created" {
		t.Errorf("%v, %v", made, err)
	}
}

func TestCreateInstanceWithoutStorage(t *testing.T) {
	w := newTestShard(t)
	w.group(t, "static") // the operator's record is remembered from here on
	id := w.NewID(t, "knd").String()
	w.breakStore(outOfOrder)
	_, err := w.create(id, "static")
	wants(t, "no storage", err, codes.Unavailable, "out of order")
	if n := w.provider.Count(mock.Create); n != 0 {
		t.Errorf("%d create calls without a record", n)
	}
	w.breakStore(nil)
	if made, err := w.create(id, "static"); err != nil || made.GetState() != "created" {
		t.Errorf("%v, %v", made, err)
	}
}
