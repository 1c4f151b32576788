package aws

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// DescribeType implements infra.InstanceTypes with DescribeInstanceTypes.
func (p *Provider) DescribeType(ctx context.Context, name string) (infra.InstanceType, error) {
	what := "describe instance type " + name
	ctx, tries := withAttempts(ctx)
	out, err := p.cfg.EC2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{
		InstanceTypes: []types.InstanceType{types.InstanceType(name)}})
	if err != nil {
		return infra.InstanceType{}, classify(what, "DescribeInstanceTypes", tries, err)
	}
	for _, t := range out.InstanceTypes {
		if string(t.InstanceType) == name && t.VCpuInfo != nil && t.MemoryInfo != nil {
			return infra.InstanceType{CPUs: int(deref(t.VCpuInfo.DefaultVCpus)),
				MemoryMiB: deref(t.MemoryInfo.SizeInMiB)}, nil
		}
	}
	return infra.InstanceType{}, infra.Errorf(infra.NotFound, what, "there is no such type")
}
