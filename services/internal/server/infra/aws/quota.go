package aws

import (
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// quotaOf returns the quota that a refused call exceeded, by its name in Service Quotas for EC2 and VPC, or "".
// Sources: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html#throttling-increase and
// https://docs.aws.amazon.com/general/latest/gr/ec2-service.html#limits_ec2.
func quotaOf(call, code, instanceType string) string {
	switch code {
	case "RequestLimitExceeded":
		return call + " request bucket refill rate"
	case "ResourceLimitExceeded":
		return call + " resource bucket refill rate"
	case "VcpuLimitExceeded":
		return "Running On-Demand " + familyOf(instanceType) + " instances"
	case "MaxSpotInstanceCountExceeded":
		return "All " + familyOf(instanceType) + " Spot Instance Requests"
	case "NetworkInterfaceLimitExceeded":
		return "Network interfaces per Region"
	}
	return ""
}

// familyOf returns the name of the family of instance types that share one vCPU quota with the given type.
func familyOf(instanceType string) string {
	for _, family := range []struct{ prefix, name string }{
		{"hpc", "HPC"}, {"inf", "Inf"}, {"trn", "Trn"}, {"dl", "DL"}, {"vt", "G and VT"}, {"u-", "High Memory"},
		{"u7", "High Memory"}, {"f", "F"}, {"g", "G and VT"}, {"p", "P"}, {"x", "X"},
	} {
		if strings.HasPrefix(instanceType, family.prefix) {
			return family.name
		}
	}
	return "Standard (A, C, D, H, I, M, R, T, Z)"
}

// withQuota adds the name of the exceeded quota to the error of a refused create.
func withQuota(err error, instanceType string) error {
	e, classed := errors.AsType[*infra.Error](err)
	cause, coded := errors.AsType[*awsError](err)
	if classed && coded && e.Quota == "" {
		e.Quota = quotaOf(cause.call, cause.code, instanceType)
	}
	return err
}

// permissions returns which IAM actions a call needs, in words.
func permissions(call string) string {
	i := slices.IndexFunc(Calls, func(c Call) bool { return c.Name == call })
	if i < 0 {
		return ""
	}
	return call + " needs " + strings.Join(Calls[i].Actions, ", ")
}

// volumeKeys returns the KMS keys that a request names for its volumes.
func volumeKeys(in *ec2.RunInstancesInput) (keys []string) {
	for _, device := range in.BlockDeviceMappings {
		if device.Ebs != nil && deref(device.Ebs.KmsKeyId) != "" {
			keys = append(keys, *device.Ebs.KmsKeyId)
		}
	}
	return keys
}

// rememberKeys remembers the KMS keys of a group's latest request, because EC2 does not name a key that it cannot use.
func (p *Provider) rememberKeys(tags *infra.Tags, keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil {
		p.keys = map[[2]string][]string{}
	}
	p.keys[[2]string{tags.Tenant, tags.Group}] = keys
}

// describe translates an instance to an infra.VM. If the instance ended because of a KMS key, EndReason names the key.
func (p *Provider) describe(instance types.Instance) infra.VM {
	vm := describe(instance)
	// EC2 gives this reason if the caller has no permission for the KMS key of a volume.
	// https://repost.aws/knowledge-center/kms-iam-ec2-permission
	denied := strings.HasPrefix(vm.EndReason, "Client.InternalError")
	if !denied && !strings.Contains(vm.EndReason, "KMS") {
		return vm
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := strings.Join(p.keys[[2]string{vm.Tags.Tenant, vm.Tags.Group}], ", ")
	switch {
	case denied && keys != "":
		vm.EndReason += " (the servers' role may not use KmsKeyId " + keys + ", or there is no such key)"
	case denied:
	case keys == "":
		vm.EndReason += " (args name no KmsKeyId: it is the key of the image's snapshot, or the default key for EBS)"
	default:
		vm.EndReason += " (KmsKeyId " + keys + ")"
	}
	return vm
}
