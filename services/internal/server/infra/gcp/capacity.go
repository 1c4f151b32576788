package gcp

import (
	"context"
	"net/http"

	"google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// fewAddresses is the largest number of free addresses with which HasRoom reports that a subnet is full. Other users of
// the subnet need addresses too.
const fewAddresses = 10

// HasRoom implements infra.SubnetCapacity. It reads the utilization from subnetworks.get. If Google reports no
// utilization for a subnet, the subnet counts as having room.
func (p *Provider) HasRoom(ctx context.Context, subnets []string) (map[string]bool, error) {
	room := make(map[string]bool, len(subnets))
	for _, name := range subnets {
		subnet, err := p.api.getSubnet(ctx, p.subnetPath(name))
		if googlecloud.StatusOf(err) == http.StatusNotFound {
			room[name] = false
			continue
		}
		if err != nil {
			return nil, p.classify("look for room in subnets", "subnetworks.get", err)
		}
		room[name] = hasRoom(subnet)
	}
	return room, nil
}

func hasRoom(subnet *compute.Subnetwork) bool {
	if subnet.UtilizationDetails != nil {
		for _, use := range subnet.UtilizationDetails.Ipv4Utilizations {
			if use.RangeName == "" && use.TotalAllocatedIp+use.TotalFreeIp > 0 {
				return use.TotalFreeIp > fewAddresses
			}
		}
	}
	return true
}

// DescribeType implements infra.InstanceTypes with machineTypes.get.
func (p *Provider) DescribeType(ctx context.Context, name string) (infra.InstanceType, error) {
	found, err := p.api.machineType(ctx, name)
	if err != nil {
		return infra.InstanceType{}, p.classify("describe machine type "+name, "machineTypes.get", err)
	}
	return infra.InstanceType{CPUs: int(found.GuestCpus), MemoryMiB: found.MemoryMb}, nil
}
