package aws_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

// hibernatable returns the args of VMs that can hibernate.
func (r *testCloud) hibernatable() map[string]any {
	return map[string]any{"ImageId": r.image, "BlockDeviceMappings": []any{map[string]any{
		"DeviceName": "/dev/xvda", "Ebs": map[string]any{"Encrypted": true, "VolumeSize": "20"}}}}
}

// disks identifies the volumes of a VM.
func (r *testCloud) disks(t *testing.T, vm infra.VM) string {
	t.Helper()
	var ids []string
	for _, device := range r.instance(vm.ProviderID).BlockDeviceMappings {
		ids = append(ids, *device.Ebs.VolumeId)
	}
	return strings.Join(ids, " ")
}

// spare creates a VM that can be suspended, and returns it when it runs.
func (r *testCloud) spare(p infra.Provider, change func(req *infra.CreateRequest)) infra.VM {
	r.t.Helper()
	req := r.request()
	req.Args, req.Sleep = r.hibernatable(), config.SparesSuspended
	if change != nil {
		change(&req)
	}
	vm, err := p.Create(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	return vm
}

// TestHibernationTakesTime checks that a VM that EC2 cannot hibernate yet is put to sleep later.
func TestHibernationTakesTime(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	r.cloud.EC2().SetHibernatable(2 * time.Minute)
	vm := r.spare(p, nil)
	wantClass(t, "just started", p.Sleep(t.Context(), vm, config.SparesSuspended), infra.Conflict, "not ready")
	r.clock.Add(int64(2 * time.Minute))
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	found, err := p.Get(t.Context(), vm.ProviderID)
	if err != nil || found.State != infra.Stopped || found.EndReason != "" {
		t.Errorf("hibernated: %+v, %v", found, err)
	}
	if code := *r.instance(vm.ProviderID).StateReason.Code; code != "Client.UserInitiatedHibernate" {
		t.Errorf("reason %s", code)
	}
}

func TestSleepOfVMsThatCannot(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	plain := r.spare(p, func(req *infra.CreateRequest) { req.Sleep = config.SparesStopped })
	wantClass(t, "without hibernation", p.Sleep(t.Context(), plain, config.SparesSuspended), infra.Invalid,
		"launched without hibernation")
	spot := r.spare(p, func(req *infra.CreateRequest) { req.Sleep, req.Tags.Spot = config.SparesStopped, true })
	wantClass(t, "spot", p.Sleep(t.Context(), spot, config.SparesStopped), infra.Invalid, "spot instance")
	if n := r.calls("StopInstances"); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// TestCreateOfVMsThatCannotHibernate checks that the error says what a VM lacks, and what a user can do.
func TestCreateOfVMsThatCannotHibernate(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	arm := r.cloud.EC2().AddImage(fake.AMI{Name: "arm", Arch: "arm64"})
	for what, change := range map[string]func(*infra.CreateRequest){
		"the root volume must be encrypted": func(req *infra.CreateRequest) {
			req.Args = map[string]any{"ImageId": r.image}
		},
		"m7g.large does not support hibernation": func(req *infra.CreateRequest) {
			req.InstanceType, req.Args["ImageId"] = "m7g.large", arm
		},
		"too small": func(req *infra.CreateRequest) { req.InstanceType = "m5.2xlarge" },
	} {
		req := r.request()
		req.Args, req.Sleep = r.hibernatable(), config.SparesSuspended
		change(&req)
		_, err := p.Create(t.Context(), req)
		wantClass(t, what, err, infra.Invalid, "UnsupportedHibernationConfiguration", "set spares.state to stopped")
		if !strings.Contains(strings.ToLower(err.Error()), what) {
			t.Errorf("error %v does not say %q", err, what)
		}
		req.Sleep = config.SparesStopped
		if _, err := p.Create(t.Context(), req); err != nil {
			t.Errorf("%s: to be stopped: %v", what, err)
		}
	}
}

// TestVerifyHibernation checks that types that cannot hibernate are found before a VM is created.
func TestVerifyHibernation(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	verify := func(state, instanceType string, others ...string) error {
		return p.Verify(t.Context(), &config.Shard{Groups: map[string]map[string]config.GroupSpec{"default": {"web": {
			InstanceType: instanceType, InstanceTypes: others, Spares: &config.Spares{Count: 1, State: state}}}}})
	}
	for _, err := range []error{verify(config.SparesStopped, "m7g.large"), verify(config.SparesRunning, "m7g.large"),
		verify(config.SparesSuspended, "m5.large", "t3.large")} {
		if err != nil {
			t.Error(err)
		}
	}
	wantClass(t, "one type", verify(config.SparesSuspended, "m5.large", "m7g.large"), infra.Invalid,
		"cannot hibernate: m7g.large of default/web")
	wantClass(t, "no such type", verify(config.SparesSuspended, "m5.gigantic"), infra.Invalid, "m5.gigantic")
}

// TestWakeWithoutCapacity checks that missing capacity is reported after a single attempt.
func TestWakeWithoutCapacity(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	vm := r.spare(p, nil)
	if err := p.Sleep(t.Context(), vm, config.SparesStopped); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	r.cloud.Faults().NoCapacity("t3.small", zone, r.a, "InsufficientInstanceCapacity")
	wantClass(t, "no capacity", p.Wake(t.Context(), vm), infra.Capacity, "InsufficientInstanceCapacity")
	if n := r.calls("StartInstances"); n != 1 {
		t.Errorf("%d attempts", n)
	}
	r.cloud.Faults().Clear()
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Error(err)
	}
}

// TestRacesOfSleep checks that a VM that another server has just stopped or started is a conflict.
func TestRacesOfSleep(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	vm := r.spare(p, nil)
	r.cloud.Faults().Fail(fault.Match{Action: "StopInstances"}, 1, http.StatusBadRequest, "IncorrectInstanceState",
		"This instance is not in a state from which it can be stopped.")
	wantClass(t, "Sleep", p.Sleep(t.Context(), vm, config.SparesStopped), infra.Conflict)
	if err := p.Sleep(t.Context(), vm, config.SparesStopped); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	r.cloud.Faults().Fail(fault.Match{Action: "StartInstances"}, 1, http.StatusBadRequest, "IncorrectInstanceState",
		"The instance is not in a state from which it can be started.")
	wantClass(t, "Wake", p.Wake(t.Context(), vm), infra.Conflict)
}

// TestWakeWithoutKey checks the reason of a VM that stops again because the servers may not use the KMS key of its
// volume.
func TestWakeWithoutKey(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(func(cfg *aws.Config) { cfg.EC2 = r.root }) // which may use the key
	const arn = "arn:aws:kms:us-west-2:123456789012:key/1234abcd"
	r.cloud.EC2().AddKey(fake.Key{ARN: arn})
	vm := r.spare(p, func(req *infra.CreateRequest) {
		ebs := req.Args["BlockDeviceMappings"].([]any)[0].(map[string]any)["Ebs"].(map[string]any)
		ebs["KmsKeyId"] = arn
	})
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	if err := r.open(nil).Wake(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	found, err := p.Get(t.Context(), vm.ProviderID)
	if err != nil || found.State != infra.Stopped || !strings.Contains(found.EndReason, "may not use KmsKeyId "+arn) {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestPrivateAddressesStay checks that only the public address of a VM changes when it sleeps.
func TestPrivateAddressesStay(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	vm := r.spare(p, func(req *infra.CreateRequest) {
		req.Args["NetworkInterfaces"] = []any{map[string]any{"DeviceIndex": float64(0),
			"AssociatePublicIpAddress": true}}
	})
	public := func(i types.Instance) string {
		if i.PublicIpAddress == nil {
			return ""
		}
		return *i.PublicIpAddress
	}
	before := r.instance(vm.ProviderID)
	if err := p.Sleep(t.Context(), vm, config.SparesStopped); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	asleep := r.instance(vm.ProviderID)
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	after := r.instance(vm.ProviderID)
	if *asleep.PrivateIpAddress != *before.PrivateIpAddress || *after.PrivateIpAddress != *before.PrivateIpAddress {
		t.Error("the private address changed")
	}
	if public(before) == "" || public(asleep) != "" || public(after) == "" || public(after) == public(before) {
		t.Errorf("public addresses %q, asleep %q, then %q", public(before), public(asleep), public(after))
	}
}

// TestWokenVMProvesItself checks that the new identity document of a VM that was stopped and started is valid, and the
// old one too: they differ in pendingTime.
func TestWokenVMProvesItself(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	requireProof(p, r.cloud.EC2().IdentityCertificate())
	vm := r.spare(p, nil)
	before := r.proof(vm.ProviderID)
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	r.clock.Add(int64(time.Minute))
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	r.cloud.EC2().Settle()
	after := r.proof(vm.ProviderID)
	woken, err := p.Get(t.Context(), vm.ProviderID)
	if err != nil || bytes.Equal(before, after) {
		t.Fatalf("the document has not changed, or %v", err)
	}
	for _, proof := range [][]byte{before, after} {
		if err := p.Attest(t.Context(), proof, woken); err != nil {
			t.Error(err)
		}
	}
}
