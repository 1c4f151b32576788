package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

const (
	// fewAddresses is the number of free addresses at or below which a subnet counts as full. Other users of the subnet
	// need addresses too: a load balancer needs eight.
	fewAddresses = 10
	// roomMemory is how long HasRoom reuses an answer of EC2.
	roomMemory = 20 * time.Second
	// filterValues is the largest number of values in one filter of the API.
	filterValues = 200
)

// subnet is the last known state of a subnet.
type subnet struct {
	zone string
	free int32 // IPv4 addresses
}

// HasRoom implements infra.SubnetCapacity with DescribeSubnets. It reuses an answer for roomMemory, so that creates do
// not wait. A subnet that does not exist, or that is not in the shard's zone, has no room.
func (p *Provider) HasRoom(ctx context.Context, subnets []string) (map[string]bool, error) {
	p.mu.Lock()
	known, fresh := p.subnets, p.cfg.Now().Sub(p.subnetsAt) < roomMemory
	p.mu.Unlock()
	if !fresh || slices.ContainsFunc(subnets, func(id string) bool { _, ok := known[id]; return !ok }) {
		var err error
		if known, err = p.describeSubnets(ctx, "look for room in subnets", subnets); err != nil {
			return nil, err
		}
	}
	room := make(map[string]bool, len(subnets))
	for _, id := range subnets {
		room[id] = known[id].zone == p.cfg.Zone && known[id].free > fewAddresses
	}
	return room, nil
}

// checkSubnets fails if a subnet does not exist (NotFound) or is not in the shard's zone (Invalid).
func (p *Provider) checkSubnets(ctx context.Context, subnets []string) error {
	const what = "check server.subnet_pools"
	known, err := p.describeSubnets(ctx, what, subnets)
	if err != nil {
		return err
	}
	var missing, foreign []string
	for _, id := range subnets {
		switch s, ok := known[id]; {
		case !ok:
			missing = append(missing, id)
		case s.zone != p.cfg.Zone:
			foreign = append(foreign, fmt.Sprintf("%s is in %s", id, s.zone))
		}
	}
	switch {
	case len(foreign) > 0:
		return refused(what, "every subnet of a shard must be in its zone, %s: %s", p.cfg.Zone,
			strings.Join(foreign, ", "))
	case len(missing) > 0:
		return infra.Errorf(infra.NotFound, what, "not in this account and region: %s", strings.Join(missing, ", "))
	default:
		return nil
	}
}

// describeSubnets describes subnets and caches the result. It leaves out subnets that do not exist.
func (p *Provider) describeSubnets(ctx context.Context, what string, subnets []string) (map[string]subnet, error) {
	known := make(map[string]subnet, len(subnets))
	for ids := range slices.Chunk(subnets, filterValues) {
		// Use a filter: if subnets are requested by ID and one does not exist, EC2 returns none of them.
		pages := ec2.NewDescribeSubnetsPaginator(p.cfg.EC2, &ec2.DescribeSubnetsInput{
			Filters: []types.Filter{filter("subnet-id", ids...)}})
		if err := readPages(ctx, what, "DescribeSubnets", pages, func(page *ec2.DescribeSubnetsOutput) {
			for _, s := range page.Subnets {
				free := deref(s.AvailableIpAddressCount)
				if deref(s.Ipv6Native) {
					free = 1 << 30 // an IPv6-only subnet cannot run out of IPv4 addresses
				}
				known[deref(s.SubnetId)] = subnet{zone: deref(s.AvailabilityZone), free: free}
			}
		}); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	p.subnets, p.subnetsAt = known, p.cfg.Now()
	p.mu.Unlock()
	return known, nil
}

// foreign reports whether a subnet is known to be in another zone than the shard's. The provider makes no instances
// there, because client tokens are unique per zone only.
func (p *Provider) foreign(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, known := p.subnets[id]
	return known && s.zone != p.cfg.Zone
}

// DescribeType implements infra.InstanceTypes with DescribeInstanceTypes.
func (p *Provider) DescribeType(ctx context.Context, name string) (infra.InstanceType, error) {
	what := "describe instance type " + name
	out, err := call(ctx, what, "DescribeInstanceTypes", p.cfg.EC2.DescribeInstanceTypes,
		&ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(name)}})
	if err != nil {
		return infra.InstanceType{}, err
	}
	for _, t := range out.InstanceTypes {
		if string(t.InstanceType) == name && t.VCpuInfo != nil && t.MemoryInfo != nil {
			return infra.InstanceType{CPUs: int(deref(t.VCpuInfo.DefaultVCpus)),
				MemoryMiB: deref(t.MemoryInfo.SizeInMiB)}, nil
		}
	}
	return infra.InstanceType{}, infra.Errorf(infra.NotFound, what, "there is no such type")
}

// owned lists the filters that limit who can own an image. A query needs one of these filters or a list of owners.
var owned = []string{"owner-id", "owner-alias", "image-id"}

// Resolve implements infra.Images with DescribeImages. It considers available images only, unless the query filters by
// state. Filter values may hold EC2's wildcards.
func (p *Provider) Resolve(ctx context.Context, q infra.ImageQuery) (string, error) {
	what := "look up image " + q.String()
	if len(q.Owners) == 0 && !slices.ContainsFunc(owned, func(name string) bool { return len(q.Filters[name]) > 0 }) {
		return "",
			refused(what,
				"owners is missing, and anyone can publish an image of any name: set owners (self, amazon, "+
					"an account's ID)")
	}
	in := &ec2.DescribeImagesInput{Owners: q.Owners, MaxResults: sdk.Int32(p.cfg.PageSize)}
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		in.Filters = append(in.Filters, types.Filter{Name: sdk.String(name), Values: q.Filters[name]})
	}
	if _, filtered := q.Filters["state"]; !filtered {
		in.Filters = append(in.Filters, filter("state", string(types.ImageStateAvailable)))
	}
	var images []infra.Image
	pages := ec2.NewDescribeImagesPaginator(p.cfg.EC2, in)
	if err := readPages(ctx, what, "DescribeImages", pages, func(page *ec2.DescribeImagesOutput) {
		for _, image := range page.Images {
			at, _ := time.Parse(time.RFC3339, deref(image.CreationDate)) // an image without a date is the oldest
			images = append(images, infra.Image{ID: deref(image.ImageId), Name: deref(image.Name), CreatedAt: at})
		}
	}); err != nil {
		return "", err
	}
	return q.Choose(what, images)
}
