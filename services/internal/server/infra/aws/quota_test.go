package aws_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

func TestQuotaIsNamed(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	for _, c := range []struct {
		code, instanceType string
		want               string
	}{
		{"VcpuLimitExceeded", "t3.small", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"},
		{"VcpuLimitExceeded", "g5.xlarge", "Running On-Demand G and VT instances"},
		{"VcpuLimitExceeded", "inf2.xlarge", "Running On-Demand Inf instances"},
		{"VcpuLimitExceeded", "i4i.large", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"},
		{"VcpuLimitExceeded", "p5.48xlarge", "Running On-Demand P instances"},
		{"MaxSpotInstanceCountExceeded", "c6i.large",
			"All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"},
		{"RequestLimitExceeded", "t3.small", "RunInstances request bucket refill rate"},
		{"NetworkInterfaceLimitExceeded", "t3.small", "Network interfaces per Region"},
		{"InsufficientInstanceCapacity", "t3.small", ""},
	} {
		r.cloud.Faults().Fail(fault.Match{Service: "ec2", Action: "RunInstances"}, 1, http.StatusBadRequest, c.code,
			"no")
		req := r.request()
		req.InstanceType = c.instanceType
		_, err := p.Create(t.Context(), req)
		if got := infra.QuotaOf(err); got != c.want {
			t.Errorf("%s of %s: quota %q, want %q", c.code, c.instanceType, got, c.want)
		}
		if c.want != "" {
			wantClass(t, c.code, err, infra.ClassOf(err), "(quota "+c.want+")", c.code)
		}
	}
}

func TestDeniedActionIsNamed(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	const encoded = "Encoded authorization failure message: 4GIOHlTkIaWHQD0Q0m6XSnuUMCm"
	for name, c := range map[string]struct{ message, want string }{
		"AWS names the action": {"You are not authorized to perform this operation. User: " +
			"arn:aws:sts::1:assumed-role/s/i " +
			"is not authorized to perform: ec2:CreateTags on resource: * because no identity-based policy allows the " +
			"ec2:CreateTags action. " + encoded, "no identity-based policy allows the ec2:CreateTags action (request"},
		"AWS names only the encoded message": {"You are not authorized to perform this operation. " + encoded,
			"RunInstances needs ec2:RunInstances, ec2:CreateTags, iam:PassRole"},
	} {
		r.cloud.Faults().Fail(fault.Match{Service: "ec2", Action: "RunInstances"}, 1, http.StatusForbidden,
			"UnauthorizedOperation", c.message)
		_, err := p.Create(t.Context(), r.request())
		wantClass(t, name, err, infra.Denied, c.want)
	}
}

// TestKeyWithoutPermissionIsNamed checks the reason that EC2 gives if the caller may not use a key, or if there is no
// such key. The reason does not mention keys.
func TestKeyWithoutPermissionIsNamed(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	const arn = "arn:aws:kms:us-west-2:123456789012:key/1234abcd"
	for name, c := range map[string]struct {
		ebs  map[string]any
		want string
	}{
		"args name the key": {map[string]any{"Encrypted": true, "KmsKeyId": arn},
			"Client.InternalError: Client error on launch (the servers' role may not use KmsKeyId " + arn +
				", or there is no such key)"},
		"args name no key": {map[string]any{"Encrypted": true},
			"Client.InternalError: Client error on launch"},
	} {
		req := r.request()
		req.Args["BlockDeviceMappings"] = []any{map[string]any{"DeviceName": "/dev/xvda", "Ebs": c.ebs}}
		vm, err := p.Create(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.ebs["KmsKeyId"] == nil {
			r.cloud.EC2().FailLaunch(vm.ProviderID, "Client.InternalError", "Client error on launch")
		}
		for range 3 { // Each call ends one transitional state.
			if vm, err = p.Get(t.Context(), vm.ProviderID); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if vm.EndReason != c.want {
			t.Errorf("%s: end reason %q, want %q", name, vm.EndReason, c.want)
		}
	}
}

func TestUnusableKeyIsNamed(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(func(cfg *aws.Config) { cfg.EC2 = r.root }) // which may use the key
	const code, message = "Client.InvalidKMSKey.InvalidState", "The KMS key provided is in an incorrect state"
	const arn = "arn:aws:kms:us-west-2:123456789012:key/1234abcd"
	r.cloud.EC2().AddKey(fake.Key{ARN: arn})
	for name, c := range map[string]struct {
		ebs  map[string]any
		want string
	}{
		"args name the key": {map[string]any{"Encrypted": true, "KmsKeyId": arn}, "(KmsKeyId " + arn + ")"},
		"args name no key":  {map[string]any{"Encrypted": true}, "the default key for EBS"},
	} {
		req := r.request()
		req.Args["BlockDeviceMappings"] = []any{map[string]any{"DeviceName": "/dev/xvda", "Ebs": c.ebs},
			map[string]any{"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"}}
		vm, err := p.Create(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r.cloud.EC2().FailLaunch(vm.ProviderID, code, message)
		vm, err = p.Get(t.Context(), vm.ProviderID)
		if err != nil || !strings.HasPrefix(vm.EndReason, code+": "+message) ||
			!strings.Contains(vm.EndReason, c.want) {
			t.Errorf("%s: end reason %q (%v), want %q", name, vm.EndReason, err, c.want)
		}
	}
}
